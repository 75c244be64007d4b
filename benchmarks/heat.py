"""The heat equation to a relative error of 1e-4: `Diffusion` beside py-pde's compiled stepper.

256 cells of [0, 1] with reflecting ends and three cosines, to t = 0.1, in float64. The peer takes 16,384 explicit Euler
steps, near the fewest that are stable, compiled by Numba; neither compiling nor setting up is counted. Ours takes one
step, exact or of Crank–Nicolson. Every error is that against the exact solution on the same grid.
"""

import logging
import math
from collections.abc import Callable, Iterator

import torch
from harness import Row, compare, peer
from torch import Tensor

from pdelab import CrankNicolson, Diffusion, MasterEquation, solve
from pdelab.field import laplacian_eigenvalues

CELLS, TIME, STEPS = 256, 0.1, 16_384
WAVES = {0: 1.0, 1: 0.8, 3: 0.5, 8: -0.3}  # amplitude of cos(kπx)
ERROR = 1e-4


def solution(t: float) -> Tensor:
    x = (torch.arange(CELLS, dtype=torch.float64) + 0.5) / CELLS
    rates = laplacian_eigenvalues(CELLS)
    return sum(a * torch.exp(rates[k] * t) * torch.cos(k * math.pi * x) for k, a in WAVES.items())


def stepper() -> Callable[[], Tensor]:
    """The peer's compiled steps alone."""
    pde = peer("pde")
    logging.getLogger("pde").setLevel(logging.ERROR)
    start = pde.ScalarField(pde.CartesianGrid([[0, 1]], CELLS), solution(0.0).numpy())
    solver = pde.EulerSolver(pde.DiffusionPDE(1.0, bc="auto_periodic_neumann"), backend="numba")
    advance = solver.make_stepper(start, TIME / STEPS)

    def run() -> Tensor:
        state = start.copy()
        advance(state, 0.0, TIME)
        return torch.from_numpy(state.data)

    return run


def error(found: Tensor) -> float:
    exact = solution(TIME)
    return ((found.flatten().cpu() - exact).abs().max() / exact.abs().max()).item()


def rows(device: str, quick: bool) -> Iterator[Row]:
    theirs, heat = stepper(), Diffusion(1.0)
    u0 = solution(0.0).reshape(1, CELLS, 1).to(device)

    def swept() -> Tensor:
        return solve(MasterEquation(heat), u0, steps=20, dt=TIME / 20, integrator=CrankNicolson()).final

    ways = {
        "exact, by the Fourier transform": (lambda: heat.exact(u0, TIME), "≤ 0.01"),
        "64 steps of Crank–Nicolson as one power of their symbol": (
            lambda: heat.implicit(u0, TIME / 64, order=2, steps=64),
            "≤ 0.05",
        ),
        "20 steps of Crank–Nicolson by solve": (swept, ""),
    }
    for name, (ours, target) in ways.items():
        errors = error(ours()), error(theirs())
        if max(errors) > ERROR:
            raise AssertionError(f"{name}: relative errors {errors}, more than {ERROR}")
        yield compare(
            f"heat equation, {CELLS} cells: {name}",
            "py-pde, compiled stepper alone",
            ours,
            theirs,
            target=target,
            repeats=3 if quick else 15,
            device=device,
            note=f"error {errors[0]:.0e} beside {errors[1]:.0e}",
        )
