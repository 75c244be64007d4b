"""explore: one interactive figure, live with a kernel and still a slider in plain HTML.

Every combination of slider values is drawn once. With a kernel the reader gets ipywidgets, and each move draws anew.
The same output also holds plain HTML: if the frames differ only in their curves, one SVG and the coordinates that
change (a few kB a frame); otherwise WEBP frames. That half needs no kernel, no network and no library.
"""

import base64
import html
import inspect
import io
import itertools
import json
import math
import re
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.resources import files

import matplotlib as mpl
from matplotlib.figure import Figure

from pdebook.kit.plots import STYLE
from pdebook.kit.svg import HREF, SVG, svg

MAX_FRAMES = 150

_SCRIPT = files("pdebook.kit").joinpath("interactive.js").read_text(encoding="utf-8")


def explore(
    draw: Callable,
    *,
    alt: str | Callable[..., str] | None = None,
    caption: str = "",
    labels: Mapping[str, str] | None = None,
    start: Mapping[str, object] | None = None,
    play: str | None = None,
    **sliders: Iterable,
) -> "Explorer":
    """An interactive figure with one slider per keyword.

    draw: draw(ax, **values) draws on one Axes; or draw(**values) without `ax` returns a Figure of its own.
    alt: what the picture shows, in a sentence: a text, or a function of the slider values; without it the docstring of
        draw, or else its axis labels. It stands under the picture and is what a screen reader says.
    sliders: name=values, at least two values each, e.g. t=np.linspace(0, 1, 11) or ends=["reflecting", "absorbing"].
    labels, start: the words beside a slider and the value it starts from, by slider name.
    play: the name of a slider that a Play button moves through, for what changes in time.

    Axes that draw leaves free get the same limits in every frame. Labels are best in plain text (σ², Δt).
    """
    return Explorer(draw, alt=alt, caption=caption, labels=labels or {}, start=start or {}, play=play, sliders=sliders)


class Explorer:
    """What `explore` returns; a notebook displays it. `kind` is "curves" or "frames"."""

    def __init__(self, draw, *, alt, caption, labels, start, sliders, play=None):
        if not callable(draw):
            raise ValueError(f"draw must be a function of the slider values, not {type(draw).__name__}")
        if not sliders:
            raise ValueError("explore needs at least one slider, for example explore(draw, t=[0, 1, 2])")
        self.values = {name: _values(name, values) for name, values in sliders.items()}
        count = math.prod(len(values) for values in self.values.values())
        if count > MAX_FRAMES:
            sizes = " × ".join(f"{len(v)} {k}" for k, v in self.values.items())
            raise ValueError(f"the sliders make {sizes} = {count} frames; keep the product at or below {MAX_FRAMES}")
        for option, given in (("labels", labels), ("start", start)):
            if unknown := set(given) - set(self.values):
                raise ValueError(f"{option} names {sorted(unknown)}; the sliders are {list(self.values)}")
        self.start = {}
        for name, values in self.values.items():
            wanted = start.get(name, values[0])
            if wanted not in values:
                raise ValueError(f"start gives {name}={wanted!r}, which is not one of its values {values}")
            self.start[name] = values.index(wanted)
        numbers = [name for name, values in self.values.items() if _ordered(values)]
        if play is not None and play not in numbers:
            raise ValueError(f"play names {play!r}; the sliders of numbers are {numbers}")
        self.play = play
        self.labels = {name: labels.get(name, name.replace("_", " ")) for name in self.values}
        self.caption = caption
        self._draw = draw
        self._alt = alt
        self._axes: list[dict] = []  # limits and position that every frame shares, one entry an Axes
        products = itertools.product(*self.values.values())
        combinations = [dict(zip(self.values, chosen, strict=True)) for chosen in products]
        figures = [self._figure(values) for values in combinations]
        if len({id(figure) for figure in figures}) < len(figures):
            raise ValueError("draw must return a new Figure each time; it returned one and the same")
        self._at_start = combinations.index({name: values[self.start[name]] for name, values in self.values.items()})
        self._align(figures)
        self.alts = [self._alt_text(values, figure) for values, figure in zip(combinations, figures, strict=True)]
        curves = _as_curves([svg(figure, "none") for figure in figures], self._at_start)
        if curves is None:
            self.kind = "frames"
            self._slots, self._frames = [], [_webp(figure) for figure in figures]
            self._picture = _image(self._frames[self._at_start], self.alts[self._at_start])
        else:
            self.kind = "curves"
            root, self._slots, self._frames = curves
            self._picture = _inline(root, self.alts[self._at_start])
        self._picture += _says(self.alts[self._at_start])

    def _figure(self, values: dict) -> Figure:
        with mpl.rc_context(STYLE):
            if "ax" in inspect.signature(self._draw).parameters:
                figure = Figure()
                self._draw(figure.add_subplot(), **values)
            else:
                figure = self._draw(**values)
                if not isinstance(figure, Figure):
                    raise ValueError(f"draw without `ax` must return a Figure, not {type(figure).__name__}")
                if "matplotlib.pyplot" in sys.modules:
                    sys.modules["matplotlib.pyplot"].close(figure)  # or the notebook shows it once more
        self._settle(figure)
        return figure

    def _align(self, figures: Sequence[Figure]) -> None:
        """The eye compares frames only if their axes agree: free axes get the union of their limits, and all stand
        where the layout of the first picture puts them."""
        if len({len(figure.axes) for figure in figures}) > 1:
            return
        for together in zip(*(figure.axes for figure in figures), strict=True):
            shared = {}
            for axis in "xy":
                if all(getattr(ax, f"get_autoscale{axis}_on")() for ax in together):
                    ends = [end for ax in together for end in getattr(ax, f"get_{axis}lim")()]
                    inverted = getattr(together[0], f"{axis}axis_inverted")()  # as imshow does
                    shared[f"{axis}lim"] = (max(ends), min(ends)) if inverted else (min(ends), max(ends))
            self._axes.append(shared)
        first = figures[self._at_start]
        for ax, shared in zip(first.axes, self._axes, strict=True):
            ax.set(**shared)
        first.draw_without_rendering()
        for ax, shared in zip(first.axes, self._axes, strict=True):
            shared["position"] = ax.get_position()
        for figure in figures:
            self._settle(figure)

    def _settle(self, figure: Figure) -> None:
        if self._axes and len(figure.axes) == len(self._axes):
            figure.set_layout_engine("none")
            for ax, shared in zip(figure.axes, self._axes, strict=True):
                ax.set(**shared)

    def _alt_text(self, values: dict, figure: Figure) -> str:
        if callable(self._alt):
            return str(self._alt(**values))
        if text := self._alt or inspect.getdoc(self._draw):
            return text
        axes = "; ".join(f"{ax.get_ylabel() or 'y'} against {ax.get_xlabel() or 'x'}" for ax in figure.axes)
        return f"{axes}, at " + ", ".join(f"{self.labels[name]} {_text(value)}" for name, value in values.items())

    @property
    def html(self) -> str:
        """The figure as plain HTML: picture, labelled sliders, data and a little script."""
        rows = "".join(_row(self.labels[name], values, self.start[name]) for name, values in self.values.items())
        button = '<button type="button">▶ Play</button>' if self.play else ""
        data = {
            "play": list(self.values).index(self.play) if self.play else None,
            "values": [[_text(v) for v in values] for values in self.values.values()],
            "alts": self.alts,
            "slots": self._slots,
            "frames": self._frames,
        }
        # no "<" at all: "</script>" and "<!--" would both end or swallow the page around the data
        packed = json.dumps(data, separators=(",", ":"), ensure_ascii=False).replace("<", "\\u003c")
        caption = f"<figcaption>{html.escape(self.caption)}</figcaption>" if self.caption else ""
        return (
            f'<figure class="pdelab-explore" style="margin:0;max-width:40em">{self._picture}{rows}{button}{caption}'
            f'<script type="application/json">{packed}</script><script>{_SCRIPT}</script></figure>'
        )

    def widget(self):
        """The same figure with ipywidgets: each move calls draw."""
        import ipywidgets as widgets

        picture = widgets.HTML(self._picture, layout=widgets.Layout(max_width="40em"))
        controls = {
            name: (widgets.SelectionSlider if _ordered(values) else widgets.Dropdown)(
                options=[(_text(v), v) for v in values],
                index=self.start[name],
                description=self.labels[name],
                style={"description_width": "initial"},
                layout=widgets.Layout(width="min(30em, 95%)"),
            )
            for name, values in self.values.items()
        }

        def redraw(_change) -> None:
            picture.value = self.picture(**{name: control.value for name, control in controls.items()})

        for control in controls.values():
            control.observe(redraw, names="index")
        caption = [widgets.HTML(html.escape(self.caption))] if self.caption else []
        player = [_player(controls[self.play])] if self.play else []
        return widgets.VBox([picture, *controls.values(), *player, *caption])

    def picture(self, **values) -> str:
        """Call draw for these slider values: picture and sentence as HTML; an error in draw is shown in their place."""
        try:
            figure = self._figure(values)
            alt = self._alt_text(values, figure)
            drawn = _inline(svg(figure, "none"), alt) if self.kind == "curves" else _image(_webp(figure), alt)
            return drawn + _says(alt)
        except Exception as error:
            return f"<pre>draw stopped with {html.escape(type(error).__name__)}: {html.escape(str(error))}</pre>"

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict:
        bundle = dict(self.widget()._repr_mimebundle_())
        bundle["text/plain"] = f"<interactive figure: {', '.join(self.labels.values())}>"
        bundle["text/html"] = self.html
        return bundle


def _player(slider):
    """A Play button of ipywidgets that moves the slider and stays where a hand moves it."""
    import ipywidgets as widgets

    player = widgets.Play(min=0, max=len(slider.options) - 1, value=slider.index, interval=400)
    player.observe(lambda change: setattr(slider, "index", change["new"]), names="value")
    slider.observe(lambda change: setattr(player, "value", change["new"]), names="index")
    return player


def _values(name: str, values: Iterable) -> list:
    """Plain Python values of a slider, at least two and all different."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise ValueError(f"slider {name} needs a list of values, for example {name}=[0, 1, 2]; not {values!r}")
    plain = [value.item() if getattr(value, "shape", None) == () else value for value in values]
    if not all(isinstance(value, int | float | str) and value == value for value in plain):
        raise ValueError(f"slider {name} needs numbers or words; not {plain}")
    if len(plain) < 2 or len(set(plain)) < len(plain):
        raise ValueError(f"slider {name} needs at least two values, all different; not {plain}")
    return plain


def _ordered(values: list) -> bool:
    """Numbers get a slider, words a menu."""
    return all(isinstance(value, int | float) and not isinstance(value, bool) for value in values)


def _row(label: str, values: list, at: int) -> str:
    """One labelled control, by keyboard, mouse or touch; the label contains it, so that no id is needed."""
    if _ordered(values):
        start = html.escape(_text(values[at]))
        control = (
            f'<input type="range" min="0" max="{len(values) - 1}" value="{at}" autocomplete="off" '
            f'aria-valuetext="{start}" style="flex:1 1 8em;min-width:6em;height:28px">'
            f'<output style="min-width:4em">{start}</output>'
        )
    else:
        options = "".join(
            f'<option value="{number}"{" selected" * (number == at)}>{html.escape(_text(value))}</option>'
            for number, value in enumerate(values)
        )
        control = f'<select autocomplete="off" style="min-height:28px">{options}</select>'
    row = '<label style="display:flex;align-items:center;gap:.75em;margin:.4em 0">'
    return f'{row}<span style="min-width:4em">{html.escape(label)}</span>{control}</label>'


def _text(value) -> str:
    if isinstance(value, str | bool):
        return str(value)
    short = f"{value:.3g}" if isinstance(value, float) and abs(value) < 1000 else f"{value:g}"
    return short.replace("-", "−")


def _as_curves(trees: Sequence[ET.Element], at_start: int):
    """(start tree, slots, frames) if the trees differ in coordinates and words only; else None.

    A slot is (element number, attribute, or "" for its text); a frame gives one value per slot.
    """
    lists = [list(tree.iter())[1:] for tree in trees]  # the order of querySelectorAll('*')
    shapes = {tuple((e.tag, tuple(sorted(e.attrib))) for e in elements) for elements in lists}
    if (
        len(shapes) > 1
        or len({tree.get("viewBox") for tree in trees}) > 1
        or any(e.tag == f"{SVG}image" for e in lists[0])
    ):
        return None
    slots = []
    for number, together in enumerate(zip(*lists, strict=True)):
        slots += [(number, key) for key in together[0].attrib if len({e.get(key) for e in together}) > 1]
        if len({e.text for e in together}) > 1:
            slots.append((number, ""))
    frames = [[elements[n].get(key) if key else elements[n].text or "" for n, key in slots] for elements in lists]
    return trees[at_start], [(n, "href" if key == HREF else key) for n, key in slots], frames


def _inline(root: ET.Element, alt: str) -> str:
    body = "".join(ET.tostring(child, encoding="unicode") for child in root)
    body = re.sub(r' xmlns(:\w+)?="[^"]+"', "", body).replace("xlink:href", "href")
    return (
        f'<svg viewBox="{root.get("viewBox")}" role="img" aria-label="{html.escape(alt)}" '
        'style="width:100%;height:auto;background:#fff;stroke-linejoin:round;stroke-linecap:butt">' + body + "</svg>"
    )


def _says(alt: str) -> str:
    return f'<p class="says" aria-live="polite">{html.escape(alt)}</p>'


def _webp(figure: Figure) -> str:
    buffer = io.BytesIO()
    with mpl.rc_context(STYLE):
        figure.savefig(buffer, format="webp", pil_kwargs={"quality": 80, "method": 4})
    return base64.b64encode(buffer.getvalue()).decode()


def _image(webp: str, alt: str) -> str:
    return f'<img src="data:image/webp;base64,{webp}" alt="{html.escape(alt)}" style="width:100%;height:auto">'
