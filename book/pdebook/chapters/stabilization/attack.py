"""An adversary against what is said of LayerNorm: it conserves the energy, it removes it; and against what we say.

Printed, by a summary of P2: LayerNorm conserves the energy E = ½‖u‖². Printed by P2: eq 9 removes energy, with a rate
γ(x). Counted apart: how often LayerNorm adds energy. Ours: LayerNorm is the nearest point of a sphere, post-LayerNorm
sets the length of every token, pre-LayerNorm lets it grow linearly at most, eq 9 removes the energy of fluctuations
only, and the corrected term bounds ‖u‖.

Inequalities are climbed. An exact law is evaluated on random draws (steps=1): its score is the relative error over
ROUNDING, where there is nothing to climb.
"""

import math
from dataclasses import replace

import torch
from torch import Tensor
from torch.func import jacrev, vmap

from pdebook.chapters.stabilization.laws import jacobian_formula, layer_norm_flow, power, spread_at
from pdebook.evidence.adversary import ROUNDING, Start, Statement, attack, over_decades
from pdebook.ledger.record import Key
from pdelab.formulas import attention, centred, growth, layer_norm, longest, norm2, per_example, size, spread
from pdelab.integrators import Euler, flow
from pdelab.terms.stabilization import CorrectedStabilization, LayerNormRate, SpatialStabilization

# The energy before and after LayerNorm


def energy_gain(
    u: Tensor, e: Tensor, A: Tensor, V: Tensor, g: Tensor | float = 1.0, b: Tensor | float = 0.0, *, place: str
) -> Tensor:
    """log(E after/E before) of LayerNorm alone, or of LayerNorm after a branch (post): (batch,)."""
    before = u + attention(u, A, V) if place == "post" else u
    return 2 * (size(layer_norm(before, per_example(e.exp()), g, b)) / size(before)).log()


def conserved(place: str, **variables: Tensor) -> Tensor:
    """LayerNorm conserves the energy: log(E after/E before) = 0."""
    return energy_gain(**variables, place=place).abs() / ROUNDING


def orthogonal(u: Tensor, A: Tensor, *, norm: bool = False) -> Tensor:
    """An orthogonal map conserves the energy: log(E(Qu)/E(u)) = 0, Q = exp(A − Aᵀ); norm: LayerNorm in its place."""
    after = layer_norm(u) if norm else u @ torch.linalg.matrix_exp(A - A.mT)
    return 2 * (size(after) / size(u)).log().abs() / ROUNDING


def contraction(u: Tensor, V: Tensor, *, norm: bool = False) -> Tensor:
    """A contraction never adds energy: E(Wu) ≤ E(u), W = V/(1 + ‖V‖); norm: LayerNorm in its place."""
    after = layer_norm(u) if norm else u @ (V / (1 + per_example(norm2(V))))
    return (size(after) / size(u)).square()


def short_and_long(seed: int, **drawn: Tensor) -> Start:
    """Tokens over two decades, ε about e⁻⁸, gains about 1 and biases about 0."""
    drawn = over_decades(-1, 1, "u")(seed, **drawn)
    moved = {"e": (-8, 2), "A": (0, 0.5), "V": (0, 0.5), "g": (1, 0.3), "b": (0, 0.3)}  # middle and width
    return drawn | {k: middle + width * drawn[k] for k, (middle, width) in moved.items() if k in drawn}


# LayerNorm as a projection


def length(z: Tensor, e: Tensor) -> Tensor:
    """|LN(z)| ≤ √d for g = 1, b = 0 and every ε ≥ 0."""
    return layer_norm(z, e.exp()).norm(dim=-1) / z.shape[-1] ** 0.5


def nearest(z: Tensor, w: Tensor, *, mean_zero: bool = True) -> Tensor:
    """|z − LN(z)| ≤ |z − w| for every w with mean 0 and length √d (ε = 0); false for all w of that length."""
    on_sphere = layer_norm(w) if mean_zero else w * (w.shape[-1] ** 0.5 / w.norm(dim=-1, keepdim=True))
    return (z - layer_norm(z)).norm(dim=-1) / (z - on_sphere).norm(dim=-1)


def lipschitz(z: Tensor, w: Tensor, g: Tensor, e: Tensor, *, slope: float = 1.0, mean_gain: bool = False) -> Tensor:
    """|LN(z) − LN(w)| ≤ ‖g‖_∞ |z − w| / √ε; false with the mean of |g| in the place of its maximum."""
    change = (layer_norm(z, e.exp(), g) - layer_norm(w, e.exp(), g)).norm(dim=-1)
    largest = g.abs().mean(dim=-1) if mean_gain else g.abs().amax(dim=-1)
    return change / (slope * largest * (z - w).norm(dim=-1) / (e / 2).exp().squeeze(-1))


def idempotent(z: Tensor, g: Tensor, *, uneven: float = 0.0) -> Tensor:
    """LN(LN(z)) = LN(z) for g = 1, b = 0, ε = 0; false for uneven gains."""
    once = layer_norm(z, gain=1 + uneven * g)
    return (layer_norm(once, gain=1 + uneven * g) - once).norm(dim=-1) / z.shape[-1] ** 0.5 / ROUNDING


def iterate(z: Tensor, e: Tensor, *, at_once: bool = False) -> Tensor:
    """1/v_n = 1 + ε + … + ε^{n−1} + εⁿ/v_0 after LN n = 1, …, 5 times, 0 < ε < 1; false: 1/(1 − ε) at once."""
    eps, inverse, errors = e.sigmoid(), 1 / variance(z), []
    for _ in range(5):
        z, inverse = layer_norm(z, eps), 1 + eps * inverse
        law = 1 / (1 - eps) if at_once else inverse
        errors.append((1 / (variance(z) * law) - 1).abs())
    return torch.stack(errors).amax(dim=0).squeeze(-1) / ROUNDING


def variance(z: Tensor) -> Tensor:
    return z.var(dim=-1, keepdim=True, unbiased=False)


def jacobian(z: Tensor, *, eps: float, centre: bool = True) -> Tensor:
    """LN'(z) = (v + ε)^{−½} (I − 11ᵀ/d − x̂x̂ᵀ/d), x̂ = LN(z); false without 11ᵀ/d."""
    exact = vmap(jacrev(lambda x: layer_norm(x, eps)))(z)
    return norm2(jacobian_formula(z, eps, centre) - exact) / norm2(exact) / ROUNDING


# Blocks


def post_norm(u: Tensor, A: Tensor, V: Tensor, *, eps: float = 0.0) -> Tensor:
    """|LN(u + F(u))_i| = √d for every branch F, small or enormous, if ε = 0."""
    after = layer_norm(u + attention(u, A, V), eps)
    return (after.norm(dim=-1) / u.shape[-1] ** 0.5 - 1).abs().amax(dim=-1) / ROUNDING


def kept(u: Tensor, A: Tensor, V: Tensor, *, set_before: bool = True) -> Tensor:
    """E(LN(u + F(u))) = E(u) for a u that a norm has set (g = 1, b = 0, ε = 0); false for any other."""
    u = layer_norm(u) if set_before else u
    return 2 * (size(layer_norm(u + attention(u, A, V))) / size(u)).log().abs() / ROUNDING


def pre_norm(
    u: Tensor, A: Tensor, V: Tensor, g: Tensor, b: Tensor, *, values=1.0, gains=1.0, biases=1.0, layers: int = 4
) -> Tensor:
    """max_i |u_i| grows by at most ‖V‖(√d‖g‖_∞ + |b|) in a layer u ← u + Att(LN(u))."""
    start = longest(u)
    for _ in range(layers):
        u = u + attention(layer_norm(u, 1e-5, g, b), A, V)

    reach = gains * u.shape[-1] ** 0.5 * g.abs().amax(dim=(-1, -2)) + biases * b.norm(dim=(-1, -2))
    return (longest(u) - start) / (layers * values * norm2(V) * reach)


# Eq 9


def eq9_power(u: Tensor, m: Tensor, *, eps: float, printed: bool = False) -> Tensor:
    """∫⟨u, S⟩ = −γσ²/√(σ² + ε) and ∫S = 0 for eq 9 with constant γ; false, as printed: −2γE."""
    u, term = centred(u) + m, SpatialStabilization(1.5, eps)
    fall = size(u) ** 2 if printed else spread(u) ** 2 / (spread(u) ** 2 + eps).sqrt()
    off = (power(term, u) + 1.5 * fall).abs() / (1.5 * size(u))
    return torch.maximum(off, term(u).mean(dim=1).norm(dim=-1) / 1.5) / ROUNDING


def eq9_dissipates(u: Tensor, raw: Tensor) -> Tensor:
    """∫⟨u, S⟩ ≤ 0 for eq 9 with every γ(x) ≥ 0, as printed."""
    return 1 + power(SpatialStabilization(lambda x, t: raw.sigmoid(), 0.1), u) / size(u)


def uneven_rate(raw: Tensor, *, even: bool = False) -> Tensor:
    """∫⟨u, S⟩ = q/√(σ² + ε) > 0, q = ∫γ(γ − γ̄)², at u = 2q/var γ − (γ − γ̄); false: as if γ were γ̄ everywhere."""
    rates = raw.sigmoid()
    rest = rates - rates.mean(dim=1, keepdim=True)
    q, var = (rates * rest**2).mean(dim=1), (rest**2).mean(dim=1)

    u = (2 * q / var).unsqueeze(1) - rest
    gained = power(SpatialStabilization(lambda x, t: rates, 0.1), u.unsqueeze(-1))
    law = -rates.mean(dim=1) * var if even else q
    return (gained * (var + 0.1).sqrt() / law - 1).abs() / ROUNDING


def step(u: Tensor, p: Tensor, *, eps: float, limit: float = 2.0) -> Tensor:
    """σ⁺ ≤ σ for an Euler step of eq 9 with Δtγ ≤ 2√ε; false for Δtγ ≤ 2.2√ε.

    Short steps bring σ⁺/σ to 1 under any limit, so that a smaller bound would say nothing.
    """
    dt = per_example(limit * eps**0.5 * p.sigmoid())
    return spread(Euler().step(SpatialStabilization(1.0, eps), u, 0.0, dt)) / spread(u)


def cycle(u: Tensor, p: Tensor, *, eps: float, with_eps: bool = True) -> Tensor:
    """w⁺ = −w for an Euler step of eq 9 with Δtγ > 2√ε from w = u − μ of spread √((Δtγ/2)² − ε); false: Δtγ/2."""
    dt = 2 * eps**0.5 * (1.1 + p.sigmoid())
    w = centred(u) * per_example((dt**2 / 4 - (eps if with_eps else 0)).sqrt() / spread(u))
    after = centred(Euler().step(SpatialStabilization(1.0, eps), w + 1, 0.0, per_example(dt)))
    return size(after + w) / size(w) / ROUNDING


def spread_law(u: Tensor, *, strength: float, eps: float, frozen: bool = False) -> Tensor:
    """σ(1) of u' = S[u] is that of the closed form; false: σ₀e^{−γ/√(σ₀² + ε)}, the rate frozen at the start."""
    start = spread(u)
    law = torch.tensor(spread_at(1.0, start.detach().numpy(), strength, eps))
    if frozen:
        law = start * (-strength / (start**2 + eps).sqrt()).exp()
    end = spread(flow(SpatialStabilization(strength, eps), u, steps=100))
    return (end - law).abs() / start / ROUNDING


def layer_norm_line(u: Tensor, *, centre: bool = True) -> Tensor:
    """u(2) = e⁻²u₀ + (1 − e⁻²)LN(u₀) for u' = LN(u) − u; false: √d u₀/|u₀| for LN(u₀), which leaves the mean on."""
    d, left = u.shape[-1], math.exp(-2)
    law = layer_norm_flow(u, 2.0)
    if not centre:
        law = left * u + (1 - left) * d**0.5 * u / u.norm(dim=-1, keepdim=True)
    term = LayerNormRate(d, eps=0.0).double().requires_grad_(False)
    return size(flow(term, u, T=2.0, steps=64) - law) / size(law) / ROUNDING


# The corrected term. What the start has left is taken off both sides, or every small step would come close to the bound


def added(start: Tensor, end: Tensor, steps: int, dt: Tensor, rate: Tensor, source: Tensor) -> Tensor:
    """‖u_n‖ ≤ qⁿ‖u_0‖ + sΔt(1 + q + … + qⁿ⁻¹), q = 1 + aΔt, after n Euler steps of a rate ≤ a‖u‖ + s."""
    q = 1 + rate * dt
    return (size(end) - q**steps * size(start)) / (source * dt * (1 - q**steps) / (1 - q))


def bounded(
    u: Tensor, M: Tensor, push: Tensor, v: Tensor, *, eps: float, gamma=1.0, forcing=1.0, rate=1.0, steps: int = 20
) -> Tensor:
    """‖u_n‖ ≤ qⁿ‖u_0‖ + (γ + f₀)Δt(1 + … + qⁿ⁻¹), q = 1 − (γ − λ)Δt, for F = Mu + w: λ = ‖M‖, f₀ = ‖w‖, γ = 1."""
    grows, dt = v.sigmoid().unbind(dim=-1)  # λ < γ and Δtγ < 1
    M, end, term = M * per_example(grows / norm2(M)), u, CorrectedStabilization(1.0, eps)
    for _ in range(steps):
        end = end + per_example(dt) * (M @ end + push + term(end))
    return added(u, end, steps, dt, rate * grows - 1, gamma + forcing * size(push))


def bounded_attention(
    u: Tensor,
    A: Tensor,
    V: Tensor,
    W: Tensor,
    b: Tensor,
    *,
    steps: int,
    gamma=1.0,
    forcing=1.0,
    values=1.0,
    weights=1.0,
) -> Tensor:
    """The same for F = Att(u) + tanh(Wu + b(x)) − 2u: λ = √N‖V‖ + ‖W‖ − 2, f₀ = ‖tanh b‖, γ = max(λ, 0) + 2.

    Δt = 1/(γ + 2), the largest for which the bound is proved for Euler steps.
    """
    root, end, term = u.shape[1] ** 0.5, u, CorrectedStabilization(1.0, 1e-5)
    strength = (root * norm2(V) + norm2(W) - 2).clamp(min=0) + 2
    dt = 1 / (strength + 2)
    for _ in range(steps):
        rate = attention(end, A, V) + torch.tanh(end @ W.mT + b) - 2 * end
        end = end + per_example(dt) * (rate + per_example(strength) * term(end))

    grows = values * root * norm2(V) + weights * norm2(W) - 2
    return added(u, end, steps, dt, grows - strength, gamma * strength + forcing * size(torch.tanh(b)))


def one_long_token(seed: int, **drawn: Tensor) -> Start:
    """In every other example all tokens attend to the first, ten times as long: ‖Att(u)‖ is near √N‖V‖‖u‖ there."""
    u, A = drawn["u"], drawn["A"]
    u[::2, 0] *= 10
    u[::2, 1:] = u[::2, :1] / 10
    A[::2] = A[::2] @ A[::2].mT
    return drawn


def bounded_flow(u: Tensor, B: Tensor, K: Tensor, push: Tensor, *, gamma=1.0, forcing=1.0, rate=1.0) -> Tensor:
    """‖u(1)‖ ≤ e^{−κ}‖u(0)‖ + (γ + f₀)(1 − e^{−κ})/κ, κ = γ − λ of any sign, for the flow of F = Mu + w and γ = 1.

    M = (B + Bᵀ)/2 + (K − Kᵀ)/2: only the first part grows, and λ is its largest eigenvalue.
    """
    grow, term = (B + B.mT) / 2, CorrectedStabilization(1.0, 1e-3)
    M = grow + (K - K.mT) / 2
    end = flow(lambda v: M @ v + push + term(v), u, steps=40)

    kappa = 1 - rate * torch.linalg.eigvalsh(grow).amax(dim=-1)
    return (size(end) - torch.exp(-kappa) * size(u)) / ((gamma + forcing * size(push)) * growth(-kappa))


def turning(seed: int, **drawn: Tensor) -> Start:
    """Maps that turn more than they let grow."""
    return {name: x if name == "K" else x / 2 for name, x in drawn.items()}


BRANCH = {"A": "d d", "V": "d d"}
AFFINE = {"g": "1 d", "b": "1 d"}
TOKENS = [{"n": 3, "d": 4, "1": 1}]
WIDTHS = [{"d": d, "1": 1} for d in (2, 3, 8)]
FIELDS = [{"n": 6, "d": 3, "1": 1}]
INSTEAD = {"LayerNorm": {"norm": True}}

ENERGY = {
    f"{place}{kind}": Statement(
        conserved, {"u": "n d", "e": "", **BRANCH, **affine}, TOKENS, {"place": (place,)}, short_and_long,
        printed=True, batch=64, steps=1,
    )
    for place in ("alone", "post")
    for kind, affine in (("", AFFINE), ("_plain", {}))  # plain: g = 1, b = 0
}  # fmt: skip


def raised(seed: int, climb: int = 30) -> tuple[dict[str, float], dict[str, float]]:
    """How many starts of each kind LayerNorm gives energy, as drawn and after an ascent; there are no controls."""
    figures = {}
    for name, one in ENERGY.items():
        for what, steps in (("as drawn", 1), ("climbed", climb)):
            gains = replace(one, score=energy_gain, steps=steps).search(seed)
            figures[Key("raised", name, what)] = int((gains > ROUNDING).sum())
    return figures, {}


run = attack(
    "attack_layernorm",
    {f"conserved_{name}": one for name, one in ENERGY.items()}
    | {
        "eq9_dissipates": Statement(
            eq9_dissipates, {"u": "n d", "raw": "n"}, [{"n": 6, "d": 2}], printed=True, batch=64,
        ),
        # nothing to find: what stands in LayerNorm's place keeps the energy, or never adds to it
        "orthogonal": Statement(
            orthogonal, {"u": "n d", "A": "d d"}, TOKENS, start=short_and_long, wrong=INSTEAD, batch=64, steps=30,
        ),
        "contraction": Statement(
            contraction, {"u": "n d", "V": "d d"}, TOKENS, start=short_and_long, wrong=INSTEAD, batch=64, steps=30,
        ),
        "length": Statement(length, {"z": "d", "e": "1"}, WIDTHS, batch=128, steps=60),
        "nearest": Statement(
            nearest, {"z": "d", "w": "d"}, WIDTHS, wrong={"any mean": {"mean_zero": False}}, batch=128,
        ),
        "lipschitz": Statement(
            lipschitz, {"z": "d", "w": "d", "g": "d", "e": "1"}, WIDTHS,
            wrong={"mean gain": {"mean_gain": True}}, shrink=("slope",), batch=128, steps=150,
        ),
        "idempotent": Statement(
            idempotent, {"z": "d", "g": "d"}, [{"d": 6}], start=over_decades(-1, 1, "z"),
            wrong={"uneven gains": {"uneven": 0.3}}, batch=256, steps=1,
        ),
        "iterate": Statement(
            iterate, {"z": "d", "e": "1"}, WIDTHS, wrong={"at once": {"at_once": True}}, batch=64, steps=1,
        ),
        "jacobian": Statement(
            jacobian, {"z": "d"}, [{"d": 5}], {"eps": (0.0, 0.1)},
            wrong={"without centring": {"centre": False}}, batch=64, steps=1,
        ),
        "post_norm": Statement(
            post_norm, {"u": "n d", **BRANCH}, TOKENS, start=over_decades(-3, 3, "V"),
            wrong={"ε": {"eps": 0.01}}, batch=256, steps=1,
        ),
        "kept": Statement(
            kept, {"u": "n d", **BRANCH}, TOKENS, start=over_decades(-1, 1, "u"),
            wrong={"any start": {"set_before": False}}, batch=256, steps=1,
        ),
        "pre_norm": Statement(
            pre_norm, {"u": "n d", **BRANCH, **AFFINE}, [{"n": 3, "d": 3, "1": 1}],
            shrink=("values", "gains", "biases"), batch=48, steps=200,
        ),
        "power": Statement(
            eq9_power, {"u": "n d", "m": "1 d"}, FIELDS, {"eps": (0.0, 1e-5, 1.0)}, over_decades(-2, 2, "u", "m"),
            wrong={"the printed rate": {"printed": True}}, batch=256, steps=1,
        ),
        "uneven_rate": Statement(
            uneven_rate, {"raw": "n"}, FIELDS, wrong={"as if even": {"even": True}}, batch=64, steps=1,
        ),
        "step": Statement(
            step, {"u": "n d", "p": ""}, FIELDS, {"eps": (0.01, 1.0)}, wrong={"too long": {"limit": 2.2}}, batch=64,
        ),
        "cycle": Statement(
            cycle, {"u": "n d", "p": ""}, FIELDS, {"eps": (0.01, 1.0)},
            wrong={"without ε": {"with_eps": False}}, batch=32, steps=1,
        ),
        "spread": Statement(
            spread_law, {"u": "n d"}, FIELDS, {"strength": (0.5, 2.5), "eps": (0.0625, 1.5)},
            over_decades(-0.6, 0.2, "u"), wrong={"exponential": {"frozen": True}}, batch=16, steps=1,
        ),
        "flow": Statement(
            layer_norm_line, {"u": "n d"}, [{"n": 3, "d": 5}], start=over_decades(-1, 1, "u"),
            wrong={"without centring": {"centre": False}}, batch=64, steps=1,
        ),
        "bounded": Statement(
            bounded, {"u": "n d", "M": "n n", "push": "n d", "v": "2"}, [{"n": 4, "d": 2, "2": 2}],
            {"eps": (1e-5, 0.5)}, shrink=("gamma", "forcing", "rate"), batch=48, steps=150,
        ),
        "bounded_attention": Statement(
            bounded_attention, {"u": "n d", **BRANCH, "W": "d d", "b": "n d"}, [{"n": 4, "d": 2}],
            {"steps": (1, 20)}, one_long_token, shrink=("gamma", "forcing", "values", "weights"), batch=48, steps=150,
        ),
        "bounded_flow": Statement(
            bounded_flow, {"u": "n d", "B": "n n", "K": "n n", "push": "n d"}, [{"n": 4, "d": 2}],
            start=turning, shrink=("gamma", "forcing", "rate"), batch=48, steps=60,
        ),
    },
    extra=raised,
)  # fmt: skip
