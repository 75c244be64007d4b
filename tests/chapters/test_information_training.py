"""Information of trained networks: estimates beside the truth, which scale and clusters do not move."""

import dataclasses
import json
import math

import pytest
import torch

from pdebook.chapters.estimators import laws, measure
from pdebook.evidence import trained as tasks
from pdebook.evidence.experiment import Scale, Workplace
from pdebook.evidence.trained import TASKS, build, fit
from pdebook.ledger.record import Result, Store
from pdelab.seeds import normal

N, STEPS, STATES = 100, 5, 3
Y = torch.arange(N) % 10
SMOKE = TASKS["images"][Scale.SMOKE]


@pytest.fixture(scope="module")
def smoke():
    return measure.run_training("smoke", 0)


def clouds(factors=(1.0,) * STEPS, *, merge: int = 1):
    """(step, state, sample, feature): one cloud, multiplied by a factor a step; the last step keeps one in `merge`."""
    t = normal(0, "cloud", size=(STATES, N, 12)).float()
    taken = torch.stack([factor * t for factor in factors])
    taken[-1] = taken[-1][:, torch.arange(N) // merge * merge]
    return taken


def result(*taken):
    """What `run` makes of networks with these states, without the training."""
    curves = [laws.over_training(one, Y, 0) for one in taken]
    figures, controls = laws.agreement([laws.calls(one, N) for one in curves])
    figures |= {"true_shortfall": laws.shortfall(curves, N)} | laws.follows(curves, STATES)
    for number, one in enumerate(curves):
        figures |= {f"network {number}/training/{name}": values for name, values in one.items()}
    return Result("made", {"n": N}, "smoke", 0, "finished", figures, controls)


def collapse(*widths):
    """(step, state, sample, feature): classes drawn together to their means, (1 …) · the cloud about ten points."""
    t, means = normal(0, "cloud", size=(STATES, N, 12)), normal(1, "means", size=(10, 12))[Y]
    return torch.stack([means + width * t for width in widths])


# The figures.


def test_clustering_is_the_share_of_the_variance_between_classes():
    means = normal(1, "means", size=(10, 4))
    assert laws.clustering(means[Y], Y) == pytest.approx(1)
    t = normal(2, "noise", size=(20_000, 4))
    y = torch.arange(len(t)) % 10
    assert laws.clustering(t, y) == pytest.approx(9 / (len(t) - 1), rel=0.8)  # χ² of 36 degrees: 0.24 is one deviation
    assert laws.clustering(3 * means[y] + t, y) == pytest.approx(laws.clustering(5 * (3 * means[y] + t) + 7, y))


def test_a_fall_is_measured_from_the_largest_value_to_the_last():
    assert laws.falls([1.0, 3.0, 2.0], 10) == pytest.approx(1 / math.log(10))
    assert laws.falls([1.0, 2.0, 3.0], 10) == 0


def test_a_rescaled_state_keeps_its_truth_and_every_estimate_that_has_no_scale_of_its_own():
    curves = laws.over_training(clouds(), Y, 0)
    for state in range(STATES):
        assert curves[f"x_truth/{state}"] == pytest.approx([math.log(N)] * STEPS, abs=1e-5)
        for name in laws.FIXED:
            assert curves[f"times8_{name}/{state}"] == pytest.approx(curves[f"{name}/{state}"], abs=2e-5)
        for name in (f"x_noise{laws.NOISE}_lower", f"x_noise{laws.NOISE}_upper"):
            small, large = (curves[f"{factor}_{name}/{state}"][0] for factor in ("times0.125", "times8"))
            assert small < large - 1


def test_a_cloud_that_only_shrinks_is_compression_for_fixed_noise_and_not_at_level():
    found = result(clouds((1.0, 0.5, 0.25, 0.1, 0.03)))
    share, control = found.figures, found.controls
    assert share["compressing/x_truth"] == 0
    assert share["true_shortfall"] < 1e-5
    for name in laws.MOVED[2:]:
        assert share[f"compressing/{name}"] == 1
        assert control[f"compressing/level_{name}"] == 0
    for name in laws.FIXED:
        assert share[f"compressing/{name}"] == 0
    assert share["split"] == 1


def test_a_cloud_that_grows_is_no_compression_for_any():
    found = result(clouds((1.0, 2.0, 4.0, 8.0, 16.0)))
    assert found.figures["compressing/x_noise0.3_upper"] == 0
    assert found.figures["compressing/x_ratio1.0_upper"] == 0


def test_clusters_are_compression_at_a_fixed_ratio_though_the_truth_stays():
    t = normal(0, "cloud", size=(N, 12)).float()
    means = normal(1, "means", size=(10, 12)).float()[Y]
    taken = torch.stack([means + width * t for width in (1.0, 0.5, 0.1, 0.05, 0.01)]).unsqueeze(1)
    curves = laws.over_training(taken.expand(-1, STATES, -1, -1), Y, 0)
    fallen = laws.calls(curves, N)
    assert min(fallen["x_ratio1.0_upper"]) > laws.FALL
    assert max(fallen["x_truth"]) == 0
    assert curves["clustering/0"] == sorted(curves["clustering/0"])


def test_one_cloud_can_expand_for_one_estimator_and_compress_for_another():
    """It grows, and it clusters: information through fixed noise rises, at a fixed ratio it falls."""
    t, means = normal(0, "cloud", size=(N, 12)), normal(1, "means", size=(10, 12))[Y]
    taken = torch.stack([0.01 * t, 0.1 * t, t + means, 5 * (means + 0.1 * t)]).unsqueeze(1)
    curves = laws.over_training(taken, Y, 0)
    found = laws.expansion([laws.calls(curves, N)], [laws.calls(curves, N, laws.rises)])
    assert found["expanding/x_noise0.3_upper"] == found["opposed"] == 1
    assert found["expanding/x_ratio1.0_upper"] == 0


def test_the_changes_of_an_estimate_are_set_beside_those_of_scale_and_clusters():
    made = [clouds((1.0,) * 4 + (last,)) for last in (0.5, 0.2, 0.1, 0.05)]
    figures = result(*made).figures
    assert figures[f"follows_scale/x_noise{laws.NOISE}_upper"] > 0.9
    assert figures["follows_scale/x_bins30_unit"] == 0  # it does not vary


def test_the_estimates_over_depth_are_those_of_their_own_state():
    states = clouds()[0]
    found = laws.over_depth(states, Y, 0)
    alone = laws.over_depth(states[1:2], Y, 0)
    for name in ("x_bins5_unit", "x_bins5_layer", "x_noise0.3_lower", "x_ratio1.0_upper", "y_unit5", "y_usable"):
        assert found[name][1] == alone[name][0]
    low, high = states.min().item(), states.max().item()
    shared = float(laws.binned_information(states[1], bins=5, limits=(low, high)))
    assert found["x_bins5_shared"][1] == pytest.approx(shared, abs=1e-5)


def test_labels_that_have_nothing_to_do_with_the_state_are_found_by_the_bins_but_not_by_the_probe():
    states = clouds()[0]
    found = laws.over_depth_shuffled(states, Y, 0)
    assert min(found["y_bins30_layer"]) > 0.9 * math.log(10)
    assert max(found["y_usable"]) < 0.1
    assert max(found["clustering"]) < 3 * 9 / (N - 1)


# The run.


def test_every_network_has_its_curves_over_depth_and_training_and_its_controls(smoke):
    states, steps = SMOKE.depth + 1, len(smoke.configuration["steps"])
    assert steps == len(measure.WATCH)
    assert smoke.diverged == {}
    for model in measure.MODELS:
        for name in (*laws.MOVED, *laws.FIXED, "x_truth", "y_usable", "y_unit30", "rms", "spread", "clustering"):
            assert len(smoke.figures[f"{model}/{name}"]) == states
            assert len(smoke.controls[f"{model}/untrained_{name}"]) == states
        for name in (*laws.MOVED, *laws.FIXED, "x_truth", "y_unit30", "spread", "clustering"):
            assert len(smoke.figures[f"{model}/training/{name}/{states - 1}"]) == steps
        for name in laws.MOVED:
            for scaling in laws.SCALINGS[1:]:
                assert len(smoke.controls[f"{model}/training/{scaling}{name}/0"]) == steps
        for name in ("y_usable", "y_unit5", "y_bins30_layer", "y_noise0.3"):
            assert len(smoke.controls[f"{model}/shuffled_{name}"]) == states
        assert len(smoke.figures[f"{model}/training/y_usable/{states // 2}"]) == steps
    assert smoke.figures["pairs"] == len(measure.MODELS) * states
    assert len(measure.curve([smoke], "bare", "x_truth")) == states
    assert len(measure.curve([smoke], "bare", "level_x_bins5_shared", 1, control=True)) == steps


def test_the_curve_over_training_begins_untrained_and_ends_where_the_depth_is_shown(smoke):
    for model in measure.MODELS:
        for name in ("x_bins30_layer", "x_ratio1.0_lower", "spread", "y_unit5"):
            for state in range(SMOKE.depth + 1):
                curve = smoke.figures[f"{model}/training/{name}/{state}"]
                assert curve[0] == smoke.controls[f"{model}/untrained_{name}"][state]
                assert curve[-1] == smoke.figures[f"{model}/{name}"][state]


def test_the_networks_are_those_of_the_other_experiments(smoke):
    data = SMOKE.load(0)
    model, record = fit("bare", SMOKE, data, 0, Workplace())
    assert smoke.figures["bare/accuracy"] == record.accuracy
    last = tasks.look(model, data.test.take(slice(0, 100))).final.mean(dim=1)
    assert smoke.figures["bare/rms"][-1] == pytest.approx(last.square().mean().sqrt().item(), abs=1e-4)


def test_a_network_that_diverges_is_named_and_has_no_figures(monkeypatch):
    wild = dataclasses.replace(SMOKE, settings=dataclasses.replace(SMOKE.settings, rate=1e30, decay="none"))
    monkeypatch.setitem(TASKS["images"], Scale.SMOKE, wild)
    monkeypatch.setattr(measure, "MODELS", {"bare": ("bare", "relu")})
    found = measure.run_training("smoke", 0)
    assert list(found.diverged) == ["bare"]
    assert found.status == "diverged"


def test_the_activation_changes_the_network_and_not_its_first_weights():
    data = SMOKE.load(0)
    relu, tanh = (build("printed", dataclasses.replace(SMOKE, activation=name), data, 0) for name in ("relu", "tanh"))
    assert all(torch.equal(p, q) for p, q in zip(relu.parameters(), tanh.parameters(), strict=True))
    assert not torch.equal(relu(data.test.x[:2]), tanh(data.test.x[:2]))
    assert "activation" not in SMOKE.configuration()
    assert dataclasses.replace(SMOKE, activation="tanh").configuration()["activation"] == "tanh"


# The claim, and that it could come out otherwise.


def test_true_compression_makes_the_printed_statement_hold_and_ours_fail():
    found = measure.decide([result(clouds(merge=20))])
    assert found["printed"] == {"holds": True, "fails": False}
    assert found["repair"] == {"holds": False, "fails": True}


def test_a_scale_that_shrinks_alone_makes_the_printed_statement_fail_and_ours_hold():
    found = measure.decide([result(clouds((1.0, 0.5, 0.25, 0.1, 0.03)))])
    assert found["printed"] == {"holds": False, "fails": True}
    assert found["repair"] == {"holds": True, "fails": False}


@pytest.mark.parametrize("last", [1e-2, 1e-4, 1e-6])
def test_a_collapse_that_every_estimator_sees_is_no_evidence_against_the_printed_statement(last):
    """Ten clusters ever tighter: the one curve that does not fall is dead, its samples share a bin at all steps."""
    made = result(collapse(*torch.logspace(0, math.log10(last), STEPS, dtype=torch.float64).tolist()))
    assert made.figures["split"] == 1  # with the dead curve
    assert measure.voted(made)["dead"] > 0
    found = measure.decide([made])
    assert found["printed"] == {"holds": True, "fails": False}
    assert found["repair"] == {"holds": False, "fails": False}


def test_votes_need_the_curves():
    with pytest.raises(ValueError, match="result must hold curves"):
        measure.voted(Result("made", {"n": N}, "smoke", 0, "finished", {}, {}))


def test_where_nothing_moves_nothing_is_decided():
    found = measure.decide([result(clouds())])
    assert found["printed"] == found["repair"] == {"holds": False, "fails": False}


def test_five_seeds_are_recorded_with_the_settings_of_now():
    recorded = Store().load("information_training", "book")
    assert [one.seed for one in recorded] == [0, 1, 2, 3, 4]
    for one in recorded:
        assert one.configuration["models"] == {name: list(how) for name, how in measure.MODELS.items()}
        assert one.configuration["definitions"] == json.loads(json.dumps(measure.DEFINITIONS))
        assert one.configuration["fall"] == laws.FALL
        assert "dirty" not in one.environment["commit"]
        counted, _ = laws.agreement([falls_of(one, model) for model in measure.MODELS if model not in one.diverged])
        assert counted["split"] == one.figures["split"]


def falls_of(one, model):
    """The recorded falls of a network, its rescaled states among them."""
    kept = (one.figures | one.controls).items()
    return {name.split("/fall/")[1]: values for name, values in kept if name.startswith(f"{model}/fall/")}


def test_nothing_is_decided_without_results():
    with pytest.raises(ValueError, match="at least one finished run"):
        measure.decide([])
