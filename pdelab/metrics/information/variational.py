"""I(X; T) from log-densities that somebody chose or learned, in nats: bounds, and a formula that is none.

Pairs (x_i, t_i), i = 1…n, are independent draws from p(x, t). A matrix L has L[i, j] = log q(t_j | x_i): pairs that
belong together stand on its diagonal, the others are draws from p(x) p(t). Every function gives a 0-dim tensor that can
be differentiated. "Bound" is meant of its expectation over the draws, if p(t|x) has a density and the divergences named
are finite; the value of one batch scatters about it. If T is a function of X and has a density itself, then p(t|x) has
none and I = ∞.
"""

import math

import torch
from torch import Tensor

from pdelab.field import check_number, described
from pdelab.metrics.base import precise


def barber_agakov(log_q: Tensor, entropy: float | Tensor) -> Tensor:
    """E log q(x|t) + H(X) = I − E_t KL(p(x|t) ‖ q(x|t)): a lower bound (Barber and Agakov 2003).

    log_q: (n,), log q(x_i | t_i). entropy: H(X), the differential one where X has a density. Equal to I for q = p.

    >>> barber_agakov(torch.tensor([0.5, 0.25]).log(), entropy=math.log(4)).item()
    0.3465735912322998
    """
    check_number("entropy", entropy, shape=())
    return _vector(log_q, "log_q").mean() + entropy


def infonce(scores: Tensor) -> Tensor:
    """(1/n) Σ_j [s_jj − log (1/n) Σ_i e^{s_ij}] ≤ log n: a lower bound for any scores (van den Oord et al. 2018).

    scores: (n, n), s_ij of x_i with t_j; each t_j chooses among the x. Best for s = log p(t|x) plus any function of t.
    With s = log q(t|x) it is `printed_eq16` with the mean of the q(t|x_i) as q(t). Transpose to choose among the t.

    >>> infonce(100 * torch.eye(4)).item() == infonce(200 * torch.eye(4)).item() == torch.tensor(4.0).log().item()
    True
    """
    scores = _matrix(scores, "scores")
    return scores.diagonal().mean() - scores.logsumexp(dim=0).mean() + math.log(len(scores))


def club(log_conditional: Tensor) -> Tensor:
    """E_{p(x,t)} log q(t|x) − E_{p(x)p(t)} log q(t|x): an upper bound if q = p (Cheng et al. 2020).

    log_conditional: L, (n, n). The second mean is over the pairs i ≠ j. Cheng et al. print the mean over all n², in
    which the n true pairs are no draws from p(x) p(t); that makes the expectation 1 − 1/n times this one, which need
    not bound I. For q = p it is I + KL(p(x)p(t) ‖ p(x,t)); for other q it may fall below I: it is 0 where q ignores x.

    >>> club(torch.tensor([[0.0, -2.0], [-4.0, 0.0]])).item()
    3.0
    """
    L = _matrix(log_conditional, "log_conditional")
    n, own = len(L), torch.eye(len(L), dtype=torch.bool, device=L.device)
    return L.diagonal().mean() - L.masked_fill(own, 0.0).sum() / (n * (n - 1))


def vib(mean: Tensor, log_variance: Tensor) -> Tensor:
    """E_x KL(N(m, diag e^s) ‖ N(0, 1)) = E_x Σ_k ½ (m_k² + e^{s_k} − s_k − 1): an upper bound (Alemi et al. 2017).

    mean, log_variance: (n, feature), m and s of each x, for T ~ N(m, diag e^s). It is I + KL(p(t) ‖ N(0, 1)), so equal
    to I where all t together are N(0, 1).

    >>> vib(torch.tensor([[2.0], [0.0]]), torch.zeros(2, 1)).item()
    1.0
    """
    if not isinstance(mean, Tensor) or mean.ndim != 2 or 0 in mean.shape or not mean.is_floating_point():
        raise ValueError(f"mean must be a floating-point tensor of shape (n, feature); not {described(mean)}")
    good = isinstance(log_variance, Tensor) and log_variance.is_floating_point()
    if not good or log_variance.shape != mean.shape:
        raise ValueError(f"log_variance must have mean's shape, {tuple(mean.shape)}; not {described(log_variance)}")
    mean, log_variance = precise(mean), precise(log_variance)
    return (mean.square() + log_variance.expm1() - log_variance).sum(dim=1).mean() / 2


def printed_eq16(log_conditional: Tensor, log_marginal: Tensor) -> Tensor:
    """Ĩ = E_{p(x,t)} log q(t|x) − E_{p(x)p(t)} log q(t), called a variational lower bound.  (P1 eq 16)

    log_conditional: (n,), log q(t_i | x_i). log_marginal: (m,), log q(t_j); x does not occur in it.

    Ĩ = I − E_x KL(p(t|x) ‖ q(t|x)) + KL(p(t) ‖ q(t)), so it is
      a lower bound  if q(t) = p(t), or if q(t) = ∫ q(t|x) p(x) dx, since divergence shrinks under marginalisation;
      an upper bound if q(t|x) = p(t|x), which is VIB;
      neither        if q(t|x) and q(t) are two free models: it errs to the side of the worse one.
    A penalty to be minimised ought to be an upper bound. Minimised over q too, Ĩ has no least value: E log q(t|x) goes
    to −∞ as the variance of q(t|x) goes to 0.
    """
    return _vector(log_conditional, "log_conditional").mean() - _vector(log_marginal, "log_marginal").mean()


def _vector(value: Tensor, name: str) -> Tensor:
    if not isinstance(value, Tensor) or value.ndim != 1 or not len(value) or not value.is_floating_point():
        raise ValueError(f"{name} must be a floating-point tensor of shape (n,), n ≥ 1; not {described(value)}")
    return precise(value)


def _matrix(value: Tensor, name: str) -> Tensor:
    good = isinstance(value, Tensor) and value.ndim == 2 and value.is_floating_point()
    if not good or len(value) != value.shape[1] or len(value) < 2:
        raise ValueError(f"{name} must be a floating-point tensor of shape (n, n), n ≥ 2; not {described(value)}")
    return precise(value)
