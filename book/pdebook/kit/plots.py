"""One figure style for the whole book. Figures are drawn on white, for paper and notebooks; a page in the dark turns
light and dark around (book/_static/custom.css). This module draws and computes nothing."""

from collections.abc import Mapping, Sequence

import matplotlib as mpl
from cycler import cycler
from matplotlib.ticker import NullLocator

from pdebook.kit.drawn import describe_figures

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
    """Draw every figure from now on in the book's style, its numbers beside it; a chapter's first cell calls it."""
    mpl.rcParams.update(STYLE)
    describe_figures()


def label_x(ax, values) -> None:
    """Mark these values of x and no others: on a logarithmic axis the decades alone tell little."""
    ax.set_xticks(list(values), [f"{value:g}" for value in values])
    ax.xaxis.set_minor_locator(NullLocator())


# The terms of the master equation, always in these colours and hatches.
TERM_COLOURS = {"A": "#0072B2", "R": "#D55E00", "D": "#009E73", "S": "#B0578D", "−u": "#777777"}
TERM_HATCHES = {"A": "", "R": "///", "D": "xx", "S": "...", "−u": "\\\\\\"}
TERM_WORDS = {
    "A": "interaction: every token\nlistens to all others",
    "R": "reaction: each token\nreacts to itself",
    "D": "diffusion: a token is\npulled to its neighbours",
    "S": "stabilisation: all are\npulled to their mean",
}


def stacked_bars(ax, symbols, table, width: float = 0.7) -> None:
    """One bar a row of the table, numbered from 1, the terms stacked: positive parts upwards, negative downwards."""
    above, below = [0.0] * len(table), [0.0] * len(table)
    places = range(1, len(table) + 1)
    for number, symbol in enumerate(symbols):
        values = [float(row[number]) for row in table]
        bottom = [above[k] if value >= 0 else below[k] for k, value in enumerate(values)]
        look = {"color": TERM_COLOURS[symbol], "hatch": TERM_HATCHES[symbol], "edgecolor": "white", "linewidth": 0.5}
        ax.bar(places, values, width, bottom=bottom, label=symbol, **look)
        for k, value in enumerate(values):
            above[k], below[k] = above[k] + max(value, 0.0), below[k] + min(value, 0.0)
    ax.axhline(0, color="#555555", linewidth=0.8)
    ax.set_axisbelow(True)
    ax.set_xticks(list(places))


def with_intervals(ax, x, rows, mark: str = "o", **look) -> None:
    """Means as marks with their intervals; rows: one Summary a place, with mean, low and high."""
    means = [row.mean for row in rows]
    ends = [row.mean - row.low for row in rows], [row.high - row.mean for row in rows]
    ax.errorbar(list(x), means, ends, fmt=mark, capsize=2, **look)


def numbered_map(ax, table, across, down, limit: float):
    """A table of changes as colours with the numbers on them, red below 0 and blue above; gives the image."""
    image = ax.imshow(table, cmap="RdBu", vmin=-limit, vmax=limit, aspect="auto")
    ax.set_xticks(range(len(across)), across, fontsize=9)
    ax.set_yticks(range(len(down)), down)
    ax.grid(False)
    for i, row in enumerate(table):
        for j, value in enumerate(row):
            colour = "white" if abs(value) > 0.62 * limit else "black"
            ax.text(j, i, f"{value:+.1f}", ha="center", va="center", fontsize=8, color=colour)
    return image


def heat_maps(figure, columns: Mapping, names: Sequence[str]) -> None:
    """Maps (sample, layer, feature) side by side, a column for each title and a row for each name, on one scale."""
    size = max(float(abs(maps).max()) for maps in columns.values())
    axes = figure.subplots(len(names), len(columns), sharex=True, sharey=True, squeeze=False)
    for column, (title, maps) in enumerate(columns.items()):
        layers, features = maps.shape[1:]
        axes[0, column].set_title(title)
        axes[-1, column].set_xlabel("feature")
        for ax, one in zip(axes[:, column], maps, strict=True):
            extent = (0.5, features + 0.5, layers + 0.5, 0.5)
            image = ax.imshow(one, aspect="auto", cmap="PuOr", extent=extent, vmin=-size, vmax=size)
            ax.grid(visible=False)
    for ax, name in zip(axes[:, 0], names, strict=True):
        ax.set(ylabel=f"{name}\nlayer", yticks=[1, layers // 2, layers])
    figure.colorbar(image, ax=axes, label="state, mean over the tokens", shrink=0.6)


def four_terms(figure, field) -> None:
    """The master equation as a picture: a field (depth, token) and, beside it, what each term lets a token see."""
    left, right = figure.subfigures(1, 2, width_ratios=(1, 1.5))
    ax = left.add_subplot()
    ax.imshow(field, origin="lower", aspect="auto", cmap="cividis", extent=(0, 1, 0, len(field) - 1))
    ax.set(xlabel="position x", ylabel="depth, in steps", title="u(x, t), one feature")
    ax.grid(visible=False)
    for ax, (symbol, words) in zip(right.subplots(2, 2).flat, TERM_WORDS.items(), strict=True):
        ax.set(xlim=(-0.6, 6.6), ylim=(-0.6, 1.9), xticks=[], yticks=[])
        ax.set_title(f"$\\mathcal{{{symbol}}}$  {words}", fontsize=9, loc="left")
        ax.grid(visible=False)
        for side in ax.spines.values():
            side.set_visible(False)
        _token_row(ax, symbol)


def _token_row(ax, symbol: str, chosen: int = 3, tokens: int = 7) -> None:
    """Tokens in a row; arrows end at the chosen one and start at what it reads."""
    colour = TERM_COLOURS[symbol]
    heights = (0.0, 1.3, 0.2, 1.5, 0.1, 1.2, 0.0) if symbol == "S" else (0.0,) * tokens
    for place in range(tokens):
        reads = {"A": True, "R": place == chosen, "D": abs(place - chosen) == 1, "S": True}[symbol]
        ax.plot(
            place,
            heights[place],
            "o",
            ms=11,
            mfc=colour if place == chosen else "white",
            mec=colour if reads else "#999999",
        )
        if reads and symbol in "AD" and place != chosen:
            _arrow(ax, (place, 0), (chosen, 0), colour, -0.5 if place < chosen else 0.5)
    if symbol == "R":
        _arrow(ax, (chosen - 0.25, 0.2), (chosen + 0.25, 0.2), colour, -3.0, gap=0)
    if symbol == "S":
        mean = sum(heights) / tokens
        ax.plot((-0.4, 6.4), (mean, mean), "--", color=colour, lw=1)
        ax.text(6.55, mean + 0.08, "mean", color=colour, ha="right", fontsize=9)
        for place, height in enumerate(heights):
            _arrow(ax, (place, height), (place, mean), colour, 0.0, end_gap=1)


def _arrow(ax, start, end, colour: str, bend: float, gap: float = 7, end_gap: float | None = None) -> None:
    shrink = {"shrinkA": gap, "shrinkB": gap if end_gap is None else end_gap}
    style = {"arrowstyle": "-|>", "color": colour, "lw": 1.1} | shrink
    ax.annotate("", end, start, arrowprops=style | {"connectionstyle": f"arc3,rad={bend}"})
