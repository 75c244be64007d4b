"""`solve` beside torchdiffeq's fixed steps, forward and backward, and recomputed gradients beside a plain loop's.

The same steps of the same field: forward a small one, (1, 8, 4), whose cost is that of the calls; backward one of
(8, 128, 32) with a loss that sees every state: ours are a tuple, theirs one tensor. The gradients of the last rows are
those of attention and feed-forward, with a loss that sees the last state.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from harness import Row, compare, peak_memory, peer, spread
from torch import Tensor, nn

from pdelab import RK4, Euler, Interaction, MasterEquation, Reaction, solve

METHODS = {"euler": Euler(), "rk4": RK4()}
DEEP = 256


class Layer(nn.Module):
    """tanh(Wu + b)."""

    def __init__(self, width: int):
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(width, width)

    def forward(self, t: float, u: Tensor) -> Tensor:
        return torch.tanh(self.linear(u))


def differentiated(states: Callable[[Tensor], Sequence[Tensor]], u0: Tensor, f: nn.Module) -> list[Tensor]:
    """The gradients of the mean square of these states, by the start and by every weight."""
    start = u0.clone().requires_grad_()
    found = states(start)
    loss = sum(u.square().mean() for u in found) / len(found)
    return list(torch.autograd.grad(loss, [start, *f.parameters()]))


def rows(device: str, quick: bool) -> Iterator[Row]:
    torchdiffeq = peer("torchdiffeq")
    repeats = 3 if quick else 15

    def ours(f: Layer, u: Tensor, steps: int, method: str) -> Sequence[Tensor]:
        return solve(lambda u, t: f(t, u), u, steps=steps, dt=1 / steps, integrator=METHODS[method]).states

    def theirs(f: Layer, u: Tensor, steps: int, method: str) -> Sequence[Tensor]:  # all in one tensor
        return [torchdiffeq.odeint(f, u, torch.linspace(0, 1, steps + 1, device=device), method=method)]

    small, u = Layer(4).to(device), torch.randn(1, 8, 4, device=device)
    for method in METHODS:
        given = small, u, 64, method
        yield compare(
            f"64 steps of {method}, small field, forward",
            "torchdiffeq.odeint",
            torch.no_grad()(lambda given=given: torch.stack(ours(*given))),
            torch.no_grad()(lambda given=given: theirs(*given)[0]),
            target="≤ 1.0",
            repeats=repeats,
            device=device,
            agree=1e-5,  # its rk4 is the 3/8 rule
        )

    wide, u = Layer(32).to(device), torch.randn(8, 128, 32, device=device)
    for steps, target in ((64, "≤ 0.5"),) if quick else ((64, "≤ 0.5"), (DEEP, "≤ 0.03")):
        sides = [partial(lambda way, steps, u: way(wide, u, steps, "euler"), way, steps) for way in (ours, theirs)]
        yield compare(
            f"{steps} steps of euler, every state kept, forward and backward",
            "torchdiffeq.odeint",
            *[partial(differentiated, side, u, wide) for side in sides],
            target=target,
            repeats=3 if quick or steps == DEEP else repeats,
            device=device,
            agree=1e-4,
        )

    yield from recomputed(device, quick)


def recomputed(device: str, quick: bool) -> Iterator[Row]:
    steps, shape = (64, (2, 16, 32)) if quick else (DEEP, (8, 64, 32))
    torch.manual_seed(0)
    equation = MasterEquation(Interaction(32, 2), Reaction(32, 128)).to(device, torch.float64)
    u0 = torch.randn(shape, dtype=torch.float64).to(device)

    def loop(u: Tensor) -> Sequence[Tensor]:
        for n in range(steps):
            u = u + equation(u, n / steps) / steps
        return [u]

    def run(u: Tensor) -> Sequence[Tensor]:
        return [solve(equation, u, steps=steps, dt=1 / steps, keep=lambda u: None, recompute=True).final]

    ours, theirs = (partial(differentiated, way, u0, equation) for way in (run, loop))
    work = f"gradient through {steps} steps, recomputed: "
    options = {"target": "≤ 1.3", "repeats": 3 if quick else 7, "device": device}
    yield compare(work + "time", "the plain loop", ours, theirs, **options)

    error = max(((one - other).norm() / other.norm()).item() for one, other in zip(ours(), theirs(), strict=True))
    yield spread(work + "relative error", "1e-12", [error / 1e-12], "≤ 1", f"{error:.0e}")

    held = [peak_memory(side, device) for side in (ours, theirs)]
    note = f"{held[0] / 2**20:.0f} MB beside {held[1] / 2**20:.0f} MB"
    yield spread(work + "memory", "the plain loop", [held[0] / held[1]], "≤ 0.09", note)
