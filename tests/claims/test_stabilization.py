"""P2 eq 9: where does it drive the field, what does it do to the energy, and does it approximate LayerNorm?"""

import math

import numpy as np
import pytest
import torch

from pdebook.chapters.stabilization import laws
from pdebook.chapters.stabilization.attack import run as attack
from pdebook.evidence.adversary import ROUNDING
from pdelab import RK4, LayerNormRate, SpatialStabilization, solve
from pdelab.metrics.stability import energy, fluctuation
from pdelab.seeds import normal

STATEMENTS = attack.statements


def number(*values):
    return torch.tensor(values, dtype=torch.float64)


def spread(u):
    return math.sqrt(2 * fluctuation(u).item())


def error(law, **change):
    """The errors of an exact law in an attack; `change` makes it a wrong law."""
    return STATEMENTS[law].search(7, **change) * ROUNDING


@pytest.mark.claim("P2-eq9")
@pytest.mark.parametrize("start", [0.3, 1.0, 3.0])
def test_does_eq_9_drive_the_field_to_zero_mean_and_unit_variance(evidence, start):
    u0 = laws.field_of(number(2.0), number(start), 0)
    end = solve(SpatialStabilization(1.0, 0.01), u0, steps=1000, dt=0.005, integrator=RK4()).final
    mean, variance = end.mean(dim=1).norm().item(), spread(end) ** 2
    unit = abs(variance - 1) < 0.05 or abs(variance / u0.shape[-1] - 1) < 0.05  # summed over features, or one feature
    evidence("printed", holds=mean < 0.05 and unit, fails=abs(mean - 2) < 1e-6 and variance < 1e-6)


@pytest.mark.claim("P2-eq9")
def test_does_eq_9_remove_energy_at_the_printed_rate_on_every_field(evidence):
    share = laws.share_failing(7)
    evidence("printed", holds=share == 0, fails=share > 0.5)


@pytest.mark.claim("P2-eq9")
def test_does_some_smaller_rate_of_dissipation_hold_for_every_field(evidence):
    """For every rate from 1 down to 10⁻⁴, is there a field, not constant, that breaks ∫⟨u, S⟩ ≤ −2·rate·E?"""
    term = SpatialStabilization(1.0, 1e-5)
    broken = []
    for rate in 10.0 ** -np.arange(5):
        u = laws.field_of(number(0.0), number(2 / rate), 1)
        broken.append(laws.power(term, u).item() > -2 * rate * energy(u).item())
    evidence("printed", holds=not any(broken), fails=all(broken))


@pytest.mark.claim("P2-eq9")
def test_does_eq_9_with_a_rate_that_depends_on_position_remove_energy(evidence):
    gained = STATEMENTS["eq9_dissipates"].search(7) - 1
    evidence("printed", holds=bool((gained <= 0).all()), fails=bool((gained > 1e-3).any()))


@pytest.mark.claim("P2-eq9")
@pytest.mark.parametrize("tokens", [2, 32, 512])
def test_does_eq_9_with_the_best_rate_approximate_layernorm_on_short_middling_and_long_tokens(evidence, tokens):
    """The rate γ(x) ≥ 0 is chosen for each token of each field; "approximates" is read as an error below 10 %."""
    u = normal(7, "approximates", tokens, size=(16, tokens, 8))
    near = LayerNormRate(8, eps=1e-3).double().requires_grad_(False)
    errors = [laws.mismatch(SpatialStabilization(), size * u).median().item() for size in (0.1, 1.0, 10.0)]
    control = [laws.mismatch(near, size * u).median().item() for size in (0.1, 1.0, 10.0)]
    assert max(control) < 0.1, "LayerNorm with a small ε is the control: it does approximate LayerNorm"
    evidence("printed", holds=max(errors) < 0.1, fails=max(errors) > 0.5)


@pytest.mark.claim("P2-eq9")
def test_does_eq_9_with_any_rate_approximate_layernorm_where_all_tokens_agree(evidence):
    u = normal(7, "equal", size=(16, 1, 4)).expand(16, 5, 4)
    error = laws.mismatch(SpatialStabilization(), u).min().item()
    evidence("printed", holds=error < 0.1, fails=error > 1 - 1e-9)


@pytest.mark.claim("P2-eq9")
def test_is_the_power_of_eq_9_that_of_the_fluctuation_and_its_mean_zero(evidence):
    worst = error("power").max()
    wrong = error("power", printed=True).max()
    assert wrong > 0.1, "the test must see the difference where it is there"
    evidence("repair", holds=worst < 1e-12, fails=worst > 1e-6)


@pytest.mark.claim("P2-eq9")
def test_does_eq_9_come_to_rest_where_all_tokens_agree(evidence):
    u0 = laws.field_of(number(2.0), number(1.0), 2)
    end = solve(SpatialStabilization(1.0, 0.01), u0, steps=1000, dt=0.005, integrator=RK4()).final
    gap = (end - u0.mean(dim=1, keepdim=True)).abs().max().item()
    evidence("repair", holds=gap < 1e-6, fails=gap > 1e-2)


@pytest.mark.claim("P2-eq9")
def test_does_every_uneven_rate_feed_some_field(evidence):
    worst = error("uneven_rate").max()
    evidence("repair", holds=worst < 1e-9, fails=worst > 1e-3)


@pytest.mark.claim("P2-eq9")
def test_is_layernorm_idempotent_with_unit_gain_and_no_eps(evidence):
    worst = error("idempotent").max()
    uneven = error("idempotent", uneven=0.3).min()
    assert uneven > 1e-3, "with uneven gains it is not, and the test must see that"
    evidence("repair", holds=worst < 1e-12, fails=worst > 1e-6)
