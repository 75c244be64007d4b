"""What `probe` found: in the terminal, as one page of HTML, as JSON."""

import io
import json
import math
import statistics
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jinja2 import Environment
from markupsafe import Markup

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
    "log norm": ("log norm", "largest rate at which two neighbouring states can separate"),
    "growth, random": ("nudged", "growth of a small random perturbation"),
    "growth, worst": ("worst nudge", "growth of the worst small perturbation"),
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

PANELS = ("step", "doubling", "smoothness", "non-uniformity, usual tokens", "transport")
# the network, then its controls
LINES = (("#0072B2", "-"), ("#D55E00", "--"), ("#009E73", ":"), ("#CC79A7", "-."), ("#555555", (0, (5, 1))))


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
        if added <= 0.1 * sum(map(abs, changes.values())):
            return None
        symbol, layer = max(changes, key=changes.get)
        token, share = self.layers[f"energy {symbol}, largest token"][layer]
        return symbol, layer, changes[symbol, layer] / added, int(token), share


@dataclass(frozen=True)
class Report:
    """Every figure of a network and its controls, and what they say in words."""

    model: str
    scheme: str
    names: tuple[str, ...]
    examples: int
    tokens: int
    status: str
    runs: dict[str, Run]
    notes: tuple[str, ...] = ()

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
        return [*self.outstanding(), *self.ordinary()]

    def outstanding(self) -> list[str]:
        """The findings whose number is another one with new or permuted weights, or that have no such control."""
        ends = f"Layer {len(self.names)} gives NaN or infinite numbers: the report ends before it."
        diverged = [ends] if self.status == "diverged" else []
        return [*diverged, *(words for words, apart in self._judged() if apart), *self._of_the_loss()]

    def ordinary(self) -> list[str]:
        """The findings that networks without training have as well."""
        return [words for words, apart in self._judged() if not apart]

    def _judged(self) -> list[tuple[str, bool]]:
        return [*self._of_time(), *self._of_energy()]

    def _untrained(self) -> dict[str, Run]:
        """The controls that say what a number is worth; the shuffled ones ask something else."""
        return {name: run for name, run in self.runs.items() if name in ("random", "permuted") and not run.note}

    def _beside(self, name: str, baseline: str = "") -> str:
        """(random 0.18, permuted 0.21): the same figure of the controls, each with its baseline if there is one."""
        found = []
        for control, run in self.runs.items():
            if control != "model" and not math.isnan(run.typical(name)):
                steps = f", independent steps {run.typical(baseline):.2f}" if baseline else ""
                found.append(f"{control} {run.typical(name):.2f}{steps}")
        return f" ({('; ' if baseline else ', ').join(found)})" if found else ""

    def _of_time(self) -> list[tuple[str, bool]]:
        own, chance = self.own, "straightness of independent steps"
        words = {
            "straightness": "Paths of tokens have straightness {:.2f}; independent steps of these lengths would have "
            f"{own.typical(chance):.2f}",
            "doubling": "Two half steps in place of one change the median layer's step by {:.2f} of it",
            "smoothness": "The next layer's step at the same state has a cosine of {:.2f} with this one's",
            "sum or sweep": "If all branches read u, the median layer's step changes by {:.2f} of it",
        }

        def apart(name: str) -> bool:
            return _apart(own.typical(name), [run.typical(name) for run in self._untrained().values()])

        said = [
            (
                f"{text.format(own.typical(name))}{self._beside(name, chance if name == 'straightness' else '')}.",
                apart(name),
            )
            for name, text in words.items()
            if not math.isnan(own.typical(name))
        ]
        random, worst = own.typical("growth, random"), own.typical("growth, worst")
        if not math.isnan(worst):
            sentence = (
                f"A small nudge in a random direction grows by {random:.2f} per layer, in the worst direction by at "
                f"least {worst:.2f}, where it was measured{self._beside('growth, worst')}."
            )
            said.append((sentence, apart("growth, worst")))
        return said

    def _of_energy(self) -> list[tuple[str, bool]]:
        said, untrained = [], self._untrained()
        if (most := self.own.largest_write()) is not None:
            symbol, layer, share, token, at = most
            others = {c: run.largest_write() for c, run in self.runs.items() if c != "model" and run.symbols()}
            beside = ", ".join(f"{c} {f'{100 * w[2]:.0f} %' if w else 'none'}" for c, w in others.items())
            sentence = (
                f"{symbol} of layer {layer} writes {100 * share:.0f} % of all energy that layers add, "
                f"{100 * at:.0f} % of it at token {token}" + (f" (largest write: {beside})." if beside else ".")
            )
            said.append((sentence, _apart(share, [w[2] if w else 0.0 for c, w in others.items() if c in untrained])))
        for symbol in self.own.symbols():
            rows = {name: run.middle(f"energy {symbol}") for name, run in self.runs.items() if not run.note}
            lost = {name: sum(x < 0 for x in row) for name, row in rows.items()}
            beside = ", ".join(f"{name} {lost[name]} of {len(row)}" for name, row in rows.items() if name != "model")
            words = f"{symbol} takes energy away in {lost['model']} of {len(rows['model'])} layers"
            apart = _apart(lost["model"], [lost[name] for name in untrained])
            said.append((f"{words} ({beside})." if beside else f"{words}.", apart))
        counts = {name: len(_said(run)) for name, run in self.runs.items() if not run.note}
        if counts["model"]:
            layer, words = _said(self.own)[0]
            beside = ", ".join(f"{name} {count}" for name, count in counts.items() if name != "model")
            sentence = (
                f"{counts['model']} of {len(self.names)} layers leave tokens more than five times as long as the median"
                f"{f' ({beside})' if beside else ''}; the first is layer {layer}: {words}."
            )
            said.append((sentence, _apart(counts["model"], [counts[name] for name in untrained])))
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
        if chance and whole["loss without them"][0] > max(whole["loss without as many by chance"]):
            beside += ". Here what they carry does not tell which layers matter"
        return [f"The loss is {loss}; without {layers} {', '.join(least)}, which {carry} least, {without}{beside}."]

    def advice(self) -> str:
        """How far the median step is known from so many examples, and how many more would halve that."""
        steps = self.own.whole.get("median step of each example", [])
        if len(steps) < 3:
            return f"Fewer than 3 examples ({len(steps)}) do not tell how the network treats others; give at least 8."
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
        made = {
            "What stands out" if untrained else "What was found": self.outstanding(),
            f"No different with {untrained} weights": self.ordinary(),
            "How it was measured": [*self._of_controls(), self.advice()],
        }
        return {head: sentences for head, sentences in made.items() if sentences}

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
            "findings": self.findings(),
            "no different with random or permuted weights": self.ordinary(),
            "advice": self.advice(),
            "runs": {name: vars(run) for name, run in self.runs.items()},
        }
        text = json.dumps(_without_nan(content), ensure_ascii=False, indent=1)
        if path is not None:
            Path(path).write_text(text, encoding="utf-8")
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
        return figure

    def _panels(self) -> list[str]:
        return [*(name for name in PANELS if not math.isnan(self.own.typical(name))), "energy"]

    def _drawn(self, name: str) -> Markup:
        """One panel as SVG, with ids of its own."""
        from matplotlib.figure import Figure

        figure, drawn = Figure(figsize=(5, 3.2), layout="constrained"), io.StringIO()
        self._panel(figure.subplots(), name)
        figure.savefig(drawn, format="svg")
        picture = drawn.getvalue()
        for mark in ('id="', 'href="#', "url(#"):
            picture = picture.replace(mark, f"{mark}{self._panels().index(name)}-")
        return Markup(picture[picture.index("<svg") :])

    def _energies(self, ax) -> None:
        for symbol in self.own.symbols():
            ax.plot(self.own.middle(f"energy {symbol}"), "o-", ms=3, label=symbol)
        sizes = [abs(x) for symbol in self.own.symbols() for x in self.own.middle(f"energy {symbol}") if x]
        ax.set_yscale("symlog", linthresh=10 ** round(math.log10(statistics.median(sizes))) if sizes else 1.0)
        ax.xaxis.get_major_locator().set_params(integer=True)
        ax.set(title="energy that each term adds, mean over tokens", xlabel="layer")
        ax.legend(frameon=False, fontsize=8)

    def _panel(self, ax, name: str) -> None:
        """One figure of all networks along their layers, for this one with its 5th and 95th percentile; or energies."""
        if name == "energy":
            self._energies(ax)
            return
        for (control, run), (colour, dashes) in zip(self.runs.items(), LINES, strict=False):
            own = control == "model"
            line = {"color": colour, "linestyle": dashes, "lw": 2.2 if own else 1.2, "zorder": 3 if own else 2}
            if not run.note:
                ax.plot(run.middle(name), label="this network" if own else control, **line)
        rows = [row if len(row) == 3 else [math.nan] * 3 for row in self.own.layers[name]]
        low, _, high = zip(*rows, strict=True)
        ax.fill_between(range(len(rows)), low, high, color=LINES[0][0], alpha=0.15)
        ax.set(title=FIGURES[name][0], xlabel="layer")
        ax.xaxis.get_major_locator().set_params(integer=True)
        if name in ("step", "transport"):  # the first layer's may be a hundred times the others'
            ax.set_yscale("log")
        if name == self._panels()[0]:
            ax.legend(frameon=False, fontsize=8)

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
        """The page, or for a path that ends in .json the numbers."""
        if Path(path).suffix == ".json":
            self.to_json(path)
        else:
            Path(path).write_text(self.to_html(), encoding="utf-8")


PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ report.title }}</title>
<style>
body { font: 16px/1.5 system-ui, sans-serif; max-width: 64rem; margin: 2rem auto; padding: 0 1rem }
body { color: #222; background: #fff }
svg { max-width: 100%; height: auto }
.wide { overflow-x: auto }
.panels { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(24rem, 100%), 1fr)); gap: .5rem }
.panels svg { width: 100% }
th:first-child { position: sticky; left: 0; background: #fff }
table { border-collapse: collapse; font-size: .85rem; white-space: nowrap }
th, td { padding: .2rem .6rem; text-align: right; border-bottom: 1px solid #ddd }
dt { font-weight: 600 }
dd { margin: 0 0 .3rem 1rem }
@media (prefers-color-scheme: dark) {
  body, th:first-child { color: #ddd; background: #16181c }
  th, td { border-color: #444 }
  .panels svg { background: #fff }
}
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
<dl>{% for head, words in meanings %}<dt>{{ head }}</dt><dd>{{ words }}</dd>{% endfor %}</dl>
</body>
</html>
"""


def _said(run: Run) -> list[tuple[int, str]]:
    """The layers that leave outliers, and which."""
    return [(layer, words) for layer, words in enumerate(run.words.get("outliers", [])) if words]


def _apart(x: float, others: Sequence[float]) -> bool:
    """Whether x is outside the range of the others by more than a tenth of it and 0.01; True if there are none."""
    known = [other for other in others if not math.isnan(other)]
    least = max(0.1 * abs(x), 0.01)
    return not known or x > max(known) + least or x < min(known) - least


def _short(x: float, digits: int = 3) -> str:
    if math.isnan(x):
        return "·"
    if x and not 1e-3 <= abs(x) < 1e4:
        return f"{x:.{digits - 2}e}".replace("e+0", "e").replace("e-0", "e-")
    return f"{x:.0f}" if abs(x) >= 1000 else f"{x:.{digits}g}"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    return ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]


def _without_nan(x: Any) -> Any:
    """JSON has no NaN."""
    if isinstance(x, dict):
        return {key: _without_nan(value) for key, value in x.items()}
    if isinstance(x, list | tuple):
        return [_without_nan(value) for value in x]
    return None if isinstance(x, float) and not math.isfinite(x) else x
