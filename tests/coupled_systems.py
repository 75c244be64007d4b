"""Small coupled systems that tests of the chapter and of its claims put questions to."""

import torch
from systems import seeded

from pdelab import coupled


def system(layers=3, *, dt=0.1, spread=0.4, width=3, steps=4, **options):
    """Three layers in float64 with diffusion, attention, a network and links, every weight of size `spread`."""

    def build():
        return coupled(width, layers, 1, 5, steps=steps, dt=dt, diffusion=0.02, strength=0.7, **options)

    return seeded(build, spread=spread).requires_grad_(False)


def layer_rate(made, u, block):
    """The rate of one layer as a function of its own state, the other layers as they are in u."""
    width = made.equation.terms[-1].width

    def rate(v):
        states = [v if place == block else state for place, state in enumerate(u.split(width, dim=-1))]
        return made.equation(torch.cat(states, dim=-1)).split(width, dim=-1)[block]

    return rate
