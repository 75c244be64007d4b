"""What a layer knows about the labels during training: exact cases, invariances, and the differences of P1's claim."""

import math

import pytest
import torch

from pdebook.evidence import labels as information_labels
from pdebook.evidence import reference
from pdebook.evidence import trained as tasks
from pdebook.evidence.experiment import Scale
from pdebook.evidence.labels import DECIDING, RECORDED, LabelLook, curves, of_labels, pooled
from pdebook.evidence.trained import TASKS, build
from pdelab.checkpoints import RefusedCheckpoint
from pdelab.datasets.base import Examples
from pdelab.evaluation import Watched
from pdelab.metrics.information import rows
from pdelab.seeds import normal, stream
from pdelab.training import Place, Settings, Training, train

TEXT = TASKS["text"][Scale.SMOKE]


@pytest.fixture(scope="module")
def topics():
    return TEXT.load(0)


@pytest.fixture(scope="module")
def result():
    return reference.text("smoke", 0)


def test_pooled_states_are_those_of_each_text_by_itself_in_their_order(topics):
    model, some = build("transformer", TEXT, topics, 0), topics.test.take(slice(0, 7))
    found = pooled(model, some, batch=3)
    assert found.shape == (TEXT.depth + 1, 7, TEXT.width)
    for k in range(7):
        run = tasks.look(model, topics.test.take(slice(k, k + 1)))
        alone = torch.stack([rows(u, run.mask).squeeze(0) for u in run.states])
        torch.testing.assert_close(found[:, k], alone, rtol=1e-4, atol=1e-5)


def test_labels_that_are_written_into_t_are_found_and_others_are_not():
    y = torch.arange(600) % 4
    t = 10 * torch.nn.functional.one_hot(y).float() + 0.1 * normal(0, "t", size=(600, 4)).float()
    found = of_labels(t, y, 0)
    for name in ("noise1.0", "unit5"):  # one feature tells one class of four from the rest
        whole = math.log(4) if name == "noise1.0" else math.log(4) - 0.75 * math.log(3)
        assert found[name] == pytest.approx(whole, abs=0.01)
    assert found["usable"] > 1
    none = of_labels(t, y[torch.randperm(600, generator=stream(0, "order"))], 0)
    assert max(abs(none[name]) for name in DECIDING) < 0.1
    assert set(found) == set(RECORDED)


def test_a_constant_state_tells_nothing_and_a_factor_changes_the_fixed_noise_alone():
    y = torch.arange(200) % 4
    assert set(of_labels(torch.ones(200, 3), y, 0).values()) == {0.0}
    t = 0.5 * torch.nn.functional.one_hot(y).float() + normal(0, "t", size=(200, 4)).float()
    one, other = of_labels(t, y, 0), of_labels(4 * t, y, 0)
    changed = {name for name in RECORDED if abs(one[name] - other[name]) > 1e-4}
    assert changed == {"noise1.0"}
    assert other["noise1.0"] > one["noise1.0"]


def test_rows_of_thirty_bins_say_h_of_y_whatever_the_labels_are():
    y = torch.arange(200) % 4
    assert of_labels(normal(0, "t", size=(200, 16)).float(), y, 0)["bins30_layer"] == pytest.approx(math.log(4))


def test_the_differences_are_those_of_a_curve_made_by_hand():
    curve = torch.tensor([[9.0, 9.0, 9.0], [3.0, 2.0, 0.0], [2.0, 2.0, 1.0], [4.0, 4.0, 3.5]])  # (state, step)
    assert information_labels.fall(curve) == pytest.approx((3 + 1 + 0.5) / 3)
    assert information_labels.first(curve) == pytest.approx(3 - 1)
    assert information_labels.last(curve[:, 1:]) == pytest.approx(3.75 - 1.5)
    assert information_labels.gap(curve + 1, curve) == pytest.approx(1)
    assert information_labels.first(curve.flip(1)) == pytest.approx(-3 + 0.5)  # all rise, layer 1 most


def made_by_hand(shift):
    """A record of three steps in which every estimator sees the same two layers, and shuffled labels 0.1 and 0.3."""
    steps = [([9, 1, 2], [0, 0.1, 0.1]), ([9, 4, 8], [0, 0.1, 0.3]), ([9, 5, 3], [0, 0.3, 0.1])]  # (states, shuffled)
    record = Training()
    for step, (known, floor) in enumerate(steps):
        looked = {name: [value + shift * step for value in known] for name in DECIDING}
        looked |= {f"shuffled_{name}": floor for name in DECIDING}
        record.watched.append(Watched(step, {}, {}, looked=looked))
    return record


def test_differences_are_less_what_shuffled_labels_give_and_controls_are_that_alone():
    records = {"transformer": made_by_hand(0.0), "linear": made_by_hand(-1.0)}
    found = tasks.Measured(records=records)
    information_labels.add(found, ("linear",))
    n = len(DECIDING)
    fall = ((1 - 5) + (2 - 3)) / 2 - ((0.1 - 0.3) + (0.1 - 0.1)) / 2
    assert found.figures["transformer/label_fall"] == pytest.approx([fall] * n, abs=1e-5)
    assert found.figures["linear/label_fall"] == pytest.approx([fall + 2] * n, abs=1e-5)
    assert found.figures["linear/label_gap"] == pytest.approx([1.5] * n, abs=1e-5)  # 1 and 2 after the first step
    last = (8 + 3) / 2 - (4 + 5) / 2 - (0.2 - 0.2)
    assert found.figures["transformer/label_last"] == pytest.approx([last] * n, abs=1e-5)
    assert found.controls["transformer/shuffled_label_fall"] == pytest.approx([-0.1] * n, abs=1e-5)
    assert found.controls["linear/shuffled_label_gap"] == pytest.approx([0.0] * n, abs=1e-5)
    assert found.controls["transformer/untrained_label_last"] == pytest.approx([1.0] * n, abs=1e-5)
    assert found.controls["linear/untrained_label_gap"] == pytest.approx([0.0] * n, abs=1e-5)


@pytest.mark.parametrize("lost", [(1,), (1, 2), (0, 1, 2)])
def test_a_model_whose_states_were_not_finite_is_named_and_the_others_are_compared(lost):
    record = made_by_hand(0.0)
    for step in lost:
        record.watched[step] = Watched(step, {}, {})
    records = {"transformer": made_by_hand(0.0), "linear": record, "bare": made_by_hand(-1.0)}
    found = tasks.Measured(records=records)
    information_labels.add(found, ("linear", "bare"))
    assert found.diverged == {"linear/information": lost[0]}
    assert not any(name.startswith("linear/") for name in found.figures | found.controls)
    assert found.figures["bare/label_gap"] == pytest.approx([1.5] * len(DECIDING), abs=1e-5)


def test_the_checkpoint_of_a_run_with_another_look_is_refused(topics, tmp_path):
    place = Place(folder=tmp_path, progress=False)
    for count in (40, 30):
        model = build("linear", TEXT, topics, 0)
        look = LabelLook(topics.test.take(slice(0, count)), 0)
        settings = Settings(steps=1, batch=8, watch=(0, 1), look=look)
        if count == 30:
            with pytest.raises(RefusedCheckpoint, match="look"):
                train(model, topics, settings, seed=0, place=place)
        else:
            train(model, topics, settings, seed=0, place=place)


def test_a_training_that_goes_on_has_looked_at_every_step(topics, tmp_path, monkeypatch):
    look = LabelLook(topics.test.take(slice(0, 200)), 0)
    settings = Settings(steps=4, batch=8, watch=(0, 2, 4), checkpoint_every=1, look=look)
    whole = train(build("linear", TEXT, topics, 0), topics, settings, seed=0, place=Place(progress=False))
    place = Place(folder=tmp_path / "run", progress=False)

    class Stop(Exception):
        pass

    looks = iter(range(9))

    def stopping(self, model):
        if next(looks) == 1:
            raise Stop
        return look_once(self, model)

    look_once = LabelLook.__call__
    monkeypatch.setattr(LabelLook, "__call__", stopping)
    with pytest.raises(Stop):
        train(build("linear", TEXT, topics, 0), topics, settings, seed=0, place=place)
    monkeypatch.undo()
    again = train(build("linear", TEXT, topics, 0), topics, settings, seed=0, place=place)
    for name, table in curves(whole).items():
        torch.testing.assert_close(curves(again)[name], table, rtol=0, atol=0)
        assert table.shape == (TEXT.depth + 1, 3)


def test_a_record_that_watched_no_step_is_refused_and_one_that_diverged_left_out():
    with pytest.raises(ValueError, match="watched no step"):
        curves(Training())
    seen, lost = Watched(0, {}, {}, looked={"usable": [0.0]}), Watched(1, {}, {})
    assert curves(Training(watched=[seen, lost])) is None
    assert curves(Training(watched=[lost])) is None


def test_states_that_are_not_finite_give_no_figures(topics):
    model = build("linear", TEXT, topics, 0)
    with torch.no_grad():
        for weights in model.equation.parameters():
            weights.fill_(1e30)
    assert LabelLook(Examples(topics.test.x[:20], topics.test.y[:20], topics.test.mask[:20]), 0)(model) == {}


def test_the_text_has_curves_differences_and_controls_of_every_estimator(result):
    steps = len(result.configuration["settings"]["watch"])
    for kind in ("transformer", *reference.OF_P1):
        for state in range(TEXT.depth + 1):
            assert len(result.figures[f"{kind}/information/usable/{state}"]) == steps
            assert len(result.controls[f"{kind}/information/shuffled_usable/{state}"]) == steps
        for name in ("fall", "first", "last"):
            assert len(result.figures[f"{kind}/label_{name}"]) == len(DECIDING)
            assert len(result.controls[f"{kind}/shuffled_label_{name}"]) == len(DECIDING)
        if kind != "transformer":
            assert len(result.figures[f"{kind}/label_gap"]) == len(DECIDING)
            assert len(result.controls[f"{kind}/untrained_label_gap"]) == len(DECIDING)
    assert "other/label_gap" in result.controls
    assert result.configuration["deciding"] == list(DECIDING)
    falls = {}
    for word, place in (("", result.figures), ("shuffled_", result.controls)):
        of = [place[f"linear/information/{word}usable/{state}"] for state in (1, 2)]
        falls[word] = sum(curve[0] - curve[-1] for curve in of) / 2
    assert result.figures["linear/label_fall"][0] == pytest.approx(falls[""] - falls["shuffled_"], abs=1e-6)
    assert result.controls["linear/shuffled_label_fall"][0] == pytest.approx(falls["shuffled_"], abs=1e-6)


def test_a_look_sets_beside_the_labels_the_same_labels_in_another_order(topics, monkeypatch):
    given = []
    monkeypatch.setattr(information_labels, "of_labels", lambda t, y, seed: given.append(y) or {"usable": 0.0})
    some = topics.test.take(slice(0, 40))
    LabelLook(some, 0)(build("transformer", TEXT, topics, 0))
    first, last = given[0], given[-1]
    assert torch.equal(first, some.y)
    assert not torch.equal(last, some.y)
    assert torch.equal(last.sort().values, some.y.sort().values)
