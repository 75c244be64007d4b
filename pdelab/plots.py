"""One figure style for the whole book. Figures stand on a white card, so they read the same in a light page, in a dark
page and on paper. This module draws and computes nothing."""

import matplotlib as mpl
from cycler import cycler
from matplotlib.ticker import NullLocator

# Told apart with any colour vision (the first three are Okabe and Ito's), and always in these roles. In grey they are
# close: marks and line styles tell curves apart there.
COLOURS = {
    "transformer": "#0072B2",
    "simulator": "#D55E00",
    "control": "#009E73",
    "other": "#B0578D",
    "theory": "#222222",
}

STYLE = {
    "axes.edgecolor": "#555555",
    "axes.grid": True,
    "axes.prop_cycle": cycler(color=list(COLOURS.values())),
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.constrained_layout.use": True,
    "figure.dpi": 144,
    "figure.facecolor": "white",
    "figure.figsize": (5.6, 3.4),
    "font.size": 11,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
    "savefig.facecolor": "white",
    "svg.fonttype": "none",
    "svg.hashsalt": "pdelab",
}


def use_style() -> None:
    """Draw every figure from now on in the book's style; a chapter's first cell calls it."""
    mpl.rcParams.update(STYLE)


def label_x(ax, values) -> None:
    """Mark these values of x and no others: on a logarithmic axis the decades alone tell little."""
    ax.set_xticks(list(values), [f"{value:g}" for value in values])
    ax.xaxis.set_minor_locator(NullLocator())
