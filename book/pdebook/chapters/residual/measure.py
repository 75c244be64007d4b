"""What a skip keeps of the input in wide random stacks, forwards and backwards, beside the laws.  (P2 Theorem 3.4)

residual_angles: how far trained layers turn their input, how far the bound of the worst case lets them, and what the
law for branches at right angles says.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

import torch
from torch import Tensor

from pdebook.chapters.residual.laws import (
    INPUTS,
    NETWORKS,
    PAIR_COPIES,
    PAIR_LAYERS,
    PAIR_START,
    PAIR_WIDTH,
    WIDTH,
    fidelity_law,
    fidelity_spread,
    gradient_law,
    gradient_spread,
)
from pdebook.evidence.experiment import Scale, Workplace, experiment
from pdebook.evidence.systems import amplified
from pdebook.evidence.trained import TASKS, Measured, build, fit, look, named
from pdebook.ledger.record import Figures, Key, Result
from pdelab.field import Field
from pdelab.formulas import layer_norm, norm2
from pdelab.metrics.jacobian import jacobian
from pdelab.metrics.stability import state_gradients
from pdelab.models import Model, simulator
from pdelab.options import choose
from pdelab.seeds import normal, stream
from pdelab.solver import Trajectory
from pdelab.status import Status
from pdelab.terms.base import Term
from pdelab.terms.reaction import Reaction
from pdelab.terms.stabilization import PreNorm

DEPTHS = (2, 4, 8, 16, 32, 64)
KINDS = ("bare", "norm", "skip", "pre-LN", "post-LN", "leaky")
BRANCHES = ("linear", "relu", "sign")
SCALES = {"1/L": lambda layers: 1 / layers, "1/√L": lambda layers: layers**-0.5, "1": lambda layers: 1.0}


# Forwards


def draw_branch(h: Tensor, branch: str, generator: torch.Generator) -> Tensor:
    """f(h) with fresh weights, E|f|² = |h|². linear: Wh. relu: √2 W₂ max(W₁h, 0). sign: ±h, a fair coin for each input.

    All three have E[f | h] = 0. In the first two f points in a direction of its own; in the third it never does.
    """
    n = h.shape[-1]
    if branch == "sign":
        return h * (2.0 * torch.randint(2, h.shape[:-1], generator=generator).unsqueeze(-1) - 1)
    for k in range(1 if branch == "linear" else 2):
        W = torch.randn(n, n, generator=generator, dtype=torch.float64) / math.sqrt(n)
        h = (math.sqrt(2) * torch.relu(h) if k else h) @ W.T
    return h


def random_stack(
    kind: str, alpha: float, layers: int, start: Tensor, seed: int, *, branch: str = "relu", gain: float = 1.0
) -> list[Tensor]:
    """h_0, …, h_L through layers with fresh weights, start (input, feature). gain multiplies every branch."""
    if kind not in KINDS or branch not in BRANCHES:
        raise ValueError(f"kind must be one of {', '.join(KINDS)} and branch one of {', '.join(BRANCHES)}")

    generator, states = stream(seed, "stack", layers), [start]
    for _ in range(layers):
        h = states[-1]
        f = gain * draw_branch(layer_norm(h) if kind == "pre-LN" else h, branch, generator)
        h = f if kind in ("bare", "norm") else (1 - alpha if kind == "leaky" else 1) * h + alpha * f
        states.append(layer_norm(h) if kind in ("norm", "post-LN") else h)
    return states


def random_inputs(seed: int, width: int = WIDTH, inputs: int = INPUTS) -> Tensor:
    """N(0, 1) in every entry: (input, feature)."""
    return normal(seed, "inputs", width, size=(inputs, width))


def cosines(states: Sequence[Tensor], other: Tensor | None = None) -> Tensor:
    """ρ_ℓ = ⟨h_ℓ, h_0⟩ / (|h_ℓ||h_0|), mean over the inputs: (layer,). other: in place of h_0."""
    start = states[0] if other is None else other
    return torch.stack([torch.cosine_similarity(h, start, dim=-1).mean() for h in states])


def fidelities(
    kind: str, alpha: float, layers: int, seed: int, *, width: int = WIDTH, branch: str = "relu"
) -> list[float]:
    """ρ_0, …, ρ_L of a random stack, mean over 8 inputs."""
    return cosines(random_stack(kind, alpha, layers, random_inputs(seed, width), seed, branch=branch)).tolist()


def search_laws(seed: int, attempts: int = 48) -> tuple[Tensor, Tensor]:
    """|ρ_L − law| in units of its spread for random kinds, branches, depths up to 32 and α up to 1.5: at most 1.

    Second: the same for a wrong law, the square of ours, which a search that is worth anything must refute.
    """
    generator = stream(seed, "laws")
    kinds = torch.randint(3, (attempts,), generator=generator).tolist()
    depths = torch.randint(1, 33, (attempts,), generator=generator).tolist()

    measured, law = [], []
    for number, (kind, L) in enumerate(zip(kinds, depths, strict=True)):
        alpha = 1.5 * torch.rand((), generator=generator).item()
        name, branch = KINDS[2 + kind], BRANCHES[number % 2]
        measured.append(fidelities(name, alpha, L, 1000 * seed + number, branch=branch)[-1])
        law.append(fidelity_law(name, alpha, L))

    measured, law = torch.tensor(measured, dtype=torch.float64), torch.stack(law)
    return (measured - law).abs() / fidelity_spread(), (measured - law**2).abs() / fidelity_spread()


def rectified_stack(start: Tensor, layers: int, seed: int) -> list[Tensor]:
    """h ← max(√2 Wh, 0), W fresh with variance 1/n: the states h_0, …, h_L of a ReLU network of He's scale."""
    generator, states, n = stream(seed, "rectified weights"), [start], start.shape[-1]
    for _ in range(layers):
        W = torch.randn(n, n, generator=generator, dtype=torch.float64) * math.sqrt(2 / n)
        states.append(torch.relu(states[-1] @ W.T))
    return states


def worst_input(width: int, seed: int, layers: int = 1, alpha: float = 1.0) -> float:
    """ρ_L of the input that is chosen after the weights, to keep ρ high, for linear branches with one shared W.

    It is a real eigenvector of W, which an odd width always has: h stays on its line, and ρ = ±1 at every depth.
    """
    W = torch.randn(width, width, generator=stream(seed, "late"), dtype=torch.float64) / math.sqrt(width)
    values, vectors = torch.linalg.eig(W)
    real = vectors[:, values.imag.abs().argmin()].real
    h = real
    for _ in range(layers):
        h = h + alpha * W @ h
    return torch.cosine_similarity(h, real, dim=0).abs().item()


# There and back


def there_and_back(
    kind: str, start: Tensor, layers: int, seed: int, alpha: float = 0.5
) -> tuple[list[Tensor], list[Tensor]]:
    """h_0, …, h_L of a start (feature,) through random layers, and for each the input that undoing its layers gives.

    skip: h + αWh, undone by solving. rotation: Qh, undone by Qᵀ. relu: max(√2 Wh, 0), where half of the equations are
    lost: of all inputs that fit the rest the shortest is taken, and its negative entries become 0.
    """
    n, eye = start.shape[-1], torch.eye(start.shape[-1], dtype=start.dtype)
    W = [normal(seed, "there", k, size=(n, n)) / math.sqrt(n) for k in range(layers)]
    made = {
        "skip": lambda w: eye + alpha * w,
        "rotation": lambda w: torch.linalg.qr(w).Q,
        "relu": lambda w: math.sqrt(2) * w,
    }
    W = [choose("kind", kind, made)(w) for w in W]

    states, found = [start], [start]
    for layer in range(1, layers + 1):
        h = W[layer - 1] @ states[-1]
        states.append(torch.relu(h) if kind == "relu" else h)
        back = states[-1]
        for w in reversed(W[:layer]):
            if kind == "relu":
                on = back > 0
                back = torch.linalg.lstsq(w[on], back[on]).solution.clamp(min=0)
            else:
                back = w.T @ back if kind == "rotation" else torch.linalg.solve(w, back)
        found.append(back)
    return states, found


# Backwards


@lru_cache(maxsize=256)
def gradients(
    kind: str, alpha: float, layers: int, seed: int, *, width: int = WIDTH, gain: float = 1.0
) -> tuple[float, ...]:
    """‖∂loss/∂h_ℓ‖ / ‖∂loss/∂h_L‖ for ℓ = 0, …, L, linear branches, loss = ⟨w, h_L⟩ with a random w."""
    start = random_inputs(seed, width).unsqueeze(1).requires_grad_(True)  # (input, one token, feature)
    run = Trajectory.of(random_stack(kind, alpha, layers, start, seed, branch="linear", gain=gain))
    sizes = state_gradients(run, (run.final * normal(seed, "w", width, size=run.final.shape)).sum())
    return tuple((sizes / sizes[-1]).tolist())


def corner_gradients(corner: str, depth: int, seed: int, *, gain: float = 1.0, tokens: int = 8) -> list[float]:
    """‖∂loss/∂u_ℓ‖ / ‖∂loss/∂u_L‖ for ℓ = 0, …, L of an untrained corner of the 2×2, width 32, in torch's first scale.

    loss = ⟨w, u_L⟩ with a random w. gain multiplies every matrix.
    """
    model = amplified(simulator(corner, 32, depth, 4, 128, seed=seed).double().requires_grad_(False), gain)
    run = model.trajectory(normal(seed, "tokens", size=(4, tokens, 32)).requires_grad_(True))
    sizes = state_gradients(run, (run.final * normal(seed, "w", size=run.final.shape)).sum())
    return (sizes / sizes[-1]).tolist()


# Two inputs


def simulate(name: str, seed: int, layers: int = PAIR_LAYERS) -> list[float]:
    """c_0, …, c_L of real networks: the cosine of two inputs that start at ½, mean over 8 networks of width 512."""
    net, size = NETWORKS[name], (PAIR_COPIES, PAIR_WIDTH)
    generator = stream(seed, "pairs", name)
    basis = torch.linalg.qr(normal(seed, "start", name, size=(*size, 2)))[0] * math.sqrt(PAIR_WIDTH * net.q)
    first, other = basis.unbind(dim=-1)
    # two columns of length √(nq) and correlation ½: (network, feature, 2)
    h = torch.stack([first, PAIR_START * first + math.sqrt(1 - PAIR_START**2) * other], dim=-1)

    correlations = [_correlation(h)]
    for _ in range(layers):
        W = torch.randn(*size, PAIR_WIDTH, generator=generator, dtype=torch.float64)
        W = W * math.sqrt(net.weight / PAIR_WIDTH)
        b = torch.randn(*size, 1, generator=generator, dtype=torch.float64) * math.sqrt(net.bias)
        f = W @ net.phi(h) + b
        h = f if net.alpha is None else h + net.alpha * f
        correlations.append(_correlation(h))
    return correlations


def _correlation(h: Tensor) -> float:
    return torch.cosine_similarity(h[..., 0], h[..., 1], dim=-1).mean().item()


@experiment("residual_laws", Scale.BOOK)
def run(scale: Scale, seed: int, work: Workplace) -> Result:
    """Random residual stacks beside their laws: fidelity, gradients, two inputs (P2 thm 3.4).

    One seed. `off` is a difference from a law in units of its theoretical spread, at most 1 if the law holds.
    """
    search, square = search_laws(seed)
    forwards, fidelity_off = _forwards(seed)
    backwards, gradient_off, root_off = _backwards(seed)
    rectified = torch.relu(normal(seed, "rectified input", size=(1, 2048)))
    stranger = torch.relu(normal(seed, "stranger", size=(1, 2048)))
    states = rectified_stack(rectified, 8, seed)

    return Result(
        experiment="residual_laws",
        configuration={"width": WIDTH, "inputs": INPUTS, "depths": list(DEPTHS), "alpha of the gradients": 1.0},
        scale=scale,
        seed=seed,
        status=Status.FINISHED,
        figures={
            **forwards,
            **backwards,
            **{f"correlation {name}": simulate(name, seed) for name in NETWORKS},
            "off fidelity": fidelity_off,
            "off fidelity, search": search.max().item(),
            "off gradient": gradient_off,
            "rectified": cosines(states).tolist(),
        },
        controls={
            "off the squared law, search": square.max().item(),
            "off the root of the gradient law": root_off,
            "fidelity, branch ±h": fidelities("skip", 0.25, 16, seed, branch="sign")[-1],
            "rectified, another input": cosines(states, stranger).tolist(),
        },
    )


def _forwards(seed: int) -> tuple[dict[str, list[float]], float]:
    """ρ_L of every kind with a skip, scale of the branch and depth; and the largest distance from a law."""
    figures, off = {"fidelity bare": [fidelities("bare", 1.0, L, seed)[-1] for L in DEPTHS]}, []
    for scale, alpha in SCALES.items():
        for kind in ("skip", "pre-LN", "post-LN"):
            kept = [fidelities(kind, alpha(L), L, seed)[-1] for L in DEPTHS]
            law = [fidelity_law(kind, alpha(L), L).item() for L in DEPTHS]
            figures[f"fidelity {kind} {scale}"] = kept
            off += [abs(a - b) / fidelity_spread() for a, b in zip(kept, law, strict=True)]
    return figures, max(off)


def _backwards(seed: int) -> tuple[dict[str, list[float]], float, float]:
    """Gradients of every kind and corner at every depth; the largest distance from a law, the least from its root."""
    figures, off, root_off = {}, [], []
    for kind in KINDS:
        gains = [gradients(kind, 1.0, L, seed)[0] for L in DEPTHS]
        figures[f"gradient {kind}"] = gains

        for L, gain in zip(DEPTHS, gains, strict=True):
            law = gradient_law(kind, 1.0, L)[0].item()
            off.append(abs(math.log(gain / law)) / gradient_spread(L))
            if kind in ("skip", "pre-LN") and L > 2:  # at two layers a law and its root are too close
                root_off.append(abs(math.log(gain / math.sqrt(law))) / gradient_spread(L))

    for corner in ("bare", "norm", "residual", "residual_norm"):
        for gain in (1.0, math.sqrt(3)):  # √3: uniform weights of variance 1/width, where torch has 1/3
            sizes = [corner_gradients(corner, L, seed, gain=gain)[0] for L in DEPTHS]
            figures[Key(f"{corner} gain {gain:.3g}", "gradient")] = sizes
    return figures, max(off), min(root_off)


# Trained networks

TRAINED = ("transformer", "residual")  # with LayerNorm before each branch, and with none
FEW = 200  # tokens at which slopes are measured


@experiment("residual_angles", Scale.SMOKE, Scale.BOOK)
def run_angles(scale: Scale, seed: int, work: Workplace) -> Result:
    """How far trained residual layers turn the state, beside the worst case and the law of right angles (P2 thm 3.4).

    MODEL/rho: the cosine of the last state of an example with its input. kappa: |h_{ℓ+1} − h_ℓ|/|h_ℓ|, a value a layer.
    phi: Σ arcsin κ_ℓ, and κ above 1 counts as 1. law: Π(1 + κ_ℓ²)^(−1/2), if every branch were at right angles to state
    and input. All are means over the examples. slope: the largest slope of the feed-forward branch of each layer at 200
    tokens, a lower bound of its Lipschitz constant; slope_bound: an upper bound from the weights.
    """
    task = TASKS["images"][scale]
    data = task.load(seed)
    probe = data.test.take(slice(0, task.probe))
    measured = Measured()
    for kind in TRAINED:
        model, record = fit(kind, task, data, seed, work)
        run = look(model, probe) if record.status is not Status.DIVERGED else None
        if run is None or run.status is Status.DIVERGED:
            measured.diverged[kind] = record.stopped_at or record.step
            continue
        before = build(kind, task, data, seed)
        measured.made_by(record.commits)
        measured.figures |= named(kind, {"accuracy": record.accuracy} | angles(model, run))
        untrained = angles(before, look(before, probe))
        measured.controls |= named(kind, {f"untrained_{name}": value for name, value in untrained.items()})
    return measured.result("residual_angles", task, scale, seed)


def angles(model: Model, run: Trajectory) -> Figures:
    """All figures of `run_angles` but the accuracy."""
    blocks = [one.terms for one in model.equation.equations]
    return turned(run) | {
        "slope": [
            slope(branch, u + attention(u)) for (attention, branch), u in zip(blocks, run.states, strict=False)
        ],  # at what the network sees: attention has moved the tokens before
        "slope_bound": [slope_bound(branch) for _, branch in blocks],
    }


def turned(run: Trajectory) -> Figures:
    """rho, kappa, phi and law of `run_angles`."""
    states = [u.double().flatten(1) for u in run.states]
    kappa = torch.stack([(v - u).norm(dim=1) / u.norm(dim=1) for u, v in pairwise(states)])
    return {
        "rho": torch.cosine_similarity(states[-1], states[0], dim=1).mean().item(),
        "kappa": kappa.mean(dim=1).tolist(),
        "phi": kappa.clamp(max=1).arcsin().sum(dim=0).mean().item(),
        "law": (1 + kappa**2).rsqrt().prod(dim=0).mean().item(),
    }


def slope(branch: Term, u: Field) -> float:
    """The largest ‖∂branch/∂u‖ at the first tokens of u: a lower bound of its Lipschitz constant."""
    tokens = u.flatten(0, 1)[:FEW].unsqueeze(1)  # each a sequence of its own
    return norm2(jacobian(branch, tokens).squeeze(3).squeeze(1)).max().item()


def slope_bound(branch: Term) -> float:
    """An upper bound of the Lipschitz constant of FFN(u), from its weights, or of FFN(LN(u)): times max|g|/√ε."""
    if isinstance(branch, PreNorm):
        return slope_bound(branch.term) * (branch.norm.weight.abs().max() / math.sqrt(branch.norm.eps)).item()
    if not isinstance(branch, Reaction):
        raise TypeError(f"a feed-forward branch is wanted, not {type(branch).__name__}")
    return branch.constants().lipschitz
