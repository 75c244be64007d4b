"""probe: is depth time in this network? One line for any Transformer, every figure beside four controls.

    report = probe(model, inputs)
    print(report)                 findings in words, and a row per layer
    report.save("report.html")    the same as one page, with figures
    report.to_json()              every number

Over tokens medians are taken, with the 5th and 95th percentile: one huge token would rule every mean. Controls:

| random | the same architecture with new random weights |
|---|---|
| permuted | the entries of every weight in another order: right sizes, no structure |
| shuffled layers | the trained layers in another order |
| shuffled tokens | the trained network on its tokens in another order |

The first two are drawn several times: what a single draw would give by accident is no finding.
"""

import copy
import hashlib
import inspect
import json
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize
from tqdm.auto import tqdm

from pdelab import __version__
from pdelab.field import Field, Mask, precise
from pdelab.metrics.base import real_places
from pdelab.metrics.diffusivity import sampled_diffusivity
from pdelab.metrics.information import effective_dimension
from pdelab.metrics.jacobian import lipschitz, logarithmic_norm, random_growth
from pdelab.metrics.outliers import outliers
from pdelab.metrics.stability import growth_towards_mean, nonuniformity
from pdelab.options import choose, flags, function, instance, seed_of
from pdelab.options import whole as integer
from pdelab.recording import Recording, one_number, record
from pdelab.report import UNTRAINED, Report, Run
from pdelab.seeds import derive, seeded, stream
from pdelab.status import Status
from pdelab.watching import left_as_it_was, tensors

CONTROLS = (*UNTRAINED, "shuffled layers", "shuffled tokens")
QUANTILES = (0.05, 0.5, 0.95)
FORM = 3  # of the parts that are kept


def probe(
    model: nn.Module,
    inputs: Any,
    *,
    mask: Mask | None = None,
    blocks: Sequence[str | nn.Module] | nn.ModuleList | None = None,
    whole: bool = False,
    loss: Callable[[Any], Tensor] | None = None,
    controls: Sequence[str] = CONTROLS,
    fresh: Callable[[int], nn.Module] | None = None,
    draws: int = 3,
    sampled: int = 4,
    seed: int = 0,
    progress: bool = True,
    folder: str | Path | None = None,
) -> Report:
    """Step, angle, step doubling, smoothness in depth, sum or sweep, energy by term, … of every layer, with controls.

    model, inputs, mask, blocks, whole: as in `record`; of whole layers there is no sum, and no energy by term.
    loss: a function of the model's output that gives one number; with it the report ranks layers by what they carry
    towards the loss, and drops the least of them to see.
    fresh: makes of a seed the untrained network, the control `random`; give it where the model does not begin with what
    its modules' `reset_parameters` draw.
    draws: how many random and how many permuted networks there are; of fewer than two nothing is said to stand out.
    sampled: at so many layers, evenly spread, derivatives are measured too, for the network and one draw of `random`.
    folder: where each network that is measured, yours or one draw of a control, is kept: after an interruption the same
    call goes on with the one that was under way, from its first layer.
    The model is afterwards what it was, as after `record`.
    """
    for control in instance("controls", controls, list, tuple):
        choose("controls", control, CONTROLS)
    integer("draws", draws)
    integer("sampled", sampled, 0)
    seed_of(seed)
    flags(progress=progress)
    for name, given in (("loss", loss), ("fresh", fresh)):
        if given is not None:
            function(name, given)

    with left_as_it_was(instance("model", model, nn.Module)):
        rec = record(model, inputs, mask=mask, blocks=blocks, whole=whole)
        begun = [] if fresh is None else [_sums(weight) for weight in _made(fresh, model, seed).parameters()]
        store = _Store(folder, rec, (__version__, FORM, tuple(controls), sampled, seed, _known_by(loss, rec), begun))
        parts = [("model", 0), *((name, k) for name in controls for k in range(draws if name in UNTRAINED else 1))]
        runs: dict[str, list[Run]] = {}
        bar = tqdm(total=len(parts) * len(rec.names), disable=None if progress else True, leave=False, unit="layer")
        with bar:
            for name, draw in parts:
                part = f"{name} {draw + 1}" if draw else name
                bar.set_description(part)
                run = store.get(part)
                if run is None:
                    recorded = rec if name == "model" else _control(name, rec, inputs, seed, draw, fresh)
                    extent = _extent(part, loss, sampled)
                    run = recorded if isinstance(recorded, Run) else measured(recorded, *extent, seed, bar.update)
                    if name == "shuffled layers" and not run.note:
                        run.order = _order(len(rec.names), seed)
                    if name == "random" and fresh is None and not run.note:
                        run.kept = _undrawn(rec.model, recorded.model)
                    store.put(part, run)
                    recorded = None  # a network and all its states, which the next one needs the room of
                runs.setdefault(name, []).append(run)
    u = rec.trajectory.states[0]
    return Report(
        model=type(model).__name__,
        scheme=rec.scheme,
        names=rec.names,
        examples=len(u),
        tokens=int(real_places(u, rec.trajectory.mask).sum()),
        status=str(rec.trajectory.status),
        runs={name: found[0] for name, found in runs.items()},
        notes=rec.notes,
        draws={name: found[1:] for name, found in runs.items() if name in UNTRAINED},
        made={"pdelab": __version__, "torch": torch.__version__, "date": date.today().isoformat()}
        | {"seed": seed, "sampled": sampled, "draws": draws, "dtype": str(u.dtype)[6:], "device": str(u.device)}
        | {"blocks": "found" if blocks is None else "given", "first layer": rec.names[0], "last layer": rec.names[-1]}
        | {"mask": "given" if mask is not None else "none" if rec.trajectory.mask is None else "of the inputs"}
        | {"loss": _called(loss), "fresh": _called(fresh)},
    )


def _called(function: Callable | None) -> str:
    named = getattr(function, "__qualname__", type(function).__name__)
    return "none" if function is None else named.replace(".<locals>", "")


def _extent(name: str, loss: Callable[[Any], Tensor] | None, sampled: int) -> tuple:
    """What takes long is measured where it says something: for the loss the control is chance, within one network."""
    return loss if name == "model" else None, sampled if name in ("model", "random") else 0


def _known_by(loss: Callable[[Any], Tensor] | None, rec: Recording) -> tuple:
    """The value of a loss and its gradient at the last state, by which it is known again."""
    if loss is None or rec.trajectory.status is not Status.FINISHED:
        return ()
    value = one_number(loss, rec.output).item()
    if not math.isfinite(value):
        raise ValueError(f"loss must give a finite number from the model's output; it gave {value}")
    return value, _sums(rec.gradients(loss)[-1])


def measured(
    rec: Recording,
    loss: Callable[[Any], Tensor] | None = None,
    sampled: int = 4,
    seed: int = 0,
    done: Callable[[int], Any] = lambda layers: None,
) -> Run:
    """Every figure of one recording, layer by layer; three numbers each, the quantiles over its tokens."""
    run, states, real = Run(), rec.trajectory.states, real_places(rec.trajectory.states[0], rec.trajectory.mask)
    layers = len(states) - 1
    chosen = {round((k + 0.5) * layers / sampled - 0.5) for k in range(sampled)} if sampled else set()
    last = None
    for layer in range(layers):
        with torch.no_grad():
            last = _moves(run, rec, layer, real, last)
            _shape(run, rec, layer, real)
        if layer in chosen:
            _derivatives(run, rec, layer, seed)
        else:
            run.skip(layer, "log norm", "growth, random", "growth, worst", "diffusivity")
        done(1)
    with torch.no_grad():
        if layers:
            _path(run, states, real)
            _energy(run, rec, real)
    if loss is not None and rec.trajectory.status is Status.FINISHED:
        _towards_the_loss(run, rec, loss, seed)
    return run


def _quantiles(values: Tensor, real: Tensor) -> list[float]:
    """The 5th, 50th and 95th percentile over the real tokens of all examples; NaN where a value does not exist."""
    found = precise(values)[real]
    found = found[found.isfinite()]
    if not len(found):
        return [math.nan] * 3
    return torch.quantile(found, found.new_tensor(QUANTILES)).tolist()


def _length(u: Field) -> Tensor:
    return torch.linalg.vector_norm(precise(u), dim=-1)


def _cosine(u: Field, v: Field) -> Tensor:
    return (precise(u) * precise(v)).sum(-1) / (_length(u) * _length(v))


def _layer(rec: Recording, number: int) -> Callable[[Field], Field]:
    """u ↦ u⁺ of fields in float32 at least, whatever precision the network has."""
    f, dtype = rec.layer(number), rec.trajectory.states[0].dtype
    return lambda u: precise(f(u.to(dtype)))


def _moves(run: Run, rec: Recording, layer: int, real: Mask, before: Field | None) -> Field:
    """How a layer moves its tokens, alone and beside the next one; the step Δ, for the next call."""
    states, moved = rec.trajectory.states, _layer(rec, layer)
    u, after = precise(states[layer]), precise(states[layer + 1])
    step = after - u
    size = _length(step)

    def tokens(name: str, values: Tensor) -> None:
        run.add(layer, name, _quantiles(values, real))

    tokens("step", size / _length(u))
    tokens(
        "angle", torch.rad2deg(_cosine(step, before).clamp(-1, 1).acos()) if before is not None else size * torch.nan
    )
    half = u + step / 2
    tokens("doubling", _length((moved(half) + half) / 2 - after) / size)
    if "→" in rec.scheme:  # else all branches read u as it is
        tokens("sum or sweep", _length(precise(rec.summed(layer, states[layer])) - after) / size)
    else:
        run.skip(layer, "sum or sweep")
    tokens("fidelity", _cosine(after, states[0]))
    if layer + 2 < len(states):
        there = _layer(rec, layer + 1)(u)
        tokens("smoothness", _cosine(there - u, step))
        apart = _length(moved(there) - precise(states[layer + 2]))
        tokens("commutator", apart / (size + _length(precise(states[layer + 2]) - after)))
    else:
        run.skip(layer, "smoothness", "commutator")
    return step


def _shape(run: Run, rec: Recording, layer: int, real: Mask) -> None:
    """What a layer leaves: outliers, and how much its tokens differ, with the outliers and without."""
    after, mask = rec.trajectory.states[layer + 1], rec.trajectory.mask
    long = outliers(after, mask)
    run.say("outliers", str(long) if len(long) else "")
    run.add(layer, "outlier tokens", [len(long) / int(real.sum())])
    run.add(layer, "non-uniformity", [nonuniformity(after, mask).item()])
    usual = real.clone()
    usual[long.example, long.token] = False
    run.add(layer, "non-uniformity, usual tokens", [_nonuniformity(after, usual)])
    run.add(layer, "dimension", [effective_dimension(precise(after)[real]).item()] if real.sum() > 2 else [math.nan])
    f, u = _layer(rec, layer), precise(rec.trajectory.states[layer])

    def step(v: Field) -> Field:
        return (precise(after) if v.equal(u) else f(v)) - v  # at u the layer has run

    run.add(layer, "towards the mean", [_median(growth_towards_mean(step, u, mask))])


def _nonuniformity(u: Field, real: Mask) -> float:
    """√(Σ|u_i − μ|²/Σ|u_i|²) over these tokens, which need not stand together, averaged over the examples."""
    weights = real.unsqueeze(-1).to(precise(u).dtype)
    u = precise(u) * weights
    mean = u.sum(1, keepdim=True) / weights.sum(1, keepdim=True)
    rest = ((u - mean) * weights).square().sum((1, 2)) / u.square().sum((1, 2))
    return rest.sqrt().nanmean().item()


def _derivatives(run: Run, rec: Recording, layer: int, seed: int) -> None:
    """Rates and growths of small perturbations, and how far the layer diffuses along the tokens."""
    u, mask, f = precise(rec.trajectory.states[layer]), rec.trajectory.mask, _layer(rec, layer)

    def examples(name: str, metric: Callable[..., Tensor], *args: Any, **options: Any) -> None:
        try:
            run.add(layer, name, [_median(metric(*args, u, mask, seed=seed, **options))])
        except torch.linalg.LinAlgError:  # the eigenvalues of what has overflowed
            run.add(layer, name, [math.nan])

    examples("log norm", logarithmic_norm, lambda v: f(v) - v, method="lanczos", steps=8)
    examples("growth, random", random_growth, f, draws=2)
    examples("growth, worst", lipschitz, f, method="lanczos", steps=6)
    spread = sampled_diffusivity(f, u, mask, draws=3, seed=seed)
    run.add(layer, "diffusivity", _quantiles(spread.value, real_places(u, mask)))


def _median(values: Tensor) -> float:
    """Of an even number half the sum of the two in the middle, where torch has the lower one."""
    return torch.quantile(values.flatten(), 0.5).item()


def _path(run: Run, states: Sequence[Field], real: Mask) -> None:
    """|ΣΔ|/Σ|Δ| of each token: 1 on a line, 1/√L where steps of one size have nothing to do with each other."""
    steps = [precise(after) - precise(u) for u, after in pairwise(states)]
    lengths = torch.stack([_length(step) for step in steps])
    run.whole["straightness"] = _quantiles(_length(sum(steps)) / lengths.sum(0), real)
    run.whole["straightness of independent steps"] = [
        (lengths.square().sum(0).sqrt() / lengths.sum(0))[real].median().item()
    ]
    relative = lengths / torch.stack([_length(u) for u in states[:-1]])  # (layer, batch, token)
    run.whole["median step of each example"] = [relative[:, n, real[n]].median().item() for n in range(len(real))]


def _energy(run: Run, rec: Recording, real: Mask) -> None:
    """Energy ½|u_i|² that each term gives to the tokens of each layer: mean, median, and where most of it goes."""
    budget = rec.budget(reduce="none")
    place = real.cumsum(1) - 1
    tokens = int(real.sum())
    for k, symbol in enumerate(budget.symbols):
        for layer, energy in enumerate(budget.energy[:, k]):
            energy = torch.where(real, energy, 0.0)
            run.add(layer, f"energy {symbol}", [energy.sum().item() / tokens])
            run.add(layer, f"energy {symbol}, median", [energy[real].median().item()])
            sizes = energy.new_zeros(real.shape[1]).index_add(0, place.clamp(min=0).flatten(), energy.abs().flatten())
            most = int(sizes.argmax())
            run.add(layer, f"energy {symbol}, largest token", [most, (sizes[most] / sizes.sum()).item()])


def _towards_the_loss(run: Run, rec: Recording, loss: Callable[[Any], Tensor], seed: int) -> None:
    """Σ_i |∂loss/∂u_i| |Δ_i| of each layer, and the cost of leaving out a fifth of them, chosen by it or by chance."""
    states = rec.trajectory.states
    gradients = rec.gradients(loss)
    for layer in range(len(states) - 1):
        step = precise(states[layer + 1]) - precise(states[layer])
        run.add(layer, "transport", [(_length(gradients[layer + 1]) * _length(step)).sum().item()])
    sizes = torch.tensor([row[0] for row in run.layers["transport"]])
    number = max(1, len(sizes) // 5)

    def without(left_out: set[int]) -> float:
        return one_number(loss, rec.rewrite(step=lambda layer, u, f: u if layer in left_out else None)).item()

    run.whole["loss"] = [one_number(loss, rec.output).item()]
    least = sizes.argsort()[:number].tolist()
    run.whole["layers carrying least"] = sorted(least)
    run.whole["loss without them"] = [without(set(least))]
    chance = stream(seed, "dropped")
    draws = [frozenset(torch.randperm(len(sizes), generator=chance)[:number].tolist()) for _ in range(50)]
    others = [draw for draw in dict.fromkeys(draws) if draw != frozenset(least)][:5]
    run.whole["loss without as many by chance"] = [without(set(draw)) for draw in others]


def _control(
    name: str, rec: Recording, inputs: Any, seed: int, draw: int = 0, fresh: Callable[[int], nn.Module] | None = None
) -> Recording | Run:
    """The recording of a control; or, where this model cannot have it, an empty run that says why."""
    if name == "shuffled tokens":
        return _with_shuffled_tokens(rec, inputs, derive(seed, name))
    if name == "shuffled layers":
        modules = dict(rec.model.named_modules())
        if len(rec.names) == 1:
            return Run(note="there is one layer alone")
        if len(set(rec.names)) < len(rec.names):
            return Run(note="one module is several layers: they have no order")
        weights = [modules[layer].state_dict() for layer in rec.names]
        if len({tuple(held) for held in weights}) > 1:
            return Run(note="its layers have different weights: one cannot take the place of another")
        if all(held[key].equal(weights[0][key]) for held in weights for key in held):
            return Run(note="all layers hold the same weights, as copies in a new torch encoder do: they have no order")
        return rec.again(model=_shuffled_layers(rec, _order(len(rec.names), seed)))
    drawn = derive(seed, name, draw) if draw else derive(seed, name)
    if name == "permuted":
        changed = permuted(rec.model, drawn)
    else:
        changed = redrawn(rec.model, drawn) if fresh is None else _made(fresh, rec.model, drawn)
    found = rec.again(model=changed)
    still = all(u.equal(after) for u, after in pairwise(found.trajectory.states))
    return Run(note="its layers do nothing") if still else found


def _copy(model: nn.Module) -> nn.Module:
    """A copy; what the old torch.nn.utils.weight_norm computes, which deepcopy refuses, is copied without its graph."""
    computed = [x for part in model.modules() for x in vars(part).values() if isinstance(x, Tensor) and not x.is_leaf]
    return copy.deepcopy(model, {id(x): x.detach().clone() for x in computed})


def _made(build: Callable[[int], nn.Module], model: nn.Module, seed: int) -> nn.Module:
    """The network that is built with this seed, where and as precise as the model is."""
    made = instance("what fresh gives", seeded(lambda: build(seed), seed), nn.Module)
    if made is model:
        raise ValueError("fresh must give a new model, not the one that is probed")
    weight = next(model.parameters())
    return made.to(weight.device, weight.dtype)


def redrawn(model: nn.Module, seed: int) -> nn.Module:
    """The network before training: built anew from its `config` where it has one, as in transformers.

    Else a copy in which every module with `reset_parameters` draws its weights anew, parts before the whole as when it
    was made, and a weight of several modules only the first of them; of other weights matrices become normal numbers of
    the same standard deviation, and the rest stays, as a scale that begins at zero must.
    """
    if _has_config(model):
        return _made(lambda _: type(model)(copy.deepcopy(model.config)), model, seed)

    model = _copy(model)
    holders = {id(weight): part for part in reversed([*model.modules()]) for weight in part.parameters(recurse=False)}

    def draw() -> None:
        for module in reversed([*model.modules()]):
            weights = [*module.parameters(recurse=False)]
            others = [(weight, weight.clone()) for weight in weights if holders[id(weight)] is not module]
            if (reset := _reset(module)) is not None:
                _run(reset, module)
            elif not isinstance(module, parametrize.ParametrizationList):
                for weight in weights:
                    if not _is_scale(weight):
                        nn.init.normal_(weight, std=weight.std().item())
            for weight, held in others:
                weight.copy_(held)

    with torch.no_grad():
        seeded(draw, seed)
    return model


def _run(reset: Callable[[], Any], module: nn.Module) -> None:
    """Draw the module's weights; one that is computed from others, as by weight_norm, is given back to what does it."""
    computed = module.parametrizations if parametrize.is_parametrized(module) else {}
    with parametrize.cached():  # in which `reset` writes to the computed weight and not to a copy
        reset()
        drawn = {name: getattr(module, name).clone() for name in computed}
    for name, value in drawn.items():
        if all(hasattr(step, "right_inverse") for step in computed[name]):
            setattr(module, name, value)


def _has_config(model: nn.Module) -> bool:
    return hasattr(type(model), "_from_config") and hasattr(model, "config")


def _reset(module: nn.Module) -> Callable[[], Any] | None:
    """What draws the module's weights anew, if it has that."""
    reset = getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)
    return reset if callable(reset) and not inspect.signature(reset).parameters else None


def _is_scale(weight: Tensor) -> bool:
    return weight.ndim < 2 or weight.numel() == 1


def _undrawn(model: nn.Module, new: nn.Module) -> list[str]:
    """The weights that `redrawn` left as they were; all zeros or all ones may be what a module begins with."""
    modules = [] if _has_config(model) else [m for m in model.modules() if _reset(m) is None]
    by_none = {id(weight) for module in modules for weight in module.parameters(recurse=False)}
    same = [pair for pair, new in zip(model.named_parameters(), new.parameters(), strict=True) if pair[1].equal(new)]
    return [name for name, weight in same if id(weight) in by_none or weight.min() < weight.max()]


def permuted(model: nn.Module, seed: int) -> nn.Module:
    """A copy with the entries of every weight in another order."""
    model = _copy(model)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            order = torch.randperm(weight.numel(), generator=stream(seed, name)).to(weight.device)
            weight.copy_(weight.flatten()[order].reshape(weight.shape))
    return model


def _order(layers: int, seed: int) -> list[int]:
    """An order in which no layer keeps its place and none follows the one before it; of 3, one or the other does."""
    draws = stream(seed, "shuffled layers")

    def kept(order: list[int]) -> tuple[int, int]:
        follows = sum(after == before + 1 for before, after in pairwise(order))
        return sum(layer == place for place, layer in enumerate(order)), follows

    return min((torch.randperm(layers, generator=draws).tolist() for _ in range(200)), key=kept)


def _shuffled_layers(rec: Recording, order: Sequence[int]) -> nn.Module:
    """A copy with its layers in this order."""
    model = _copy(rec.model)
    modules = dict(model.named_modules())
    for here, there in zip(rec.names, order, strict=True):
        parent, _, own = here.rpartition(".")
        setattr(modules[parent], own, modules[rec.names[there]])
    return model


def _with_shuffled_tokens(rec: Recording, inputs: Any, seed: int) -> Recording | Run:
    """The recording with the first input shuffled that the stream comes from: a model of two sides has another."""
    u, note = rec.trajectory.states[0], ""
    for changed in _shuffled_tokens(inputs, rec, seed):
        found, note = rec.again(changed, mask=rec.trajectory.mask), "no input's order changes what the first layer gets"
        if not found.trajectory.states[0].equal(u):
            return found
    shapes = ", ".join(str(tuple(x.shape)) for x in tensors(inputs))
    return Run(note=note or f"no input has the stream's {u.shape[1]} tokens; the inputs' shapes are {shapes}")


def _shuffled_tokens(inputs: Any, rec: Recording, seed: int) -> Iterator[Any]:
    """The inputs with the real tokens of each sequence of one tensor in another order, for one tensor after another."""
    real = real_places(rec.trajectory.states[0], rec.trajectory.mask)
    draws = stream(seed, "tokens")
    moved = torch.arange(real.shape[1], device=real.device).repeat(len(real), 1)
    for row, here in zip(moved, real, strict=True):  # lengths differ; padding stays where it is
        row[here] = row[here][torch.rand(int(here.sum()), generator=draws).argsort().to(row.device)]

    def shuffled(x: Any) -> Any:
        index = moved if x.ndim == 2 else moved.unsqueeze(-1).expand_as(x)
        return x.gather(1, index)

    def fits(x: Any) -> bool:
        return isinstance(x, Tensor) and x.ndim in (2, 3) and x.shape[:2] == real.shape and x.dtype != torch.bool

    def changed(x: Any, names: Sequence[str] = ()) -> Iterator[Any]:
        """x with one tensor of tokens shuffled; masks and positions stay. names: of the entries of a tuple."""
        if isinstance(x, Tensor):
            yield from [shuffled(x)] if fits(x) else []
            return
        if isinstance(x, Mapping):
            usual = [name for name in ("input_ids", "inputs_embeds") if name in x]
            entries = {key: str(key) for key in (*usual, *x)}
        else:
            entries = dict(zip_longest(range(len(x)), names, fillvalue="")) if isinstance(x, tuple) else {}
        for key, name in entries.items():
            if "mask" not in name and "position" not in name:
                for new in changed(x[key]):
                    yield {**x, key: new} if isinstance(x, Mapping) else (*x[:key], new, *x[key + 1 :])

    arguments = len(inputs) if isinstance(inputs, tuple) else 0
    return changed(inputs, list(inspect.signature(rec.model.forward).parameters)[:arguments])


def _sums(x: Tensor) -> tuple[float, float]:
    """Sum and norm, by which a tensor is known again; on the CPU, as not every device has float64."""
    x = x.detach().cpu().double()
    return x.sum().item(), x.norm().item()


class _Store:
    """Finished parts of a report in a folder, each with a mark of the model, the inputs and the settings."""

    def __init__(self, folder: str | Path | None, rec: Recording, settings: tuple):
        self.folder = None if folder is None else Path(folder).expanduser()
        if self.folder is None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        marks = hashlib.sha256(repr(settings).encode())
        for name, weight in rec.model.state_dict().items():
            marks.update(f"{name} {tuple(weight.shape)} {_sums(weight)}".encode())
        mask = rec.trajectory.mask
        marks.update(f"{rec.names} {rec.scheme} {None if mask is None else mask.tolist()}".encode())
        for u in (rec.trajectory.states[0], rec.trajectory.final):
            marks.update(f"{tuple(u.shape)} {_sums(u)}".encode())
        self.mark = marks.hexdigest()[:16]

    def _place(self, name: str) -> Path:
        return self.folder / f"{name.replace(' ', '-')}-{self.mark}.json"

    def get(self, name: str) -> Run | None:
        if self.folder is None or not self._place(name).is_file():
            return None
        try:
            return Run(**json.loads(self._place(name).read_text()))
        except (ValueError, TypeError) as error:
            warnings.warn(f"{self._place(name)} is damaged ({error}) and is measured anew", stacklevel=3)
            return None

    def put(self, name: str, run: Run) -> None:
        if self.folder is not None:
            part = self._place(name).with_suffix(".part")
            part.write_text(json.dumps(vars(run)))
            part.replace(self._place(name))
