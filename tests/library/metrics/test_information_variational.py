"""Bounds of I(X; T) where everything is known: x ~ N(0, 1), t = A x + √V z.

The samples of `pairs` have exactly the moments of the law: means of quadratic functions of them, and the logarithms of
Gaussian densities are such, are the expectations themselves, to rounding.
"""

import math

import pytest
import torch
from torch.distributions import Independent, MultivariateNormal, Normal, kl_divergence

from pdelab.metrics.information.variational import (
    barber_agakov,
    club,
    infonce,
    printed_eq16,
    vib,
)
from pdelab.seeds import normal

INPUTS, OUTPUTS, N = 3, 2, 60
SEEDS = pytest.mark.parametrize("seed", range(5))
MATRICES = pytest.mark.parametrize("estimate", [infonce, club])


def close(a, b, atol=1e-10):
    a, b = (torch.as_tensor(x, dtype=torch.float64) for x in (a, b))
    torch.testing.assert_close(a, b, rtol=0, atol=atol)


def exact(seed, n, width):
    """n numbers in each of `width` columns with mean 0 and covariance I, exactly."""
    z = normal(seed, "exact", size=(n, width))
    z = z - z.mean(dim=0)
    return torch.linalg.solve_triangular(torch.linalg.cholesky(z.T @ z / n), z.T, upper=False).T


class Law:
    """x ~ N(0, I), t|x ~ N(A x + b, diag V), and so t ~ N(b, A Aᵀ + diag V)."""

    def __init__(self, a, b, v):
        self.a, self.b, self.v = a, b, v

    @classmethod
    def drawn(cls, *name):
        a, b = normal(0, *name, "a", size=(OUTPUTS, INPUTS)), normal(0, *name, "b", size=(OUTPUTS,))
        return cls(a, b, normal(0, *name, "v", size=(OUTPUTS,)).exp())

    @classmethod
    def line(cls, a=1.0, v=1.0):
        return cls(*(torch.tensor(x, dtype=torch.float64) for x in ([[a]], [0.0], [v])))

    def given(self, x):
        return MultivariateNormal(x @ self.a.T + self.b, self.v.diag().expand(len(x), -1, -1))

    @property
    def marginal(self):
        return MultivariateNormal(self.b, self.a @ self.a.T + self.v.diag())

    @property
    def information(self):
        return (self.marginal.covariance_matrix.logdet() - self.v.log().sum()) / 2

    def pairs(self, seed, n=N, draw=exact):
        width = self.a.shape[1]
        x, z = draw(seed, n, width + len(self.v)).split([width, len(self.v)], dim=1)
        return x, x @ self.a.T + self.b + self.v.sqrt() * z

    def matrix(self, x, t):
        """log q(t_j | x_i)."""
        mean = (x @ self.a.T + self.b).unsqueeze(-2)
        return Independent(Normal(mean, self.v.sqrt()), 1).log_prob(t.unsqueeze(-3))


def independent(seed, n, width):
    return normal(seed, "pairs", size=(n, width))


def batches(law, estimate, n, count=10_000):
    """The mean of an estimate over independent batches of n pairs, and its standard error."""
    x, t = (w.reshape(count, n, -1) for w in law.pairs(n, count * n, independent))
    values = torch.vmap(estimate)(law.matrix(x, t))
    return values.mean(), values.std() / math.sqrt(count)


def printed(law, conditional, marginal, seed=0):
    x, t = law.pairs(seed)
    return printed_eq16(conditional.given(x).log_prob(t), marginal.log_prob(t))


@SEEDS
def test_equation_16_is_the_information_less_one_divergence_plus_another(seed):
    p, q, r = (Law.drawn(seed, name) for name in "pqr")
    x, _ = p.pairs(seed)
    loss = kl_divergence(p.given(x), q.given(x)).mean()  # quadratic in x: the mean over these x is the expectation
    gain = kl_divergence(p.marginal, r.marginal)
    close(printed(p, q, r.marginal, seed), p.information - loss + gain)
    assert loss > 0.1
    assert gain > 0.1


@SEEDS
def test_equation_16_is_a_lower_bound_with_the_true_or_with_the_consistent_marginal(seed):
    p, q = Law.drawn(seed, "p"), Law.drawn(seed, "q")
    assert printed(p, q, p.marginal, seed) < p.information
    assert printed(p, q, q.marginal, seed) < p.information


@SEEDS
def test_equation_16_is_an_upper_bound_with_the_true_conditional(seed):
    p, q = Law.drawn(seed, "p"), Law.drawn(seed, "q")
    assert printed(p, p, q.marginal, seed) > p.information
    close(printed(p, p, p.marginal, seed), p.information)


def test_equation_16_with_two_free_models_is_above_or_below():
    p, near, far = Law.line(), Law.line(a=1.1), Law.line(a=3.0, v=0.2)
    assert printed(p, near, far.marginal) > p.information + 0.1
    assert printed(p, far, near.marginal) < p.information - 0.1


def test_equation_16_has_no_least_value_over_its_models():
    p = Law.line()
    values = [printed(p, Law.line(v=v), p.marginal) for v in (1.0, 1e-1, 1e-2, 1e-3)]
    want = [p.information - (1 / v - 1 + math.log(v)) / 2 for v in (1.0, 1e-1, 1e-2, 1e-3)]
    close(torch.stack(values), torch.stack(want))
    assert values[-1] < -490


@SEEDS
def test_barber_agakov_is_the_information_for_the_true_posterior_and_less_for_another(seed):
    p, wrong = Law.drawn(seed, "p"), 1.3
    x, t = p.pairs(seed)
    gain = torch.linalg.solve(p.marginal.covariance_matrix, p.a).T  # E[x|t] = Aᵀ Σ⁻¹ (t − b)
    covariance = torch.eye(INPUTS, dtype=x.dtype) - gain @ p.a
    entropy = MultivariateNormal(torch.zeros(INPUTS, dtype=x.dtype), torch.eye(INPUTS, dtype=x.dtype)).entropy()
    posterior = MultivariateNormal((t - p.b) @ gain.T, covariance)
    other = MultivariateNormal((t - p.b) @ gain.T, wrong * covariance)
    close(barber_agakov(posterior.log_prob(x), entropy), p.information)
    close(barber_agakov(other.log_prob(x), entropy), p.information - kl_divergence(posterior, other).mean())


@SEEDS
def test_vib_is_the_information_plus_the_divergence_of_the_marginal(seed):
    p = Law.drawn(seed, "p")
    x, _ = p.pairs(seed)
    standard = MultivariateNormal(torch.zeros_like(p.b), torch.eye(OUTPUTS, dtype=x.dtype))
    value = vib(x @ p.a.T + p.b, p.v.log().expand(N, -1))
    close(value, p.information + kl_divergence(p.marginal, standard))
    close(value, kl_divergence(p.given(x), standard.expand((N,))).mean())


def test_vib_is_the_information_where_all_t_together_are_standard():
    p = Law.line(a=0.6, v=0.64)
    x, _ = p.pairs(0)
    close(vib(0.6 * x, torch.full_like(x, 0.64).log()), p.information)


@pytest.mark.parametrize("a", [0.3, 1.0, 3.0])
def test_club_with_the_true_conditional_is_the_sum_of_both_divergences(a):
    p = Law.line(a=a)  # KL(p(x,t) ‖ p(x)p(t)) + KL(p(x)p(t) ‖ p(x,t)) = a²/v
    x, t = p.pairs(0)
    value = club(p.matrix(x, t))
    close(value, a * a * N / (N - 1))  # of these samples all N² pairs have the moments of p(x) p(t)
    assert value > p.information


@pytest.mark.parametrize(("a", "v"), [(0.1, 1.0), (1.0, 9.0), (-1.0, 1.0), (2.0, 0.5)])
def test_club_with_another_conditional_may_fall_below_the_information(a, v):
    p, q = Law.line(), Law.line(a, v)
    value = club(q.matrix(*p.pairs(0)))
    close(value, a / v * N / (N - 1))
    assert (value < p.information) == (a != 2.0)


def test_club_is_zero_where_the_model_ignores_the_input():
    p, q = Law.drawn("p"), Law.drawn("q")
    q.a.zero_()
    close(club(q.matrix(*p.pairs(0))), 0.0)


def test_without_the_true_pairs_the_second_mean_of_club_has_no_bias():
    p, n = Law.line(a=0.5), 4
    value, error = batches(p, club, n)
    assert abs(value - 0.25) < 4 * error
    everything, error = batches(p, lambda L: L.diagonal().mean() - L.mean(), n)
    assert abs(everything - 0.25 * (1 - 1 / n)) < 4 * error
    assert everything < 0.25 - 4 * error


@SEEDS
@pytest.mark.parametrize("n", [2, 7, 50])
def test_infonce_never_exceeds_log_n(n, seed):
    scores = 10 * normal(seed, "scores", size=(n, n))
    assert infonce(scores) < math.log(n)
    assert infonce(scores + 1e4 * torch.eye(n)) == pytest.approx(math.log(n), abs=1e-9)


@pytest.mark.parametrize("a", [0.5, 2.0, 20.0])
def test_infonce_is_below_the_information(a):
    p = Law.line(a=a)
    lower, low = batches(p, infonce, 8)
    assert lower + 4 * low < p.information


def test_with_many_pairs_infonce_finds_the_information():
    p, n = Law.line(), 500
    spread = math.expm1(2 * p.information)  # E p(t|x)/p(t) − 1; to first order it misses I by half of it over n
    value, error = batches(p, infonce, n, count=20)
    assert abs(value - p.information) < 4 * error + spread / n


def test_infonce_is_equation_16_with_the_marginal_of_the_batch():
    p, q = Law.drawn("p"), Law.drawn("q")
    L = q.matrix(*p.pairs(0))
    close(infonce(L), printed_eq16(L.diagonal(), L.exp().mean(dim=0).log()))
    close(infonce(L), infonce(L + normal(0, "of t", size=(1, N))))


@MATRICES
def test_gradients_of_a_matrix_are_right(estimate):
    L = normal(0, "scores", size=(4, 4)).requires_grad_()
    assert torch.autograd.gradcheck(estimate, L)
    assert L.grad is None
    estimate(L).backward()
    assert L.grad.abs().min() > 0


def test_gradients_of_the_others_are_right():
    m, s = (normal(0, name, size=(3, 2)).requires_grad_() for name in "ms")
    assert torch.autograd.gradcheck(vib, (m, s))
    assert torch.autograd.gradcheck(lambda a, b: barber_agakov(a[:, 0], b[0, 0]), (m, s))
    assert torch.autograd.gradcheck(lambda a, b: printed_eq16(a[:, 0], b[:, 1]), (m, s))


@pytest.mark.parametrize("given", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_half_precision_is_raised(given):
    kept = torch.float64 if given == torch.float64 else torch.float32
    L, row = torch.zeros(3, 3, dtype=given), torch.zeros(3, dtype=given)
    values = [infonce(L), club(L), vib(L, L), barber_agakov(row, 1.0), printed_eq16(row, row)]
    assert {(value.dtype, value.ndim) for value in values} == {(kept, 0)}


def test_a_meta_tensor_gives_a_meta_number():
    L, row = torch.zeros(3, 3, device="meta"), torch.zeros(3, device="meta")
    values = [infonce(L), club(L), vib(L, L), barber_agakov(row, 1.0), printed_eq16(row, row)]
    assert {(value.shape, value.device.type) for value in values} == {((), "meta")}


@MATRICES
@pytest.mark.parametrize("wrong", [torch.zeros(3, 2), torch.zeros(3), torch.zeros(1, 1), torch.eye(3).int(), [[0.0]]])
def test_what_is_no_matrix_is_refused(estimate, wrong):
    with pytest.raises(ValueError, match=r"must be a floating-point tensor of shape \(n, n\)"):
        estimate(wrong)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: barber_agakov(torch.zeros(2, 2), 1.0), "log_q"),
        (lambda: barber_agakov(torch.zeros(0), 1.0), "log_q"),
        (lambda: printed_eq16(torch.zeros(2, 2), torch.zeros(2)), "log_conditional"),
        (lambda: printed_eq16(torch.zeros(2), torch.zeros(2, 2)), "log_marginal"),
        (lambda: vib(torch.zeros(2), torch.zeros(2)), "mean"),
        (lambda: vib(torch.zeros(2, 3), torch.zeros(3)), "log_variance"),
    ],
)
def test_a_wrong_shape_names_the_argument(call, name):
    with pytest.raises(ValueError, match=rf"^{name} must "):
        call()
