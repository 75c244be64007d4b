"""The profile of two pretrained networks in depth: every figure of `pdelab.probe`, layer by layer, beside its controls.

NETWORK/FIGURE has one value a layer, the median over tokens, NaN where a derivative was not measured; "…, 5 %" and
"…, 95 %" are the other quantiles. Figures of the whole path, such as straightness, have one value. The controls are
those of `probe`: NETWORK/CONTROL FIGURE, with CONTROL one of random, permuted, shuffled layers and shuffled tokens.
"""

import math
from collections.abc import Sequence

import torch

from pdebook.chapters.beyond.networks import language_model, sentence_model, texts
from pdebook.evidence.experiment import Scale, Workplace, experiment
from pdebook.ledger.record import Figures, Key, Result, Summary, summarise
from pdelab.probing import probe
from pdelab.report import FIGURES, Report, Run

NETWORKS = ("smollm2", "minilm")
SAMPLED = {Scale.SMOKE: 1, Scale.BOOK: 6}  # layers at which derivatives are measured
FEW = 8  # sentences


@experiment("beyond_profile", Scale.SMOKE, Scale.BOOK)
def run(scale: Scale, seed: int, work: Workplace) -> Result:
    """Steps, smoothness, energy, collapse, growth and diffusivity of SmolLM2 and MiniLM in depth, with four controls.

    Seed n: text n and set n of the pairs in data/texts.yml.
    """
    figures: Figures = {}
    controls: Figures = {}
    for name in NETWORKS:
        report = _report(name, scale, seed)
        for arm, found in report.runs.items():
            own = arm == "model"
            (figures if own else controls).update(flat(name, found, "" if own else f"{arm} ", spread=own))
    needs = [] if scale is Scale.SMOKE else list(NETWORKS)
    means = {name: words for name, (_, words) in FIGURES.items()}
    own = {"weights": needs, "texts": list(texts()), "sampled": SAMPLED[scale], "definitions": means}
    return Result("beyond_profile", own, scale, seed, "finished", figures, controls)


def _report(name: str, scale: Scale, seed: int) -> Report:
    """The first piece of the text, or the first sentences."""
    if name == "smollm2":
        model, ids, _ = language_model(scale, seed)
        inputs = {"input_ids": ids[:1]}
    else:
        model, inputs = sentence_model(scale, seed)
        inputs = {key: rows[:FEW] for key, rows in inputs.items()}
    with torch.enable_grad():
        return probe(model, inputs, sampled=SAMPLED[scale], seed=seed, draws=1, progress=False)


def flat(network: str, found: Run, prefix: str = "", *, spread: bool = False) -> Figures:
    """The figures of a run as a Result has them. spread: the other quantiles, too."""
    made: Figures = {}
    for name, rows in found.layers.items():
        if name.endswith("largest token"):
            made[Key(network, f"{prefix}{name}")] = [float(row[0]) for row in rows]
            continue
        made[Key(network, prefix + name)] = found.middle(name)
        if spread and any(len(row) == 3 for row in rows):
            for place, share in ((0, "5 %"), (2, "95 %")):
                made[Key(network, f"{prefix}{name}, {share}")] = [row[place] if row else math.nan for row in rows]
    whole = {name: values[len(values) // 2] for name, values in found.whole.items() if "example" not in name}
    return made | {Key(network, prefix + name): float(value) for name, value in whole.items()}


def curve(results: Sequence[Result], network: str, figure: str, control: str | None = None) -> list[Summary]:
    """One Summary over the texts for each layer, of the network or of one of its controls."""
    key = Key(network, figure if control is None else f"{control} {figure}")
    return summarise(results, key, control=control is not None)
