import math

import pytest
import torch

from pdelab import Diffusion, solve
from pdelab.experiments import heat_ends
from pdelab.field import laplacian_eigenvalues
from pdelab.solver import Status


def constant_field(n=64):
    return torch.ones(1, n, 3, dtype=torch.float64)


def test_zero_ends_drain_a_constant_field_at_the_exact_rate():
    run = solve(Diffusion(1.0, "absorbing"), constant_field(), steps=2048, dt=0.2 / 2048)
    left = 8 / math.pi**2 * sum(math.exp(-(k**2) * math.pi**2 * 0.2) / k**2 for k in range(1, 40, 2))
    # second order in space, first in time: both errors are below 1e-3 here
    assert run.final.mean().item() == pytest.approx(left, abs=1e-3)
    assert left < 0.12


@pytest.mark.claim("P1-eq6/7")
@pytest.mark.parametrize("boundary", ["reflecting", "periodic"])
def test_ends_that_let_nothing_out_mix_tokens_and_keep_their_mean(boundary, evidence):
    u0 = heat_ends.random_tokens(seed=3)
    run = heat_ends.evolve(u0, boundary)
    kept = torch.allclose(run.final.mean(dim=1), u0.mean(dim=1), rtol=1e-12)
    mixed = (run.final.std(dim=1) / u0.std(dim=1)).max().item()
    evidence("repair", holds=kept and mixed < 0.5, fails=not kept)


@pytest.mark.parametrize("boundary", ["reflecting", "absorbing", "periodic"])
def test_explicit_steps_blow_up_exactly_past_two_over_the_largest_eigenvalue(boundary):
    diffusion, n = Diffusion(0.7, boundary), 9
    u0 = torch.randn(1, n, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    limit = diffusion.largest_step(n)
    assert limit == pytest.approx(2 / (0.7 * -laplacian_eigenvalues(n, boundary)[-1].item()))
    inside = solve(diffusion, u0, steps=4000, dt=0.999 * limit)
    past = solve(diffusion, u0, steps=4000, dt=1.01 * limit)
    assert inside.final.abs().max() <= u0.norm()
    assert past.final.abs().max() > 1e6


def test_divergence_is_a_status_and_keeps_the_finite_states():
    diffusion = Diffusion(1.0)
    run = solve(diffusion, torch.randn(1, 8, 2), steps=500, dt=10 * diffusion.largest_step(8))
    assert run.status is Status.DIVERGED
    assert len(run.states) == len(run.times) == run.stopped_at
    assert all(torch.isfinite(u).all() for u in run.states)


def test_no_step_is_small_enough_for_backward_heat():
    assert Diffusion(-1.0).largest_step(8) == 0.0
    assert Diffusion(0.0).largest_step(8) == math.inf


def test_a_coefficient_that_is_not_a_number_is_refused():
    with pytest.raises(ValueError, match="coefficient"):
        Diffusion(math.nan)
    with pytest.raises(ValueError, match="boundary"):
        Diffusion(1.0, "open")
