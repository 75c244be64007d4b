"""The ListOps chapter: what was added to the comparisons, and the sweep of the embedding's scale."""

import json
import math
import statistics
from dataclasses import replace

import numpy as np
import pytest
import torch

from pdebook.chapters.experiments_listops import fidelity_sweep, same_start
from pdebook.chapters.experiments_listops import measure as embedding_scale
from pdebook.evidence import alignment, reference
from pdebook.evidence import trained as tasks
from pdebook.evidence.experiment import Scale, Workplace
from pdebook.evidence.trained import TASKS, build, fit, look
from pdebook.ledger.claims import read_claims
from pdebook.ledger.record import Store
from pdelab.datasets.listops_grammar import GRAMMARS, mean_length
from pdelab.metrics.similarity import cosine, fidelity
from pdelab.solver import Trajectory
from pdelab.status import Status
from pdelab.terms.interaction import Interaction
from pdelab.terms.reaction import Reaction
from pdelab.training import Evaluation

TASK = TASKS["listops"][Scale.SMOKE]


@pytest.fixture(scope="module")
def result():
    return reference.listops("smoke", 0)


@pytest.fixture(scope="module")
def data():
    return TASK.load(0)


def test_overall_is_the_mean_over_the_layers_without_the_input():
    assert alignment.overall({"cosine": [1.0, 0.5, 0.0]}, skip=1) == {"overall_cosine": 0.25}
    assert alignment.overall({"kl": [1.0, 3.0]}) == {"overall_kl": 2.0}


def test_overall_figures_leave_out_the_first_state_but_no_layer_of_attention(result):
    figures, known = result.figures, result.controls
    for name in (*alignment.SIMILARITIES, "mapped_cosine"):
        assert figures[f"printed/overall_{name}"] == pytest.approx(statistics.fmean(figures[f"printed/{name}"][1:]))
    for name in alignment.SIMILARITIES:
        assert known[f"copy/overall_{name}"] == pytest.approx(statistics.fmean(known[f"copy/{name}"][1:]))
    for name in ("attention_cosine", "mean_attention_kl"):
        assert known[f"uniform/overall_{name}"] == pytest.approx(statistics.fmean(known[f"uniform/{name}"]))


def test_the_gap_of_two_energy_curves_is_the_largest_distance_and_has_a_sign_in_the_gain_alone(result):
    assert alignment.energy_gap([0.2, 0.5, 1.0], [0.3, 0.9, 1.0]) == pytest.approx(0.4)
    assert math.isnan(alignment.energy_gap([0.2, math.nan], [0.3, 0.9]))
    with pytest.raises(ValueError, match="zip"):
        alignment.energy_gap([1.0], [0.5, 1.0])
    figures, known = result.figures, result.controls
    target, u0 = figures["transformer/energy"], known["input/energy"]
    for place, key in ((figures, "printed"), (figures, "distilled_bare"), (known, "noise"), (known, "other")):
        gap = max(abs(a - b) for a, b in zip(place[f"{key}/energy"], target, strict=True))
        of_input = max(abs(a - b) for a, b in zip(u0, target, strict=True))
        assert place[f"{key}/energy_gap"] == pytest.approx(gap)
        assert place[f"{key}/energy_gain"] == pytest.approx(of_input - gap)


def test_the_best_simulator_is_chosen_for_each_similarity_among_those_trained_apart(result):
    figures = result.figures
    for name, choose in reference.BEST.items():
        own = [figures[f"{kind}/{name}"] for kind in reference.SIMULATORS if f"{kind}/{name}" in figures]
        assert len(own) >= 3  # diffusion alone has no attention
        assert figures[f"best/{name}"] == choose(torch.tensor(own, dtype=torch.float64)).item()
    pair = torch.tensor([1.0, 2.0, math.nan])
    assert reference.BEST["overall_mse"](pair[:2]) == 1.0
    assert reference.BEST["energy_gain"](pair[:2]) == 2.0
    assert all(choose(pair).isnan() for choose in reference.BEST.values())  # no NaN hides behind a better one


def test_gradients_are_compared_as_whole_norms_per_weight_and_in_their_spikes(result, data):
    figures, known = result.figures, result.controls
    sizes = {}
    for kind in ("transformer", "other", "printed"):
        model, record = fit(kind, TASK, data, 0, Workplace())
        sizes[kind] = sum(p.numel() for p in model.parameters())
        assert figures[f"{kind}/weights"] == sizes[kind]
        assert figures[f"{kind}/gradient_median"] == statistics.median(record.gradient_norms)
    for place, kind in ((known, "other"), (figures, "printed")):
        median, largest = (
            [figures[f"{k}/gradient_{word}"] for k in (kind, "transformer")] for word in ("median", "largest")
        )
        ratio = median[0] / median[1]
        per_weight = ratio / math.sqrt(sizes[kind] / sizes["transformer"])
        spikes = (largest[0] / median[0]) / (largest[1] / median[1])
        for name, value in (("gradient", ratio), ("gradient_rms", per_weight), ("spike", spikes)):
            assert place[f"{kind}/all_log10_{name}_ratio"] == pytest.approx(math.log10(value))
    assert known["other/all_log10_gradient_rms_ratio"] == pytest.approx(known["other/all_log10_gradient_ratio"])
    assert "other/all_log10_gradient_ratio" not in figures  # a second Transformer is a control
    assert "shuffled/all_log10_gradient_ratio" in known


def test_a_model_whose_gradient_vanished_has_no_ratio():
    names = ("gradient_median", "gradient_largest")
    found = tasks.Measured(
        models={kind: torch.nn.Linear(1, 1) for kind in ("transformer", "bare")},
        figures={f"transformer/{name}": 1.0 for name in names} | {f"bare/{name}": 0.0 for name in names},
    )
    reference._gradients(found)
    assert found.figures["bare/weights"] == 2
    assert not any("ratio" in name for name in found.figures)


def test_profiles_go_from_the_embedding_to_the_last_layer_but_one(result):
    figures, known = result.figures, result.controls
    for kind in ("transformer", *reference.SIMULATORS):
        for place, before in ((figures, ""), (known, "untrained_")):
            values = place[f"{kind}/{before}fidelity"]
            assert place[f"{kind}/{before}profile"] == values[:-1]
            assert place[f"{kind}/{before}lowest_fidelity"] == min(values)
            assert values[0] == pytest.approx(1)


def test_a_net_with_its_stream_negated_stays_so_in_training(data):
    """Why a raw cosine of two nets trained apart has mean 0 over seeds: its sign is a coin toss."""
    for kind in ("transformer", "printed", "bare", "earlier"):
        model, twin = (build(kind, TASK, data, 0) for _ in range(2))
        into, out_of = [twin.readout.weight], [*twin.embed.parameters()]
        for term in twin.equation.modules():
            if isinstance(term, Interaction):
                into, out_of = [*into, term.qkv.weight], [*out_of, *term.out.parameters()]
            if isinstance(term, Reaction):
                into, out_of = [*into, term.inner.weight], [*out_of, *term.outer.parameters()]
        with torch.no_grad():
            for weights in (*into, *out_of):
                weights.neg_()
        for one in (model, twin):
            tasks.trained(one, data, TASK.settings, 0, Workplace(), kind)
        probe = data.test.take(slice(0, 20))
        for u, v in zip(look(model, probe).states, look(twin, probe).states, strict=True):
            torch.testing.assert_close(u, -v)


def test_enlarging_an_embedding_multiplies_the_first_state_alone(data):
    probe = data.test.take(slice(0, 5))
    model, twin = (build("transformer", TASK, data, 0) for _ in range(2))
    embedding_scale.enlarge(model.embed, 10)
    torch.testing.assert_close(model.embed(probe.x), 10 * twin.embed(probe.x))
    assert torch.equal(model.readout.weight, twin.readout.weight)


def test_unrelated_models_share_the_embedding_and_are_compared_with_the_model(data):
    probe = data.test.take(slice(0, 20))
    model = build("transformer", TASK, data, 0)
    found = embedding_scale.beside_unrelated(model, TASK, data, 0, probe)
    for kind in embedding_scale.UNRELATED:
        other = build(kind, TASK, data, 0)
        other.embed = model.embed
        by_hand = cosines(look(other, probe), look(model, probe))
        assert found[kind] == pytest.approx(by_hand, abs=1e-6)
        assert found[kind][0] == pytest.approx(1)
        assert found[f"{kind}_fidelity"] == pytest.approx(fidelity(look(other, probe)).tolist(), abs=1e-6)
    assert found["fidelity"] == pytest.approx(fidelity(look(model, probe)).tolist(), abs=1e-6)


def test_the_loss_of_fidelity_falls_with_the_square_of_the_scale_in_double_precision(data):
    probe = data.test.take(slice(0, 20))
    lost = []
    for factor in (100, 1000):
        model = build("transformer", TASK, data, 0).double()
        embedding_scale.enlarge(model.embed, factor)
        lost.append(1 - fidelity(look(model, probe))[-1].item())
    assert math.log10(lost[0] / lost[1]) == pytest.approx(2, abs=0.02)


def test_the_sweep_has_every_scale_and_place_with_its_controls():
    result = embedding_scale.run("smoke", 1)
    for place in embedding_scale.KINDS:
        for factor in embedding_scale.SCALES:
            name = f"{place} {factor}"
            assert len(result.figures[f"{name}/fidelity"]) == TASK.depth + 1
            assert 0 <= result.figures[f"{name}/accuracy"] <= 1
            for key in ("other", "printed", "untrained_other", "untrained_printed", "untrained_fidelity"):
                assert len(result.controls[f"{name}/{key}"]) == TASK.depth + 1
            assert result.controls[f"{name}/untrained_input_rms"] == pytest.approx(factor, rel=0.1)
    for place, key, best in (
        (result.figures, "fidelity", "best"),
        (result.controls, "untrained_fidelity", "untrained_best"),
        (result.controls, "other_fidelity", "other_best"),
        (result.controls, "printed_fidelity", "printed_best"),
    ):
        least = [min(place[f"pre {s}/{key}"][: TASK.depth]) for s in embedding_scale.SCALES]
        assert place[f"{best}/lowest_fidelity"] == max(least)


def test_the_best_scale_is_that_of_the_largest_least_fidelity_and_the_last_state_does_not_count():
    seen = {"pre 1/fidelity": [1.0, 0.6, 0.1], "pre 3/fidelity": [1.0, 0.7, 0.0], "post 3/fidelity": [1.0, 0.9, 0.9]}
    assert embedding_scale.lowest_at_best(seen) == {"best/lowest_fidelity": 0.7}
    assert embedding_scale.lowest_at_best({}) == {}


def test_the_sweep_sets_a_trained_model_beside_itself_untrained_and_scale_acts_before_the_norm_alone(monkeypatch, data):
    """1 − cos falls as 1/s² with pre-LayerNorm; training is here a doubling of the embedding, so it falls to a quarter.

    Post-LayerNorm adds Att(u), of the size of u.
    """
    monkeypatch.setattr(embedding_scale, "SCALES", (10, 20))

    def double(model, *_, **__):
        embedding_scale.enlarge(model.embed, 2)
        return tasks.Training(status="finished", evaluations=[Evaluation(0, 1.0, 0.5, 0.4, 0.6, 9)])

    monkeypatch.setattr(embedding_scale, "trained", double)
    result = embedding_scale.run("smoke", 0)
    probe = data.test.take(slice(0, TASK.probe))
    for place, kind in embedding_scale.KINDS.items():
        given = build(kind, TASK, data, 0).embed(probe.x)[probe.mask].square().mean().sqrt().item()
        assert result.controls[f"{place} 10/untrained_input_rms"] == pytest.approx(10 * given, rel=1e-5)
        assert result.figures[f"{place} 10/input_rms"] == pytest.approx(20 * given, rel=1e-5)
        before, after = result.controls[f"{place} 10/untrained_fidelity"], result.figures[f"{place} 10/fidelity"]
        assert after == pytest.approx(result.controls[f"{place} 20/untrained_fidelity"], abs=1e-6)
        falls = (1 - before[-2]) / (1 - after[-2])
        assert falls == pytest.approx(4, rel=0.2) if place == "pre" else falls < 2
    assert result.figures["best/lowest_fidelity"] == min(result.figures["pre 20/fidelity"][:-1])
    assert result.controls["untrained_best/lowest_fidelity"] == min(result.figures["pre 10/fidelity"][:-1])


def test_a_model_that_diverges_in_the_sweep_is_named(monkeypatch):
    real = embedding_scale.trained
    monkeypatch.setattr(
        embedding_scale,
        "trained",
        lambda model, data, settings, seed, work, name, **rest: (
            tasks.Training(status=Status.DIVERGED, stopped_at=3)
            if name == "pre 30"
            else real(model, data, settings, seed, work, name, **rest)
        ),
    )
    result = embedding_scale.run("smoke", 0)
    assert result.diverged == {"pre 30": 3}
    assert "pre 30/fidelity" not in result.figures


def test_a_run_that_diverges_has_no_fidelity(monkeypatch, data):
    probe = data.test.take(slice(0, 3))
    model = build("transformer", TASK, data, 0)
    lost = Trajectory.of(list(look(model, probe).states), probe.mask)
    monkeypatch.setattr(embedding_scale, "look", lambda *_: replace(lost, status=embedding_scale.Status.DIVERGED))
    assert embedding_scale.beside_unrelated(model, TASK, data, 0, probe) is None


@pytest.mark.parametrize("name", ["embedding_scale", "same_start", "fidelity_sweep"])
def test_five_seeds_of_the_sweeps_are_recorded_with_the_settings_of_now(name):
    recorded = Store().load(name, "book")
    assert [result.seed for result in recorded] == [0, 1, 2, 3, 4]
    wanted = json.loads(json.dumps(TASKS["listops"][Scale.BOOK].cut(embedding_scale.STEPS).configuration()))
    for result in recorded:
        assert {key: result.configuration[key] for key in wanted} == wanted
        assert "dirty" not in result.environment["commit"]


def cosines(run, other):
    return [cosine(u, v, run.mask).item() for u, v in zip(run.states, other.states, strict=True)]


@pytest.fixture(scope="module")
def pairs():
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(same_start, "SCALES", (1, 30))
        return same_start.run("smoke", 0)


def test_a_pair_begins_with_the_same_weights_wherever_both_have_them(data):
    models = dict(same_start.starts(10, TASK, data, 0))
    first, probe = models["transformer"], data.test.take(slice(0, 5))
    torch.testing.assert_close(
        first.embed(probe.x), 10 * build("transformer", TASK, data, 0, "same start").embed(probe.x)
    )
    for kind in reference.SIMULATORS:
        own = models[kind]
        assert torch.equal(own.embed(probe.x), first.embed(probe.x))
        assert torch.equal(own.readout.weight, first.readout.weight)
        for part in (Interaction, Reaction):
            terms = [[m for m in model.modules() if isinstance(m, part)] for model in (own, first)]
            assert len(terms[0]) == (0 if kind == "diffusion_only" else TASK.depth)
            for mine, theirs in zip(terms[0], terms[1] if terms[0] else [], strict=True):
                assert all(torch.equal(p, q) for p, q in zip(mine.parameters(), theirs.parameters(), strict=True))
                assert not any(p is q for p, q in zip(mine.parameters(), theirs.parameters(), strict=True))
    assert not (models["other"].embed.places == first.embed.places).any()


def test_pairs_of_one_start_are_compared_after_a_training_on_the_same_batches(pairs, data):
    task, probe = TASK.cut(same_start.STEPS), data.test.take(slice(0, TASK.probe))
    first = build("transformer", task, data, 0, "same start")
    own = reference.borrowed("earlier", first, task, data)
    before = cosines(look(own, probe), look(first, probe))
    for model in (first, own):
        tasks.trained(model, data, task.settings, tasks.derive(0, "same start", "training"), Workplace(), "by hand")
    after = cosines(look(own, probe), look(first, probe))
    assert pairs.figures["earlier-scale1/cosine"] == pytest.approx(after, abs=1e-6)
    assert pairs.controls["untrained_earlier-scale1/cosine"] == pytest.approx(before, abs=1e-6)
    copied = fidelity(look(first, probe)).tolist()
    assert pairs.controls["copy-scale1/cosine"] == pytest.approx(copied, abs=1e-6)
    assert abs(pairs.controls["other-scale1/cosine"][0]) < 0.1 < pairs.figures["earlier-scale1/cosine"][0]


def test_the_best_pair_is_chosen_over_scales_and_simulators_and_controls_stand_at_its_scale(pairs):
    figures, known = pairs.figures, pairs.controls
    for word, kinds in same_start.GROUPS.items():
        for name, better in (("overall_cosine", max), ("overall_mse", min)):
            values = {(kind, s): figures[f"{kind}-scale{s}/{name}"] for kind in kinds for s in (1, 30)}
            kind, s = better(values, key=values.get)
            assert figures[f"{word}best/{name}"] == values[kind, s]
            assert figures[f"{word}best/{name}_scale"] == s
            assert reference.SIMULATORS[int(figures[f"{word}best/{name}_simulator"])] == kind
            for control in same_start.CONTROLS:
                assert known[f"{word}{control}/{name}"] == known[f"{control}-scale{s}/{name}"]
            assert known[f"{word}untrained/{name}"] == known[f"untrained_{kind}-scale{s}/{name}"]
    assert figures["best/overall_cosine_scale"] != figures["best/overall_mse_scale"]  # so controls differ too


def test_attention_maps_of_a_pair_are_those_of_its_trained_models_and_diffusion_alone_has_none(pairs):
    figures, known = pairs.figures, pairs.controls
    name = "overall_mean_attention_cosine"
    values = {(kind, s): figures[f"{kind}-scale{s}/{name}"] for kind in reference.SIMULATORS[:3] for s in (1, 30)}
    kind, s = max(values, key=values.get)
    assert figures[f"best/{name}"] == values[kind, s]
    assert known[f"untrained/{name}"] == known[f"untrained_{kind}-scale{s}/{name}"] != values[kind, s]
    assert known[f"uniform/{name}"] == known[f"uniform-scale{s}/{name}"]
    assert not any(key.startswith("diffusion_only") and "attention" in key for key in (*figures, *known))
    assert f"sharing_best/{name}" not in figures


def test_a_pair_that_diverges_is_named_and_is_not_the_best():
    seen = {"bare-scale3/overall_cosine": 0.4, "printed-scale1/overall_cosine": 0.6, "bare-scale3/overall_mse": 2.0}
    chosen, beside = same_start.best(seen, {"copy-scale1/overall_cosine": 0.7, "copy-scale3/overall_cosine": 0.9})
    assert chosen["best/overall_cosine"] == 0.6
    assert chosen["best/overall_mse_scale"] == 3
    assert beside == {"copy/overall_cosine": 0.7}
    assert same_start.best({}, {}) == ({}, {})


def test_a_sweep_of_steps_changes_the_step_and_nothing_else(data):
    probe = data.test.take(slice(0, 5))
    usual, shorter = (fidelity_sweep.simulator(3, parts, TASK, data, 0) for parts in (TASK.depth, 12))
    given = build("printed", TASK, data, 0)
    embedding_scale.enlarge(given.embed, 3)
    assert torch.equal(look(usual, probe).final, look(given, probe).final)
    assert all(torch.equal(p, q) for p, q in zip(usual.parameters(), shorter.parameters(), strict=True))
    u, v = (look(model, probe).states for model in (usual, shorter))
    torch.testing.assert_close((v[1] - v[0]) * 12, (u[1] - u[0]) * TASK.depth, rtol=1e-4, atol=1e-4)
    twice = shorter.equation.equations[1](v[1], 0.0, probe.mask)  # the second step is that of the second layer
    torch.testing.assert_close(v[2], v[1] + twice / 12)


def test_the_printed_column_of_the_sweep_is_that_of_the_claim():
    (claim,) = (claim for claim in read_claims() if claim.id == "P2-fidelity-PDE")
    assert list(fidelity_sweep.PRINTED) == claim.printed["pde"]
    assert fidelity_sweep.distance([1.0, 0.9, 0.91, 0.89, 0.87, 0.90]) == pytest.approx(0.05)


def test_the_nearest_profile_is_chosen_by_its_worst_layer(monkeypatch):
    monkeypatch.setattr(fidelity_sweep, "SCALES", (1, 30))
    monkeypatch.setattr(fidelity_sweep, "PARTS", (3, 12))
    result = fidelity_sweep.run("smoke", 0)
    for place, word in ((result.figures, ""), (result.controls, "untrained_")):
        worst = {}
        for s in (1, 30):
            for parts in (3, 12):
                profile = place[f"scale{s}-step{parts}/{word}profile"]
                assert len(profile) == TASK.depth
                assert profile[0] == pytest.approx(1)
                worst[s, parts] = max(abs(a - b) for a, b in zip(profile, (1.0, 0.93), strict=True))
        s, parts = min(worst, key=worst.get)
        assert place[f"{word}best/profile"] == place[f"scale{s}-step{parts}/{word}profile"]
        assert (place[f"{word}best/scale"], place[f"{word}best/parts"]) == (s, parts)
        assert place[f"{word}best/distance"] == pytest.approx(worst[s, parts])
    trained_, before = result.figures["scale1-step3/profile"], result.controls["scale1-step3/untrained_profile"]
    assert trained_ != before
    assert fidelity_sweep.nearest({}) == {}


def test_expressions_of_about_128_tokens_are_the_arenas_at_the_width_of_the_paper(monkeypatch):
    task = TASKS["listops128"][Scale.PAPER]
    grammar, arena = GRAMMARS[task.data], GRAMMARS["listops-arena"]
    assert replace(grammar, name=arena.name, min_length=500, max_length=2000) == arena
    assert mean_length(grammar) == pytest.approx(128, abs=2)
    limit = task.diffusion * (1 / task.depth) * (grammar.max_length - 1) ** 2
    assert limit == pytest.approx(TASKS["listops"][Scale.BOOK].diffusion / 6 * 32**2, rel=0.02)  # as at the book's size

    short = replace(TASKS["listops128"][Scale.SMOKE], settings=TASK.settings)
    monkeypatch.setitem(TASKS["listops128"], Scale.PAPER, short)
    result = reference.listops128("paper", 0, Workplace(steps=8))
    assert result.experiment == "listops128"
    assert result.configuration["cut"] == "8 of 40 training steps"
    for kind in ("printed", "bare", "earlier"):
        assert len(result.figures[f"{kind}/cosine"]) == short.depth + 1
        assert f"untrained_{kind}/overall_cosine" in result.controls
    assert "best/overall_cosine" in result.figures
    assert {"copy/overall_cosine", "position_mean/overall_cosine", "affine/overall_cosine"} <= result.controls.keys()
    assert not any(key.startswith(("other/", "shuffled/", "diffusion_only/")) for key in result.figures)


def test_the_records_of_the_sweeps_have_the_scales_steps_and_simulators_of_now():
    for result in (*Store().load("same_start", "book"), *Store().load("fidelity_sweep", "book")):
        assert result.configuration["scales"] == list(embedding_scale.SCALES)
        assert not result.diverged
    for result in Store().load("same_start", "book"):
        assert result.configuration["simulators"] == list(reference.SIMULATORS)
    for result in Store().load("fidelity_sweep", "book"):
        assert result.configuration["parts"] == list(fidelity_sweep.PARTS)
        assert result.configuration["printed"] == list(fidelity_sweep.PRINTED)


def test_the_printed_column_falls_most_in_its_first_layer_and_no_trained_simulator_near_it_does():
    """Why no scale and no step brings the column: a fall that begins slowly is curved the other way."""
    first, second = -np.diff(fidelity_sweep.PRINTED)[:2]
    assert first > 3 * second
    for result in Store().load("fidelity_sweep", "book"):
        falls = -np.diff(result.figures["best/profile"])
        assert falls[0] < 0.5 * first
        assert falls[-1] > 2 * falls[0]
