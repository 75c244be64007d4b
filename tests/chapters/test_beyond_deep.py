"""The scale of a deep Transformer's branches: what an arm is, what is known of it before, and how a record is read."""

import math

import pytest
import torch
from sklearn.metrics import roc_auc_score

from pdebook.chapters.beyond import deep, warning
from pdebook.evidence.experiment import Scale
from pdebook.evidence.run import find
from pdebook.ledger.record import Key, Result

TASK = deep.TASKS[Scale.SMOKE]


@pytest.fixture(scope="module")
def data():
    return TASK.load(0)


@pytest.fixture(scope="module")
def smoke():
    return find("deep_scale")(Scale.SMOKE, 0)


def built(arm, data, depth=4, task=TASK):
    return deep.build(arm, task, depth, data, 0)


def test_arms_of_one_depth_and_seed_differ_in_nothing_but_their_scale(data):
    first, other = (built(deep.at(x, 4), data).state_dict() for x in (0.5, 2.0))
    assert first.keys() == other.keys()
    assert all(torch.equal(first[name], other[name]) for name in first)
    assert built(deep.at(0.5, 4), data).dt == pytest.approx(0.5 / math.sqrt(8))


def test_rezero_begins_as_the_identity_and_its_first_gradient_reaches_the_gates_alone(data):
    model = built(deep.arms(4)["ReZero"], data)
    x = data.test.x[:5]
    run = model.trajectory(x)
    assert torch.equal(run.final, run.states[0])
    model(x).square().sum().backward()
    for term in (term for equation in model.equation.equations for term in equation.terms):
        assert term.alpha.grad.abs() > 0
        assert all(not weight.grad.any() for weight in term.term.parameters())


def test_deepnorm_is_layernorm_of_alpha_u_plus_f(data):
    """One layer by hand, as Wang et al. (2022) write it, with α = (2L)^¼ and matrices times (8L)^(−¼)."""
    depth = 4
    model = built(deep.arms(depth)["DeepNorm"], data).double()
    plain = built(deep.Arm("post"), data).double()
    u = run = model.embed(data.test.x[:5].double())
    attention, norm, network, _ = plain.equation.equations[0].terms
    beta, alpha = (8 * depth) ** -0.25, (2 * depth) ** 0.25
    with torch.no_grad():
        attention.qkv.weight[2 * attention.width :] *= beta
        for layer in (attention.out, network.inner, network.outer):
            layer.weight *= beta
    for branch in (attention, network):
        run = norm.norm(alpha * run + branch(run))
    found = model.integrator.step(model.equation, u, 0.0, model.dt)
    assert torch.allclose(found, run, atol=1e-4)  # ε of LayerNorm meets α²σ² in one and σ² in the other


def test_branches_of_unit_gain_are_as_long_as_what_they_read_if_the_tokens_agree(data):
    """Width 256: the ratio of lengths is 1 up to a few times 1/√256."""
    wide = deep.replace(TASK, width=256)
    model = built(deep.Arm(), data, depth=2, task=wide)
    u = torch.randn(8, 1, 256, generator=torch.Generator().manual_seed(0)).expand(8, 4, 256)
    for equation in model.equation.equations:
        for term in equation.terms:
            assert ((term(u).norm() / u.norm()) - 1).abs() < 0.2


def test_the_law_of_right_angles_meets_the_measured_fidelity_of_a_wide_network(data):
    wide = deep.replace(TASK, width=256)
    probe = data.test.take(slice(0, 20))
    found = deep.turning(built(deep.at(1.0, 16), data, depth=16, task=wide), probe)
    assert found["rho"] == pytest.approx(found["law"], abs=0.1)
    assert abs(found["rho"] - found["law"] ** 3) > 0.2  # a wrong law of the same kind is far away


def test_the_worst_case_holds_where_it_says_anything(data):
    """ρ ≥ cos Φ while Φ < π/2; without a norm every turn is that of a branch."""
    probe = data.test.take(slice(0, 20))
    for x in (0.1, 0.3):
        found = deep.turning(built(deep.at(x, 4), data), probe)
        assert found["phi"] < math.pi / 2
        assert found["rho"] >= math.cos(found["phi"])


def test_turning_walks_through_the_states_of_the_model(data):
    model = built(deep.at(1.0, 4), data).double()
    probe = data.test.take(slice(0, 20))
    first, *_, last = (u.flatten(1) for u in model.trajectory(probe.x.double()).states)
    found = deep.turning(model, probe)
    assert found["growth"] == pytest.approx((last.norm(dim=1) / first.norm(dim=1)).mean().item())
    assert found["rho"] == pytest.approx(torch.cosine_similarity(first, last).mean().item())


def test_every_arm_has_its_theory_before_training_and_its_accuracy_after(smoke):
    names = [*deep.arms(4), *(deep.called(x, depth) for depth in (4, 2) for x in deep.XS)]
    for name in names:
        assert {"predicted", "untrained_phi", "threshold", "untrained_accuracy"} <= {
            key.rpartition("/")[2] for key in smoke.controls if key.startswith(f"{name}/")
        }
        assert (Key(name, "accuracy") in smoke.figures) != (name in smoke.diverged)
    assert next(row["arm"] for row in deep.rows([smoke])) == "ReZero"  # the nearest to the identity


def made(seed, accuracy, diverged=()):
    """A Result in which an arm has the accuracy that this function of its name gives."""
    names = [*deep.arms(64), *(deep.called(x, depth) for depth in (64, 16) for x in deep.XS)]
    figures = {Key(name, "accuracy"): accuracy(name) + 1e-3 * seed for name in names if name not in diverged}
    lost = dict.fromkeys(diverged, 1)
    return Result("e", {"depths": [64, 16]}, "book", seed, "finished", figures, {"majority": 0.1}, lost)


def as_the_law_has_it(name):
    """Best at x = 1, falling through ½ at the same x at both depths."""
    if "x=" in name:
        return {0.5: 0.85, 0.707: 0.9, 1.0: 0.95, 1.41: 0.9, 2.0: 0.7, 2.83: 0.2}[float(name.partition("x=")[2])]
    return {"post-LN": 0.1, deep.WORST: 0.6, deep.LIMIT: 0.7}.get(name, 0.93)


def test_a_record_as_the_law_has_it_is_read_so_and_others_are_not():
    good = [made(seed, as_the_law_has_it, ("no norm",)) for seed in range(5)]
    assert set(deep.reading(good).values()) == {"yes"}

    def shifted(name):
        return 0.1 if name.startswith("L=64") and float(name.partition("x=")[2]) > 1 else as_the_law_has_it(name)

    def behind(name):
        return 0.99 if name in deep.PEERS else as_the_law_has_it(name)

    def no_need(name):
        return 0.9 if name == "post-LN" else as_the_law_has_it(name)

    changes = ((shifted, "edge"), (behind, "keeps up"), (no_need, "saves"))
    for change, question in changes:
        found = deep.reading([made(seed, change, ("no norm",)) for seed in range(5)])
        assert found[question] == "no", question
        assert found["helps"] == ("yes" if question == "edge" else "no")


def test_an_edge_that_was_not_reached_is_infinite_and_leaves_the_question_open():
    assert deep.edge([(1.0, 0.9), (2.0, 0.8)]) == math.inf
    flat = [made(seed, lambda name: 0.9) for seed in range(5)]
    assert deep.reading(flat)["edge"] == "undecided"


# Warnings


def seen(x, data, depth=4, rate=1e-3):
    model = built(deep.at(x, depth), data, depth).double()
    examples = deep.replace(data.train.take(slice(0, 16)), x=data.train.x[:16].double())
    return model, examples, model.trajectory(examples.x).states


def test_auc_is_that_of_scikit_learn_and_pairs_of_other_groups_do_not_count():
    generator = torch.Generator().manual_seed(0)
    alarm = torch.randint(6, (40,), generator=generator).double().tolist()  # with ties
    failed = (torch.rand(40, generator=generator) < 0.4).tolist()
    assert warning.auc(alarm, failed) == pytest.approx(roc_auc_score(failed, alarm))
    assert warning.auc([1.0, 0.0, 5.0, 6.0], [True, False, True, False], ["a", "a", "b", "b"]) == 0.5
    assert warning.auc([1.0, 0.0, 5.0, 6.0], [True, False, True, False]) == 0.5
    assert warning.auc([math.nan, 9.0], [True, False]) == 1.0  # what is not finite is the most alarming
    assert math.isnan(warning.auc([1.0, 2.0], [True, True]))


def test_a_step_gains_what_its_gradient_promises_as_the_rate_goes_to_zero(data):
    model, examples, _ = seen(1.0, data)
    small, large = (warning.promised(model, examples, rate) for rate in (1e-6, 1.0))
    assert small["trust"] == pytest.approx(1, abs=1e-2)
    assert large["trust"] < 0.5
    assert small["loss"] == large["loss"]  # the model is left as it was


def test_log_norm_and_defect_are_of_first_order_in_the_scale(data):
    whole, half = ((model, states) for model, _, states in (seen(x, data) for x in (2e-3, 1e-3)))
    for measure in (warning.separation, warning.halved):
        assert measure(*half) / measure(*whole) == pytest.approx(0.5, abs=0.01)


def test_no_direction_grows_faster_than_the_log_norm(data):
    model, _, states = seen(1.0, data)
    generator, total = torch.Generator().manual_seed(0), 0.0
    with torch.no_grad():
        for layer, u in enumerate(states[:-1]):
            u = u[: warning.FEW]
            v = torch.randn(u.shape, generator=generator, dtype=u.dtype)
            change = (warning._layer(model, layer, u + 1e-6 * v) - warning._layer(model, layer, u)) / 1e-6 - v
            total += ((v * change).sum((1, 2)) / v.square().sum((1, 2))).mean().item()
    assert total < warning.separation(model, states)


def test_every_training_has_its_signs_before_and_after_the_first_steps():
    result = find("deep_warning")(Scale.SMOKE, 0)
    count = len(warning.RATES) * len(warning.networks(2))
    assert len(result.figures["failed"]) == count
    for table, recorded in ((warning.SIGNS, result.figures), (warning.CONTROLS, result.controls)):
        for sign in table:
            assert len(recorded[Key("step 0", sign)]) == len(recorded[Key("step 2", sign)]) == count
    law = result.figures[Key("step 0", "law")]
    assert len(set(law)) == len(warning.networks(2))  # the rate is not in it
    assert len(set(result.controls[Key("step 0", "loss_after")])) == count


def recorded(seed, own, control):
    figures = {Key("auc at step 0", sign): own(seed) for sign in warning.SIGNS}
    controls = {Key("auc at step 0", sign): 0.5 for sign in warning.CONTROLS}
    controls[Key("auc at step 0", "gradient")] = control(seed)
    return Result("e", {}, "book", seed, "finished", figures, controls)


@pytest.mark.parametrize(
    ("own", "control", "word"),
    [
        (lambda s: 0.9 + s / 100, lambda s: 0.7, "warns"),
        (lambda s: 0.8 + s / 100, lambda s: 0.82 - s / 1000, "as good as the best control"),
        (lambda s: 0.6 + s / 100, lambda s: 0.8, "worse than the best control"),
        (lambda s: 0.5 + (-1) ** s / 5, lambda s: 0.55, "says nothing"),
    ],
)
def test_the_words_of_the_reading(own, control, word):
    results = [recorded(seed, own, control) for seed in range(5)]
    assert warning.best_control(results, 0) == "gradient"
    assert {row[3] for row in warning.rows(results, 0)} == {word, "control"}
