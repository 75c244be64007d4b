"""The product law: what two states score that share a direction and nothing else.

e is the unit vector that both have in common (the input, the uniform map), ρ_u and ρ_v their cosines with it.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray


def partial_cosine(cosine: ArrayLike, rho_u: ArrayLike, rho_v: ArrayLike) -> NDArray:
    """(cos − ρ_u ρ_v)/√((1 − ρ_u²)(1 − ρ_v²)): the cosine of what is left of u and v without their parts along e.

    >>> partial_cosine(0.75, 0.9, 0.8).round(2).item()
    0.11
    """
    left = (1 - np.square(rho_u)) * (1 - np.square(rho_v))
    return (np.asarray(cosine) - np.multiply(rho_u, rho_v)) / np.sqrt(left)


def loses_to_copy(rho_u: ArrayLike, rho_v: ArrayLike) -> NDArray:
    """arccos ρ_v > 2 arccos ρ_u: then e is nearer to u than v is, whatever v does.

    >>> loses_to_copy(0.98, [0.95, 0.85]).tolist()
    [False, True]
    """
    return np.arccos(rho_v) > 2 * np.arccos(rho_u)
