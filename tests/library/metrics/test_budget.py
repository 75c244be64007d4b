import math

import pytest
import torch
from systems import SEQUENCES, WIDTH, equation, field, layered, model, padded, seeded

from pdelab import (
    RK4,
    Diffusion,
    Euler,
    Heun,
    Interaction,
    Layered,
    LayerNormRate,
    LieEuler,
    MasterEquation,
    Reaction,
    SharedOutputInteraction,
    Strang,
    Trajectory,
    from_torch,
    simulator,
    solve,
    transformer,
)
from pdelab.metrics.base import per_layer
from pdelab.metrics.budget import budget, budget_of
from pdelab.metrics.stability import energy

SCHEMES = (Euler, LieEuler)


def motion(run):
    """‖u⁺ − u‖² per token, averaged over the batch: twice the energy of the difference."""
    return torch.stack([2 * energy(b - a, run.mask) for a, b in zip(run.states, run.states[1:], strict=False)])


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("centre", ["stage", "step"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_shares_sum_to_the_change_of_energy_and_to_the_motion(scheme, centre, masked):
    u, mask = padded() if masked else (field(), None)
    f = layered(4)
    run = solve(f, u, steps=4, dt=0.1, integrator=scheme(), mask=mask)
    found = budget(f, run, scheme(), centre=centre)
    assert found.symbols == ("A", "R", "D", "S")
    torch.testing.assert_close(found.energy.sum(dim=1), per_layer(energy, run).diff(), rtol=0, atol=1e-13)
    torch.testing.assert_close(found.motion.sum(dim=1), motion(run), rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(found.shares().sum(dim=1), torch.ones(4, dtype=torch.float64), rtol=0, atol=1e-12)


@pytest.mark.parametrize("centre", ["stage", "step"])
def test_the_budget_of_a_post_norm_transformer_closes(centre):
    made = seeded(lambda: transformer(WIDTH, 3, 2, 6, norm="post"), spread=0.4)
    u, mask = padded()
    run = made.trajectory(u, mask)
    found = budget(made.equation, run, made.integrator, centre=centre)
    assert found.symbols == ("A", "S", "R")
    torch.testing.assert_close(found.energy.sum(dim=1), per_layer(energy, run).diff(), rtol=0, atol=1e-12)


def test_the_budget_of_torch_s_own_encoder_closes():
    encoder = torch.nn.TransformerEncoder(
        torch.nn.TransformerEncoderLayer(WIDTH, 2, 6, dropout=0.0, batch_first=True), 2, enable_nested_tensor=False
    ).double()
    made = from_torch(encoder)
    run = made.trajectory(field())
    torch.testing.assert_close(run.final, encoder(field()), rtol=0, atol=1e-10)
    found = budget(made.equation, run, made.integrator)
    torch.testing.assert_close(found.energy.sum(dim=1), per_layer(energy, run).diff(), rtol=0, atol=1e-12)


def test_each_stage_of_a_sweep_is_charged_with_the_energy_it_changed():
    """Computed by hand: the energy after every stage of A, S, R, S."""
    made = seeded(lambda: transformer(WIDTH, 1, 2, 6, norm="post"), spread=0.4)
    u = field()
    energies = [energy(u)]
    for term in made.equation.equations[0].terms:
        u = u + term(u)
        energies.append(energy(u))
    a, s1, r, s2 = torch.stack(energies).diff()
    found = budget(made.equation, made.trajectory(field()), LieEuler())
    torch.testing.assert_close(found.energy[0], torch.stack([a, s1 + s2, r]), rtol=0, atol=1e-13)


def test_euler_s_shares_are_the_rate_times_the_midpoint():
    f, u = equation(), field()
    run = solve(f, u, steps=1, dt=0.1)
    found = budget(f, run, Euler())
    middle = (run.states[0] + run.states[1]) / 2
    for number, rate in enumerate(f.rates(u).values()):
        expected = 0.1 * (middle * rate).sum(dim=-1).mean()
        torch.testing.assert_close(found.energy[0, number], expected.detach(), rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(
            found.size[0, number], 0.1 * rate.square().sum(dim=-1).mean().sqrt().detach(), rtol=1e-12, atol=0
        )


def test_with_one_stage_both_centres_agree_and_in_a_sweep_they_do_not():
    f = equation()
    same = [budget(f, solve(f, field(), steps=2, dt=0.1), Euler(), centre=c).energy for c in ("stage", "step")]
    torch.testing.assert_close(*same, rtol=0, atol=1e-14)
    run = solve(f, field(), steps=2, dt=0.1, integrator=LieEuler())
    stage, step = (budget(f, run, LieEuler(), centre=c).energy for c in ("stage", "step"))
    assert (stage - step).abs().max() > 1e-4


def test_diffusion_between_reflecting_ends_loses_energy_and_keeps_no_mean_busy():
    f = MasterEquation(Diffusion(0.01))
    run = solve(f, field(tokens=6), steps=3, dt=0.1)
    assert (budget(f, run, Euler()).energy < 0).all()
    still = solve(f, torch.ones(1, 6, 2, dtype=torch.float64), steps=1, dt=0.1)
    assert budget(f, still, Euler()).size.item() == 0


def test_the_two_leaks_are_one_column_that_takes_two_dt_u():
    f = seeded(lambda: MasterEquation(Interaction(WIDTH, leak=True), Reaction(WIDTH, 6, leak=True)), spread=0.4)
    run = solve(f, field(), steps=2, dt=0.2)
    found = budget(f, run, Euler(), leak=True)
    assert found.symbols == ("A", "−u", "R")
    lengths = torch.stack([u.square().sum(dim=-1).mean().sqrt() for u in run.states[:-1]])
    torch.testing.assert_close(found.size[:, 1], 0.4 * lengths, rtol=1e-12, atol=0)
    together = budget(f, run, Euler())
    assert together.symbols == ("A", "R")
    torch.testing.assert_close(found.energy.sum(dim=1), together.energy.sum(dim=1), rtol=0, atol=1e-13)


def test_the_leak_of_a_shared_output_passes_through_its_matrix():
    f = seeded(lambda: MasterEquation(SharedOutputInteraction(WIDTH, 3)), spread=0.4)
    run = solve(f, field(), steps=1, dt=0.2)
    found = budget(f, run, Euler(), leak=True)
    leak = -0.2 * 3 * field() @ f.terms[0].out.weight.T
    assert found.symbols == ("A", "−u")
    torch.testing.assert_close(found.size[0, 1], leak.square().sum(dim=-1).mean().sqrt(), rtol=1e-12, atol=0)
    torch.testing.assert_close(found.energy.sum(), budget(f, run, Euler()).energy.sum(), rtol=1e-10, atol=1e-13)


def test_half_precision_still_tells_one_equation_from_another():
    f, other = (equation(seed=seed).to(torch.bfloat16) for seed in (0, 1))
    run = solve(f, field().to(torch.bfloat16), steps=2, dt=0.5)
    assert budget(f, run, Euler()).energy.dtype == torch.float32
    refused(other, run, Euler(), "run was not made by this equation and integrator")


def test_shapes_on_the_meta_device():
    f = equation().to("meta")
    run = solve(f, field().to("meta"), steps=2, dt=0.1)
    assert budget(f, run, Euler()).energy.shape == (2, 4)


def test_padding_counts_nothing():
    f = layered(2)
    u, mask = padded(fill=math.nan)
    whole = budget(f, solve(f, u, steps=2, dt=0.1, integrator=LieEuler(), mask=mask), LieEuler())
    alone = [budget(f, solve(f, one, steps=2, dt=0.1, integrator=LieEuler()), LieEuler()) for one in SEQUENCES]
    torch.testing.assert_close(whole.energy, sum(one.energy for one in alone) / len(alone), rtol=0, atol=1e-13)
    torch.testing.assert_close(whole.motion, sum(one.motion for one in alone) / len(alone), rtol=0, atol=1e-13)


def test_what_a_padded_place_holds_is_not_looked_at():
    f = layered(2)
    u, mask = padded(fill=0.0)
    run = solve(f, u, steps=2, dt=0.1, mask=mask)
    spoilt = [torch.where(mask.unsqueeze(-1), state, torch.nan) for state in run.states]
    other = Trajectory(run.times, tuple(spoilt), spoilt[-1], run.status, mask=mask)
    torch.testing.assert_close(budget(f, other, Euler()).energy, budget(f, run, Euler()).energy, rtol=0, atol=0)


def test_a_layer_without_a_term_has_a_zero_there():
    first, second = MasterEquation(Diffusion(0.01)), MasterEquation(LayerNormRate(WIDTH).double())
    f = Layered([first, second], 0.1)
    found = budget(f, solve(f, field(), steps=2, dt=0.1), Euler())
    assert found.symbols == ("D", "S")
    assert found.size[0, 1] == found.size[1, 0] == 0
    assert found.leaders() == ("D", "S")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_dtype_follows_the_run_and_no_graph_is_kept(dtype):
    made = simulator("printed", WIDTH, 3, 2, 7).to(dtype)
    run = made.trajectory(field(dtype=dtype))
    found = budget(made.equation, run, made.integrator)
    assert found.energy.dtype is dtype
    assert not found.energy.requires_grad
    rounding = 100 * torch.finfo(dtype).eps * per_layer(energy, run).max()
    assert (found.energy.sum(dim=1) - per_layer(energy, run).diff()).abs().max() < rounding


def refused(f, run, integrator, words, **options):
    with pytest.raises(ValueError, match=words):
        budget(f, run, integrator, **options)


@pytest.mark.parametrize("integrator", [Heun(), RK4(), Strang()])
def test_a_scheme_that_is_no_sum_over_the_terms_is_refused(integrator):
    f = equation()
    refused(f, solve(f, field(), steps=1, dt=0.1, integrator=integrator), integrator, "integrator must be Euler")


def test_what_does_not_belong_together_is_refused():
    f, u = equation(), field()
    run = solve(f, u, steps=2, dt=0.1)
    refused(f, run, LieEuler(), "run was not made by this equation and integrator")
    refused(equation(seed=1), run, Euler(), "run was not made by this equation and integrator")
    refused(lambda u: -u, run, Euler(), "equation must be a MasterEquation or Layered")
    refused(f, run, Euler(), "centre must be one of stage, step", centre="middle")
    refused(f, solve(f, u, steps=2, dt=0.1, keep=torch.linalg.norm), Euler(), "made without keep")
    refused(f, Trajectory.of([u]), Euler(), "two states or more")
    linear = layered(3, interpolation="linear")
    refused(linear, solve(linear, u, steps=3, dt=0.1), Euler(), "needs interpolation='constant'")


def test_a_final_norm_is_no_step_of_the_equation():
    made = model("causal transformer, final norm")
    refused(made.equation, made.trajectory(field()), made.integrator, "final norm")


def stages_of(f, run, scheme):
    """The steps of a run as a recorder would hand them on, made here by hand."""
    steps = []
    for n, (u, after) in enumerate(zip(run.states, run.states[1:], strict=False)):
        t, dt = run.times[n], run.times[n + 1] - run.times[n]
        if scheme is Euler:
            steps.append([(s, dt * rate, u, after) for s, rate in f.rates(u, t, run.mask).items()])
            continue
        step, w = [], u
        for term in f.at(t).terms:
            delta = dt * term(w, t, run.mask)
            step.append((term.symbol, delta, w, w + delta))
            w = w + delta
        steps.append(step)
    return steps


@pytest.mark.parametrize("reduce", ["mean", "median", "none"])
@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_budget_of_given_stages_is_that_of_the_equation_that_made_them(scheme, reduce):
    u, mask = padded()
    f = layered(3)
    with torch.no_grad():
        run = solve(f, u, steps=3, dt=0.1, integrator=scheme(), mask=mask)
        found = budget_of(iter(stages_of(f, run, scheme)), mask, reduce=reduce)
    want = budget(f, run, scheme(), reduce=reduce)
    assert found.symbols == want.symbols
    for name in ("energy", "motion", "size"):
        given, made = getattr(found, name), getattr(want, name)
        torch.testing.assert_close(given, made, rtol=1e-10, atol=1e-13, equal_nan=True)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_token_closes_by_itself_and_the_mean_of_the_tokens_is_the_mean(scheme):
    u, mask = padded()
    f = layered(2)
    run = solve(f, u, steps=2, dt=0.1, integrator=scheme(), mask=mask)
    each, mean = (budget(f, run, scheme(), reduce=reduce) for reduce in ("none", "mean"))
    assert each.energy.shape == (2, 4, *mask.shape)
    assert (each.energy.isnan() == ~mask).all()
    energies = per_layer(energy, run, reduce="none")  # (state, batch, token)
    torch.testing.assert_close(each.energy.sum(dim=1), energies.diff(dim=0), rtol=0, atol=1e-13, equal_nan=True)
    torch.testing.assert_close(each.energy.nanmean(dim=-1).mean(dim=-1), mean.energy, rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(each.shares().sum(dim=1)[:, mask], torch.ones(2, int(mask.sum())).double())
    squares = each.size.square().nanmean(dim=-1).mean(dim=-1)
    torch.testing.assert_close(squares, mean.size.square(), rtol=1e-12, atol=1e-14)


def test_one_giant_token_carries_the_mean_and_leaves_the_median():
    u = field(4, 9)
    write = torch.zeros_like(u)
    write[0, 0] = 1e4
    steps = [[("A", 0.1 * u, u, 1.1 * u), ("R", write, 1.1 * u, 1.1 * u + write)]]
    mean, median, each = (budget_of(steps, reduce=reduce) for reduce in ("mean", "median", "none"))
    assert mean.leaders() == ("R",)
    assert median.leaders() == ("A",)
    assert median.energy[0, 1] == 0
    torch.testing.assert_close(median.size[0, 0], 0.1 * u.norm(dim=-1).flatten().quantile(0.5))
    assert each.energy[0, 1].argmax() == 0
    with pytest.raises(ValueError, match="medians do not sum to the step"):
        median.shares()
    with pytest.raises(ValueError, match="leaders need reduce='mean' or 'median'"):
        each.leaders()


def test_the_median_is_that_of_all_stages_of_a_symbol_together():
    """A writes 1 at every token and takes it back: its stages cancel, though the median of each is not zero."""
    u = torch.ones(1, 4, 1)
    step = [("A", u, u, 2 * u), ("R", u, 2 * u, 3 * u), ("A", -u, 3 * u, 2 * u)]
    assert budget_of([step], reduce="median").size.tolist() == [[0.0, 1.0]]


def test_stages_of_half_precision_close_as_far_as_it_rounds_and_are_summed_in_float32():
    u, delta = field(dtype=torch.bfloat16), field(seed=1).bfloat16()
    found = budget_of([[("A", delta, u, u + delta)]])
    assert found.energy.dtype == torch.float32
    want = ((2 * u.float() + delta.float()) / 2 * delta.float()).sum(dim=-1).mean()
    torch.testing.assert_close(found.energy[0, 0], want, rtol=0.02, atol=0.02)


def test_stages_that_do_not_lead_from_state_to_state_are_refused():
    u = field()
    for steps, words in (
        ([[("A", u, u, 3 * u)]], r"steps\[0\] does not close"),
        ([[("A", u, u, 2 * u)], [("A", u, u, u)]], r"steps\[1\] does not close"),
        ([[("A", u, u)]], r"steps\[0\] must be a list of stages"),
        ([[]], r"steps\[0\] must be a list of stages"),
        ([], "steps must hold at least one step"),
        (u, "steps must be a list of steps"),
        ([[("A", u, u, 2 * u[:, :3])]], r"steps\[0\] must hold fields of one shape"),
        ([[("A", u * math.nan, u, u)]], r"steps\[0\] \(A\) holds NaN"),
    ):
        with pytest.raises(ValueError, match=words):
            budget_of(steps)
