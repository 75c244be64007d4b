import math

import pytest
import torch

from pdelab import Euler, solve
from pdelab.solver import Status


def test_euler_converges_at_first_order_to_the_exponential():
    u0 = torch.ones(1, 1, 1, dtype=torch.float64)
    errors = [abs(solve(lambda u, t: -u, u0, steps=n, dt=1 / n).final.item() - math.exp(-1)) for n in (64, 128)]
    assert math.log2(errors[0] / errors[1]) == pytest.approx(Euler.order, abs=0.02)


def test_the_rate_is_given_the_time_of_its_step():
    run = solve(lambda u, t: torch.full_like(u, t), torch.zeros(1, 1, 1), steps=4, dt=0.5)
    assert run.times == (0.0, 0.5, 1.0, 1.5, 2.0)
    assert run.final.item() == pytest.approx(0.5 * (0 + 0.5 + 1 + 1.5))
    assert run.status is Status.FINISHED
    assert len(run.states) == 5


@pytest.mark.parametrize(
    ("wrong", "words"),
    [({"steps": 0}, "steps"), ({"steps": 2.5}, "steps"), ({"dt": 0.0}, "dt"), ({"dt": math.inf}, "dt")],
)
def test_wrong_arguments_are_refused_by_name(wrong, words):
    with pytest.raises(ValueError, match=words):
        solve(lambda u, t: u, torch.ones(1, 1, 1), **({"steps": 1, "dt": 0.1} | wrong))


def test_solve_runs_on_the_meta_device():
    u0 = torch.ones(2, 4, 3, device="meta")
    assert solve(lambda u, t: -u, u0, steps=3, dt=0.1).final.device.type == "meta"
