"""A trained Transformer beside the simulators under three protocols: are they alike, layer by layer?  (P2 §4)

(a) KIND: trained separately, with other weights. Decides the claims.
(b) borrowed_KIND: the simulator has the Transformer's embedding, attention and feed-forward weights, untrained.
(c) distilled_KIND: the simulator has the Transformer's embedding and is trained to match its states, every layer alike;
    `distance` is what it minimised, on its last batch.

Beside them stand

- controls that have the Transformer's states but no dynamics: a copy of its input, the mean of its states at each
  position, an affine map of its input, the last two fitted on training examples, and `relabelled`, the Transformer
  itself with its features permuted;
- models that cannot be related: a second Transformer with other weights (`other`), one trained on shuffled labels
  (`shuffled`), and every model untrained (`untrained_…`); uniform attention for the maps; and for the spectra the
  input, the input with its tokens in another order, and white noise.

`best/overall_…`: for each similarity the best of the separately trained simulators, seed by seed; what the papers'
claims are held against, since neither says which simulator it used.

For `images` and `listops` at paper size `other`, `shuffled` and two of the simulators are left out and (c) has a tenth
of the steps: each would be another training of hours. `listops128`, expressions of about 128 tokens, has one simulator
more: it is of P2's width, and short enough that all of its 3,000 steps are done, but for (c), which has 300.

`rows` and `text` are P1's: its simulators in the readings `earlier` and `linear`, and beside the comparisons the
gradients of every layer during training and the loss under noise on the input (`sensitivity`). `text` adds what each
layer knows about the labels during training (`information_labels`); at paper size it leaves out `shuffled`, and (c) has
a third of the steps.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from pdebook.evidence import alignment, sensitivity
from pdebook.evidence import labels as information_labels
from pdebook.evidence.experiment import Scale, Workplace, experiment
from pdebook.evidence.trained import TASKS, Measured, Task, build, look, measure, named, trained
from pdebook.ledger.record import Figures, Key, Result
from pdelab.datasets.base import Dataset, Examples
from pdelab.field import keep_real
from pdelab.metrics.similarity import nmse
from pdelab.models import Model
from pdelab.seeds import derive, stream
from pdelab.solver import Trajectory
from pdelab.status import Status
from pdelab.terms.interaction import Interaction
from pdelab.terms.reaction import Reaction

SIMULATORS = ("printed", "bare", "earlier", "diffusion_only")
AT_PAPER = {"images": SIMULATORS[:2], "listops": SIMULATORS[:2], "listops128": SIMULATORS[:3]}
MATCHED = ("printed", "bare")  # the simulators of protocols (b) and (c)
OF_P1 = ("earlier", "linear")
BEST = {  # of the similarities that the papers print; a NaN stays one
    "overall_mse": torch.amin,
    "overall_nmse": torch.amin,
    "overall_cosine": torch.amax,
    "overall_centred_cosine": torch.amax,
    "overall_spectral": torch.amax,
    "overall_mean_spectral": torch.amax,
    "overall_cka": torch.amax,
    "overall_attention_cosine": torch.amax,
    "overall_attention_kl": torch.amin,
    "overall_mean_attention_cosine": torch.amax,
    "overall_mean_attention_kl": torch.amin,
    "energy_gain": torch.amax,
}
SHARES = {False: 10, True: 3}  # at paper size (c) has one part in so many of the steps; True: for P1's texts
FITTED = 4  # times `probe` training examples, for maps and means
MAPS = 32_000_000  # entries of attention maps that one layer may have: where tokens are many, of fewer examples


def borrowed(kind: str, teacher: Model, task: Task, data: Dataset) -> Model:
    """The simulator with the embedding, the readout and, layer by layer, the attention and feed-forward of `teacher`.

    LayerNorm has no place in a simulator that has none: its gains and biases are not carried over. A simulator without
    attention or feed-forward, as diffusion alone, has no place for those.
    """
    model = build(kind, task, data, 0).to(next(teacher.parameters()).device)
    for part in (Interaction, Reaction):
        if mine := terms(model, part):
            for own, theirs in zip(mine, terms(teacher, part), strict=True):
                own.load_state_dict(theirs.state_dict())
    model.embed.load_state_dict(teacher.embed.state_dict())
    model.readout.load_state_dict(teacher.readout.state_dict())
    return model


def terms(model: Model, kind: type[nn.Module]) -> list[nn.Module]:
    """The model's terms of this kind, layer by layer."""
    return [module for module in model.equation.modules() if isinstance(module, kind)]


def state_distance(model: Model, batch: Examples, teacher: Model) -> Tensor:
    """Mean over layers of Σ|u − v|²/Σ|v − v̄|², v the teacher's states: what protocol (c) minimises."""
    with torch.no_grad():
        target = teacher.trajectory(batch.x, batch.mask)
    run = model.trajectory(batch.x, batch.mask)
    if run.status is Status.DIVERGED:
        return torch.full((), torch.nan, device=batch.x.device)
    return torch.stack([nmse(u, v, batch.mask) for u, v in zip(run.states[1:], target.states[1:], strict=True)]).mean()


def distilled(
    kind: str, teacher: Model, task: Task, data: Dataset, seed: int, work: Workplace, found: Measured, share: int = 1
) -> Model | None:
    """The simulator with the teacher's embedding and readout, its layers trained to match the teacher's states.

    share: of the task's steps, one part in so many.
    """
    name = f"distilled_{kind}"
    model = build(kind, task, data, derive(seed, name))
    model.embed.load_state_dict(teacher.embed.state_dict())
    model.readout.load_state_dict(teacher.readout.state_dict())
    for weights in (*model.embed.parameters(), *model.readout.parameters()):
        weights.requires_grad_(False)
    objective = partial(state_distance, teacher=teacher)
    settings = replace(task.cut(max(1, task.settings.steps // share)).settings, watch=())
    record = trained(model, data, settings, derive(seed, name, "training"), work, name, objective=objective)
    found.made_by(record.commits)
    if record.status == Status.DIVERGED:
        found.diverged[name] = record.stopped_at
        return None
    found.figures |= named(name, {"accuracy": record.accuracy, "distance": record.losses[-1]})
    return model


def shuffled_labels(data: Dataset, seed: int) -> Dataset:
    """The same inputs with the training answers dealt out anew: there is nothing to learn but their shares."""
    order = torch.randperm(len(data.train), generator=stream(seed, "shuffled labels"))
    return replace(data, train=replace(data.train, y=data.train.y[order]))


def _fooled(task: Task, data: Dataset, seed: int, work: Workplace) -> Measured:
    """The Transformer `shuffled`, with weights of its own, trained on shuffled labels."""
    data, options = shuffled_labels(data, seed), {"shared": "shuffled", "states": False}
    found = measure(("transformer",), task, data, seed, work, label="-shuffled", **options)
    found.models = {key.replace("transformer-", ""): model for key, model in found.models.items()}
    found.figures = {key.replace("transformer-", ""): value for key, value in found.figures.items()}
    found.diverged = {key.replace("transformer-", ""): step for key, step in found.diverged.items()}
    found.records = {key.replace("transformer-", ""): record for key, record in found.records.items()}
    return found


def few(examples: Examples, heads: int) -> Examples:
    """As many of the examples as attention maps have room for."""
    tokens = examples.x.shape[1]
    return examples.take(slice(0, max(1, min(len(examples), MAPS // (heads * tokens**2)))))


@torch.no_grad()
def with_maps(model: Model, examples: Examples) -> Trajectory:
    """As `look`, with the attention maps of every layer."""
    examples = examples.to(next(model.parameters()).device)
    return model.trajectory(examples.x, examples.mask, attention=True)


def _reference(name: str, scale: Scale, seed: int, work: Workplace) -> Result:
    full = TASKS[name][scale]
    task = full.cut(work.steps)
    data = task.load(seed)
    p1, long = name in ("rows", "text"), scale is Scale.PAPER and name != "rows"
    share = SHARES[p1] if long else 1
    simulators = OF_P1 if p1 else AT_PAPER[name] if long else SIMULATORS
    others = () if long and not p1 else ("other",)
    watching = None
    if name == "text":
        watching = information_labels.LabelLook(data.test.take(slice(0, information_labels.EXAMPLES)), seed)
    found = measure(("transformer", *others, *simulators), task, data, seed, work, watching=watching)
    if not long:
        found.absorb(_fooled(task, data, seed, work))
    if "transformer" in found.models:
        matched = OF_P1[:1] if p1 else MATCHED
        models = _models(found, task, data, seed, work, simulators, matched, share)
        _compare(found, models, task, data, seed)
        _gradients(found)
        _best(found, simulators)
    _profiles(found)
    if p1:
        sensitivity.add(found, OF_P1, task, data, seed)
    known = {"fitted_on": FITTED * task.probe, "comparisons": alignment.DEFINITIONS}
    if share > 1:
        known["distilled_steps"] = max(1, task.settings.steps // share)
        known["maps_on"] = len(few(data.test.take(slice(0, task.probe)), task.heads))
    if watching is not None:
        information_labels.add(found, OF_P1)
        known |= {"information": information_labels.DEFINITIONS, "deciding": list(information_labels.DECIDING)}
        known |= {"informed_by": len(watching.examples)}
    made = name if name == "listops128" else f"reference-{name}"
    return found.result(made, task, scale, seed, **known, **task.cut_of(full))


def _models(
    found: Measured,
    task: Task,
    data: Dataset,
    seed: int,
    work: Workplace,
    simulators: tuple[str, ...],
    matched: tuple[str, ...],
    share: int,
) -> dict[str, Model]:
    """All that is compared with the Transformer, by the name of its figures."""
    teacher = found.models["transformer"]
    device = next(teacher.parameters()).device
    models = {kind: model for kind, model in found.models.items() if kind != "transformer"}
    models |= {f"untrained_{kind}": build(kind, task, data, seed).to(device) for kind in (*simulators, "other")}
    models |= {f"borrowed_{kind}": borrowed(kind, teacher, task, data) for kind in matched}
    for kind in matched:
        model = distilled(kind, teacher, task, data, seed, work, found, share)
        if model is not None:
            models[f"distilled_{kind}"] = model
    return models


def _compare(found: Measured, models: dict[str, Model], task: Task, data: Dataset, seed: int) -> None:
    """Every model and every control beside the Transformer, into the figures and controls of `found`."""
    teacher = found.models["transformer"]
    fit, test = data.train.take(slice(0, FITTED * task.probe)), data.test.take(slice(0, task.probe))
    seen = few(test, task.heads)
    target_fit, target, target_maps = look(teacher, fit), look(teacher, test), with_maps(teacher, seen)
    found.controls |= without_dynamics(target_fit, target, seed)
    found.controls |= named("uniform", alignment.maps_compared(alignment.uniform_maps(target_maps), target_maps))
    found.figures |= named("transformer", alignment.spectra(target.states[1:], target.mask))
    found.controls |= _other_spectra(target, seed)
    for name in ("reordered_input", "noise"):
        found.controls |= named(name, _energy(found.controls[Key(name, "energy")], found))
    for key, model in models.items():
        runs = [look(model, part) for part in (fit, test)]
        if diverged := [run.stopped_at for run in runs if run.status is Status.DIVERGED]:
            found.diverged |= {key: diverged[0]}
            continue
        figures = alignment.compared(*runs, target_fit, target) | alignment.spectra(runs[1].states[1:], target.mask)
        figures |= _energy(figures["energy"], found)
        if terms(model, Interaction):
            figures |= alignment.maps_compared(with_maps(model, seen), target_maps)
        decides = key.removeprefix("borrowed_").removeprefix("distilled_") in (*SIMULATORS, *OF_P1)
        (found.figures if decides else found.controls).update(named(key, figures))


def _energy(curve: list[float], found: Measured) -> Figures:
    """How far a curve of cumulative energy is from the Transformer's, and how much nearer than that of its input."""
    target, u0 = found.figures[Key("transformer", "energy")], found.controls[Key("input", "energy")]
    gap = alignment.energy_gap(curve, target)
    return {"energy_gap": gap, "energy_gain": alignment.energy_gap(u0, target) - gap}


def _gradients(found: Measured) -> None:
    """log₁₀ of a model's median gradient over the Transformer's, and of its spikes (largest over median), P2 §4.3.2.

    gradient: the norm over all weights before clipping; gradient_rms: the same over the root of their number.
    """
    sizes = {kind: sum(p.numel() for p in model.parameters()) for kind, model in found.models.items()}
    medians = {kind: found.figures[Key(kind, "gradient_median")] for kind in sizes}
    largest = {kind: found.figures[Key(kind, "gradient_largest")] for kind in sizes}
    spikes = {kind: largest[kind] / medians[kind] for kind in sizes if medians[kind] > 0}

    for kind in sizes:
        found.figures[Key(kind, "weights")] = float(sizes[kind])
        if kind == "transformer" or not {kind, "transformer"} <= spikes.keys():
            continue

        ratio = math.log10(medians[kind] / medians["transformer"])
        by_weight = math.log10(sizes[kind] / sizes["transformer"]) / 2
        place = found.controls if kind in ("other", "shuffled") else found.figures
        place[Key(kind, "all_log10_gradient_ratio")] = ratio
        place[Key(kind, "all_log10_gradient_rms_ratio")] = ratio - by_weight
        place[Key(kind, "all_log10_spike_ratio")] = math.log10(spikes[kind] / spikes["transformer"])


def _best(found: Measured, simulators: tuple[str, ...]) -> None:
    """For every similarity the best of the separately trained simulators."""
    for name, choose in BEST.items():
        keys = [Key(kind, name) for kind in simulators]
        values = [found.figures[key] for key in keys if key in found.figures]
        if values:
            found.figures[Key("best", name)] = choose(torch.tensor(values, dtype=torch.float64)).item()


def _profiles(found: Measured) -> None:
    """profile: cosine with the input in the states that P2's table has, from the embedding to the last layer but one.

    lowest_fidelity: the least value over all states. untrained_…: the same before training.
    """
    for place in (found.figures, found.controls):
        for word in ("", "untrained_"):
            for key in [key for key in place if key.endswith(f"/{word}fidelity")]:
                kind, values = key.rpartition("/")[0], place[key]
                place[Key(kind, word + "profile")] = values[:-1]
                place[Key(kind, word + "lowest_fidelity")] = torch.tensor(values, dtype=torch.float64).amin().item()


def without_dynamics(
    fitted: Trajectory, target: Trajectory, seed: int, names: Sequence[str] = tuple(alignment.SIMILARITIES)
) -> Figures:
    """The controls that have the Transformer's states but no layers of their own; names: of the similarities."""
    tokens, features = target.final.shape[1:]
    layers = len(target.states)
    maps = alignment.affine_maps([fitted.states[0]] * layers, fitted)
    means = [alignment.position_mean(v, fitted.mask, tokens).expand_as(target.final) for v in fitted.states]
    order = torch.randperm(features, generator=stream(seed, "relabelled"))
    states = {
        "copy": [target.states[0]] * layers,
        "position_mean": [keep_real(mean, target.mask) for mean in means],
        "affine": alignment.through(maps, [target.states[0]] * layers, target.mask),
        "relabelled": [v[..., order] for v in target.states],
    }
    return {k: v for key, run in states.items() for k, v in named(key, alignment.alignment(run, target, names)).items()}


def _other_spectra(target: Trajectory, seed: int) -> Figures:
    """Spectra of the input, of the input with its tokens in a random order, and of white noise."""
    u0, mask = target.states[0], target.mask
    generator = stream(seed, "spectra")
    places = torch.rand(u0.shape[:2], generator=generator).to(u0.device)
    if mask is not None:
        places = places.masked_fill(~mask, 2.0)  # padding stays at the end
    order = places.argsort(dim=1).unsqueeze(-1).expand_as(u0)
    noise = keep_real(torch.randn(u0.shape, generator=generator).to(u0), mask)
    kinds = {"input": u0, "reordered_input": u0.gather(1, order), "noise": noise}
    return {k: v for key, u in kinds.items() for k, v in named(key, alignment.spectra([u], mask)).items()}


@experiment("reference-images", *Scale, cuts=True)
def images(scale: Scale, seed: int, work: Workplace) -> Result:
    """A trained Transformer beside simulators trained apart, with its weights, and distilled, on images."""
    return _reference("images", scale, seed, work)


@experiment("reference-listops", *Scale, cuts=True)
def listops(scale: Scale, seed: int, work: Workplace) -> Result:
    """A trained Transformer beside simulators trained apart, with its weights, and distilled, on ListOps."""
    return _reference("listops", scale, seed, work)


@experiment("listops128", Scale.SMOKE, Scale.PAPER, cuts=True)
def listops128(scale: Scale, seed: int, work: Workplace) -> Result:
    """The same as reference-listops, on expressions of about 128 tokens at P2's width: two CPU hours a seed."""
    return _reference("listops128", scale, seed, work)


@experiment("reference-rows", *Scale, cuts=True)
def rows(scale: Scale, seed: int, work: Workplace) -> Result:
    """P1's models on images read row by row: states, attention, gradients by layer, loss under noise on the input."""
    return _reference("rows", scale, seed, work)


@experiment("reference-text", *Scale, cuts=True)
def text(scale: Scale, seed: int, work: Workplace) -> Result:
    """P1's models on texts: states, attention, gradients by layer, loss under noise on the input."""
    return _reference("text", scale, seed, work)
