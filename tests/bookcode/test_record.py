import dataclasses
import json
import math
import re
import subprocess
import sys
import time

import numpy as np
import pytest

from pdebook.ledger.record import (
    DamagedResult,
    Result,
    Store,
    _seal,
    in_words,
    interval,
    mean_and_half,
    size_of,
    summarise,
    value_of,
)
from pdelab import files
from pdelab.datasets.listops_grammar import GRAMMARS
from pdelab.files import write_atomically


def result(seed=0, status="finished", figures=None, **changes):
    given = {"experiment": "e", "configuration": {"n": 4}, "scale": "book", "seed": seed, "status": status}
    return Result(**given | {"figures": figures or {"loss": 1.0}, "controls": {"loss": 2.0}} | changes)


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path)


def test_what_is_saved_is_what_is_read(store):
    saved = result(figures={"loss": 0.1, "layers": [1.0, math.inf, -math.inf]})
    assert store.read(store.save(saved)) == saved


def test_nan_survives_the_file(store):
    read = store.read(store.save(result(status="diverged", figures={"loss": math.nan})))
    assert math.isnan(read.figures["loss"])


def test_a_result_says_where_it_comes_from():
    assert {"pdelab", "python", "torch", "numpy", "system", "commit"} == result().environment.keys()


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda text: text[: len(text) // 2], "not a whole result file"),
        (lambda text: "", "not a whole result file"),
        (lambda text: "[1, 2]", "not a whole result file"),
        (lambda text: text.replace('"loss": 1.0', '"loss": NaN'), "not a whole result file"),
        (lambda text: text.replace('"loss": 1.0', '"loss": 0.5'), "changed after it was written"),
        (lambda text: text.replace('"seed": 0', '"seed": 7'), "changed after it was written"),
    ],
)
def test_a_damaged_file_is_reported_and_never_read(store, damage, words):
    path = store.save(result())
    path.write_text(damage(path.read_text()))
    with pytest.raises(DamagedResult, match=words):
        store.load("e")
    assert words in str(store.survey()[1][path])


def test_a_file_under_another_name_is_reported(store):
    path = store.save(result(seed=1))
    path.rename(path.with_name("book-seed2.json"))
    with pytest.raises(DamagedResult, match="seed 1"):
        store.load("e")


def test_the_project_s_own_results_are_whole():
    store = Store()
    assert store.survey()[1] == {}
    assert len(store.load("heat_ends")) == 5


def test_loading_sorts_seeds_and_knows_scales(store):
    for seed in (2, 0, 1):
        store.save(result(seed))
    store.save(result(5, scale="smoke"))
    assert [r.seed for r in store.load("e", "book")] == [0, 1, 2]
    assert store.load("other") == []


def test_a_damaged_file_of_another_scale_is_not_asked_for(store):
    store.save(result())
    store.save(result(scale="smoke")).write_text("")
    assert [r.scale for r in store.load("e", "book")] == ["book"]


def test_the_commit_is_that_of_the_package_and_not_of_a_project_around_it(tmp_path, monkeypatch):
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(tmp_path)]
    for words in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "first"]):
        subprocess.run([*git, *words], check=True)
    head = subprocess.check_output([*git, "rev-parse", "HEAD"], text=True)[:12]
    for folder, expected in (("pdelab", head), ("venv/lib/pdelab", "unknown")):
        package = tmp_path / folder
        package.mkdir(parents=True)
        monkeypatch.setattr(files, "__file__", str(package / "files.py"))
        assert files.commit.__wrapped__() == expected


def test_a_killed_writer_leaves_a_whole_file(tmp_path):
    path = tmp_path / "file.json"
    code = (
        "import itertools, json, pathlib, sys; from pdelab.files import write_atomically\n"
        "for n in itertools.count(): write_atomically(pathlib.Path(sys.argv[1]), json.dumps(['x' * 200_000, n]))"
    )
    for pause in (0.05, 0.11, 0.17):
        path.unlink(missing_ok=True)
        writer = subprocess.Popen([sys.executable, "-c", code, str(path)])
        deadline = time.monotonic() + 60
        while not path.exists():
            assert writer.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
        time.sleep(pause)
        writer.kill()
        writer.wait()
        assert len(json.loads(path.read_text())[0]) == 200_000


def test_a_failed_write_keeps_the_old_file_and_leaves_nothing_behind(tmp_path):
    path = tmp_path / "file.txt"
    write_atomically(path, "old")
    with pytest.raises(TypeError):
        write_atomically(path, 7)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_the_interval_is_student_s():
    """For 1, 2, 3, 4, 5: mean 3, s = √2.5, t₀.₉₇₅(4) = 2.776445 (any table)."""
    found = interval([1.0, 2.0, 3.0, 4.0, 5.0])
    half = 2.776445 * math.sqrt(2.5) / math.sqrt(5)
    assert (found.mean, found.low, found.high) == pytest.approx((3, 3 - half, 3 + half), abs=1e-6)


def test_the_interval_covers_the_mean_as_often_as_it_says():
    """400 repeats of 4 normal values: the number that cover is binomial with sd √(400·0.95·0.05) ≈ 4.4."""
    import random

    draw = random.Random(0)
    found = [interval([draw.gauss(2, 3) for _ in range(4)]) for _ in range(400)]
    assert abs(sum(s.low <= 2 <= s.high for s in found) - 380) < 4 * 4.4


def test_one_seed_has_no_interval_and_none_has_no_mean():
    assert interval([2.0]).low == -math.inf
    assert str(interval([2.0])) == "2 (1 seed)"
    assert str(interval([], diverged=3)) == "no finished seed, 3 diverged"


def test_seeds_that_agree_have_no_spread_be_they_infinite():
    for value in (0.3, math.inf):
        found = interval([value] * 3)
        assert (found.mean, found.low, found.high) == (value, value, value)


@pytest.mark.parametrize(
    ("values", "mean"),
    [([math.inf, 1.0, 2.0], math.inf), ([-math.inf, 1.0], -math.inf), ([math.inf, -math.inf, 1.0], math.nan)],
)
def test_a_mean_of_infinities_may_be_anywhere(values, mean):
    found = interval(values)
    assert (found.mean, found.low, found.high) == pytest.approx((mean, -math.inf, math.inf), nan_ok=True)


@pytest.mark.parametrize("values", [[math.nan, 1.0], [math.nan, math.inf, -math.inf]])
def test_the_interval_of_nan_is_nan(values):
    found = interval(values)
    assert all(map(math.isnan, (found.mean, found.low, found.high)))


def test_diverged_seeds_are_counted_and_not_averaged():
    runs = [result(0), result(1, figures={"loss": 3.0}), result(2, "diverged", {"loss": math.nan})]
    found = summarise(runs, "loss")
    assert (found.mean, found.seeds, found.diverged) == (2.0, 2, 1)
    assert (found.value, found.runs) == ("2 [-10.7, 14.7]", "2 seeds, 1 diverged")
    assert summarise(runs, "loss", control=True).mean == 2.0


def test_a_figure_per_layer_is_summarised_per_layer():
    runs = [result(seed, figures={"rho": [1.0, 0.5 + seed]}) for seed in (0, 1)]
    assert [s.mean for s in summarise(runs, "rho")] == [1.0, 1.0]


def test_a_control_is_taken_from_the_controls_though_a_figure_has_its_name():
    runs = [result(seed, figures={"loss": 1.0 + seed}, controls={"loss": 7.0}) for seed in range(3)]
    assert summarise(runs, "loss", control=True).mean == 7.0
    lost = result(3, figures={"loss": 4.0}, controls={}, diverged={"b": 3})
    found = summarise([*runs, lost], "loss", control=True)
    assert (found.mean, found.seeds, found.diverged) == (7.0, 3, 1)
    kept = result(3, figures={"gain": 4.0}, controls={"loss": 11.0}, diverged={"b": 3})
    found = summarise([*runs, kept], "loss", control=True)
    assert (found.mean, found.seeds, found.diverged) == (8.0, 4, 0)


def test_what_is_recorded_is_said_in_words():
    assert in_words([]) == "nothing recorded"
    assert in_words([result(4)]) == "seed 4; all training steps"
    runs = [result(0), result(2), result(3, configuration={"cut": "9 of 90 training steps"})]
    assert in_words(runs) == "seeds 0, 2, 3; 9 of 90 training steps / all training steps"


@pytest.mark.parametrize("name", GRAMMARS)
def test_the_size_of_listops_is_that_of_its_grammar(name):
    words = size_of([result(0, configuration={"data": name})])
    least, most = GRAMMARS[name].min_length + 1, GRAMMARS[name].max_length
    if most is None:
        assert words == f"ListOps, from {least} tokens on, 1 seed"
    elif "up to" in words:  # the name tells the largest, or the bound that it does not reach
        assert int(words.split()[3].replace(",", "")) in (most - 1, most)
    else:
        assert words == f"ListOps, {least} to {most - 1:,} tokens, 1 seed"


@pytest.mark.parametrize("figure", ["a/x", "a/x[-1]", "log10 a/x"])
def test_a_control_is_not_taken_from_the_figures(figure):
    run = result(0, figures={"a/x": [1.0, 2.0]}, controls={})
    assert value_of(run, figure) is not None
    with pytest.raises(ValueError, match="is missing for seeds"):
        summarise([run], figure, control=True)


@pytest.mark.parametrize(
    ("figure", "words"),
    [
        ("log10 few", "few, a list of 2, has no log10 where it is 0.0"),
        ("log10 one less one", "one, a number, has no log10 where it is -1.0"),
        ("few less one", "its parts have no common shape: few is a list of 2, one is a number"),
        ("few plus some", "its parts have no common shape: few is a list of 2, some is a list of 3"),
        ("few[2]", "few is a list of 2, which has no place 2"),
        ("one[0]", "one is a number, which has no place 0"),
        ("one less none", "none is missing"),
        ("none", "none is missing"),
    ],
)
def test_a_figure_that_cannot_be_put_together_is_refused_by_name_and_seed(figure, words):
    run = result(4, figures={"one": -1.0, "few": [1.0, 0.0], "some": [1.0, 2.0, 3.0]})
    with pytest.raises(ValueError, match=rf"^figure '{re.escape(figure)}', seed 4: {re.escape(words)}$"):
        value_of(run, figure)


def test_what_cannot_be_averaged_is_refused():
    with pytest.raises(ValueError, match="empty"):
        summarise([], "loss")
    with pytest.raises(ValueError, match="one experiment, scale and configuration"):
        summarise([result(0), result(1, configuration={"n": 8})], "loss")
    with pytest.raises(ValueError, match=r"'gain' is missing for seeds \[0\]; recorded are loss"):
        summarise([result(0)], "gain")
    runs = [result(seed, figures={"rho": rho}) for seed, rho in enumerate(([1.0, 2.0], [1.0], [3.0], 1.0))]
    shapes = r"a list of 2 for seeds \[0\], a list of 1 for seeds \[1, 2\], a number for seeds \[3\]"
    with pytest.raises(ValueError, match=f"'rho' has no common shape: {shapes}"):
        summarise(runs, "rho")


@pytest.mark.parametrize(
    "wrong",
    [
        {"experiment": "../up"},
        {"experiment": 5},
        {"scale": ""},
        {"status": "fine"},
        {"status": "interrupted"},
        {"seed": "../1"},
        {"seed": -1},
        {"seed": 1.5},
        {"figures": {"loss": "low"}},
        {"controls": {"loss": [1.0, None]}},
    ],
)
def test_a_result_with_a_wrong_field_is_refused_by_name(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        result(**wrong)


def test_a_sealed_file_that_is_no_result_is_reported(store):
    path = store.save(result())
    content = {"experiment": "e"}
    path.write_text(json.dumps({"sha256": _seal(content), "result": content}))
    with pytest.raises(DamagedResult, match="does not hold a Result"):
        store.read(path)


def test_a_store_may_be_named_by_a_relative_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = Store("here").save(result())
    assert Store("here").read(path.resolve()).seed == 0


def test_a_figure_that_needs_a_model_that_diverged_is_missing_with_it():
    whole, lost = result(0, figures={"best/f": 2.0}), result(1, figures={"a/f": 1.0})
    lost = dataclasses.replace(lost, diverged={"b": 3})
    found = summarise([whole, lost], "best/f")
    assert (found.mean, found.seeds, found.diverged) == (2.0, 1, 1)
    with pytest.raises(ValueError, match="missing for seeds"):
        summarise([whole, dataclasses.replace(lost, diverged={})], "best/f")


def test_a_model_that_diverged_is_counted_for_its_own_figures_alone():
    results = [
        Result(
            "x",
            {},
            "book",
            seed,
            "finished",
            {"a/f": 1.0, **({} if seed else {"b/f": 2.0})},
            {},
            {"b": 9} if seed else {},
        )
        for seed in range(3)
    ]
    assert str(summarise(results, "a/f")) == "1 [1, 1] (3 seeds)"
    assert str(summarise(results, "b/f")) == "2 (1 seed, 2 diverged)"


def test_what_was_kept_of_a_model_that_diverged_is_not_averaged():
    runs = [result(seed, figures={"b/f": 2.0 + 50 * seed}, diverged={"b": 9} if seed else {}) for seed in range(3)]
    assert str(summarise(runs, "b/f")) == "2 (1 seed, 2 diverged)"


def test_means_and_halves_are_those_of_the_summaries_one_column_a_layer():
    runs = [
        Result("e", {}, "book", seed, "finished", {"a": [1.0 + seed, 2.0], "b": seed}, {"a": 7.0}) for seed in (0, 1, 2)
    ]
    spread = interval([1.0, 2.0, 3.0])
    assert mean_and_half(runs, "a") == pytest.approx(np.array([[2.0, 2.0], [spread.high - 2.0, 0.0]]))
    assert mean_and_half(runs, "b").shape == (2, 1)
    assert mean_and_half(runs, "a", control=True).tolist() == [[7.0], [0.0]]
    assert np.isnan(mean_and_half(runs[:1], "a")).tolist() == [[False, False], [True, True]]
    endless = [Result("e", {}, "book", seed, "finished", {"a": math.inf if seed else 1.0}) for seed in (0, 1)]
    assert str(mean_and_half(endless, "a").tolist()) == "[[inf], [nan]]"
