"""What eq 9 does to a field, what LayerNorm does to tokens, and energies along the depth of Transformers.  (P2 eq 9)

Closed forms first, each with the function name that the chapter cites; then small Transformers, trained with the norm
after each branch, before it, with none, and with eq 9 in its place.
"""

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import layer_norm

from pdebook.evidence.experiment import Scale, Workplace, experiment
from pdebook.evidence.trained import TASKS, Measured, Task, look, trained
from pdebook.ledger.record import Figures, Result
from pdelab.datasets.base import Dataset
from pdelab.equation import Layered, MasterEquation
from pdelab.field import Field
from pdelab.integrators import LieEuler
from pdelab.metrics.base import per_layer
from pdelab.metrics.stability import energy, fluctuation
from pdelab.models import Model, transformer, with_ends
from pdelab.seeds import derive, normal, stream
from pdelab.solver import Trajectory
from pdelab.status import Status
from pdelab.terms.base import Term
from pdelab.terms.interaction import Interaction
from pdelab.terms.reaction import Reaction
from pdelab.terms.stabilization import LayerNormRate, PreNorm, SpatialStabilization
from pdelab.training import Settings, Training

# Eq 9 by itself.


def power(term: Term, u: Field, t: float = 0.0) -> Tensor:
    """∫⟨u, S[u]⟩ dx, the rate at which a term changes the energy ½∫|u|² dx of each example: (batch,)."""
    return (u * term(u, t)).sum(dim=-1).mean(dim=1)


def field_of(mean: Tensor, spread: Tensor, seed: int, tokens: int = 8, width: int = 3) -> Field:
    """Random fields with |μ| = mean and σ = spread exactly, for mean and spread of shape (batch,)."""
    rest = normal(seed, "rest", size=(len(mean), tokens, width))
    rest = rest - rest.mean(dim=1, keepdim=True)
    rest = rest / rest.square().sum(dim=-1).mean(dim=1).sqrt().reshape(-1, 1, 1)
    way = normal(seed, "mean", size=(len(mean), 1, width))
    return mean.reshape(-1, 1, 1) * way / way.norm(dim=-1, keepdim=True) + spread.reshape(-1, 1, 1) * rest


def spread_at(t: np.ndarray, start: float, strength: float, eps: float) -> np.ndarray:
    """σ(t) of u' = S[u] with constant γ:  √(σ² + ε) − √ε arsinh(√ε/σ) = C − γt, and max(σ₀ − γt, 0) at ε = 0.

    With σ = √ε/sinh s the left side is √ε (coth s − s), which falls in s; Newton's method climbs to the root.

    >>> spread_at(np.array([0.0, 0.5, 2.0]), start=1.0, strength=1.0, eps=0.0).tolist()
    [1.0, 0.5, 0.0]
    """
    t = np.asarray(t, dtype=float)
    if eps == 0:
        return np.maximum(start - strength * t, 0.0)
    root = math.sqrt(eps)
    s0 = math.asinh(root / start)
    level = 1 / math.tanh(s0) - s0 - strength * t / root
    s = 1 / (1 + np.abs(level))  # left of the root, from where Newton's method on a convex function never overshoots
    for _ in range(60):
        s = s + (1 / np.tanh(s) - s - level) * np.tanh(s) ** 2
    return root / np.sinh(s)


def dissipates_as_printed(mean: Tensor, spread: Tensor, eps: float) -> Tensor:
    """σ²/√(σ² + ε) ≥ |μ|² + σ²: exactly then ∫⟨u, S⟩ ≤ −2γE holds for eq 9 with constant γ > 0.  (P2 B.2)"""
    return spread**2 / (spread**2 + eps).sqrt() >= mean**2 + spread**2


DECADES = 2  # |μ| and σ each log-uniform from 10⁻² to 10²


def log_uniform(seed: int, name: str, size: int, decades: float = DECADES) -> Tensor:
    """10^U, U uniform on (−decades, decades)."""
    return 10 ** (decades * (2 * torch.rand(size, generator=stream(seed, name), dtype=torch.float64) - 1))


def share_failing(seed: int, fields: int = 4000, eps: float = 1e-5) -> float:
    """How many of random fields break ∫⟨u, S⟩ ≤ −2γE, evaluated on the fields: |μ| and σ log-uniform over DECADES."""
    u = field_of(log_uniform(seed, "|μ|", fields), log_uniform(seed, "σ", fields), seed)
    twice_energy = u.square().sum(dim=-1).mean(dim=1)
    return (power(SpatialStabilization(1.0, eps), u) > -twice_energy).double().mean().item()


def share_failing_law(eps: float = 1e-5, decades: float = DECADES) -> float:
    """The same share from the condition: for σ² + ε < 1 it holds up to |μ| = σ√(1/√(σ² + ε) − 1), else never."""
    sigma = 10 ** (decades * (2 * (np.arange(20_000) + 0.5) / 20_000 - 1))
    room = 1 / np.sqrt(sigma**2 + eps) - 1
    edge = np.log10(sigma * np.sqrt(np.where(room > 0, room, 1.0)))  # log₁₀ of the largest mean allowed
    holds = np.where(room > 0, np.clip((edge + decades) / (2 * decades), 0, 1), 0.0)
    return float(1 - holds.mean())


# LayerNorm as a rate, and the corrected term.


def layer_norm_flow(u0: Field, t: float, strength: float = 1.0) -> Field:
    """u(t) = e^{−γt} u₀ + (1 − e^{−γt}) LN(u₀), the solution of u' = γ(LN(u) − u) for g = 1, b = 0, ε = 0."""
    left = math.exp(-strength * t)
    return left * u0 + (1 - left) * layer_norm(u0, u0.shape[-1:], eps=0.0)


def mismatch(term: Term, u: Field) -> Tensor:
    """min over γ_i ≥ 0 of ‖γT[u] − (LN(u) − u)‖ / ‖LN(u) − u‖, a rate for each token: (batch,); ε = 0 in LN.

    0 if the term is LayerNorm as a rate, up to its strength; 1 if no strength brings it nearer than 0 does.
    """
    want, given = layer_norm(u, u.shape[-1:], eps=0.0) - u, term(u)
    best = (given * want).sum(dim=-1, keepdim=True) / given.square().sum(dim=-1, keepdim=True)
    off = best.nan_to_num(0.0).clamp(min=0) * given - want  # where the term vanishes every rate does the same
    return off.flatten(1).norm(dim=-1) / want.flatten(1).norm(dim=-1)


def size_bound(t: np.ndarray, start: float, strength: float, growth: float, forcing: float = 0.0) -> np.ndarray:
    """‖u(t)‖ ≤ e^{−κt}‖u₀‖ + (γ + f₀)(1 − e^{−κt})/κ with κ = γ − λ, and ‖u₀‖ + (γ + f₀)t at κ = 0."""
    t, rate = np.asarray(t, dtype=float), strength - growth
    gained = -np.expm1(-rate * t) / rate if rate else t
    return np.exp(-rate * t) * start + (strength + forcing) * gained


def branch_bound(term: PreNorm) -> float:
    """M with |T(LN(u))_i| ≤ M for every u: the branch sees tokens no longer than R = √d‖g‖_∞ + |b|.

    Attention: ‖W_O‖ (Σ_h (‖W_Vʰ‖R + |b_Vʰ|)²)^{½} + |b_O|; feed-forward: ‖W₂‖(‖W₁‖R + |b₁|) + |b₂|, as |φ(z)| ≤ |z|.
    """
    radius = math.sqrt(term.width) * term.norm.weight.abs().max().item() + term.norm.bias.norm().item()
    inner = term.term

    def size(weight: Tensor) -> float:
        return torch.linalg.matrix_norm(weight, 2).item()

    if isinstance(inner, Interaction):
        values, offsets = (x.chunk(3)[2].chunk(inner.heads) for x in (inner.qkv.weight, inner.qkv.bias))
        heads = [size(value) * radius + offset.norm().item() for value, offset in zip(values, offsets, strict=True)]
        return size(inner.out.weight) * math.hypot(*heads) + inner.out.bias.norm().item()
    hidden = size(inner.inner.weight) * radius + inner.inner.bias.norm().item()
    return size(inner.outer.weight) * hidden + inner.outer.bias.norm().item()


# Energies along the depth of trained Transformers.

KINDS = ("post", "pre", "none", "eq9")
SETTINGS = Settings(steps=300, rate=3e-3, warmup=30)


def build(kind: str, task: Task, data: Dataset, seed: int) -> Model:
    """A Transformer with LayerNorm post, pre or none, or with eq 9, γ = 1, where post-LayerNorm has its norms."""
    own = derive(seed, "normalization", kind)
    sizes = {"width": task.width, "heads": task.heads, "hidden": task.hidden}
    if kind == "eq9":
        with torch.random.fork_rng(devices=[]):
            torch.random.default_generator.manual_seed(own)
            layers = [_eq9_layer(**sizes) for _ in range(task.depth)]
        core = Model(Layered(layers, 1.0), steps=task.depth, dt=1.0, integrator=LieEuler())
    else:
        core = transformer(**sizes, depth=task.depth, norm=kind, seed=own)
    ends = {"length": data.length, "symbols": data.symbols, "features": data.features, "outputs": data.classes}
    return with_ends(core, task.width, **ends, seed=derive(own, "ends"))


def _eq9_layer(width: int, heads: int, hidden: int) -> MasterEquation:
    return MasterEquation(
        Interaction(width, heads), SpatialStabilization(), Reaction(width, hidden), SpatialStabilization()
    )


@torch.no_grad()
def at_norms(model: Model, u: Field) -> list[tuple[Field, Field]]:
    """The field before and after each LayerNorm of a Transformer with Δt = 1, from the first block to the last."""
    pairs = []
    for equation in model.equation.equations:
        for term in equation.terms:
            if isinstance(term, LayerNormRate | PreNorm):
                pairs.append((u, term.norm(u)))
            u = u + term(u)
    return pairs


def norm_figures(pairs: list[tuple[Field, Field]]) -> Figures:
    """Energies before and after each norm, and the share of tokens that it made longer."""
    raised = [(after.norm(dim=-1) > before.norm(dim=-1)).double().mean().item() for before, after in pairs]
    return {
        "before": [energy(before).item() for before, _ in pairs],
        "after": [energy(after).item() for _, after in pairs],
        "raised": raised,
    }


@torch.no_grad()
def set_energies(model: Model) -> list[float]:
    """½(|g|² + |b|²) of each LayerNorm: the mean energy of what it returns if the directions are spread evenly."""
    norms = [
        term.norm
        for equation in model.equation.equations
        for term in equation.terms
        if isinstance(term, LayerNormRate | PreNorm)
    ]
    return [((norm.weight.square().sum() + norm.bias.square().sum()) / 2).item() for norm in norms]


@torch.no_grad()
def growth_used(model: Model, states: tuple[Field, ...]) -> float:
    """(max_i|u_i| at the end − at the start)/Σ M over the branches of a pre-LayerNorm model: at most 1."""
    longest = [u.norm(dim=-1).max().item() for u in (states[0], states[-1])]
    allowed = sum(branch_bound(term) for equation in model.equation.equations for term in equation.terms)
    return (longest[1] - longest[0]) / allowed


def measure(
    kind: str, task: Task, data: Dataset, seed: int, work: Workplace
) -> tuple[Figures | None, Figures, Training]:
    """Figures of one trained model (None if it diverged), the same before training, and the record of the training."""
    model = build(kind, task, data, seed)
    probe = data.test.take(slice(0, task.probe))
    before = _figures(kind, model, look(model, probe))
    record = trained(model, data, SETTINGS, derive(seed, "normalization", kind, "training"), work, kind)
    run = look(model, probe) if record.status != Status.DIVERGED else None
    if run is None or run.status is Status.DIVERGED:  # the last step may have moved the weights out of range
        return None, before, record
    return _figures(kind, model, run) | {"accuracy": record.evaluations[-1].accuracy}, before, record


def _figures(kind: str, model: Model, run: Trajectory) -> Figures:
    found = {name: per_layer(f, run).tolist() for name, f in (("energy", energy), ("fluctuation", fluctuation))}
    if kind in ("post", "pre"):
        found |= norm_figures(at_norms(model, run.states[0])) | {"set": set_energies(model)}
    if kind == "pre":
        found["growth_used"] = growth_used(model, run.states)
    return found


@experiment("normalization", Scale.BOOK)
def run(scale: Scale, seed: int, work: Workplace) -> Result:
    """Energies along the depth of Transformers, with LayerNorm, without, and with eq 9 (P2 eq 9, S).

    One seed of four models on digits; as controls the same models before training.
    """
    task, found = TASKS["images"][scale], Measured()
    data = task.load(seed)
    for kind in KINDS:
        figures, controls, record = measure(kind, task, data, seed, work)
        found.made_by(record.commits)
        found.controls |= {f"{kind}/{name}": value for name, value in controls.items()}
        if figures is None:
            found.diverged[kind] = record.stopped_at or record.step
        else:
            found.figures |= {f"{kind}/{name}": value for name, value in figures.items()}
    return found.result("normalization", task, scale, seed, settings=SETTINGS.that_matter())
