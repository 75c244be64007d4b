"""The trained experiments: named seeds, honest controls, and figures that are what they say."""

import dataclasses
import json
import math

import numpy as np
import pytest
import torch
from threadpoolctl import threadpool_info, threadpool_limits
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from pdebook.chapters.trained_corners import measure as corners
from pdebook.evidence import alignment, reference
from pdebook.evidence import trained as tasks
from pdebook.evidence.experiment import Scale, Workplace, choose_scale, experiment
from pdebook.evidence.trained import DEFINITIONS, TASKS, Task, build, fit
from pdebook.ledger.record import Result, Store
from pdelab.datasets import controls
from pdelab.datasets.base import Dataset, Examples
from pdelab.field import keep_real
from pdelab.models import VARIANTS, transformer
from pdelab.seeds import normal
from pdelab.solver import Trajectory
from pdelab.status import Status
from pdelab.terms.diffusion import Diffusion
from pdelab.training import Place, Settings, Training, train

IMAGES = TASKS["images"][Scale.SMOKE]


@pytest.fixture(scope="module")
def digits():
    return IMAGES.load(0)


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
        for name in ("fidelity", "centred_fidelity", "state_cosine", "input_cka", "nonuniformity", "fluctuation"):
            assert len(result.figures[f"{corner}/{name}"]) == IMAGES.depth + 1
            assert len(result.controls[f"{corner}/untrained_{name}"]) == IMAGES.depth + 1
        assert len(result.figures[f"{corner}/layer_gradient_norm"]) == IMAGES.depth
        assert result.figures[f"{corner}/fidelity"][0] == pytest.approx(1)
        assert result.controls[f"{corner}/other_input"][0] < 1
        low, accuracy, high = (result.figures[f"{corner}/accuracy{part}"] for part in ("_low", "", "_high"))
        assert low < accuracy < high
    assert result.controls["majority"] == pytest.approx(0.1, abs=0.01)
    assert result.controls["nearest"] > result.controls["linear"] > 0.9
    assert result.environment["threads"] == "1"
    assert set(DEFINITIONS) == set(result.configuration["definitions"])


def test_a_run_keeps_to_its_threads_in_linear_algebra_too():
    """A probe of scikit-learn on two threads took six times as long beside another run on the second core."""
    seen = []

    @experiment("counted", Scale.SMOKE)
    def counted(scale, seed, work):
        """What a run may use."""
        seen.extend([torch.get_num_threads(), *_blas_threads()])
        return Result("counted", {}, scale, seed, "finished", {"one": 1.0})

    with threadpool_limits(2, user_api="blas"):
        counted("smoke", 0)
        assert set(_blas_threads()) == {2}
    assert len(seen) > 1
    assert set(seen) == {1}


def _blas_threads() -> list[int]:
    return [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]


def test_corners_share_their_first_weights_and_their_batches(digits):
    built = [build(corner, IMAGES, digits, 0, shared="corner") for corner in corners.CORNERS]
    for name, value in built[0].named_parameters():
        twins = [dict(model.named_parameters()).get(name) for model in built]
        if "norm" not in name and all(twin is not None and twin.shape == value.shape for twin in twins[1:]):
            assert all(torch.equal(value, twin) for twin in twins[1:]), name
    assert torch.equal(built[0].embed.places, built[3].embed.places)
    layers = [[p for p in model.equation.parameters() if p.ndim > 1] for model in built]
    assert all(torch.equal(a, b) for others in layers[1:] for a, b in zip(layers[0], others, strict=True))


def test_the_gain_multiplies_the_matrices_of_the_layers_alone(digits):
    plain, scaled = (build("residual_norm", dataclasses.replace(IMAGES, gain=gain), digits, 0) for gain in (1.0, 2.0))
    assert torch.equal(plain.embed.content.weight, scaled.embed.content.weight)
    for p, q in zip(plain.equation.parameters(), scaled.equation.parameters(), strict=True):
        assert torch.equal(q, 2 * p if p.ndim > 1 else p)


def test_settings_measure_every_corner_at_every_rate_and_gain():
    result = corners.settings("smoke", 0)
    names = {name.split("/")[0] for name in result.figures} | set(result.diverged)
    assert len(names) == len(corners.CORNERS) * len(corners.RATES) * len(corners.GAINS)
    assert "norm rate 0.003 gain 1.73" in names


def test_generated_data_follow_from_the_seed_and_images_do_not():
    task = TASKS["listops"][Scale.SMOKE]
    assert not torch.equal(task.load(0).train.y, task.load(1).train.y)
    assert torch.equal(IMAGES.load(0).test.x, IMAGES.load(1).test.x)


def test_the_input_of_another_example_is_compared_where_both_have_tokens():
    u = torch.tensor([[[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [5.0, 5.0]]])
    mask = torch.tensor([[True, True], [True, False]])
    assert tasks.other_input(Trajectory.of([u], mask)) == [1.0]
    assert tasks.other_input(Trajectory.of([u])) == pytest.approx([(2 + 2 / math.sqrt(2)) / 4])


def test_a_run_with_the_same_seed_gives_the_same_figures():
    one, two = (corners.listops("smoke", 2) for _ in range(2))
    assert one.figures == two.figures
    assert one.controls == two.controls


def test_similarities_of_the_transformer_stand_beside_what_knows_nothing(reference_result):
    figures, known = reference_result.figures, reference_result.controls
    layers = IMAGES.depth + 1
    for name in alignment.SIMILARITIES:
        for kind in reference.SIMULATORS:
            assert len(figures[f"{kind}/{name}"]) == layers
        for control in ("copy", "position_mean", "affine", "relabelled", "other", "untrained_bare", "untrained_other"):
            assert len(known[f"{control}/{name}"]) == layers
    assert known["copy/cosine"] == pytest.approx(figures["transformer/fidelity"], abs=1e-5)
    assert known["copy/nmse"][0] == 0
    assert known["position_mean/centred_cosine"] == [0.0] * layers
    # an affine image of one input is an affine image of another, so the maps find the first states alike
    assert figures["earlier/mapped_nmse"][0] < 1e-6


def test_every_figure_of_the_reference_is_that_of_its_own_model(digits, reference_result):
    """All again by hand, from models trained anew: the seeds make them the same."""
    figures, known = reference_result.figures, reference_result.controls
    made = {kind: fit(kind, IMAGES, digits, 0, Workplace()) for kind in ("transformer", "other", *reference.SIMULATORS)}
    probe = digits.test.take(slice(0, IMAGES.probe))
    training = digits.train.take(slice(0, reference.FITTED * IMAGES.probe))
    states = {kind: tasks.look(model, probe).states for kind, (model, _) in made.items()}
    target = states["transformer"]

    def numbers(name, one, other):
        return pytest.approx(
            [alignment.SIMILARITIES[name](u, v).item() for u, v in zip(one, other, strict=True)], rel=1e-4
        )

    def with_one(u):
        flat = u.flatten(0, 1).double().numpy()
        return np.column_stack([flat, np.ones(len(flat))])

    for name in alignment.SIMILARITIES:
        for kind in reference.SIMULATORS:
            assert figures[f"{kind}/{name}"] == numbers(name, states[kind], target), (kind, name)
        assert known[f"other/{name}"] == numbers(name, states["other"], target)
        untrained = tasks.look(build("bare", IMAGES, digits, 0), probe).states
        assert known[f"untrained_bare/{name}"] == numbers(name, untrained, target)
    # the affine control is fitted on training examples: with numpy's least squares
    fitted = tasks.look(made["transformer"][0], training).states
    last = fitted[-1].flatten(0, 1).double().numpy()
    solution = np.linalg.lstsq(with_one(fitted[0]), last, rcond=1e-5)[0]
    made_by_hand = torch.tensor(with_one(target[0]) @ solution, dtype=torch.float32).reshape(target[-1].shape)
    assert known["affine/nmse"][-1] == pytest.approx(alignment.nmse(made_by_hand, target[-1]).item(), rel=1e-4)
    for kind, (model, record) in made.items():
        assert figures[f"{kind}/accuracy"] == record.evaluations[-1].accuracy
        assert figures[f"{kind}/accuracies"] == [e.accuracy for e in record.evaluations]
        assert figures[f"{kind}/gradient_largest"] == max(record.gradient_norms)
        u0, last = states[kind][0], states[kind][-1]
        whole = torch.nn.functional.cosine_similarity(last.flatten(1), u0.flatten(1)).mean().item()
        assert figures[f"{kind}/state_cosine"][-1] == pytest.approx(whole, abs=1e-5)
        assert known[f"{kind}/other_input"][0] == pytest.approx(
            torch.nn.functional.cosine_similarity(u0, u0.roll(1, 0), dim=-1).mean().item(), abs=1e-5
        )
        first = tasks.look(build(kind, IMAGES, digits, 0), probe)
        assert known[f"{kind}/untrained_fidelity"] == pytest.approx(tasks.fidelity(first).tolist(), abs=1e-6)
        if f"{kind}/layer_gradient_norm" in figures:
            assert figures[f"{kind}/layer_gradient_norm"][0] == record.watched[-1].gradient_norm["layer 1"]
            assert known[f"{kind}/untrained_layer_gradient_norm"][0] == record.watched[0].gradient_norm["layer 1"]
        assert model.embed.places.shape == (digits.length, IMAGES.width)


def test_a_simulator_with_borrowed_weights_is_the_transformer_where_they_are_one_equation(digits):
    """A post-LayerNorm Transformer is the simulator residual_norm: with the gains and biases LayerNorm begins with."""
    teacher = build("residual_norm", IMAGES, digits, 3)
    same = reference.borrowed("residual_norm", teacher, IMAGES, digits)
    probe = digits.test.take(slice(0, 5))
    assert torch.equal(same(probe.x), teacher(probe.x))
    other = reference.borrowed("bare", teacher, IMAGES, digits)
    assert torch.equal(other.embed(probe.x), teacher.embed(probe.x))
    assert not torch.allclose(other(probe.x), teacher(probe.x))


def test_distillation_brings_the_states_nearer_and_leaves_the_embedding(digits):
    teacher, found = build("transformer", IMAGES, digits, 0), tasks.Measured()
    model = reference.distilled("residual", teacher, IMAGES, digits, 0, Workplace(), found)
    probe = digits.test.take(slice(0, 50))
    start = reference.borrowed("residual", teacher, IMAGES, digits)
    start.equation.load_state_dict(
        build("residual", IMAGES, digits, tasks.derive(0, "distilled_residual")).equation.state_dict()
    )
    with torch.no_grad():
        before, after = (reference.state_distance(m, probe, teacher).item() for m in (start, model))
    assert after < 0.9 * before
    assert torch.equal(model.embed.content.weight, teacher.embed.content.weight)
    assert found.figures["distilled_residual/distance"] < before


def test_a_distillation_with_a_share_of_the_steps_warms_up_for_its_own_tenth(monkeypatch, digits):
    seen = []

    def trained(model, data, settings, *rest, **options):
        seen.append(settings)
        return Training(status=Status.DIVERGED, stopped_at=1)

    monkeypatch.setattr(reference, "trained", trained)
    teacher = build("transformer", IMAGES, digits, 0)
    for share in (1, 2):
        reference.distilled("residual", teacher, IMAGES, digits, 0, Workplace(), tasks.Measured(), share)
    assert [(s.steps, s.warmup, s.watch) for s in seen] == [(40, 4, ()), (20, 2, ())]
    assert seen[0] == dataclasses.replace(IMAGES.settings, watch=())


def test_a_result_names_the_code_that_measured_beside_the_code_that_trained(monkeypatch):
    monkeypatch.setattr(tasks, "environment", lambda: {"commit": "new"})
    found = tasks.Measured(commits=["old"])
    assert found.result("images", IMAGES, Scale.SMOKE, 0).environment["commit"] == "old, new"
    assert found.result("images", IMAGES, Scale.SMOKE, 0).environment["commit"] == "old, new"


def test_the_teacher_itself_has_distance_zero(digits):
    teacher = build("transformer", IMAGES, digits, 0)
    assert reference.state_distance(teacher, digits.test.take(slice(0, 9)), teacher).item() == 0


def test_maps_of_a_run_are_its_own_and_uniform_ones_are_uniform(digits):
    run = reference.with_maps(build("transformer", IMAGES, digits, 0), digits.test.take(slice(0, 4)))
    same = alignment.maps_compared(run, run)
    assert same["attention_cosine"] == [1.0] * IMAGES.depth
    assert same["attention_kl"] == pytest.approx([0.0] * IMAGES.depth, abs=1e-6)
    flat = alignment.uniform_maps(run)
    assert all((1 / digits.length == P).all() for P in flat.attention)


def test_the_spectrum_of_shuffled_tokens_and_of_noise_is_flat(reference_result):
    known = reference_result.controls
    for kind in ("reordered_input", "noise"):
        values = known[f"{kind}/amplitude"]
        assert max(values[1:]) / min(values[1:]) < 1.3, kind  # frequency 0 holds the mean, which an order leaves alone
    assert known["input/amplitude"][0] == pytest.approx(known["reordered_input/amplitude"][0], rel=1e-5)


def test_examples_too_short_for_a_spectrum_do_not_count_in_it():
    u, v = (normal(0, name, size=(3, 12, 4)) for name in "uv")
    mask = torch.arange(12) < torch.tensor([[12], [1], [8]])
    run, target = (Trajectory.of([keep_real(x, mask)] * 2, mask) for x in (u, v))
    whole = mask[[0, 2]]
    kept, alike = (Trajectory.of([x.states[0][[0, 2]]] * 2, whole) for x in (run, target))
    for name in alignment.SPECTRAL:
        found = alignment.alignment(run.states, target, [name])
        assert found == alignment.alignment(kept.states, alike, [name])
        assert found[name][0] < 0.99  # one token has one band, in which all things are alike
    assert alignment.spectra(run.states, mask) == alignment.spectra(kept.states, whole)
    assert len(alignment.spectra(run.states, mask)["energy"]) == 5
    cosines = [alignment.alignment(x.states, y, ["cosine"])["cosine"] for x, y in ((run, target), (kept, alike))]
    assert cosines[0] != cosines[1]
    short = Trajectory.of([keep_real(u, mask[[1, 1, 1]])] * 2, mask[[1, 1, 1]])
    assert alignment.long_enough(short) is short


def test_attention_is_compared_on_as_many_examples_as_there_is_room_for(monkeypatch, digits):
    monkeypatch.setattr(reference, "MAPS", 3 * 4 * digits.length**2)
    assert len(reference.few(digits.test, heads=4)) == 3


def test_a_transformer_on_shuffled_labels_learns_nothing_and_shares_no_weight(digits, reference_result):
    shuffled = reference.shuffled_labels(digits, 0)
    assert torch.equal(shuffled.train.y.bincount(), digits.train.y.bincount())
    assert not torch.equal(shuffled.train.y, digits.train.y)
    assert torch.equal(shuffled.test.y, digits.test.y)
    assert abs(reference_result.controls["shuffled/centred_cosine"][0]) < 0.9
    figures = reference_result.figures
    assert figures["shuffled/accuracy"] < 0.2 < figures["transformer/accuracy"]


def test_a_cut_training_is_shorter_and_says_so():
    result = reference.images("smoke", 0, Workplace(steps=7))
    assert result.configuration["cut"] == "7 of 40 training steps"
    assert result.configuration["settings"]["steps"] == 7
    assert all(IMAGES.cut(steps) == IMAGES for steps in (None, 40, 41))
    rows = TASKS["rows"][Scale.PAPER]
    assert len(rows.cut(937).settings.watch) == len(rows.settings.watch) == tasks.WATCHED
    with pytest.raises(ValueError, match="none that can be cut"):
        corners.images("smoke", 0, Workplace(steps=7))


def test_seeds_differ_in_weights_and_batches(digits):
    (_, zero), (_, one) = (fit("residual", IMAGES, digits, seed, Workplace()) for seed in (0, 1))
    same_model = build("residual", IMAGES, digits, 0)
    other_batches = train(same_model, digits, IMAGES.settings, seed=1, place=Place(progress=False))
    assert len({zero.losses[0], one.losses[0], other_batches.losses[0]}) == 3


def test_a_model_with_its_features_relabelled_is_alike_to_cka_and_to_a_map_but_to_nothing_else(reference_result):
    known = reference_result.controls
    assert known["relabelled/cka"] == pytest.approx([1.0] * (IMAGES.depth + 1), abs=1e-4)
    assert max(known["relabelled/cosine"]) < 0.5 < min(known["affine/cosine"])
    generator = torch.Generator().manual_seed(0)
    states = [torch.randn(20, 6, 4, generator=generator) for _ in range(2)]
    run, turned = Trajectory.of(states), Trajectory.of([u[..., [2, 0, 3, 1]] for u in states])
    found = alignment.compared(turned, turned, run, run)
    assert max(found["mapped_nmse"]) < 1e-6
    assert min(found["nmse"]) > 1


def test_the_affine_control_is_a_least_squares_map_of_the_input():
    generator = torch.Generator().manual_seed(0)
    u0 = torch.randn(6, 5, 3, generator=generator)
    W, b = torch.randn(3, 3, generator=generator), torch.randn(3, generator=generator)
    mask = torch.arange(5) < torch.tensor([5, 4, 3, 5, 5, 2]).unsqueeze(1)
    states = [torch.where(mask.unsqueeze(-1), u, 0) for u in (u0, u0 @ W + b)]
    seen = Trajectory.of(states, mask)
    made = alignment.through(alignment.affine_maps([states[0]] * 2, seen), [states[0]] * 2, mask)
    torch.testing.assert_close(made, states, rtol=1e-4, atol=1e-4)


def test_the_position_mean_is_over_the_sequences_that_have_a_token_there():
    u = torch.tensor([[[1.0], [2.0]], [[3.0], [99.0]]])
    mask = torch.tensor([[True, True], [True, False]])
    assert alignment.position_mean(u, mask, 3).flatten().tolist() == [2.0, 2.0, 0.0]
    assert alignment.position_mean(u, None, 1).flatten().tolist() == [2.0]


def test_a_model_that_diverges_is_named_and_the_others_are_kept(monkeypatch, digits):
    wild = dataclasses.replace(IMAGES, settings=dataclasses.replace(IMAGES.settings, rate=1e30, decay="none"))
    real = tasks.fit
    monkeypatch.setattr(
        tasks, "fit", lambda kind, task, *rest, **named: real(kind, wild if kind == "bare" else task, *rest, **named)
    )
    found = tasks.measure(("bare", "residual"), IMAGES, digits, 0, Workplace())
    assert list(found.diverged) == ["bare"]
    assert list(found.models) == ["residual"]
    assert not any(name.startswith("bare/") for name in found.figures)


def test_an_interrupted_training_leaves_no_result(monkeypatch, digits):
    monkeypatch.setattr(tasks, "train", lambda *args, **kwargs: tasks.Training())
    with pytest.raises(tasks.Interrupted, match="stopped after step 0 of 40 of bare"):
        fit("bare", IMAGES, digits, 0, Workplace())


def test_paper_sizes_are_the_papers():
    for name in ("images", "listops", "listops128"):  # P2's, which prints no batch; P1's have a test of their own
        task = TASKS[name][Scale.PAPER]
        assert (task.width, task.depth, task.heads, task.hidden) == (128, 6, 4, 512)


@pytest.mark.parametrize(
    ("argument", "variable", "scale"), [("smoke", "paper", "smoke"), (None, "paper", "paper"), (None, "", "book")]
)
def test_the_scale_is_the_argument_else_the_environment_s(monkeypatch, argument, variable, scale):
    monkeypatch.setenv("PDELAB_SCALE", variable)
    assert choose_scale(argument) == scale


def test_an_unknown_scale_is_refused(monkeypatch):
    monkeypatch.setenv("PDELAB_SCALE", "huge")
    with pytest.raises(ValueError, match="must be one of smoke, book, paper; not 'huge'"):
        choose_scale()


def test_an_experiment_says_its_sizes_and_how_long_it_took():
    @experiment("x", Scale.BOOK)
    def run(scale, seed, work):
        return Result("x", {}, scale, seed, "finished", {})

    assert (run.name, run.scales) == ("x", (Scale.BOOK,))
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


@pytest.mark.parametrize(
    "name",
    [
        "corners-images",
        "corners-listops",
        "reference-images",
        "reference-listops",
        "reference-rows",
        "reference-text",
    ],
)
def test_five_seeds_are_recorded_with_the_settings_of_now(name):
    recorded = Store().load(name, "book")
    assert [result.seed for result in recorded] == [0, 1, 2, 3, 4]
    task = TASKS[name.split("-")[1]][Scale.BOOK]
    for result in recorded:
        wanted = json.loads(json.dumps(task.configuration()))
        assert {key: result.configuration[key] for key in wanted} == wanted
        assert "dirty" not in result.environment["commit"]


@pytest.mark.parametrize(
    ("name", "task"),
    [("tables", "layers"), ("listops128", "listops128")]
    + [(f"reference-{task}", task) for task in ("images", "listops", "rows", "text")],
)
def test_what_is_recorded_at_paper_size_has_the_settings_of_now_or_says_what_was_cut(name, task):
    """`watch` apart: a look changes no training."""
    full = TASKS[task][Scale.PAPER]
    for result in Store().load(name, "paper"):
        now = full.cut(result.configuration["settings"]["steps"])
        wanted = json.loads(json.dumps(now.configuration()))
        for settings in (wanted["settings"], result.configuration["settings"]):
            settings.pop("watch")
        assert {key: result.configuration[key] for key in wanted} == wanted
        assert {"cut": result.configuration.get("cut")} == (now.cut_of(full) or {"cut": None})
        assert "dirty" not in result.environment["commit"]


def test_operations_of_a_step_are_those_that_torch_counts():
    task = Task("any", Settings(steps=1, batch=4), width=32, depth=3)
    model = transformer(task.width, task.depth, task.heads, task.hidden)
    u = torch.zeros(4, 20, 32, requires_grad=True)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        model(u).sum().backward()
    assert counter.get_total_flops() == task.operations(20)
    assert task.duration(20, models=3, rate=1e6) == 3 * task.settings.steps * task.operations(20) / 1e6
    assert task.duration(20, models=3, rate=1e99, least=0.5) == 1.5 * task.settings.steps


@pytest.mark.parametrize("kind", ["printed", "earlier", "diffusion_only"])
def test_a_simulator_diffuses_as_its_task_says(kind):
    task = dataclasses.replace(TASKS["images"][Scale.SMOKE], diffusion=3e-6)
    model = build(kind, task, task.load(0), 0)
    found = [part.coefficient for part in model.modules() if isinstance(part, Diffusion)]
    assert found == [3e-6] * task.depth


def test_the_net_with_shuffled_labels_keeps_its_name_when_it_diverges(digits, monkeypatch):
    lost = tasks.Measured(diverged={"transformer-shuffled": 7})
    monkeypatch.setattr(reference, "measure", lambda *_, **__: lost)
    assert reference._fooled(IMAGES, digits, 0, Workplace()).diverged == {"shuffled": 7}
