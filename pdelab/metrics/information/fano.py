"""How often can a guess of Y from T be right, if T tells I nats of Y? (Fano's inequality in its sharp form)"""

import math

from scipy.optimize import brentq

from pdelab.options import number


def binary_divergence(a: float, p: float) -> float:
    """d(a‖p) = a log(a/p) + (1 − a) log((1 − a)/(1 − p)), in nats: of a coin that shows 1 with a from one with p.

    >>> round(binary_divergence(0.5, 0.25), 4)
    0.1438
    """
    for name, value in (("a", a), ("p", p)):
        if not 0 <= number(name, value) <= 1:
            raise ValueError(f"{name} must be a probability, from 0 to 1; not {value!r}")
    parts = ((a, p), (1 - a, 1 - p))
    if any(x > 0 and y == 0 for x, y in parts):
        return math.inf
    return sum(x * math.log(x / y) for x, y in parts if x > 0)


def largest_accuracy(information: float, majority: float) -> float:
    """The root acc ≥ p_max of d(acc‖p_max) = I(T; Y), or 1: no guess of Y from T is right more often than that.

    information: I(T; Y) in nats. majority: p_max, the share of the commonest class, 1/K for K equally likely ones.

    >>> round(largest_accuracy(0.0, 0.1), 4), largest_accuracy(9.0, 0.1)
    (0.1, 1.0)
    """
    if number("information", information) < 0:
        raise ValueError(f"information must be in nats, finite and not negative; not {information!r}")
    if not 0 < number("majority", majority) <= 1:
        raise ValueError(f"majority must be a share above 0, at most 1; not {majority!r}")
    if information >= -math.log(majority):  # d(1‖p) = −log p
        return 1.0
    return brentq(lambda a: binary_divergence(a, majority) - information, majority, 1.0, xtol=1e-14)
