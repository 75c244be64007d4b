import math
import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from systems import SEQUENCES, assert_padding_changes_nothing, field, fields, matrix_of, padded
from torch._subclasses.fake_tensor import FakeTensorMode

from pdelab.field import (
    BOUNDARIES,
    all_true,
    centred,
    check_boundary,
    check_field,
    check_mask,
    check_number,
    check_state,
    keep_real,
    laplacian,
    laplacian_eigenvalues,
    laplacian_modes,
    lengths,
    mean_square,
    positions,
    token_mean,
)


def laplacian_matrix(n, boundary):
    return matrix_of(lambda u: laplacian(u, boundary), n, 1)


@pytest.mark.parametrize("boundary", BOUNDARIES)
@given(n=st.integers(1, 40))
def test_eigenvalues_are_those_of_the_matrix(boundary, n):
    found = torch.linalg.eigvalsh(laplacian_matrix(n, boundary)).flip(0)
    assert torch.allclose(found, laplacian_eigenvalues(n, boundary), rtol=1e-10, atol=1e-10 * n**2)


@pytest.mark.parametrize("boundary", BOUNDARIES)
@given(n=st.integers(1, 40))
def test_each_mode_is_multiplied_by_the_eigenvalue_of_the_same_place(boundary, n):
    modes, eigenvalues = laplacian_modes(n, boundary), laplacian_eigenvalues(n, boundary)
    columns = modes.T.unsqueeze(-1)  # (mode, token, 1)
    difference = laplacian(columns, boundary) - eigenvalues.reshape(-1, 1, 1) * columns
    assert difference.abs().max() < 1e-12 * n**2


@pytest.mark.parametrize("boundary", BOUNDARIES)
@given(n=st.integers(1, 40))
def test_modes_are_orthonormal_and_go_from_slow_to_fast(boundary, n):
    modes = laplacian_modes(n, boundary)
    assert torch.allclose(modes.T @ modes, torch.eye(n, dtype=torch.float64), atol=1e-12)
    assert (laplacian_eigenvalues(n, boundary).diff() <= 1e-9 * n**2).all()


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


@given(u=fields())
def test_summation_by_parts_holds_with_reflecting_ends(u):
    """⟨u, ∂²u⟩ = −∫|∂u|² dx: nothing is left at the ends."""
    n = u.shape[1]
    gradient = u.diff(dim=1) * n
    energy = (u * laplacian(u)).sum(dim=(1, 2)) / n
    assert torch.allclose(energy, -(gradient**2).sum(dim=(1, 2)) / n, rtol=1e-12, atol=1e-9)


@pytest.mark.parametrize("boundary", ["reflecting", "periodic"])
@given(u=fields())
def test_laplacian_integrates_to_zero_where_nothing_can_leave(boundary, u):
    assert token_mean(laplacian(u, boundary)).abs().max() < 1e-11 * 10 * u.shape[1] ** 2


@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_padding_changes_nothing_for_the_laplacian(boundary):
    u, mask = padded()
    alone = [laplacian(one, boundary) for one in SEQUENCES]
    assert_padding_changes_nothing(laplacian(u, boundary, mask), mask, alone)


def test_tokens_sit_at_the_centres_of_their_cells():
    u, mask = padded()
    assert positions(torch.ones(1, 4, 1)).tolist() == [[0.125, 0.375, 0.625, 0.875]]
    x = positions(u, mask)
    for row, one in enumerate(SEQUENCES):
        assert torch.equal(x[row, mask[row]], positions(one)[0])
    assert lengths(u, mask).flatten().tolist() == [6, 4, 1, 4]
    assert lengths(u, None).flatten().tolist() == [7, 7, 7, 7]


def test_token_mean_is_the_mean_over_the_real_tokens():
    u, mask = padded()
    for row, one in enumerate(SEQUENCES):
        assert torch.allclose(token_mean(u, mask)[row, 0], one[0].mean(dim=0), atol=1e-15)
    assert torch.allclose(token_mean(field()), field().mean(dim=1, keepdim=True), atol=1e-15)


def test_token_mean_is_the_midpoint_rule_for_the_integral():
    errors = []
    for n in (16, 32):
        x = positions(torch.ones(1, n, 1, dtype=torch.float64)).unsqueeze(-1)
        errors.append(abs(token_mean(x.exp()).item() - (math.e - 1)))
    assert math.log2(errors[0] / errors[1]) == pytest.approx(2, abs=0.01)


def test_what_is_left_without_the_mean_is_that_of_each_sequence_by_itself():
    u, mask = padded()
    rest = centred(u, mask)
    for row, one in enumerate(SEQUENCES):
        assert torch.allclose(rest[row, mask[row]], one[0] - one[0].mean(dim=0), atol=1e-15)
        assert torch.allclose(mean_square(rest, mask)[row], one.var(dim=1, correction=0).sum(), atol=1e-15)
    assert (rest[~mask] == 0).all()
    assert torch.allclose(centred(field()), field() - token_mean(field()), atol=1e-15)


def test_nothing_is_left_of_equal_tokens_without_their_mean():
    u = torch.full((1, 7, 3), 0.1) + torch.arange(3)  # 7 times 0.1 over 7 is not 0.1 in floats
    mask = torch.tensor([[False, True, True, True, True, True, False]])
    assert (centred(u) == 0).all()
    assert (centred(u, mask) == 0).all()


def test_nothing_is_left_of_what_a_padded_place_held():
    u, mask = padded(fill=math.inf)
    assert torch.isfinite(keep_real(u, mask)).all()
    assert (keep_real(u, mask)[~mask] == 0).all()
    assert torch.equal(keep_real(u, mask)[mask], u[mask])
    assert keep_real(u, None) is u


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dtype_follows_the_field(dtype):
    u, mask = field(dtype=dtype), torch.ones(2, 5, dtype=torch.bool)
    made = [laplacian(u, b, m) for b in BOUNDARIES for m in (None, mask)]
    made += [
        centred(u),
        centred(u, mask),
        mean_square(u),
        token_mean(u, mask),
        positions(u, mask),
        lengths(u, None),
        lengths(u, mask),
    ]
    assert {x.dtype for x in made} == {dtype}


@pytest.mark.parametrize(
    ("u", "words"),
    [
        ([[1.0]], "torch.Tensor"),
        (torch.ones(3, 4), r"\(3, 4\)"),
        (torch.ones(1, 0, 4), "none of them 0"),
        (torch.ones(1, 2, 3, dtype=torch.long), "floating-point"),
        (torch.full((1, 2, 3), math.nan), "NaN"),
        (torch.full((1, 2, 3), -math.inf), "infinite"),
        (torch.ones(1, 2, 4), r"shape \(batch, token, 3\)"),
    ],
)
def test_what_is_not_a_field_is_refused_by_name(u, words):
    with pytest.raises(ValueError, match=f"u0.*{words}"):
        check_field(u, "u0", width=3)


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        ([[True, True, True]], "list"),
        (torch.ones(1, 3), "float32"),
        (torch.ones(3, 1, dtype=torch.bool), r"\(1, 3\).*\(3, 1\)"),
        (torch.zeros(1, 3, dtype=torch.bool), "without a real token"),
        (torch.tensor([[True, False, True]]), "holes"),
    ],
)
def test_what_is_not_a_mask_is_refused_by_name(mask, words):
    with pytest.raises(ValueError, match=f"mask.*{words}"):
        check_mask(mask, torch.ones(1, 3, 2))


@pytest.mark.parametrize("mask", [None, torch.tensor([[False, True, True]]), torch.tensor([[True, True, False]])])
def test_padding_before_or_after_is_a_mask(mask):
    check_mask(mask, torch.ones(1, 3, 2))


@pytest.mark.parametrize("function", [laplacian, token_mean, centred])
@pytest.mark.parametrize("u", [torch.ones(3, 4), torch.ones(1, 2, 3, 4), torch.ones(1, 0, 4)])
def test_a_field_of_wrong_rank_or_without_tokens_is_refused(function, u):
    with pytest.raises(ValueError, match=r"^u must"):
        function(u)


@pytest.mark.parametrize(
    "call",
    [
        check_boundary,
        lambda boundary: laplacian(torch.ones(1, 2, 3), boundary),
        lambda boundary: laplacian_eigenvalues(3, boundary),
        lambda boundary: laplacian_modes(3, boundary),
    ],
)
def test_unknown_boundary_is_refused_with_the_known_ones(call):
    with pytest.raises(ValueError, match=r"boundary.*reflecting, absorbing, periodic.*'open'"):
        call("open")


@pytest.mark.parametrize("function", [laplacian_eigenvalues, laplacian_modes])
@pytest.mark.parametrize("n", [0, -3])
def test_a_grid_without_tokens_is_refused(function, n):
    with pytest.raises(ValueError, match=r"^n must"):
        function(n)


@pytest.mark.parametrize("boundary", BOUNDARIES)
@pytest.mark.parametrize("masked", [False, True])
def test_a_field_on_the_meta_device_passes_through(boundary, masked):
    u = torch.ones(2, 8, 4, device="meta")
    mask = torch.ones(2, 8, dtype=torch.bool, device="meta") if masked else None
    check_field(u)
    check_mask(mask, u)
    assert laplacian(u, boundary, mask).shape == u.shape
    assert token_mean(u, mask).shape == (2, 1, 4)
    assert positions(u, mask).shape == (2, 8)


MASK = torch.arange(6) < torch.tensor([[6], [4]])


def test_a_mask_that_was_good_is_looked_at_again_once_it_has_changed():
    u, mask = torch.ones(2, 6, 3), MASK.clone()
    check_state(u, mask)
    check_state(u, mask)
    mask[0, 2] = False
    with pytest.raises(ValueError, match="mask has holes"):
        check_state(u, mask)
    mask[0, 2] = True
    mask[1].fill_(False)  # through a view
    with pytest.raises(ValueError, match="mask leaves a sequence without a real token"):
        laplacian(u, mask=mask)


def test_a_good_mask_is_good_for_fields_of_its_own_shape_only():
    check_state(torch.ones(2, 6, 3), MASK)
    for u in (torch.ones(3, 6, 3), torch.ones(2, 5, 3)):
        with pytest.raises(ValueError, match="mask must be a bool tensor of shape"):
            check_state(u, MASK)


def test_a_mask_without_a_count_of_its_changes_is_looked_at_every_time():
    with torch.inference_mode():
        mask = MASK.clone()
        check_state(torch.ones(2, 6, 3), mask)
        mask[0, 2] = False
        with pytest.raises(ValueError, match="mask has holes"):
            check_state(torch.ones(2, 6, 3), mask)


def test_threads_look_at_their_own_masks():
    found = []

    def look(mask):
        for _ in range(200):
            try:
                check_state(torch.ones(2, 6, 3), mask)
                found.append(mask is good)
            except ValueError:
                found.append(mask is bad)

    good, bad = MASK.clone(), MASK.clone()
    bad[0, 2] = False
    threads = [threading.Thread(target=look, args=(mask,)) for mask in (good, bad, good, bad)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 800


def test_a_mask_is_taken_as_it_is_where_it_has_no_values_to_look_at():
    u = field(2, 6, 3)
    apart = torch.vmap(lambda v, m: laplacian(v[None], mask=m[None])[0])(u, MASK)
    assert torch.equal(apart, laplacian(u, mask=MASK))
    compiled = torch.compile(lambda v, m: laplacian(v, mask=m), backend="eager", fullgraph=True)
    assert torch.equal(compiled(u, MASK), laplacian(u, mask=MASK))


def test_only_the_lack_of_values_is_no_answer():
    with FakeTensorMode():
        assert all_true(torch.ones(2, dtype=torch.bool)) is None

    class Broken(torch.Tensor):
        def all(self):
            raise RuntimeError("the device is gone")

    with pytest.raises(RuntimeError, match="the device is gone"):
        all_true(torch.ones(2, dtype=torch.bool).as_subclass(Broken))


@pytest.mark.parametrize("shape", [(), ("batch",), ("batch", 1, 1)])
def test_one_number_is_no_tensor_of_a_higher_rank(shape):
    for rank in range(5):
        value = torch.ones((1,) * rank)
        if rank <= max(1, len(shape)):
            check_number("dt", value, shape=shape)
        else:
            with pytest.raises(ValueError, match="dt must be one number"):
                check_number("dt", value, shape=shape)


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("boundary", BOUNDARIES)
def test_half_precision_knows_more_than_256_tokens(half, boundary):
    n = 700
    mask = torch.arange(n) < torch.tensor([[n], [300]])
    u = (torch.randn(2, n, 1, generator=torch.Generator().manual_seed(0)) * 0.01).to(half)
    fine = laplacian(u.float(), boundary, mask)
    torch.testing.assert_close(laplacian(u, boundary, mask).float(), fine, rtol=1e-2, atol=1e-3)
    assert positions(u, mask)[0].unique().numel() == n
    assert lengths(u, mask).flatten().tolist() == [n, 300]
    torch.testing.assert_close(token_mean(u, mask).float(), token_mean(u.float(), mask), rtol=1e-2, atol=1e-5)


def test_a_mask_may_be_mapped_over_inside_of_a_gradient():
    u, mask = torch.randn(3, 2, 4, 2), torch.ones(3, 2, 4, dtype=torch.bool)
    mask[:, 1, 3:] = False
    each = torch.func.vmap(torch.func.grad(lambda u, mask: laplacian(u, mask=mask).square().sum()))(u, mask)
    one = torch.func.grad(lambda u: laplacian(u, mask=mask[0]).square().sum())(u[0])
    torch.testing.assert_close(each[0], one)
