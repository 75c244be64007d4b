"""The loop: a function of its seed, resumable to the bit, honest about divergence and interruption."""

import dataclasses
import math
import multiprocessing
import os
import random
import signal
import threading
import time

import pytest
import torch
from scipy.stats import binomtest
from torch import nn

from pdelab.datasets.base import Dataset, Examples, majority, shuffled_batches
from pdelab.models import simulator, transformer, with_ends
from pdelab.seeds import stream
from pdelab.training import DamagedCheckpoint, Settings, evaluate, train, wilson

WIDTH, LENGTH, SYMBOLS = 8, 6, 5


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


def run(folder=None, settings=SETTINGS, seed=0, net=None, data=DATA):
    net = model() if net is None else net
    return net, train(net, data, settings, seed=seed, folder=folder, progress=False)


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
    assert second.sort().values.tolist() == list(range(320))
    assert not torch.equal(first, second)
    lengths = DATA.train.mask.sum(dim=1)[first].reshape(10, 32)
    assert (lengths.max(dim=1).values - lengths.min(dim=1).values).float().mean() < 1.5  # 3 without sorting


def test_language_models_train_on_every_token_to_certainty():
    record = train(decoder(), NEXT, Settings(steps=150, batch=16, rate=2e-2), seed=0, progress=False)
    assert record.status == "finished"
    assert record.accuracy == 1.0  # the next symbol of a cycle is certain
    assert record.evaluations[-1].examples == 8


def test_padding_has_no_part_in_the_loss_of_a_language_model():
    mask = torch.arange(8).expand(32, 8) < 5
    garbled = torch.where(mask, NEXT.train.y, 0)
    data = dataclasses.replace(NEXT, train=Examples(NEXT.train.x, garbled, mask))
    short = dataclasses.replace(NEXT, train=Examples(NEXT.train.x[:, :5], NEXT.train.y[:, :5]))
    settings = Settings(steps=1, batch=32)
    losses = [train(decoder(), d, settings, seed=0, progress=False).losses[0] for d in (data, short)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_a_loss_that_is_not_finite_ends_the_run_as_diverged_with_its_step(tmp_path):
    settings = Settings(steps=50, batch=32, rate=1e30, decay="none", watch=(0,))
    _, record = run(tmp_path, settings)
    assert record.status == "diverged"
    assert record.stopped_at == record.step + 1
    assert all(math.isfinite(loss) for loss in record.losses)
    _, again = run(tmp_path, settings)  # a diverged run is a result: it is not run again
    assert same(record, again)


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
    first = train(net, DATA, SETTINGS, seed=0, progress=False)
    net.load_state_dict(start)
    second = train(net, DATA, SETTINGS, seed=0, progress=False)
    assert same(first, second)  # dropout too follows from the seed
    assert list(first.watched[0].gradient_norm) == ["table", "out", "drop"]
    assert first.watched[0].fidelity == []


def test_what_is_watched_is_what_autograd_and_the_trajectory_give():
    net, record = run()
    seen = record.watched[-1]
    assert [w.step for w in record.watched] == [0, 15, 30]
    assert list(seen.gradient_norm) == ["embed", "layer 1", "layer 2", "readout"]
    probe = DATA.test.take(slice(0, 32))
    states = net.trajectory(probe.x, probe.mask).states
    assert seen.state_rms == pytest.approx([u[probe.mask].square().mean().sqrt().item() for u in states], rel=1e-5)
    per_weight = {name: sum(p.numel() for p in part.parameters()) for name, part in net.layers().items()}
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


def train_in_child(folder):
    torch.set_num_threads(1)
    run(folder)


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
    assert [path.name for path in folder.iterdir()] == ["checkpoint.pt"]


def test_interrupting_keeps_what_was_done_and_the_same_call_goes_on(tmp_path):
    whole, record = run(settings=dataclasses.replace(SETTINGS, steps=200))
    settings = dataclasses.replace(SETTINGS, steps=200, checkpoint_every=1000)
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    net, first = run(tmp_path, settings)
    assert first.status == "interrupted"
    assert 0 < first.step < 200
    assert first.losses == record.losses[: first.step]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    net, second = run(tmp_path, settings)
    assert second.status == "finished"
    assert same(record, second)
    assert torch.equal(weights(whole), weights(net))


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty"])
def test_a_damaged_checkpoint_is_refused_and_kept(tmp_path, damage):
    run(tmp_path)
    path = tmp_path / "checkpoint.pt"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes({"cut": content[: len(content) // 2], "flipped": content, "empty": b""}[damage])
    with pytest.raises(DamagedCheckpoint, match=r"checkpoint\.pt is cut short or damaged; delete it"):
        run(tmp_path)
    assert path.exists()


@pytest.mark.parametrize(
    ("other", "word"),
    [
        ({"settings": dataclasses.replace(SETTINGS, rate=1e-4)}, "settings"),
        ({"seed": 5}, "seed"),
        ({"net": model(seed=3)}, "first weights"),
        ({"data": dataclasses.replace(DATA, train=DATA.train.take(slice(0, 300)))}, "data"),
    ],
)
def test_the_checkpoint_of_another_run_is_refused(tmp_path, other, word):
    run(tmp_path)
    with pytest.raises(DamagedCheckpoint, match=f"other {word}"):
        run(tmp_path, **other)


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
    ],
)
def test_settings_that_make_no_sense_are_refused(wrong, word):
    with pytest.raises(ValueError, match=word):
        dataclasses.replace(SETTINGS, **wrong)


def test_a_batch_larger_than_the_data_and_a_model_of_another_shape_are_refused():
    with pytest.raises(ValueError, match="batch must be at most the 320"):
        run(settings=dataclasses.replace(SETTINGS, batch=321))
    with pytest.raises(ValueError, match="model gives"):
        run(net=with_ends(transformer(8, 1, 2, 16), 8, outputs=2, length=6, symbols=5, pool=False))
