import pytest
import torch
from systems import field, padded

from pdelab.metrics.outliers import outliers


def with_giants(tokens=9, places=((0, 0), (1, 0), (2, 4)), times=100.0):
    """Tokens of length 1 in random directions, and a few that are `times` as long."""
    u = torch.nn.functional.normalize(field(4, tokens, 16), dim=-1)
    for example, token in places:
        u[example, token] *= times
    return u


def test_exactly_the_tokens_that_were_made_long_are_found_with_their_length():
    found = outliers(with_giants())
    assert torch.stack([found.example, found.token], dim=1).tolist() == [[0, 0], [1, 0], [2, 4]]
    torch.testing.assert_close(found.size, torch.full((3,), 100.0, dtype=torch.float64))
    torch.testing.assert_close(found.times, found.size)
    assert str(found) == (
        "token 0 in 2 of 4 examples, 100 times the median; token 4 in 1 of 4 examples, 100 times the median"
    )


def test_the_scale_of_a_field_does_not_matter_and_each_sequence_has_its_own():
    u = with_giants() * torch.tensor([1e-3, 1.0, 50.0, 1e6], dtype=torch.float64).reshape(4, 1, 1)
    assert outliers(u).token.tolist() == [0, 0, 4]
    torch.testing.assert_close(outliers(u).times, torch.full((3,), 100.0, dtype=torch.float64))


def test_the_rule_is_strict_at_its_factor():
    u = with_giants(places=[(0, 3)], times=8.0)
    assert len(outliers(u, factor=7.9)) == 1
    assert len(outliers(u, factor=8.1)) == 0
    assert str(outliers(u, factor=8.1)) == "no outlier tokens"


def test_gaussian_tokens_are_none_and_a_lone_token_is_none():
    assert len(outliers(field(32, 64, 64))) == 0
    assert len(outliers(1e6 * field(3, 1, 4))) == 0


def test_padding_is_neither_counted_nor_found_and_places_are_counted_from_the_first_real_token():
    rows = [one.clone() for one in with_giants(6, [(0, 0), (1, 0)]).split(1)]
    u, mask = padded([rows[0], rows[1][:, :4]], (0, 3), tokens=7, fill=1e9)
    found = outliers(u, mask)
    assert found.token.tolist() == [0, 3]
    assert found.place.tolist() == [0, 0]
    assert str(found).startswith("token 0 in 2 of 2 examples")


def test_many_places_are_counted_and_not_listed():
    found = outliers(with_giants(places=[(0, 0), (1, 1), (2, 2), (3, 3)]))
    assert str(found).endswith("; 1 more places")


def test_a_factor_below_one_is_refused():
    with pytest.raises(ValueError, match="factor must be a finite number of at least 1"):
        outliers(field(), factor=0.5)
