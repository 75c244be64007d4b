"""Mutual information where it is known in closed form: Gaussian variables and Gaussian channels."""

import torch
from torch import Tensor

from pdelab.field import check_number, described
from pdelab.metrics.information.estimate import Estimate, sample_pair
from pdelab.options import flags, whole


def gaussian_information(covariance: Tensor, split: int) -> Tensor:
    """I(X; Y) = ½ log det Σ_X + ½ log det Σ_Y − ½ log det Σ for jointly Gaussian (X, Y), X the first `split` entries.

    In one and one dimension −½ log(1 − ρ²). Differentiable; infinite where Σ is singular and Σ_X, Σ_Y are not.

    >>> round(gaussian_information(torch.tensor([[1.0, 0.6], [0.6, 1.0]]), 1).item(), 4)
    0.2231
    """
    _check_covariance(covariance)
    split = whole("split", split, 1, len(covariance) - 1)
    parts = covariance[:split, :split], covariance[split:, split:], covariance
    x, y, joint = (torch.linalg.slogdet(part) for part in parts)
    if not covariance.is_meta and min(x.sign, y.sign) <= 0:
        raise ValueError("covariance must be positive definite in X and in Y")
    return (x.logabsdet + y.logabsdet - joint.logabsdet) / 2


def gaussian_channel(covariance: Tensor, noise: float | Tensor) -> Tensor:
    """I(T; T + σZ) = ½ log det(1 + Σ_T/σ²) for Gaussian T with covariance Σ_T and noise σ; Z is N(0, 1).

    It grows with the scale of T: information at fixed noise measures, among other things, how large T is.
    """
    _check_covariance(covariance)
    check_number("noise", noise, 0, above=True, shape=())
    return torch.log1p(torch.linalg.eigvalsh(covariance) / noise**2).sum() / 2


def _check_covariance(covariance: Tensor) -> None:
    square = isinstance(covariance, Tensor) and covariance.ndim == 2 and covariance.shape[0] == covariance.shape[1] > 0
    if not square or not covariance.is_floating_point():
        raise ValueError(f"covariance must be a square matrix of floats; not {described(covariance)}")
    if covariance.is_meta:
        return
    rounding = 10 * len(covariance) * torch.finfo(covariance.dtype).eps * covariance.abs().amax()
    even = torch.isfinite(rounding) and (covariance - covariance.T).abs().amax() <= rounding
    if not even or torch.linalg.eigvalsh(covariance.detach()).amin() < -rounding:
        raise ValueError("covariance must be finite and symmetric without negative eigenvalues")


def gaussian_fit(x: Tensor, y: Tensor, *, correct: bool = True) -> Estimate:
    """I of the Gaussian that has the samples' covariance: for any samples it sees what is linear, and no more.

    With the true covariance it is a lower bound of I if x or y is Gaussian. For Gaussian samples the mean of
    log det Σ̂ − log det Σ is Σ_{i=1…d} ψ((n − i)/2) + d log(2/(n − 1)): the bias that follows is taken off, unless
    correct=False.
    """
    flags(correct=correct)
    x, y = sample_pair(x, y)
    n, dx, dy = len(x), x.shape[1], y.shape[1]
    if n < dx + dy + 2:
        raise ValueError(f"x and y must have at least {dx + dy + 2} samples for {dx} + {dy} features; not {n}")
    joint = torch.cat([x, y], dim=1)
    joint = joint - joint.mean(dim=0)
    covariance = joint.T @ joint / (n - 1)
    pieces = slice(0, dx), slice(dx, None), slice(None)
    try:
        densities = [_log_density(joint[:, piece], covariance[piece, piece]) for piece in pieces]
    except torch.linalg.LinAlgError as error:
        raise ValueError(
            "x and y have features that are linear functions of others; leave those out (if y is such a function of x, "
            "their information is infinite)"
        ) from error
    pointwise = densities[2] - densities[0] - densities[1]
    half = torch.digamma((n - torch.arange(1, dx + dy + 1, dtype=torch.float64)) / 2)
    bias = (half[:dx].sum() + half[:dy].sum() - half.sum()).item() / 2
    return Estimate.mean_of(pointwise, "Gaussian fit", less=bias if correct else 0.0)


def _log_density(x: Tensor, covariance: Tensor) -> Tensor:
    """log N(x; 0, Σ) without the constant (2π)^{−d/2}, which cancels in a mutual information; (n,)."""
    factor = torch.linalg.cholesky(covariance)
    white = torch.linalg.solve_triangular(factor, x.T, upper=False)
    return -white.square().sum(dim=0) / 2 - factor.diagonal().log().sum()
