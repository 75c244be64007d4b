"""Every public name is called wrongly in every way its arguments allow: an error that names the argument, or a reason.

One good call of each stands in CALLS, its arguments by kind; the wrong ones follow from the kind. What is accepted
stands beside the argument with the reason. A new public name must be added here, or to UNCALLED with a reason.
"""

import copy
import importlib
import inspect
import math
import pkgutil
import re
import signal
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import pdelab
from pdelab import bottleneck, datasets, evaluation, integrators, models, seeds, training
from pdelab import field as grid
from pdelab.datasets import base, cache, characters, controls, images, listops, texts
from pdelab.datasets.listops_grammar import grammar_named
from pdelab.metrics import (
    angles,
    attention,
    budget,
    diffusivity,
    information,
    jacobian,
    outliers,
    similarity,
    spectrum,
    stability,
)
from pdelab.metrics import base as metrics
from pdelab.terms.reaction import GatedReaction

SECONDS = 5
SHARE = 0.95  # of the wrong calls, those whose error names the argument

BATCH, TOKENS, WIDTH = 2, 5, 4
U = torch.randn(BATCH, TOKENS, WIDTH, generator=torch.Generator().manual_seed(0))
V = U.flip(1)
RING = torch.rand(BATCH, 8, generator=torch.Generator().manual_seed(2))  # densities on a circle of 8 cells
MASK = torch.arange(TOKENS) < torch.tensor([[5], [3]])


# The kinds of arguments: a good value, and wrong ones by name


@dataclass(frozen=True)
class Argument:
    """may: names of wrong values that are accepted, each with the reason."""

    good: Any
    wrong: dict[str, Any]
    may: dict[str, str]


VISIBLE = "what is not finite stays so in the result: divergence is data"
FLAWED = {"nan": torch.nan, "inf": torch.inf}


def flawed(x: Tensor) -> dict[str, Tensor]:
    """x with one entry that is not finite."""
    found = {}
    for name, value in FLAWED.items():
        found[name] = x.clone()
        found[name].view(-1)[0] = value
    return found


def not_a_field(u: Tensor) -> dict[str, Any]:
    return {"integers": u.long(), "bool": u > 0, "complex": u.to(torch.complex64), "list": u.tolist(), "nothing": None}


def state(u: Tensor = U, *, inside: bool = False, like: bool = False, width: bool = False, **may: str) -> Argument:
    """A field. inside: may be a state of a run, which can be on its way to infinity; like: weights have its dtype."""
    wrong = {"rank 2": u[0], "rank 4": u.unsqueeze(0), "no tokens": u[:, :0], "no examples": u[:0]}
    wrong |= {"number": 3.0} | flawed(u) | not_a_field(u)
    wrong |= {"width": u[..., :-1]} if width else {}
    wrong |= {"width": u[..., :-1], "float64": u.double(), "device": u.to("meta")} if like else {}
    return Argument(u, wrong, (dict.fromkeys(FLAWED, VISIBLE) if inside else {}) | may)


def padding(mask: Tensor = MASK, **may: str) -> Argument:
    holes, none = mask.clone(), mask.clone()
    holes[0, 1], none[1] = False, False
    wrong = {"shape": mask[:, :-1], "rank 1": mask[0], "rank 3": mask.unsqueeze(-1), "batch": mask[:1]}
    wrong |= {"float": mask.float(), "long": mask.long(), "list": mask.tolist(), "holes": holes, "all padded": none}
    return Argument(mask, wrong | {"word": "mask", "true": True}, may)


def word(good: str, **may: str) -> Argument:
    return Argument(good, {"unknown": "no such word", "number": 3, "nothing": None, "list": [good]}, may)


def as_tensors(wrong: dict[str, Any]) -> dict[str, Tensor]:
    """The same in a tensor. The shape (3,) is neither that of one number nor of one for each of two examples."""
    return {f"tensor {name}": torch.tensor(value) for name, value in wrong.items()}


def size(good: int, least: int = 1, optional: bool = False, **may: str) -> Argument:
    wrong = {"below": least - 1, "negative": -1, "2.5": 2.5, "word": "3", "true": True, "nan": math.nan, "list": [good]}
    wrong |= {"inf": math.inf} | ({} if optional else {"nothing": None}) | {"huge": 10**12}
    wrong |= as_tensors({"below": least - 1, "2.5": 2.5, "truth": True, "shape": [good] * 3})
    return Argument(good, wrong, may)


def seed(**may: str) -> Argument:
    return Argument(0, {"2.5": 2.5, "word": "3", "nothing": None, "nan": math.nan, "list": [0]}, may)


def number(good: float, low: float | None = None, high: float | None = None, optional=False, **may: str) -> Argument:
    """low, high: what lies beyond is wrong; None: there is no such bound."""
    wrong = {"nan": math.nan, "inf": math.inf} | ({} if low is None else {"low": low})
    wrong |= {} if high is None else {"high": high}
    wrong |= as_tensors(wrong | {"truth": True, "complex": 1j, "shape": [good] * 3})
    wrong |= {"word": "a", "complex": 1j, "list": [good]} | ({} if optional else {"nothing": None})
    return Argument(good, wrong, may)


def positive(good: float, **may: str) -> Argument:
    return number(good, -1.0, **may)


def above_zero(good: float, **may: str) -> Argument:
    made = number(good, -1.0, **may)
    return Argument(good, made.wrong | {"zero": 0.0, "tensor zero": torch.tensor(0.0)}, made.may)


def function(good, *results: Any, optional: bool = False, graph: bool = False, **may: str) -> Argument:
    """A function; results: what it must not give; graph: it is differentiated."""
    wrong = {"number": 3, "word": "f"} | ({} if optional else {"nothing": None})
    wrong |= {f"gives {n}": lambda *args, given=given, **options: given for n, given in enumerate(results)}
    wrong |= {"detached": lambda *args: good(*args).detach(), "no graph": torch.no_grad()(good)} if graph else {}
    return Argument(good, wrong, may)


def thing(good: Any, optional: bool = False, **may: str) -> Argument:
    """Anything that must be of one class."""
    return Argument(good, {"number": 3, "word": "it"} | ({} if optional else {"nothing": None}), may)


def many(good: Any, **may: str) -> Argument:
    return Argument(good, {"empty": [], "numbers": [1, 2], "nothing": None, "number": 3}, may)


def cloud(t: Tensor, few: bool = False, **may: str) -> Argument:
    """Samples (sample, feature). few: one is enough."""
    wrong = {"rank 3": t.unsqueeze(0), "rank 0": t[0, 0], "empty": t[:0], "no feature": t[:, :0]} | flawed(t)
    wrong |= {"complex": t.to(torch.complex64), "list": t.tolist(), "nothing": None, "number": 3.0}
    return Argument(t, wrong | ({} if few else {"one": t[:1]}), may)


def classes(y: Tensor, paired: bool = True, **may: str) -> Argument:
    wrong = {"rank 3": y.reshape(1, 1, -1), "rank 0": y[0], "empty": y[:0], "nan": y.float() * torch.nan}
    wrong |= {"word": "labels", "number": 3} | ({"short": y[:-1]} if paired else {})
    return Argument(y, wrong, may)


def numbers(x: Tensor, *wrong_shapes: Tensor, **may: str) -> Argument:
    """A tensor of floats with a shape of its own: wrong shapes are given."""
    wrong = {f"shape {tuple(w.shape)}": w for w in wrong_shapes} | flawed(x) | not_a_field(x)
    return Argument(x, wrong | {"number": 3.0}, may)


@dataclass(frozen=True)
class Call:
    function: Any
    arguments: dict[str, Argument]
    plain: dict[str, Any]


def call(function, /, **arguments) -> Call:
    """Arguments that are no Argument are given as they are in every call."""
    kinds = {name: value for name, value in arguments.items() if isinstance(value, Argument)}
    return Call(function, kinds, {name: value for name, value in arguments.items() if name not in kinds})


# Things to call with


def heat() -> pdelab.MasterEquation:
    return pdelab.MasterEquation(pdelab.Diffusion(0.01))


def stack(interpolation: str = "constant") -> pdelab.Layered:
    layers = [pdelab.MasterEquation(pdelab.Interaction(WIDTH), pdelab.Diffusion(0.01)) for _ in range(2)]
    return pdelab.Layered(layers, 1.0, interpolation)


def double(u: Tensor, t: float = 0.0, mask: Tensor | None = None) -> Tensor:
    return 2 * u


def run(mask: Tensor | None = None, **options) -> pdelab.Trajectory:
    return pdelab.solve(heat(), U, steps=2, dt=0.1, mask=mask, **options)


SHAPES = (torch.ones(1, 1, 1), torch.ones(BATCH, TOKENS), 3.0, None)  # what a function of a field must not give
MAPS = torch.rand(BATCH, 2, TOKENS, TOKENS, generator=torch.Generator().manual_seed(1)).softmax(dim=-1)
MASKED = pdelab.Interaction(WIDTH, 2).weights(U, MASK).detach()
J = jacobian.jacobian(pdelab.Interaction(WIDTH, 2), U)
ENCODER = nn.TransformerEncoder(
    nn.TransformerEncoderLayer(WIDTH, 2, 8, batch_first=True), 2, enable_nested_tensor=False
)
SAMPLES = seeds.normal(0, "samples", size=(30, 2)).float()
OTHERS = SAMPLES @ torch.tensor([[1.0, 0.5], [0.0, 1.0]]) + seeds.normal(0, "others", size=(30, 2)).float()
LABELS = torch.arange(30) % 3
SCORES = seeds.normal(0, "scores", size=(6, 6)).float()
GRAMMAR = grammar_named("listops-16")

DIGITS = base.Dataset(
    "own digits",
    "own",
    base.Examples(torch.randn(8, TOKENS, 3, generator=seeds.stream(0)), torch.arange(8) % 2),
    base.Examples(torch.randn(4, TOKENS, 3, generator=seeds.stream(1)), torch.arange(4) % 2),
    classes=2,
)
TREES = listops.load("listops-16", train=30, test=10)
TEXT = characters.synthetic(train=8, test=4, length=6)


def classifier() -> models.Model:
    core = pdelab.transformer(WIDTH, 2, 2, 8)
    return models.with_ends(core, WIDTH, outputs=2, length=TOKENS, features=3)


def maps(P: Tensor = MAPS, **may: str) -> Argument:
    wrong = {"rank 3": P[0], "not square": P[..., :-1], "empty": P[:0], "not a softmax": 2 * P, "negative": -P}
    return Argument(P, wrong | flawed(P) | not_a_field(P), may)


def jac(**may: str) -> Argument:
    wrong = {"rank 4": J[0], "not square": J[..., :-1], "empty": J[:0], "no tokens": J[:, :0, :, :0]}
    return Argument(J, wrong | flawed(J) | not_a_field(J), may)


def given(**may: str) -> Argument:
    """What somebody else's model is called with."""
    wrong = {"number": 3.0, "word": "u", "list": U.tolist(), "nothing": None, "names": {"u": U}} | flawed(U)
    return Argument(U, wrong, may)


def in_order(module, inside=True, width=True, **arguments) -> Call:
    """A term, an equation or a model that is called with a field."""
    like = any(True for _ in module.parameters())
    return call(module, u=state(inside=inside, like=like, width=like), mask=padding(), **arguments)


def step(integrator) -> Call:
    rate = heat() if integrator not in (pdelab.Euler, pdelab.Heun, pdelab.RK4) else double
    wrong = () if rate is not double else SHAPES
    return call(
        integrator().step,
        rate=function(rate, *wrong),
        u=state(inside=True),
        t=0.0,
        dt=above_zero(0.1),
        mask=padding(),
    )


SIZES = {"width": size(WIDTH), "heads": size(2), "hidden": size(8)}
STEEP = {"eps": positive(1e-5)}
TRAINED = {"outputs": size(2), "length": size(TOKENS), "features": size(3, optional=True), "seed": seed()}
PAIR = {"u": state(), "v": state(V), "mask": padding()}
BINS = size(2, optional=True)
ANY_NUMBERS = dict.fromkeys(("integers", "bool", "complex"), "moved, not computed with")
SEEN = dict.fromkeys(FLAWED, VISIBLE)
ANY_KERNEL = dict.fromkeys(("not a softmax", "negative"), "the moment of any kernel") | SEEN
TIMES = number(0.0)
PER_FEATURE = dict.fromkeys(("list", "tensor shape"), "one per feature")
PER_EXAMPLE = {"tensor shape": "one per example, however many"}

CALLS = {
    # Terms: built, then called
    "pdelab.CorrectedStabilization": call(pdelab.CorrectedStabilization, strength=positive(1.0), **STEEP),
    "pdelab.CorrectedStabilization()": in_order(pdelab.CorrectedStabilization()),
    "pdelab.SpatialStabilization": call(pdelab.SpatialStabilization, strength=positive(1.0), **STEEP),
    "pdelab.SpatialStabilization()": in_order(pdelab.SpatialStabilization()),
    "pdelab.SpatialStabilization() of a function": call(
        lambda strength: pdelab.SpatialStabilization(strength)(U),
        strength=function(lambda x, t: x, SHAPES[0], *SHAPES[2:], number="the strength itself"),
    ),
    "terms.stabilization.normalised": call(
        importlib.import_module("pdelab.terms.stabilization").normalised,
        u=state(inside=True),
        eps=positive(1e-5),
        mask=padding(),
    ),
    "pdelab.LayerNormRate": call(pdelab.LayerNormRate, width=size(WIDTH), strength=positive(1.0), **STEEP),
    "pdelab.LayerNormRate()": in_order(pdelab.LayerNormRate(WIDTH)),
    "pdelab.PreNorm": call(pdelab.PreNorm, term=thing(pdelab.Interaction(WIDTH)), width=size(WIDTH), **STEEP),
    "pdelab.PreNorm()": in_order(pdelab.PreNorm(pdelab.Interaction(WIDTH), WIDTH)),
    "pdelab.PreNorm.weights": call(
        pdelab.PreNorm(pdelab.Interaction(WIDTH), WIDTH).weights, u=state(like=True), mask=padding()
    ),
    "pdelab.Coupling": call(pdelab.Coupling, width=size(2), layers=size(2, 2)),
    "pdelab.Coupling()": in_order(pdelab.Coupling(2, 2)),
    "pdelab.SideBySide": call(pdelab.SideBySide, terms=many([pdelab.Interaction(2), None]), width=size(2)),
    "pdelab.SideBySide()": in_order(pdelab.SideBySide([pdelab.Interaction(2), None], 2)),
    "pdelab.Diffusion": call(pdelab.Diffusion, coefficient=number(0.1, **PER_FEATURE), boundary=word("reflecting")),
    "pdelab.Diffusion of a matrix": call(
        pdelab.Diffusion,
        coefficient=numbers(torch.eye(2), torch.ones(1, 2), torch.ones(1, 1, 1), number="a number", list="a matrix"),
    ),
    "pdelab.Diffusion()": in_order(pdelab.Diffusion(0.1)),
    "pdelab.Diffusion() with a matrix": call(
        pdelab.Diffusion(torch.eye(WIDTH)), u=state(inside=True, width=True), mask=padding()
    ),
    "pdelab.Diffusion.exact": call(
        pdelab.Diffusion(0.1).exact, u=state(inside=True), dt=number(0.1, -1.0), mask=padding()
    ),
    "pdelab.Diffusion.implicit": call(
        pdelab.Diffusion(0.1).implicit,
        u=state(inside=True),
        dt=number(0.1, -1.0),
        mask=padding(),
        order=size(2),
        steps=size(3),
    ),
    "pdelab.Diffusion.largest_step": call(pdelab.Diffusion(0.1).largest_step, tokens=size(5)),
    "pdelab.FeatureDiffusion": call(
        pdelab.FeatureDiffusion, coefficient=number(0.1, **PER_FEATURE), boundary=word("periodic")
    ),
    "pdelab.FeatureDiffusion()": in_order(pdelab.FeatureDiffusion(0.1)),
    "pdelab.Interaction": call(
        pdelab.Interaction,
        width=size(WIDTH),
        heads=size(2),
        strength=number(1.0),
        groups=size(1, optional=True),
        rotary=number(1e4, -1.0, optional=True),
    ),
    "pdelab.Interaction() with rotary positions": in_order(pdelab.Interaction(WIDTH, 2, groups=1, rotary=1e4)),
    "terms.reaction.GatedReaction": call(GatedReaction, width=size(WIDTH), hidden=size(8), activation=word("silu")),
    "terms.reaction.GatedReaction()": in_order(GatedReaction(WIDTH, 8)),
    "pdelab.Interaction()": in_order(pdelab.Interaction(WIDTH, 2)),
    "pdelab.Interaction() causal": in_order(pdelab.Interaction(WIDTH, 2, causal=True)),
    "pdelab.Interaction.leaked": call(
        pdelab.Interaction(WIDTH, leak=True).leaked, u=state(inside=True), mask=padding()
    ),
    "pdelab.Interaction.weights": call(pdelab.Interaction(WIDTH, 2).weights, u=state(like=True), mask=padding()),
    "pdelab.Interaction.contraction": call(pdelab.Interaction(WIDTH, 2).contraction, diameter=positive(1.0)),
    "pdelab.Interaction.lipschitz": call(
        pdelab.Interaction(WIDTH, 2).lipschitz,
        length=positive(1.0),
        diameter=number(1.0, -1.0, optional=True),
        columns=number(1.0, 0.5),
    ),
    "pdelab.SharedOutputInteraction": call(
        pdelab.SharedOutputInteraction, width=size(WIDTH), heads=size(2), head_width=size(WIDTH, optional=True)
    ),
    "pdelab.SharedOutputInteraction()": in_order(pdelab.SharedOutputInteraction(WIDTH, 2)),
    "pdelab.Reaction": call(
        pdelab.Reaction,
        width=size(WIDTH),
        hidden=size(8),
        activation=word("relu"),
        source=function(lambda x, t: x.unsqueeze(-1).expand(-1, -1, WIDTH), optional=True),
    ),
    "pdelab.Reaction.constants": call(pdelab.Reaction(WIDTH, 8).constants, steps=size(5, least=0)),
    "pdelab.Reaction()": in_order(pdelab.Reaction(WIDTH, 8)),
    "pdelab.Reaction() with a source": call(
        lambda source: pdelab.Reaction(WIDTH, 8, source=source)(U),
        source=function(
            lambda x, t: x.unsqueeze(-1).expand(-1, -1, WIDTH), *SHAPES[1:], U[:, :2], V[..., :3], optional=True
        ),
    ),
    "terms.reaction.Rectified": call(importlib.import_module("pdelab.terms.reaction").Rectified, width=size(WIDTH)),
    "terms.reaction.Rectified()": in_order(importlib.import_module("pdelab.terms.reaction").Rectified(WIDTH)),
    # Equations
    "pdelab.MasterEquation": call(lambda terms: pdelab.MasterEquation(terms), terms=thing(pdelab.Diffusion(0.1))),
    "pdelab.MasterEquation of nothing": call(
        lambda terms: pdelab.MasterEquation(*terms), terms=Argument([pdelab.Diffusion(0.1)], {"empty": []}, {})
    ),
    "pdelab.MasterEquation()": in_order(stack().equations[0]),
    "pdelab.MasterEquation.rates": call(stack().equations[0].rates, u=state(inside=True, like=True), mask=padding()),
    "pdelab.MasterEquation.later": call(
        pdelab.MasterEquation.later,
        **SIZES,
        diffusion=number(0.1),
        stabilization=positive(1.0),
        boundary=word("reflecting"),
        activation=word("relu"),
    ),
    "pdelab.MasterEquation.earlier": call(
        pdelab.MasterEquation.earlier,
        **SIZES,
        diffusion=number(0.1),
        strength=number(1.0),
        source=function(double, optional=True),
        boundary=word("reflecting"),
        activation=word("relu"),
    ),
    "pdelab.Layered": call(
        pdelab.Layered, equations=many([heat(), heat()]), dt=above_zero(1.0), interpolation=word("constant")
    ),
    "pdelab.Layered()": in_order(stack(), t=TIMES),
    "pdelab.Layered() linear": in_order(stack("linear"), t=TIMES),
    "pdelab.Layered.at": call(stack().at, t=TIMES),
    "pdelab.Layered.rates": call(stack().rates, u=state(inside=True, like=True), mask=padding(), t=TIMES),
    # Integrators
    **{
        f"pdelab.{one.__name__}": step(one)
        for one in (
            pdelab.Euler,
            pdelab.Heun,
            pdelab.RK4,
            pdelab.LieEuler,
            pdelab.Strang,
            pdelab.CrankNicolson,
            pdelab.ExponentialDiffusion,
            pdelab.ImplicitDiffusion,
        )
    },
    "integrators.flow": call(integrators.flow, rate=lambda u: -u, u=U, steps=size(3), leak=number(0.0)),
    "integrators.terms_of": call(integrators.terms_of, rate=thing(heat()), t=0.0, integrator=pdelab.LieEuler()),
    # Solving
    "pdelab.solve": call(
        pdelab.solve,
        f=function(double, *SHAPES),
        u0=state(),
        steps=size(2),
        dt=above_zero(0.1),
        integrator=thing(pdelab.Euler(), optional=True),
        mask=padding(),
        keep=function(lambda u: u, optional=True),
    ),
    "pdelab.solve of an equation": call(
        pdelab.solve, f=heat(), u0=state(), steps=size(2), dt=above_zero(0.1), mask=padding()
    ),
    "pdelab.solve_density": call(
        pdelab.solve_density,
        rho0=numbers(RING, RING[0], RING[:0], RING[:, :3], RING.unsqueeze(0), -RING, 0 * RING),
        beta=positive(2.0),
        time=above_zero(0.1),
        v=number(-1.0),
        states=size(2),
        scheme=word("upwind"),
        dt=above_zero(0.1, nothing="the longest step that is safe"),
    ),
    "pdelab.solve of layers": call(
        pdelab.solve,
        f=stack(),
        u0=state(like=True),
        steps=size(2),
        dt=Argument(1.0, above_zero(1.0).wrong | {"layer 1 only": 0.5, "skips a layer": 2.0}, {}),
        mask=padding(),
        attention=True,
    ),
    "pdelab.Trajectory.of": call(
        pdelab.Trajectory.of,
        states=Argument(
            [U, V],
            many(None).wrong
            | {
                "one field": U,
                "shapes": [U, U[:1]],
                "lists": [U.tolist()],
                "integers": [U.long()],
                "nan": [U * math.nan],
            }
            | {"word": "states", "dtypes": [U, U.double()], "devices": [U, U.to("meta")]},
            {},
        ),
        mask=padding(),
        attention=Argument([MAPS], {"too many": [MAPS] * 2, "numbers": [3], "number": 3, "shape": [MAPS[0]]}, {}),
    ),
    "pdelab.Trajectory.at": call(run().at, t=number(0.1)),
    # Models
    "pdelab.transformer": call(
        pdelab.transformer,
        **SIZES,
        depth=size(2),
        norm=word("pre"),
        activation=word("relu"),
        dt=above_zero(1.0),
        seed=seed(),
    ),
    "pdelab.simulator": call(
        pdelab.simulator,
        variant=word("printed"),
        **SIZES,
        depth=size(2),
        diffusion=number(0.1),
        stabilization=positive(1.0),
        boundary=word("reflecting"),
        activation=word("relu"),
        seed=seed(),
    ),
    "pdelab.coupled": call(
        pdelab.coupled,
        **SIZES,
        layers=size(2),
        steps=size(2),
        dt=above_zero(0.1),
        diffusion=number(0.1),
        strength=number(1.0),
        link=number(1.0),
        boundary=word("reflecting"),
        activation=word("relu"),
        seed=seed(),
    ),
    "models.Model": call(
        models.Model, equation=thing(heat()), steps=size(2), dt=above_zero(0.1), integrator=thing(pdelab.Euler())
    ),
    "models.Model()": call(pdelab.transformer(WIDTH, 2, 2, 8), x=state(like=True), mask=padding()),
    "models.Model() with ends": call(
        classifier(),
        x=state(DIGITS.train.x[:2], inside=True, like=True, width=True),
        mask=padding(),
    ),
    "models.Model.trajectory": call(
        pdelab.transformer(WIDTH, 2, 2, 8).trajectory,
        x=state(like=True),
        mask=padding(),
        keep=function(lambda u: u, optional=True),
    ),
    "models.with_ends": call(
        models.with_ends, core=thing(pdelab.transformer(WIDTH, 2, 2, 8)), width=size(WIDTH), **TRAINED
    ),
    "bottleneck.with_bottleneck": call(
        bottleneck.with_bottleneck,
        core=thing(pdelab.transformer(WIDTH, 2, 2, 8)),
        width=size(WIDTH),
        size=size(2),
        **TRAINED,
    ),
    "models.Embedding": call(
        models.Embedding, width=size(WIDTH), length=size(TOKENS), symbols=size(3, optional=True), features=None
    ),
    "models.Embedding()": call(
        models.Embedding(WIDTH, TOKENS, features=3),
        x=state(DIGITS.train.x[:2], inside=True, like=True, width=True),
    ),
    "models.Embedding() of symbols": call(
        models.Embedding(WIDTH, TOKENS, symbols=3),
        x=Argument(
            torch.zeros(2, TOKENS, dtype=torch.long),
            {"too large": torch.full((2, TOKENS), 3), "negative": torch.full((2, TOKENS), -1), "floats": U[..., 0]}
            | {"rank 3": U.long(), "long": torch.zeros(2, 9, dtype=torch.long), "list": [[0]], "nothing": None}
            | {"bool": MASK, "no tokens": torch.zeros(2, 0, dtype=torch.long)},
            {},
        ),
    ),
    "models.Lift": call(models.Lift, width=size(2), layers=size(2)),
    "models.Lift()": call(models.Lift(WIDTH, 2), u=state(inside=True, width=True)),
    "models.Top": call(models.Top, width=size(2)),
    "bottleneck.Bottleneck": call(bottleneck.Bottleneck, width=size(WIDTH), size=size(2), outputs=size(2)),
    "bottleneck.channel": call(
        bottleneck.channel,
        model=thing(bottleneck.with_bottleneck(pdelab.transformer(4, 1, 2, 8), 4, 2, outputs=2, length=5, features=3)),
    ),
    "pdelab.from_torch": call(pdelab.from_torch, encoder=thing(ENCODER)),
    # The grid
    "pdelab.laplacian": call(pdelab.laplacian, u=state(inside=True), boundary=word("reflecting"), mask=padding()),
    "field.check_field": call(grid.check_field, u=state()),
    "field.check_mask": call(grid.check_mask, mask=padding(), u=U),
    "field.check_boundary": call(grid.check_boundary, boundary=word("periodic")),
    "field.lengths": call(
        grid.lengths, u=state(inside=True, nan="only shapes are read", inf="only shapes are read"), mask=padding()
    ),
    "field.token_mean": call(grid.token_mean, u=state(inside=True), mask=padding()),
    "field.centred": call(grid.centred, u=state(inside=True), mask=padding()),
    "field.mean_square": call(grid.mean_square, u=state(inside=True), mask=padding()),
    "field.keep_real": call(grid.keep_real, u=state(inside=True), mask=padding()),
    "field.positions": call(
        grid.positions, u=state(nan="only shapes are read", inf="only shapes are read"), mask=padding()
    ),
    "field.laplacian_eigenvalues": call(grid.laplacian_eigenvalues, n=size(5), boundary=word("reflecting")),
    "field.laplacian_modes": call(grid.laplacian_modes, n=size(5), boundary=word("reflecting")),
    # Metrics of states
    **{
        f"metrics.{module.__name__.split('.')[-1]}.{one.__name__}": call(one, u=state(), mask=padding())
        for module, names in (
            (stability, "state_rms spread diameter"),
            (spectrum, "power amplitude spectrum cumulative_energy"),
        )
        for one in (getattr(module, name) for name in names.split())
    },
    **{
        f"metrics.stability.{name}": call(getattr(stability, name), u=state(), mask=padding(), reduce=word("mean"))
        for name in ("energy", "mean_energy", "fluctuation", "nonuniformity")
    },
    "metrics.outliers.outliers": call(outliers.outliers, u=state(), mask=padding(), factor=number(1.1, 0.5)),
    **{
        f"metrics.spectrum.{one.__name__} in bins": call(one, u=U, bins=BINS)
        for one in (spectrum.power, spectrum.amplitude, spectrum.spectrum, spectrum.cumulative_energy)
    },
    "metrics.spectrum.spectral_similarity": call(spectrum.spectral_similarity, **PAIR, bins=BINS, over=word("series")),
    "metrics.similarity.cosine": call(
        similarity.cosine, **PAIR, centre=word("none"), over=word("token"), reduce=word("mean")
    ),
    "metrics.similarity.pearson": call(similarity.pearson, **PAIR, centre=word("none"), reduce=word("mean")),
    "metrics.similarity.spearman": call(similarity.spearman, **PAIR, centre=word("none"), reduce=word("mean")),
    "metrics.similarity.mse": call(similarity.mse, **PAIR, reduce=word("median")),
    "metrics.similarity.nmse": call(similarity.nmse, **PAIR),
    "metrics.similarity.cka": call(similarity.cka, **PAIR),
    "metrics.similarity.fidelity": call(
        similarity.fidelity, run=thing(run()), metric=function(similarity.cosine, 3.0, None)
    ),
    "metrics.similarity.inter_layer": call(
        similarity.inter_layer, run=thing(run()), metric=function(similarity.cosine, 3.0, None)
    ),
    "metrics.base.clean": call(metrics.clean, u=state(), mask=padding()),
    "metrics.base.clean_pair": call(metrics.clean_pair, **PAIR),
    "metrics.base.per_layer": call(
        metrics.per_layer,
        metric=function(similarity.mse, 3.0, None),
        run=thing(run()),
        other=thing(run(), optional=True),
        of=word("states"),
    ),
    "metrics.angles.third_cosine": call(
        angles.third_cosine, a=number(0.6, -2.0, 2.0), b=number(0.8, -2.0, 2.0), slack=positive(0.1)
    ),
    "metrics.stability.growth_towards_mean": call(
        stability.growth_towards_mean, f=function(double, *SHAPES), u=state(), mask=padding()
    ),
    "metrics.stability.growth_along": call(
        stability.growth_along, f=function(double, *SHAPES), run=thing(run()), towards=word("mean")
    ),
    "metrics.stability.basin_margin": call(
        stability.basin_margin, u=state(), strength=positive(1.0), growth=number(1.0), eps=positive(0.1), mask=padding()
    ),
    "metrics.stability.diameter_margin": call(
        stability.diameter_margin,
        u=state(),
        strength=positive(1.0),
        growth=number(1.0),
        eps=positive(0.1),
        mask=padding(),
    ),
    "metrics.stability.bounded_margin": call(
        stability.bounded_margin,
        strength=positive(1.0, **PER_EXAMPLE),
        value_sum=positive(1.0, **PER_EXAMPLE),
        network=positive(1.0, **PER_EXAMPLE),
        leak=positive(1.0, **PER_EXAMPLE),
    ),
    "metrics.stability.push_constants": call(
        stability.push_constants,
        tokens=size(4),
        values=positive(1.0, list="one per head"),
        columns=number(1.0, 0.5, optional=True, list="one per head"),
        network=positive(1.0),
        leak=positive(1.0),
    ),
    "metrics.stability.step_margin": call(
        stability.step_margin,
        dt=positive(0.1, **PER_EXAMPLE),
        strength=positive(1.0, **PER_EXAMPLE),
        lipschitz=positive(1.0, **PER_EXAMPLE),
        eps=positive(0.1, **PER_EXAMPLE),
        leak=positive(1.0, **PER_EXAMPLE),
    ),
    "metrics.stability.euler_factor": call(
        stability.euler_factor,
        u=state(),
        dt=positive(0.1),
        strength=positive(1.0),
        lipschitz=positive(1.0),
        eps=positive(0.1),
        leak=positive(1.0),
        mask=padding(),
        of=word("spread"),
    ),
    "metrics.stability.gradient_norms": call(
        stability.gradient_norms,
        groups=Argument(
            {"A": [U]}, {"one tensor": {"A": U}, "numbers": {"A": [3.0]}, "list": [U], "nothing": None, "number": 3}, {}
        ),
        normalise=word("whole"),
    ),
    "metrics.stability.state_gradients": call(
        stability.state_gradients, run=thing(run()), loss=thing(torch.ones((), requires_grad=True))
    ),
    "metrics.budget.budget": call(
        budget.budget,
        equation=thing(heat()),
        run=thing(run()),
        integrator=thing(pdelab.Euler()),
        centre=word("stage"),
        reduce=word("mean"),
    ),
    "metrics.budget.budget_of": call(
        budget.budget_of,
        steps=Argument(
            [[("A", U, U, 2 * U)]],
            {"nothing": None, "number": 3, "none": [], "no stages": [[]], "tensor": U, "no tuple": [[U]]}
            | {"open": [[("A", U, U, 3 * U)]], "shape": [[("A", V, U, U[:1])]], "integers": [[("A", U.long(), U, U)]]},
            {},
        ),
        mask=padding(),
        centre=word("stage"),
        reduce=word("mean"),
    ),
    # Metrics of maps and Jacobians
    "metrics.attention.entropy": call(
        attention.entropy, P=maps(MASKED), mask=padding(), heads=word("each"), reduce=word("mean")
    ),
    **{
        f"metrics.attention.{one.__name__}": call(
            one, P=maps(MASKED), Q=maps(MASKED.flip(1)), mask=padding(), heads=word("each"), reduce=word("mean")
        )
        for one in (attention.cosine, attention.kl)
    },
    "metrics.attention.uniform": call(
        attention.uniform,
        P=Argument(
            MAPS, {k: v for k, v in maps().wrong.items() if k not in ("nan", "inf", "negative", "not a softmax")}, {}
        ),
        mask=padding(),
    ),
    **{
        f"metrics.diffusivity.{one.__name__}": call(one, J=jac(**SEEN), mask=padding())
        for one in (diffusivity.diffusion_matrix, diffusivity.diffusivity)
    },
    **{
        f"metrics.diffusivity.{one.__name__}": call(one, J=jac(**SEEN))
        for one in (diffusivity.block_traces, diffusivity.symbol)
    },
    "metrics.diffusivity.largest_off_diagonal": call(diffusivity.largest_off_diagonal, J=jac()),
    "metrics.diffusivity.moment": call(
        diffusivity.moment,
        P=maps(MASKED, **ANY_KERNEL),
        order=size(2, 0),
        mask=padding(),
    ),
    "metrics.diffusivity.heat_gap": call(
        diffusivity.heat_gap, P=maps(MASKED), coefficient=positive(0.1), mask=padding()
    ),
    "metrics.diffusivity.attention_variance": call(
        diffusivity.attention_variance, P=maps(MASKED, **ANY_KERNEL), reading=word("moment"), mask=padding()
    ),
    "metrics.diffusivity.position_slope": call(
        diffusivity.position_slope, places=numbers(U[0], U, U[0, 0], U[0, :1], U[0, :, :0])
    ),
    "metrics.diffusivity.printed_diffusivity": call(
        diffusivity.printed_diffusivity,
        places=numbers(U[0], U, U[0, 0], U[0, :2]),
        J=jac(**SEEN),
        P=maps(MASKED, **ANY_KERNEL),
        reading=word("moment"),
        mask=padding(),
    ),
    **{
        f"metrics.jacobian.{one.__name__}": call(one, f=function(double, *SHAPES, graph=True), u=state())
        for one in (jacobian.jacobian, jacobian.influence)
    },
    "metrics.jacobian.jacobian with a mask": call(jacobian.jacobian, f=double, u=U, mask=padding()),
    "metrics.jacobian.logarithmic_norm": call(
        jacobian.logarithmic_norm,
        f=function(double, *SHAPES, graph=True),
        u=state(),
        mask=padding(),
        method=word("lanczos"),
        steps=size(3),
        seed=seed(),
    ),
    "metrics.jacobian.random_growth": call(
        jacobian.random_growth,
        f=function(double, *SHAPES, graph=True),
        u=state(),
        mask=padding(),
        draws=size(2),
        seed=seed(),
    ),
    "metrics.diffusivity.sampled_diffusivity": call(
        diffusivity.sampled_diffusivity,
        f=function(double, *SHAPES, graph=True),
        u=state(),
        mask=padding(),
        draws=size(2, 2),
        seed=seed(),
    ),
    "metrics.jacobian.derivative": call(
        jacobian.derivative,
        f=function(double, *SHAPES, graph=True),
        u=state(),
        direction=state(V, width=True),
        mask=padding(),
    ),
    "metrics.jacobian.lipschitz": call(
        jacobian.lipschitz,
        f=function(double, *SHAPES, graph=True),
        u=state(),
        mask=padding(),
        steps=size(3),
        seed=seed(),
        method=word("power"),
    ),
    # Information
    "metrics.information.entropy": call(information.entropy, y=classes(LABELS, paired=False), correction=word("none")),
    "metrics.information.discrete_information": call(
        information.discrete_information, x=classes(LABELS), y=classes(LABELS), correction=word("none")
    ),
    "metrics.information.bin_codes": call(
        information.bin_codes,
        t=cloud(SAMPLES, few=True),
        bins=size(3),
        limits=Argument(
            "layer",
            word("layer").wrong | {"one": (1.0,), "order": (1, 0), "nan": (0, math.nan), "words": ("a", "b")},
            {},
        ),
    ),
    "metrics.information.binned_information": call(
        information.binned_information, t=cloud(SAMPLES, few=True), y=classes(LABELS), bins=size(3), limits=word("unit")
    ),
    "metrics.information.per_unit_information": call(
        information.per_unit_information,
        t=cloud(SAMPLES, few=True),
        y=classes(LABELS),
        bins=size(3),
        limits=word("unit"),
    ),
    "metrics.information.ksg": call(information.ksg, x=cloud(SAMPLES), y=cloud(OTHERS), k=size(3), splits=size(2, 0)),
    "metrics.information.gaussian_information": call(
        information.gaussian_information,
        covariance=numbers(torch.eye(2), torch.ones(2), torch.ones(2, 3), torch.ones(0, 0), -torch.eye(2)[:, :]),
        split=size(1),
    ),
    "metrics.information.gaussian_channel": call(
        information.gaussian_channel,
        covariance=numbers(torch.eye(2), torch.ones(2), torch.ones(2, 3), torch.ones(0, 0), -torch.eye(2)[:, :]),
        noise=above_zero(1.0),
    ),
    "metrics.information.channel_bounds": call(
        information.channel_bounds, t=cloud(SAMPLES), noise=above_zero(1.0, optional=True)
    ),
    "metrics.information.channel_information": call(
        information.channel_information,
        t=cloud(SAMPLES),
        y=classes(LABELS),
        ratio=above_zero(1.0, optional=True),
        draws=size(2),
        seed=seed(),
    ),
    "metrics.information.noise_at_ratio": call(information.noise_at_ratio, t=cloud(SAMPLES), ratio=above_zero(1.0)),
    "metrics.information.permutation_test": call(
        information.permutation_test,
        estimator=function(information.ksg, U, None, "a", math.nan),
        x=cloud(SAMPLES),
        y=cloud(OTHERS),
        shuffles=size(2),
        seed=seed(),
    ),
    "metrics.information.rows": call(information.rows, u=state(), mask=padding(), of=word("mean")),
    "metrics.information.binary_divergence": call(
        information.binary_divergence, a=number(0.5, -1.0, 2.0), p=number(0.5, -1.0, 2.0)
    ),
    "metrics.information.largest_accuracy": call(
        information.largest_accuracy, information=positive(0.1), majority=number(0.5, 0.0, 2.0)
    ),
    "metrics.information.effective_dimension": call(
        information.effective_dimension, t=cloud(SAMPLES), kind=word("entropy")
    ),
    "metrics.information.sparsity": call(information.sparsity, t=cloud(SAMPLES, few=True), threshold=positive(0.0)),
    "metrics.information.magnitude": call(information.magnitude, t=cloud(SAMPLES, few=True)),
    "metrics.information.diversity": call(information.diversity, t=cloud(SAMPLES), kind=word("variance")),
    "metrics.information.usable_information": call(
        information.usable_information,
        t=cloud(SAMPLES),
        y=classes(LABELS),
        seed=seed(),
        folds=size(2, 2),
        strength=above_zero(1.0),
    ),
    **{
        f"metrics.information.{one.__name__}": call(
            one, **{name: numbers(SCORES, SCORES[0], SCORES[1:], SCORES[:1, :1], **SEEN)}
        )
        for one, name in (
            (information.infonce, "scores"),
            (information.club, "log_conditional"),
        )
    },
    "metrics.information.barber_agakov": call(
        information.barber_agakov, log_q=numbers(SCORES[0], SCORES, SCORES[0, :0], **SEEN), entropy=number(1.0)
    ),
    "metrics.information.printed_eq16": call(
        information.printed_eq16,
        log_conditional=numbers(SCORES[0], SCORES, SCORES[0, :0], **SEEN),
        log_marginal=numbers(SCORES[0], SCORES, SCORES[0, :0], **SEEN),
    ),
    "metrics.information.vib": call(
        information.vib,
        mean=numbers(SCORES, SCORES[0], SCORES[:0], **SEEN),
        log_variance=numbers(SCORES, SCORES[0], SCORES[1:], **SEEN),
    ),
    # Data
    "datasets.load": call(datasets.load, name=word("digits-rows")),
    "datasets.base.Examples": call(
        base.Examples,
        x=Argument(
            U,
            {
                "list": U.tolist(),
                "nothing": None,
                "rank 1": U[:, 0, 0],
                "rank 4": U.unsqueeze(1),
                "rows": U[:1],
                "complex": U.to(torch.complex64),
                "bool": U > 0,
            },
            {},
        ),
        y=Argument(
            LABELS[:2],
            {
                "list": [0, 1],
                "nothing": None,
                "floats": U[:, 0, 0],
                "rank 3": U.long(),
                "rows": LABELS[:3],
                "complex": U[:, 0, 0].to(torch.complex64),
            },
            {},
        ),
        mask=padding(),
    ),
    "datasets.base.Examples.batches": call(
        lambda size: list(DIGITS.train.batches(size)), size=size(3, huge="all at once")
    ),
    "datasets.base.Dataset": call(
        base.Dataset,
        name="own",
        source=word("own"),
        train=thing(DIGITS.train),
        test=thing(DIGITS.test),
        classes=size(2),
        symbols=size(3, optional=True),
    ),
    "datasets.base.shuffled_batches": call(
        base.shuffled_batches,
        examples=thing(DIGITS.train),
        size=size(2),
        seed=seed(),
        epoch=size(0, 0, huge="a long training"),
    ),
    "datasets.base.majority": call(base.majority, data=thing(DIGITS)),
    "datasets.controls.of": call(controls.of, data=thing(DIGITS)),
    "datasets.characters.sample": call(
        characters.sample, count=size(2), length=size(3), generator=thing(seeds.stream(0))
    ),
    "datasets.characters.synthetic": call(
        characters.synthetic, train=size(3), test=size(2), length=size(4), seed=seed()
    ),
    "datasets.characters.shakespeare": Call(characters.shakespeare, {"length": size(64)}, {}),
    "datasets.characters.load": call(characters.load, name=word("synthetic-characters")),
    "datasets.images.load": call(images.load, name=word("digits-rows"), test=size(3, optional=True)),
    "datasets.images.patches": call(
        images.patches, images=numbers(torch.ones(1, 4, 4), torch.ones(4, 4), **SEEN, **ANY_NUMBERS), side=size(2)
    ),
    "datasets.listops.load": call(
        listops.load, name=word("listops-16"), train=size(5, optional=True), test=size(3), seed=seed()
    ),
    "datasets.listops.generate": call(listops.generate, grammar=word("listops-16"), count=size(2), seed=seed()),
    "datasets.listops.seen": call(listops.seen, train=thing(TREES.train), test=thing(TREES.test)),
    "datasets.listops.features": call(listops.features, x=thing(TREES.train.x)),
    "datasets.listops.controls": call(listops.controls, data=thing(TREES)),
    "datasets.listops_grammar.Grammar": call(
        listops.Grammar,
        name="own",
        operators=Argument(
            ("MIN",), {"unknown": ("ADD",), "list": ["MIN"], "word": "MIN", "empty": (), "nothing": None}, {}
        ),
        max_depth=size(2),
        max_arguments=size(3, 2),
        min_length=size(1, 0, optional=True),
        max_length=size(9, optional=True),
        probability=number(0.25, 0.0, 1.0),
    ),
    "datasets.listops_grammar.grammar_named": call(grammar_named, grammar=word("listops-16")),
    **{
        f"datasets.listops_grammar.{one.__name__}": call(one, grammar=thing(GRAMMAR))
        for one in (listops.length_law, listops.acceptance, listops.mean_length)
    },
    "datasets.listops_text.evaluate": call(
        listops.evaluate, text=Argument("[MAX 1 2 ]", {"open": "[MAX 1", "empty": "", "nothing": None, "number": 3}, {})
    ),
    "datasets.listops_text.to_text": call(
        listops.to_text,
        row=Argument(
            TREES.train.x[0],
            {
                "too large": torch.tensor([99]),
                "nothing": None,
                "number": 3,
                "floats": torch.ones(3) / 2,
                "rank 2": TREES.train.x,
                "list": [1],
            },
            {},
        ),
    ),
    "datasets.texts.load": call(texts.load, name=word("synthetic-topics")),
    "datasets.texts.topics": call(texts.topics, train=size(3), test=size(3), seed=seed()),
    "datasets.texts.topics_information": call(texts.topics_information, share=number(0.2, -1.0, 2.0)),
    "datasets.texts.topics_bayes": call(texts.topics_bayes, data=thing(texts.topics(3, 3))),
    "datasets.texts.newsgroups": Call(texts.newsgroups, {"length": size(64), "words": size(64)}, {}),
    "datasets.texts.vocabulary": call(texts.vocabulary, texts=[["a"]], words=size(1)),
    "datasets.texts.encode": call(texts.encode, texts=many([["a"]]), numbers={"a": 2}, length=size(1)),
    "datasets.texts.tokenise": call(
        texts.tokenise, text=Argument("a b", {"nothing": None, "number": 3, "list": ["a"]}, {})
    ),
    "datasets.texts.body": call(texts.body, post=Argument("a\n\nb", {"nothing": None, "number": 3, "list": ["a"]}, {})),
    "datasets.cache.fetch": Call(cache.fetch, {"path": word("")}, {}),
    "datasets.cache.get": Call(cache.get, {"name": word("")}, {}),
    "datasets.cache.verify": Call(cache.verify, {"name": word("")}, {}),
    # Training
    "pdelab.Settings": call(
        pdelab.Settings,
        steps=size(3),
        batch=size(2),
        rate=above_zero(1e-3),
        warmup=size(1, 0),
        decay=word("cosine"),
        weight_decay=positive(0.01),
        clip=above_zero(1.0, optional=True),
        evaluate_every=size(1, optional=True),
        checkpoint_every=size(1),
        watch=Argument(
            (0, 2),
            {
                "half": (0.5,),
                "beyond": (9,),
                "words": ("a",),
                "number": 3,
                "word": "0",
                "bool": (True,),
                "nothing": None,
            },
            {},
        ),
        look=function(double, optional=True),
        objective=function(double, optional=True),
        penalty=function(double, optional=True),
    ),
    "pdelab.Place": call(
        lambda **given: training.choose_device(pdelab.Place(**given).device),
        device=word("cpu"),
        folder=Argument(None, {"number": 3, "list": []}, {}),
        progress=Argument(False, {"word": "yes", "negative": -1, "half": 0.5, "nothing": None}, {}),
    ),
    "training.choose_device": call(training.choose_device, device=word("cpu")),
    "pdelab.train": call(
        lambda **given: pdelab.train(**{"model": classifier()} | given, place=pdelab.Place(progress=False)),
        model=thing(classifier()),
        data=thing(DIGITS),
        settings=thing(pdelab.Settings(steps=1, batch=2)),
        seed=Argument(0, seed().wrong | {"negative": -1, "true": True}, {}),
    ),
    "pdelab.train with its own": call(
        lambda **given: pdelab.train(
            classifier(), DIGITS, pdelab.Settings(1, 2, watch=(0,), **given), seed=0, place=pdelab.Place(progress=False)
        ),
        look=function(lambda model: {"a": 1.0}, 3.0, None, {"a": "word"}, optional=True),
        objective=function(lambda model, batch: model(batch.x).sum(), 3.0, None, U, optional=True, graph=True),
        penalty=function(lambda model, batch: model(batch.x).sum(), 3.0, None, U, optional=True, graph=True),
    ),
    # Other people's models
    "pdelab.record": call(
        pdelab.record,
        model=thing(ENCODER),
        inputs=given(),
        mask=padding(),
        blocks=many(["layers.0", "layers.1"], nothing="found"),
        keep=function(lambda stages: stages, optional=True),
    ),
    "recording.Recording.layer": call(pdelab.record(ENCODER, U).layer, number=size(1, 0)),
    "recording.Recording.summed": call(
        pdelab.record(ENCODER, U).summed, number=size(1, 0), u=state(inside=True, width=True)
    ),
    "recording.Recording.again": call(
        pdelab.record(ENCODER, U).again,
        inputs=given(nothing="those recorded"),
        model=thing(ENCODER, True),
        mask=padding(),
    ),
    "recording.Recording.rewrite": call(
        pdelab.record(ENCODER, U).rewrite,
        write=function(lambda at, u, delta: u, *SHAPES[:-1], optional=True),
        step=function(lambda number, u, f: u, *SHAPES[:-1], optional=True),
        inputs=given(nothing="those recorded", **SEEN),
    ),
    "recording.Recording.gradients": call(
        pdelab.record(ENCODER, U).gradients, loss=function(lambda out: out.sum(), 3.0, None, U, graph=True)
    ),
    "pdelab.probe": call(
        lambda **given: pdelab.probe(
            **{"model": ENCODER, "inputs": U, "controls": (), "sampled": 0} | given, progress=False
        ),
        model=thing(ENCODER),
        inputs=given(),
        mask=padding(),
        blocks=many(["layers.0", "layers.1"], nothing="found"),
        loss=function(lambda out: out.sum(), 3.0, U, optional=True, graph=True),
        controls=many(["random"], empty="the network alone"),
        sampled=size(1, 0),
        seed=seed(),
    ),
    "pretrained.load": call(importlib.import_module("pdelab.pretrained").load, name=word("minilm")),
    "pretrained.untrained": call(
        importlib.import_module("pdelab.pretrained").untrained, name=word("minilm"), seed=seed()
    ),
    "evaluation.wilson": call(
        evaluation.wilson,
        successes=number(3.0, -1.0, 11.0),
        trials=size(10, huge="a count, no size"),
        z=above_zero(1.96),
    ),
    "evaluation.answer_loss": call(
        evaluation.answer_loss,
        logits=numbers(torch.zeros(8, 2), torch.zeros(8), torch.zeros(7, 2), torch.zeros(8, 1), **SEEN),
        batch=thing(DIGITS.train),
        classes=2,
    ),
    "evaluation.evaluate": call(
        evaluation.evaluate, model=thing(classifier()), examples=thing(DIGITS.test), batch=size(2, huge="all at once")
    ),
    "evaluation.watch": call(
        evaluation.watch,
        model=thing(classifier()),
        data=thing(DIGITS),
        step=0,
        look=function(lambda model: {"a": 1.0}, 3.0, {"a": "word"}, optional=True),
    ),
    "evaluation.device_of": call(evaluation.device_of, model=thing(classifier())),
    # Randomness
    "seeds.derive": call(lambda seed: seeds.derive(seed, "name"), seed=seed()),
    "seeds.stream": call(lambda seed: seeds.stream(seed, "name"), seed=seed()),
    "seeds.normal": call(
        lambda seed, size: seeds.normal(seed, "name", size=size),
        seed=seed(),
        size=Argument(
            (2, 3),
            {"huge": (10**12,), "negative": (-1,), "half": (2.5,), "words": ("a",), "nothing": None, "number": 3},
            {},
        ),
    ),
    "seeds.seeded": call(seeds.seeded, build=function(lambda: 1), seed=seed()),
}

# The good call would need the network, or a file that is not here
BAD_ONLY = {name for name in CALLS if name.startswith("datasets.cache.")}
BAD_ONLY |= {"datasets.characters.shakespeare", "datasets.texts.newsgroups", "metrics.stability.state_gradients"}
BAD_ONLY |= {"pretrained.load", "pretrained.untrained"}

# Public and not called, by its place in the library, with the reason; a place stands for all that is in it
UNCALLED = {
    "formulas": "unchecked on purpose, for flows and searches; terms and metrics are their checked faces",
    "options": "the checks themselves, in test_options",
    "files": "no field and no size: a path, of which the operating system speaks",
    "status": "a list of three words",
    "checkpoints": "files of a training, in test_training",
    "solver.Diverged": "an exception",
    "terms.base": "abstract; every term is called",
    "integrators.Integrator": "abstract; every integrator is called",
    "field.check_state": "the check itself, called by every term",
    "field.all_true": "a question to a tensor",
    "field.check_like": "the check itself, called by every term with weights",
    "field.check_number": "the check itself, called by every term with a strength",
    "field.same_shape": "the check itself, called wherever a function of a field is given",
    "field.described": "words for an error",
    "terms.interaction.rotated": "a formula, called by every term with rotary positions",
    "field.precise": "a tensor in another dtype",
    "field.first_token": "a mask alone, which others have checked",
    "metrics.base.real_places": "inside metrics, of what clean has checked",
    "metrics.base.no_fast_path": "a context without arguments",
    "metrics.base.unfused": "a context without arguments",
    "metrics.base.mean_where": "inside metrics, of what clean has checked",
    "metrics.base.mean_along": "inside metrics, of what clean has checked",
    "metrics.base.reduced": "inside metrics, which are called with each reduction",
    "metrics.base.each_example": "inside metrics, which are called with each reduction",
    "metrics.base.aligned": "inside metrics, of what clean has checked",
    "metrics.base.norm": "any tensor has one",
    "metrics.jacobian.products": "inside metrics, of what was checked; called by all that iterate on a Jacobian",
    "metrics.base.stacked": "the check itself",
    "metrics.attention.check_rows": "the check itself, called by every metric of maps",
    "metrics.attention.check_maps": "the check itself, called by every metric of maps",
    "metrics.budget.Budget": "a record",
    "metrics.outliers.Outliers": "a record",
    "metrics.diffusivity.Sampled": "a record",
    "metrics.jacobian.evaluated": "the check itself, called wherever a function of a field is differentiated",
    "metrics.stability.PushConstants": "a record",
    "metrics.information.estimate": "records and the checks themselves; rows and permutation_test are called",
    "metrics.information.channel.Bounds": "a record",
    "evaluation.Evaluation": "a record",
    "evaluation.Watched": "a record",
    "training.Training": "a record",
    "watching": "inside record and rewrite, of what they have checked",
    "layers": "the same",
    "tracing": "the same",
    "reading": "the same",
    "recording.At": "a record",
    "recording.Recording": "a record; its methods are called",
    "recording.one_number": "the check itself, called by gradients and probe",
    "probing.measured": "inside probe, of what it has checked",
    "probing.redrawn": "inside probe: a control of its model",
    "probing.permuted": "inside probe: a control of its model",
    "report": "what probe found, in test_probing",
    "pretrained.Pretrained": "texts for a tokenizer, in test_pretrained",
    "training.patience": "has no arguments",
    "training.group": "has no arguments",
    "training.of_first": "hands on anything",
    "datasets.names": "has no arguments",
    "datasets.characters.chain": "has no arguments",
    "datasets.characters.transition": "has no arguments",
    "datasets.characters.stationary": "has no arguments",
    "datasets.images.pixels": "a view of images that load has read",
    "datasets.images.rows": "a view of images that load has read",
    "datasets.images.standardised": "of images that load has read",
    "datasets.images.read_idx": "reads a file: DataDamaged or an OSError names it",
    "datasets.listops_text.read_tsv": "reads a file: a ValueError with the line, or an OSError, names it",
    "datasets.texts.read_posts": "reads a file: DataDamaged names it",
    "datasets.cache": "public files, in test_cache; fetch, get and verify are called",
}


class Hang(BaseException):
    """A call that does not come back."""


@contextmanager
def time_limit(seconds: float):
    def stop(number, frame):
        raise Hang

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def is_finite(result: Any) -> bool:
    """Whether every number in the result is finite."""
    if isinstance(result, Tensor):
        return bool(torch.isfinite(result).all())
    if isinstance(result, float):
        return math.isfinite(result)
    if is_dataclass(result):
        return all(is_finite(getattr(result, one.name)) for one in fields(result))
    if isinstance(result, dict):
        return is_finite(list(result.values()))
    return all(map(is_finite, result)) if isinstance(result, list | tuple) else True


def outcome(made: Call, name: str, label: str) -> tuple[str, str]:
    """named, unnamed, other, silent, hang or accepted; and the words of the error."""
    argument = made.arguments[name]
    given = {other: kind.good for other, kind in made.arguments.items()} | made.plain
    given[name] = argument.wrong[label]
    try:
        with time_limit(SECONDS):
            result = made.function(**given)
    except Hang:
        return "hang", ""
    except (ValueError, TypeError) as error:
        return ("named" if re.search(rf"\b{name}\b", str(error)) else "unnamed"), f"{type(error).__name__}: {error}"
    except Exception as error:
        return "other", f"{type(error).__name__}: {error}"
    reason = argument.may.get(label)
    if reason is None or (reason == VISIBLE and is_finite(result)):
        return "silent", repr(result)
    return "accepted", reason


WORST = ("hang", "silent", "other")


def wrong_calls() -> list[tuple[str, str, str]]:
    return [
        (place, name, label)
        for place, made in CALLS.items()
        for name, argument in made.arguments.items()
        for label in argument.wrong
    ]


def public() -> set[str]:
    """Every function and class of the library whose name has no underscore, by its place below pdelab."""
    found = set()
    for module in pkgutil.walk_packages(pdelab.__path__, "pdelab."):
        loaded = importlib.import_module(module.name)
        own = {name for name, value in vars(loaded).items() if getattr(value, "__module__", "") == module.name}
        found |= {
            f"{module.name}.{name}" for name in own if not name.startswith("_") and callable(getattr(loaded, name))
        }
    return {name.removeprefix("pdelab.") for name in found if "._" not in name}


def where(call: str) -> str:
    """The place of what is called: pdelab.Diffusion.exact → terms.diffusion.Diffusion."""
    parts = call.split(" ")[0].removesuffix("()").removeprefix("pdelab.").split(".")
    if parts[0] in pdelab._EXPORTS:
        return f"{pdelab._EXPORTS[parts[0]]}.{parts[0]}"
    if parts[:2] == ["metrics", "information"]:  # whose functions stand in files of their own
        return getattr(information, parts[2]).__module__.removeprefix("pdelab.") + f".{parts[2]}"
    return ".".join(parts)


def test_every_public_name_is_called_or_has_a_reason():
    called = {where(call) for call in CALLS}
    reasons = set()
    for place in public() - called:
        parts = place.split(".")
        reasons |= {".".join(parts[:n]) for n in range(1, len(parts) + 1)} & set(UNCALLED) or {f"none for {place}"}
    assert reasons == set(UNCALLED)
    assert {f"{module}.{name}" for name, module in pdelab._EXPORTS.items()} <= public()


@pytest.mark.parametrize("place", [place for place in CALLS if place not in BAD_ONLY])
def test_the_good_call_is_good(place):
    made = CALLS[place]
    made.function(**{name: argument.good for name, argument in made.arguments.items()} | made.plain)


def test_a_wrong_argument_is_refused_by_its_name(record_property):
    found = {wrong: outcome(CALLS[wrong[0]], *wrong[1:]) for wrong in wrong_calls()}
    counts = Counter(kind for kind, _ in found.values())
    refused = counts.total() - counts["accepted"]
    record_property("hostile calls", dict(counts))
    print(f"\n{counts.total()} wrong calls: {dict(counts)}; named {counts['named'] / refused:.1%} of {refused}")

    excused = {(place, name, label) for place, m in CALLS.items() for name, a in m.arguments.items() for label in a.may}
    assert excused == {key for key, (kind, _) in found.items() if kind == "accepted"}  # no reason outlives its case

    worst = [f"{' '.join(key)}: {kind} {words[:120]}" for key, (kind, words) in found.items() if kind in WORST]
    assert not worst, "\n" + "\n".join(worst)
    unnamed = [f"{' '.join(key)}: {words[:120]}" for key, (kind, words) in found.items() if kind == "unnamed"]
    assert counts["named"] >= SHARE * refused, "\n" + "\n".join(unnamed)


HALVES = (torch.float16, torch.bfloat16)
OF_FIELDS = [
    place
    for place, made in CALLS.items()
    if set(made.arguments) & {"u", "mask"} == {"u", "mask"} and made.arguments["u"].good.shape == U.shape
]


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("place", OF_FIELDS)
def test_half_precision_gives_what_single_precision_gives(place, half):
    """Fields, functions of fields and modules of one dtype; the results agree to a few of its roundings."""
    made = CALLS[place]
    given = {name: argument.good for name, argument in made.arguments.items()} | made.plain

    def result(dtype: torch.dtype) -> Any:
        halved = {n: x.to(half).to(dtype) if isinstance(x, Tensor) and x.ndim == 3 else x for n, x in given.items()}
        owner = getattr(made.function, "__self__", made.function)
        if not isinstance(owner, nn.Module):
            return made.function(**halved)
        other = copy.deepcopy(owner).to(half).to(dtype)
        function = other if owner is made.function else getattr(other, made.function.__name__)
        return function(**halved)

    rough, fine = (torch.cat([x.flatten().float() for x in tensors(result(d))]) for d in (half, torch.float32))
    assert torch.isfinite(rough).all()
    assert (rough - fine).abs().max() <= 30 * torch.finfo(half).eps * (1 + fine.abs().max())


def tensors(result: Any) -> list[Tensor]:
    if isinstance(result, Tensor):
        return [result]
    if is_dataclass(result):
        return [value for value in vars(result).values() if isinstance(value, Tensor)]
    values = result.values() if isinstance(result, dict) else result
    return [one for value in values for one in tensors(value)]


def flags_of(made: Call) -> list[str]:
    """The arguments that are True or False by default."""
    try:
        parameters = inspect.signature(made.function).parameters.values()
    except (TypeError, ValueError):  # built in
        return []
    return [one.name for one in parameters if isinstance(one.default, bool)]


FLAGS = [(place, name) for place, made in CALLS.items() for name in flags_of(made)]


@pytest.mark.parametrize(("place", "name"), FLAGS)
def test_a_flag_is_true_or_false_and_no_word(place, name):
    made = CALLS[place]
    good = {key: copy.deepcopy(one.good) for key, one in made.arguments.items()} | made.plain
    with pytest.raises(ValueError, match=f"{name} must be True or False; not 'no'"):
        made.function(**good | {name: "no"})


def test_the_flags_are_found():
    assert {name for _, name in FLAGS} >= {"causal", "leak", "bias", "shared", "pool", "attention", "throw"}
