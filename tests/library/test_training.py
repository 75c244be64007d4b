"""The loop: a function of its seed, resumable to the bit, honest about divergence and interruption."""

import dataclasses
import hashlib
import io
import itertools
import math
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from children import train_in_child, train_together
from scipy.stats import binomtest
from torch import nn

from pdelab import checkpoints, training
from pdelab.bottleneck import with_bottleneck
from pdelab.checkpoints import RefusedCheckpoint, UnusableFolder
from pdelab.datasets.base import Dataset, Examples, majority, shuffled_batches
from pdelab.evaluation import PROBE, evaluate, wilson
from pdelab.models import simulator, transformer, with_ends
from pdelab.seeds import stream
from pdelab.training import HOOKS, Place, Settings, train

WIDTH, LENGTH, SYMBOLS = 8, 6, 5
QUIET = Place(progress=False)


def counting(count: int, name: str) -> Examples:
    """Which of the symbols 1 and 2 is more frequent? Sequences of 3 to 6 symbols, padded at the end."""
    generator = stream(0, name)
    x = torch.randint(1, SYMBOLS, (count, LENGTH), generator=generator)
    mask = torch.arange(LENGTH) < torch.randint(3, LENGTH + 1, (count, 1), generator=generator)
    x = x * mask
    return Examples(x, ((x == 1).sum(dim=1) > (x == 2).sum(dim=1)).long(), mask)


DATA = Dataset("counting", "synthetic", counting(320, "train"), counting(100, "test"), classes=2, symbols=SYMBOLS)
TEXT = torch.arange(40 * 9).reshape(40, 9) % SYMBOLS
NEXT = Dataset(
    "cycle",
    "synthetic",
    *(Examples(t[:, :-1], t[:, 1:]) for t in (TEXT[:32], TEXT[32:])),
    classes=SYMBOLS,
    symbols=SYMBOLS,
)
SETTINGS = Settings(steps=30, batch=32, rate=3e-3, warmup=5, evaluate_every=10, watch=(0, 15, 30), checkpoint_every=4)


def model(seed=0, **options):
    return with_ends(
        transformer(WIDTH, 2, 2, 16, seed=seed, **options), WIDTH, outputs=2, length=LENGTH, symbols=SYMBOLS, seed=seed
    )


def decoder():
    core = transformer(WIDTH, 1, 2, 16, causal=True)
    return with_ends(core, WIDTH, outputs=SYMBOLS, length=8, symbols=SYMBOLS, pool=False)


def weights(module):
    return torch.cat([value.flatten() for value in module.state_dict().values()])


def run(folder=None, settings=SETTINGS, seed=0, net=None, data=DATA, **options):
    """The model and the record of its training; options: look, objective and penalty."""
    net = model() if net is None else net
    settings = dataclasses.replace(settings, **options) if options else settings
    return net, train(net, data, settings, seed=seed, place=Place(folder=folder, progress=False))


def same(one, other):
    """Everything but the time it took."""
    a, b = (dataclasses.asdict(record) | {"seconds": 0} for record in (one, other))
    return a == b


def test_a_run_is_a_function_of_model_data_settings_and_seed():
    one, first = run()
    torch.manual_seed(99)  # the caller's own randomness has no part in it, and is left as it was
    before = torch.random.get_rng_state()
    two, second = run()
    assert torch.equal(before, torch.random.get_rng_state())
    assert same(first, second)
    assert torch.equal(weights(one), weights(two))
    other, _ = run(seed=1)
    assert not torch.equal(weights(one), weights(other))


def test_training_beats_the_majority_and_its_evaluation_is_that_of_the_model():
    net, record = run(settings=dataclasses.replace(SETTINGS, steps=150, watch=()))
    low = record.evaluations[-1].low
    assert low > majority(DATA)
    by_hand = (net(DATA.test.x, DATA.test.mask).argmax(dim=1) == DATA.test.y).double().mean()
    assert record.accuracy == pytest.approx(by_hand.item())
    assert [e.step for e in record.evaluations] == list(range(10, 151, 10))


def test_the_step_is_that_of_torch_with_the_stated_schedule():
    """Ten steps written out with torch alone give the same weights."""
    settings = dataclasses.replace(SETTINGS, steps=10, clip=0.5, watch=())
    net, record = run(settings=settings)
    twin = model()
    optimiser = torch.optim.AdamW(twin.parameters(), lr=1.0, weight_decay=settings.weight_decay)
    for step, index in enumerate(shuffled_batches(DATA.train, 32, 0, 0)[:10]):
        batch = DATA.train.take(index)
        rate = 3e-3 * (step + 1) / 5 if step < 5 else 3e-3 * (1 + math.cos(math.pi * (step - 5) / 5)) / 2
        optimiser.param_groups[0]["lr"] = rate
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(twin(batch.x, batch.mask), batch.y)
        loss.backward()
        norm = torch.cat([p.grad.flatten() for p in twin.parameters()]).norm()
        assert record.losses[step] == pytest.approx(loss.item(), rel=1e-5)
        assert record.gradient_norms[step] == pytest.approx(norm.item(), rel=1e-4)
        assert ((step + 1) in record.clipped) == (norm.item() > 0.5)
        nn.utils.clip_grad_norm_(twin.parameters(), 0.5)
        optimiser.step()
    torch.testing.assert_close(weights(net), weights(twin), rtol=1e-4, atol=1e-6)


def test_every_epoch_sees_each_example_at_most_once_and_mixes_anew():
    first, second = (torch.cat(shuffled_batches(DATA.train, 32, 0, epoch)) for epoch in (0, 1))
    assert first.sort().values.tolist() == list(range(320))
    left_out = torch.bincount(
        torch.cat([torch.cat(shuffled_batches(DATA.train, 96, 0, epoch)) for epoch in range(200)]), minlength=320
    )
    # 288 of 320 are seen in an epoch, whatever their length: of 200 epochs 180 ± √(200 · 0.9 · 0.1)
    lengths = DATA.train.mask.sum(dim=1)
    shares = [left_out[lengths == n].double().mean().item() for n in range(3, 7)]
    assert max(abs(share - 180) for share in shares) < 4 * math.sqrt(200 * 0.09 / 50)
    assert second.sort().values.tolist() == list(range(320))
    assert not torch.equal(first, second)
    lengths = DATA.train.mask.sum(dim=1)[first].reshape(10, 32)
    assert (lengths.max(dim=1).values - lengths.min(dim=1).values).float().mean() < 1.5  # 3 without sorting


def test_language_models_train_on_every_token_to_certainty():
    record = train(decoder(), NEXT, Settings(steps=150, batch=16, rate=2e-2), seed=0, place=QUIET)
    assert record.status == "finished"
    assert record.accuracy == 1.0  # the next symbol of a cycle is certain
    assert record.evaluations[-1].examples == 8


def test_padding_has_no_part_in_the_loss_of_a_language_model():
    mask = torch.arange(8).expand(32, 8) < 5
    garbled = torch.where(mask, NEXT.train.y, 0)
    data = dataclasses.replace(NEXT, train=Examples(NEXT.train.x, garbled, mask))
    short = dataclasses.replace(NEXT, train=Examples(NEXT.train.x[:, :5], NEXT.train.y[:, :5]))
    settings = Settings(steps=1, batch=32)
    losses = [train(decoder(), d, settings, seed=0, place=QUIET).losses[0] for d in (data, short)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_a_loss_that_is_not_finite_ends_the_run_as_diverged_with_its_step(tmp_path):
    settings = Settings(steps=50, batch=32, rate=1e30, decay="none", watch=(0,))
    _, record = run(tmp_path, settings)
    assert record.status == "diverged"
    assert record.stopped_at == record.step + 1
    assert all(math.isfinite(loss) for loss in record.losses)
    _, again = run(tmp_path, settings)  # a diverged run is a result: it is not run again
    assert same(record, again)


def test_a_last_step_that_ruins_the_weights_is_no_finished_run():
    _, record = run(settings=Settings(steps=1, batch=32, rate=1e30, decay="none"))
    assert (record.status, record.stopped_at) == ("diverged", 1)


def test_a_gradient_that_is_not_finite_ends_the_run_though_the_loss_is():
    class Steep(nn.Module):
        """√0 has a finite value and an infinite slope."""

        def __init__(self):
            super().__init__()
            self.p = nn.Parameter(torch.zeros(2))

        def forward(self, x, mask=None):
            return self.p.abs().sqrt().expand(len(x), 2)

    record = train(Steep(), DATA, Settings(steps=3, batch=32), seed=0, place=QUIET)
    assert (record.status, record.stopped_at, record.losses) == ("diverged", 1, [])


def test_evaluation_is_in_eval_mode_over_all_answers_and_leaves_the_mode(tmp_path):
    class Padded(nn.Module):
        """Right at the first token of each sequence, wrong at the others; dropout would spoil it."""

        def __init__(self):
            super().__init__()
            self.p, self.drop = nn.Parameter(torch.zeros(1)), nn.Dropout(0.99)

        def forward(self, x, mask=None):
            first = torch.arange(x.shape[1]) == 0
            return self.drop(torch.where(first, 5.0, -5.0).unsqueeze(-1) * torch.tensor([-1.0, 1.0])).expand(
                *x.shape, 2
            )

    lengths = torch.arange(300) % 4 + 1
    mask = torch.arange(4) < lengths.unsqueeze(1)
    examples = Examples(torch.zeros(300, 4, dtype=torch.long), torch.ones(300, 4, dtype=torch.long), mask)
    net, tokens = Padded().train(), mask.sum().item()
    right, wrong = math.log1p(math.exp(-10)), math.log1p(math.exp(10))
    for batch in (300, 256, 7):
        found = evaluate(net, examples, batch=batch)
        assert net.training
        assert found.accuracy == pytest.approx((1 / lengths).mean().item())
        assert found.loss == pytest.approx((300 * right + (tokens - 300) * wrong) / tokens, rel=1e-5)
    with pytest.raises(ValueError, match="examples is empty"):
        evaluate(net, examples.take(slice(0, 0)))


def test_an_answer_that_is_not_a_number_is_wrong():
    class Nan(nn.Module):
        def __init__(self):
            super().__init__()
            self.p = nn.Parameter(torch.zeros(1))

        def forward(self, x, mask=None):
            return torch.full((len(x), 2), math.nan)

    found = evaluate(Nan(), DATA.test)
    assert found.accuracy == 0
    assert math.isnan(found.loss)


def test_any_module_can_be_trained_and_its_children_are_watched():
    class Bag(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.out, self.drop = nn.EmbeddingBag(SYMBOLS, 4, padding_idx=0), nn.Linear(4, 2), nn.Dropout()

        def forward(self, x, mask=None):
            return self.out(self.drop(self.table(x)))

    torch.manual_seed(0)
    net = Bag()
    start = {name: value.clone() for name, value in net.state_dict().items()}
    first = train(net, DATA, SETTINGS, seed=0, place=QUIET)
    net.load_state_dict(start)
    torch.manual_seed(99)  # the caller's generator has no part in it
    second = train(net, DATA, SETTINGS, seed=0, place=QUIET)
    assert same(first, second)  # dropout too follows from the seed
    assert list(first.watched[0].gradient_norm) == ["table", "out", "drop"]
    assert first.watched[0].fidelity == []


def weight_size(net, batch, beta=0.1):
    return beta * sum(p.square().sum() for p in net.parameters())


def test_a_penalty_is_in_the_gradient_and_in_the_record():
    net, record = run(penalty=partial(weight_size, beta=0.5))
    free, without = run()
    assert len(record.penalties) == record.step
    assert without.penalties == []
    assert record.losses[0] == pytest.approx(without.losses[0] + record.penalties[0], rel=1e-5)
    assert weight_size(net, None) < weight_size(free, None)


def test_a_checkpoint_is_refused_under_another_penalty(tmp_path):
    run(folder=tmp_path, penalty=partial(weight_size, beta=0.5))
    with pytest.raises(RefusedCheckpoint, match="penalty"):
        run(folder=tmp_path, penalty=partial(weight_size, beta=0.6))
    with pytest.raises(RefusedCheckpoint, match="settings"):
        run(folder=tmp_path)


@pytest.mark.parametrize("given", [torch.zeros(2), 0.5, None])
def test_a_penalty_that_is_no_single_number_is_refused(given):
    with pytest.raises(ValueError, match="penalty must give one number"):
        run(penalty=lambda net, batch: given)


class Callable:
    """Its address is all that tells it from another."""

    def __call__(self, net, batch=None):
        return weight_size(net, batch)


@pytest.mark.parametrize("hook", HOOKS)
@pytest.mark.parametrize(
    "given",
    [
        lambda net, batch=None: weight_size(net, batch),
        Callable(),
        Callable().__call__,
        partial(lambda net, beta: weight_size(net, None, beta), beta=0.5),
        partial(weight_size, beta=Callable()),
    ],
    ids=["a lambda", "an object", "a method", "a partial of a lambda", "an argument without a name"],
)
def test_what_a_checkpoint_could_not_tell_from_another_is_refused_before_any_step(tmp_path, hook, given):
    words = f"{hook} must be a function of a module, a functools.partial of one, or a dataclass"
    with pytest.raises(ValueError, match=words):
        run(folder=tmp_path / "run", **{hook: given})
    assert not (tmp_path / "run").exists()


@dataclasses.dataclass(frozen=True)
class Nearest:
    """look(model): how near the outputs on some examples are to a tensor, and the outputs themselves."""

    examples: Examples
    target: torch.Tensor

    def __call__(self, net):
        logits = net(self.examples.x, self.examples.mask)
        return {"distance": (logits - self.target).norm().item(), "logits": logits}


def test_a_look_is_known_by_every_number_in_it(tmp_path):
    """The text of a large tensor leaves most of its entries out, and that of Examples all of them."""
    examples, target = DATA.test.take(slice(0, 100)), torch.zeros(100, 2)
    run(folder=tmp_path, look=Nearest(examples, target))
    other, answers = target.clone(), examples.y.clone()
    other[50, 1], answers[50] = 1e-6, 1 - answers[50]
    for look in (Nearest(examples, other), Nearest(dataclasses.replace(examples, y=answers), target)):
        with pytest.raises(RefusedCheckpoint, match=r"settings \(look\)"):
            run(folder=tmp_path, look=look)
    assert run(folder=tmp_path, look=Nearest(examples, target))[1].status == "finished"


def test_what_a_look_saw_before_an_interruption_is_there_when_the_run_goes_on(tmp_path):
    look = Nearest(DATA.test.take(slice(0, 10)), torch.zeros(10, 2))
    _, record = run(look=look)
    _, first = run(tmp_path, net=interrupted(model(), 25), look=look)
    assert first.status == "interrupted"
    assert [seen.step for seen in first.watched] == [0, 15]
    _, second = run(tmp_path, look=look)
    assert second.losses == record.losses
    for seen, again in zip(record.watched, second.watched, strict=True):
        assert seen.looked["distance"] == again.looked["distance"]
        assert torch.equal(seen.looked["logits"], again.looked["logits"])


def random_look(net):
    return {"drawn": torch.rand(()).item(), "numpy": np.float64(1.5), "whole": np.int64(2), "list": (np.float32(0.5),)}


def test_a_look_may_draw_random_numbers_and_give_those_of_numpy(tmp_path):
    _, record = run(look=random_look)
    run(tmp_path, net=interrupted(model(), 20), look=random_look)
    _, again = run(tmp_path, look=random_look)
    assert same(record, again)
    drawn = [seen.looked.pop("drawn") for seen in record.watched]
    assert len(set(drawn)) == 3
    assert record.watched[0].looked == {"numpy": 1.5, "whole": 2, "list": [0.5]}


@pytest.mark.parametrize("given", [np.zeros(2), "a word", None, [np.zeros(2)]])
def test_a_look_that_gives_what_no_checkpoint_holds_is_told_what_would_work(given):
    with pytest.raises(ValueError, match=r"look must give numbers, lists of numbers or tensors .* 'what' is"):
        run(look=lambda net: {"what": given})


def test_a_model_that_notes_its_last_call_goes_on_as_the_same_object(tmp_path):
    core = transformer(WIDTH, 1, 2, 16)
    net = with_bottleneck(core, WIDTH, 2, outputs=2, length=LENGTH, symbols=SYMBOLS)
    _, first = run(tmp_path, net=interrupted(net, 20))
    assert (first.status, run(tmp_path, net=net)[1].status) == ("interrupted", "finished")


def weights_alone(net, batch):
    return weight_size(net, batch)


def test_an_objective_takes_the_place_of_the_answers(tmp_path):
    _, record = run(folder=tmp_path, objective=weights_alone)
    assert record.losses[0] == pytest.approx(weight_size(model(), None).item(), rel=1e-5)
    assert record.losses[-1] < record.losses[0]
    with pytest.raises(RefusedCheckpoint, match="objective"):
        run(folder=tmp_path, objective=weight_size)
    with pytest.raises(ValueError, match="objective must give one number"):
        run(objective=lambda net, batch: torch.zeros(2))


def test_a_look_is_recorded_at_the_watched_steps_in_eval_mode():
    looked = run(look=lambda net: {"training": float(net.training), "grad": float(torch.is_grad_enabled())})[1]
    assert [w.looked for w in looked.watched] == [{"training": 0.0, "grad": 0.0}] * 3
    assert looked.losses == run()[1].losses


def test_what_is_watched_is_what_autograd_and_the_trajectory_give():
    net, record = run()
    seen = record.watched[-1]
    assert [w.step for w in record.watched] == [0, 15, 30]
    assert list(seen.gradient_norm) == ["embed", "layer 1", "layer 2", "readout"]
    probe = DATA.test.take(slice(0, PROBE))
    states = net.trajectory(probe.x, probe.mask).states
    assert seen.state_rms == pytest.approx([u[probe.mask].square().mean().sqrt().item() for u in states], rel=1e-5)
    per_weight = {name: sum(p.numel() for p in part.parameters()) for name, part in net.layers().items()}
    batch = DATA.train.take(slice(0, PROBE))  # the same at every step, and not sorted by length
    nn.functional.cross_entropy(net(batch.x, batch.mask), batch.y).backward()
    embed = torch.cat([p.grad.flatten() for p in net.embed.parameters()])
    assert seen.gradient_norm["embed"] == pytest.approx(embed.norm().item(), rel=1e-4)
    for name, norm in seen.gradient_norm.items():
        assert seen.gradient_rms[name] == pytest.approx(norm / math.sqrt(per_weight[name]), rel=1e-5)
    assert len(seen.fidelity) == len(seen.nonuniformity) == 3


def test_a_stack_that_shares_its_weights_is_one_layer():
    net = with_ends(simulator("printed", 8, 4, 2, 16, shared=True), 8, outputs=2, length=6, symbols=5)
    assert list(net.layers()) == ["embed", "layers", "readout"]


@pytest.mark.parametrize(("right", "n"), [(0, 10), (3, 10), (10, 10), (374, 400)])
def test_wilson_s_interval_is_scipy_s(right, n):
    theirs = binomtest(right, n).proportion_ci(0.95, method="wilson")
    assert wilson(right, n) == pytest.approx((theirs.low, theirs.high), abs=1e-4)


# Nothing is lost.


def test_a_run_killed_twenty_times_ends_with_the_same_bits(tmp_path):
    """SIGKILL at random moments, a checkpoint being written among them; each restart goes on from what is there."""
    whole, record = run()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["pdelab.training", "pdelab.models"])
    chance, kills, starts = random.Random(1), 0, 0
    folder = tmp_path / "run"
    while kills < 20:
        child = context.Process(target=train_in_child, args=(folder,))
        child.start()
        starts += 1
        seen = time.monotonic()
        while not folder.exists() and child.is_alive() and time.monotonic() < seen + 60:
            time.sleep(0.005)
        child.join(chance.uniform(0, 0.4))
        if child.is_alive():
            os.kill(child.pid, signal.SIGKILL)
            child.join()
            kills += 1
        elif kills < 20:  # it finished before it could be killed: begin a new run
            assert child.exitcode == 0
            net, again = run(folder)
            assert same(record, again)
            assert torch.equal(weights(whole), weights(net))
            (folder / "checkpoint.pt").unlink()
    net, again = run(folder)
    assert same(record, again)
    assert torch.equal(weights(whole), weights(net))
    assert sorted(path.name for path in folder.iterdir()) == [".lock", "checkpoint.pt"]


def interrupted(net, at):
    """The model, which presses Ctrl-C in its forward pass number `at`."""
    calls = itertools.count(1)
    net.register_forward_hook(lambda *_: signal.raise_signal(signal.SIGINT) if next(calls) == at else None)
    return net


@pytest.mark.parametrize("anew", [True, False], ids=["a new model", "the same object, as a cell that is run again"])
def test_interrupting_keeps_what_was_done_and_the_same_call_goes_on(tmp_path, anew):
    settings = dataclasses.replace(SETTINGS, steps=40, watch=(), evaluate_every=None, checkpoint_every=1000)
    whole, record = run(settings=settings)
    net, first = run(tmp_path, settings, net=interrupted(model(), 7))
    assert (first.status, first.step) == ("interrupted", 7)
    assert first.losses == record.losses[:7]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    net, second = run(tmp_path, settings, net=model() if anew else net)
    assert second.status == "finished"
    assert same(record, second)
    assert torch.equal(weights(whole), weights(net))
    assert not net.training
    assert second.seconds > first.seconds > 0


def test_a_second_interruption_after_a_second_is_obeyed_at_once(tmp_path):
    def impatient(*_):
        signal.raise_signal(signal.SIGINT)
        time.sleep(1.1)
        signal.raise_signal(signal.SIGINT)

    net = model()
    net.register_forward_hook(impatient)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, net=net)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert run(tmp_path)[1].status == "finished"  # the folder is free again


def test_a_caller_who_is_patient_too_hears_of_the_interruption_and_stops_a_run_before_its_first_step():
    with training.patience() as asked:
        _, record = run(net=interrupted(model(), 20))
        assert len(asked) == 1
        assert (record.status, record.step < 30) == ("interrupted", True)
        assert (run()[1].status, run()[1].step) == ("interrupted", 0)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_two_runs_in_one_folder_are_refused(tmp_path):
    net, inner = model(), []

    def again(*_):
        if not inner:
            inner.append("tried")
            with pytest.raises(UnusableFolder, match="is in use by another run"):
                run(tmp_path)

    net.register_forward_hook(again)
    assert run(tmp_path, net=net)[1].status == "finished"
    assert inner


def test_a_folder_that_cannot_be_written_is_refused_before_any_step(tmp_path):
    (tmp_path / "file").write_text("in the way")
    net = model()
    net.register_forward_hook(lambda *_: pytest.fail("a step was made"))
    with pytest.raises(UnusableFolder, match=r"folder .*file cannot be written"):
        run(tmp_path / "file", net=net)
    with pytest.raises(UnusableFolder, match=r"folder .*inside cannot be written"):
        run(tmp_path / "file" / "inside", net=net)


def test_a_fault_of_the_model_is_not_taken_for_one_of_the_folder(tmp_path):
    net = model()

    def deny(*_):
        raise PermissionError("the model's own")

    net.register_forward_hook(deny)
    with pytest.raises(PermissionError, match="the model's own"):
        run(tmp_path, net=net)
    assert run(tmp_path)[1].status == "finished"  # the folder is free again


def test_weights_without_dimension_are_kept_too(tmp_path):
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.out, self.scale = nn.Linear(LENGTH, 2), nn.Parameter(torch.tensor(1.0))

        def forward(self, x, mask=None):
            return self.scale * self.out(nn.functional.pad(x, (0, LENGTH - x.shape[1])).float())

    torch.manual_seed(0)
    assert train(Scaled(), DATA, SETTINGS, seed=0, place=Place(folder=tmp_path, progress=False)).status == "finished"


def test_a_run_that_goes_on_with_other_code_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(training, "commit", lambda: "abc")
    _, first = run(tmp_path, net=interrupted(model(), 5))
    assert (first.status, first.commits) == ("interrupted", ["abc"])
    monkeypatch.setattr(training, "commit", lambda: "def")
    assert run(tmp_path)[1].commits == ["abc", "def"]


def test_watching_changes_nothing():
    class Normed(nn.Module):
        """Batch statistics that a forward pass in training mode would move."""

        def __init__(self):
            super().__init__()
            self.table, self.norm, self.out = nn.EmbeddingBag(SYMBOLS, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)

        def forward(self, x, mask=None):
            return self.out(self.norm(self.table(x)))

    found = []
    for watch in ((), (0, 15, 30)):
        torch.manual_seed(0)
        net = Normed()
        train(net, DATA, dataclasses.replace(SETTINGS, watch=watch), seed=0, place=QUIET)
        found.append(weights(net))
    assert torch.equal(*found)


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty"])
def test_a_damaged_checkpoint_is_refused_and_kept(tmp_path, damage):
    run(tmp_path)
    path = tmp_path / "checkpoint.pt"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes({"cut": content[: len(content) // 2], "flipped": content, "empty": b""}[damage])
    with pytest.raises(RefusedCheckpoint, match=r"checkpoint\.pt is cut short or damaged; delete it"):
        run(tmp_path)
    assert path.exists()


@pytest.mark.parametrize(
    ("other", "word"),
    [
        ({"settings": dataclasses.replace(SETTINGS, rate=1e-4)}, r"settings \(rate\)"),
        ({"seed": 5}, "seed"),
        ({"net": model(seed=3)}, "first weights"),
        ({"data": dataclasses.replace(DATA, train=DATA.train.take(slice(0, 300)))}, "data"),
        ({"data": dataclasses.replace(DATA, test=DATA.train.take(slice(0, 100)))}, "data"),
        ({"net": model(dt=0.5)}, "model"),
        ({"net": model(causal=True)}, "model"),
        ({"look": weights}, r"settings \(look\)"),
    ],
)
def test_the_checkpoint_of_another_run_is_refused(tmp_path, other, word):
    run(tmp_path)
    with pytest.raises(RefusedCheckpoint, match=f"other {word}"):
        run(tmp_path, **other)


@pytest.mark.parametrize("spoil", ["record", "model", "optimiser", "no dict", "other class"])
def test_a_checkpoint_of_another_version_is_refused_in_our_words(tmp_path, spoil):
    run(tmp_path)
    path = tmp_path / "checkpoint.pt"
    content = torch.load(io.BytesIO(path.read_bytes().partition(b"\n")[2]), weights_only=True)
    if spoil in content:
        content[spoil] = {"unknown": 1}
    spoiled = {"no dict": [1], "other class": {"path": Path("somewhere")}}.get(spoil, content)
    buffer = io.BytesIO()
    torch.save(spoiled, buffer)
    seal = hashlib.sha256(buffer.getbuffer()).hexdigest().encode()
    path.write_bytes(seal + b"\n" + buffer.getvalue())
    with pytest.raises(RefusedCheckpoint, match=r"was written by another version.*name another folder") as caught:
        run(tmp_path)
    assert "weights_only" not in str(caught.value)
    assert caught.value.__suppress_context__


def test_a_setting_that_is_gone_is_named(tmp_path):
    net, path = model(), tmp_path / "checkpoint.pt"
    optimiser = torch.optim.SGD(net.parameters())
    checkpoints.save(path, {"settings": {"rate": 1.0, "old": None}}, net, optimiser, {})
    with pytest.raises(RefusedCheckpoint, match=r"other settings \(old, new\)"):
        checkpoints.load(path, {"settings": {"rate": 1.0, "new": 2}}, net, optimiser)


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ({"steps": 0}, "steps"),
        ({"batch": 0}, "batch"),
        ({"rate": 0.0}, "rate"),
        ({"clip": -1.0}, "clip"),
        ({"decay": "linear"}, "decay"),
        ({"watch": (31,)}, "watch"),
        ({"evaluate_every": 0}, "evaluate_every"),
        ({"checkpoint_every": 0}, "checkpoint_every"),
        ({"steps": 2.5}, "steps"),
        ({"warmup": 31}, "warmup"),
        ({"rate": math.inf}, "rate"),
        ({"rate": "1e-3"}, "rate"),
        ({"watch": 30}, "watch"),
        ({"look": 3}, "look"),
        ({"objective": "mse"}, "objective"),
        ({"penalty": 0.1}, "penalty"),
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong, word):
    with pytest.raises(ValueError, match=word):
        dataclasses.replace(SETTINGS, **wrong)


@pytest.mark.parametrize(
    ("change", "words"),
    [({"classes": 1}, "classes from 0 to 1; they must lie in 0 to 0"), ({"symbols": 3}, "symbols from 0 to 4")],
)
def test_answers_and_symbols_out_of_range_are_refused(change, words):
    with pytest.raises(ValueError, match=words):
        run(data=dataclasses.replace(DATA, **change))


def test_a_batch_larger_than_the_data_and_a_model_of_another_shape_are_refused():
    with pytest.raises(ValueError, match="batch must be at most the 320"):
        run(settings=dataclasses.replace(SETTINGS, batch=321))
    with pytest.raises(ValueError, match="model must give one row of scores"):
        run(net=with_ends(transformer(8, 1, 2, 16), 8, outputs=2, length=6, symbols=5, pool=False))


class Wrong(nn.Module):
    def __init__(self, gives):
        super().__init__()
        self.p, self.gives = nn.Parameter(torch.zeros(1)), gives

    def forward(self, x, mask=None):
        return self.gives(x)


@pytest.mark.parametrize(
    ("gives", "words"),
    [
        (lambda x: torch.zeros(len(x), 1), "a score for each of the 2 classes; it gives 1"),
        (lambda x: {"logits": torch.zeros(len(x), 2)}, "one row of scores for each answer.*it gives dict"),
        (lambda x: torch.zeros(len(x)), "one row of scores for each answer"),
        (lambda x: torch.zeros(*x.shape, 2), "pool=False"),
    ],
)
def test_a_model_of_another_shape_is_told_before_the_first_step(gives, words):
    with pytest.raises(ValueError, match=words):
        run(net=Wrong(gives))
    with pytest.raises(ValueError, match=words):
        run(net=Wrong(gives), settings=dataclasses.replace(SETTINGS, watch=()))


@pytest.mark.parametrize("seed", [None, -1, 1.5, "0", True])
def test_a_seed_that_is_no_whole_number_is_refused(seed):
    with pytest.raises(ValueError, match="seed must be a whole number"):
        run(seed=seed)


def test_what_is_no_dataset_no_settings_and_no_place_is_refused():
    with pytest.raises(ValueError, match="data must be a Dataset; not str"):
        run(data="digits-rows")
    with pytest.raises(ValueError, match="settings must be a Settings; not int"):
        run(settings=30)
    with pytest.raises(ValueError, match="place must be a Place; not str"):
        train(model(), DATA, SETTINGS, seed=0, place="cpu")


def test_weights_of_no_child_are_watched_as_own():
    class Own(Wrong):
        def __init__(self):
            super().__init__(lambda x: self.out(self.p.expand(len(x), 1)))
            self.out = nn.Linear(1, 2)

    record = train(Own(), DATA, SETTINGS, seed=0, place=QUIET)
    assert list(record.watched[0].gradient_norm) == ["out", "own"]


def test_numbers_of_numpy_are_kept_so_that_a_run_goes_on(tmp_path):
    settings = Settings(np.int64(6), batch=np.int64(4), rate=np.float64(1e-2), watch=(np.int64(0),), clip=np.float32(1))
    first = run(tmp_path, settings, seed=np.int64(3))[1]
    assert same(run(tmp_path, settings, seed=3)[1], first)


@pytest.mark.parametrize("kind", [MemoryError, OSError, torch.OutOfMemoryError])
def test_a_fault_of_the_machine_is_not_taken_for_one_of_the_checkpoint(tmp_path, monkeypatch, kind):
    def fails(*_):
        raise kind("no room")

    run(tmp_path)
    monkeypatch.setattr(torch.optim.AdamW, "load_state_dict", fails)
    with pytest.raises(kind, match="no room"):
        run(tmp_path)


def test_a_function_of_a_notebook_is_known_by_what_it_does():
    """All are of the module __main__, and a cell may be edited and run again."""
    found = []
    for text in (
        "def look(model): return {'a': 1.0}",
        "def look(model): return {'a': 2.0}",
        "def look(model): return {}",
    ):
        names = {"__name__": "__main__"}
        exec(text, names)
        found.append(checkpoints.identity("look", names["look"]))
    assert len(set(found)) == 3
    assert all(one.startswith("__main__.look ") for one in found)


def test_a_function_of_a_notebook_is_known_in_another_process_and_by_its_defaults():
    """The order of a set is another one in each process, and a default is no part of a function's code."""
    source = """
from pdelab.checkpoints import identity
def look(model, kinds=%s): return [n for n in model if n in {"weight", "bias", "gain", "scale"}]
print(identity("look", look))
"""

    def known(default: str, seed: str) -> str:
        command = [sys.executable, "-c", source % default]
        return subprocess.run(
            command, env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True
        ).stdout

    assert known("0.1", "1") == known("0.1", "2") != ""
    assert known("0.1", "1") != known("0.5", "1")


class Branched(nn.Module):
    """Examples that begin with 1 use a second layer, which the share of one process may never see."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, x, mask):
        head = x[:, :3].to(self.first.weight)
        one, answer = head[:, :1] == 1, self.first(head)
        return torch.where(one, answer + self.second(head), answer) if one.any() else answer


class Infinite(nn.Module):
    """Its loss is not finite in a step with an example that begins with 1, in the process that has it."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x, mask):
        head = x[:, :3].to(self.layer.weight)
        return self.layer(head) / torch.where((head[:, :1] == 1) & self.training, 0.0, 1.0)


def ragged() -> Dataset:
    """The next symbol of texts of unlike length: an equal share of the examples is no equal share of the tokens."""
    text = torch.arange(320 * 9).reshape(320, 9) % SYMBOLS
    mask = torch.arange(8) < torch.randint(1, 9, (320, 1), generator=stream(0, "lengths"))
    parts = (Examples(t[:, :-1], t[:, 1:], m) for t, m in ((text[:256], mask[:256]), (text[256:], mask[256:])))
    return Dataset("ragged", "synthetic", *parts, classes=SYMBOLS, symbols=SYMBOLS)


def beginning_with_1(every: int) -> Dataset:
    """One example in so many begins with a 1, the others with a 2."""
    x = DATA.train.x.clone()
    x[:, 0] = torch.where(torch.arange(len(x)) % every == every - 1, 1, 2)
    return dataclasses.replace(DATA, train=dataclasses.replace(DATA.train, x=x))


TOGETHER = {
    "classes": {"clip": 0.5},
    "tokens": {"net": decoder, "data": ragged()},
    "branched": {"net": Branched, "data": beginning_with_1(every=9), "batch": 4},  # in most steps of one or of none
    "diverging": {"net": Infinite, "data": beginning_with_1(every=320)},
}


def case(name, folder):
    """One training, whether this process is alone or not; what came of it is in a file of its rank."""
    options = TOGETHER[name] | {"watch": ()}
    torch.manual_seed(0)
    net = options.pop("net", model)().double()
    net, record = run(folder / name, net=net, **options)
    rank, size = training.group()
    kept = {"weights": net.state_dict(), "record": record.plain()}
    torch.save(kept, folder / f"{name}-{rank}-of-{size}.pt")


@pytest.fixture(scope="module")
def together(tmp_path_factory):
    """The folder in which two processes trained all cases together; and that of one alone."""
    both, alone = tmp_path_factory.mktemp("both"), tmp_path_factory.mktemp("alone")
    context = multiprocessing.get_context("spawn")
    pair = [context.Process(target=train_together, args=(rank, 2, both)) for rank in range(2)]
    for one in pair:
        one.start()
    for name in TOGETHER:
        case(name, alone)
    for one in pair:
        one.join(timeout=600)  # seconds, on a busy machine; alone it takes ten
        one.kill()
    assert [one.exitcode for one in pair] == [0, 0]
    return both, alone


def read(folder, name, rank=0, size=1):
    return torch.load(folder / f"{name}-{rank}-of-{size}.pt")


@pytest.mark.parametrize("name", TOGETHER)
def test_two_processes_reach_the_weights_of_one_with_the_same_batch(name, together):
    """In float64, up to the order of sums. AdamW would make steps of the rounding of float32, where a gradient is 0."""
    both, alone = together
    one, (first, second) = read(alone, name), (read(both, name, rank, 2) for rank in range(2))
    torch.testing.assert_close(first["weights"], second["weights"], rtol=0, atol=0)
    torch.testing.assert_close(first["weights"], one["weights"], rtol=1e-8, atol=1e-9)
    for part in ("losses", "gradient_norms"):
        assert first["record"][part] == second["record"][part]
        assert first["record"][part] == pytest.approx(one["record"][part], rel=1e-8)
    for part in ("status", "stopped_at", "clipped"):
        assert first["record"][part] == second["record"][part] == one["record"][part]
    assert first["record"]["evaluations"] == second["record"]["evaluations"]


def test_the_cases_of_two_processes_are_those_that_could_go_wrong(together):
    """Some steps are clipped, one process diverges while the other could go on, and answers are shared unequally."""
    alone = together[1]
    assert len(read(alone, "classes")["record"]["clipped"]) > 0
    diverged = read(alone, "diverging")["record"]
    assert (diverged["status"], diverged["stopped_at"] > 1) == ("diverged", True)
    shares = TOGETHER["tokens"]["data"].train.mask[:32].sum(dim=1)
    assert shares[::2].sum() != shares[1::2].sum()


def test_of_two_processes_the_first_keeps_the_checkpoint_and_one_alone_goes_on_from_it(together):
    both, _ = together
    assert [path.name for path in (both / "classes").iterdir() if path.suffix == ".pt"] == ["checkpoint.pt"]
    _, record = run(both / "classes", net=model().double(), watch=(), clip=0.5)
    assert record.plain() == read(both, "classes", 0, 2)["record"]


@pytest.mark.parametrize(
    ("options", "words"),
    [({"batch": 31}, "multiple of 2"), ({"penalty": weight_size}, "penalty"), ({"objective": weights_alone}, "whole")],
)
def test_what_a_share_of_the_batch_cannot_do_is_refused(options, words, monkeypatch):
    monkeypatch.setattr(training, "group", lambda: (0, 2))
    with pytest.raises(ValueError, match=words):
        run(**options)
