"""The scale of the embedding sets the fidelity, not the dynamics.  (P2 figure 4)

A pre-LayerNorm layer reads LN(u) and so adds as much to a large state as to a small one: with an embedding s times as
large, 1 − cos(u_l, u_0) falls as 1/s². A post-LayerNorm layer adds Att(u), which grows with u.

Here the embedding of a pre- and a post-LayerNorm Transformer is multiplied by s before training, all else alike, and
the training is short. `pre s/…`, `post s/…`: fidelity, accuracy, size of the embedding. As controls: the same model
untrained, and two models that cannot be related to it but for its embedding, a second Transformer (`other`) and the
printed simulator (`printed`), both untrained: their cosine with its states, trained and untrained, and their own
fidelity. A copy of the input has the fidelity as its cosine.

`best/lowest_fidelity` is the least fidelity from the embedding to the last layer but one (L0 to L5 of P2), at that s of
pre-LayerNorm where it is largest. `untrained_best/…`, `other_best/…` and `printed_best/…`: the controls' own best s.
"""

import torch

from pdebook.evidence import alignment
from pdebook.evidence.experiment import Scale, Workplace, experiment
from pdebook.evidence.trained import TASKS, Measured, Task, build, look, named, trained
from pdebook.ledger.record import Figures, Key, Result
from pdelab.datasets.base import Dataset, Examples
from pdelab.metrics.similarity import fidelity
from pdelab.metrics.stability import state_rms
from pdelab.models import Embedding, Model
from pdelab.seeds import derive
from pdelab.status import Status

SCALES = (1, 3, 10, 30)
KINDS = {"pre": "transformer", "post": "residual_norm"}
UNRELATED = ("other", "printed")
STEPS = 300


@torch.no_grad()
def enlarge(embed: Embedding, factor: float) -> None:
    """E(x) + P(x) times the factor, in place."""
    for weights in embed.parameters():
        weights.mul_(factor)


def beside_unrelated(model: Model, task: Task, data: Dataset, seed: int, probe: Examples) -> Figures | None:
    """The model's fidelity, and the cosine of its states with those of unrelated models that share its embedding.

    None if a run diverges.
    """
    run = look(model, probe)
    if run.status is Status.DIVERGED:
        return None

    figures = {"fidelity": fidelity(run).tolist(), "input_rms": state_rms(run.states[0], run.mask).item()}
    for kind in UNRELATED:
        other = build(kind, task, data, seed).to(run.final.device)
        other.embed.load_state_dict(model.embed.state_dict())
        seen = look(other, probe)
        if seen.status is Status.DIVERGED:
            return None
        figures[kind] = alignment.alignment(seen.states, run, ["cosine"])["cosine"]
        figures[f"{kind}_fidelity"] = fidelity(seen).tolist()
    return figures


def lowest_at_best(figures: Figures, word: str = "") -> Figures:
    """The least fidelity of L0 to L5, at the scale of pre-LayerNorm where it is largest; {} if all diverged.

    word: whose fidelity, "" for the trained model's own, or "untrained_", "other_" or "printed_".
    """
    keys = [Key(f"pre {s}", word + "fidelity") for s in SCALES]
    least = [min(figures[key][:-1]) for key in keys if key in figures]
    return {Key(word + "best", "lowest_fidelity"): max(least)} if least else {}


@experiment("embedding_scale", Scale.SMOKE, Scale.BOOK)
def run(scale: Scale, seed: int, work: Workplace) -> Result:
    """Fidelity of pre- and post-LayerNorm Transformers on ListOps with the embedding 1, 3, 10 and 30 times as large."""
    task = TASKS["listops"][scale].cut(STEPS)
    data, found = task.load(seed), Measured()
    probe = data.test.take(slice(0, task.probe))
    for place, kind in KINDS.items():
        for factor in SCALES:
            name = f"{place} {factor}"
            model = build(kind, task, data, seed).to(work.device)
            enlarge(model.embed, factor)
            before = beside_unrelated(model, task, data, seed, probe)
            record = trained(model, data, task.settings, derive(seed, kind, "training"), work, name)
            found.made_by(record.commits)
            after = beside_unrelated(model, task, data, seed, probe) if record.status != Status.DIVERGED else None
            if before is None or after is None:
                found.diverged[name] = record.stopped_at or record.step
                continue
            found.controls |= named(name, {f"untrained_{key}": value for key, value in before.items()})
            own = {key: after.pop(key) for key in ("fidelity", "input_rms")}
            found.controls |= named(name, after)
            found.figures |= named(name, own | {"accuracy": record.accuracy})

    found.figures |= lowest_at_best(found.figures)
    for word in ("untrained_", *(f"{kind}_" for kind in UNRELATED)):
        found.controls |= lowest_at_best(found.controls, word)
    return found.result("embedding_scale", task, scale, seed, scales=list(SCALES))
