import math

import pytest
import torch
from hypothesis import given
from systems import WIDTH, field, fields, layered, padded, seeded, term
from torch import nn

from pdelab import (
    RK4,
    Diffusion,
    Interaction,
    LayerNormRate,
    MasterEquation,
    Reaction,
    SpatialStabilization,
    formulas,
    solve,
)
from pdelab.field import laplacian_eigenvalues
from pdelab.metrics.base import per_layer
from pdelab.metrics.jacobian import logarithmic_norm
from pdelab.metrics.stability import (
    basin_margin,
    bounded_margin,
    diameter,
    diameter_margin,
    energy,
    euler_factor,
    fluctuation,
    gradient_norms,
    growth_along,
    growth_towards_mean,
    mean_energy,
    nonuniformity,
    push_constants,
    spread,
    state_gradients,
    state_rms,
    step_margin,
)


def close(a, b, atol=1e-12):
    torch.testing.assert_close(torch.as_tensor(a, dtype=torch.float64), b, rtol=1e-12, atol=atol)


@given(u=fields())
def test_energy_is_that_of_the_mean_and_of_the_fluctuation(u):
    close(energy(u), mean_energy(u) + fluctuation(u))
    close(u.square().sum(-1).mean() / 2, energy(u))
    close(u.var(dim=1, correction=0).sum(-1).mean() / 2, fluctuation(u))


@given(u=fields())
def test_a_step_changes_the_energy_by_the_product_with_the_midpoint(u):
    after = u + torch.sin(u)
    close((((after + u) / 2) * (after - u)).sum(-1).mean(), energy(after) - energy(u), atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_equal_tokens_do_not_fluctuate_at_all(dtype):
    u = field(3, 1, dtype=dtype).expand(-1, 7, -1)
    assert fluctuation(u) == 0
    assert nonuniformity(u) == 0


def test_tokens_of_mean_zero_are_all_fluctuation():
    u = torch.cat([field(3, 4), -field(3, 4)], dim=1)
    assert mean_energy(u) == 0
    assert nonuniformity(u) == 1


def test_the_size_of_the_field_does_not_matter_to_nonuniformity():
    for size in (1e-30, 1e30):
        assert nonuniformity(size * field().float()) == pytest.approx(nonuniformity(field()).item(), rel=1e-5)


@given(u=fields())
def test_nonuniformity_is_the_share_of_the_fluctuation_in_the_energy(u):
    u = u[:1]
    value, share = nonuniformity(u), (fluctuation(u) / energy(u)).sqrt()
    assert torch.isclose(value, share, rtol=1e-9, atol=1e-9, equal_nan=True)
    assert value.isnan() or 0 <= value <= 1 + 1e-12


def test_each_sequence_counts_once_by_its_own_length():
    sequences = [field(1, n, seed=n) for n in (6, 4, 5)]
    u, mask = padded(sequences, (0, 2, 1))
    for metric in (energy, mean_energy, fluctuation, nonuniformity):
        close(sum(metric(s) for s in sequences) / 3, metric(u, mask))


def test_a_zero_state_has_energy_zero_and_no_uniformity():
    u = torch.zeros(2, 3, 4)
    assert energy(u) == mean_energy(u) == fluctuation(u) == 0
    assert nonuniformity(u).isnan()


def test_heat_flow_makes_tokens_one():
    values = per_layer(nonuniformity, solve(Diffusion(0.1), field(), steps=60, dt=0.1))
    assert (values.diff() < 0).all()
    assert values[-1] < 0.01 * values[0]


def test_attention_that_only_averages_quarters_the_fluctuation_and_keeps_the_mean():
    """P_ij = 1/N and W_V = W_O = 1: du/dt = μ − u, so a step of Δt = ½ multiplies V by ¼."""
    term, eye = Interaction(WIDTH, leak=True, bias=False).double(), torch.eye(WIDTH, dtype=torch.float64)
    term.qkv.weight.data, term.out.weight.data = torch.cat([0 * eye, 0 * eye, eye]), eye
    run = solve(term, field(), steps=5, dt=0.5)
    close(fluctuation(field()) * 0.25 ** torch.arange(6, dtype=torch.float64), per_layer(fluctuation, run))
    close(mean_energy(field()).expand(6), per_layer(mean_energy, run))


def test_gradient_norms_are_those_of_all_entries_together():
    layer = nn.Linear(3, 2).double()
    layer(field(1, 4, 3)).square().sum().backward()
    flat = torch.cat([p.grad.flatten() for p in layer.parameters()])
    groups = {"layer": layer.parameters(), "bias": [layer.bias.grad, None], "none": [None, nn.Linear(1, 1).weight]}
    whole = gradient_norms(groups)
    rms = gradient_norms(groups | {"layer": layer.parameters()}, "rms")
    assert whole["layer"] == pytest.approx(flat.norm().item(), rel=1e-12)
    assert rms["layer"] == pytest.approx(flat.square().mean().sqrt().item(), rel=1e-12)
    assert whole["bias"] == pytest.approx(layer.bias.grad.norm().item(), rel=1e-12)
    assert math.isnan(whole["none"])
    assert math.isnan(rms["none"])
    assert isinstance(whole["bias"], float)


@pytest.mark.parametrize(("size", "dtype"), [(2.0**-100, torch.float32), (2.0, torch.bfloat16), (0.0, torch.float32)])
def test_gradients_too_small_to_be_squared_have_a_norm(size, dtype):
    gradients = [torch.full((64,), size, dtype=dtype), torch.full((4, 9), size, dtype=dtype)]
    assert gradient_norms({"g": gradients}) == {"g": 10 * size}
    assert gradient_norms({"g": gradients}, "rms") == {"g": size}


def test_the_gradient_at_every_state_of_a_decay_is_known():
    """du/dt = −u, loss = ½|u_L|²: ∂loss/∂u_l = (1 − Δt)^(L − l) u_L."""
    u0 = field().requires_grad_()
    run = solve(lambda u: -u, u0, steps=3, dt=0.5)
    loss = run.final.square().sum() / 2
    close(run.final.detach().norm() * torch.tensor([0.125, 0.25, 0.5, 1.0]).double(), state_gradients(run, loss))
    loss.backward()  # the graph is still there
    close(0.125 * run.final.detach(), u0.grad)


def test_state_gradients_ignore_padding_and_states_after_the_loss():
    u, mask = padded([field(1, 6, seed=1), field(1, 4, seed=2)], (0, 2), fill=0.0)
    run = solve(layered(), u.requires_grad_(), steps=3, dt=0.1, mask=mask)
    alone = [solve(layered(), u[i : i + 1, m].detach().requires_grad_(), steps=3, dt=0.1) for i, m in enumerate(mask)]
    want = torch.stack([state_gradients(a, a.states[2].exp().sum()) for a in alone]).square().sum(0).sqrt()
    found = state_gradients(run, run.states[2].exp().sum())  # e⁰ = 1 has a slope where padding is, too
    close(want, found)
    assert found[3] == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: gradient_norms({"a": [torch.ones(2)]}, "mean"), "normalise must be one of"),
        (lambda: gradient_norms({"a": torch.ones(2)}), r"groups\['a'\] must be a list of tensors"),
        (lambda: state_gradients(solve(torch.sin, field(), steps=1, dt=1), torch.ones(())), "loss must be one number"),
        (
            lambda: state_gradients(solve(torch.sin, field(), steps=1, dt=1), torch.ones((), requires_grad=True)),
            r"states \[0, 1\] have none",
        ),
    ],
)
def test_wrong_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


# One-sided constants and margins


@given(u=fields())
def test_the_squares_of_the_spreads_are_twice_the_fluctuation(u):
    close(spread(u).square().mean() / 2, fluctuation(u))


@given(u=fields())
def test_the_diameter_is_the_largest_distance_and_bounds_the_spread(u):
    found = diameter(u)
    largest = [(u[:, i] - u[:, k]).norm(dim=-1) for i in range(u.shape[1]) for k in range(u.shape[1])]
    close(torch.stack(largest).amax(dim=0), found)
    assert (spread(u) <= found * (1 + 1e-12)).all()


@pytest.mark.parametrize("fill", [math.nan, 1e6])
def test_padding_changes_no_diameter(fill):
    sequences = [5 + field(1, n, seed=n) for n in (6, 4, 1)]
    u, mask = padded(sequences, (0, 2, 1))
    u = torch.where(mask.unsqueeze(-1), u, torch.full_like(u, fill))
    close(torch.cat([diameter(s) for s in sequences]), diameter(u, mask))
    assert diameter(u, mask)[2] == 0, "one token has no distance to another"


def test_padding_changes_neither_spread_nor_growth():
    sequences = [field(1, n, seed=n) for n in (6, 4, 5)]
    u, mask = padded(sequences, (0, 2, 1))
    term = Reaction(WIDTH, 8, activation="tanh").double()
    alone = [growth_towards_mean(term, s) for s in sequences]
    close(torch.cat(alone), growth_towards_mean(lambda v: term(v, 0.0, mask), u, mask))
    close(torch.cat([spread(s) for s in sequences]), spread(u, mask))


def test_a_term_is_told_of_padding():
    sequences = [field(1, n, seed=n) for n in (6, 4, 5)]
    u, mask = padded(sequences, (0, 2, 1))
    term = seeded(lambda: Interaction(WIDTH, 2), spread=0.5)
    alone = torch.cat([growth_towards_mean(term, s) for s in sequences])
    close(growth_towards_mean(term, u, mask), alone)
    run = solve(MasterEquation(term), u, steps=1, dt=0.1, mask=mask)
    close(growth_along(MasterEquation(term), run)[0], alone)


def test_the_rms_of_a_state_is_as_precise_as_the_state():
    u = field()
    assert abs(state_rms(u).item() / math.sqrt(u.square().mean().item()) - 1) < 1e-14
    with pytest.raises(ValueError, match="u must be"):
        state_rms([1.0])


@pytest.mark.parametrize("term", [Interaction(WIDTH, 2), Reaction(WIDTH, 8, activation="tanh"), Diffusion(0.3)])
def test_the_spread_grows_at_exactly_the_rate_towards_the_mean(term):
    """σ' = λ(u)σ, by a central difference along the flow: terms that keep equal tokens equal."""
    term, u, h = term.double(), field(), 1e-4
    with torch.no_grad():
        ahead, behind = (solve(lambda v, s=s: s * term(v), u, steps=1, dt=h, integrator=RK4()).final for s in (1, -1))
    slope = (spread(ahead) - spread(behind)) / (2 * h)
    torch.testing.assert_close(slope / spread(u), growth_towards_mean(term, u), rtol=1e-5, atol=1e-7)


def test_diffusion_pulls_towards_the_mean_by_its_slowest_mode_and_its_logarithmic_norm_is_zero():
    """Over all pairs of states diffusion gains nothing, since a pair may differ by a constant."""
    n, u = 6, field(64, 6, 1)
    slowest = laplacian_eigenvalues(n)[1].item()
    assert (growth_towards_mean(Diffusion(1.0), u) <= slowest * (1 - 1e-12)).all()
    close(torch.zeros(2), logarithmic_norm(Diffusion(1.0), u[:2]), atol=1e-9)


def test_growth_along_a_run_is_that_of_its_states():
    run = solve(Diffusion(0.1), field(), steps=3, dt=0.01)
    for towards, one in (("mean", growth_towards_mean), ("all", logarithmic_norm)):
        found = growth_along(Diffusion(0.1), run, towards)
        assert found.shape == (4, 2)
        close(found[2], one(Diffusion(0.1), run.states[2]))
    assert growth_along(lambda u: 0 * u, solve(Diffusion(0.1), field(), steps=1, dt=0.01)).abs().max() == 0


def test_bad_input_to_growth_along_is_refused():
    run = solve(Diffusion(0.1), field(), steps=1, dt=0.01)
    with pytest.raises(ValueError, match="towards must be one of mean, all"):
        growth_along(Diffusion(0.1), run, "zero")


@pytest.mark.parametrize("towards", ["mean", "all"])
def test_growth_along_a_padded_run_is_that_of_the_sequences_alone(towards):
    f = term("interaction")
    sequences = [field(1, 6, seed=1), field(1, 4, seed=2)]
    u, mask = padded(sequences, (0, 2), fill=math.nan)
    alone = [growth_along(f, solve(f, one, steps=1, dt=0.01), towards) for one in sequences]
    close(growth_along(f, solve(f, u, steps=1, dt=0.01, mask=mask), towards), torch.cat(alone, dim=1), atol=1e-10)


def test_the_sign_of_the_basin_margin_tells_decay_from_growth():
    """F = u: the spread of each example moves at exactly minus the margin times itself."""
    u = field(5) * torch.linspace(0.1, 3, 5, dtype=torch.float64).view(-1, 1, 1)
    gamma, eps = torch.linspace(2, 1, 5, dtype=torch.float64), 0.3
    margin = basin_margin(u, strength=gamma, growth=1.0, eps=eps)
    assert (margin > 0).any()
    assert (margin < 0).any()
    stabilise = SpatialStabilization(lambda x, t: gamma.unsqueeze(-1).expand_as(x), eps)
    close(-margin, growth_towards_mean(lambda v: v + stabilise(v), u))


def test_one_euler_step_meets_the_factor_at_both_ends_of_its_interval():
    """F = ±Ku has the factor |1 − Δt γ/√(σ² + ε)| + ΔtK: small steps meet q as σ → σ₀, overshooting ones as σ → 0."""
    settings = {"strength": 1.0, "eps": 0.01, "lipschitz": 0.5}
    for dt, sign, size in ((0.05, 1, 1.0), (0.18, -1, 1e-9)):
        u = size * field(1) / spread(field(1))
        q = euler_factor(u, dt=dt, **settings)
        after = solve(lambda v, s=sign: s * 0.5 * v + SpatialStabilization(1.0, 0.01)(v), u, steps=1, dt=dt).final
        close(spread(after) / spread(u), q, atol=1e-9)


@given(u=fields())
def test_the_variance_is_at_most_its_share_of_the_squared_diameter(u):
    share = formulas.variance_share(u.shape[1], u.shape[2])
    assert (spread(u) ** 2 <= share * diameter(u) ** 2 * (1 + 1e-12) + 1e-300).all()


@pytest.mark.parametrize("features", [1, 2, 5])
def test_corners_of_a_simplex_have_the_largest_variance(features):
    """Corners of a regular simplex, in d of the d + 1 dimensions, some of them repeated: σ² = δ²d/(2(d + 1))."""
    corners = torch.eye(features + 1, dtype=torch.float64)
    basis = torch.linalg.svd(corners - corners.mean(dim=0))[2][:features]
    u = (corners @ basis.T).repeat(3, 1).unsqueeze(0)
    share = formulas.variance_share(u.shape[1], features)
    close(spread(u) ** 2, share * diameter(u) ** 2)


def test_the_diameter_margin_is_the_rate_at_which_two_tokens_meet():
    """Two tokens have σ = δ/2, so for F = u nothing is lost: δ' = −margin·δ, and it is the basin margin."""
    u = field(5, 2)
    settings = {"strength": torch.linspace(2, 1, 5).double(), "growth": 1.0, "eps": 0.3}
    close(basin_margin(u, **settings), diameter_margin(u, **settings))
    many = field(5, 7)
    assert (diameter_margin(many, **settings) <= basin_margin(many, **settings)).all()
    q = euler_factor(u, dt=0.01, strength=1.0, lipschitz=0.5, eps=0.1, of="diameter")
    close(euler_factor(u, dt=0.01, strength=1.0, lipschitz=0.5, eps=0.1), q)


def test_padding_changes_no_diameter_margin():
    sequences = [field(1, n, seed=n) for n in (6, 2, 3)]
    u, mask = padded(sequences, (0, 4, 3))
    settings = {"strength": 1.0, "growth": 0.5, "eps": 0.1}
    close(torch.cat([diameter_margin(s, **settings) for s in sequences]), diameter_margin(u, mask=mask, **settings))


@pytest.mark.parametrize("tokens", [2, 3, 4, 5, 10, 63, 64])
def test_averages_reach_what_they_may_do_to_the_spread(tokens):
    """Two leading tokens, the others in two halves, each half attending to its leader: by brute force over the lead."""
    first = torch.arange(tokens) < tokens // 2
    w = torch.where(first, 1.0, -1.0).double().repeat(4001, 1)
    w = w - w.mean(dim=1, keepdim=True)
    lead = torch.linspace(0, 8, len(w), dtype=torch.float64)
    w[:, 0] += lead
    w[:, -1] -= lead
    looked_at = torch.where(first, w[:, :1], w[:, -1:])
    product = (w * looked_at).sum(dim=1) / w.square().sum(dim=1)
    assert product.max().item() == pytest.approx(formulas.averaging_growth(tokens), rel=1e-5)

    w = torch.zeros(1, tokens, 1, dtype=torch.float64)
    w[:, 0], w[:, -1] = math.sqrt(0.5), -math.sqrt(0.5)
    looked_at = torch.where(first[:, None], w[:, :1], w[:, -1:])
    close(spread(looked_at) / spread(w), torch.tensor([formulas.averaging_size(tokens)], dtype=torch.float64))


def test_an_odd_number_of_tokens_is_pushed_apart_less():
    assert push_constants(3, 1.0).growth == pytest.approx((1 + math.sqrt(4 / 3)) / 2)
    assert push_constants(3, 1.0).lipschitz == pytest.approx(math.sqrt(4 / 3))
    assert push_constants(7, 1.0).growth == pytest.approx((1 + math.sqrt(48 / 14)) / 2)


def test_push_constants_use_the_smaller_of_two_bounds_for_each_head():
    found = push_constants(8, torch.tensor([2.0, 1.0]), columns=[1.0, 100.0], network=0.5, leak=2.0)
    assert found.growth == pytest.approx(2 + 1.5 + 0.5 - 2)
    assert found.lipschitz == pytest.approx(2 + 2 + 0.5)
    assert found.diameter == pytest.approx(2 + 1 + 0.5 - 2)
    with pytest.raises(ValueError, match="columns must be 2 numbers, one for each head"):
        push_constants(8, [2.0, 1.0], columns=[1.0])
    for none in ([], torch.empty(0)):
        with pytest.raises(ValueError, match="values must be one number for each head"):
            push_constants(8, none)


@pytest.mark.parametrize("columns", [0.01, [0.99], torch.tensor([0.5])])
def test_no_largest_column_sum_is_below_one(columns):
    """The rows sum to 1, so the column sums of N tokens have the mean 1."""
    with pytest.raises(ValueError, match=r"columns must be .* of at least 1"):
        push_constants(8, 2.0, columns=columns)
    assert push_constants(8, 2.0, columns=1.0).lipschitz == 2.0


def test_values_are_one_for_each_head_and_value_sum_their_sum():
    heads = [1.0, 0.5]
    assert bounded_margin(strength=2.0, value_sum=sum(heads)) == 0.5 == 2 - push_constants(8, heads).diameter
    with pytest.raises(TypeError, match="values"):
        bounded_margin(strength=2.0, values=heads)


def test_layernorm_as_a_rate_bounds_the_field_above_its_margin_and_not_below():
    """Equal tokens, V = v·1: |u|' = (v − γ)|u| + γ√d for tokens without a mean, exactly."""
    u = torch.tensor([[[1.0, -1.0]] * 3], dtype=torch.float64)
    norm = LayerNormRate(2, eps=0.0).double().requires_grad_(False)
    for value, bounded in ((0.5, True), (1.5, False)):
        margin = bounded_margin(strength=1.0, value_sum=value)
        run = solve(lambda v, a=value: a * v + norm(v), u, steps=2000, dt=0.01, integrator=RK4())
        assert (margin > 0) == bounded
        size = run.final.norm(dim=-1).max().item()
        assert size == pytest.approx(math.sqrt(2) / margin, rel=1e-3) if bounded else size > 1e3


def test_a_step_has_no_margin_without_eps_and_loses_it_where_zero_repels():
    assert step_margin(dt=1e-9, strength=1.0, lipschitz=0.0, eps=0.0) == -math.inf
    assert step_margin(dt=0.2, strength=1.0, lipschitz=0.0, eps=0.01) == pytest.approx(0, abs=1e-12)
    with pytest.raises(ValueError, match="strength must be a finite number of at least 0"):
        step_margin(dt=0.1, strength=-1.0, lipschitz=0.0, eps=0.01)
    with pytest.raises(ValueError, match="eps must be a finite number of at least 0"):
        basin_margin(field(), strength=1.0, growth=0.0, eps=-0.01)


@pytest.mark.parametrize("f", [lambda u: u[:, :1], lambda u: u.sum(), lambda u: 3.0])
def test_a_function_that_gives_no_field_has_no_growth(f):
    with pytest.raises(ValueError, match="f must give a field in the shape of u"):
        growth_towards_mean(f, field())
