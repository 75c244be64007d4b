"""What an argument may be, or an error that names it."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch

from pdelab.options import choose, function, instance, number, positive, seed_of, whole

COLOURS = {"red": 1, "blue": 2}


def test_a_mapping_gives_its_value_and_a_list_the_name_itself():
    assert choose("colour", "red", COLOURS) == 1
    assert choose("colour", "red", tuple(COLOURS)) == "red"


@pytest.mark.parametrize("known", [COLOURS, tuple(COLOURS), list(COLOURS)])
@pytest.mark.parametrize("given", ["green", "", None, 3])
def test_anything_else_is_refused_with_the_names_that_work(known, given):
    with pytest.raises(ValueError, match=rf"^colour must be one of red, blue; not {given!r}$"):
        choose("colour", given, known)


def test_a_slip_of_the_pen_is_told_what_was_meant():
    with pytest.raises(ValueError, match=r"not 'bleu' \(did you mean blue\?\)$"):
        choose("colour", "bleu", COLOURS)


@pytest.mark.parametrize("given", [3, np.int64(3), torch.tensor(3)])
def test_a_whole_number_may_be_of_any_kind(given):
    assert whole("n", given) == 3
    assert type(whole("n", given)) is int


@pytest.mark.parametrize("given", [0, -1, 2.5, 3.0, "3", None, True, math.nan, [3], torch.ones(2), torch.tensor(3.0)])
def test_what_is_no_size_is_refused(given):
    with pytest.raises(ValueError, match=r"^n must be a whole number of at least 1; not "):
        whole("n", given)


def test_a_size_that_fills_the_memory_is_refused_with_its_bound():
    with pytest.raises(ValueError, match=r"^n must be a whole number from 1 to 1000000; not 1000000000000$"):
        whole("n", 10**12)
    with pytest.raises(ValueError, match=r"^n must be a whole number from 1 to 4; not 5$"):
        whole("n", 5, most=4)
    assert seed_of(-3) == -3


@pytest.mark.parametrize("given", [1, 0.5, np.float32(0.5), np.float64(0.5), Fraction(1, 2)])
def test_a_number_is_given_back_as_a_plain_one(given):
    assert positive("dt", given) == given
    assert type(positive("dt", given)) in (int, float)


def test_a_number_that_no_float_holds_is_refused():
    with pytest.raises(ValueError, match="dt must be a positive number"):
        positive("dt", 10**400)


@pytest.mark.parametrize("given", [math.nan, math.inf, "1", None, True, 1j, [1.0]])
def test_what_is_no_finite_number_is_refused(given):
    with pytest.raises(ValueError, match=r"^dt must be a positive number; not "):
        positive("dt", given)
    with pytest.raises(ValueError, match=r"^x must be a finite number of at least 0 and of at most 1; not "):
        number("x", given, 0, 1)


def test_the_ends_belong_to_the_range_unless_it_begins_above_them():
    assert number("x", 0.0, 0.0, 1.0) == 0
    assert number("x", 1, 0.0, 1.0) == 1
    with pytest.raises(ValueError, match="positive number"):
        positive("x", 0.0)


def test_a_function_and_an_instance_are_themselves_or_refused():
    assert function("f", len) is len
    assert instance("x", 3, str, int) == 3
    with pytest.raises(ValueError, match=r"^f must be a function; not 3$"):
        function("f", 3)
    with pytest.raises(ValueError, match=r"^x must be a str or int; not float$"):
        instance("x", 3.0, str, int)
