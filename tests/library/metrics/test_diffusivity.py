"""Diffusivities against kernels whose moments are known, and P2 eq 8 as it is printed."""

import math

import pytest
import torch
from systems import SEQUENCES, WIDTH, field, padded, seeded

from pdelab import Diffusion, Interaction, Reaction
from pdelab.metrics.diffusivity import (
    READINGS,
    attention_variance,
    block_traces,
    diffusion_matrix,
    diffusivity,
    heat_gap,
    largest_off_diagonal,
    moment,
    position_slope,
    printed_diffusivity,
    sampled_diffusivity,
    symbol,
)
from pdelab.metrics.jacobian import jacobian
from pdelab.seeds import normal

MATRIX = torch.tensor([[1.0, 10.0], [0.0, 3.0]], dtype=torch.float64)


def close(a, b, atol=1e-12):
    torch.testing.assert_close(a, torch.as_tensor(b, dtype=a.dtype).expand_as(a), rtol=0, atol=atol)


def gaussian(n, variance):
    """Rows of a periodic Gaussian kernel, summed over its images: (token, token)."""
    x = torch.arange(n, dtype=torch.float64) / n
    r = x.unsqueeze(0) - x.unsqueeze(1)
    p = sum(torch.exp(-((r + k) ** 2) / (2 * variance)) for k in range(-4, 5))
    return p / p.sum(-1, keepdim=True)


@pytest.mark.parametrize("coefficient", [0.7, -0.3, MATRIX])
def test_the_second_moment_of_a_laplacian_is_its_coefficient_away_from_the_ends(coefficient):
    """Σ_j (x_j − x_i)² Δ_ij = 2 exactly, on every grid."""
    J = jacobian(Diffusion(coefficient), normal(0, "u", size=(1, 6, 2)))
    wanted = torch.as_tensor(coefficient, dtype=torch.float64)
    wanted = wanted if wanted.ndim else wanted * torch.eye(2, dtype=torch.float64)
    close(diffusion_matrix(J)[0, 1:-1], wanted)
    close(diffusivity(J)[0, 1:-1], wanted.trace() / 2)


def test_averaging_with_weights_has_half_their_second_moment_times_the_value_matrix():
    p = normal(0, "p", size=(5, 5)).softmax(dim=-1)
    J = jacobian(lambda u: p @ u @ MATRIX.T, normal(0, "u", size=(1, 5, 2)))
    half = moment(p.reshape(1, 1, 5, 5), 2)[0, 0] / 2
    close(diffusion_matrix(J)[0], half.reshape(-1, 1, 1) * MATRIX)
    close(diffusivity(J)[0], half * 2)  # tr/d = (1 + 3)/2


def test_the_diffusivity_is_the_response_to_a_parabola():
    """J applied to ½(y − x_i)² e_c, read at i, is column c of the matrix."""
    f, u = seeded(lambda: Interaction(WIDTH, 2), spread=0.5), field(1)
    J = jacobian(f, u)
    x = (torch.arange(5, dtype=torch.float64) + 0.5) / 5
    for i in range(5):
        response = torch.einsum("ajc,j->ac", J[0, i], (x - x[i]) ** 2 / 2)
        close(diffusion_matrix(J)[0, i], response)


@pytest.mark.parametrize("activation", ["relu", "gelu", "tanh"])
def test_a_network_at_each_token_has_no_block_between_tokens_and_a_flat_symbol(activation):
    f = seeded(lambda: Reaction(WIDTH, 9, activation=activation), spread=0.5)
    P = field(1, 8, seed=1)
    J = jacobian(lambda u: f(u + P), field(1, 8))
    assert largest_off_diagonal(J) == 0
    close(diffusivity(J), 0.0, atol=0)
    close(symbol(J).real, symbol(J).real[0, 0])
    assert symbol(J).real.abs().min() > 1e-3
    assert largest_off_diagonal(jacobian(seeded(lambda: Interaction(WIDTH)), field(1, 8))) > 1e-3


@pytest.mark.parametrize("variance", [2e-3, 1e-2])
def test_the_symbol_of_a_gaussian_is_a_gaussian(variance):
    p = gaussian(32, variance)
    J = torch.einsum("ij,ac->iajc", p, torch.eye(2, dtype=torch.float64)).unsqueeze(0)
    k = torch.arange(32, dtype=torch.float64)
    # on 32 tokens the waves k and k + 32m are one (Poisson's sum)
    images = [torch.exp(-(variance / 2) * (2 * math.pi * (k + 32 * m)) ** 2) for m in range(-3, 4)]
    close(symbol(J).real[0], sum(images) / sum(images)[0])
    close(symbol(J).imag, 0.0)


def test_a_shift_has_no_second_moment_but_for_the_square_of_the_shift():
    shift = torch.eye(8, dtype=torch.float64).roll(1, dims=1)[:6]
    p = torch.cat([shift, torch.eye(8, dtype=torch.float64)[6:]]).reshape(1, 1, 8, 8)
    close(moment(p, 1)[0, 0, :6], 1 / 8)
    close(moment(p, 2)[0, 0, :6], 1 / 64)
    close(moment(p, 1, absolute=True), moment(p, 1).abs())


def test_padding_changes_nothing():
    f = seeded(lambda: Interaction(WIDTH, 2), spread=0.5)
    u, mask = padded(fill=0.0)
    J = torch.cat(
        [jacobian(lambda v, m=m: f(v, 0.0, m), one) for one, m in zip(u.split(1), mask.split(1), strict=True)]
    )
    P = f.weights(u, mask).detach()
    both = mask.unsqueeze(1) & mask.unsqueeze(2)
    J = torch.where(both[:, :, None, :, None], J, math.nan)  # whatever stands at padding
    P = torch.where(both.unsqueeze(1), P, math.nan)
    places = normal(0, "places", size=(u.shape[1], WIDTH))
    for row, one in enumerate(SEQUENCES):
        alone, maps = jacobian(f, one), f.weights(one).detach()
        close(diffusivity(J, mask)[row, mask[row]], diffusivity(alone)[0])
        close(diffusion_matrix(J, mask)[row, mask[row]], diffusion_matrix(alone)[0])
        close(moment(P, 2, mask)[row][:, mask[row]], moment(maps, 2)[0])
        for reading in READINGS:
            close(attention_variance(P, reading, mask)[row, mask[row]], attention_variance(maps, reading)[0])
        printed = printed_diffusivity(places, J, P, mask=mask)[row]
        assert (printed[~mask[row]] == 0).all()
        if len(one[0]) == 1:
            assert printed[mask[row]].isnan().all()  # one token has no slope
        else:
            close(printed[mask[row]], printed_diffusivity(places[mask[row]], alone, maps)[0])
    assert (diffusivity(J, mask)[~mask] == 0).all()
    assert (attention_variance(P, "weights", mask)[~mask] == 0).all()


def test_one_token_has_no_neighbour():
    assert largest_off_diagonal(torch.ones(2, 1, 3, 1, 3)) == 0
    assert diffusivity(torch.ones(1, 1, 2, 1, 2)).tolist() == [[0.0]]


def test_the_slope_of_sines_is_their_frequency():
    x = (torch.arange(400, dtype=torch.float64) + 0.5) / 400
    places = torch.stack([torch.cos(7 * x), torch.sin(7 * x)], dim=-1)
    close(position_slope(places)[1:-1], 49.0, atol=49 * (7 / 400) ** 2)  # central differences have order 2


def test_the_readings_of_the_attention_variance():
    P = torch.full((1, 2, 4, 4), 0.25, dtype=torch.float64)
    close(attention_variance(P, "weights"), 0.0)
    close(attention_variance(P, "constant"), 1.0)
    x = (torch.arange(4, dtype=torch.float64) + 0.5) / 4
    close(attention_variance(P)[0], ((x - x.unsqueeze(1)) ** 2).mean(-1))
    with pytest.raises(ValueError, match="reading must be one of moment, weights, constant"):
        attention_variance(P, "spread")


def test_equation_8_is_the_product_of_its_three_factors():
    f = seeded(lambda: Reaction(WIDTH, 9, activation="tanh"), spread=0.5)
    J, P = jacobian(f, field()), normal(0, "P", size=(2, 2, 5, 5)).softmax(dim=-1)
    places = normal(0, "places", size=(5, WIDTH))
    trace = torch.stack([J[:, i, :, i].diagonal(dim1=1, dim2=2).sum(-1) for i in range(5)], dim=1)
    wanted = position_slope(places) * trace * moment(P, 2).mean(1)
    close(printed_diffusivity(places, J, P), wanted)
    close(block_traces(J).diagonal(dim1=1, dim2=2) * WIDTH, trace)
    close(printed_diffusivity(-places, 2 * J, P, reading="constant"), 2 * position_slope(places) * trace)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_device_and_dtype_follow_the_input(dtype):
    J, P = torch.empty(2, 4, 3, 4, 3, device="meta", dtype=dtype), torch.empty(2, 1, 4, 4, device="meta", dtype=dtype)
    for found in (diffusivity(J), diffusion_matrix(J), moment(P, 2), attention_variance(P, "weights")):
        assert found.device.type == "meta"
        assert found.dtype == dtype


def test_what_is_no_jacobian_no_map_and_no_table_is_refused():
    with pytest.raises(ValueError, match=r"J must have shape"):
        diffusivity(torch.ones(2, 3, 3))
    with pytest.raises(ValueError, match=r"P must have shape"):
        moment(torch.ones(3, 3), 2)
    with pytest.raises(ValueError, match=r"order must be"):
        moment(torch.ones(1, 1, 3, 3), -1)
    with pytest.raises(ValueError, match=r"places must be"):
        position_slope(torch.ones(1, 3))
    with pytest.raises(ValueError, match=r"places must have 4 tokens"):
        printed_diffusivity(torch.ones(3, 2), torch.ones(1, 4, 2, 4, 2), torch.ones(1, 1, 4, 4) / 4)


def test_a_stack_of_averages_stays_within_its_gap_of_heat_and_a_narrow_one_comes_close():
    """Cosines on [0, 1] against e^{nD∂²}, whose rate for wave k is (πk)²D; rows of any kind, another in each layer."""
    n, layers = 64, 4
    x = (torch.arange(n, dtype=torch.float64) + 0.5) / n
    distance = x - x.unsqueeze(1)
    stacks = {
        "narrow": [torch.exp(-(distance**2) * n**2 / 8).double() for _ in range(layers)],
        "any": list(torch.rand(layers, n, n, generator=torch.Generator().manual_seed(0), dtype=torch.float64) ** 8),
    }
    for name, stack in stacks.items():
        stack = [p / p.sum(-1, keepdim=True) for p in stack]
        D = 2 / n**2 if name == "narrow" else 0.01
        gap = sum(heat_gap(p.reshape(1, 1, n, n), D)[0, 0] for p in stack)
        for k in (1, 2, 3):
            u0 = torch.cos(k * math.pi * x)
            u = u0
            for p in stack:
                u = p @ u
            found = (u - math.exp(-((k * math.pi) ** 2) * D * layers) * u0).abs().max()
            allowed = gap @ torch.tensor([(k * math.pi) ** j for j in (1, 2, 3)], dtype=torch.float64)
            assert found <= allowed, (name, k)


def test_the_gap_of_a_shift_is_its_length_and_that_of_two_neighbours_half_their_variance():
    n = 8
    shift = torch.eye(n, dtype=torch.float64).roll(1, 1)
    shift[-1] = torch.eye(n, dtype=torch.float64)[-1]
    close(heat_gap(shift.reshape(1, 1, n, n))[0, 0], torch.tensor([1 / n, 0.0, 0.0], dtype=torch.float64))
    lazy = torch.eye(n, dtype=torch.float64)
    lazy[3, 2], lazy[3, 4], lazy[3, 3] = 0.5, 0.5, 0.0
    wanted = torch.tensor([0.0, 1 / (2 * n**2), 1 / (6 * n**3)], dtype=torch.float64)
    close(heat_gap(lazy.reshape(1, 1, n, n))[0, 0], wanted)
    close(heat_gap(lazy.reshape(1, 1, n, n), 1 / (2 * n**2))[0, 0, 1], 1 / (2 * n**2))  # the others stay where they are


def test_the_gap_of_a_padded_sequence_is_that_of_the_sequence_alone():
    mask = torch.tensor([[True] * 5 + [False] * 3])
    P = torch.zeros(1, 1, 8, 8, dtype=torch.float64)
    P[..., :5, :5] = torch.rand(5, 5, generator=torch.Generator().manual_seed(1), dtype=torch.float64).softmax(-1)
    close(heat_gap(P, 0.02, mask), heat_gap(P[..., :5, :5], 0.02))


def test_random_signs_find_the_diffusivity_of_the_jacobian_within_their_error():
    """Each of 80 values is a mean of 400 draws: |value − exact|/error is normal, below 4.5 and 1 in the rms."""
    f = seeded(lambda: Interaction(8, 2), spread=0.5)
    u = field(4, 20, 8)
    found, exact = sampled_diffusivity(f, u, draws=400), diffusivity(jacobian(f, u))
    scores = (found.value - exact) / found.error
    assert scores.abs().max() < 4.5
    # the errors of one example share their draws: about ten are independent
    assert 0.4 < scores.square().mean().sqrt() < 1.8
    assert exact.abs().mean() > 2 * found.error.mean()  # or a value of zero would pass


def test_the_error_falls_with_the_root_of_the_draws_and_a_seed_gives_the_same_again():
    f, u = seeded(lambda: Interaction(8, 2), spread=0.5), field(2, 12, 8)
    few, many = (sampled_diffusivity(f, u, draws=n).error.mean() for n in (50, 800))
    assert 3.2 < few / many < 5.0
    again = [sampled_diffusivity(f, u, draws=3, seed=s).value for s in (5, 5, 6)]
    assert torch.equal(again[0], again[1])
    assert not torch.equal(again[0], again[2])


def test_where_every_block_is_a_multiple_of_the_identity_one_sign_is_enough():
    """For averaging, J_ij = P_ij 1 and z · z = d: the value is half the second moment of the weights, without error."""
    P = torch.randn(2, 1, 9, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).softmax(dim=-1)
    for example in P.split(1):
        found = sampled_diffusivity(lambda u, P=example: P.squeeze(1) @ u, field(1, 9, 3), draws=2)
        torch.testing.assert_close(found.value, moment(example, 2).squeeze(1) / 2, rtol=0, atol=1e-14)
        assert found.error.max() < 1e-14


def test_a_map_of_each_token_alone_does_not_diffuse():
    found = sampled_diffusivity(torch.sin, field(2, 30, 4))
    assert found.value.abs().max() < 1e-15


def test_the_sampled_diffusivity_of_a_padded_sequence_is_that_of_the_sequence():
    f = seeded(lambda: Interaction(WIDTH, 2), spread=0.5)
    sequences = [field(1, n, seed=n) for n in (6, 4)]
    u, mask = padded(sequences, (0, 2), fill=float("nan"))
    found = sampled_diffusivity(f, u, mask, draws=300)
    assert not found.value[~mask].any()
    for row, one in enumerate(sequences):
        exact = diffusivity(jacobian(f, one))[0]
        assert ((found.value[row, mask[row]] - exact).abs() < 4.5 * found.error[row, mask[row]]).all()
    with pytest.raises(ValueError, match="draws must be a whole number of at least 2"):
        sampled_diffusivity(f, u, mask, draws=1)
