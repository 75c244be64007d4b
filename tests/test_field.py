import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pdelab.field import BOUNDARIES, check_field, laplacian, laplacian_eigenvalues


def matrix(n, boundary):
    """The Laplacian as a matrix, one unit vector at a time."""
    columns = torch.eye(n, dtype=torch.float64).reshape(n, n, 1)  # a batch of unit fields
    return laplacian(columns, boundary).squeeze(-1).T


@pytest.mark.parametrize("boundary", BOUNDARIES)
@given(n=st.integers(2, 40))
def test_eigenvalues_are_those_of_the_matrix(boundary, n):
    found = torch.linalg.eigvalsh(matrix(n, boundary)).flip(0)
    assert torch.allclose(found, laplacian_eigenvalues(n, boundary), rtol=1e-10, atol=1e-10 * n**2)


@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_laplacian_tends_to_the_second_derivative_at_second_order(boundary):
    mode = {"reflecting": lambda x: torch.cos(2 * math.pi * x), "absorbing": lambda x: torch.sin(2 * math.pi * x)}
    f = mode.get(boundary, mode["absorbing"])
    errors = []
    for n in (32, 64):
        x = ((torch.arange(n, dtype=torch.float64) + 0.5) / n).reshape(1, n, 1)
        errors.append((laplacian(f(x), boundary) + (2 * math.pi) ** 2 * f(x)).abs().max().item())
    assert math.log2(errors[0] / errors[1]) == pytest.approx(2, abs=0.05)


def test_laplacian_mixes_tokens_and_neither_batch_nor_features():
    u = torch.zeros(3, 8, 5, dtype=torch.float64)
    u[1, 4, 2] = 1
    moved = laplacian(u).nonzero()
    assert set(moved[:, 0].tolist()) == {1}
    assert set(moved[:, 1].tolist()) == {3, 4, 5}
    assert set(moved[:, 2].tolist()) == {2}


@pytest.mark.parametrize(
    ("u", "words"),
    [
        ([[1.0]], "torch.Tensor"),
        (torch.ones(3, 4), r"\(3, 4\)"),
        (torch.ones(1, 0, 4), "none of them 0"),
        (torch.ones(1, 2, 3, dtype=torch.long), "floating-point"),
        (torch.full((1, 2, 3), math.nan), "NaN"),
    ],
)
def test_what_is_not_a_field_is_refused_by_name(u, words):
    with pytest.raises(ValueError, match=f"u0.*{words}"):
        check_field(u, "u0")


def test_unknown_boundary_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match=r"reflecting, absorbing, periodic.*'open'"):
        laplacian(torch.ones(1, 2, 3), "open")


def test_a_field_on_the_meta_device_passes_through():
    u = torch.ones(2, 8, 4, device="meta")
    check_field(u)
    assert laplacian(u, "absorbing").shape == u.shape
