"""What the heads of chapters add to the playground: cases, a map of runs, who notices a poke, neighbours."""

import json

import pytest
import torch
from visits import Visit

from pdebook import play

NEAR = 3
BASIN = {
    "ranges": {"gamma": (0.2, 3.5), "size": (0.2, 2.4)},
    "controls": ["gamma", "size"],
    "show": ["map", "diameter"],
    "cases": {"triangle": {"start": "ring", "N": 3}, "cloud": {"start": "cloud", "N": 12}},
    **{"norm": "none", "beta": 25, "scheme": "euler", "gamma": 2, "size": 1.4, "eps": 0.04, "dt": 0.05, "L": 80},
}
POKED = {
    "cases": {
        "attention": {"causal": "near", "leak": 1},
        "behind": {"causal": "behind", "leak": 1},
        "network": {"v": 0, "r": 1, "kind": "tanh"},
    },
    **{"show": ["response"], "controls": [], "start": "flat", "poke": 1, "norm": "none", "beta": 0, "dt": 1, "L": 8},
}


@pytest.fixture
def opened(browser, tmp_path):
    """The playground of a cell on a page of its own."""
    visits = []

    def at(**given):
        path = tmp_path / f"{len(visits)}.html"
        path.write_text(f"<!doctype html><meta charset=utf-8>{play(**given)._repr_html_()}", encoding="utf-8")
        visits.append(Visit(browser, path.as_uri()))
        page = visits[-1].page
        page.wait_for_function("document.querySelector('.pdelab-play').play?.run")
        return page

    yield at
    for visit in visits:
        assert not visit.complaints
        visit.context.close()


def of(page, expression):
    return page.evaluate(f"() => {{ const play = document.querySelector('.pdelab-play').play; return {expression}; }}")


@pytest.mark.parametrize("causal", ["near", "behind"])
def test_a_token_on_a_ring_sees_its_neighbours_as_the_formula_says(opened, causal):
    page = opened(causal=causal, N=12, start="sphere", beta=3, show=["spread"])
    u = torch.tensor(of(page, "[...play.run.states[0]]"), dtype=torch.float64).reshape(12, 2)
    found = torch.tensor(of(page, "[...pdelab.engine.attention(play.now, play.run.states[0])]"), dtype=torch.float64)
    away = (torch.arange(12) - torch.arange(12).unsqueeze(1)) % 12  # of column j from row i, forwards
    sees = (away >= 12 - NEAR) | (away == 0) | ((away <= NEAR) & (causal == "near"))
    expected = (3 * u @ u.T).masked_fill(~sees, -torch.inf).softmax(dim=-1)
    torch.testing.assert_close(found.reshape(12, 12), expected, atol=1e-12, rtol=0)


def test_a_case_brings_its_settings_and_keeps_those_of_the_reader(opened):
    page = opened(cases={"one": {"leak": 1}, "two": {"v": -1}}, controls=["beta"], show=["diameter"], norm="none", N=6)
    assert of(page, "[play.now.leak, play.now.v]") == [1, 1]
    page.get_by_label("sharpness").fill("7")
    page.locator(".play-settings select").first.select_option("two")
    page.wait_for_function("document.querySelector('.pdelab-play').play.now.v === -1")
    assert of(page, "[play.now.leak, play.now.beta]") == [0, 7]
    assert of(page, "play.others.map(one => one.name)") == ["one"]
    page.get_by_role("button", name="Reset").click()
    page.wait_for_function("document.querySelector('.pdelab-play').play.now.v === 1")


def marks(page):
    page.wait_for_function("document.querySelector('.pdelab-play').play.views[0].marks().length === 144")
    return of(page, "play.views[0].marks()")


def test_where_the_theorem_promises_it_every_run_of_the_map_comes_together(opened):
    page = opened(**BASIN)
    for tokens in ("triangle", "cloud"):
        page.locator(".play-settings select").first.select_option(tokens)
        found = marks(page)
        promised = [word for word, inside in found if inside]
        assert 40 < len(promised) < 144
        assert set(promised) == {"together"}
        assert [word for word, inside in found if not inside].count("apart") > 30


def test_a_press_on_a_mark_shows_its_run(opened):
    page = opened(**BASIN)
    marks(page)
    box = page.locator(".play-map").bounding_box()
    page.mouse.click(box["x"] + 60, box["y"] + 20)  # a weak pull on tokens far apart
    page.wait_for_function("document.querySelector('.pdelab-play').play.now.size > 2")
    assert of(page, "[play.now.gamma, play.now.size]") == [0.2, 2.4]
    assert of(page, "play.measured.at(-1).diameter > play.measured[0].diameter")
    assert page.get_by_label("size").input_value() == "2.4"


def test_a_network_passes_no_poke_on_and_attention_hands_it_to_three_neighbours_a_layer(opened):
    page = opened(**POKED, layer=2)
    assert "Layer 2: 12 other tokens answer" in page.locator(".play-head").inner_text()
    page.locator(".play-settings select").first.select_option("behind")
    page.wait_for_function("document.querySelector('.play-head').innerText.includes(': 6 other')")
    page.locator(".play-settings select").first.select_option("network")
    page.wait_for_function("document.querySelector('.play-head').innerText.includes('no other')")


def test_a_press_on_a_token_pokes_that_one(opened):
    page = opened(**POKED, layer=1)
    box = page.locator(".play-response").bounding_box()
    page.mouse.click(box["x"] + 36, box["y"] + 50)
    page.wait_for_function("document.querySelector('.pdelab-play').play.now.poke === 0")
    assert of(page, "Object.keys(play.moved)") == ["0"]
    answers = json.loads(of(page, "JSON.stringify([...play.run.states[1]].filter((x, k) => k % 2 === 0))"))
    assert [i for i, x in enumerate(answers) if x] == [0, 1, 2, 3, 45, 46, 47]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"cases": {"one": {"lea": 1}}}, "there is no setting 'lea'"),
        ({"cases": {"one": {"beta": 99}}}, "beta must be a number from"),
        ({"ranges": {"gamma": (0, 1)}}, "ranges needs two settings"),
        ({"ranges": {"gama": (0, 1), "size": (1, 2)}}, "ranges names 'gama'"),
    ],
)
def test_a_case_or_a_range_that_makes_no_sense_is_refused(given, words):
    with pytest.raises(ValueError, match=words):
        play(**given)
