import contextlib
import math
import re
import signal
import time
from functools import partial

import numpy as np
import pytest
import torch

from pdebook import check


def said(*args, **kwargs):
    with pytest.raises(check.NotYet) as caught:
        check.close(*args, **kwargs)
    return str(caught.value)


def test_a_right_answer_is_confirmed_in_words(capsys):
    check.close(torch.tensor([1.0, 2.0]), [1.0, 2.0], "both entries")
    check.that(True, "it holds")
    assert capsys.readouterr().out == "✓ both entries\n✓ it holds\n"


@pytest.mark.parametrize(
    ("got", "want", "words"),
    [
        (None, 1.0, "Does it end with `return`"),
        ("one", 1.0, "not str"),
        ([1.0, 2.0], 1.0, "the shape is (2,), it should be ()"),
        (np.nan, 1.0, "NaN"),
        (-3.0, 3.0, "the sign is wrong"),
        ([[1.0, 2.0], [3.0, 4.0]], [[1.0, 3.0], [2.0, 4.0]], "transpose"),
        ([1.0, 5.0], [1.0, 4.0], "you have 5 at index (1,), it should be 4"),
        (1j, 1.0, "not complex"),
        (3e-6, 3.0, "Yours is 1e-06 times the answer"),
        (3.002, 3.0, "right to one part in a thousand"),
        (3.004, 3.0, "Yours is 1.001 times the answer"),
    ],
)
def test_a_wrong_answer_hears_what_is_wrong(got, want, words):
    assert words in said(got, want, "the answer")


def test_the_hint_and_the_name_are_in_the_message():
    message = said(2.0, 3.0, "the rate", hint="Think of the angle.")
    assert message.startswith("the rate: you have 2, it should be 3.")
    assert message.endswith("Think of the angle.")


def test_a_condition_that_does_not_hold_is_named():
    with pytest.raises(check.NotYet, match=r"rates are positive: this does not hold. Look at the sign."):
        check.that(False, "rates are positive", hint="Look at the sign.")


def test_a_notebook_shows_one_line_instead_of_a_traceback():
    assert check.NotYet("the rate: wrong")._render_traceback_() == ["Not yet. the rate: wrong"]


def stub(k):
    raise NotImplementedError("f is yours to write")


def test_a_stub_speaks_for_itself_in_one_line():
    with pytest.raises(NotImplementedError, match="yours to write") as caught:
        check.number(stub, 1)
    assert caught.value._render_traceback_() == ["Not yet. f is yours to write"]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda k: None, "Does it end with `return`"),
        (lambda k: (9.8,), r"should be one number; you give back tuple of shape \(1,\)"),
        (lambda k: "9.8 s", "not str"),
        (lambda k: np.nan, "is nan, not a finite number"),
        (lambda k: 1 / (k - 3), "stopped with ZeroDivisionError: division by zero"),
        (lambda k: 1j, "not complex"),
    ],
)
def test_whatever_an_answer_does_is_said_in_one_sentence(answer, words):
    with pytest.raises(check.NotYet, match=words):
        check.number(answer, 3)


def test_an_infinite_answer_is_told_the_hint_as_well():
    with pytest.raises(check.NotYet, match=r"is inf, not a finite number\. What if k is 3\?"):
        check.number(lambda k: np.inf, 3, hint="What if k is 3?")


def test_any_answer_may_be_called_safely():
    def broken(states):
        return states[9]

    def silent(states):
        states.clear()

    assert check.call(sorted, [2, 1]) == [1, 2]
    with pytest.raises(check.NotYet, match="broken stopped with IndexError: list index out of range"):
        check.call(broken, [])
    with pytest.raises(check.NotYet, match=r"silent gave back None\. Does it end with `return`"):
        check.call(silent, [])


@pytest.mark.parametrize("ask", [check.call, check.number, check.array, check.truth])
def test_a_number_where_a_function_is_asked_is_said_in_words(ask):
    with pytest.raises(check.NotYet, match=r"A function is asked for, .* holds float 0\.25\..*`def`.* Look\."):
        ask(0.25, 1.0, hint="Look.")


def test_a_function_without_a_name_may_be_asked():
    assert check.number(partial(math.pow, 2.0), 3.0) == 8.0
    with pytest.raises(check.NotYet, match="your function stopped with ValueError"):
        check.array(partial(math.pow, 0.0), -1.0)


@pytest.mark.parametrize(
    ("argument", "words"),
    [
        (np.ones(8), "array of shape (8,)"),
        (torch.eye(2), "array of shape (2, 2)"),
        ([np.eye(2), np.eye(8)], "[array of shape (2, 2), array of shape (8, 8)]"),
        (np.array([1.0, 2.0]), "array([1., 2.])"),
        ([5, 5, 0], "[5, 5, 0]"),
        (3, "3"),
    ],
)
def test_a_long_argument_is_named_by_its_shape(argument, words):
    with pytest.raises(check.NotYet, match=re.escape(f"<lambda>({words}) should be one number")):
        check.number(lambda u: [1.0, 2.0], argument)


def test_a_number_in_any_dress_is_a_number():
    assert [check.number(lambda k, v=v: v, 0) for v in (2, 2.0, np.float32(2), torch.tensor(2.0))] == [2.0] * 4


@pytest.mark.parametrize(
    "answer",
    [
        [[1.0, 2.0], [3.0, 4.0]],
        np.array([[1, 2], [3, 4]], dtype=np.float32),
        torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True),
        [torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])],
    ],
)
def test_an_array_in_any_dress_is_an_array_in_double_precision(answer):
    found = check.array(lambda: answer)
    assert found.dtype == np.float64
    assert found.tolist() == [[1, 2], [3, 4]]


def test_python_floats_are_not_rounded_on_the_way():
    assert check.array(lambda: [0.1, torch.tensor(0.2, dtype=torch.float64)]).tolist() == [0.1, 0.2]


@pytest.mark.parametrize("answer", ["text", [[1.0], [1.0, 2.0]], {"a": 1}, [1j]])
def test_what_is_no_array_is_said_in_words(answer):
    with pytest.raises(check.NotYet, match="what answer gives back: expected"):
        check.array(named("answer", answer))


def test_an_array_with_nan_is_refused_with_the_hint():
    with pytest.raises(check.NotYet, match=r"answer gives back NaN or infinite values\. Divide by what"):
        check.array(named("answer", [math.nan]), hint="Divide by what?")


def named(name, value):
    def f():
        return value

    f.__name__ = name
    return f


@pytest.mark.parametrize("answer", [True, np.bool_(True), torch.tensor(True), 1])
def test_a_truth_in_any_dress_is_a_truth(answer):
    assert check.truth(lambda: answer) is True


@pytest.mark.parametrize(
    ("answer", "words"), [(np.array([True, False]), r"\.all\(\) or \.any\(\) missing"), ("yes", "you give back yes")]
)
def test_what_is_no_truth_is_said_in_words(answer, words):
    with pytest.raises(check.NotYet, match=words):
        check.truth(lambda: answer)


def test_a_hint_goes_with_an_error_and_infinity_may_be_allowed():
    with pytest.raises(check.NotYet, match=r"division by zero\. What if k is 0\?"):
        check.number(lambda k: 1 / k, 0, hint="What if k is 0?")
    assert check.number(lambda: math.inf, finite=False) == math.inf


def test_an_answer_that_does_not_end_is_stopped(monkeypatch):
    def for_ever():
        while True:
            with contextlib.suppress(Exception):
                pass

    monkeypatch.setattr(check, "LIMIT", 0.2)
    with pytest.raises(check.NotYet, match=r"for_ever ran for 0.2 seconds and was stopped. Does its loop end\? Count."):
        check.call(for_ever, hint="Count.")
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert check.call(lambda: 3) == 3


def test_an_answer_that_has_to_wait_for_the_processor_has_three_times_as_long(monkeypatch):
    """Sleep stands for what other programs compute."""

    def slow(seconds):
        time.sleep(seconds)
        return seconds

    monkeypatch.setattr(check, "LIMIT", 0.4)
    assert check.call(slow, 0.6) == 0.6
    with pytest.raises(check.NotYet, match="slow ran for"):
        check.call(slow, 60)
