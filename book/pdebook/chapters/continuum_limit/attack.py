"""An adversary against the continuum limit: random search, then gradient ascent.  (P2 Theorem 3.2, eq 10-12)

It attacks the corrected statements, an error bound for Euler and a local Lipschitz constant of attention, by making the
ratio of what happens to what is allowed as large as it can; above 1 the statement is false. It attacks the printed
ones the same way: one Lipschitz constant for all states, and a limit without the factor Δt.

The control is a bound shrunk to 90 %: a search that cannot break it would prove nothing.
"""

import math

import torch
from torch import Tensor
from torch.func import jvp

from pdebook.evidence.adversary import ascend, attack_result
from pdebook.evidence.experiment import Scale, Workplace, experiment
from pdebook.ledger.record import Result
from pdelab.formulas import attention, longest, norm2
from pdelab.seeds import normal, stream

# The Lipschitz constant of attention.


def lipschitz_bound(u: Tensor, A: Tensor, V: Tensor, kind: str) -> Tensor:
    """The bound at u. max: ‖V‖(1 + 2‖A‖R²). frobenius: ‖V‖(√c + ‖A‖R²(1 + √c)), c the largest column sum of P(u)."""
    size = norm2(A) * longest(u) ** 2
    if kind == "max":
        return norm2(V) * (1 + 2 * size)
    root = (u @ A @ u.transpose(-1, -2)).softmax(dim=-1).sum(dim=-2).amax(dim=-1).sqrt()
    return norm2(V) * (root + size * (1 + root))


def lipschitz_ratio(u: Tensor, A: Tensor, V: Tensor, direction: Tensor, kind: str) -> Tensor:
    """‖Att'(u) δ‖ / (bound ‖δ‖) in the norm max_i|·| or in the Frobenius norm: at most 1 if the lemma is true."""
    length = longest if kind == "max" else lambda x: x.flatten(-2).norm(dim=-1)
    _, change = jvp(lambda v: attention(v, A, V), (u,), (direction,))
    return length(change) / (length(direction) * lipschitz_bound(u, A, V, kind))


def attack_lipschitz(seed: int, kind: str, batch: int = 64, steps: int = 100) -> Tensor:
    """The worst ratio of each start, for several numbers of tokens and features and sizes of scores."""
    found = []
    for tokens, width in ((2, 1), (3, 2), (6, 1), (6, 3)):
        name = (kind, tokens, width)
        u, direction = (normal(seed, *name, k, size=(batch, tokens, width)) for k in "uδ")
        A, V = (normal(seed, *name, k, size=(batch, width, width)) for k in "AV")
        # a third of the starts each with small, middling and large scores, so that both parts of the bound are tried
        A = A * torch.tensor([0.01, 1.0, 10.0], dtype=u.dtype).repeat(batch)[:batch].view(-1, 1, 1)
        found.append(ascend(lambda *x: lipschitz_ratio(*x, kind), u, A, V, direction, steps=steps))
    return torch.cat(found)


def slope_of_attention(s: float) -> float:
    """∂Att₁/∂u₁ at the tokens (0, s, −s), d = 1, A = V = 1, by automatic differentiation; it is 1/3 + 2s²/3."""
    one = torch.ones(1, 1, dtype=torch.float64)
    u = torch.tensor([[0.0], [s], [-s]], dtype=torch.float64)
    first = torch.zeros_like(u)
    first[0] = 1
    return jvp(lambda v: attention(v, one, one), (u,), (first,))[1][0, 0].item()


def attack_global_lipschitz(seed: int, batch: int = 16) -> Tensor:
    """The largest slope ‖Att'(u)δ‖/‖δ‖ that ascent on three tokens finds with A = V = 1, knowing no example."""
    tokens, direction = (normal(seed, "slope", k, size=(batch, 3, 1)) for k in "uδ")
    one = torch.ones(batch, 1, 1, dtype=torch.float64)

    def score(log_size: Tensor, u: Tensor, direction: Tensor) -> Tensor:
        u = u * log_size.exp().view(-1, 1, 1)
        _, change = jvp(lambda v: attention(v, one, one), (u,), (direction,))
        return (change.flatten(1).norm(dim=-1) / direction.flatten(1).norm(dim=-1)).log()

    return ascend(score, torch.zeros(batch, dtype=torch.float64), tokens, direction, rate=0.03, steps=200).exp()


# The error bound of Euler.


def bound(K: Tensor, M: Tensor, K_t: Tensor, T: Tensor, dt: Tensor, inconsistency: Tensor) -> Tensor:
    """B = (ε + ½(KM + K_t)Δt)(e^{KT} − 1)/K."""
    return (inconsistency + (K * M + K_t) * dt / 2) * torch.expm1(K * T) / K


def line_ratio(values: Tensor, layers: int, side: Tensor) -> tuple[Tensor, Tensor]:
    """max_ℓ|H^ℓ − u(t_ℓ)|/B for u' = au + ct, with layers F_ℓ = au + ct_ℓ ± ε, and MΔt/δ; every constant is exact.

    values: (batch, 5), log|a|, log T, log ε, u₀, c; side: ±1, the sign of a. Outside the tube of radius δ = 1.01 B the
    layers return garbage, which a correct theorem never meets.
    """
    K, T, inconsistency = values[:, 0].exp() + 1e-3, values[:, 1].exp(), values[:, 2].exp()
    u0, c, a = values[:, 3], values[:, 4], side * K
    dt = T / layers

    def speed(t: Tensor) -> Tensor:
        return (a * u0 + c / a) * torch.exp(a * t) - c / a

    M = torch.maximum(speed(0 * T).abs(), speed(T).abs())  # the speed is monotone in t
    B = bound(K, M, c.abs(), T, dt, inconsistency)
    H, worst = u0, torch.zeros_like(T)
    for step in range(layers):
        t = step * dt
        exact = u0 + (a * u0 + c / a) * torch.expm1(a * t) / a - c * t / a
        inside = (H - exact).abs() <= 1.01 * B
        H = H + dt * torch.where(inside, a * H + c * t + inconsistency * torch.sign(c), 1e6)
        t = t + dt
        exact = u0 + (a * u0 + c / a) * torch.expm1(a * t) / a - c * t / a
        worst = torch.maximum(worst, (H - exact).abs() / B)
    return worst, M * dt / (1.01 * B)


def attack_line(seed: int, batch: int = 512, steps: int = 60) -> tuple[Tensor, Tensor]:
    """Scalar equations, thousands at a time: worst ratio of each, and how far one step goes in units of δ."""
    found, stride = [], []
    for layers in (1, 2, 4, 16):
        values = normal(seed, "line", layers, size=(batch, 5)) * torch.tensor([1.5, 0.5, 2.0, 1.0, 1.0])
        side = torch.randint(2, (batch,), generator=stream(seed, "side", layers)) * 2.0 - 1
        stride.append(line_ratio(values, layers, side)[1])
        found.append(ascend(lambda v, n=layers, s=side: line_ratio(v, n, s)[0], values, steps=steps))
    return torch.cat(found), torch.cat(stride)


def attention_ratio(
    u0: Tensor, A: Tensor, V: Tensor, drift: Tensor, push: Tensor, *, layers: int = 4, delta: float = 1.0
) -> tuple[Tensor, Tensor]:
    """max_ℓ‖H^ℓ − u(t_ℓ)‖/B and B for u' = Att(u; A, V + t·drift) on [0, 1], in the norm max_i|·|.

    Layer ℓ adds the push w_ℓ (batch, layer, token, feature), which makes ε = max_ℓ‖w_ℓ‖. K comes from the lemma on the
    tube of radius δ, K_t from ‖drift‖, and M from samples along the solution plus what can happen between them.
    """
    fine, dt = 8, 1 / layers
    step, u, path = dt / fine, u0, [u0]

    def rate(v: Tensor, t: float) -> Tensor:
        return attention(v, A, V + t * drift)

    speeds = []
    for n in range(layers * fine):
        t = n * step
        k1 = rate(u, t)
        k2 = rate(u + step / 2 * k1, t + step / 2)
        k3 = rate(u + step / 2 * k2, t + step / 2)
        k4 = rate(u + step * k3, t + step)
        u = u + step / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        path.append(u)
        speeds.append(longest(k1))
    radius = torch.stack([longest(v) for v in path]).amax(dim=0) + delta
    V_top, K_t = norm2(V) + norm2(drift), norm2(drift) * radius
    K = V_top * (1 + 2 * norm2(A) * radius**2)
    sampled = torch.stack([*speeds, longest(rate(u, 1.0))]).amax(dim=0)
    # between two samples the speed changes by at most (KM + K_t)·step/2
    M = (sampled + K_t * step / 2) / (1 - K * step / 2).clamp(min=1e-3)
    B = bound(K, M, K_t, torch.ones_like(K), torch.full_like(K, dt), longest(push).amax(dim=-1))
    H, worst = u0, torch.zeros_like(K)
    for n in range(layers):
        H = H + dt * (rate(H, n * dt) + push[:, n])
        worst = torch.maximum(worst, longest(H - path[(n + 1) * fine]) / B)
    return worst, B / delta


def attack_attention(seed: int, batch: int = 64) -> Tensor:
    """The worst ratio of each start whose constants meet B < δ; the rest says nothing and is left out."""
    size = {"u": (3, 2), "A": (2, 2), "V": (2, 2), "W": (2, 2), "w": (4, 3, 2)}
    spread = {"u": 0.5, "A": 0.2, "V": 0.2, "W": 0.2, "w": 0.05}
    start = [spread[k] * normal(seed, "attention", k, size=(batch, *size[k])) for k in size]

    def score(*x: Tensor) -> Tensor:
        ratio, filled = attention_ratio(*x)
        # K·step/2 stays far below 1 whenever B < δ, so M is sound where it is used
        return torch.where(filled < 1, ratio, -filled)

    found = ascend(score, *start, steps=30, rate=0.02)
    return found[found > 0]


def attack_limit(seed: int, scaled: bool, batch: int = 16) -> Tensor:
    """Error at 64 layers over error at 8, against u' = W₂ tanh(W₁u): 1/8 for Euler, above 1 where nothing converges.

    All layers are one Lipschitz map, so both printed hypotheses hold, with sup_ℓ‖F_ℓ − F‖ = 0. scaled=False is the
    update of §3.1, H + F(H); scaled=True that of the appendix, H + Δt F(H).
    """
    W1, W2 = (normal(seed, "limit", k, size=(batch, 8, 8)) / math.sqrt(8) for k in "12")
    u0 = normal(seed, "limit", "u", size=(batch, 8, 1))

    def end(layers: int, dt: float) -> Tensor:
        u = u0
        for _ in range(layers):
            u = u + dt * W2 @ torch.tanh(W1 @ u)
        return u

    # Richardson: two Euler runs combined leave an error of order Δt², far below that of 64 layers
    exact = 2 * end(4096, 1 / 4096) - end(2048, 1 / 2048)
    errors = [(end(n, 1 / n if scaled else 1.0) - exact).flatten(1).norm(dim=-1) for n in (8, 64)]
    return errors[1] / errors[0]


def attack_rate(seed: int, batch: int = 16) -> Tensor:
    """Growth of error·L from 8 to 512 layers for u' = F(t) = Σ_k a_k cos(2π 2ᵏ t), a_k ∝ 2^{−k/2}: 1 if eq 12 holds.

    F is continuous and does not depend on u, and F_ℓ = F(t_ℓ): both printed hypotheses hold, with sup_ℓ‖F_ℓ − F‖ = 0.
    At T = 1 the solution is back at u(0), and L = 2ᵐ Euler steps, Δt included, are off by Σ_{k ≥ m} a_k.
    """
    k = torch.arange(40, dtype=torch.float64)
    a = (1 + torch.rand(batch, 1, generator=stream(seed, "rate"), dtype=torch.float64)) * 2 ** (-k / 2)

    def error(layers: int) -> Tensor:
        t = torch.arange(layers, dtype=torch.float64) / layers
        waves = torch.cos(2 * math.pi * torch.frac(torch.outer(2**k, t)))  # (k, layer)
        return (a @ waves).mean(dim=1).abs()

    return 512 * error(512) / (8 * error(8))


CONSTANTS = tuple(10.0**k for k in range(1, 7))


@experiment("attack_continuum", Scale.BOOK)
def run(scale: Scale, seed: int, work: Workplace) -> Result:
    """A search for violations of the limit theorem, as printed and as corrected (P2 thm 3.2).

    One seed of every attack; `worst` is the largest ratio that the corrected statements allowed.
    """
    steepest = attack_global_lipschitz(seed).max().item()
    exceeded = sum(max(steepest, slope_of_attention(math.sqrt(1.5 * c))) > c for c in CONSTANTS)
    unscaled, scaled = attack_limit(seed, scaled=False), attack_limit(seed, scaled=True)
    rate = attack_rate(seed)
    line, stride = attack_line(seed)
    corrected = {
        "error_bound_line": line,
        "error_bound_attention": attack_attention(seed),
        "lipschitz_max": attack_lipschitz(seed, "max"),
        "lipschitz_frobenius": attack_lipschitz(seed, "frobenius"),
    }
    return attack_result(
        "attack_continuum",
        scale,
        seed,
        # only stacks that meet the printed hypotheses count against it; that attention does not is reported apart
        printed={"unscaled": unscaled > 0.5, "scaled": scaled > 0.5, "rate": rate > 4},  # √64 = 8 in theory
        corrected=corrected,
        figures={
            "assumption_attempts": len(CONSTANTS),
            "assumption_violations": exceeded,
            "steepest": steepest,
            "steps_longer_than_the_tube": int((stride > 1).sum()),
        },
        configuration={"constants": list(CONSTANTS)},
    )
