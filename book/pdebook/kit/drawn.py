"""A figure's picture in a notebook, and with it the numbers behind it: a test compares them, as no eye does.

A picture in a notebook carries as metadata, for every axes, its limits and of every curve, cloud, bar and image the
number of points, their mean and their standard deviation: in units of the axis, logarithms where it is logarithmic.
"""

import base64
import io
import json
import xml.etree.ElementTree as ET

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from IPython import get_ipython
from matplotlib.collections import Collection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from PIL import Image

from pdebook.kit.svg import DPI, svg

DIGITS = 4  # significant ones that are stored
HEAVY = 150_000  # characters: a cloud of thousands of points is lighter as PNG


def describe(figure: Figure) -> list[dict]:
    """One entry per axes: {"limits": [x, x, y, y], "artists": [[number, mean, spread, …], …]}."""
    return [_axes(ax) for ax in figure.axes]


def _axes(ax) -> dict:
    corners = ax.transScale.transform(np.column_stack([ax.get_xlim(), ax.get_ylim()]))
    artists = (*ax.lines, *ax.collections, *ax.patches)
    scaled = [ax.transScale.transform(points) for one in artists for points in _points(one)]
    coloured = [one.get_array() for one in (*ax.collections, *ax.images)]
    values = [array.reshape(-1, 1) for array in coloured if array is not None]
    return {"limits": _rounded(corners.T.ravel()), "artists": [_summary(points) for points in (*scaled, *values)]}


def _points(artist: Line2D | Collection | Patch) -> list[np.ndarray]:
    """Where an artist's points lie, (point, 2); nothing if they are not in units of the axes."""
    in_data = artist.axes.transData
    if isinstance(artist, Collection) and artist.get_offset_transform().contains_branch(in_data):
        return [artist.get_offsets()]  # a cloud of marks
    if not artist.get_transform().contains_branch(in_data):
        return []
    if isinstance(artist, Line2D):
        return [artist.get_xydata()]
    if isinstance(artist, Patch):
        return [artist.get_patch_transform().transform(artist.get_path().vertices)]
    paths = [path.vertices for path in artist.get_paths()]
    return [np.concatenate(paths)] if paths else []


def _summary(points: np.ndarray) -> list[float]:
    """The number of finite points, then mean and standard deviation of each column."""
    points = np.ma.filled(np.ma.asarray(points, dtype=float), np.nan)
    points = points[np.isfinite(points).all(axis=1)]
    if not len(points):
        return [0]
    return [len(points), *_rounded(np.stack([points.mean(axis=0), points.std(axis=0)], axis=1).ravel())]


def _rounded(numbers: np.ndarray) -> list[float]:
    return [float(f"{number:.{DIGITS}g}") for number in numbers]


def picture(figure: Figure) -> tuple[dict, dict]:
    """The figure as a notebook stores it, and beside it its numbers: SVG, or where that is heavy PNG."""
    numbers = {"drawn": json.dumps(describe(figure))}  # as text, one line of the file
    drawn = ET.tostring(svg(figure, bbox_inches="tight"), encoding="unicode")
    if len(drawn) <= HEAVY:
        return {"image/svg+xml": drawn}, {"image/svg+xml": numbers}
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=DPI, bbox_inches="tight")
    width = round(Image.open(stream).width * 96 / DPI)  # in pixels of a page, whatever the screen
    png = base64.b64encode(stream.getvalue()).decode()
    return {"image/png": png}, {"image/png": numbers | {"width": width}}


def describe_figures() -> None:
    """From now on the pictures of this notebook carry their numbers; outside a notebook nothing happens."""
    shell = get_ipython()
    if shell is None:
        return
    plt.switch_backend(mpl.get_backend())  # else the way to draw would be set with the first figure
    shell.display_formatter.formatters["image/png"].pop(Figure, None)
    shell.display_formatter.mimebundle_formatter.for_type(Figure, picture)
