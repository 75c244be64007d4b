"""One of a few names, or an error that lists them."""

import pytest

from pdelab.options import choose

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
