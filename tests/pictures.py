"""Pictures of a notebook, compared: nbval leaves them out, so that any picture would pass for the stored one.

Two pictures agree if they have the same width and height and show roughly the same: of 16 by 16 parts, each has the
same mean colour up to TOLERANCE, in steps of 0 to 255. Measured: running a notebook again gives 0; the kernels of other
processors 0 or 1, and 5 where the figure shows rounding errors; a curve that moves by 5 % of its axis 14; two figures
of the book 18 or more; a blank one 31 or more. So do the numbers behind them (pdebook/kit/drawn.py) agree: limits,
means and standard deviations up to MOVED of the axis.
"""

import base64
import io
import json

import numpy as np
from PIL import Image

PARTS = (16, 16)
TOLERANCE = 9
MOVED = 0.02  # of the axis, or of the range of an image's values


def pictures(outputs) -> list[Image.Image]:
    found = [output["data"]["image/png"] for output in outputs if "image/png" in output.get("data", {})]
    return [Image.open(io.BytesIO(base64.b64decode(text))).convert("RGBA") for text in found]


def distance(one: Image.Image, other: Image.Image) -> int:
    """The largest difference of a part's mean colour."""
    coarse = [np.asarray(picture.resize(PARTS, Image.Resampling.BOX), dtype=int) for picture in (one, other)]
    return int(abs(coarse[0] - coarse[1]).max())


def drawn(outputs) -> list:
    """The numbers behind each picture, as pdebook/kit/drawn.py has noted them; None where there are none."""
    noted = [output["metadata"].get("image/png", {}) for output in outputs if "image/png" in output.get("data", {})]
    return [json.loads(one["drawn"]) if "drawn" in one else None for one in noted]


def moved(new: list[dict], stored: list[dict]) -> str:
    """What tells the numbers behind two figures apart, in words; nothing if they agree."""
    if [[len(one) for one in ax["artists"]] for ax in new] != [[len(one) for one in ax["artists"]] for ax in stored]:
        return "it has other axes or curves"
    for mine, theirs in zip(new, stored, strict=True):
        left, right, low, high = theirs["limits"]
        width, height = abs(right - left), abs(high - low)
        pairs = [([0, *mine["limits"]], [0, *theirs["limits"]], [width, width, height, height])]
        for one, other in zip(mine["artists"], theirs["artists"], strict=True):
            values = max(other[-1], 1e-12) * 10  # an image's, whose range is some standard deviations
            pairs.append((one, other, [width, width, height, height] if len(other) == 5 else [values, values]))
        for one, other, units in pairs:
            if one[0] != other[0]:
                return f"{one[0]} points, stored are {other[0]}"
            far = [abs(a - b) / unit for a, b, unit in zip(one[1:], other[1:], units, strict=False)]
            if max(far, default=0) > MOVED:
                return f"{one} are the numbers behind it, stored are {other}"
    return ""


def difference(new, stored) -> str:
    """What tells the pictures of two lists of outputs apart, in words; nothing if they agree."""
    numbers = zip(drawn(new), drawn(stored), strict=False)
    new, stored = pictures(new), pictures(stored)
    if len(new) != len(stored):
        return f"{len(new)} pictures, stored are {len(stored)}"
    for number, (one, other) in enumerate(zip(new, stored, strict=True), start=1):
        if one.size != other.size:
            return f"picture {number} has {one.size} pixels, the stored one {other.size}"
        if (far := distance(one, other)) > TOLERANCE:
            return f"picture {number} shows something else: a part's colour differs by {far}, more than {TOLERANCE}"
    for number, (one, other) in enumerate(numbers, start=1):
        if other is not None and (words := moved(one or [], other)):
            return f"picture {number} shows something else: {words}"
    return ""
