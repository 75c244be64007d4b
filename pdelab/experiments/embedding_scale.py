"""The scale of the embedding sets the fidelity, not the dynamics.  (P2 figure 4)

A pre-LayerNorm layer reads LN(u) and so adds as much to a large state as to a small one: with an embedding s times as
large, 1 − cos(u_l, u_0) falls as 1/s². A post-LayerNorm layer adds Att(u), which grows with u.

Here the embedding of a pre- and a post-LayerNorm Transformer is multiplied by s before training, all else alike, and
the training is short. `pre s/…`, `post s/…`: fidelity, accuracy, size of the embedding. As controls: the same model
untrained, and two models that cannot be related to it but for its embedding, a second Transformer (`other`) and the
printed simulator (`printed`), both untrained: their cosine with its states, trained and untrained. A copy of the input
has the fidelity as its cosine.
"""

import torch

from pdelab.datasets.base import Dataset, Examples
from pdelab.experiments import alignment
from pdelab.experiments.scales import Scale, Workplace, experiment
from pdelab.experiments.tasks import TASKS, Measured, Task, build, look, named, trained
from pdelab.metrics.similarity import fidelity
from pdelab.metrics.stability import state_rms
from pdelab.models import Embedding, Model
from pdelab.results import Figures, Result
from pdelab.seeds import derive
from pdelab.solver import Status
from pdelab.training import DIVERGED

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

    None if the model's own run diverges.
    """
    run = look(model, probe)
    if run.status is Status.DIVERGED:
        return None
    found = {"fidelity": fidelity(run).tolist(), "input_rms": state_rms(run.states[0], run.mask).item()}
    for kind in UNRELATED:
        other = build(kind, task, data, seed).to(run.final.device)
        other.embed.load_state_dict(model.embed.state_dict())
        found[kind] = alignment.alignment(look(other, probe).states, run, ["cosine"])["cosine"]
    return found


@experiment(Scale.SMOKE, Scale.BOOK)
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
            found.commits = [*dict.fromkeys(found.commits + record.commits)]
            after = beside_unrelated(model, task, data, seed, probe) if record.status != DIVERGED else None
            if before is None or after is None:
                found.diverged[name] = record.stopped_at or record.step
                continue
            found.controls |= named(name, {f"untrained_{key}": value for key, value in before.items()})
            found.controls |= named(name, {key: after.pop(key) for key in UNRELATED})
            found.figures |= named(name, after | {"accuracy": record.accuracy})
    return found.result("embedding_scale", task, scale, seed, scales=list(SCALES))
