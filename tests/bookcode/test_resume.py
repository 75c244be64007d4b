"""Every experiment that trains can be stopped, and ends with the numbers of a run that never was."""

import dis
import inspect
import json
import multiprocessing
import signal
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

import children
import pytest
import torch

from pdebook.evidence import run as runner
from pdebook.evidence import sensitivity, trained
from pdebook.evidence.experiment import Scale, Workplace
from pdebook.ledger.record import Store
from pdebook.ledger.sources import experiments
from pdelab.datasets.base import majority
from pdelab.training import Settings


def keeps(name):
    """Whether an experiment makes use of its workplace, where checkpoints are kept."""
    function = inspect.unwrap(runner.find(name))
    return any(one.argval == "work" for one in dis.get_instructions(function) if one.opname.startswith("LOAD"))


SMOKE = [name for name in experiments() if Scale.SMOKE in runner.find(name).scales]
GO_ON = [name for name in SMOKE if keeps(name)]
READ = {"beyond_noise", "beyond_profile", "beyond_sentences", "beyond_steps"}

# Less is enough where each value means another group of trainings, or each example another state.
FEWER = {
    "corner_settings": {"pdebook.chapters.trained_corners.measure.RATES": (1e-2,)},
    "deep_scale": {"pdebook.chapters.beyond.deep.XS": (1.0,)},
    "deep_warning": {"pdebook.chapters.beyond.warning.RATES": (1e-2,)},
    "embedding_scale": {"pdebook.chapters.experiments_listops.measure.SCALES": (1, 10)},
    "fidelity_sweep": {
        "pdebook.chapters.experiments_listops.fidelity_sweep.SCALES": (1, 10),
        "pdebook.chapters.experiments_listops.fidelity_sweep.PARTS": (6,),
    },
    "information_layers": {
        "pdebook.chapters.experiments_information.measure.KINDS": ("transformer", "printed"),
        "pdebook.chapters.experiments_information.measure.FOOLED": (),
    },
    "information_training": {
        "pdebook.chapters.estimators.measure.MODELS": {"bare": ("bare", "relu"), "bare tanh": ("bare", "tanh")},
        "pdebook.chapters.estimators.measure.WATCH": (0.0, 0.4, 1.0),
    },
    "normalization": {"pdebook.chapters.stabilization.measure.SETTINGS": Settings(steps=20, rate=3e-3, warmup=2)},
    "same_start": {
        "pdebook.chapters.experiments_listops.same_start.SCALES": (1, 10),
        "pdebook.chapters.experiments_listops.same_start.SIMULATORS": ("printed", "diffusion_only"),
    },
    "reference-text": {"pdebook.evidence.labels.EXAMPLES": 100},
}


@pytest.fixture(autouse=True)
def _quicker(monkeypatch):
    quicker(monkeypatch)


def quicker(monkeypatch):
    """What takes most of the time is replaced by any function of the states or the weights; the training is not."""
    for place, value in (pair for places in FEWER.values() for pair in places.items()):
        monkeypatch.setattr(place, value)
    for sizes in trained.TASKS.values():
        monkeypatch.setitem(sizes, Scale.SMOKE, replace(sizes[Scale.SMOKE], probe=30))
    for place in ("pdebook.evidence.labels", "pdebook.chapters.estimators.laws"):
        monkeypatch.setattr(f"{place}.usable_information", lambda t, y, **options: t.std().item())
    losses = [0.0] * len(sensitivity.STRENGTHS)
    monkeypatch.setattr(
        sensitivity, "noisy_losses", lambda model, *args, **options: [model.embed.places.std().item(), *losses]
    )
    monkeypatch.setattr("pdelab.datasets.controls.of", lambda data: {"majority": majority(data)})


@pytest.fixture
def steps(monkeypatch):
    return counted_steps(monkeypatch)


def counted_steps(monkeypatch):
    """Counts the steps of every training, `done`, and presses Ctrl-C in the step number `stop_at`."""
    counter = SimpleNamespace(done=0, stop_at=None)
    step = torch.optim.AdamW.step

    def counted(self, *args, **kwargs):
        counter.done += 1
        if counter.done == counter.stop_at:
            signal.raise_signal(signal.SIGINT)
        return step(self, *args, **kwargs)

    monkeypatch.setattr(torch.optim.AdamW, "step", counted)
    return counter


def numbers(result):
    """Figures, controls and what diverged, as text: NaN is equal to itself there."""
    return json.dumps([result.figures, result.controls, result.diverged], sort_keys=True)


@pytest.mark.parametrize("name", GO_ON)
def test_a_run_that_is_stopped_twice_ends_in_a_new_process_with_the_same_numbers(name, steps, tmp_path, elsewhere):
    run, work = runner.find(name), Workplace(folder=tmp_path)
    whole = run(Scale.SMOKE, 0)
    total = steps.done

    steps.done = 0
    for share in (total // 3, 2 * total // 3):
        steps.stop_at = share
        with pytest.raises(trained.Interrupted, match="stopped after step"):
            run(Scale.SMOKE, 0, work)
        assert steps.done == share  # none of the steps before was done again

    result, done = elsewhere.submit(children.go_on, name, tmp_path).result()
    assert numbers(result) == numbers(whole)
    assert done == total - steps.done


def go_on(name, folder):
    """In another process: the Result of a run that was stopped, and how many steps it still did."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        quicker(monkeypatch)
        counter = counted_steps(monkeypatch)
        return runner.find(name)(Scale.SMOKE, 0, Workplace(folder=folder)), counter.done


@pytest.fixture(scope="module")
def elsewhere():
    """A process that has seen nothing of this one."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        yield pool


def test_a_stop_in_the_last_step_of_a_training_is_not_lost(steps, tmp_path):
    """The training is finished and kept; the next one is not begun."""
    run, work = runner.find("corners-images"), Workplace(folder=tmp_path)
    last = trained.TASKS["images"][Scale.SMOKE].settings.steps
    steps.stop_at = last
    with pytest.raises(trained.Interrupted, match=f"stopped after step {last} of {last} of bare"):
        run(Scale.SMOKE, 0, work)
    assert steps.done == last


def test_the_other_experiments_begin_anew():
    """They keep nothing, as they make no use of the workplace: attacks, exact computations, trainings of seconds.

    `crowd_rates` computes for seconds and trains nothing; `beyond_…` reads networks that others trained.
    """
    assert {name for name in experiments() if keeps(name)} == set(GO_ON)
    assert set(SMOKE) - set(GO_ON) == {"algorithm1", *READ, "crowd_rates", "estimators", "layers_undone"}


def test_a_new_process_goes_on_where_another_was_stopped(steps, tmp_path, monkeypatch):
    """`bottleneck` has a look and penalties, which a checkpoint knows by name and not by their address."""
    monkeypatch.setenv("PDELAB_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("PDELAB_RESULTS", str(tmp_path / "results"))
    whole = runner.find("bottleneck")(Scale.SMOKE, 0)

    job = runner.Job("bottleneck", Scale.SMOKE, 0)
    steps.done, steps.stop_at = 0, 2 * steps.done // 3
    assert "stopped after step" in runner.do(job).where
    assert len(list(job.folder.rglob("checkpoint.pt"))) > 1

    child = children.command("run", "bottleneck", "--scale", "smoke", "--seeds", "1", "--quiet")
    err = child.communicate()[1]
    assert child.returncode == 0, err
    (result,) = Store(tmp_path / "results").load("bottleneck")
    assert numbers(result) == numbers(whole)
    assert not job.folder.exists()  # the checkpoints go when the Result is recorded
