"""Does the field grow, do its tokens become one, do gradients reach the first layer? u: (batch, token, feature).

How fast may the tokens move apart, and does stabilisation outweigh it? One-sided constants and the margins of the
stability theorems are values of each example: (batch,).

Energies are per token, E(u) = ½⟨u, u⟩ with ⟨u, v⟩ = (1/N) Σ_i u_i · v_i = ∫u·v dx, averaged over the batch; so a step
from u to u⁺ changes the energy by exactly ⟨½(u⁺ + u), u⁺ − u⟩. reduce: "mean", "median" or "none", see `metrics.base`.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from pdelab import formulas
from pdelab.field import Field, Mask, centred, check_number, keep_real, mean_square, token_mean
from pdelab.metrics.base import aligned, clean, each_example, norm, per_layer, real_places, reduced
from pdelab.metrics.jacobian import Map, evaluated, logarithmic_norm
from pdelab.options import choose, instance, number, whole
from pdelab.solver import Trajectory


def energy(u: Field, mask: Mask | None = None, *, reduce: str = "mean") -> Tensor:
    """E = ½ (1/N) Σ_i |u_i|² = mean_energy + fluctuation; of each token ½|u_i|².

    >>> energy(torch.tensor([[[3.0, 4.0], [0.0, 0.0]]])).item()
    6.25
    """
    return _half_squares(clean(u, mask), mask, reduce)


def _half_squares(u: Field, mask: Mask | None, reduce: str) -> Tensor:
    return reduced(u.square().sum(dim=-1) / 2, real_places(u, mask), reduce, by_example=True)


def state_rms(u: Field, mask: Mask | None = None) -> Tensor:
    """√(mean of u²) over all entries of the real tokens of the batch: the size of a typical entry.

    >>> state_rms(torch.full((1, 2, 3), -2.0)).item()
    2.0
    """
    u = clean(u, mask)
    entries = real_places(u, mask).sum() * u.shape[-1]
    return norm(u) / entries.to(u.dtype).sqrt()


def mean_energy(u: Field, mask: Mask | None = None, *, reduce: str = "mean") -> Tensor:
    """½|μ|² of each example, μ = (1/N) Σ_i u_i, averaged: what is left when all tokens have become their mean."""
    return each_example(token_mean(clean(u, mask), mask).square().sum(dim=(1, 2)) / 2, reduce)


def fluctuation(u: Field, mask: Mask | None = None, *, reduce: str = "mean") -> Tensor:
    """V = ½ (1/N) Σ_i |u_i − μ|²: exactly 0 where all tokens are equal; of each token ½|u_i − μ|²."""
    return _half_squares(centred(clean(u, mask), mask), mask, reduce)


def spread(u: Field, mask: Mask | None = None) -> Tensor:
    """σ = √((1/N) Σ_i |u_i − μ|²) of each example: (batch,); the root of P2 eq 9's σ².

    >>> spread(torch.tensor([[[1.0], [3.0]], [[5.0], [5.0]]])).tolist()
    [1.0, 0.0]
    """
    return mean_square(centred(clean(u, mask), mask), mask).flatten().sqrt()


def diameter(u: Field, mask: Mask | None = None) -> Tensor:
    """max_{i,k} |u_i − u_k| over the real tokens of each example: (batch,).

    Averages never make it larger; they may make `spread` larger.

    >>> diameter(torch.tensor([[[0.0, 0.0], [3.0, 4.0], [3.0, 0.0]]])).item()
    5.0
    """
    u, real = aligned(clean(u, mask), mask)
    return formulas.diameter(torch.where(real.unsqueeze(-1), u, u[:, :1]))  # padding stands at the first token


def growth_towards_mean(f: Map, u: Field, mask: Mask | None = None) -> Tensor:
    """λ(u) = ⟨u − μ, f(u) − f(μ)⟩/σ² of each example: (batch,), μ the field of equal tokens; NaN where σ = 0.

    For u' = f(u) with an f that keeps tokens equal where they are, the spread grows at exactly this rate, σ' = λ(u) σ.
    The least one-sided Lipschitz constant that Theorem A of the chapter on stability needs is its supremum.
    f: a Term or an equation gets the mask too; any other function is called as f(u) and must heed padding by itself.

    >>> growth_towards_mean(lambda u: 3 * u, torch.tensor([[[1.0], [3.0]]])).item()
    3.0
    """
    u = clean(u, mask)
    rest = centred(u, mask)
    with torch.no_grad():
        values = [evaluated(f, v, mask) for v in (u, keep_real(u - rest, mask))]
        change = keep_real(values[0] - values[1], mask)
    return (rest * change).sum(dim=(1, 2)) / rest.square().sum(dim=(1, 2))


def growth_along(f: Map, run: Trajectory, towards: str = "mean") -> Tensor:
    """The one-sided constant of f at every state of a run: (layer, batch).

    towards: "mean", λ(u) = ⟨u − μ, f(u) − f(μ)⟩/σ² (`growth_towards_mean`); or "all", the logarithmic norm
    μ(J) = λ_max((J + Jᵀ)/2), which bounds how fast any two neighbouring states separate.
    """
    choose("towards", towards, ("mean", "all"))
    instance("run", run, Trajectory)
    one = growth_towards_mean if towards == "mean" else logarithmic_norm
    return per_layer(lambda u, mask: one(f, u, mask), run)


def basin_margin(
    u: Field, *, strength: float | Tensor, growth: float | Tensor, eps: float | Tensor, mask: Mask | None = None
) -> Tensor:
    """γ/√(σ² + ε) − λ of each example: (batch,). Above zero u lies in the basin, and σ decays at least at this rate.

    strength is γ and eps ε of `SpatialStabilization`; growth is λ, a one-sided constant towards the mean. Each may
    be a tensor, one number for each example.

    >>> u = torch.tensor([[[1.0], [3.0]]])
    >>> basin_margin(u, strength=2.0, growth=1.5, eps=0.0).item()
    0.5
    """
    variance = spread(u, mask).square()
    _not_negative(variance.shape, strength=strength, eps=eps)
    check_number("growth", growth, shape=variance.shape)
    variance = variance + torch.as_tensor(eps, dtype=variance.dtype, device=variance.device)
    return strength / variance.sqrt() - growth


def diameter_margin(
    u: Field, *, strength: float | Tensor, growth: float | Tensor, eps: float | Tensor, mask: Mask | None = None
) -> Tensor:
    """γ/√(χδ² + ε) − Λ of each example: (batch,), δ = max|u_i − u_k| and χ = ½ min(1 − 1/N, d/(d + 1)).

    Above zero the diameter δ decays at least at this rate, for any mask and any number of tokens. growth is Λ, which
    has no N in it: `push_constants`. Otherwise as `basin_margin`.

    >>> u = torch.tensor([[[1.0], [3.0]]])
    >>> diameter_margin(u, strength=2.0, growth=1.5, eps=0.0).item()
    0.5
    """
    u = clean(u, mask)
    _not_negative(u.shape[:1], strength=strength, eps=eps)
    check_number("growth", growth, shape=u.shape[:1])
    share = formulas.variance_share(real_places(u, mask).sum(dim=1).to(u.dtype), u.shape[-1])
    variance = share * diameter(u, mask).square()
    variance = variance + torch.as_tensor(eps, dtype=variance.dtype, device=variance.device)
    return strength / variance.sqrt() - growth


def bounded_margin(
    *, strength: float | Tensor, value_sum: float | Tensor, network: float | Tensor = 0.0, leak: float | Tensor = 0.0
) -> float | Tensor:
    """θ = γ + κ − Σ_h‖V_h‖ − f. Above zero LayerNorm as a rate, γ(LN(u) − u) for each token, bounds the field.

    For u' = Att(u) + FFN(u) − κu + γ(LN(u) − u) with any mask, max_i|u_i| ends at most at (γR + f₀)/θ, where
    |LN(z)| ≤ R and |FFN(z)| ≤ f|z| + f₀. value_sum is Σ_h‖V_h‖, over all heads, and
    network f. Each may be a tensor, one number for each example.

    >>> bounded_margin(strength=2.0, value_sum=1.5, network=1.0, leak=2.0)
    1.5
    """
    _not_negative(("batch",), strength=strength, value_sum=value_sum, network=network, leak=leak)
    return strength + leak - value_sum - network


class PushConstants(NamedTuple):
    """What attention and a network may do: λ to the spread in a flow, K to it in a step, Λ to the diameter."""

    growth: float
    lipschitz: float
    diameter: float


def push_constants(
    tokens: int,
    values: float | Sequence[float] | Tensor,
    *,
    columns: float | Sequence[float] | Tensor | None = None,
    network: float = 0.0,
    leak: float = 0.0,
) -> PushConstants:
    """λ = f − κ + Σ_h min(√c_h, ½(1 + S))‖V_h‖, K = f + Σ_h min(√c_h, S)‖V_h‖, Λ = f − κ + Σ_h‖V_h‖.

    For F = Att + FFN − κu on N tokens, any scores and masks: ⟨u − μ, F(u) − F(μ)⟩ ≤ λσ², the spread of Att + FFN is at
    most Kσ, and δ' ≤ Λδ. S = √(2⌊N/2⌋⌈N/2⌉/N) is √(N/2) for even N, a little less for odd N; no N-free constant serves
    for λ or K. values: ‖V_h‖, one for each head; columns: c_h, the largest column sum of each head's weights, which is
    never below 1, if it is known; network: f, a Lipschitz constant of FFN; leak: κ.

    >>> push_constants(8, [2.0, 1.0], network=1.0, leak=2.0)
    PushConstants(growth=3.5, lipschitz=7.0, diameter=2.0)
    """
    tokens = whole("tokens", tokens)
    norms = _per_head("values", values)
    _not_negative((), network=network, leak=leak)
    roots = [math.inf] * len(norms) if columns is None else [math.sqrt(c) for c in _per_head("columns", columns, 1)]
    if len(roots) != len(norms):
        raise ValueError(f"columns must be {len(norms)} numbers, one for each head of values; not {len(roots)}")
    grown, spread_by = (
        sum(min(root, most) * norm for root, norm in zip(roots, norms, strict=True))
        for most in (formulas.averaging_growth(tokens), formulas.averaging_size(tokens))
    )
    network, leak = float(network), float(leak)
    return PushConstants(grown + network - leak, spread_by + network, sum(norms) + network - leak)


def _per_head(name: str, given: float | Sequence[float] | Tensor, least: float = 0) -> list[float]:
    """Numbers of at least `least`, one for each head, as a list; a single one is that of the only head."""
    if isinstance(given, Tensor):
        check_number(name, given, least, shape=("heads",))
        heads = given.flatten().tolist()
    else:
        heads = list(given) if isinstance(given, list | tuple) else [given]
        for one in heads:
            number(name, one, least)
    if not heads:
        raise ValueError(f"{name} must be one number for each head; not {given!r}")
    return [float(one) for one in heads]


def step_margin(
    *, dt: float, strength: float | Tensor, lipschitz: float | Tensor, eps: float | Tensor, leak: float = 0.0
) -> float | Tensor:
    """2 − Δt (γ/√ε + κ + K). Above zero an Euler step of u' = G(u) − κu + S cannot overshoot to a larger spread.

    lipschitz is K, the spread of G(u) is at most Kσ; leak is κ, 2 for P2 eq 5 and 6 together. With ε = 0 no step is
    small enough.

    >>> step_margin(dt=0.1, strength=1.0, lipschitz=5.0, eps=0.01)
    0.5
    """
    _not_negative(("batch",), dt=dt, strength=strength, lipschitz=lipschitz, eps=eps, leak=leak)
    eps = torch.as_tensor(eps, dtype=torch.float64)
    steepest = torch.as_tensor(strength, dtype=torch.float64) / eps.sqrt()
    margin = 2 - dt * (torch.where(eps > 0, steepest, torch.inf) + leak + lipschitz)
    return margin if margin.ndim else margin.item()


def euler_factor(
    u: Field,
    *,
    dt: float,
    strength: float | Tensor,
    lipschitz: float | Tensor,
    eps: float | Tensor,
    leak: float = 0.0,
    mask: Mask | None = None,
    of: str = "spread",
) -> Tensor:
    """q = max{1 − Δt(γ/√(σ² + ε) + κ − K), Δt(γ/√ε + κ + K) − 1} of each example: (batch,).

    If q < 1, then σ_n ≤ qⁿ σ for Euler steps of u' = G(u) − κu + S from u, where G keeps equal tokens equal and spreads
    the others at most K times as far. of: "diameter" has χδ² for σ², and the same of δ_n: K = ‖V‖ + f.
    """
    u = clean(u, mask)
    _not_negative(u.shape[:1], dt=dt, lipschitz=lipschitz, leak=leak)
    margin = choose("of", of, {"spread": basin_margin, "diameter": diameter_margin})
    slow = 1 - dt * margin(u, strength=strength, growth=lipschitz - leak, eps=eps, mask=mask)
    fast = 1 - step_margin(dt=dt, strength=strength, lipschitz=lipschitz, eps=eps, leak=leak)
    return torch.maximum(slow, torch.as_tensor(fast, dtype=slow.dtype, device=slow.device).expand_as(slow))


def nonuniformity(u: Field, mask: Mask | None = None, *, reduce: str = "mean") -> Tensor:
    """‖u − 1μᵀ‖_F / ‖u‖_F of each example, averaged: 0 where all tokens are equal, 1 where their mean is zero.

    The relative distance to the nearest state 1xᵀ of equal tokens, whose x is μ: the residual of "rank collapse" in
    Dong et al. (2021), here relative and in another norm. A large common mean makes it small as well, with the tokens
    as far apart as before; `fluctuation` tells the two cases apart. A zero state has no value: NaN.
    """
    u = _scaled(clean(u, mask))
    return each_example(torch.linalg.matrix_norm(centred(u, mask)) / torch.linalg.matrix_norm(u), reduce)


def gradient_norms(groups: Mapping[str, Iterable[Tensor | None]], normalise: str = "whole") -> dict[str, float]:
    """√Σ g² over all gradients g of a group ("whole"), or that over √(number of entries) ("rms"), for each group.

    A group holds gradients, or parameters, which stand for their .grad; None is skipped. A group in which nothing has a
    gradient has no norm, NaN: a gradient that was never computed has not vanished.

    >>> gradient_norms({"A": [torch.tensor([3.0, 4.0]), None]})
    {'A': 5.0}
    """
    choose("normalise", normalise, ("whole", "rms"))
    found = {}
    for name, members in instance("groups", groups, Mapping).items():
        if isinstance(members, Tensor):
            raise ValueError(f"groups[{name!r}] must be a list of tensors, not one tensor; put it in a list")
        members = list(members)
        if not all(m is None or isinstance(m, Tensor) for m in members):
            raise ValueError(f"groups[{name!r}] must be a list of tensors and None; not {members}")
        gradients = [m.grad if isinstance(m, nn.Parameter) else m for m in members]
        gradients = [g.detach() for g in gradients if g is not None and g.numel()]
        size = math.hypot(*(norm(g).item() for g in gradients)) if gradients else math.nan
        entries = sum(g.numel() for g in gradients)
        found[name] = size / math.sqrt(entries) if normalise == "rms" and entries else size
    return found


def state_gradients(run: Trajectory, loss: Tensor) -> Tensor:
    """‖∂loss/∂u_l‖ over the whole batch, for every state of the run: (layer,).

    The graph is kept, so loss.backward() may follow. A state that the loss does not depend on has gradient zero.
    """
    if not isinstance(loss, Tensor) or loss.numel() != 1 or not loss.requires_grad:
        raise ValueError("loss must be one number computed from the run, with its graph (not under torch.no_grad)")
    instance("run", run, Trajectory)
    without = [i for i, u in enumerate(run.states) if not (isinstance(u, Tensor) and u.requires_grad)]
    if without:
        raise ValueError(f"run must have states with a graph; states {without} have none: try u0.requires_grad_()")
    gradients = torch.autograd.grad(loss, run.states, retain_graph=True, materialize_grads=True)
    return torch.stack([norm(keep_real(g, run.mask)) for g in gradients])


def _scaled(u: Field) -> Field:
    """Each example with 1 as its largest entry, so that no square is lost to underflow; a zero state stays zero."""
    largest = u.abs().amax(dim=(1, 2), keepdim=True)
    return u / torch.where(largest > 0, largest, torch.ones_like(largest))


def _not_negative(shape: tuple[int | str, ...], **given: float | Tensor) -> None:
    for name, value in given.items():
        check_number(name, value, 0, shape=shape)
