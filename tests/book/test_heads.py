"""The figure at the head of a chapter runs on the built page, and a chapter with a theorem ends in a quest."""

import json
import re
from importlib.resources import files

import pytest
import yaml
from exercises import BOOK, ROOT
from visits import HTML, visit

QUESTS = json.loads(files("pdebook.kit.play").joinpath("quests.json").read_text(encoding="utf-8"))
THEOREMS = next(
    part for part in yaml.safe_load((ROOT / "_toc.yml").read_text())["parts"] if part["caption"] == "The theorems"
)
ENDS = {quest["page"] for quest in QUESTS if "/" not in quest["page"]} | {
    page["file"].removeprefix("book/") for page in THEOREMS["chapters"]
}
# a control of the head, what it is set to, and what the run then is
MOVES = {
    "interaction": ("select >> nth=0", "with a skip", "play.now.v === -1 && play.status.dataset.word === 'finished'"),
    "clusters": ("input >> nth=0", "1", "/from layer (\\d+)/.exec(play.status.innerText)?.[1] < 40"),
    "crowd": ("input >> nth=0", "25", "play.now.beta === 25 && play.measured.at(-1).groups > 5"),
    "stability": ("input >> nth=0", "0.5", "play.now.gamma === 0.5 && play.measured.at(-1).diameter > 5"),
    "dial": ("input >> nth=0", "0", "play.now.leak === 0 && play.measured.at(-1).fidelity > 0.3"),
    "diffusion": ("select >> nth=0", "feed-forward network", "play.root.innerText.includes('no other tokens answer')"),
}


@pytest.mark.parametrize("name", MOVES)
def test_the_head_runs_and_its_words_follow_the_reader(browser, name):
    where, value, then = MOVES[name]
    with visit(browser, f"book/{name}.html") as v:
        head = v.page.locator(".pdelab-play").first
        v.page.wait_for_function("document.querySelector('.pdelab-play').play?.run")
        assert head.bounding_box()["y"] < 900  # on the first screen
        control = head.locator(f".play-settings {where}")
        control.select_option(value) if where.startswith("select") else control.fill(value)
        v.page.wait_for_function(f"() => {{ const {{play}} = document.querySelector('.pdelab-play'); return {then}; }}")
        assert not v.complaints + v.external


@pytest.mark.parametrize("name", sorted(ENDS))
def test_a_chapter_with_a_theorem_ends_in_a_quest(name):
    source = (BOOK / f"{name}.md").read_text(encoding="utf-8")
    asked = re.search(r'^## A quest$.*?^play\(quest="(\w+)".*?^## Case file$', source, re.DOTALL | re.MULTILINE)
    assert asked
    quest = next(one for one in QUESTS if one["id"] == asked[1])
    assert quest["words"][:40] in (HTML / "_static" / "play.js").read_text(encoding="utf-8")
