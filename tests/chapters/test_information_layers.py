"""Definitions of entropy, dimension, sparsity and the rest: exact values, what a factor does, and what decides."""

import itertools
import math

import pytest
import torch

from pdebook.chapters.experiments_information import laws, measure
from pdebook.chapters.experiments_information.laws import (
    ENTROPIES,
    axes_for,
    closest,
    contrast,
    decided,
    drop,
    profile,
)
from pdebook.evidence.experiment import Scale
from pdebook.evidence.trained import TASKS, build, look
from pdebook.ledger import read_claims
from pdebook.ledger.record import Result, recorded_in
from pdelab.datasets.base import Examples
from pdelab.metrics.information import (
    channel_bounds,
    discrete_information,
    effective_dimension,
    entropy,
    per_unit_information,
)
from pdelab.seeds import normal, stream
from pdelab.solver import Trajectory

CLAIMS = {claim.id: claim for claim in read_claims()}


@pytest.fixture(scope="module")
def result():
    return measure.run("smoke", 0)


def made(seed=0, scale=1.0):
    """Five states of 60 examples, 6 tokens, 8 features."""
    states = [normal(seed, "state", n, size=(60, 6, 8)) + n for n in range(5)]
    return Trajectory.of([scale * u for u in states]), torch.arange(60) % 3


def test_the_printed_figures_are_those_of_the_claims():
    assert CLAIMS["P2-entropy"].printed["drop_percent"] == laws.DROP
    assert CLAIMS["P2-effdim"].printed["ratio"] == laws.RATIO
    assert CLAIMS["P2-mi"].printed["i_xt"] == laws.INFORMATION


def test_a_histogram_counts_as_the_plug_in_does_and_uniform_entries_fill_it():
    x = torch.linspace(0, 1, 1000, dtype=torch.float64)
    assert laws.histogram(x, 50, 0.0, 1.0) == pytest.approx(math.log(50), abs=1e-9)
    assert laws.histogram(x, 50, 0.0, 2.0) == pytest.approx(math.log(25), abs=0.01)
    assert laws.histogram(x, 50, 5.0, 6.0) == 0.0  # all in the first bin
    codes = torch.tensor([0, 0, 3, 1])
    assert laws._entropy(codes) == pytest.approx(float(entropy(codes)))


def test_a_factor_moves_shared_bins_by_its_logarithm_and_own_bins_not_at_all():
    x = normal(0, "x", size=(200_000,))
    for s in (0.5, 0.25):
        fine = [laws.histogram(f * x, 512, -8.0, 8.0) for f in (1.0, s)]
        assert fine[1] - fine[0] == pytest.approx(math.log(s), abs=0.02)
        ends = x.min().item(), x.max().item()
        own = [laws.histogram(f * x, 64, f * ends[0], f * ends[1]) for f in (1.0, s)]
        assert own[0] == pytest.approx(own[1], abs=1e-12)


def test_axes_that_hold_a_share_of_the_variance():
    t = torch.zeros(6, 3, dtype=torch.float64)
    t[0, 0], t[1, 0], t[2, 1], t[3, 1], t[4, 2], t[5, 2] = 3, -3, 1, -1, 0.1, -0.1  # variances 9 : 1 : 0.01
    assert [axes_for(t, share) for share in (0.5, 0.89, 0.9, 0.95, 0.9995, 1.0)] == [1, 1, 2, 2, 3, 3]


def test_the_entropy_of_a_gaussian_per_feature():
    t = normal(0, "t", size=(50_000, 3)) * torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)
    expected = 0.5 * math.log(2 * math.pi * math.e) + math.log(8) / 3
    assert laws.gaussian_entropy(t) == pytest.approx(expected, abs=0.01)


def test_paired_bins_see_a_copy_and_have_the_bias_of_independence():
    u, n, bins = normal(0, "u", size=(2000, 40)), 2000, 10
    a = torch.randint(0, bins, (n, 40), generator=stream(0, "a")).double()
    b = torch.randint(0, bins, (n, 40), generator=stream(0, "b")).double()
    assert laws.paired(a, b, bins) == pytest.approx((bins - 1) ** 2 / (2 * n), rel=0.1)
    assert laws.paired(u, 3 * u + 1, bins) == pytest.approx(laws.paired(u, u, bins))
    by_hand = float(discrete_information(a[:, 0].long(), b[:, 0].long()))
    assert laws.paired(a[:, :1], b[:, :1], bins) == pytest.approx(by_hand)


@pytest.mark.parametrize(("n", "d"), [(20, 32), (82, 128), (400, 32)])
def test_the_participation_ratio_of_noise_follows_from_its_size_alone(n, d):
    found = [1 / effective_dimension(normal(0, "noise", k, size=(n, d))).item() for k in range(60)]
    expected = (n + d) / ((n - 1) * d + 2)
    spread = torch.tensor(found).std().item()
    assert sum(found) / 60 == pytest.approx(expected, abs=4 * spread / math.sqrt(60))


def test_a_whole_factor_adds_at_most_its_logarithm_to_bins_of_fixed_width():
    for s in (2, 3, 5):
        for k in range(5):
            x = normal(k, "x", size=(500,)) * (k + 1)
            before, after = (laws.histogram(f * x, 400, -200.0, 200.0) for f in (1, s))
            assert -1e-9 <= after - before <= math.log(s) + 1e-9


def test_through_loud_noise_the_bounds_are_the_width_times_the_ratio_whatever_the_state_is():
    states = [normal(0, "t", size=(200, 16)) * torch.arange(1, 17), torch.relu(normal(1, "t", size=(200, 16))) + 3]
    for t in states:
        for ratio in (1e-3, 1e-4):
            bounds = channel_bounds(t, ratio=ratio)
            assert bounds.upper == pytest.approx(16 * ratio, rel=40 * ratio)  # the next term is of second order
            assert bounds.lower == pytest.approx(16 * ratio / 4, rel=40 * ratio)


def test_branches_of_mean_zero_make_a_state_larger():
    u, total = normal(0, "u", size=(1000, 32)), []
    for k in range(200):
        branch = torch.relu(u) @ normal(k, "w", size=(32, 32)) / 32**0.5
        total.append(((u + branch).square().mean() - u.square().mean() - branch.square().mean()).item())
    error = torch.tensor(total).std().item() / math.sqrt(200)
    assert abs(sum(total) / 200) < 4 * error


def test_plug_in_labels_have_the_bias_of_cells_and_classes():
    n, cells, classes = 4000, 5, 10
    t = torch.randint(0, cells, (n, 200), generator=stream(0, "t")).double()
    y = torch.randint(0, classes, (n,), generator=stream(0, "y"))
    found = per_unit_information(t, y, bins=cells).mean().item()
    assert found == pytest.approx((cells - 1) * (classes - 1) / (2 * n), rel=0.05)


def test_a_factor_on_all_states_changes_what_has_a_scale_and_nothing_else():
    (one, y), (other, _) = made(), made(scale=4.0)
    a, b = profile(one, y, 0), profile(other, y, 0)
    changed = {name for name in a if not torch.allclose(torch.tensor(a[name]), torch.tensor(b[name]), rtol=1e-4)}
    scaled = {"h_gauss", "magnitude", "rms", "spread", "diversity", "y_noise1.0", "shuffled_y_noise1.0"}
    scaled |= {f"sparse{tau}" for tau in laws.THRESHOLDS}
    scaled |= {name for name in a if name.startswith("x_noise")}
    assert changed <= scaled
    assert {"magnitude", "diversity", "sparse0.1", "x_noise3.0_upper"} <= changed
    assert b["diversity"][1] == pytest.approx(16 * a["diversity"][1], rel=1e-5)


def test_the_closest_setting_is_judged_by_its_worst_layer():
    table = {"near once": [0.39, 0.9], "near everywhere": [0.3, 0.45]}
    assert closest(table, 0.39) == (1, [0.3, 0.45])
    assert drop([9.0, 2.0, 2.0, 2.0, 1.0]) == pytest.approx(50)


def test_what_decides_is_taken_from_the_right_layers():
    run, y = made()
    seen = profile(run, y, 0)
    found = decided(seen, 60)
    assert found["magnitude_rise"] == pytest.approx(seen["magnitude"][4] - seen["magnitude"][1])
    raw = seen["diversity"]
    assert found["diversity_recovery"][0] == pytest.approx(raw[4] - (raw[2] + raw[3]) / 2)
    name = laws.DIMENSIONS[int(found["dimension_setting"])]
    assert found["dimension"] == seen[name][2:]
    assert found["input_information"] == seen[laws.INPUTS[int(found["input_information_setting"])]][1:]
    assert found["entropy_drop"] == pytest.approx(drop(seen[ENTROPIES[int(found["entropy_setting"])]]))
    dip = seen["diversity_level"]
    assert found["diversity_dip"][1] == pytest.approx(dip[1] - (dip[2] + dip[3]) / 2)
    name = laws.INPUTS[int(found["input_information_bits_setting"])]
    assert found["input_information_bits"] == pytest.approx([x / math.log(2) for x in seen[name][1:]])
    assert len(found["early_drop"]) == len(laws.CONTRASTS)


def flat(known):
    """What `decided` reads of a profile of five states: 1 everywhere, but for what is known."""
    names = (*ENTROPIES, *laws.DIMENSIONS, *laws.INPUTS, *laws.SPARSITIES, *laws.DIVERSITIES, "magnitude")
    return dict.fromkeys(names, [1.0] * 5) | known


def test_powers_of_two_tell_every_pair_of_layers_apart():
    found = decided({name: [16.0, 8.0, 4.0, 2.0, 1.0] for name in flat({})}, 60)
    assert found["early_drop"] == [16.0 - 4.0] * len(laws.CONTRASTS)
    assert found["sparsity_fall"] == [8.0 - 1.0] * len(laws.SPARSITIES)
    assert found["magnitude_rise"] == 1.0 - 8.0
    assert found["diversity_recovery"] == [1.0 - 3.0] * 2
    assert found["diversity_dip"] == [8.0 - 3.0] * 2
    assert found["dimension"] == [4.0, 2.0, 1.0]
    assert found["input_information"] == [8.0, 4.0, 2.0, 1.0]
    assert found["input_information_bits"] == pytest.approx([x / math.log(2) for x in (8, 4, 2, 1)])
    assert found["entropy_drop"] == pytest.approx(100 * (14 / 3 - 1) / (14 / 3))


def test_each_printed_figure_has_its_own_closest_setting():
    """A drop of 1.7 % and not a rise, a ratio of 0.39, 0.048 nats and 0.048 bits, each among others that are near."""
    known = {ENTROPIES[0]: [0.0] * 5, ENTROPIES[3]: [9.0, 10.0, 10.0, 10.0, 10.17]}
    known |= {ENTROPIES[5]: [9.0, 10.0, 10.0, 10.0, 9.83]}
    known |= {laws.DIMENSIONS[n]: [9.0, 9.0, *[x] * 3] for n, x in ((1, 0.048), (4, 0.4), (6, 0.39))}
    amounts = ((2, 0.39), (30, 0.048 * math.log(2)), (40, 0.048), (50, 0.39 * math.log(2)))
    known |= {laws.INPUTS[n]: [9.0, *[x] * 4] for n, x in amounts}
    found = decided(flat(known), 60)
    assert (found["entropy_setting"], found["entropy_drop"]) == (5.0, pytest.approx(1.7))
    assert (found["dimension_setting"], found["dimension"]) == (6.0, [0.39] * 3)
    assert (found["input_information_setting"], found["input_information"]) == (40.0, [0.048] * 4)
    assert found["input_information_bits_setting"] == 30.0
    assert found["input_information_bits"] == pytest.approx([0.048] * 4)


FULL = math.log(60)


@pytest.mark.parametrize(
    ("name", "values", "counts"),
    [
        ("h_unit5", [0.0, 1.0, 1.0, 1.0, 0.983], True),
        ("h_unit5", [1.0, 0.0, 3.0, 3.0, 1.966], False),
        ("h_unit5", [1.0, FULL, FULL, FULL, FULL - 0.005], True),  # no entropy of 60 symbols
        ("x_bins5_layer", [0.0, 1.0, 1.0, 1.0, 0.983], True),
        ("x_bins5_layer", [1.0, 0.0, 3.0, 3.0, 1.966], False),
        ("x_bins5_layer", [1.0, FULL, FULL, FULL, FULL - 0.005], False),
        ("x_bins5_layer", [FULL, FULL, FULL, FULL, 0.983 * FULL], True),
    ],
)
def test_an_entropy_that_is_zero_or_saturated_in_the_layers_has_no_drop_and_the_embedding_does_not_matter(
    name, values, counts
):
    rest = {other: [1.0, 2.0, 2.0, 2.0, 1.0] for other in ENTROPIES}  # a drop of 50 %
    found = decided(flat(rest | {name: values}), 60)
    assert (ENTROPIES[int(found["entropy_setting"])] == name) is counts
    assert (found["entropy_drop"] < 2) is counts


def test_a_rescaled_state_can_hide_or_make_a_fall_of_sparsity_at_a_fixed_threshold():
    u = normal(0, "u", size=(60, 6, 8))
    run = Trajectory.of([9 * u, u, 2 * u, 3 * u, 4 * u])  # the fall is from layer 1, not from the embedding
    fall = decided(profile(run, torch.arange(60) % 3, 0), 60)["sparsity_fall"]
    half = len(laws.THRESHOLDS)
    assert min(fall[:half]) > 0
    assert fall[half:] == [0.0] * half


def early(*pairs):
    """A profile with these estimates of I(X; T) at the embedding and after layer 2, a pair for each of CONTRASTS."""
    run, y = made()
    values = {name: [a, a, b, a, a] for name, (a, b) in zip(laws.CONTRASTS, pairs, strict=True)}
    return profile(run, y, 0) | values


def test_the_best_simulator_is_that_with_the_largest_least_contrast():
    still = early(*[(1.0, 1.0)] * 8)
    a, b = early((3.0, 0.0), (1.0, 2.0), *[(1.0, 0.0)] * 6), early(*[(1.0, 0.5)] * 8)
    found = contrast({"a": a, "b": b}, still, 60)
    assert found["a"]["early_contrast"] == [3.0, -1.0, *[1.0] * 6]
    assert found["best"] == found["b"]
    assert found["best"]["early_vote"] == [1.0] * 8
    assert contrast({}, still, 60) == {}


def test_an_estimator_saturated_in_both_models_has_no_vote_and_decides_nothing():
    full = math.log(60)
    still = early((full, full), *[(1.0, 1.0)] * 7)
    found = contrast({"a": early((full, full - 0.005), *[(1.0, 0.0)] * 6, (1.0, 0.3))}, still, 60)["a"]
    assert found["early_vote"] == [0.0, *[1.0] * 7]
    assert found["early_contrast"] == pytest.approx([6.7 / 7, *[1.0] * 6, 0.7])
    other = contrast({"a": early((full, full - 0.5), *[(1.0, 0.0)] * 7)}, still, 60)["a"]
    assert other["early_vote"] == [1.0] * 8  # one of the four is not saturated
    assert not laws.tells([full - 0.001] * 4, 60)


def test_where_no_estimator_votes_the_contrast_is_unknown_and_a_simulator_that_is_seen_is_the_best():
    full = math.log(60)
    still, seen = early(*[(full, full)] * 8), early((full, 1.0), *[(full, full)] * 7)
    blind = contrast({"a": still}, still, 60)
    assert all(math.isnan(value) for value in blind["a"]["early_contrast"] + blind["best"]["early_contrast"])
    for pair in ({"a": still, "b": seen}, {"b": seen, "a": still}):
        found = contrast(pair, still, 60)
        assert found["best"] == found["b"]


@pytest.mark.parametrize("kind", ["noise", "ratio"])
def test_bounds_from_distances_computed_once_are_those_of_channel_bounds(kind):
    t = normal(0, "t", size=(50, 6)) * 3 + 100
    found = laws.channels(t)
    for value in (laws.NOISES if kind == "noise" else laws.RATIOS)[::4]:
        bounds = channel_bounds(t, **{kind: value})
        assert found[f"{kind}{value}_upper"] == pytest.approx(bounds.upper, rel=1e-6)
        assert found[f"{kind}{value}_lower"] == pytest.approx(bounds.lower, rel=1e-6)


def test_the_ratios_are_close_enough_for_any_small_information_and_no_estimate_is_far():
    ratios = laws.FINE
    assert max(b / a for a, b in itertools.pairwise(ratios)) < 1.16
    assert ratios[0] < 0.0005 < 0.005 < ratios[-1]
    for width in (32, 128):
        found = laws.channels(normal(0, "t", size=(200, width)))
        for unit in (1, math.log(2)):
            assert min(abs(value / unit - laws.INFORMATION) for value in found.values()) < 0.005


def test_digits_have_the_printed_size_at_the_scale_of_the_book():
    task = measure._task("rows", Scale.BOOK)
    assert (task.depth, task.width, task.heads, task.hidden) == (4, 128, 4, 512)
    assert measure._task("listops", Scale.BOOK).width == TASKS["listops"][Scale.BOOK].width


def test_directions_are_those_of_whole_intervals():
    rise = {"m/up": [9.0, 1.0, 2.0], "m/down": [0.0, 3.0, 1.0], "m/both": [0.0, 0.0, 0.0]}
    runs = []
    for seed, shift in enumerate((-0.1, 0.0, 0.1)):
        figures = {key: [*values[:-1], values[-1] + shift] for key, values in rise.items()}
        figures["m/both"][-1] = (-1.0) ** seed
        runs.append(Result("x", {}, "book", seed, "finished", figures))
    assert laws.directions(runs, "m", ("up", "down", "both")) == {"rises": 1, "falls": 1, "neither": 1}


def test_held_norms_stay_as_they_are_and_the_rest_is_trained():
    task = TASKS["rows"][Scale.SMOKE]
    data = task.load(0)
    model = measure.hold_norms(build("residual_norm", task, data, 0))
    free = {name for name, weights in model.named_parameters() if weights.requires_grad}
    assert free == {name for name, _ in model.named_parameters() if "norm" not in name}


def test_states_that_are_all_equal_give_no_figures():
    task = TASKS["rows"][Scale.SMOKE]
    data = task.load(0)
    model = build("bare", task, data, 0)
    with torch.no_grad():
        for weights in model.equation.parameters():
            weights.zero_()
    assert measure.ProfileLook(data.test.take(slice(0, 20)), 0)(model) == {}
    assert look(model, data.test.take(slice(0, 20))).status.name == "FINISHED"


def test_every_model_has_its_figures_and_every_claim_its_controls(result):
    for prefix in ("rows", "listops"):
        for kind in laws.KINDS:
            for name in ("h_hist30_own", "dim_participation_tokens", "x_ratio0.1_upper", "y_usable", "magnitude"):
                assert len(result.figures[f"{prefix}-{kind}/{name}"]) == laws.DEPTH + 1
                assert len(result.controls[f"{prefix}-{kind}/untrained_{name}"]) == laws.DEPTH + 1
    for claim in CLAIMS.values():
        if claim.evidence.get("experiment") == "information_layers":
            for one in claim.comparisons:
                controls = one["control"] if isinstance(one["control"], list) else [one["control"]]
                assert recorded_in(result, one["figure"])
                assert all(recorded_in(result, control, control=True) for control in controls)
    assert len(result.figures["rows-best/early_contrast"]) == len(laws.CONTRASTS)
    assert "rows-best/untrained_early_contrast" in result.controls
    assert "rows-best-shuffled/early_contrast" in result.controls


def test_a_setting_that_gave_nan_is_never_the_closest():
    assert closest({"nan": [0.39, math.nan], "a": [0.5]}, 0.39) == (1, [0.5])


def test_directions_leave_out_a_seed_in_which_the_model_diverged():
    runs = [Result("e", {}, "book", seed, "finished", {"m/h": [0.0, 1.0, 2.0 + seed / 10]}) for seed in range(3)]
    runs.append(Result("e", {}, "book", 3, "finished", {}, diverged={"m": 5}))
    assert laws.directions(runs, "m", ["h"]) == {"rises": 1, "falls": 0, "neither": 0}


def test_directions_before_training_are_read_from_the_controls_and_no_change_is_no_direction():
    runs = []
    for seed, sign in enumerate((-1.0, 1.0, -1.0)):
        figures = {"m/h": [9.0, 1.0, 2.0], "m/same": [0.0, 2.0, 2.0], "m/unsure": [0.0, 0.0, sign]}
        controls = {"m/untrained_h": [0.0, 2.0, 1.0], "m/untrained_same": [0.0, 1.0, 2.0]}
        runs.append(Result("e", {}, "book", seed, "finished", figures, controls, diverged={"other": 3}))
    assert laws.directions(runs, "m", ["h", "same", "unsure"]) == {"rises": 1, "falls": 0, "neither": 2}
    assert laws.directions(runs, "m", ["h"], "untrained_") == {"rises": 0, "falls": 1, "neither": 0}
    assert laws.directions(runs, "m", ["same"], "untrained_") == {"rises": 1, "falls": 0, "neither": 0}


@pytest.fixture
def seen_by(monkeypatch):
    """What a ProfileLook finds in a run, with or without a mask; the labels, which take long, are left out."""

    def found(run, mask=None):
        monkeypatch.setattr(measure, "look", lambda model, examples: run)
        monkeypatch.setattr(laws, "of_labels", lambda t, y, seed: {})
        x = torch.zeros(run.states[0].shape)
        return measure.ProfileLook(Examples(x, torch.arange(len(x)) % 2, mask), 0)(None)

    return found


def signs(name):
    return normal(0, name, size=(12, 5, 4)).sign().float()


def test_a_look_leaves_out_padding_whatever_stands_there(seen_by):
    mask = torch.arange(5) < torch.arange(12).remainder(4).view(-1, 1) + 2
    found = seen_by(Trajectory.of([signs(n).masked_fill(~mask.unsqueeze(-1), 0.05) for n in ("a", "b")]), mask)
    assert found["magnitude"] == [1.0, 1.0]
    assert found["sparse0.1"] == [0.0, 0.0]


def test_a_look_at_a_run_that_diverged_gives_nothing_though_the_states_before_are_finite(seen_by):
    states = [signs("a"), signs("b")]
    assert seen_by(Trajectory.of(states))["magnitude"] == [1.0, 1.0]
    assert seen_by(Trajectory.of([*states, states[0] / 0])) == {}


def test_a_look_gives_nothing_if_one_state_has_the_same_mean_for_all_examples(seen_by):
    some = signs("a")
    some[..., 0] = 1.0  # a feature that is constant is no reason
    assert seen_by(Trajectory.of([some, some, some])) != {}
    still = torch.cat([some[:, :2], -some[:, :2], 5 * torch.arange(4.0).expand(12, 1, 4)], dim=1)
    assert seen_by(Trajectory.of([some, still, some])) == {}
