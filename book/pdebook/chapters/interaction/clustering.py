"""What attention does to the spread of the tokens: contraction, collapse, clusters on a sphere.  (P2 eq 5)

diam(u) = max_{i,k}|u_i − u_k|. Pure attention layers contract it; skip connections, feed-forward networks and LayerNorm
change how fast. On the unit sphere tokens with equal angles follow one scalar equation.
"""

import math
from collections.abc import Sequence

import torch
from scipy.integrate import quad
from torch import Tensor

from pdebook.evidence.experiment import Scale, Workplace, experiment
from pdebook.ledger.record import Result
from pdelab.field import Field
from pdelab.formulas import attention, norm2
from pdelab.integrators import RK4
from pdelab.metrics.stability import nonuniformity
from pdelab.seeds import normal, stream
from pdelab.solver import solve
from pdelab.terms.interaction import Interaction
from pdelab.terms.reaction import Reaction

# Contraction


def diameter(u: Tensor) -> Tensor:
    """max_{i,k} |u_i − u_k|: (…, token, feature) → (…)."""
    return torch.cdist(u, u, compute_mode="donot_use_mm_for_euclid_dist").amax(dim=(-2, -1))


def dobrushin(P: Tensor) -> Tensor:
    """τ(P) = ½ max_{i,k} Σ_j |p_ij − p_kj|, of row-stochastic P: 0 if all rows agree, 1 if two share nothing.

    >>> dobrushin(torch.tensor([[0.75, 0.25], [0.25, 0.75]])).item()
    0.5
    """
    return torch.cdist(P, P, p=1).amax(dim=(-2, -1)) / 2


def factor(delta: Tensor, A: Tensor) -> Tensor:
    """tanh(‖A‖δ²/4): what softmax attention, without a mask, leaves of a diameter δ at most, with ‖V‖ = 1."""
    return torch.tanh(norm2(A) * delta**2 / 4)


def heads_factor(term: Interaction, delta: float) -> float:
    """Σ_h ‖W_Oʰ W_Vʰ‖ tanh(‖A_h‖δ²/4), A_h = W_QʰᵀW_Kʰ/√d_h: what a layer of several heads leaves of δ at most.

    The bounds of the heads add up, so with several heads it may be above 1, and then it says nothing.
    """
    query, key, value = (w.split(term.head_width) for w in term.qkv.weight.chunk(3))
    out = term.out.weight.split(term.head_width, dim=1)
    size = torch.as_tensor(delta, dtype=term.qkv.weight.dtype)
    heads = zip(query, key, value, out, strict=True)
    return sum(norm2(o @ v) * factor(size, q.T @ k / math.sqrt(term.head_width)) for q, k, v, o in heads).item()


def causal_factor(u: Tensor, A: Tensor) -> Tensor:
    """1 − 1/(1 + (N−1)e^β), β = ‖A‖ max|u_i| diam(u): what causal attention with V = I leaves of max_k|u_k − u_0|."""
    spread = norm2(A) * u.norm(dim=-1).amax(dim=-1) * diameter(u)
    return torch.sigmoid(spread + math.log(u.shape[-2] - 1))  # the same, and no overflow


def diameters(u: Tensor, A: Tensor, V: Tensor, layers: int) -> list[float]:
    """diam(u), diam(Att(u)), diam(Att(Att(u))), …: attention alone, the same weights in every layer."""
    found = [diameter(u).item()]
    for _ in range(layers):
        u = attention(u, A, V)
        found.append(diameter(u).item())
    return found


def two_leaders(n: int, size: float = 1e-3, sharp: float = 50.0) -> tuple[Tensor, Tensor, Tensor]:
    """N tokens, A and V with ‖V‖ = 1, for which attention multiplies the spread by nearly √(N/2).

    A token is (value, address). Two leaders have the values ±1, all others 0; half of these turn to each leader, by an
    address that is too small to count in the spread.
    """
    side = torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(n // 2)
    value, address = torch.zeros_like(side), 0.1 * size * side
    value[:2], address[:2] = side[:2], size * side[:2]
    A = torch.diag(torch.tensor([0.0, sharp / (0.1 * size**2)], dtype=torch.float64))
    V = torch.diag(torch.tensor([1.0, 0.0], dtype=torch.float64))
    return torch.stack([value, address], dim=-1), A, V


def spread(u: Tensor) -> Tensor:
    """σ = √(Σ_i|u_i − μ|² / N), μ the mean over the tokens."""
    return (u - u.mean(dim=-2, keepdim=True)).square().sum(dim=-1).mean(dim=-1).sqrt()


def share(u: Tensor) -> Tensor:
    """√N|μ| / ‖u‖: the cosine between a state (token, feature) and the state of equal tokens 1μ."""
    return math.sqrt(u.shape[-2]) * u.mean(dim=-2).norm(dim=-1) / u.flatten(-2).norm(dim=-1)


# Collapse in deep random stacks

TOKENS, WIDTH, HEADS, HIDDEN, LAYERS = 16, 32, 4, 64, 12
# what each layer has beside attention
STACKS: dict[str, dict] = {
    "attention alone": {},
    "with FFN": {"ffn": True},
    "with LayerNorm": {"norm": True},
    "with skip": {"skip": True},
    "with skip, FFN, LayerNorm": {"skip": True, "ffn": True, "norm": True},
}


def random_layer(seed: int, number: int) -> tuple[Interaction, Reaction]:
    """Attention with four heads and a tanh network, no biases, weights N(0, 1/fan-in) of their own in every layer."""
    terms = Interaction(WIDTH, HEADS, bias=False), Reaction(WIDTH, HIDDEN, activation="tanh", bias=False)
    generator = stream(seed, "layer", number)
    for term in terms:
        term.double().requires_grad_(False)
        for weight in term.parameters():
            fresh = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
            weight.copy_(fresh / math.sqrt(weight.shape[1]))
    return terms


def states(
    seed: int, *, skip: bool = False, ffn: bool = False, norm: bool = False, mixing: bool = True, layers: int = LAYERS
) -> list[Field]:
    """u⁺ = [u +] A(LN(u)), then [u +] FFN(LN(u)), each part if asked for: the input and the state after each layer.

    mixing=False is the control: every token attends to itself alone.
    """
    u = normal(seed, "tokens", size=(1, TOKENS, WIDTH))
    found = [u]
    for number in range(layers):
        attend, react = random_layer(seed, number)
        for term in (attend, react) if ffn else (attend,):
            v = torch.nn.functional.layer_norm(u, (WIDTH,)) if norm else u
            alone = term is attend and not mixing
            rate = term(v.transpose(0, 1)).transpose(0, 1) if alone else term(v)  # a batch of tokens, each by itself
            u = u + rate if skip else rate
        found.append(u)
    return found


def nonuniformities(seed: int, **parts: bool) -> list[float]:
    """‖u − 1μ‖/‖u‖ of the input and after each layer: 1 for centred tokens, 0 where all are equal."""
    return [nonuniformity(u).item() for u in states(seed, **parts)]


@experiment("collapse", Scale.BOOK)
def run(scale: Scale, seed: int, work: Workplace) -> Result:
    """How alike the tokens become in deep random stacks of attention, with and without the other parts.

    The control is the same stack with every token attending to itself alone.
    """
    return Result(
        experiment="collapse",
        configuration={"tokens": TOKENS, "width": WIDTH, "heads": HEADS, "hidden": HIDDEN, "layers": LAYERS},
        scale=scale,
        seed=seed,
        status="finished",
        figures={name: nonuniformities(seed, **parts) for name, parts in STACKS.items()},
        controls={name: nonuniformities(seed, mixing=False, **parts) for name, parts in STACKS.items()},
    )


# On the sphere


def sphere_rate(u: Tensor, beta: float | Tensor, sign: float = 1.0) -> Tensor:
    """u_i' = ±(I − u_iu_iᵀ) Σ_j p_ij u_j, p_i = softmax_j(β⟨u_i, u_j⟩), |u_i| = 1: attention with V = ±I."""
    gram = u @ u.transpose(-1, -2)
    itself = torch.eye(u.shape[-2], dtype=torch.bool, device=u.device)
    # j = i gives (I − u_iu_iᵀ)u_i = 0; left in, its weight near 1 would drown the others by rounding at a large β
    pull = sign * (beta * gram).softmax(dim=-1).masked_fill(itself, 0) @ u
    # divided by |u|² = 1, or rounding off the sphere would grow where V = −I
    return pull - (pull * u).sum(dim=-1, keepdim=True) / (u * u).sum(dim=-1, keepdim=True) * u


def equal_angles(n: int, gamma: float | Tensor) -> Tensor:
    """n unit vectors in Rⁿ with ⟨u_i, u_j⟩ = γ for all i ≠ j, −1/(n−1) ≤ γ ≤ 1: (…, n, n).

    They are the rows of the root of their Gram matrix, √((1−γ)I + γ11ᵀ) = √(1−γ) (I − 11ᵀ/n) + √(1+(n−1)γ) 11ᵀ/n.
    """
    gamma = torch.as_tensor(gamma, dtype=torch.float64)[..., None, None]
    if not (gamma >= -1 / (n - 1)).all() or not (gamma <= 1).all():
        raise ValueError(f"gamma must lie between −1/(n−1) = {-1 / (n - 1):.3g} and 1 for {n} tokens")
    mean = torch.full((n, n), 1 / n, dtype=torch.float64)
    rest = torch.eye(n, dtype=torch.float64) - mean
    return (1 - gamma).sqrt() * rest + (1 + (n - 1) * gamma).clamp(min=0).sqrt() * mean


def angle_law(gamma, beta, n: int, sign: float = 1.0) -> Tensor:
    """γ' = ±2e^{βγ}(1−γ)(1 + (n−1)γ) / (e^β + (n−1)e^{βγ})."""
    gamma, beta = (torch.as_tensor(x, dtype=torch.float64) for x in (gamma, beta))
    weight = 1 / (torch.exp(beta * (1 - gamma)) + n - 1)  # of one other token
    return sign * 2 * weight * (1 - gamma) * (1 + (n - 1) * gamma)


def waiting_time(beta: float, n: int, end: float = 0.9) -> float:
    """∫_0^end dγ/γ' = ½∫_0^end (e^{β(1−γ)} + n − 1) / ((1−γ)(1 + (n−1)γ)) dγ: from right angles to the cosine `end`."""
    return quad(lambda gamma: 1 / angle_law(gamma, beta, n).item(), 0, end, epsrel=1e-10, limit=200)[0]


def angle_rate(u: Tensor, beta, sign: float = 1.0) -> Tensor:
    """d⟨u_1, u_2⟩/dt under the flow on the sphere: (…,)."""
    rate = sphere_rate(u, beta, sign)
    return (rate[..., 0, :] * u[..., 1, :] + u[..., 0, :] * rate[..., 1, :]).sum(dim=-1)


def follow_tokens(u0: Tensor, beta: float, times: Sequence[float], steps: int, sign: float = 1.0) -> list[Tensor]:
    """The tokens (n, d) at evenly spaced times 0, …, T, `steps` steps of RK4 between two of them."""
    dt = times[1] / steps
    run = solve(
        lambda u: sphere_rate(u, beta, sign), u0.unsqueeze(0), steps=steps * (len(times) - 1), dt=dt, integrator=RK4()
    )
    return [u[0] for u in run.states[::steps]]


def follow_law(gamma: float, beta: float, n: int, times: Sequence[float], steps: int, sign: float = 1.0) -> list[float]:
    """γ at the same times, from the scalar law alone."""
    start = torch.tensor([[[gamma]]], dtype=torch.float64)
    dt = times[1] / steps
    run = solve(lambda g: angle_law(g, beta, n, sign), start, steps=steps * (len(times) - 1), dt=dt, integrator=RK4())
    return [g.item() for g in run.states[::steps]]


def on_circle(angles: Tensor) -> Tensor:
    """(cos θ, sin θ): (…,) → (…, 2)."""
    return torch.stack([angles.cos(), angles.sin()], dim=-1)


def angles_of(states: Sequence[Tensor]) -> Tensor:
    """The angles of tokens on the circle, followed without jumps: (time, token)."""
    turn = torch.stack([torch.atan2(u[:, 1], u[:, 0]) for u in states])
    step = torch.remainder(turn.diff(dim=0) + math.pi, 2 * math.pi) - math.pi  # no token turns by π between two times
    return torch.cat([turn[:1], turn[:1] + step.cumsum(dim=0)])
