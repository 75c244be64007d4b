"""An adversary against what is said of LayerNorm: it conserves the energy, it removes it; and against what we say.

Printed, by a summary of P2: LayerNorm conserves the energy. Counted apart, by P2: it is dissipation. The search varies
states, ε, branches, gains and biases, or holds g = 1, b = 0. Ours: LayerNorm is the nearest point of a sphere,
post-LayerNorm sets the length of every token, pre-LayerNorm lets it grow linearly at most, eq 9 removes the energy of
fluctuations only, and the corrected term bounds ‖u‖.

Inequalities are attacked by gradient ascent on value/bound, and the control is the bound shrunk to 90 %. Of an exact
law the ratio is its relative error over ROUNDING, evaluated on random draws; the control is a wrong law. The count of
changes of energy has controls with nothing to find: an orthogonal map in the norm's place, and a contraction.
"""

import torch
from torch import Tensor
from torch.func import vmap

from pdebook.chapters.stabilization import normalization
from pdebook.evidence.adversary import ROUNDING, ascend, attack_result
from pdebook.evidence.experiment import Scale, Workplace, experiment
from pdebook.ledger.record import Result
from pdelab.formulas import attention, longest, norm2
from pdelab.integrators import RK4
from pdelab.seeds import normal, stream
from pdelab.solver import solve
from pdelab.terms.stabilization import LayerNormRate, SpatialStabilization

PLACES = ("alone", "post")
HARMLESS = ("orthogonal", "contraction")  # what stands in the norm's place in the controls of the count


def layer_norm(z: Tensor, eps: Tensor | float = 0.0, gain: Tensor | float = 1.0, bias: Tensor | float = 0.0) -> Tensor:
    """g ⊙ (z − m1)/√(v + ε) + b over the last axis, with ε, g and b of any shape that fits."""
    y = z - z.mean(dim=-1, keepdim=True)
    return gain * y / (y.square().mean(dim=-1, keepdim=True) + eps).sqrt() + bias


def energy(u: Tensor) -> Tensor:
    """½ (1/N) Σ_i |u_i|² of each example: (batch,)."""
    return u.square().sum(dim=-1).mean(dim=1) / 2


def column(x: Tensor) -> Tensor:
    return x.reshape(-1, 1, 1)


# The printed statements.


def gain_of_energy(place: str, u: Tensor, log_eps: Tensor, A: Tensor, V: Tensor, *affine: Tensor) -> Tensor:
    """log(E after/E before): of the norm alone, or of the norm after a branch (post); affine: g and b, or 1 and 0.

    In the controls the norm is replaced: by exp(A − Aᵀ), which is orthogonal, or by V/(1 + ‖V‖), a contraction.
    """
    if place == "orthogonal":
        return (energy(u @ torch.linalg.matrix_exp(A - A.transpose(-1, -2))) / energy(u)).log()
    if place == "contraction":
        return (energy(u @ (V / (1 + column(norm2(V))))) / energy(u)).log()
    before = u + attention(u, A, V) if place == "post" else u
    return (energy(layer_norm(before, column(log_eps.exp()), *affine)) / energy(before)).log()


def attack_energy(
    seed: int, place: str, plain: bool = False, batch: int = 64, steps: int = 30
) -> tuple[Tensor, Tensor]:
    """Of each start the change of log E as drawn, and the largest that ascent found; tokens from short to long.

    plain holds g = 1 and b = 0.
    """
    shapes = {"g": (batch, 1, 4), "b": (batch, 1, 4), "A": (batch, 4, 4), "V": (batch, 4, 4)}
    others = {name: normal(seed, place, name, size=size) for name, size in shapes.items()}
    start = [
        normal(seed, place, "u", size=(batch, 3, 4)) * column(normal(seed, place, "size", size=(batch,)).exp()),
        2 * normal(seed, place, "ε", size=(batch,)) - 8,
        0.5 * others["A"],
        0.5 * others["V"],
    ]
    if not plain and place in PLACES:
        start += [1 + 0.3 * others["g"], 0.3 * others["b"]]
    with torch.no_grad():
        drawn = gain_of_energy(place, *start)
    return drawn, ascend(lambda *x: gain_of_energy(place, *x), *start, steps=steps)


# LayerNorm as a projection.


def attack_length(seed: int, batch: int = 128, steps: int = 60) -> Tensor:
    """|LN(z)|/√d for g = 1, b = 0 and any ε ≥ 0: at most 1."""
    found = []
    for width in (2, 3, 8):
        z, log_eps = normal(seed, "length", width, size=(batch, width)), normal(seed, "ε", width, size=(batch, 1))
        found.append(
            ascend(lambda z, e, d=width: layer_norm(z, e.exp()).norm(dim=-1) / d**0.5, z, log_eps, steps=steps)
        )
    return torch.cat(found)


def attack_nearest(seed: int, batch: int = 128, steps: int = 100) -> Tensor:
    """|z − LN(z)| / |z − w| for w with mean 0 and length √d: at most 1, LN(z) is the nearest such point (ε = 0)."""
    found = []
    for width in (2, 3, 8):
        z, w = (normal(seed, "nearest", width, k, size=(batch, width)) for k in "zw")

        def score(z: Tensor, w: Tensor) -> Tensor:
            return (z - layer_norm(z)).norm(dim=-1) / (z - layer_norm(w)).norm(dim=-1)

        found.append(ascend(score, z, w, steps=steps))
    return torch.cat(found)


def attack_lipschitz(seed: int, batch: int = 128, steps: int = 150) -> Tensor:
    """√ε |LN(z) − LN(w)| / (‖g‖_∞ |z − w|): at most 1, for all pairs, gains and ε > 0."""
    found = []
    for width in (2, 3, 8):
        z, w, gain = (normal(seed, "slope", width, k, size=(batch, width)) for k in "zwg")
        log_eps = normal(seed, "slope ε", width, size=(batch, 1))

        def score(z: Tensor, w: Tensor, gain: Tensor, log_eps: Tensor) -> Tensor:
            eps = log_eps.exp()
            change = (layer_norm(z, eps, gain) - layer_norm(w, eps, gain)).norm(dim=-1)
            return change * eps.sqrt().squeeze(-1) / (gain.abs().amax(dim=-1) * (z - w).norm(dim=-1))

        found.append(ascend(score, z, w, gain, log_eps, steps=steps))
    return torch.cat(found)


def idempotence_error(seed: int, uneven: float = 0.0, batch: int = 256) -> Tensor:
    """|LN(LN(z)) − LN(z)|/√d for gains 1 ± uneven, b = 0 and ε = 0: zero for even gains."""
    z = normal(seed, "idempotent", size=(batch, 6)) * normal(seed, "size", size=(batch, 1)).exp()
    gain = 1 + uneven * normal(seed, "gain", size=(batch, 6))
    once = layer_norm(z, gain=gain)
    return (layer_norm(once, gain=gain) - once).norm(dim=-1) / 6**0.5


def iterate_error(seed: int, law: str = "ours", batch: int = 64) -> Tensor:
    """1/v_n of LN applied n = 1, …, 5 times against 1 + ε + … + ε^{n−1} + εⁿ/v_0, relative.

    law="at once" says 1/v_n = 1/(1 − ε) from the first time on: a wrong law, for the control.
    """
    z, eps = (
        normal(seed, "iterate", size=(batch, 6)),
        torch.rand(batch, 1, generator=stream(seed, "iterate ε")).double(),
    )
    inverse, worst = 1 / z.var(dim=-1, keepdim=True, unbiased=False), torch.zeros(batch, 1, dtype=torch.float64)
    for _ in range(5):
        z, inverse = layer_norm(z, eps), 1 + eps * inverse
        want = inverse if law == "ours" else 1 / (1 - eps)
        worst = torch.maximum(worst, (1 / (z.var(dim=-1, keepdim=True, unbiased=False) * want) - 1).abs())
    return worst.squeeze(-1)


def jacobian_formula(z: Tensor, eps: float = 0.0, centre: bool = True) -> Tensor:
    """(v + ε)^{−½} (I − 11ᵀ/d − x̂x̂ᵀ/d), x̂ = LN(z), for g = 1, b = 0: (…, d, d).

    centre=False leaves 11ᵀ/d out: a wrong formula, for the control.
    """
    d = z.shape[-1]
    hat = layer_norm(z, eps)
    inside = torch.eye(d, dtype=z.dtype) - hat.unsqueeze(-1) * hat.unsqueeze(-2) / d - (1 / d if centre else 0)
    return inside / (z.var(dim=-1, unbiased=False)[..., None, None] + eps).sqrt()


def jacobian_error(seed: int, centre: bool = True, batch: int = 64) -> Tensor:
    """The formula against automatic differentiation, relative to the spectral norm."""
    z, found = normal(seed, "jacobian", size=(batch, 5)), []
    for eps in (0.0, 0.1):
        exact = vmap(torch.func.jacrev(lambda x, e=eps: layer_norm(x, e)))(z)
        found.append(norm2(jacobian_formula(z, eps, centre) - exact) / norm2(exact))
    return torch.cat(found)


# Blocks.


def post_norm_error(seed: int, eps: float = 0.0, batch: int = 256) -> Tensor:
    """max_i ||LN(u + F(u))_i|/√d − 1| for branches from small to enormous: zero at ε = 0."""
    u, (A, V) = normal(seed, "post", size=(batch, 4, 6)), (normal(seed, "post", k, size=(batch, 6, 6)) for k in "AV")
    size = column(3 * normal(seed, "post", "size", size=(batch,))).exp()
    after = layer_norm(u + size * attention(u, A, V), eps)
    return (after.norm(dim=-1) / 6**0.5 - 1).abs().amax(dim=-1)


def kept_error(seed: int, start: str = "normalised", batch: int = 256) -> Tensor:
    """|log(E after/E before)| of the block u ↦ LN(u + F(u)), g = 1, b = 0, ε = 0: zero for a u that a norm has set.

    start="any" takes u as drawn, short and long: a wrong law, for the control.
    """
    u, (A, V) = normal(seed, "kept", size=(batch, 4, 6)), (normal(seed, "kept", k, size=(batch, 6, 6)) for k in "AV")
    u = layer_norm(u) if start == "normalised" else u * column(normal(seed, "kept", "size", size=(batch,)).exp())
    return (energy(layer_norm(u + attention(u, A, V))) / energy(u)).log().abs()


def pre_norm_ratio(u: Tensor, A: Tensor, V: Tensor, gain: Tensor, bias: Tensor, layers: int = 4) -> Tensor:
    """(max_i|u_i| after − before)/(L B) of u ← u + Att(LN(u)), B = ‖V‖(√d‖g‖_∞ + |b|): at most 1."""
    before = longest(u)
    reach = u.shape[-1] ** 0.5 * gain.abs().amax(dim=(-1, -2)) + bias.flatten(1).norm(dim=-1)
    for _ in range(layers):
        u = u + attention(layer_norm(u, 1e-5, gain, bias), A, V)
    return (longest(u) - before) / (layers * norm2(V) * reach)


def attack_pre_norm(seed: int, batch: int = 48, steps: int = 200) -> Tensor:
    """The worst ratio of each start: tokens, scores, values, gains and biases."""
    u, gain, bias = (normal(seed, "pre", k, size=(batch, n, 3)) for k, n in zip("ugb", (3, 1, 1), strict=True))
    A, V = (normal(seed, "pre", k, size=(batch, 3, 3)) for k in "AV")
    return ascend(pre_norm_ratio, u, A, V, 1 + 0.1 * gain, 0.1 * bias, steps=steps)


# Eq 9 and the corrected term.


def fluctuating(u: Tensor) -> tuple[Tensor, Tensor]:
    """u − μ and σ of each example."""
    rest = u - u.mean(dim=1, keepdim=True)
    return rest, rest.square().sum(dim=-1).mean(dim=1).sqrt()


def power_error(seed: int, law: str = "ours", batch: int = 256) -> Tensor:
    """∫⟨u, S⟩ of eq 9 against −γσ²/√(σ² + ε) (law="ours") or −2γE (law="printed"), relative to γ‖u‖; and |∫S|/γ."""
    mean, spread = (normalization.log_uniform(seed, f"power {k}", batch) for k in ("μ", "σ"))
    u, found = normalization.field_of(mean, spread, seed), []
    for eps in (0.0, 1e-5, 1.0):
        term = SpatialStabilization(1.5, eps)
        fall = spread**2 / (spread**2 + eps).sqrt() if law == "ours" else 2 * energy(u)
        off = (normalization.power(term, u) + 1.5 * fall).abs() / (1.5 * size(u))
        found.append(torch.maximum(off, term(u).mean(dim=1).norm(dim=-1) / 1.5))
    return torch.cat(found)


def uneven_rates(seed: int, batch: int, tokens: int = 6) -> Tensor:
    """γ ≥ 0 at each of the tokens, not constant: (batch, token)."""
    return torch.rand(batch, tokens, generator=stream(seed, "γ"), dtype=torch.float64)


def uneven_error(seed: int, law: str = "ours", batch: int = 64) -> Tensor:
    """The gain ∫⟨u, S⟩ = q/√(σ² + ε) of u = 2q/var γ − (γ − γ̄), q = ∫γ(γ − γ̄)²: the field that any uneven γ feeds.

    law="even" takes −γ̄σ²/√(σ² + ε), as if γ were its mean everywhere: a wrong law, for the control.
    """
    rates = uneven_rates(seed, batch)
    rest = rates - rates.mean(dim=1, keepdim=True)
    q, variance = (rates * rest**2).mean(dim=1), (rest**2).mean(dim=1)
    u = (2 * q / variance).unsqueeze(1) - rest
    gained = normalization.power(SpatialStabilization(lambda x, t: rates, 0.1), u.unsqueeze(-1))
    want = q if law == "ours" else -rates.mean(dim=1) * variance
    return (gained * (variance + 0.1).sqrt() / want - 1).abs()


def attack_uneven(seed: int, batch: int = 64, steps: int = 60) -> Tensor:
    """The largest ∫⟨u, S⟩ that ascent finds for each uneven γ ≥ 0, knowing no example: above 0, energy was added."""
    rates, u = uneven_rates(seed, batch), normal(seed, "uneven", size=(batch, 6, 2))
    term = SpatialStabilization(lambda x, t: rates, 0.1)
    return ascend(lambda u: normalization.power(term, u), u, steps=steps)


def attack_step(seed: int, limit: float = 2.0, batch: int = 128, steps: int = 100) -> Tensor:
    """σ_{n+1}/σ_n of an Euler step of eq 9 with Δtγ ≤ 2√ε: never above 1.

    limit=2.2 searches Δtγ ≤ 2.2√ε, where some spreads grow, for the control: short steps bring the ratio to 1 with any
    limit, so that the bound shrunk to 90 % would say nothing.
    """
    u = normal(seed, "step", "u", size=(batch, 4, 2))
    part, log_eps = (normal(seed, "step", k, size=(batch,)) for k in "pε")

    def score(u: Tensor, part: Tensor, log_eps: Tensor) -> Tensor:
        eps = log_eps.exp()
        rest, spread = fluctuating(u)
        step = limit * eps.sqrt() * part.sigmoid()
        after = u - column(step / (spread**2 + eps).sqrt()) * rest
        return fluctuating(after)[1] / spread

    return ascend(score, u, part, log_eps, steps=steps)


def cycle_error(seed: int, law: str = "ours", fields: int = 64) -> Tensor:
    """|w⁺ + w|/|w| of an Euler step of eq 9 with Δtγ > 2√ε from w = u − μ of spread σ_* = √((Δtγ/2)² − ε): it flips.

    law="without ε" starts from σ_* = Δtγ/2: a wrong law, for the control.
    """
    eps, part = (torch.rand(fields, generator=stream(seed, "cycle", k), dtype=torch.float64) + 0.1 for k in "εp")
    step = 2 * eps.sqrt() * (1 + part)
    spread = (step**2 / 4 - (eps if law == "ours" else 0)).sqrt()
    u = normalization.field_of(torch.ones_like(eps), spread, seed)
    rest = fluctuating(u)[0]
    after = torch.cat(
        [
            solve(SpatialStabilization(1.0, e), one, steps=1, dt=d).final
            for e, d, one in zip(eps.tolist(), step.tolist(), u.split(1), strict=True)
        ]
    )
    return size(fluctuating(after)[0] + rest) / size(rest)


def size(u: Tensor) -> Tensor:
    """‖u‖ = (∫|u|² dx)^{½} of each example."""
    return (2 * energy(u)).sqrt()


def added(
    start: Tensor, end: Tensor, steps: int, dt: Tensor, strength: Tensor, growth: Tensor, forcing: Tensor
) -> Tensor:
    """(‖u_n‖ − qⁿ‖u_0‖) / ((γ + f₀)Δt(1 + q + … + qⁿ⁻¹)), q = 1 − (γ − λ)Δt: at most 1 if the bound holds.

    What the start has left is taken off, or every small step would come close to the bound.
    """
    q = 1 - (strength - growth) * dt
    return (size(end) - q**steps * size(start)) / ((strength + forcing) * dt * (1 - q**steps) / (1 - q))


def bounded_ratio(u: Tensor, M: Tensor, push: Tensor, values: Tensor, eps: float, steps: int = 20) -> Tensor:
    """The ratio `added` for Euler steps of u' = Mu + w + γ(LN_space(u) − u), M mixing the tokens, ‖M‖ = λ < γ = 1.

    values: (batch, 2), logits of λ and of Δt, so that λ < γ and γΔt < 1.
    """
    growth, dt = values.sigmoid().unbind(dim=-1)
    M, start = M * column(growth / norm2(M)), u
    for _ in range(steps):
        rest, spread = fluctuating(u)
        u = u + column(dt) * (M @ u + push + rest / column((spread**2 + eps).sqrt()) - u)
    return added(start, u, steps, dt, torch.ones_like(dt), growth, size(push))


def attention_bounded_ratio(u: Tensor, A: Tensor, V: Tensor, W: Tensor, bias: Tensor, steps: int = 20) -> Tensor:
    """The same for F = Att(u) + tanh(Wu + b) − 2u, with λ = √N‖V‖ + ‖W‖ − 2, f₀ = |tanh b|, γ = max(λ, 0) + 2.

    Δt = 1/(γ + 2), the largest for which the bound is proved for Euler steps.
    """
    growth, start = u.shape[1] ** 0.5 * norm2(V) + norm2(W) - 2, u
    strength = growth.clamp(min=0) + 2
    dt = 1 / (strength + 2)
    for _ in range(steps):
        rest, spread = fluctuating(u)
        rate = attention(u, A, V) + torch.tanh(u @ W.transpose(-1, -2) + bias) - 2 * u
        u = u + column(dt) * (rate + column(strength) * (rest / column((spread**2 + 1e-5).sqrt()) - u))
    return added(start, u, steps, dt, strength, growth, torch.tanh(bias).norm(dim=-1).squeeze(-1))


def bounded_flow_ratio(
    u: Tensor, B: Tensor, turn: Tensor, push: Tensor, *, eps: float = 1e-3, T: float = 1.0, steps: int = 40
) -> Tensor:
    """(‖u(T)‖ − e^{−κT}‖u(0)‖) / ((γ + f₀)(1 − e^{−κT})/κ) for the flow, by RK4: at most 1.

    F = Mu + w, M = (B + Bᵀ)/2 + (K − Kᵀ)/2: only the first part grows, λ = λ_max of it; γ = 1, κ = γ − λ of any sign.
    """
    grow = (B + B.transpose(-1, -2)) / 2
    M = grow + (turn - turn.transpose(-1, -2)) / 2

    def rate(v: Tensor) -> Tensor:
        rest, spread = fluctuating(v)
        return M @ v + push + rest / column((spread**2 + eps).sqrt()) - v

    start, dt = u, T / steps
    for _ in range(steps):
        k1 = rate(u)
        k2 = rate(u + dt / 2 * k1)
        k3 = rate(u + dt / 2 * k2)
        u = u + dt / 6 * (k1 + 2 * k2 + 2 * k3 + rate(u + dt * k3))
    kappa = 1 - torch.linalg.eigvalsh(grow).amax(dim=-1)
    return (size(u) - torch.exp(-kappa * T) * size(start)) / ((1 + size(push)) * -torch.expm1(-kappa * T) / kappa)


def attack_bounded_flow(seed: int, batch: int = 48, steps: int = 60) -> Tensor:
    """The worst ratio of each start, with turning maps that are larger than what they let grow."""
    u, push = (0.5 * normal(seed, "flow bound", k, size=(batch, 4, 2)) for k in "uw")
    B, turn = (normal(seed, "flow bound", k, size=(batch, 4, 4)) for k in "BK")
    return ascend(bounded_flow_ratio, u, 0.5 * B, turn, push, steps=steps)


def attack_bounded(seed: int, batch: int = 48, steps: int = 150) -> tuple[Tensor, Tensor]:
    """The worst ratio of each start, for linear maps of the tokens and for attention with a feed-forward network."""
    u, push = (normal(seed, "bounded", k, size=(batch, 4, 2)) for k in "uw")
    M, values = normal(seed, "bounded", "M", size=(batch, 4, 4)), normal(seed, "bounded", "v", size=(batch, 2))
    found = [ascend(lambda *x, e=eps: bounded_ratio(*x, e), u, M, push, values, steps=steps) for eps in (1e-5, 0.5)]
    A, V, W = (normal(seed, "bounded", k, size=(batch, 2, 2)) for k in ("A", "V", "W"))
    bias = normal(seed, "bounded", "b", size=(batch, 1, 2))
    return torch.cat(found), ascend(attention_bounded_ratio, u, A, V, W, bias, steps=steps)


# Exact solutions.


def flow_error(seed: int, target: str = "LN", batch: int = 32) -> Tensor:
    """u' = LN(u) − u by RK4 to t = 2 against e^{−t}u₀ + (1 − e^{−t})LN(u₀), relative.

    target="sphere" takes √d u₀/|u₀| for LN(u₀), which leaves the mean on: a wrong law, for the control.
    """
    u0 = normal(seed, "flow", size=(batch, 3, 5)) * column(normal(seed, "flow", "size", size=(batch,)).exp())
    term = LayerNormRate(5, eps=0.0).double().requires_grad_(False)
    found = solve(term, u0, steps=64, dt=1 / 32, integrator=RK4(), keep=lambda u: None).final
    exact = normalization.layer_norm_flow(u0, 2.0)
    if target == "sphere":
        left = torch.exp(torch.tensor(-2.0, dtype=torch.float64))
        exact = left * u0 + (1 - left) * 5**0.5 * u0 / u0.norm(dim=-1, keepdim=True)
    return (found - exact).flatten(1).norm(dim=-1) / exact.flatten(1).norm(dim=-1)


def spread_error(seed: int, law: str = "ours", fields: int = 12) -> Tensor:
    """σ(1) of u' = S[u] by RK4 against the closed form, relative to σ₀.

    law="exponential" takes σ₀e^{−γt/√(σ₀² + ε)}, the rate frozen at the start: a wrong law, for the control.
    """
    draws = torch.rand(fields, 3, generator=stream(seed, "spread"), dtype=torch.float64)
    found = []
    for start, strength, root in (0.5 + 2 * draws).tolist():
        eps = root**2 / 4
        u0 = normalization.field_of(torch.ones(1).double(), torch.tensor([start]).double(), seed)
        term = SpatialStabilization(strength, eps)
        end = fluctuating(solve(term, u0, steps=100, dt=0.01, integrator=RK4(), keep=lambda u: None).final)[1].item()
        exact = float(normalization.spread_at(1.0, start, strength, eps))
        if law == "exponential":
            exact = start * float(torch.exp(torch.tensor(-strength / (start**2 + eps) ** 0.5)))
        found.append(abs(end - exact) / start)
    return torch.tensor(found, dtype=torch.float64)


LAWS = {
    "idempotent": idempotence_error,
    "iterate": iterate_error,
    "jacobian": jacobian_error,
    "post_norm": post_norm_error,
    "kept": kept_error,
    "power": power_error,
    "uneven_rate": uneven_error,
    "cycle": cycle_error,
    "flow": flow_error,
    "spread": spread_error,
}
WRONG_LAWS = {
    "idempotent_uneven_gain": lambda seed: idempotence_error(seed, uneven=0.3),
    "iterate_at_once": lambda seed: iterate_error(seed, "at once"),
    "cycle_without_eps": lambda seed: cycle_error(seed, "without ε"),
    "jacobian_without_centring": lambda seed: jacobian_error(seed, centre=False),
    "post_norm_with_eps": lambda seed: post_norm_error(seed, eps=0.01),
    "kept_from_any_start": lambda seed: kept_error(seed, "any"),
    "uneven_rate_as_even": lambda seed: uneven_error(seed, "even"),
    "power_as_printed": lambda seed: power_error(seed, "printed"),
    "flow_without_centring": lambda seed: flow_error(seed, "sphere"),
    "spread_exponential": lambda seed: spread_error(seed, "exponential"),
}


@experiment("attack_layernorm", Scale.BOOK)
def run(scale: Scale, seed: int, work: Workplace) -> Result:
    """A search for steps in which LayerNorm changes or adds energy, and for violations of what is true instead (S).

    One seed of every attack; `worst_…` of an inequality is its largest value/bound, of a law its error over ROUNDING.
    """
    cases = {f"{place}{name}": (place, plain) for place in PLACES for name, plain in (("", False), ("_plain", True))}
    changes = {name: attack_energy(seed, *case) for name, case in cases.items()}
    still = {place: attack_energy(seed, place) for place in HARMLESS}
    linear, with_attention = attack_bounded(seed)
    corrected = {
        "length": attack_length(seed),
        "nearest": attack_nearest(seed),
        "lipschitz": attack_lipschitz(seed),
        "pre_norm": attack_pre_norm(seed),
        "step": attack_step(seed),
        "bounded": torch.cat([linear, with_attention]),
        "bounded_flow": attack_bounded_flow(seed),
    }
    laws = {name: error(seed) / ROUNDING for name, error in LAWS.items()}
    wrong = {f"wrong_{name}": int((error(seed) > ROUNDING).sum()) for name, error in WRONG_LAWS.items()}
    uneven = attack_uneven(seed)
    return attack_result(
        "attack_layernorm",
        scale,
        seed,
        printed={f"conserved_{name}": drawn.abs() > ROUNDING for name, (drawn, _) in changes.items()},
        corrected=corrected | laws,
        figures={
            "energy_attempts": len(changes["alone"][0]),
            **{f"raised_{name}_as_drawn": int((drawn > ROUNDING).sum()) for name, (drawn, _) in changes.items()},
            **{f"raised_{name}": int((best > ROUNDING).sum()) for name, (_, best) in changes.items()},
            "law_attempts": sum(len(error) for error in laws.values()),
            "worst_bounded_attention": with_attention.max().item(),
        },
        controls={
            **wrong,
            "wrong_step_too_long": int((attack_step(seed, limit=2.2) > 1 + ROUNDING).sum()),
            # eq 9 with uneven γ: the search must find a gain of energy
            "uneven_rate_gains": int((uneven > ROUNDING).sum()),
            "uneven_rate_attempts": len(uneven),
            # and here there is nothing to find
            "still_orthogonal": int((still["orthogonal"][1].abs() > ROUNDING).sum()),
            "still_contraction": int((still["contraction"][1] > ROUNDING).sum()),
        },
        configuration={"laws": list(LAWS)},
    )
