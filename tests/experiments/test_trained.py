"""The trained experiments: named seeds, honest controls, and figures that are what they say."""

import dataclasses
import math

import pytest
import torch

from pdelab.datasets import controls
from pdelab.datasets.base import Dataset, Examples
from pdelab.experiments import corners, reference, tasks
from pdelab.experiments.scales import Scale, Workplace, choose_scale, experiment
from pdelab.experiments.tasks import TASKS, build, fit
from pdelab.models import VARIANTS
from pdelab.results import Result
from pdelab.solver import Trajectory

IMAGES = TASKS["images"][Scale.SMOKE]


@pytest.fixture(scope="module")
def digits():
    return IMAGES.load()


@pytest.fixture(scope="module")
def reference_result():
    return reference.images("smoke", 0)


def test_models_with_different_names_share_no_weight(digits):
    """The same seed gave two models one embedding once, and that alone made their states look alike."""
    built = {kind: build(kind, IMAGES, digits, seed=0) for kind in (*tasks.TRANSFORMERS, *VARIANTS)}
    for one in built:
        for other in built:
            if one < other:
                a, b = built[one].embed.content.weight, built[other].embed.content.weight
                assert not (a == b).any(), (one, other)
    again = build("printed", IMAGES, digits, seed=0)
    assert all(torch.equal(p, q) for p, q in zip(built["printed"].parameters(), again.parameters(), strict=True))


def test_an_unknown_kind_is_refused_with_the_known_ones(digits):
    with pytest.raises(ValueError, match="kind must be one of transformer, other, printed"):
        build("gpt", IMAGES, digits, 0)


def test_the_corners_are_measured_each_with_its_untrained_self():
    result = corners.images("smoke", 1)
    assert result.status == "finished"
    assert result.experiment == "corners-images"
    assert result.configuration["data"] == "digits-rows"
    for corner in corners.CORNERS:
        for name in ("fidelity", "correlation", "nonuniformity"):
            assert len(result.figures[f"{corner}/{name}"]) == IMAGES.depth + 1
        assert len(result.figures[f"{corner}/layer_gradient_norm"]) == IMAGES.depth
        assert result.figures[f"{corner}/fidelity"][0] == pytest.approx(1)
        assert result.controls[f"{corner}/untrained_fidelity"][0] == pytest.approx(1)
        assert 0 <= result.figures[f"{corner}/accuracy"] <= 1
    assert result.controls["majority"] == pytest.approx(0.1, abs=0.01)
    assert result.controls["linear"] > 0.9
    # without a residual the input is left at once; with one it is kept for a layer
    assert abs(result.figures["bare/fidelity"][1]) < 0.5 < result.figures["residual/fidelity"][1]


def test_a_run_with_the_same_seed_gives_the_same_figures():
    one, two = (corners.listops("smoke", 2) for _ in range(2))
    assert one.figures == two.figures
    assert one.controls == two.controls


def test_similarities_of_the_transformer_stand_beside_what_knows_nothing(reference_result):
    figures, known = reference_result.figures, reference_result.controls
    layers = IMAGES.depth + 1
    for name in reference.SIMILARITIES:
        for kind in reference.SIMULATORS:
            assert len(figures[f"{kind}/{name}"]) == layers
        for control in ("copy", "position_mean", "affine", "untrained", "other"):
            assert len(known[f"{control}/{name}"]) == layers
    assert known["copy/cosine"] == pytest.approx(figures["transformer/fidelity"], abs=1e-5)
    assert known["copy/nmse"][0] == 0
    assert known["position_mean/centred_cosine"] == [0.0] * layers
    # in one width, states of unrelated models have cosine 0 within a few standard errors of the input's directions
    assert abs(known["other/cosine"][0]) < 4 / math.sqrt(IMAGES.width)


def test_the_affine_control_is_a_least_squares_map_of_the_input():
    generator = torch.Generator().manual_seed(0)
    u0 = torch.randn(6, 5, 3, generator=generator)
    W, b = torch.randn(3, 3, generator=generator), torch.randn(3, generator=generator)
    mask = torch.arange(5) < torch.tensor([5, 4, 3, 5, 5, 2]).unsqueeze(1)
    states = [torch.where(mask.unsqueeze(-1), u, 0) for u in (u0, u0 @ W + b)]
    seen = Trajectory.of(states, mask)
    made = reference.through(reference.affine_maps(seen), states[0], mask)
    torch.testing.assert_close(made, states, rtol=1e-4, atol=1e-4)


def test_the_position_mean_is_over_the_sequences_that_have_a_token_there():
    u = torch.tensor([[[1.0], [2.0]], [[3.0], [99.0]]])
    mask = torch.tensor([[True, True], [True, False]])
    assert reference.position_mean(u, mask).flatten().tolist() == [2.0, 2.0, 2.0, 0.0]
    assert reference.position_mean(u).flatten().tolist() == [2.0, 50.5, 2.0, 50.5]


def test_a_model_that_diverges_is_named_and_the_others_are_kept(monkeypatch, digits):
    wild = dataclasses.replace(IMAGES, settings=dataclasses.replace(IMAGES.settings, rate=1e30, decay="none"))
    real = tasks.fit
    monkeypatch.setattr(tasks, "fit", lambda kind, task, *rest: real(kind, wild if kind == "bare" else task, *rest))
    found = tasks.measure(("bare", "residual"), IMAGES, digits, 0, Workplace())
    assert list(found.diverged) == ["bare"]
    assert list(found.models) == ["residual"]
    assert not any(name.startswith("bare/") for name in found.figures)


def test_an_interrupted_training_leaves_no_result(monkeypatch, digits):
    monkeypatch.setattr(tasks, "train", lambda *args, **kwargs: tasks.Training())
    with pytest.raises(tasks.Interrupted, match="stopped after step 0 of 40 of bare"):
        fit("bare", IMAGES, digits, 0, Workplace())


def test_paper_sizes_are_the_papers():
    for name in TASKS:
        task = TASKS[name][Scale.PAPER]
        assert (task.width, task.depth, task.heads, task.hidden, task.settings.batch) == (128, 6, 4, 512, 32)


@pytest.mark.parametrize(
    ("argument", "variable", "scale"), [("smoke", "paper", "smoke"), (None, "paper", "paper"), (None, "", "book")]
)
def test_the_scale_is_the_argument_else_the_environment_s(monkeypatch, argument, variable, scale):
    monkeypatch.setenv("PDELAB_SCALE", variable)
    assert choose_scale(argument) == scale


def test_an_unknown_scale_is_refused(monkeypatch):
    monkeypatch.setenv("PDELAB_SCALE", "huge")
    with pytest.raises(ValueError, match="scale must be one of smoke, book, paper; not 'huge'"):
        choose_scale()


def test_an_experiment_says_its_sizes_and_how_long_it_took():
    @experiment(Scale.BOOK)
    def run(scale, seed, work):
        return Result("x", {}, scale, seed, "finished", {})

    assert run.scales == (Scale.BOOK,)
    assert run("book", 3).seconds > 0
    with pytest.raises(ValueError, match="scale must be book, the sizes this experiment has; not 'paper'"):
        run("paper", 0)


# What scores without understanding.


def classes(x, y, **options):
    half = len(x) // 2
    parts = (Examples(x[:half], y[:half]), Examples(x[half:], y[half:]))
    return Dataset("made", "synthetic", *parts, **options)


def test_the_linear_control_solves_a_linear_task_and_no_other():
    x = torch.randn(4000, 2, 2, generator=torch.Generator().manual_seed(0))
    linear = classes(x, (x.sum(dim=(1, 2)) > 0).long(), classes=2)
    parity = classes(x, (x[:, 0, 0] * x[:, 1, 1] > 0).long(), classes=2)
    assert controls.of(linear)["linear"] > 0.97
    assert abs(controls.of(parity)["linear"] - 0.5) < 4 * 0.5 / math.sqrt(2000)


def test_counts_of_symbols_do_not_count_padding():
    x = torch.tensor([[1, 1, 2], [2, 0, 0]])
    data = Dataset("made", "synthetic", *[Examples(x, torch.tensor([0, 1]), x > 0)] * 2, classes=2, symbols=3)
    assert controls._features(data, data.train).toarray().tolist() == [[0, 2, 1], [0, 0, 1]]


def test_the_previous_symbol_tells_all_of_a_cycle():
    text = torch.arange(60).reshape(6, 10) % 5
    data = classes(text[:, :-1], text[:, 1:], classes=5, symbols=5)
    assert controls.of(data)["previous"] == 1.0
    assert controls.of(data)["majority"] == pytest.approx(0.2, abs=0.05)


def test_topics_stand_beside_the_bayes_rule_and_listops_beside_its_own_controls():
    from pdelab import datasets

    topics = controls.of(datasets.load("synthetic-topics", train=2000, test=500))
    assert topics["majority"] < topics["linear"] <= topics["bayes"] + 4 * 0.5 / math.sqrt(500)
    assert set(controls.of(datasets.load("listops-16", train=500, test=100))) == {
        "majority",
        "root_operator",
        "boosted_tree",
    }
