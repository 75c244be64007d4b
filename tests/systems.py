"""Fields, terms, equations and models that several tests put the same questions to."""

import math

import torch
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from pdelab import (
    RK4,
    CorrectedStabilization,
    Coupling,
    CrankNicolson,
    Diffusion,
    Euler,
    ExponentialDiffusion,
    FeatureDiffusion,
    Heun,
    ImplicitDiffusion,
    Interaction,
    Layered,
    LayerNormRate,
    LieEuler,
    MasterEquation,
    PreNorm,
    Reaction,
    SharedOutputInteraction,
    SideBySide,
    SpatialStabilization,
    Strang,
    simulator,
    transformer,
)
from pdelab.field import positions
from pdelab.models import VARIANTS
from pdelab.terms.base import Term
from pdelab.terms.reaction import GatedReaction

torch.set_num_threads(1)  # fields of a few numbers: a second thread would only be waited for

WIDTH = 4
INTEGRATORS = (Euler, Heun, RK4, LieEuler, Strang, CrankNicolson, ExponentialDiffusion, ImplicitDiffusion)


def field(batch=2, tokens=5, width=WIDTH, seed=0, dtype=torch.float64):
    return torch.randn(batch, tokens, width, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def seeded(build, seed=0, spread=0.0):
    """What build() makes, from one seed and in float64; spread moves every weight, also those that start at 0 or 1."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = build().double()
        for weight in module.parameters() if spread else ():
            weight.data = spread * torch.randn_like(weight) + (weight if weight.ndim == 1 else 0)
    return module


def without_double_on_the_device(monkeypatch):
    """Tensors can be made double only once they have been brought to the CPU, as if they were on MPS."""
    cpu, double = torch.Tensor.cpu, torch.Tensor.double

    def brought(x):
        x = cpu(x).clone()
        x.brought = True
        return x

    def precise(x):
        if not getattr(x, "brought", False):
            raise TypeError("the device has no float64")
        return double(x)

    monkeypatch.setattr(torch.Tensor, "cpu", brought)
    monkeypatch.setattr(torch.Tensor, "double", precise)


def wave(x, t):
    """A source g(x, t) that is different in every place, feature and time: (batch, token) → (batch, token, feature)."""
    feature = torch.arange(WIDTH, dtype=x.dtype, device=x.device)
    return torch.sin(3 * x.unsqueeze(-1) + t + feature)


MATRIX = torch.tensor(
    [[0.02, 0.01, 0.0, 0.0], [-0.01, 0.03, 0.0, 0.0], [0.0, 0.005, 0.01, 0.0], [0.0, 0.0, 0.002, 0.02]],
    dtype=torch.float64,
)
COEFFICIENTS = {
    "number": 0.03,
    "per feature": torch.tensor([0.01, 0.02, 0.0, 0.04], dtype=torch.float64),
    "matrix": MATRIX,
}

TERMS = {
    "interaction": lambda: Interaction(WIDTH, 2),
    "interaction with leak": lambda: Interaction(WIDTH, 1, leak=True, strength=0.7, bias=False),
    "causal interaction": lambda: Interaction(WIDTH, 2, causal=True),
    "interaction with shared output": lambda: SharedOutputInteraction(WIDTH, 3),
    "interaction with shared output, narrow": lambda: SharedOutputInteraction(
        WIDTH, 3, head_width=2, leak=False, causal=True, bias=True
    ),
    "interaction with rotary positions, grouped": lambda: Interaction(
        WIDTH, 2, groups=1, rotary=100.0, causal=True, bias=False
    ),
    "reaction": lambda: Reaction(WIDTH, 7, activation="gelu"),
    "reaction with a gate": lambda: GatedReaction(WIDTH, 7),
    "reaction with leak and source": lambda: Reaction(WIDTH, 7, activation="tanh", leak=True, source=wave),
    "diffusion, reflecting": lambda: Diffusion(COEFFICIENTS["number"]),
    "diffusion, absorbing, per feature": lambda: Diffusion(COEFFICIENTS["per feature"], "absorbing"),
    "diffusion, periodic, matrix": lambda: Diffusion(MATRIX, "periodic"),
    "diffusion over features, reflecting": lambda: FeatureDiffusion(COEFFICIENTS["number"]),
    "spatial stabilization": lambda: SpatialStabilization(0.8),
    "spatial stabilization, γ(x, t)": lambda: SpatialStabilization(lambda x, t: 1 + 0.5 * torch.cos(3 * x + t)),
    "corrected stabilization": lambda: CorrectedStabilization(0.8),
    "LayerNorm rate": lambda: LayerNormRate(WIDTH, 0.8),
    "RMSNorm rate": lambda: LayerNormRate(WIDTH, 0.8, centre=False),
    "interaction of the normalised field": lambda: PreNorm(Interaction(WIDTH, 2), WIDTH),
    "reaction of the normalised field": lambda: PreNorm(Reaction(WIDTH, 7, activation="tanh"), WIDTH),
    "reaction of the field normalised by its size": lambda: PreNorm(GatedReaction(WIDTH, 7), WIDTH, centre=False),
    "coupling of two layers": lambda: Coupling(WIDTH // 2, 2),
    "coupling with both ends": lambda: Coupling(WIDTH // 2, 2, inflow=True, outflow=True),
    "interaction in each of two layers": lambda: SideBySide([Interaction(WIDTH // 2) for _ in range(2)], WIDTH // 2),
    "reaction in the first of two layers": lambda: SideBySide([Reaction(WIDTH // 2, 5), None], WIDTH // 2),
}


def term(name):
    return seeded(TERMS[name], spread=0.5)


def equation(seed=0):
    """A + R + D + S, smooth and with a source that changes in time: every integrator can run it."""
    return seeded(
        lambda: MasterEquation(
            Interaction(WIDTH, 2),
            Reaction(WIDTH, 6, activation="tanh", leak=True, source=wave),
            Diffusion(0.02),
            SpatialStabilization(0.8, eps=1.0),
        ),
        seed,
        spread=0.5,
    )


def layered(layers=3, dt=0.1, interpolation="constant"):
    return Layered([equation(seed) for seed in range(layers)], dt, interpolation)


MODELS = {
    f"transformer, {norm} norm": lambda norm=norm: transformer(WIDTH, 2, 2, 6, norm=norm)
    for norm in ("pre", "post", "none")
}
MODELS |= {
    "causal transformer, final norm": lambda: transformer(WIDTH, 2, 2, 6, causal=True, final_norm=True, dt=0.5),
    "transformer, shared weights": lambda: transformer(WIDTH, 3, 2, 6, shared=True, activation="gelu"),
}
MODELS |= {f"simulator, {variant}": lambda variant=variant: simulator(variant, WIDTH, 3, 2, 6) for variant in VARIANTS}


def model(name):
    return seeded(MODELS[name], spread=0.4)


SEQUENCES = (field(1, 6, seed=1), field(1, 4, seed=2), field(1, 1, seed=3), field(1, 4, seed=4))
STARTS = (0, 2, 3, 1)  # nothing before, then padding before and after


def padded(sequences=SEQUENCES, starts=STARTS, tokens=7, fill=math.nan):
    """The sequences as one batch, `fill` where no token is: (batch, tokens, feature) and (batch, tokens)."""
    u = torch.full((len(sequences), tokens, sequences[0].shape[-1]), fill, dtype=sequences[0].dtype)
    mask = torch.zeros(u.shape[:2], dtype=torch.bool)
    for row, (sequence, start) in enumerate(zip(sequences, starts, strict=True)):
        u[row, start : start + sequence.shape[1]] = sequence[0]
        mask[row, start : start + sequence.shape[1]] = True
    return u, mask


def assert_padding_changes_nothing(together, mask, alone, *, atol=1e-12):
    """`together` is what came of the padded batch, `alone` one result for each sequence by itself."""
    for row, one in enumerate(alone):
        torch.testing.assert_close(together[row, mask[row]], one[0], rtol=0, atol=atol)
    assert (together[~mask] == 0).all()


def matrix_of(f, tokens, width):
    """The matrix of a linear map of fields, one unit field at a time: (token · feature, token · feature)."""
    size = tokens * width
    columns = torch.eye(size, dtype=torch.float64).reshape(size, tokens, width)
    return f(columns).reshape(size, size).T


def observed_order(error, steps):
    """Minus the slope of log error over log steps, by least squares."""
    x = torch.log(torch.tensor(steps, dtype=torch.float64))
    y = torch.log(torch.tensor([error(n) for n in steps], dtype=torch.float64))
    return -((x - x.mean()) @ (y - y.mean()) / ((x - x.mean()) @ (x - x.mean()))).item()


class Mixing(Term):
    """M u_i: linear, in the features of each token."""

    symbol = "M"

    def __init__(self, matrix):
        super().__init__()
        self.matrix = matrix

    def forward(self, u, t=0.0, mask=None):
        return u @ self.matrix.to(u).T


class Potential(Term):
    """V(x_i) u_i with V = cos πx: linear, at each token, and it does not commute with diffusion."""

    symbol = "V"

    def forward(self, u, t=0.0, mask=None):
        return torch.cos(math.pi * positions(u, mask)).unsqueeze(-1) * u


def fields(width=None):
    """Any field of moderate size, constant and zero ones among them."""
    shapes = st.tuples(st.integers(1, 3), st.integers(1, 7), st.just(width) if width else st.integers(1, 5))
    numbers = st.floats(-10, 10).map(lambda x: 0.0 if abs(x) < 1e-6 else x)
    return arrays("float64", shapes, elements=numbers).map(torch.from_numpy)
