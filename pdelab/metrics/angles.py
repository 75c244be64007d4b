"""What two cosines leave open for a third.

Three unit vectors x, y, z have angles that obey the triangle inequality. The same holds for means of cosines over
tokens, examples or runs, as long as all three are means over the same: stacked, the vectors are unit vectors again.
"""

import math

from pdelab.options import number


def third_cosine(a: float, b: float, slack: float = 0.0) -> tuple[float, float]:
    """The least and the largest ⟨x, z⟩ with ⟨x, y⟩ = a and ⟨y, z⟩ = b: ab ∓ √(1 − a²)√(1 − b²).

    slack: a and b are known up to so much, as half a unit of the last printed digit; then over all they may be.

    >>> [round(bound, 3) for bound in third_cosine(0.6, 0.8)]
    [0.0, 0.96]
    """
    number("a", a, -1, 1)
    number("b", b, -1, 1)
    number("slack", slack, 0)
    (a0, a1), (b0, b1) = (
        [math.acos(min(1.0, max(-1.0, value))) for value in (cosine + slack, cosine - slack)] for cosine in (a, b)
    )
    nearest = max(0.0, a0 - b1, b0 - a1)
    # the angle is at most α + β, and at most what is left of a full turn
    furthest = math.pi if a0 + b0 <= math.pi <= a1 + b1 else min(a1 + b1, 2 * math.pi - a0 - b0)
    return math.cos(furthest), math.cos(nearest)
