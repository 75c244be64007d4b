"""Bounds of I(X; T) where everything is known: x ~ N(0, 1), t = A x + √V z.

The samples of `pairs` have exactly the moments of the law: means of quadratic functions of them, and the logarithms of
Gaussian densities are such, are the expectations themselves, to rounding.
"""

import math

import pytest
import torch
from torch.distributions import Independent, MultivariateNormal, Normal, kl_divergence

from pdelab.metrics.information.variational import (
    GaussianConditional,
    barber_agakov,
    club,
    infonce,
    leave_one_out,
    printed_eq16,
    reparameterised,
    vib,
)
from pdelab.seeds import normal, stream

INPUTS, OUTPUTS, N = 3, 2, 60
SEEDS = pytest.mark.parametrize("seed", range(5))
MATRICES = pytest.mark.parametrize("estimate", [infonce, club, leave_one_out])


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
    # and descent finds the way
    x, t = p.pairs(0)
    q = GaussianConditional(1, 1).double()
    with torch.no_grad():
        for weight in q.parameters():
            weight.zero_()
    descent = torch.optim.SGD(q.parameters(), lr=0.05)
    for _ in range(60):
        descent.zero_grad()
        value = printed_eq16(q.log_prob(t, x), p.marginal.log_prob(t))
        if value < -490:
            break
        value.backward()
        descent.step()
    assert value < -490


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
def test_the_information_lies_between_infonce_and_leave_one_out(a):
    p = Law.line(a=a)
    (lower, low), (upper, up) = batches(p, infonce, 8), batches(p, leave_one_out, 8)
    assert lower + 4 * low < p.information
    assert upper - 4 * up > p.information


def test_with_many_pairs_infonce_and_leave_one_out_find_the_information():
    p, n = Law.line(), 500
    spread = math.expm1(2 * p.information)  # E p(t|x)/p(t) − 1; to first order both miss I by half of it over n
    for estimate in (infonce, leave_one_out):
        value, error = batches(p, estimate, n, count=20)
        assert abs(value - p.information) < 4 * error + spread / n


def test_infonce_is_equation_16_with_the_marginal_of_the_batch():
    p, q = Law.drawn("p"), Law.drawn("q")
    L = q.matrix(*p.pairs(0))
    close(infonce(L), printed_eq16(L.diagonal(), L.exp().mean(dim=0).log()))
    close(infonce(L), infonce(L + normal(0, "of t", size=(1, N))))


def test_leave_one_out_is_its_formula():
    L = normal(0, "scores", size=(3, 3))
    want = sum(L[j, j] - (sum(L[i, j].exp() for i in range(3) if i != j) / 2).log() for j in range(3)) / 3
    close(leave_one_out(L), want)


def model(hidden=None, inputs=INPUTS, outputs=OUTPUTS):
    """Weights of a seed."""
    q = GaussianConditional(inputs, outputs, hidden).double()
    for k, weight in enumerate(q.parameters()):
        weight.data = normal(0, "weights", k, size=weight.shape)
    return q


@pytest.mark.parametrize("hidden", [None, 5])
def test_the_model_is_a_normal_density_and_its_matrix_holds_every_pair(hidden):
    q, (x, t) = model(hidden), Law.drawn("p").pairs(0)
    normals = Independent(Normal(q.mean(x).unsqueeze(1), (q.log_variance / 2).exp()), 1)
    close(q.matrix(t, x), normals.log_prob(t.unsqueeze(0)))
    close(q.log_prob(t, x), q.matrix(t, x).diagonal())


def test_the_matrix_keeps_its_digits_where_the_variance_is_small():
    q = GaussianConditional(1, 1)
    q.log_variance.data.fill_(math.log(1e-8))
    t = 1 + 1e-4 * torch.arange(4.0).unsqueeze(1)
    with torch.no_grad():
        torch.testing.assert_close(q.matrix(t, t).diagonal(), q.log_prob(t, t), rtol=1e-5, atol=0)


def test_a_fitted_model_gives_club_its_closed_form():
    p = Law.line(a=0.8)
    x, t = p.pairs(0)
    q = model(inputs=1, outputs=1)
    fit = torch.optim.LBFGS(q.parameters(), max_iter=200, line_search_fn="strong_wolfe", tolerance_grad=1e-10)

    def loss():
        fit.zero_grad()
        value = -q.log_prob(t, x).mean()
        value.backward()
        return value

    fit.step(loss)
    close(club(q.matrix(t, x)).detach(), 0.64 * N / (N - 1), atol=1e-6)
    close(q.log_variance.detach(), torch.zeros(1), atol=1e-6)


def test_draws_have_their_mean_and_variance_and_pass_gradients_on():
    mean = torch.tensor([1.0, -2.0]).expand(20_000, 2).clone().requires_grad_()
    log_variance = torch.tensor([0.0, 2.0]).expand(20_000, 2).clone().requires_grad_()
    t = reparameterised(mean, log_variance, stream(0, "draws"))
    deviation = (log_variance[0] / 2).exp()
    assert ((t.mean(dim=0) - mean[0]).abs() < 4 * deviation / math.sqrt(20_000)).all()
    assert ((t.std(dim=0) / deviation - 1).abs() < 4 / math.sqrt(40_000)).all()
    t.sum().backward()
    assert (mean.grad == 1).all()
    torch.testing.assert_close(log_variance.grad, ((t - mean) / 2).detach())
    assert torch.equal(t, reparameterised(mean, log_variance, stream(0, "draws")))


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
    q = model()
    assert torch.autograd.gradcheck(lambda t, x: club(q.matrix(t, x)), (s, normal(0, "x", size=(3, 3))))


@pytest.mark.parametrize("given", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_half_precision_is_raised(given):
    kept = torch.float64 if given == torch.float64 else torch.float32
    L, row = torch.zeros(3, 3, dtype=given), torch.zeros(3, dtype=given)
    values = [infonce(L), club(L), leave_one_out(L), vib(L, L), barber_agakov(row, 1.0), printed_eq16(row, row)]
    assert {(value.dtype, value.ndim) for value in values} == {(kept, 0)}
    assert reparameterised(L, L, stream(0)).dtype == kept
    assert model().matrix(L[:, :2], L).dtype == torch.float64


def test_a_meta_tensor_gives_a_meta_number():
    L, row = torch.zeros(3, 3, device="meta"), torch.zeros(3, device="meta")
    values = [infonce(L), club(L), leave_one_out(L), vib(L, L), barber_agakov(row, 1.0), printed_eq16(row, row)]
    assert {(value.shape, value.device.type) for value in values} == {((), "meta")}
    assert reparameterised(L, L, stream(0)).is_meta
    assert GaussianConditional(3, 3, 4).to("meta").matrix(L, L).shape == (3, 3)


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
        (lambda: reparameterised(torch.zeros(2, 3), torch.zeros(2, 1), stream(0)), "log_variance"),
        (lambda: GaussianConditional(0, 1), "inputs"),
        (lambda: GaussianConditional(1, 1, hidden=0), "hidden"),
        (lambda: model().matrix(torch.zeros(4, 3), torch.zeros(4, 3)), "t"),
        (lambda: model().log_prob(torch.zeros(4, 2), torch.zeros(4, 2)), "x"),
        (lambda: model().log_prob(torch.zeros(1, 2), torch.zeros(4, 3)), "t"),
    ],
)
def test_a_wrong_shape_names_the_argument(call, name):
    with pytest.raises(ValueError, match=rf"^{name} must "):
        call()
