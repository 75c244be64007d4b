"""How a gradient grows or shrinks through random matrices, with and without a skip and LayerNorm."""

import math

from pdelab.options import choose


def factor(corner: str, alpha: float) -> float:
    """|g_ℓ|/|g_{ℓ+1}| of a wide layer. bare: α. residual: √(1 + α²). With LayerNorm after the layer: 1.

    >>> factor("bare", 0.5), factor("residual", 0.75), factor("norm", 0.5)
    (0.5, 1.25, 1.0)
    """
    factors = {"bare": alpha, "norm": 1.0, "residual": math.hypot(1, alpha), "residual_norm": 1.0}
    return choose("corner", corner, factors)


def mean_square(corner: str, alpha: float, layers: int, width: int) -> float:
    """E|g_0|²/|g_L|² at any width. bare: α^(2L). residual: (1 + α²)^L. norm, width d > 3: (1 − 1/d)(1 + 1/(d − 3))^L.

    >>> mean_square("bare", 0.5, 2, 10), mean_square("norm", 0.5, 1, 4)
    (0.0625, 1.5)
    """
    choose("corner", corner, ("bare", "norm", "residual"))
    if corner != "norm":
        return factor(corner, alpha) ** (2 * layers)
    if width <= 3:
        raise ValueError(f"width must be above 3, or the mean is infinite; not {width}")
    return (1 - 1 / width) * (1 + 1 / (width - 3)) ** layers
