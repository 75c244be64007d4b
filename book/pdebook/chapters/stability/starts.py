"""Where the searches of `attack` begin: states near those where averages, a network or a constant vector do most."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from pdebook.evidence.adversary import Start, over_and_over, over_decades
from pdebook.evidence.systems import MATRICES
from pdelab.formulas import centred, norm2, per_example, size

# Some systems attend to all alike, some sharply; in some the network rules, in some attention.
SYSTEM = {"u": "n d", **MATRICES}
WIDE = over_decades(-2, 1, *SYSTEM)


def leading(n: int, alone: float) -> Tensor:
    """Two leading tokens α, −α and the others at ±β, of mean zero and length 1; alone: the share 2α² of the two."""
    others = math.sqrt((1 - alone) / (n - 2)) if n > 2 else 0.0
    half = torch.tensor([math.sqrt(alone / 2), *[others] * (n // 2 - 1)], dtype=torch.float64)
    return torch.cat([half, -half])


def most_growth(n: int) -> float:
    """The share of the two leading tokens at which averages move the tokens apart fastest."""
    return (1 + 1 / math.sqrt(n / 2)) / 2


def simplex(n: int) -> Tensor:
    """n tokens of n − 1 features, all equally far from each other, of mean zero and length 1 together."""
    corners = torch.eye(n, dtype=torch.float64) - 1 / n
    return torch.linalg.svd(corners)[0][:, : n - 1] / math.sqrt(n - 1)


def near_leaders(
    alone: Callable[[int], float] | float, slack: float = 0.02, sharp: float = 12.0, *, regimes: bool = False
):
    """A `start` that puts every other example near u = wᵀe with leading tokens, attended to sharply by the others.

    With n − 1 > 1 features it is the corners of a simplex instead, each attended to by itself: there σ² = χδ². The
    matrices are positive multiples of the identity with a little noise, W so small that tanh is a line. regimes: ε is
    small beside σ² in half of these examples, and rules in the others; of a step diffusion has a small share (x).
    """

    def start(seed: int, **drawn: Tensor) -> Start:
        drawn = WIDE(seed, **drawn)
        u, eye = drawn["u"], torch.eye(drawn["V"].shape[-1], dtype=torch.float64)
        n, sizes = u.shape[-2], per_example(size(u[::2]))
        share = alone(n) if callable(alone) else alone
        field = torch.zeros_like(u[::2])
        if len(eye) == n - 1 > 1:
            field[:], least = simplex(n), 1 / (n - 1)
        else:
            field[..., 0] = w = leading(n, share)
            gap = w.sort().values
            least = (gap[-1] * 2 if n == 2 else gap[n // 2] * (gap[-1] - gap[-2])) or 1.0
        u[::2] = sizes * (field + slack * share * u[::2] / sizes / n)
        drawn["A"][::2] = eye * sharp / (sizes**2 * least)
        for name, scale in (("V", 1.0), ("U", 1.0), ("W", 0.02 / sizes)):
            factor = per_example(norm2(drawn[name][::2])) if name != "W" else scale
            drawn[name][::2] = factor * eye
        if regimes and "ln_eps" in drawn:
            usual = 2 * size(u[::2]).log() + 0.5 * drawn["ln_eps"][::2]
            drawn["ln_eps"][::2] = usual - over_and_over([3.0, 3.0, -1.5, -1.5], len(usual))
        if regimes and "x" in drawn:
            drawn["x"][::2] += 4
        if "ln_rise" in drawn:  # nearly no diffusion, and in half of them nearly constant γ
            drawn["ln_D"][::2] -= 8
            drawn["ln_rise"][::4] -= 8
            drawn["ln_rise"][2::4] = -1.0
        return drawn

    return start


def attended(alone: Callable[[int], float] | float):
    """The same for free weights: every other example has leading tokens and logits that look at them."""

    def start(seed: int, **drawn: Tensor) -> Start:
        w, logits, n = drawn["w"], drawn["logits"], drawn["w"].shape[-2]
        w[::2] = 0.02 * w[::2] / n
        w[::2, :, 0] += leading(n, alone(n) if callable(alone) else alone)
        logits[::2, : n // 2, 0] += 12.0
        logits[::2, n // 2 :, n // 2] += 12.0
        drawn["V"][::2] = torch.eye(w.shape[-1], dtype=w.dtype)
        return drawn

    return start


def one_leader(seed: int, **drawn: Tensor) -> Start:
    """Every other example has one long token, and logits that look at it."""
    w, logits, n = drawn["w"], drawn["logits"], drawn["w"].shape[-2]
    share = (1 + 1 / math.sqrt(n)) / 2
    w[::2] = 0.02 * w[::2] / n
    w[::2, 0, 0] += math.sqrt(share)
    w[::2, 1:, 0] += math.sqrt((1 - share) / (n - 1))
    logits[::2, :, 0] += 12.0
    drawn["V"][::2] = torch.eye(w.shape[-1], dtype=w.dtype)
    return drawn


def one_leader_in_a_flow(seed: int, **drawn: Tensor) -> Start:
    """Of four examples one as `one_leader`, one in which the pull rules, one in which a constant vector b does."""
    drawn["b"], drawn["ln_root"] = 0.1 * drawn["b"], drawn["ln_root"] - 1
    drawn = WIDE(seed, **drawn)
    u, eye, n = drawn["u"], torch.eye(drawn["V"].shape[-1], dtype=torch.float64), drawn["u"].shape[-2]
    share, sizes = (1 + 1 / math.sqrt(n)) / 2, 100.0  # so long that ‖N(u)‖ ≤ 1 hardly counts
    long, short = math.sqrt(share), math.sqrt((1 - share) / (n - 1))
    u[::4] = 0.02 * u[::4] / n
    u[::4, 0, 0] += sizes * long
    u[::4, 1:, 0] += sizes * short
    drawn["A"][::4] = eye * 12.0 / (sizes**2 * short * (long - short))
    drawn["V"][::4], drawn["b"][::4] = 20 * eye, 1e-3 * drawn["b"][::4]
    drawn["W"][::4], drawn["U"][::4] = 0.02 * eye / sizes, 1000 * eye * sizes

    for quarter in (1, 2):
        for name in ("V", "W", "b"):
            drawn[name][quarter::4] *= 1e-3
    u[1::4] = centred(u[1::4])
    drawn["ln_root"][1::4] = size(u[1::4]).log() - 3
    along = torch.ones_like(u[2::4, :1])
    u[2::4], drawn["b"][2::4], drawn["margin"][2::4] = 0.1 * along, along, drawn["margin"][2::4] - 4
    return drawn


def aligned(seed: int, **drawn: Tensor) -> Start:
    """Three of four examples have equal tokens without a mean over their features, and matrices that stretch them.

    In the first of the four attention rules, in the second the network, in the third a constant vector b.
    """
    drawn["b"], drawn["ln_root"] = 0.1 * drawn["b"], drawn["ln_root"] - 2
    drawn = WIDE(seed, **drawn)
    u, eye = drawn["u"], torch.eye(drawn["V"].shape[-1], dtype=torch.float64)
    along = over_and_over([1.0, -1.0], u.shape[-1])
    for quarter, (V, network, b) in enumerate(((1.0, 0.1, 0.01), (0.1, 1.0, 0.01), (0.1, 0.1, 10.0))):
        sizes = per_example(size(u[quarter::4]))
        u[quarter::4] = sizes * (along + 0.01 * u[quarter::4] / sizes)
        drawn["g"][quarter::4], drawn["h"][quarter::4] = 1.0, 0.3 * along
        drawn["V"][quarter::4], drawn["b"][quarter::4] = 3 * V * eye, b * along * sizes
        drawn["W"][quarter::4], drawn["U"][quarter::4] = 0.02 * eye / sizes, 150 * network * eye * sizes
    return drawn


def slowest_mode(seed: int, **drawn: Tensor) -> Start:
    """Every other example is near cos πx, with weak attention and a D near a multiple of the identity."""
    drawn = WIDE(seed, **drawn)
    u, n = drawn["u"], drawn["u"].shape[-2]
    wave = torch.cos(math.pi * (torch.arange(n, dtype=u.dtype) + 0.5) / n)
    sizes = per_example(size(u[::2]))
    u[::2] = 0.01 * u[::2]
    u[::2, :, 0] += sizes[:, :, 0] * wave
    drawn["V"][::2] = 1e-4 * drawn["V"][::2]
    eye = torch.eye(u.shape[-1], dtype=u.dtype)
    drawn["W"][::2], drawn["U"][::2] = 0.02 * eye / sizes, eye
    drawn["M"][::2], drawn["B"][::2] = 0.3 * eye, 0.05 * drawn["B"][::2]
    return drawn


def equal_tokens(seed: int, **drawn: Tensor) -> Start:
    """Every other example has nearly equal tokens, which V and the network stretch, and nearly no turn."""
    u, eye = drawn["u"], torch.eye(drawn["V"].shape[-1], dtype=torch.float64)
    u[::2] = 1 + 0.01 * u[::2]
    drawn["K"][::2] *= 1e-3
    for name, factor in {"V": 1.0, "W": 0.02, "U": 50.0}.items():
        drawn[name][::2] = factor * eye
    return drawn
