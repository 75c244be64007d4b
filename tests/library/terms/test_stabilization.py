import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from systems import SEQUENCES, WIDTH, field, fields, padded, seeded, wave
from torch import nn

from pdelab import (
    CorrectedStabilization,
    LayerNormRate,
    LieEuler,
    MasterEquation,
    PreNorm,
    Reaction,
    SpatialStabilization,
    solve,
)
from pdelab.field import token_mean

strengths, small = st.floats(0, 3), st.sampled_from([1e-5, 1e-2, 1.0])


def moments(u):
    """μ and σ² = ∫|u − μ|² dx, one sequence at a time and by numpy's own mean and variance: the second method."""
    array = u.detach().numpy()
    return torch.from_numpy(array.mean(axis=1, keepdims=True)), torch.from_numpy(array.var(axis=1).sum(axis=-1))


def integral(x):
    return x.sum(dim=-1).mean(dim=1)  # over the features and over space: (batch,)


@given(u=fields(), strength=strengths, eps=small)
def test_energy_falls_at_the_rate_of_the_fluctuation(u, strength, eps):
    """∫⟨u, S⟩ dx = −γσ²/√(σ² + ε)"""
    _, variance = moments(u)
    energy = integral(u * SpatialStabilization(strength, eps)(u))
    torch.testing.assert_close(energy, -strength * variance / (variance + eps).sqrt(), rtol=1e-9, atol=1e-9)


@given(u=fields(), strength=strengths, eps=small)
def test_the_printed_term_never_touches_the_mean(u, strength, eps):
    assert token_mean(SpatialStabilization(strength, eps)(u)).abs().max() < 1e-10


@given(u=fields(), strength=strengths, eps=small)
def test_it_is_equation_9(u, strength, eps):
    mean, variance = moments(u)
    want = -strength * (u - mean) / (variance + eps).sqrt().reshape(-1, 1, 1)
    torch.testing.assert_close(SpatialStabilization(strength, eps)(u), want, rtol=1e-9, atol=1e-9)


@given(value=st.floats(-1e3, 1e3), tokens=st.integers(1, 9), eps=st.sampled_from([0.0, 1e-5, 1.0]))
def test_the_printed_term_is_zero_where_all_tokens_agree(value, tokens, eps):
    u = torch.full((2, tokens, 3), value, dtype=torch.float64)
    assert (SpatialStabilization(1.0, eps)(u) == 0).all()


@pytest.mark.parametrize("kind", [SpatialStabilization, CorrectedStabilization])
def test_a_constant_field_has_a_finite_derivative_even_without_eps(kind):
    u = torch.full((1, 3, 2), 0.1, dtype=torch.float64, requires_grad=True)
    kind(1.0, 0.0)(u).sum().backward()
    assert torch.isfinite(u.grad).all()


@given(u=fields(), strength=strengths, eps=small)
def test_the_corrected_term_pays_for_size_with_energy(u, strength, eps):
    """∫⟨u, S⟩ dx = γ(σ²/√(σ² + ε) − ‖u‖²): negative as soon as ‖u‖ is above 1."""
    _, variance = moments(u)
    energy = integral(u * CorrectedStabilization(strength, eps)(u))
    want = strength * (variance / (variance + eps).sqrt() - integral(u * u))
    torch.testing.assert_close(energy, want, rtol=1e-9, atol=1e-8)
    large = integral(u * u) > 1
    assert (energy[large] <= 0).all()


@given(u=fields(), strength=strengths, eps=small)
def test_the_corrected_term_is_minus_the_printed_one_less_the_leak(u, strength, eps):
    want = -SpatialStabilization(strength, eps)(u) - strength * u
    torch.testing.assert_close(CorrectedStabilization(strength, eps)(u), want, rtol=1e-12, atol=1e-12)


@given(order=st.permutations(range(5)))
@pytest.mark.parametrize("kind", [SpatialStabilization, CorrectedStabilization, lambda: LayerNormRate(WIDTH)])
def test_permuting_the_tokens_permutes_the_rates(kind, order):
    u = field()
    term = kind().double()
    torch.testing.assert_close(term(u[:, order]), term(u)[:, order], rtol=0, atol=1e-12)


@pytest.mark.parametrize("eps", [0.0, 1e-5, 1.0])
def test_a_rate_that_depends_on_position_can_add_energy(eps):
    """u = m + s·sgn(x − ½) and γ = γ₀(1 − a·sgn(x − ½)): ∫⟨u, S⟩ dx = −γ₀(s² − ams)/√(s² + ε), positive if am > s."""
    m, s, a, strength = 3.0, 0.5, 0.8, 1.5
    sign = torch.tensor([-1.0, -1.0, 1.0, 1.0], dtype=torch.float64).reshape(1, 4, 1)
    u = m + s * sign
    term = SpatialStabilization(lambda x, t: strength * (1 - a * torch.sign(x - 0.5)), eps)
    want = -strength * (s**2 - a * m * s) / math.sqrt(s**2 + eps)
    assert integral(u * term(u)).item() == pytest.approx(want, rel=1e-12)
    assert want > 0


@given(u=fields(), strength=strengths, eps=small)
def test_a_rate_that_is_a_constant_function_is_the_number(u, strength, eps):
    constant = SpatialStabilization(lambda x, t: torch.full_like(x, strength), eps)
    torch.testing.assert_close(constant(u), SpatialStabilization(strength, eps)(u), rtol=1e-12, atol=1e-12)


def test_the_rate_is_read_at_the_positions_of_the_real_tokens_and_at_the_time():
    """γ = x + t at N tokens: x_i = (i + ½)/N whatever the padding."""
    u, mask = padded(fill=math.nan)
    term, unit = SpatialStabilization(lambda x, t: x + t), SpatialStabilization(1.0)
    for row, one in enumerate(SEQUENCES):
        n = one.shape[1]
        x = (torch.arange(n, dtype=torch.float64).reshape(1, n, 1) + 0.5) / n
        want = ((x + 0.25) * unit(one))[0]
        torch.testing.assert_close(term(u, 0.25, mask)[row, mask[row]], want, rtol=0, atol=1e-12)


def test_what_a_rate_gives_at_padding_does_not_matter():
    u, mask = padded(fill=0.0)
    term = SpatialStabilization(lambda x, t: torch.where((x > 0) & (x < 1), x, torch.nan))
    assert torch.isfinite(term(u, 0.0, mask)).all()


@pytest.mark.parametrize("bad", [lambda x, t: 1.0, lambda x, t: x[:, :1], lambda x, t: x.unsqueeze(-1)])
def test_a_rate_in_another_shape_is_refused(bad):
    with pytest.raises(ValueError, match=r"strength must give one γ for each position, in the shape \(2, 5\)"):
        SpatialStabilization(bad)(field())


@pytest.mark.parametrize("strength", [0.25, 1.0, 3.0])
@pytest.mark.parametrize("eps", [1e-5, 1.0])
def test_an_euler_step_of_one_over_gamma_without_centring_is_rms_norm(strength, eps):
    term = seeded(lambda: LayerNormRate(WIDTH, strength, eps, centre=False), spread=0.5)
    u, mask = padded(fill=0.0)
    step = solve(term, u, steps=1, dt=1 / strength, mask=mask).final
    want = nn.functional.rms_norm(u, (WIDTH,), term.norm.weight, eps)
    torch.testing.assert_close(step[mask], want[mask], rtol=0, atol=1e-12)


def test_rms_norm_keeps_the_direction_and_layer_norm_takes_the_mean_off():
    u = field() + 1.0
    rms = u + LayerNormRate(WIDTH, centre=False, eps=0.0).double()(u)
    layer = u + LayerNormRate(WIDTH, eps=0.0).double()(u)
    one = torch.ones(u.shape[:2], dtype=torch.float64)
    torch.testing.assert_close(torch.cosine_similarity(rms, u, dim=-1), one)
    assert layer.mean(dim=-1).abs().max() < 1e-12
    for normal in (rms, layer):
        torch.testing.assert_close(normal.norm(dim=-1), math.sqrt(WIDTH) * one)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("strength", [0.25, 1.0, 3.0])
def test_an_euler_step_of_one_over_gamma_is_layer_norm(bias, strength):
    term = seeded(lambda: LayerNormRate(WIDTH, strength, bias=bias), spread=0.5)
    theirs = nn.LayerNorm(WIDTH, bias=bias).double()
    theirs.load_state_dict(term.norm.state_dict())
    u, mask = padded(fill=0.0)
    step = solve(term, u, steps=1, dt=1 / strength, mask=mask).final
    torch.testing.assert_close(step[mask], theirs(u)[mask], rtol=0, atol=1e-12)


def test_layer_norm_looks_over_features_and_the_printed_term_over_space():
    """Adding one vector to all tokens changes no rate of eq 9; adding one number to all features none of LayerNorm."""
    u, over_space, over_features = field(), field(2, 1), field(width=1)
    spatial, layer = SpatialStabilization(), LayerNormRate(WIDTH).double()
    torch.testing.assert_close(spatial(u + over_space), spatial(u), rtol=0, atol=1e-12)
    torch.testing.assert_close(layer(u + over_features) + over_features, layer(u), rtol=0, atol=1e-9)
    assert (spatial(u + over_features) - spatial(u)).abs().max() > 0.01
    assert (layer(u + over_space) + over_space - layer(u)).abs().max() > 0.01


def test_pre_norm_is_the_term_of_the_normalised_field():
    inner = seeded(lambda: Reaction(WIDTH, 5, source=wave))
    term = seeded(lambda: PreNorm(inner, WIDTH), spread=0.3)
    normal = nn.functional.layer_norm(field(), (WIDTH,), term.norm.weight, term.norm.bias)
    torch.testing.assert_close(term(field(), 0.7), inner(normal, 0.7), rtol=0, atol=1e-12)
    assert term.symbol == "R"


def test_pre_norm_is_not_a_term_added_to_the_equation():
    """T(LN u) is a composition: no sweep over T and S gives it, while post norm is exactly such a sweep."""
    inner = seeded(lambda: Reaction(WIDTH, 5), spread=0.5)
    u = field()
    composed = u + PreNorm(inner, WIDTH).double()(u)
    for terms in ((inner, LayerNormRate(WIDTH)), (LayerNormRate(WIDTH), inner)):
        swept = solve(MasterEquation(*terms).double(), u, steps=1, dt=1.0, integrator=LieEuler()).final
        assert (composed - swept).abs().max() > 0.1


def test_moments_are_those_of_the_real_tokens():
    u, mask = padded(fill=math.nan)
    for kind in (SpatialStabilization, CorrectedStabilization):
        for row, one in enumerate(SEQUENCES):
            torch.testing.assert_close(kind()(u, mask=mask)[row, mask[row]], kind()(one)[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("build", [SpatialStabilization, CorrectedStabilization, lambda s, e: LayerNormRate(4, s, e)])
@pytest.mark.parametrize(("strength", "eps"), [(-1.0, 1e-5), (1.0, -1e-5), (math.nan, 1e-5), (1.0, math.nan)])
def test_negative_strength_and_eps_are_refused(build, strength, eps):
    with pytest.raises(ValueError, match=r"(strength|eps) must be a finite number of at least 0"):
        build(strength, eps)


@pytest.mark.parametrize("build", [LayerNormRate, lambda width: PreNorm(Reaction(4, 4), width)])
def test_a_width_below_one_is_refused(build):
    with pytest.raises(ValueError, match="width"):
        build(0)


def test_pre_norm_of_something_else_is_refused():
    with pytest.raises(ValueError, match="term must be a Term"):
        PreNorm(nn.Linear(4, 4), 4)


def test_a_term_may_read_the_field_that_rms_norm_gives():
    """T[g ⊙ u/√(|u|²/d + ε)]: no mean is taken off, and there is no bias."""
    inner = seeded(lambda: Reaction(WIDTH, 6), spread=0.5)
    term = seeded(lambda: PreNorm(inner, WIDTH, 1e-3, centre=False))
    nn.init.uniform_(term.norm.weight, 0.5, 2.0, generator=torch.Generator().manual_seed(0))
    u = field() + 3
    read = term.norm.weight * u / (u.square().mean(dim=-1, keepdim=True) + 1e-3).sqrt()
    torch.testing.assert_close(term(u), inner(read), rtol=0, atol=1e-12)
    assert [name for name, _ in term.norm.named_parameters()] == ["weight"]
