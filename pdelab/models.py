"""embed → solve → readout: the Transformer and the papers' simulators as one kind of model.

A Transformer is `solve` over layers with Δt = 1 and the integrator LieEuler, which sweeps through the terms of a layer
one after the other. Nothing else is needed: every state is in the Trajectory.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from pdelab.equation import Layered, MasterEquation
from pdelab.field import (
    Field,
    Mask,
    check_boundary,
    check_number,
    check_state,
    described,
    keep_real,
    token_mean,
)
from pdelab.integrators import Euler, Integrator, LieEuler
from pdelab.options import choose, flags, instance, positive, whole
from pdelab.seeds import seeded
from pdelab.solver import OURS, Status, Trajectory, solve
from pdelab.terms.coupling import Coupling, SideBySide
from pdelab.terms.diffusion import Diffusion
from pdelab.terms.interaction import Interaction
from pdelab.terms.reaction import ACTIVATIONS, Reaction, Rectified
from pdelab.terms.stabilization import LayerNormRate, PreNorm


class Embedding(nn.Module):
    """u(x, 0) = E(x) + P(x): what a token holds plus where it stands, both learned.  (P2 eq 2)

    E is a table of `symbols` for tokens (batch, token), or a linear map of `features` for (batch, token, feature). With
    the table the entries of u₀ begin as N(0, 1), half of the variance from the symbol and half from the place.
    """

    def __init__(self, width: int, length: int, *, symbols: int | None = None, features: int | None = None):
        super().__init__()
        if (symbols is None) == (features is None):
            raise ValueError(f"give symbols or features, one of the two; not {symbols} and {features}")
        width, length = whole("width", width), whole("length", length)
        for name, value in (("symbols", symbols), ("features", features)):
            if value is not None:
                whole(name, value)
        self.symbols, self.features = symbols, features
        self.content = nn.Embedding(symbols, width) if features is None else nn.Linear(features, width)
        self.places = nn.Parameter(torch.randn(length, width) / 2**0.5)
        if features is None:
            with torch.no_grad():
                self.content.weight.mul_(0.5**0.5)

    def forward(self, x: Tensor) -> Field:
        if self.features is not None:
            check_state(x, width=self.features, weights=self.content.weight, name="x")
        elif not isinstance(x, Tensor) or x.ndim != 2 or x.dtype not in (torch.int32, torch.int64) or not x.numel():
            raise ValueError(f"x must be (batch, token) of whole numbers, none of them 0; not {described(x)}")
        if x.shape[1] > len(self.places):
            raise ValueError(f"x must have at most {len(self.places)} tokens, the length this was built for")
        try:
            return self.content(x) + self.places[: x.shape[1]]  # (batch, token, width)
        except IndexError as error:  # on the CPU; a GPU has words of its own
            raise ValueError(f"x must hold symbols 0 to {self.symbols} − 1; it has {x.min()} to {x.max()}") from error


class Model(nn.Module):
    """x → embed → u(0) → solve → u(T) → final norm → readout; each of embed, norm and readout may be absent.

    With pool=True the readout sees the mean over the real tokens, (batch, feature): a classifier. Else every token.

    | what | shape |
    |---|---|
    | x, without embed | (batch, token, feature) |
    | mask | (batch, token), True where a token is real |
    | trajectory(x).states | steps + 1 fields (batch, token, feature) |
    """

    def __init__(
        self,
        equation: MasterEquation | Layered,
        *,
        steps: int,
        dt: float,
        integrator: Integrator,
        embed: nn.Module | None = None,
        norm: nn.Module | None = None,
        readout: nn.Module | None = None,
        pool: bool = False,
    ):
        super().__init__()
        self.equation = instance("equation", equation, *OURS)
        self.integrator = instance("integrator", integrator, Integrator)
        self.steps, self.dt = whole("steps", steps), positive("dt", dt)
        for name, part in (("embed", embed), ("norm", norm), ("readout", readout)):
            instance(name, part, nn.Module, type(None))
        flags(pool=pool)
        self.embed, self.norm, self.readout, self.pool = embed, norm, readout, pool

    def trajectory(
        self,
        x: Tensor,
        mask: Mask | None = None,
        *,
        keep: Callable[[Field], Any] | None = None,
        attention: bool = False,
        throw: bool = False,
    ) -> Trajectory:
        """Every state from the embedding to the output, steps + 1 of them; the last has passed the final norm."""
        return self._solve(self._start(x, mask), mask, keep, attention, throw)

    def _start(self, x: Tensor, mask: Mask | None) -> Field:
        if self.embed is not None:
            return self.embed(x)
        check_state(x, mask, weights=next(self.parameters(), None), name="x")
        return x

    def _solve(
        self, u0: Field, mask: Mask | None, keep: Callable | None, attention: bool = False, throw: bool = False
    ) -> Trajectory:
        run = solve(
            self.equation,
            u0,
            steps=self.steps,
            dt=self.dt,
            integrator=self.integrator,
            mask=mask,
            keep=keep,
            attention=attention,
            throw=throw,
        )
        if self.norm is None or run.status is Status.DIVERGED:  # the norm stands at the end of the depth
            return run
        final = keep_real(self.norm(run.final), mask)
        return replace(run, states=(*run.states[:-1], keep(final) if keep else final), final=final)

    def forward(self, x: Tensor, mask: Mask | None = None) -> Tensor:
        """The output; NaN if the run diverged, so that no loss is computed from the last state that was finite."""
        u0 = self._start(x, mask)
        # a field that is not finite is refused by solve, but an embedding that training drove there is a divergence
        lost = self.embed is not None and not u0.is_meta and not torch.isfinite(u0).all()
        run = None if lost else self._solve(u0, mask, lambda u: None)
        final = run.final if run and run.status is Status.FINISHED else torch.full_like(u0, torch.nan)
        if self.pool:
            final = token_mean(final, mask).squeeze(1)  # (batch, feature)
        return self.readout(final) if self.readout is not None else final

    def layers(self) -> dict[str, nn.Module]:
        """embed, layer 1 … layer L (or `layers`, if all share their weights), readout: what has weights of its own."""
        stack = self.equation.equations if isinstance(self.equation, Layered) else [self.equation]
        names = [f"layer {n}" for n in range(1, len(stack) + 1)] if len(stack) == self.steps else ["layers"]
        parts = {"embed": self.embed, **dict(zip(names, stack, strict=True)), "norm": self.norm}
        parts["readout"] = self.readout
        return {name: part for name, part in parts.items() if part is not None and list(part.parameters())}


def with_ends(
    core: Model,
    width: int,
    *,
    outputs: int,
    length: int,
    symbols: int | None = None,
    features: int | None = None,
    pool: bool = True,
    seed: int = 0,
) -> Model:
    """The core between a learned embedding and a linear readout: a classifier; pool=False: one answer a token.

    What the core itself does to its first and last state, as `coupled` does, stays inside.
    """

    instance("core", core, Model)
    flags(pool=pool)
    outputs = whole("outputs", outputs)

    def ends() -> tuple[Embedding, nn.Linear]:
        return Embedding(width, length, symbols=symbols, features=features), nn.Linear(width, outputs)

    embed, readout = seeded(ends, seed)
    embed = embed if core.embed is None else nn.Sequential(embed, core.embed)
    readout = readout if core.readout is None else nn.Sequential(core.readout, readout)
    return Model(
        core.equation,
        steps=core.steps,
        dt=core.dt,
        integrator=core.integrator,
        embed=embed,
        norm=core.norm,
        readout=readout,
        pool=pool,
    )


def _layers(
    build: Callable[[], MasterEquation], depth: int, dt: float, shared: bool, seed: int
) -> MasterEquation | Layered:
    """One equation for all steps (an autonomous PDE) or one for each (a Transformer), from one seed."""
    return seeded(lambda: build() if shared else Layered([build() for _ in range(depth)], dt), seed)


def transformer(
    width: int,
    depth: int,
    heads: int,
    hidden: int,
    *,
    norm: str = "pre",
    activation: str = "relu",
    causal: bool = False,
    dt: float = 1.0,
    shared: bool = False,
    final_norm: bool = False,
    seed: int = 0,
) -> Model:
    """A stack of Transformer blocks.

    norm="pre":   u ← u + Δt A(LN u),      u ← u + Δt R(LN u)
    norm="post":  u ← LN(u + Δt A(u)),     u ← LN(u + Δt R(u)):  the terms A, S, R, S with S = (LN(u) − u)/Δt
    norm="none":  u ← u + Δt A(u),         u ← u + Δt R(u)

    Δt = 1 is the usual Transformer; Δt = T/depth the one that has a limit as depth grows.
    """

    depth = whole("depth", depth, most=10**4)
    positive("dt", dt)
    flags(shared=shared, final_norm=final_norm)

    def build() -> MasterEquation:
        attention = Interaction(width, heads, causal=causal)
        reaction = Reaction(width, hidden, activation=activation)
        blocks = {
            "pre": lambda: (PreNorm(attention, width), PreNorm(reaction, width)),
            "post": lambda: (attention, LayerNormRate(width, 1 / dt), reaction, LayerNormRate(width, 1 / dt)),
            "none": lambda: (attention, reaction),
        }
        return MasterEquation(*choose("norm", norm, blocks)())

    equation = _layers(build, depth, dt, shared, seed)
    last = nn.LayerNorm(width) if final_norm else None
    return Model(equation, steps=depth, dt=dt, integrator=LieEuler(), norm=last)


# The papers leave the simulator open. Each variant: (Δt as a function of depth, integrator, one layer), the layer by
# its terms or, where a paper prints the whole equation, by the name of that.
VARIANTS: dict[str, tuple[Callable[[int], float], type[Integrator], tuple[str, ...] | str]] = {
    "printed": (lambda depth: 1 / depth, Euler, "P2 eq 4"),
    "bare": (lambda depth: 1.0, LieEuler, ("A-u", "R-u")),
    "residual": (lambda depth: 1.0, LieEuler, ("A", "R")),
    "norm": (lambda depth: 1.0, LieEuler, ("A-u", "LN", "R-u", "LN")),
    "residual_norm": (lambda depth: 1.0, LieEuler, ("A", "LN", "R", "LN")),
    "earlier": (lambda depth: 1 / depth, Euler, "P1 eq 1"),
    "diffusion_only": (lambda depth: 1 / depth, Euler, ("D",)),
    "linear": (lambda depth: 1.0, LieEuler, ("L-u",)),
}


def simulator(
    variant: str,
    width: int,
    depth: int,
    heads: int,
    hidden: int,
    *,
    diffusion: float = 1e-4,
    stabilization: float = 1.0,
    boundary: str = "reflecting",
    activation: str = "relu",
    shared: bool = False,
    seed: int = 0,
) -> Model:
    """The papers' PDE simulator in one of its readings, named in every table that uses it.

    printed: A + R + D + S of P2 eq 4-9, each −u included, Euler on the sum, Δt = 1/depth
    bare: no residual, no LayerNorm: u ← Att(u), u ← FFN(u); norm: the same, each followed by LayerNorm
    residual: u ← u + Att(u), u ← u + FFN(u); residual_norm: the same, each followed by LayerNorm, a Transformer
    earlier: P1 eq 1, D∂²u + A + R; diffusion_only: D∂²u alone, P1 §3.1 (both Euler, Δt = 1/depth)
    linear: u ← max(Wu + b, 0), the linear layers with ReLU that P1 §3.3.2 and §3.4.2 describe; no token sees another
    """
    step, integrator, layer = choose("variant", variant, VARIANTS)
    depth = whole("depth", depth, most=10**4)
    for name, value in (("width", width), ("heads", heads), ("hidden", hidden)):
        whole(name, value)  # also where the variant does not use it
    check_number("diffusion", diffusion, shape=(width, width))
    check_number("stabilization", stabilization, 0)
    check_boundary(boundary)
    choose("activation", activation, ACTIVATIONS)
    flags(shared=shared)
    sizes, options = (width, heads, hidden), {"diffusion": diffusion, "boundary": boundary, "activation": activation}
    presets = {
        "P2 eq 4": lambda: MasterEquation.later(*sizes, **options, stabilization=stabilization),
        "P1 eq 1": lambda: MasterEquation.earlier(*sizes, **options),
    }
    build_term = {
        "A": lambda: Interaction(width, heads),
        "A-u": lambda: Interaction(width, heads, leak=True),
        "R": lambda: Reaction(width, hidden, activation=activation),
        "R-u": lambda: Reaction(width, hidden, activation=activation, leak=True),
        "L-u": lambda: Rectified(width),
        "D": lambda: Diffusion(diffusion, boundary),
        "LN": lambda: LayerNormRate(width),
    }
    build = presets.get(layer, lambda: MasterEquation(*(build_term[name]() for name in layer)))
    dt = step(depth)
    equation = _layers(build, depth, dt, shared, seed)
    return Model(equation, steps=depth, dt=dt, integrator=integrator())


class Lift(nn.Module):
    """u_0 ↦ (u_0, 0, …, 0): the input in the first of `layers` that stand side by side on the feature axis."""

    def __init__(self, width: int, layers: int):
        super().__init__()
        self.width, self.layers = whole("width", width), whole("layers", layers)

    def forward(self, u: Field) -> Field:
        check_state(u, width=self.width)
        return torch.cat([u, u.new_zeros(*u.shape[:-1], (self.layers - 1) * self.width)], dim=-1)


class Top(nn.Module):
    """(u_1, …, u_L) ↦ u_L: the last `width` features."""

    def __init__(self, width: int):
        super().__init__()
        self.width = whole("width", width)

    def forward(self, u: Tensor) -> Tensor:
        return u[..., -self.width :]


def coupled(
    width: int,
    layers: int,
    heads: int,
    hidden: int,
    *,
    steps: int,
    dt: float,
    diffusion: float | Sequence[float] = 1e-4,
    strength: float | Sequence[float] = 1.0,
    link: float = 1.0,
    inflow: bool = True,
    outflow: bool = True,
    boundary: str = "reflecting",
    activation: str = "relu",
    seed: int = 0,
) -> Model:
    """u_l' = D_l ∂²u_l + α_l A_l(u_l) + R_l(u_l) + C_{l−1,l}(u_{l−1}) − C_{l,l+1}(u_l), l = 1 … L.  (P1 eq 4/17, 20)

    In: u_0 (batch, token, width). Out: u_L at the end. Between: the layers side by side, `blocks` · width features.
    diffusion, strength: D_l and α_l, one number for all layers or one for each.
    link: every W of P1 eq 18-19 starts as link · identity and every b as 0; all are learned.
    inflow: u_0 is held beside the layers and feeds layer 1 through C_{0,1}, and all layers start at 0: L + 1 blocks.
    Without it C_{0,1} = 0, and u_0 is the initial value of layer 1: L blocks.
    outflow: the last layer gives C_{L,L+1}(u_L) away; without it that term is 0.
    """
    layers = whole("layers", layers, most=10**4)
    flags(inflow=inflow, outflow=outflow)
    if layers == 1 and not inflow:
        raise ValueError("one layer without inflow has nothing to exchange; use simulator('earlier', …)")
    each = {}
    for name, value in (("diffusion", diffusion), ("strength", strength)):
        each[name] = list(value) if isinstance(value, Iterable) else [value] * layers
        if len(each[name]) != layers:
            raise ValueError(f"{name} must be a number or one for each of the {layers} layers; not {value!r}")
        for one in each[name]:
            check_number(name, one)
    check_number("link", link, shape=())
    held = [None] if inflow else []
    blocks = layers + len(held)

    def equation() -> MasterEquation:
        exchange = Coupling(width, blocks, inflow=inflow, outflow=outflow)
        for affine in exchange.exchange:
            nn.init.eye_(affine.weight).data.mul_(link)
            nn.init.zeros_(affine.bias)
        parts = (
            [Diffusion(D, boundary) for D in each["diffusion"]],
            [Interaction(width, heads, strength=a) for a in each["strength"]],
            [Reaction(width, hidden, activation=activation) for _ in range(layers)],
        )
        return MasterEquation(*(SideBySide([*held, *terms], width) for terms in parts), exchange)

    ends = {"embed": Lift(width, blocks), "readout": Top(width)}
    return Model(seeded(equation, seed), steps=steps, dt=dt, integrator=Euler(), **ends)
