"""Mutual information where it is known in closed form: Gaussian variables and Gaussian channels."""

import torch
from torch import Tensor

from pdelab.field import check_number, described
from pdelab.options import whole


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
