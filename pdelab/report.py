"""What `probe` found: in the terminal, as one page of HTML, as JSON."""

import io
import json
import math
import statistics
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import methodcaller
from pathlib import Path
from typing import Any

from jinja2 import Environment
from markupsafe import Markup

from pdelab.files import write_atomically

# figure -> how a table heads it, and what it says
FIGURES = {
    "step": ("step", "|Δ|/|u|, the length of the layer's step"),
    "angle": (
        "angle",
        "between this step and the one before, in degrees; 90 if they have nothing to do with each other",
    ),
    "doubling": ("halved", "|Φ½Φ½u − Φ₁u|/|Δ|: what two half steps change; small where the step is resolved"),
    "smoothness": ("next", "cosine of this layer's step with the next layer's at the same u; 1 where depth is smooth"),
    "commutator": ("swapped", "what swapping the layer with the next changes, relative to the two steps"),
    "sum or sweep": ("sum", "what changes if all branches read u, relative to the step; 0 where order does not matter"),
    "fidelity": ("kept", "cosine with the embedding"),
    "non-uniformity, usual tokens": ("spread", "√(Σ|u_i−μ|²/Σ|u_i|²) without outliers; 0 where all tokens are equal"),
    "dimension": ("dim", "effective dimension of the cloud of tokens"),
    "towards the mean": ("λ", "rate at which the tokens leave their mean"),
    "log norm": ("log norm", "at least this is the largest rate at which two neighbouring states separate"),
    "growth, random": ("nudged", "growth of a small random perturbation"),
    "growth, worst": ("worst nudge", "by at least this the worst small perturbation grows"),
    "diffusivity": ("D", "½ Σ_j (x_j − x_i)² tr J_ij/d, the layer's diffusivity along the tokens"),
    "transport": ("carries", "Σ_i |∂loss/∂u_i| |Δ_i|, what the layer carries towards the loss"),
}
SHOWN = (
    "step",
    "angle",
    "doubling",
    "smoothness",
    "sum or sweep",
    "fidelity",
    "non-uniformity, usual tokens",
    "transport",
)
UNTRAINED = ("random", "permuted")  # the controls that say what a number is worth; the others ask something else

PANELS = ("step", "doubling", "smoothness", "non-uniformity, usual tokens", "transport")
# the network, then its controls: colour, dashes and gaps
LINES = (("#0072B2", ()), ("#D55E00", (6, 3)), ("#009E73", (2, 2)), ("#CC79A7", (8, 2, 2, 2)), ("#808080", (5, 1)))


@dataclass
class Run:
    """The figures of one network. layers: for each layer a list of numbers, three where they are quantiles over tokens.

    words: for each layer a sentence. whole: figures of the whole network. note: why there are none. order: of shuffled
    layers, which of the network's stands at each place. kept: the weights that were not drawn anew.
    """

    layers: dict[str, list[list[float]]] = field(default_factory=dict)
    words: dict[str, list[str]] = field(default_factory=dict)
    whole: dict[str, list[float]] = field(default_factory=dict)
    note: str = ""
    order: list[int] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)

    def add(self, layer: int, name: str, values: list[float]) -> None:
        rows = self.layers.setdefault(name, [])
        rows.extend([] for _ in range(layer - len(rows)))
        rows.append(values)

    def skip(self, layer: int, *names: str) -> None:
        for name in names:
            self.add(layer, name, [])

    def say(self, name: str, words: str) -> None:
        """The words of the next layer."""
        self.words.setdefault(name, []).append(words)

    def middle(self, name: str) -> list[float]:
        """For each layer the median over tokens, or the one number there is; NaN where it was not measured."""
        return [row[len(row) // 2] if row else math.nan for row in self.layers.get(name, [])]

    def typical(self, name: str) -> float:
        """The median over the layers, or over the tokens of a figure of whole paths; NaN if it was not measured."""
        if name in self.whole:
            return self.whole[name][len(self.whole[name]) // 2]
        found = [x for x in self.middle(name) if not math.isnan(x)]
        return statistics.median(found) if found else math.nan

    def symbols(self) -> list[str]:
        return [name.removeprefix("energy ") for name in self.layers if name.startswith("energy ") and "," not in name]

    def largest_write(self) -> tuple[str, int, float, int, float] | None:
        """symbol, layer, its share of all energy that is added, the token that gets most of it, and the token's share.

        None where hardly any is added: less than a tenth of all that changes.
        """
        changes = {
            (symbol, layer): row[0]
            for symbol in self.symbols()
            for layer, row in enumerate(self.layers[f"energy {symbol}"])
            if row
        }
        added = sum(x for x in changes.values() if x > 0)
        if not added > 0.1 * sum(map(abs, changes.values())):
            return None
        symbol, layer = max(changes, key=changes.get)
        token, share = self.layers[f"energy {symbol}, largest token"][layer]
        return symbol, layer, changes[symbol, layer] / added, int(token), share

    def numbers(self) -> dict[str, Any]:
        """All of it, with None for a figure that was not measured or does not exist."""
        layers = {name: [_or_none(row) for row in rows] for name, rows in self.layers.items()}
        return vars(self) | {"layers": layers, "whole": {name: _or_none(row) for name, row in self.whole.items()}}

    def largest_share(self) -> float:
        found = self.largest_write()
        return found[2] if found else 0.0

    def losing(self, symbol: str) -> int:
        """In how many layers this term takes energy away."""
        return sum(x < 0 for x in self.middle(f"energy {symbol}"))

    def said(self) -> list[tuple[int, str]]:
        """The layers that leave outliers, and which."""
        return [(layer, words) for layer, words in enumerate(self.words.get("outliers", [])) if words]


@dataclass(frozen=True)
class Report:
    """Every figure of a network and its controls, and what they say in words.

    runs: of the network, and of each control the first draw; draws: the others. made: how, when and with what.
    """

    model: str
    scheme: str
    names: tuple[str, ...]
    examples: int
    tokens: int
    status: str
    runs: dict[str, Run]
    notes: tuple[str, ...] = ()
    draws: dict[str, list[Run]] = field(default_factory=dict)
    made: dict[str, Any] = field(default_factory=dict)

    @property
    def title(self) -> str:
        return f"{self.model}: {len(self.names)} layers, {self.scheme}"

    @property
    def own(self) -> Run:
        return self.runs["model"]

    @property
    def table(self) -> list[dict[str, Any]]:
        """One row per layer: its name, and the median of every figure."""
        figures = {name: self.own.middle(name) for name in self.own.layers}
        return [
            {"layer": layer, "name": name} | {figure: values[layer] for figure, values in figures.items()}
            for layer, name in enumerate(self.names[: len(self.own.layers.get("step", []))])
        ]

    # in words

    def findings(self) -> list[str]:
        """What was found, each with its number and, in brackets, what the controls have; first what stands out."""
        others = (words for kind in ("shared", "open", "alike") for words in self._judged(kind))
        return [*self.outstanding(), *self._of_the_loss(), *others]

    def outstanding(self) -> list[str]:
        """The findings whose number is another one with new weights and with permuted ones, or that have no control.

        It is another one if it is outside the range of the control's draws by more than the length of that range, and
        by more than a tenth of the number, 0.01 and, of layers that are counted, a quarter. Of independent normal
        numbers with one distribution, and three draws of both controls, that says so of 3 % in error.
        """
        ends = f"Layer {len(self.names)} gives NaN or infinite numbers: the report ends before it."
        diverged = [ends] if self.status == "diverged" else []
        return [*diverged, *self._judged("apart")]

    def ordinary(self) -> list[str]:
        """The findings that networks without training have as well."""
        return self._judged("alike")

    def _judged(self, kind: str) -> list[str]:
        return [words for words, found in (*self._of_time(), *self._of_energy()) if found == kind]

    def _runs_of(self, control: str) -> list[Run]:
        return [run for run in (self.runs[control], *self.draws.get(control, ())) if not run.note]

    def _untrained(self) -> list[str]:
        return [name for name in UNTRAINED if name in self.runs and self._runs_of(name)]

    def _judge(self, words: str, number: Callable[[Run], float], least: float = 0.01) -> tuple[str, str]:
        """The words, and where they stand: apart from the controls, alike, shared with one, or open: too few draws."""
        x = number(self.own)
        found = {
            name: [y for run in self._runs_of(name) if not math.isnan(y := number(run))] for name in self._untrained()
        }
        sides = {name: _side(x, draws, least) for name, draws in found.items() if len(draws) > 1}
        alike = [name for name, side in sides.items() if not side]
        if not sides:
            return f"{words}.", "open" if found else "apart"
        if alike:
            same = len(alike) == len(sides)
            return (f"{words}.", "alike") if same else (f"{words}: as with {alike[0]} weights.", "shared")
        return f"{words}{': between the controls' if len({*sides.values()}) > 1 else ''}.", "apart"

    def _beside(self, number: Callable[[Run], float], form: str = "{:.2f}", baseline: str = "") -> str:
        """random 0.18 to 0.21, permuted 0.2: the controls, from the least to the most of their draws."""
        found = []
        for control in list(self.runs)[1:]:
            if values := [x for run in self._runs_of(control) if not math.isnan(x := number(run))]:
                steps = f", independent steps {self.runs[control].typical(baseline):.2f}" if baseline else ""
                found.append(f"{control} {_span(values, form)}{steps}")
        return ("; " if baseline else ", ").join(found)

    def _of_time(self) -> list[tuple[str, str]]:
        own, chance = self.own, "straightness of independent steps"
        words = {
            "straightness": "Paths of tokens have straightness {:.2f}; independent steps of these lengths would have "
            f"{own.typical(chance):.2f}",
            "doubling": "Two half steps in place of one change the median layer's step by {:.2f} of it",
            "smoothness": "The next layer's step at the same state has a cosine of {:.2f} with this one's",
            "sum or sweep": "If all branches read u, the median layer's step changes by {:.2f} of it",
        }
        said = []
        for name, text in words.items():
            number = methodcaller("typical", name)
            if not math.isnan(number(own)):
                beside = self._beside(number, baseline=chance if name == "straightness" else "")
                said.append(self._judge(text.format(number(own)) + _bracketed(beside), number))
        growths = {name: run.typical("growth, worst") for name, run in self.runs.items()}
        if not math.isnan(growths["model"]):
            beside = ""
            if not math.isnan(growths.get("random", math.nan)):
                control = self.runs["random"].typical("growth, random")
                beside = f"with random weights {control:.2f} and at least {growths['random']:.2f}"
            text = (
                f"A small nudge in a random direction grows by {own.typical('growth, random'):.2f} per layer, in the "
                f"worst direction by at least {growths['model']:.2f}, where it was measured{_bracketed(beside)}"
            )
            said.append(self._judge(text, methodcaller("typical", "growth, worst")))
        return said

    def _of_energy(self) -> list[tuple[str, str]]:
        said = []
        if (most := self.own.largest_write()) is not None:
            symbol, layer, share, token, at = most
            beside = self._beside(Run.largest_share, "{:.0%}").replace("%", " %")
            words = (
                f"{symbol} of layer {layer} writes {100 * share:.0f} % of all energy that layers add, "
                f"{100 * at:.0f} % of it at token {token}{_bracketed('largest write: ' * bool(beside) + beside)}"
            )
            said.append(self._judge(words, Run.largest_share))
        quarter, layers = len(self.own.middle("step")) / 4, f"of {len(self.own.middle('step'))} layers"
        for symbol in self.own.symbols():
            number = methodcaller("losing", symbol)
            words = f"{symbol} takes energy away in {number(self.own)} {layers}"
            said.append(self._judge(words + _bracketed(self._beside(number, "{:.0f}")), number, quarter))
        if self.own.said():
            layer, words = self.own.said()[0]
            number = lambda run: len(run.said())  # noqa: E731
            words = (
                f"{number(self.own)} {layers} leave tokens more than five times as long as the median"
                f"{_bracketed(self._beside(number, '{:.0f}'))}; the first is layer {layer}: {words}"
            )
            said.append(self._judge(words, number, quarter))
        return said

    def _of_the_loss(self) -> list[str]:
        whole = self.own.whole
        if "loss" not in whole:
            return []
        least = [str(int(layer)) for layer in whole["layers carrying least"]]
        layers, carry = ("layer", "carries") if len(least) == 1 else ("layers", "carry")
        loss, without, *chance = (
            _short(x, 4)
            for x in (*whole["loss"], *whole["loss without them"], *sorted(whole["loss without as many by chance"]))
        )
        beside = f"; without as many others {chance[0]} to {chance[-1]} ({len(chance)} draws)" if chance else ""
        if chance and whole["loss without them"][0] >= min(whole["loss without as many by chance"]):
            beside += ". What they carry tells no better than chance here which layers matter"
        return [f"The loss is {loss}; without {layers} {', '.join(least)}, which {carry} least, {without}{beside}."]

    def advice(self) -> str:
        """How far the median step is known from so many examples, and how many more would halve that."""
        steps = self.own.whole.get("median step of each example", [])
        if len(steps) < 3:
            return f"Fewer than 3 examples ({len(steps)}) do not tell how the network treats others; give at least 8."
        if not 0 < sum(steps) < math.inf:
            return "How well the median step is known cannot be said: it is 0, or overflows."
        error = statistics.stdev(steps) / len(steps) ** 0.5 / statistics.mean(steps)
        return (
            f"From {len(steps)} examples the median step is known to ±{200 * error:.1f} %; "
            f"{4 * len(steps)} examples would halve that."
        )

    # on a terminal, as a page, as data

    def __str__(self) -> str:
        shown = [name for name in SHOWN if not math.isnan(self.own.typical(name))]
        energies = [f"energy {symbol}" for symbol in self.own.symbols()]
        heads = [FIGURES[name][0] for name in shown] + [f"E {symbol}" for symbol in self.own.symbols()]
        lines = [
            f"{self.title}; {self.examples} examples, {self.tokens} tokens; {self.status}",
            *(textwrap.fill(note, 80, subsequent_indent="  ") for note in self.notes),
            "",
            *_aligned([["layer", *heads], *self._rows((*shown, *energies))]),
            "step to kept: medians over tokens; for controls all are medians over their layers",
            "E A, E R, …: energy ½|u|² that each term adds to a token, mean over tokens",
            *(textwrap.fill(": ".join(FIGURES[name]), 80, subsequent_indent="  ") for name in shown),
            "·: not measured here, or not a finite number",
            "",
        ]
        for head, sentences in self.sections().items():
            lines += [
                f"{head}:",
                *(textwrap.fill(x, 80, initial_indent="- ", subsequent_indent="  ") for x in sentences),
            ]
        return "\n".join(lines)

    def sections(self) -> dict[str, list[str]]:
        """The findings, those that stand out apart from the others, and how the controls were made or why not."""
        untrained = " or ".join(self._untrained())
        made = [", ".join(f"{name} {value}" for name, value in self.made.items()) + "."] if self.made else []
        found = {
            "What stands out" if untrained else "What was found": self.outstanding(),
            "The loss": self._of_the_loss(),
            "What one of the controls has too": self._judged("shared"),
            "Not judged, which takes two draws of a control": self._judged("open"),
            f"No different with {untrained} weights": self.ordinary(),
            "How it was measured": [*self._of_controls(), self.advice(), *made],
        }
        return {head: sentences for head, sentences in found.items() if sentences}

    def _of_controls(self) -> list[str]:
        """How the controls were made, or why they could not be."""
        said = []
        for name, run in self.runs.items():
            if run.note:
                said.append(f"No control {name!r}: {run.note}.")
            if run.order:
                said.append(f"{name}: their order is {', '.join(map(str, run.order))}.")
            if run.kept:
                weights = f"{len(run.kept)} weight{'s' if len(run.kept) > 1 else ''}"
                shown = ", ".join([*run.kept[:3], *(["…"] if len(run.kept) > 3 else [])])
                said.append(f"{name} keeps {weights} as trained ({shown}).")
        return said

    def to_json(self, path: str | Path | None = None) -> str:
        """Every number, as JSON; what was not measured is null. Written to the path, if one is given."""
        content = {
            "model": self.model,
            "scheme": self.scheme,
            "layers": list(self.names),
            "examples": self.examples,
            "tokens": self.tokens,
            "status": self.status,
            "notes": self.notes,
            "figures": {name: {"column": head, "meaning": words} for name, (head, words) in FIGURES.items()},
            "quantiles": [0.05, 0.5, 0.95],
            "findings": [*self.outstanding(), *self._of_the_loss(), *self._judged("shared"), *self._judged("open")],
            "no different with random or permuted weights": self.ordinary(),
            "advice": self.advice(),
            "made": self.made,
            "runs": {name: run.numbers() for name, run in self.runs.items()},
            "draws": {name: [run.numbers() for run in draws] for name, draws in self.draws.items()},
        }
        text = json.dumps(_without_nan(content), ensure_ascii=False, indent=1)
        if path is not None:
            write_atomically(Path(path), text)
        return text

    def plot(self):
        """Up to six panels, the network in front of its controls: a matplotlib Figure."""
        from matplotlib.figure import Figure

        names = self._panels()
        figure = Figure(figsize=(10, 9), layout="constrained")
        axes = figure.subplots(math.ceil(len(names) / 2), 2).flatten()
        for ax, name in zip(axes, names, strict=False):
            self._panel(ax, name)
        for ax in axes[len(names) :]:
            ax.set_axis_off()
        figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=len(LINES), frameon=False)
        return figure

    def _panels(self) -> list[str]:
        return [*(name for name in PANELS if not math.isnan(self.own.typical(name))), "energy"]

    def _drawn(self, name: str) -> Markup:
        """One panel as SVG, with ids of its own."""
        from matplotlib.figure import Figure

        figure, drawn = Figure(figsize=(5, 3.2), layout="constrained"), io.StringIO()
        self._panel(figure.subplots(), name)
        figure.savefig(drawn, format="svg", transparent=True)
        picture = drawn.getvalue().replace("#000000", "currentColor")
        for mark in ('id="', 'href="#', "url(#"):
            picture = picture.replace(mark, f"{mark}{self._panels().index(name)}-")
        return Markup(picture[picture.index("<svg") :])

    def _energies(self, ax) -> None:
        for symbol in self.own.symbols():
            ax.plot(self.own.middle(f"energy {symbol}"), "o-", ms=3, label=symbol)
        sizes = [abs(x) for name in self.own.symbols() for x in self.own.middle(f"energy {name}")]
        sizes = [x for x in sizes if 0 < x < math.inf]
        ax.set_yscale("symlog", linthresh=10 ** round(math.log10(statistics.median(sizes))) if sizes else 1.0)
        ax.xaxis.get_major_locator().set_params(integer=True)
        ax.set(title="energy that each term adds, mean over tokens", xlabel="layer")
        ax.legend(frameon=False, fontsize=8)

    def _panel(self, ax, name: str) -> None:
        """One figure of all networks along their layers, for this one with its 5th and 95th percentile; or energies."""
        from matplotlib.ticker import LogLocator, NullLocator

        if name == "energy":
            self._energies(ax)
            return
        for (control, run), (colour, dashes) in zip(self.runs.items(), LINES, strict=False):
            own = control == "model"
            line = {"color": colour, "dashes": dashes, "lw": 2.2 if own else 1.2, "zorder": 3 if own else 2}
            if not run.note:
                ax.plot(run.middle(name), label="this network" if own else control, **line)
        rows = [row if len(row) == 3 else [math.nan] * 3 for row in self.own.layers[name]]
        low, _, high = zip(*rows, strict=True)
        ax.fill_between(range(len(rows)), low, high, color=LINES[0][0], alpha=0.15)
        ax.set(title=FIGURES[name][0], xlabel="layer")
        ax.xaxis.get_major_locator().set_params(integer=True)
        if name in ("step", "transport"):  # the first layer's may be a hundred times the others'
            ax.set_yscale("log")
            ax.yaxis.set(major_locator=LogLocator(subs=(1, 2, 3, 5)), minor_locator=NullLocator())
            ax.yaxis.set_major_formatter("{x:g}")

    def to_html(self) -> str:
        """One page that needs nothing else: findings, figures, the table of all layers, what each figure is."""
        shown = [name for name in FIGURES if not math.isnan(self.own.typical(name))]
        shown += [name for name in self.own.layers if name.startswith("energy ") and "largest" not in name]
        return (
            Environment(autoescape=True)
            .from_string(PAGE)
            .render(
                report=self,
                pictures=[self._drawn(name) for name in self._panels()],
                lines=[
                    (name, colour, " ".join(map(str, dashes)))
                    for (name, run), (colour, dashes) in zip(self.runs.items(), LINES, strict=False)
                    if not run.note
                ],
                heads=[FIGURES.get(name, (name,))[0] for name in shown],
                rows=self._rows(shown),
                meanings=[FIGURES[name] for name in shown if name in FIGURES],
            )
        )

    def _rows(self, names: Sequence[str]) -> list[list[str]]:
        """A row per layer, and one for each control, of its typical layer."""
        rows = [[str(row["layer"]), *(_short(row[name]) for name in names)] for row in self.table]
        return rows + [
            [control, *(_short(run.typical(name)) for name in names)]
            for control, run in self.runs.items()
            if control != "model" and not run.note
        ]

    def save(self, path: str | Path) -> None:
        """The page for a path that ends in .html, the numbers for .json; its folder is made if it is missing."""
        if Path(path).suffix not in (".html", ".json"):
            raise ValueError(f"path must end in .html or .json; not {str(path)!r}")
        write_atomically(Path(path), self.to_json() if Path(path).suffix == ".json" else self.to_html())


PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ report.title }}</title>
<style>
:root { --ink: #222; --paper: #fff; --rule: #ddd; --shade: #0004; color-scheme: light dark }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 64rem; margin: 2rem auto; padding: 0 1rem }
body { color: var(--ink); background: var(--paper) }
h1 { overflow-wrap: anywhere }
.wide { width: min(100vw - 3rem, 120rem); margin-left: calc(50% - min(50vw - 1.5rem, 60rem)); overflow-x: auto }
.wide { background: linear-gradient(to left, var(--paper) 2rem, transparent 4rem) local right / 4rem 100% no-repeat,
  linear-gradient(to left, var(--shade), transparent) right / 1rem 100% no-repeat }
.panels { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(24rem, 100%), 1fr)); gap: .5rem }
.panels svg { width: 100%; height: auto; fill: currentColor }
.key span { display: inline-block; margin-right: 1.5rem }
.key svg { width: 3rem; height: .8rem }
th:first-child { position: sticky; left: 0; background: var(--paper) }
table { border-collapse: collapse; font-size: .85rem; white-space: nowrap; margin: auto }
thead th { white-space: normal; vertical-align: bottom; max-width: 5.5rem }
th, td { padding: .2rem .4rem; text-align: right; border-bottom: 1px solid var(--rule) }
dt { font-weight: 600 }
dd { margin: 0 0 .3rem 1rem }
@media (prefers-color-scheme: dark) { :root { --ink: #ddd; --paper: #16181c; --rule: #444; --shade: #fff4 } }
</style>
</head>
<body>
<h1>{{ report.title }}</h1>
<p>{{ report.examples }} examples, {{ report.tokens }} tokens; {{ report.status }}.
Steps, angles and cosines are medians over tokens, energies ½|u|² means; for controls, all are medians over layers.</p>
{% for note in report.notes %}<p>{{ note }}</p>
{% endfor %}{% for head, sentences in report.sections().items() %}<h2>{{ head }}</h2>
<ul>{% for words in sentences %}<li>{{ words }}</li>{% endfor %}</ul>
{% endfor %}<h2>Layer by layer</h2>
<p class="key">{% for name, colour, dashes in lines %}<span><svg viewBox="0 0 48 12" aria-hidden="true">
<path d="M0 6H48" stroke="{{ colour }}" stroke-width="3" stroke-dasharray="{{ dashes }}"/></svg>
{{ "this network" if name == "model" else name }}</span>{% endfor %}<br>
The band holds the network's tokens from the 5th to the 95th percentile.</p>
<div class="panels" role="img" aria-label="Every layer beside its controls; the table has the numbers">
{% for picture in pictures %}{{ picture }}{% endfor %}</div>
<h2>All figures</h2>
<div class="wide" tabindex="0" role="region" aria-label="Table of all figures">
<table>
<thead><tr><th scope="col">layer</th>{% for head in heads %}<th scope="col">{{ head }}</th>{% endfor %}</tr></thead>
<tbody>{% for row in rows %}
<tr><th scope="row">{{ row[0] }}</th>{% for cell in row[1:] %}<td>{{ cell }}</td>{% endfor %}</tr>{% endfor %}
</tbody>
</table>
</div>
<h2>What they are</h2>
<p>· stands where nothing was measured, or the number is not finite.</p>
<dl>{% for head, words in meanings %}<dt>{{ head }}</dt><dd>{{ words }}</dd>{% endfor %}</dl>
</body>
</html>
"""


def _side(x: float, draws: Sequence[float], least: float) -> int:
    """1 if x is far above the draws of a control, −1 if far below, 0 if not; see `Report.outstanding`."""
    far = max(max(draws) - min(draws), 0.1 * abs(x), least)
    return (x > max(draws) + far) - (x < min(draws) - far)


def _span(values: Sequence[float], form: str) -> str:
    low, high = form.format(min(values)), form.format(max(values))
    return low if low == high else f"{low} to {high}"


def _bracketed(words: str) -> str:
    return f" ({words})" if words else ""


def _short(x: float, digits: int = 3) -> str:
    if math.isnan(x):
        return "·"
    if x and not 1e-3 <= abs(x) < 1e4:
        return f"{x:.{digits - 2}e}".replace("e+0", "e").replace("e-0", "e-")
    return f"{x:.0f}" if abs(x) >= 1000 else f"{x:.{digits}g}"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]


def _or_none(row: Sequence[float]) -> Sequence[float] | None:
    return row if any(map(math.isfinite, row)) else None


def _without_nan(x: Any) -> Any:
    """JSON has no NaN."""
    if isinstance(x, dict):
        return {key: _without_nan(value) for key, value in x.items()}
    if isinstance(x, list | tuple):
        return [_without_nan(value) for value in x]
    return None if isinstance(x, float) and not math.isfinite(x) else x
