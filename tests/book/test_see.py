"""What the ledger sends a reader to see: the link opens that state of the playground, and it shows what is said."""

import html

import pytest
from visits import HTML, Visit

from pdebook.ledger import Verdict, judge_all

SEEN = {outcome.claim.id: outcome for outcome in judge_all() if outcome.claim.see}

# state({…}): the run of the page with some settings changed; here: the run of the page itself
STATE = """
    const {o, moved} = document.querySelector(".pdelab-play").play, {engine} = pdelab;
    const state = changes => {
        const now = engine.complete({...o, ...changes}), run = engine.run(now, engine.start(now, moved));
        const m = engine.measure(now, run);
        return {o: now, run, m, first: m[0], last: m.at(-1), word: engine.status(now, run, m).word};
    };
    const here = state({}), near = (x, y) => Math.abs(x - y) < 1e-4 * Math.abs(y);
    const unnoticed = ({run}) => here.run.states.every((u, n) => [...u].every(
        (x, k) => Math.floor(k / here.o.d) === here.o.N / 2 || x === run.states[n][k]));
    const grown = ({first, last}) => last.spread / first.spread;
"""
SHOWS = {
    "P2-eq4": ("here.last.energy > 0.6", "state({scheme: 'lie'}).m.slice(1).every(m => near(m.energy, 0.5))"),
    "P2-eq5": ("here.word === 'collapsed'", "state({leak: 0}).word !== 'collapsed'"),
    "P2-eq6": ("near(here.m[1].spread, 0.1)", "near(state({leak: 0}).m[1].spread, 1.1)"),
    "P2-eq7": ("here.o.v === 0", "unnoticed(state({poke: 0}))", "here.last.diameter > 0.1"),
    "P2-eq9": ("here.word === 'collapsed'", "near(here.last.mean, here.first.mean)"),
    "P2-eq18-diffusion": ("here.o.kind === 'relu'", "unnoticed(state({poke: 0}))", "here.last.diameter > 0.1"),
    "P1-eq6/7": (
        "here.last.mean < 0.1 * here.first.mean",
        "near(state({ends: 'reflecting'}).last.mean, here.first.mean)",
    ),
    "P1-eq20": ("here.word === 'escaped'", "state({dt: 0.45}).last.energy < here.first.energy"),
    "P2-thm3.3": (
        "here.o.gamma > here.o.r && here.last.spread > here.first.spread",
        "state({size: 1}).word === 'collapsed'",
        "state({size: 1}).last.energy > state({size: 1}).first.energy",
    ),
    "P2-thm3.4": (
        "here.o.leak === 0",
        "here.m.slice(1).every(m => near(m.energy, 16))",
        "Math.abs(here.last.fidelity) < 0.1",
    ),
    "P1-thm2": ("here.o.D === 0 && here.o.dt * here.o.v === 0.2", "here.word === 'escaped'"),
    "P2-fidelity-T": ("here.m.every(m => m.fidelity > 0.98)", "state({dt: 0.5}).last.fidelity < 0.9"),
    "P1-colour": (
        "here.m.every((m, n) => !n || m.spread < here.m[n - 1].spread)",
        "2 * here.o.D / 1000 * here.o.dt * here.o.N ** 2 < 0.5",  # every wave keeps more than half of itself
    ),
    "S-ln": (
        "[0.3, 3].every(size => Math.abs(state({size}).m[1].energy - 0.5) < 1e-3)",  # but for ε
        "here.first.energy < 0.5 && state({size: 3}).first.energy > 0.5",
    ),
    "S-res": ("here.o.leak === 0 && here.word === 'escaped'", "state({leak: 1}).last.energy < 3"),
    "S-ffn": (
        "near(here.last.fidelity, 1)",
        "near(grown(state({waves: 2})), grown(here))",
        "state({r: 0, D: 1}).word === 'collapsed'",
    ),
}


def test_a_claim_that_stands_as_printed_needs_no_state_that_shows_why_not():
    assert not [name for name, outcome in SEEN.items() if outcome.verdict is Verdict.HOLDS]
    assert set(SEEN) == set(SHOWS)


@pytest.mark.parametrize("name", SEEN)
def test_the_playground_opens_in_that_state_and_shows_what_the_words_say(browser, name):
    address = SEEN[name].claim.see["at"]
    with Visit(browser, f"{(HTML / 'book/playground.html').as_uri()}#{address}") as v:
        v.page.wait_for_function("document.querySelector('.pdelab-play').play?.run")
        assert v.page.evaluate(f"() => {{ {STATE} return engine.address(o, moved); }}") == address
        for shown in SHOWS[name]:
            assert v.page.evaluate(f"() => {{ {STATE} return {shown}; }}"), shown
        assert not v.complaints


@pytest.mark.parametrize("page", ["book/ledger.html", "book/errata.html", "book/stability.html"])
def test_an_entry_links_to_its_state(page):
    address = html.escape(SEEN["P2-thm3.3"].claim.see["at"])
    assert f'href="playground.html#{address}"' in (HTML / page).read_text(encoding="utf-8")
