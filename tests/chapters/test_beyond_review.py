"""What the review asks for: schemes and steps, other architectures, a limit in depth, alignment with both."""

import copy
import math
from dataclasses import replace

import pytest
import torch

from pdebook.chapters.beyond import review, review_architectures, review_limit, review_rows, review_schemes
from pdebook.chapters.experiments_listops import align
from pdebook.evidence.experiment import Scale
from pdebook.evidence.trained import TASKS
from pdebook.ledger import Verdict, judge, read_claims
from pdebook.ledger.record import Store
from pdelab.integrators import LieEuler
from pdelab.models import simulator, transformer
from pdelab.solver import solve
from pdelab.terms.interaction import Interaction

TASK = TASKS["images"][Scale.SMOKE]
WIDTH = TASK.width


@pytest.fixture(scope="module")
def data():
    return TASK.load(0)


@pytest.fixture(scope="module")
def u():
    return torch.randn(3, 8, WIDTH, generator=torch.Generator().manual_seed(1))


def test_without_its_skip_a_step_of_one_leaves_the_branch_alone(u):
    attention = Interaction(WIDTH, 4)
    torch.testing.assert_close(u + review.Skipless(attention)(u), attention(u))


def test_the_random_terms_are_as_long_as_what_they_replace_at_every_token(u):
    n, attention = review.directions(8, WIDTH, 0), Interaction(WIDTH, 4)
    in_place = review.Skipless(attention, n)(u) - review.Skipless(attention)(u)
    torch.testing.assert_close(in_place.norm(dim=-1), u.norm(dim=-1))
    made = review.EqualNorm(attention, n)(u)
    torch.testing.assert_close(made.norm(dim=-1), attention(u).norm(dim=-1))
    cosines = torch.nn.functional.cosine_similarity(made, n.expand_as(made), dim=-1)
    torch.testing.assert_close(cosines, torch.ones_like(cosines))


def test_no_residual_is_the_field_less_twice_u_and_no_norm_the_field_without_its_pull(u):
    made = review_schemes.parts(TASK, 0)
    both, bare, plain = (review_schemes.equation(v, made)(u) for v in ("both", "no_residual", "no_norm"))
    torch.testing.assert_close(bare, both - 2 * u)
    torch.testing.assert_close(both - plain, made["S"](u))


def test_a_sweep_of_step_one_without_residual_is_a_stack_without_skips(u):
    made = review_schemes.parts(TASK, 0)
    found = LieEuler().step(review_schemes.equation("no_residual", made), u, 0.0, 1.0)
    v = made["R"](made["A"](u))
    torch.testing.assert_close(found, made["S"].norm(v + made["D"](v)))


def test_the_network_solved_anew_by_its_own_scheme_is_the_network(data):
    model = review_schemes.network("both", "Heun", 0.5, TASK, data, 3)
    x = data.test.x[:5]
    for variant in ("both", "no_norm"):
        anew = review_schemes.solved(model, variant, "Heun", 0.5, None)
        same = torch.allclose(anew(x), model(x))
        assert same == (variant == "both")
    assert {id(p) for p in anew.parameters()} < {id(p) for p in model.parameters()}


def test_all_schemes_approach_one_solution_of_the_field(data):
    """With Δt = 1/64 those of order 1 are within a few hundredths of RK4, whose error is far below; halves halve it."""
    model, x = review_schemes.network("both", "RK4", 1 / 64, TASK, data, 3), data.test.x[:20]
    with torch.no_grad():
        exact = model.trajectory(x).final

        def error(scheme, dt):
            found = review_schemes.solved(model, "both", scheme, dt, None).trajectory(x).final
            return ((found - exact).norm() / exact.norm()).item()

        for scheme in review_schemes.SCHEMES:
            coarse, fine = error(scheme, 1 / 32), error(scheme, 1 / 64)
            assert fine < 0.02
            if review_schemes.SCHEMES[scheme].order == 1:
                assert coarse / fine == pytest.approx(2, rel=0.1)


def test_every_scheme_and_step_has_its_value():
    result = review_schemes.run("smoke", 0)
    told = result.configuration
    for variant in review_schemes.VARIANTS:
        place = result.controls if variant.startswith("random") else result.figures
        for figure in ("drift", "size", "gradient"):
            assert len(place[f"field-{variant}/{figure}"]) == len(told["cells"]) == len(review_schemes.SCHEMES)
            assert len(place[f"field-{variant}/whole_{figure}"]) == len(told["whole_cells"])
    for variant in ("both", "no_residual", "no_norm"):
        assert len(result.figures[f"trained-{variant}/accuracy"]) == len(told["retrained_cells"])
    assert result.controls["trained-again/drift"] != result.figures["trained-both/drift"]
    assert not result.diverged

    size = {name: (result.figures | result.controls)[f"field-{name}/size"] for name in review_schemes.VARIANTS}
    more, instead = result.figures["norm/more_size"], result.controls["instead_norm/more_size"]
    assert len(more) == len(instead) == len(told["cells"]) + len(told["retrained_cells"])
    assert more[0] == size["no_norm"][0] - size["both"][0]
    assert instead[0] == size["no_norm"][0] - size["random_norm"][0]
    anew = [
        table[f"trained-{name}/drift"][-1] for table, name in ((result.figures, "both"), (result.controls, "again"))
    ]
    assert result.controls["instead_residual/more_drift"][-1] == anew[1] - anew[0]


def test_a_solution_that_diverges_is_named_and_leaves_no_figure(data):
    model = review_schemes.network("both", "Euler", 0.5, TASK, data, 3)
    with torch.no_grad():
        model.equation.terms[1].outer.weight.mul_(1e30)
    found = review_schemes.Measured()
    review_schemes.solve_anew(model, data, 0, found, (0.5,))
    assert set(found.diverged) == {f"field-{variant}" for variant in review_schemes.VARIANTS}
    assert not found.figures
    assert not found.controls


SIZES = (WIDTH, 2, TASK.heads, TASK.hidden)  # width, depth, heads, hidden


@pytest.mark.parametrize(
    ("corner", "same"),
    [
        ("residual_norm", lambda seed: transformer(*SIZES, norm="pre", seed=seed)),
        ("residual_norm_after", lambda seed: transformer(*SIZES, norm="post", seed=seed)),
        ("residual", lambda seed: transformer(*SIZES, norm="none", seed=seed)),
        ("bare", lambda seed: simulator("bare", *SIZES, seed=seed)),
        ("norm_after", lambda seed: simulator("norm", *SIZES, seed=seed)),
    ],
)
def test_the_corners_are_the_blocks_of_the_library(corner, same, data, u):
    model = review_architectures.network(corner, replace(TASK, depth=2), data, 7)
    mine = solve(model.equation, u, steps=2, dt=1.0, integrator=LieEuler())
    torch.testing.assert_close(mine.final, same(7).trajectory(u).final)


def test_norm_without_residual_reads_the_norm_and_keeps_nothing(u):
    block = review_architectures.block("norm", WIDTH, 4, TASK.hidden, "relu", False)
    attention, reaction = (term.term for term in block.terms)
    v = attention.term(attention.norm(u))
    expected = reaction.term(reaction.norm(v))
    torch.testing.assert_close(LieEuler().step(block, u, 0.0, 1.0), expected)


def test_the_decoder_sees_no_later_character_and_the_vision_transformer_all_patches():
    for name, later in (("decoder", False), ("vit", True)):
        task = review_architectures.TASKS[Scale.SMOKE][name]
        some = review_architectures.loaded(task, 0)
        model = review_architectures.network("residual_norm", task, some, 0)
        first, second = some.test.x[:1], some.test.x[:1].clone()
        second[:, -1] = 0 if second.ndim == 3 else (second[:, -1] + 1) % some.symbols
        states = [model.trajectory(x).final[:, :-1] for x in (first, second)]
        assert torch.equal(*states) != later


def test_patches_of_digits_hold_every_pixel_once():
    task = review_architectures.TASKS[Scale.BOOK]["vit"]
    cut, rows = review_architectures.loaded(task, 0), TASKS["images"][Scale.BOOK].load(0)
    assert cut.train.x.shape[1:] == (16, 4)
    pixels = [part.train.x.flatten(1).sort().values for part in (cut, rows)]
    assert torch.equal(*pixels)
    torch.testing.assert_close(cut.test.x[0, 1], rows.test.x[0, :2, 2:4].flatten())


def test_all_corners_begin_with_the_same_matrices(data):
    made = [review_architectures.network(c, TASK, data, 0) for c in ("bare", "residual_norm", "norm_after")]
    matrices = [[p for p in model.parameters() if p.ndim > 1] for model in made]
    for others in matrices[1:]:
        assert all(torch.equal(a, b) for a, b in zip(matrices[0], others, strict=True))


def test_every_corner_of_both_architectures_has_its_figures():
    result = review_architectures.run("smoke", 0)
    for architecture in ("vit", "decoder"):
        for corner in (*review_architectures.CORNERS, *review_architectures.AFTER):
            assert result.figures[f"{architecture}-{corner}/fidelity"][0] == pytest.approx(1)
            assert f"{architecture}-{corner}/untrained_nonuniformity" in result.controls
        assert 0 < result.controls[f"{architecture}-majority/accuracy"] < 0.2
        again, first = (
            t[f"{architecture}-{c}/accuracy"]
            for t, c in ((result.controls, "again"), (result.figures, "residual_norm"))
        )
        assert again != first


def equal_stack(data, depth):
    """A stack of equal blocks, the same at every depth, and a field to start from."""
    model = review_limit.network("equal", depth, TASK, data, 0)
    one = review_limit.network("equal", 1, TASK, data, 0).equation.equations[0]
    for block in model.equation.equations:
        block.load_state_dict(one.state_dict())
    return model, model.embed(data.test.x[:20]).detach()


def test_a_stack_refined_into_one_part_is_itself_and_equal_blocks_need_no_interpolation(data):
    model = review_limit.network("scaled", 3, TASK, data, 0)
    once = review_limit.refined(model.equation, 1)
    pairs = zip(model.equation.parameters(), once.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    equal, _ = equal_stack(data, 3)
    one, other = (review_limit.refined(equal.equation, 4, of) for of in ("weights", "nothing"))
    assert all(torch.allclose(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    assert (len(one.equations), one.dt) == (12, equal.equation.dt / 4)


def test_refined_weights_lie_on_straight_lines_and_have_the_mean_of_their_blocks(data):
    """Weights that are linear in depth stay so; at the ends the last block's are kept."""
    stack = review_limit.network("scaled", 4, TASK, data, 0).equation
    with torch.no_grad():
        for number, block in enumerate(stack.equations):
            for weights in block.parameters():
                weights.fill_(number)
    found = [next(block.parameters()).flatten()[0].item() for block in review_limit.refined(stack, 2).equations]
    assert found == [0.0, 0.25, 0.75, 1.25, 1.75, 2.25, 2.75, 3.0]


def test_a_line_between_terms_adds_shares_of_both_and_one_between_weights_does_not(data, u):
    first, second, *_ = blocks = list(review_limit.network("scaled", 4, TASK, data, 0).equation.equations)
    blended, mixed = (review_limit.between(blocks, 0.25, of) for of in ("terms", "weights"))
    torch.testing.assert_close(blended(u), 0.75 * first(u) + 0.25 * second(u))
    assert not torch.allclose(mixed(u), blended(u), atol=1e-2)


def test_equal_blocks_are_smooth_in_depth_and_come_nearer_with_order_one(data):
    """Twice the depth halves the distance of a smooth field from its limit: nearness grows by log₁₀ 2."""
    near = []
    for depth in (32, 64):
        model, u0 = equal_stack(data, depth)
        seen = review_limit.figures(model, model.equation, u0)
        assert seen["smoothness"] == pytest.approx(1, abs=1e-5)
        near.append(seen["nearness"])
    assert near[1] - near[0] == pytest.approx(math.log10(2), abs=0.03)


def test_fresh_blocks_add_what_has_nothing_in_common(data):
    model = review_limit.network("scaled", 32, TASK, data, 0)
    u0 = model.embed(data.test.x[:20]).detach()
    seen = review_limit.figures(model, model.equation, u0)
    assert abs(seen["smoothness"]) < 4 / math.sqrt(32 * WIDTH)  # 31 cosines of directions in as many features


def test_the_controls_keep_blocks_or_entries_and_nothing_else(data):
    stack = review_limit.network("scaled", 8, TASK, data, 0).equation
    order = [next(b.parameters()) for b in review_limit.rearranged(stack, 0).equations]
    first = [next(b.parameters()) for b in stack.equations]
    assert {id(p) for p in order} == {id(p) for p in first}
    assert [id(p) for p in order] != [id(p) for p in first]
    before = copy.deepcopy(stack.state_dict())
    dealt = review_limit.dealt_anew(stack, 0)
    for name, weights in stack.named_parameters():
        made = dealt.get_parameter(name)
        assert torch.equal(weights, before[name])
        assert torch.equal(made.flatten().sort().values, weights.flatten().sort().values)
        assert weights.ndim == 1 or not torch.equal(made, weights)


def test_every_start_and_control_has_a_value_for_each_depth():
    result = review_limit.run("smoke", 0)
    depths = result.configuration["depths"]
    for start in review_limit.STARTS:
        for figure in ("nearness", "blended_nearness", "halved_nearness", "smoothness"):
            assert len(result.figures[f"{start}/{figure}"]) == len(depths)
            for control in review_limit.CONTROLS:
                assert len(result.controls[f"{start}-{control}/{figure}"]) == len(depths)
    assert result.controls["equal-untrained/smoothness"] == pytest.approx([1.0] * len(depths), abs=1e-5)


def test_the_four_simulators_begin_with_one_embedding_and_stand_beside_one_transformer():
    result = align.run("smoke", 0)
    first = {result.controls[f"untrained_{kind}/cka"][0] for kind in align.CORNERS}
    assert len(first) == 1
    assert result.controls["copy/cka"][0] == pytest.approx(1)
    for kind in ("other", *align.CORNERS):
        values = result.figures[f"{kind}/cka"]
        assert len(values) == TASKS["listops"][Scale.SMOKE].depth + 1
        assert result.figures[f"{kind}/overall_cka"] == pytest.approx(sum(values[1:]) / len(values[1:]))
        assert values != result.controls[f"untrained_{kind}/cka"]


@pytest.mark.parametrize("claim", ["R-disc", "R-arch", "R-limit", "R-align"])
def test_every_question_of_the_review_is_measured(claim):
    (found,) = (judge(one) for one in read_claims() if one.id == claim)
    assert found.verdict is not Verdict.UNMEASURED
    assert len(found.others) >= len(found.claim.others)


def test_the_rows_have_a_value_for_every_cell_corner_and_depth():
    schemes, corners, limit = (
        Store().load(name, "book") for name in ("review_schemes", "review_architectures", "review_limit")
    )
    cells = review_rows.scheme_rows(schemes)
    assert [row[0] for row in cells] == [f"{s} {dt:g}" for dt in (0.5, 0.25, 0.125) for s in review_schemes.SCHEMES]
    assert all(len(row) == 1 + len(review_rows.SOLVED) and all(row) for row in cells)
    anew = review_rows.scheme_rows(schemes, retrained=True)
    assert len(anew) == len(review_schemes.RETRAINED[Scale.BOOK])
    assert all(map(all, anew))
    names = (*review_architectures.CORNERS, *review_architectures.AFTER, "again")
    for architecture in ("vit", "decoder"):
        assert all(map(all, review_rows.corner_rows(corners, architecture, names)))
    assert all(map(all, review_rows.role_rows(corners)))
    for start in review_limit.STARTS:
        rows = review_rows.limit_rows(limit, start, "smoothness")
        assert [len(row) for row in rows] == [1 + len(limit[0].configuration["depths"])] * 4
    assert [row[0] for row in align.rows(Store().load("alignment_corners", "book"))][:2] == ["other", "residual_norm"]
