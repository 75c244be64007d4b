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
import re
import xml.etree.ElementTree as ET

import numpy as np
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.colors import to_rgba
from matplotlib.path import Path
from matplotlib.transforms import Affine2D, Bbox
from PIL import Image

from pdebook.kit.svg import HREF

PARTS = (16, 16)
TOLERANCE = 9
MOVED = 0.02  # of the axis, or of the range of an image's values


KINDS = ("image/svg+xml", "image/png")


def pictures(outputs) -> list[Image.Image]:
    return [in_pixels(kind, output["data"][kind]) for kind, output in found(outputs)]


def found(outputs) -> list[tuple[str, dict]]:
    """The outputs that are pictures, each with its kind."""
    return [(kind, output) for output in outputs for kind in KINDS if kind in output.get("data", {})]


def in_pixels(kind: str, data: str) -> Image.Image:
    picture = from_svg(data) if kind == "image/svg+xml" else Image.open(io.BytesIO(base64.b64decode(data)))
    return picture.convert("RGBA")


def from_svg(text: str) -> Image.Image:
    """What matplotlib wrote as SVG, a pixel a point: paths, marks, letters and images in their colours."""
    root = ET.fromstring(text)
    width, height = (float(number) for number in root.get("viewBox").split()[2:])
    canvas = RendererAgg(width, height, 72)
    named = {element.get("id"): element for element in root.iter() if element.get("id")}
    paint(canvas, named, root, Affine2D().scale(1, -1).translate(0, height), {})
    return Image.fromarray(np.asarray(canvas.buffer_rgba()))


def paint(canvas: RendererAgg, named: dict, element: ET.Element, to_canvas: Affine2D, style: dict) -> None:
    tag = element.tag.rpartition("}")[2]
    style = style | dict(re.findall(r"([\w-]+): ?([^;]+)", element.get("style", "")))
    style |= {name: element.get(name) for name in ("clip-path",) if element.get(name)}
    to_canvas = transform(element.get("transform", "")) + to_canvas
    if tag == "path" and element.get("d"):  # a blank has none
        graphics = graphics_of(canvas, named, to_canvas, style)
        fill = re.sub(r"url\(.*\)", "#808080", style.get("fill", "#000000"))  # hatching as grey
        face = None if fill == "none" else to_rgba(fill, float(style.get("fill-opacity", style.get("opacity", 1))))
        canvas.draw_path(graphics, path(element.get("d")), to_canvas, face)
    elif tag == "use":
        moved = Affine2D().translate(float(element.get("x", 0)), float(element.get("y", 0)))
        paint(canvas, named, named[element.get(HREF)[1:]], moved + to_canvas, style)
    elif tag == "image":
        x, y, wide, high = (float(element.get(name, 0)) for name in ("x", "y", "width", "height"))
        box = Bbox.from_bounds(x, y, wide, high).transformed(to_canvas)
        image = in_pixels("image/png", element.get(HREF).partition(",")[2])
        image = image.resize((max(1, round(abs(box.width))), max(1, round(abs(box.height)))), Image.Resampling.BOX)
        canvas.draw_image(graphics_of(canvas, named, to_canvas, style), box.xmin, box.ymin, np.array(image))
    elif tag in ("svg", "g"):
        for child in element:
            paint(canvas, named, child, to_canvas, style)


def graphics_of(canvas: RendererAgg, named: dict, to_canvas: Affine2D, style: dict):
    graphics = canvas.new_gc()
    graphics.set_snap(False)  # or thin marks move to whole pixels, and some vanish
    colour = style.get("stroke", "none")
    graphics.set_linewidth(0 if colour == "none" else float(style.get("stroke-width", 1)))
    graphics.set_foreground(to_rgba(colour, float(style.get("stroke-opacity", style.get("opacity", 1)))), isRGBA=True)
    if dashes := style.get("stroke-dasharray"):
        graphics.set_dashes(0, [float(dash) for dash in dashes.split(",")])
    if clip := style.get("clip-path"):
        (frame,) = named[clip[5:-1]]
        upright = Affine2D().scale(1, -1).translate(0, canvas.height)
        if frame.tag.endswith("rect"):
            bounds = [float(frame.get(name)) for name in ("x", "y", "width", "height")]
            graphics.set_clip_rectangle(Bbox.from_bounds(*bounds).transformed(upright))
    return graphics


def transform(words: str) -> Affine2D:
    """translate(…) scale(…): the last one acts first."""
    whole = Affine2D()
    for name, inside in re.findall(r"(\w+)\(([^)]*)\)", words):
        numbers = [float(number) for number in re.split(r"[ ,]+", inside)]
        step = Affine2D.from_values(*numbers) if name == "matrix" else Affine2D()
        if name != "matrix":
            getattr(step, "rotate_deg" if name == "rotate" else name)(*numbers)
        whole = step + whole
    return whole


def path(words: str) -> Path:
    """M, L, Q, C and z with their points."""
    kinds = {"M": Path.MOVETO, "L": Path.LINETO, "Q": Path.CURVE3, "C": Path.CURVE4, "z": Path.CLOSEPOLY}
    points, codes = [], []
    for letter, inside in re.findall(r"([MLQCz])([^MLQCz]*)", words):
        numbers = [float(number) for number in inside.split()] or [0.0, 0.0]  # z has none
        points += zip(numbers[::2], numbers[1::2], strict=True)
        codes += [kinds[letter]] * (len(numbers) // 2)
    return Path(points, codes)


def distance(one: Image.Image, other: Image.Image) -> int:
    """The largest difference of a part's mean colour."""
    coarse = [np.asarray(picture.resize(PARTS, Image.Resampling.BOX), dtype=int) for picture in (one, other)]
    return int(abs(coarse[0] - coarse[1]).max())


def drawn(outputs) -> list:
    """The numbers behind each picture, as pdebook/kit/drawn.py has noted them; None where there are none."""
    noted = [output["metadata"].get(kind, {}) for kind, output in found(outputs)]
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
