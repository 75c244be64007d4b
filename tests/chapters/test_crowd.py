"""The crowd: the solver for its density against exact rates, tokens and orders; its constants against brute force."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.optimize import linprog

from pdebook.chapters.crowd import laws, measure
from pdebook.chapters.interaction import laws as interaction
from pdelab import Diverged, Status, formulas, solve_density, transformer
from pdelab.integrators import flow
from pdelab.seeds import normal, stream
from pdelab.terms.interaction import Interaction

DOUBLE = {"dtype": torch.float64}


def l1_errors(scheme: str, counts: tuple[int, ...]) -> list[float]:
    fine = solve_density(laws.cell_means(1024), beta=2.0, time=1.0).final
    ends = [solve_density(laws.cell_means(n), beta=2.0, time=1.0, scheme=scheme).final for n in counts]
    means = [fine.reshape(1, n, -1).mean(dim=-1) for n in counts]
    return [(end - mean).abs().mean().item() for end, mean in zip(ends, means, strict=True)]


@pytest.mark.parametrize(("scheme", "order"), [("upwind", 1.0), ("limited", 2.0)])
def test_the_scheme_has_its_order_on_smooth_laws(scheme, order):
    coarse, fine = l1_errors(scheme, (64, 128))
    assert abs(math.log2(coarse / fine) - order) < 0.15


@pytest.mark.parametrize("scheme", ["upwind", "limited"])
@pytest.mark.parametrize("v", [1.0, -1.0])
def test_mass_and_sign_are_kept_to_rounding(scheme, v):
    steps = torch.zeros(2, 90, **DOUBLE)
    steps[0, 10:30], steps[1, 80:] = 2.0, 1.0
    run = solve_density(steps, beta=5.0, time=6.0, v=v, states=6, scheme=scheme)
    assert run.status == Status.FINISHED
    assert len(run.states) == 7
    for rho in run.states:
        torch.testing.assert_close(rho.sum(dim=1), steps.sum(dim=1), rtol=1e-13, atol=0)
        assert rho.min() >= -1e-15 * rho.max()


def test_a_batch_is_solved_as_one_by_one_and_in_float32_nearly_so():
    rows = torch.cat([laws.cell_means(64), laws.cell_means(64, laws.bump)])
    together = solve_density(rows, beta=3.0, time=1.0).final
    for one, end in zip(rows, together, strict=True):
        torch.testing.assert_close(solve_density(one[None], beta=3.0, time=1.0).final[0], end)
    single = solve_density(rows.float(), beta=3.0, time=1.0).final
    assert single.dtype == torch.float32
    assert (single - together).abs().max() < 1e-4


def test_too_long_a_step_ends_as_diverged():
    start = torch.zeros(1, 90, **DOUBLE)
    start[0, 10:30] = 1.0
    run = solve_density(start, beta=5.0, time=6.0, dt=0.5)
    assert run.status == Status.DIVERGED
    assert run.stopped_at is not None
    with pytest.raises(Diverged, match="lower dt"):
        solve_density(start, beta=5.0, time=6.0, dt=0.5, throw=True)


@pytest.mark.parametrize("beta", [1.0, 4.0, 9.0])
@pytest.mark.parametrize("k", [1, 3, 6])
def test_a_mode_of_the_even_crowd_grows_as_bessel_functions_say(beta, k):
    cells, small = 128, 1e-5
    wave = torch.cos(2 * math.pi * k * formulas.centres(cells))
    kernel = formulas.circle_kernel(cells, beta, 1.0, like=wave)

    def change(size: float) -> torch.Tensor:
        rho = 1 + size * wave
        return formulas.transport(rho, formulas.circle_speed(rho, kernel))

    odd = (change(small) - change(-small)) / (2 * small)  # what is even in ε drops out
    measured = 2 * (odd * wave).mean().item()
    assert measured == pytest.approx(laws.cell_rate(k, beta, cells), rel=1e-6)
    assert laws.cell_rate(k, beta, 4096) == pytest.approx(laws.mode_rate(k, beta), rel=1e-4)


@pytest.mark.parametrize("beta", [0.5, 9.0, 64.0])
@pytest.mark.parametrize("causal", [False, True])
def test_the_field_by_modes_is_attention(beta, causal):
    theta = 7 * normal(1, "angles", size=(2, 60))
    wanted = formulas.circle_rate(theta, beta, causal=causal)
    torch.testing.assert_close(laws.rate_by_modes(theta, beta, causal=causal), wanted, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize(("k", "beta"), [(1, 1.0), (3, 4.0), (6, 9.0)])
def test_tokens_and_density_grow_alike_with_and_without_noise(k, beta):
    assert measure.token_growth(k, beta) == pytest.approx(laws.mode_rate(k, beta), abs=1e-6)
    for noise in (0.0, 0.1):
        wanted = laws.mode_rate(k, beta, noise=noise)
        assert measure.density_growth(k, beta, noise) == pytest.approx(wanted, abs=1e-3)


@pytest.mark.parametrize("beta", [0.1, 1.0, 9.0, 100.0])
def test_noise_above_its_threshold_and_only_that_stops_every_mode(beta):
    k, threshold = np.arange(1, 60), laws.noise_threshold(beta)
    assert threshold < 0.5
    assert laws.mode_rate(k, beta, noise=1.001 * threshold).max() < 0
    assert laws.mode_rate(k, beta, noise=0.999 * threshold).max() > 0


def test_sharp_attention_has_its_limits():
    assert laws.fastest_mode(1e4) == pytest.approx(math.sqrt(2e4), rel=0.01)
    assert laws.mode_rate(laws.fastest_mode(1e4), 1e4) == pytest.approx(2 / math.e, rel=1e-3)


@pytest.mark.parametrize(("clusters", "beta"), [(2, 4.0), (3, 1.0), (5, 4.0), (6, 16.0)])
def test_a_ring_has_the_rates_of_its_jacobian(clusters, beta):
    even = 2 * math.pi * torch.arange(clusters, **DOUBLE) / clusters
    jacobian = torch.func.jacrev(lambda theta: formulas.circle_rate(theta, beta))(even)
    found = torch.linalg.eigvals(jacobian).real.sort().values.numpy()
    np.testing.assert_allclose(found, np.sort([0.0, *laws.ring_rates(clusters, beta)]), atol=1e-9)
    assert measure.ring_growth(clusters, beta) == pytest.approx(laws.ring_rates(clusters, beta).max(), rel=1e-2)


@pytest.mark.parametrize("beta", [2.0, 9.0])
@pytest.mark.parametrize("degree", [1, 3])
def test_the_sphere_has_rates_of_its_own(degree, beta):
    assert measure.sphere_growth(degree, beta) == pytest.approx(laws.harmonic_rate(degree, beta), rel=1e-4)


def test_groups_are_parted_by_wide_gaps():
    even = 2 * math.pi * formulas.centres(100)
    three = torch.tensor([0.0, 0.1, 2.0, 2.1, 6.2], **DOUBLE)  # the last is next to the first
    assert laws.groups(torch.stack([even]), 0.3).tolist() == [1]
    assert laws.groups(three, 0.3).item() == 2


def test_a_decision_is_late_by_the_logarithm_of_a_small_start():
    sizes, beta = (1e-3, 1e-4), 4.0
    starts = [laws.at_quantiles(300, lambda x, e=e: (x + e * torch.sin(3 * x) / 3) / (2 * math.pi)) for e in sizes]
    (early, late), leader = measure.decisions(torch.stack(starts), beta)
    assert leader.tolist() == [3, 3]
    assert (late - early).item() == pytest.approx(math.log(10) / laws.mode_rate(3, beta), rel=1e-2)
    never, nobody = measure.decisions(starts[0][None], beta, longest=0.2)
    assert (never.item(), nobody.item()) == (math.inf, 0)


def test_a_rippled_crowd_is_the_same_as_tokens_and_as_cells():
    cost = laws.circle_cost(measure.rippled_tokens(400, 0.05), measure.ripple(400, 0.05)[0])
    assert cost < 2 * math.pi / 400


def test_a_head_whose_values_are_its_scores_climbs():
    model = transformer(8, 2, 2, 8, seed=3)
    for term in (t for t in model.modules() if isinstance(t, Interaction)):
        query, key, _ = term.qkv.weight.data.chunk(3)
        term.qkv.weight.data[16:] = key
        term.out.weight.data = query.T.clone()
    own, other = measure.climbs(model)
    assert own == pytest.approx([1.0, 1.0])
    assert max(map(abs, other)) < 0.9


def test_the_growth_is_seen_in_a_run():
    cells, beta, time = 256, 4.0, 2.0
    wave = torch.cos(2 * math.pi * 3 * formulas.centres(cells))
    run = solve_density(1 + 1e-4 * wave[None], beta=beta, time=time)
    rate = math.log(2 * (run.final[0] * wave).mean().item() / 1e-4) / time
    assert rate == pytest.approx(laws.mode_rate(3, beta), rel=1e-3)


def test_the_rate_on_the_circle_is_attention_made_tangent():
    theta = normal(0, "angles", size=(2, 7))
    u = interaction.on_circle(theta)
    for causal in (False, True):
        pull = -formulas.attention(u, 3 * torch.eye(2, **DOUBLE), torch.eye(2, **DOUBLE), causal=causal)
        tangent = torch.stack([-theta.sin(), theta.cos()], dim=-1)
        wanted = (pull * tangent).sum(dim=-1)
        torch.testing.assert_close(formulas.circle_rate(theta, 3.0, -1.0, causal=causal), wanted)


def test_two_tokens_follow_the_law_of_equal_angles():
    phi = torch.tensor([0.3, 1.0, 2.5], **DOUBLE)
    theta = torch.stack([torch.zeros_like(phi), phi], dim=-1)
    closing = formulas.circle_rate(theta, 4.0).diff(dim=-1).squeeze(-1)  # φ'
    torch.testing.assert_close(-phi.sin() * closing, interaction.angle_law(phi.cos(), 4.0, 2))


def test_tokens_at_quantiles_approach_the_density():
    rho = solve_density(laws.cell_means(512), beta=4.0, time=2.0).final[0]
    ends = [measure.tokens_on_circle(laws.at_quantiles(n), 4.0, 2.0, 1).final.flatten() for n in (16, 64, 256)]
    errors = [laws.circle_cost(end, rho) for end in ends]
    assert all(3 < a / b < 5 for a, b in itertools.pairwise(errors))  # like 1/N


def test_a_masked_crowd_whose_rows_agree_is_the_crowd():
    row = laws.cell_means(64)
    masked = solve_density(row.repeat(5, 1), beta=3.0, time=1.0, causal=True).final
    torch.testing.assert_close(masked, solve_density(row, beta=3.0, time=1.0).final.expand(5, -1))


def test_float32_holds_the_weights_of_weaker_attention_only():
    """One full cell: at its antipode the weight is e^{−2β}, and without it the speed there would be 0/0."""
    for dtype, most in ((torch.float64, 300.0), (torch.float32, 40.0)):
        start = torch.zeros(1, 64, dtype=dtype)
        start[0, 5] = 1.0
        assert solve_density(start, beta=most, time=0.2).status is Status.FINISHED
        with pytest.raises(ValueError, match="beta must be a finite number of at least 0 and of at most"):
            solve_density(start, beta=1.01 * most, time=0.2)


def test_the_rows_of_a_masked_crowd_must_have_one_mass():
    rows = torch.cat([laws.cell_means(64), laws.cell_means(64, laws.bump)])
    end = solve_density(rows, beta=3.0, time=0.2, causal=True).final
    torch.testing.assert_close(solve_density(3 * rows, beta=3.0, time=0.2, causal=True).final, 3 * end)
    uneven = rows * torch.tensor([[1.0], [2.0]], **DOUBLE)
    with pytest.raises(ValueError, match="rho0 must have the same mass in every row if causal"):
        solve_density(uneven, beta=3.0, time=0.2, causal=True)
    alone = solve_density(uneven, beta=3.0, time=0.2).final  # without a mask no row sees another
    torch.testing.assert_close(alone[1], 2 * solve_density(rows, beta=3.0, time=0.2).final[1])


def test_causal_tokens_follow_the_masked_equation_and_not_the_other():
    masked, blind = measure.masked_and_blind()
    errors = {n: [laws.circle_cost(measure.causal_tokens(n, seed), masked) for seed in range(4)] for n in (32, 512)}
    assert sum(errors[512]) < 0.5 * sum(errors[32])
    assert all(laws.circle_cost(measure.causal_tokens(512, seed), blind) > 0.5 for seed in range(4))


def test_the_distance_on_the_circle_is_that_of_a_linear_programme():
    theta = torch.tensor([0.5, 3.0, 6.0], **DOUBLE)
    rho = torch.zeros(24, **DOUBLE)
    rho[[1, 9, 20]] = torch.tensor([1.0, 2.0, 1.5], **DOUBLE)
    centre = 2 * math.pi * formulas.centres(24)
    turn = (theta[:, None] - centre).abs()
    price = torch.minimum(turn, 2 * math.pi - turn).numpy()

    rows = torch.eye(3).repeat_interleave(24, dim=1)
    columns = torch.eye(24).repeat(1, 3)
    both = torch.cat([rows, columns]).numpy()
    sides = torch.cat([torch.full((3,), 1 / 3, **DOUBLE), rho / rho.sum()]).numpy()
    best = linprog(price.flatten(), A_eq=both, b_eq=sides).fun
    assert laws.circle_cost(theta, rho) == pytest.approx(best, abs=math.pi / 24)  # a cell is not a point


def test_the_cost_of_transport_is_that_of_a_linear_programme():
    y, z = normal(0, "y", size=(2, 3)), normal(0, "z", size=(6, 3))
    price = torch.cdist(y, z).flatten().numpy()
    both = torch.cat([torch.eye(2).repeat_interleave(6, dim=1), torch.eye(6).repeat(1, 2)]).numpy()
    best = linprog(price, A_eq=both, b_eq=[1 / 2] * 2 + [1 / 6] * 6).fun
    assert laws.transport_cost(y, z) == pytest.approx(best)


def test_the_bound_in_w1_is_reached_by_a_light_atom_that_is_preferred():
    x, light, small = 2.0, 1e-8, 1e-4
    q = torch.tensor([[1.0]], **DOUBLE)
    y = torch.tensor([[1.0 - small], [-1.0]], **DOUBLE)
    mass = torch.tensor([light, 1 - light], **DOUBLE)
    A, V = x * torch.eye(1, **DOUBLE), torch.eye(1, **DOUBLE)
    moved = y + torch.tensor([[small], [0.0]], **DOUBLE)
    change = (laws.read(q, moved, A, V, mass) - laws.read(q, y, A, V, mass)).abs().item()
    bound = laws.law_part(torch.tensor(x, **DOUBLE), 1).item() * light * small
    assert 0.99 < change / bound <= 1


@pytest.mark.parametrize("n", [2, 10, 100])
def test_the_chance_of_distance_one_is_counted(n):
    assert laws.chance_of_distance_one(n) == pytest.approx(1 - math.comb(n, n // 2) / 2**n)
    assert laws.chance_of_distance_one(n + 1) == 1.0


def test_the_noise_bound_holds_for_samples_with_the_query_among_them():
    n, draws = 6, 20000
    pick = torch.randint(2, (draws, n), generator=stream(0, "pick"))
    y = torch.tensor([[1.0], [-1.0]], **DOUBLE)
    A, V = 0.1 * torch.eye(1, **DOUBLE), torch.eye(1, **DOUBLE)
    cloud = y[pick]
    noise = (laws.read(cloud, cloud, A, V) - laws.read(cloud, y, A, V)).square().mean().sqrt().item()
    bound = laws.noise_bound(n, torch.tensor(0.1, **DOUBLE), 1.0, 1.0).item()
    assert 0.5 * bound < noise <= bound


def error_of_the_field(query: float, T: float = 0.0) -> tuple[float, float]:
    """√E|Att[μ_T^N](q) − Att[μ_T](q)|² over all samples of ten tokens of 0.1δ₁ + 0.9δ₋₁, and what is allowed."""
    n, p, R = 10, 0.1, math.exp(T)  # ‖V‖ = 1, R_T = e^T
    A, V = 1e-3 * torch.eye(1, **DOUBLE), torch.eye(1, **DOUBLE)
    share = torch.tensor([*(k / n for k in range(n + 1)), p], **DOUBLE)  # of the atom 1; the last is the law itself
    mass = torch.stack([share, 1 - share], dim=-1).clamp(min=1e-300)
    y = torch.tensor([[1.0], [-1.0]], **DOUBLE).expand(n + 2, 2, 1)
    if T:
        y = flow(lambda u: laws.read(u, u, A, V, mass), y, T=T, steps=20)
    seen = laws.read(torch.full((n + 2, 1, 1), query, **DOUBLE), y, A, V, mass).flatten()
    chance = torch.tensor([math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(n + 1)], **DOUBLE)
    error = (chance * (seen[:-1] - seen[-1]).square()).sum().sqrt().item()

    a = torch.tensor(1e-3, **DOUBLE)
    x = a * R**2
    coupled = laws.noise_bound(n, x, 1.0, R) * formulas.growth(laws.rate_of(a, 1.0, R, 2), T)
    allowed = laws.law_part(x, 2) * coupled + torch.exp(2 * x) * R / math.sqrt(n)
    return error, allowed.item()


@pytest.mark.parametrize("T", [0.0, 0.5])
def test_the_field_of_a_sample_is_near_that_of_its_law_for_queries_in_the_ball_and_for_no_others(T):
    for query in (-1.0, 0.0, 0.3, math.exp(T)):
        error, allowed = error_of_the_field(query, T)
        assert 0.1 * allowed < error <= allowed
    error, allowed = error_of_the_field(1e5, T)  # reads as with x = 100
    assert error > allowed
    assert error_of_the_field(1e5) == pytest.approx((1.18, 0.317), rel=1e-2)


def test_the_smallest_size_of_the_experiment_runs():
    found = measure.run("smoke", 0)
    assert found.figures["d=3/slope coupled"] < -0.2
    assert abs(found.controls["d=3/slope permuted"]) < 0.2


def test_bounds_and_costs_are_refused_where_there_are_none():
    for p in (0.5, 1.5, math.nan):
        with pytest.raises(ValueError, match="p must be 1 or at least 2"):
            laws.law_part(torch.tensor(0.5), p)
    with pytest.raises(ValueError, match="not 5 for 2"):
        laws.transport_cost(torch.zeros(2, 1), torch.zeros(5, 1))


def test_a_causal_mask_is_on_the_device_of_the_scores():
    u, A = torch.ones(3, 2, device="meta"), torch.ones(2, 2, device="meta")
    assert laws.read(u, u, A, A, causal=True).is_meta
