"""Every built page in a real browser, with the network cut. A new page inherits all of this."""

from dataclasses import replace
from datetime import date
from html.parser import HTMLParser
from urllib.parse import unquote, urldefrag

import numpy as np
import pytest
from visits import FOUND, HTML, PAGES, PHONE, Visit, visit

from pdebook import errata, explore, ledger


def test_the_book_is_built():
    assert {"index.html", "book/intro.html", "book/first_look.html", "book/ledger.html"} <= set(FOUND), "run: make book"


def test_the_index_leads_to_the_first_page(browser):
    context = browser.new_context(offline=True)
    page = context.new_page()
    page.goto((HTML / "index.html").as_uri())
    page.wait_for_url("**/book/intro.html")
    context.close()


@pytest.fixture(scope="module", params=PAGES)
def light(browser, request):
    """Each page once, on a desktop; the tests that read it share the visit."""
    with visit(browser, request.param) as v:
        yield v


def test_a_page_asks_for_nothing_outside_and_logs_no_error(light):
    assert (light.external, light.complaints) == ([], [])


def test_every_formula_is_typeset(light):
    left = light.page.locator(".math, .mathjax_process").evaluate_all(
        r"found => found.filter(e => /\\[(\[]|\$\$/.test(e.textContent)).map(e => e.textContent.slice(0, 80))"
    )
    assert left == []
    assert light.page.locator(".math:not(:has(mjx-container))").count() == 0
    assert light.page.locator("mjx-merror, [data-mjx-error]").count() == 0


HOSTILE = [
    r"\href{javascript:document.body.dataset.harm=1}{x}",
    r"\href{ JavaScript:document.body.dataset.harm=1}{x}",
    "\\href{java\tscript:document.body.dataset.harm=1}{x}",
    "\\href{java\nscript:document.body.dataset.harm=1}{x}",
    "\\href{\x01javascript:document.body.dataset.harm=1}{x}",
    r"\href{data:text/html,x}{x}",
    r"\href{https://example.org}{x}",
    r"\mmlToken{mi}[href='javascript:document.body.dataset.harm=1']{x}",
    r"\mmlToken{mi}[onclick='document.body.dataset.harm=1']{x}",
    r"\require{html}\style{background:url(https://example.org/x.png)}{x}",
    r"\style{position:fixed;inset:0}{\class{verdict}{\cssId{claim-p1-eq8}{x}}}",
]


def test_a_formula_in_a_reply_is_typeset_and_is_no_link(browser, monkeypatch):
    """Claims and replies are other people's words; MathJax would make links and styles of them."""
    words = "\n\n".join(f"${formula}$" for formula in [r"\frac{a}{b}", *HOSTILE])
    reply = {"date": date(2026, 1, 31), "text": words}
    claim = replace(ledger.read_claims()[0], says=words, protocol="", repair="none", corrected="", reply=reply)
    monkeypatch.setattr(ledger.pages, "read_claims", lambda: [claim])
    with visit(browser, "book/errata.html") as v:
        v.page.evaluate(
            """async (markup) => {
                document.querySelector("article").insertAdjacentHTML("afterbegin", `<div id="new">${markup}</div>`);
                await MathJax.typesetPromise([document.querySelector("#new")]);
            }""",
            ledger.case_file({claim.id: ""})._repr_html_(),
        )
        v.unfold()
        formulas = v.page.locator("#new mjx-container")
        assert formulas.count() == 2 * (1 + len(HOSTILE))
        assert formulas.first.locator("mjx-mfrac").count() == 1
        assert formulas.locator("a, [href], [src], [onclick], [class~=verdict], [id^=claim]").count() == 0
        assert formulas.locator("[style*=fixed], [style*=url]").count() == 0
        for formula in formulas.all():
            formula.click()
        assert v.page.evaluate("document.body.dataset.harm") is None
        assert (v.external, v.complaints) == ([], [])


def test_every_picture_loads_and_has_alternative_text(light):
    faults = light.page.locator("img, svg[role=img]").evaluate_all(
        """found => found.filter(e => !(e.alt || e.ariaLabel || "").trim() || e.naturalWidth === 0)
                         .map(e => e.outerHTML.slice(0, 120))"""
    )
    assert faults == []


def test_axe_finds_nothing_serious_in_light_mode(light):
    light.unfold()
    assert light.serious_faults() == []


def test_dark_mode_is_dark_and_axe_finds_nothing_serious(browser, light):
    with Visit(browser, light.page.url, scheme="dark") as v:
        v.unfold()
        assert v.serious_faults() == []
        assert brightness(v) < 60 < 200 < brightness(light)


def brightness(v):
    colour = v.page.evaluate("getComputedStyle(document.body).backgroundColor")
    return sum(float(part) for part in colour.strip("rgba()").split(",")[:3]) / 3


@pytest.mark.parametrize("page", PAGES)
def test_a_phone_does_not_scroll_sideways(browser, page):
    with visit(browser, page, viewport=PHONE) as v:
        v.unfold()
        assert v.page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]


def test_no_code_on_a_desktop_scrolls_sideways(light):
    light.unfold()
    wide = light.page.locator("pre").evaluate_all(
        """found => found.filter(e => e.scrollWidth > e.clientWidth)
                         .map(e => `${e.scrollWidth} of ${e.clientWidth} px: ${e.textContent.slice(0, 80)}`)"""
    )
    assert wide == []


class Anchors(HTMLParser):
    def __init__(self):
        super().__init__()
        self.ids, self.targets = set(), set()

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name in ("id", "name") and value:
                self.ids.add(value)
            if name in ("href", "src") and value:
                self.targets.add(value)


def anchors(path):
    parser = Anchors()
    parser.feed(path.read_text(encoding="utf-8"))
    return parser


@pytest.mark.parametrize("page", FOUND)
def test_no_internal_link_is_broken(page):
    path = HTML / page
    for target in anchors(path).targets:
        address, fragment = urldefrag(target)
        if ":" in address.split("/")[0] or address.startswith("//"):
            continue
        file = (path.parent / unquote(address.split("?")[0])).resolve() if address else path
        assert file.exists(), f"{page} links to {target}"
        if fragment and file.suffix == ".html" and file.name != "playground.html":  # there it is a state, tested there
            assert unquote(fragment) in anchors(file).ids, f"{page} links to {target}"


def test_a_link_to_a_claim_opens_its_entry(browser):
    with Visit(browser, (HTML / "book/ledger.html").as_uri() + "#claim-p1-eq6-7") as v:
        v.page.wait_for_timeout(200)
        assert v.page.locator("#claim-p1-eq6-7").is_visible()


LEDGER = "book/ledger.html"
SHOWN = "details.claim:visible"


@pytest.fixture
def filtered(browser):
    with visit(browser, LEDGER) as v:
        yield v.page


def menu(page, name):
    return page.locator(f".ledger-filter select[name={name}]")


def entries(page, name):
    return page.locator("details.claim").evaluate_all(f"found => found.map(e => e.dataset.{name})")


@pytest.mark.parametrize("name", ["verdict", "chapter", "kind", "source"])
def test_each_choice_of_the_filter_shows_its_claims_and_says_how_many(filtered, name):
    given = entries(filtered, name)
    assert filtered.locator(SHOWN).count() == len(given)
    for value in set(given):
        menu(filtered, name).select_option(value)
        shown = filtered.locator(SHOWN).evaluate_all(f"found => found.map(e => e.dataset.{name})")
        assert shown == [value] * given.count(value)
        assert filtered.locator(".ledger-filter output").inner_text() == f"{len(shown)} of {len(given)} claims shown"
        chosen = menu(filtered, name).evaluate("e => e.selectedOptions[0].textContent")
        assert chosen.endswith(f"({len(shown)})")
        assert filtered.locator(".ledger-nothing").is_hidden()


def test_both_choices_hold_together_and_nothing_is_said_to_match_where_nothing_does(filtered):
    pairs = list(zip(entries(filtered, "verdict"), entries(filtered, "chapter"), strict=True))
    verdicts, chapters = ({pair[i] for pair in pairs} for i in (0, 1))
    empty = next((v, c) for v in sorted(verdicts) for c in sorted(chapters) if (v, c) not in pairs)
    for verdict, chapter in (pairs[0], empty):
        menu(filtered, "verdict").select_option(verdict)
        menu(filtered, "chapter").select_option(chapter)
        assert filtered.locator(SHOWN).count() == pairs.count((verdict, chapter))
        assert filtered.locator(".ledger-nothing").is_visible() == ((verdict, chapter) == empty)
    filtered.get_by_role("button", name="Show all").press("Enter")
    filtered.wait_for_function("location.hash === ''")
    assert filtered.locator(SHOWN).count() == len(pairs)
    assert filtered.locator(".ledger-nothing").is_hidden()


def test_the_filter_works_by_keyboard_and_has_names(filtered):
    chooser = filtered.get_by_label("Verdict")
    chooser.focus()
    filtered.keyboard.press("ArrowDown")
    value = chooser.input_value()
    assert value
    assert filtered.locator(SHOWN).count() == entries(filtered, "verdict").count(value)
    for name in ("chapter", "kind", "source"):
        filtered.keyboard.press("Tab")
        assert filtered.evaluate("document.activeElement.name") == name
    filtered.keyboard.press("Tab")
    assert filtered.evaluate("document.activeElement.textContent") == "Show all"


def test_the_address_keeps_the_choice_and_a_link_to_a_claim_undoes_it(filtered):
    chapter = entries(filtered, "chapter")[-1]
    menu(filtered, "chapter").select_option(chapter)
    assert filtered.url.endswith(f"#chapter={chapter}")
    filtered.reload()
    assert menu(filtered, "chapter").input_value() == chapter
    assert set(filtered.locator(SHOWN).evaluate_all("found => found.map(e => e.dataset.chapter)")) == {chapter}
    first = filtered.locator("details.claim dl[id]").first.get_attribute("id")
    filtered.evaluate(f"location.hash = '{first}'")
    filtered.wait_for_function("document.querySelector('select[name=chapter]').value === ''")
    assert filtered.locator(f"#{first}").is_visible()
    assert filtered.locator(SHOWN).count() == len(entries(filtered, "chapter"))


@pytest.mark.parametrize("hash", ["#chapter=nowhere", "#verdict=", "#top", "#claim-none"])
def test_an_address_that_names_nothing_shows_everything(browser, hash):
    with Visit(browser, (HTML / LEDGER).as_uri() + hash) as v:
        assert v.page.locator(SHOWN).count() == v.page.locator("details.claim").count() > 0
        assert v.complaints == []


def test_on_a_phone_a_wide_formula_of_an_entry_scrolls_and_not_the_whole_ledger(browser):
    with visit(browser, LEDGER, viewport=PHONE) as v:
        v.unfold()
        v.page.wait_for_timeout(500)
        ledger = v.page.locator(".output:has(> .ledger)")
        assert ledger.evaluate("box => { box.scrollLeft = 50; return box.scrollLeft; }") == 0
        assert v.page.locator(".ledger mjx-container.more-right").count() > 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_filter_is_accessible_in_use(browser, scheme):
    with visit(browser, LEDGER, scheme=scheme, viewport=PHONE) as v:
        menu(v.page, "verdict").select_option("fails")
        menu(v.page, "chapter").select_option(index=1)
        assert v.serious_faults() == []
        assert v.page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
        assert v.page.locator(".ledger-filter select, .ledger-filter button").evaluate_all(
            "found => found.every(e => e.getBoundingClientRect().height >= 24)"
        )


def test_on_paper_and_without_scripts_the_whole_list_is_there(browser, filtered):
    count = filtered.locator("details.claim").count()
    menu(filtered, "verdict").select_option(index=1)
    filtered.emulate_media(media="print")
    assert filtered.locator(SHOWN).count() == count
    assert filtered.locator(".ledger-filter").is_hidden()
    context = browser.new_context(offline=True, java_script_enabled=False)
    page = context.new_page()
    page.goto((HTML / LEDGER).as_uri())
    assert page.locator(SHOWN).count() == count
    assert page.locator(".ledger-filter").is_hidden()
    context.close()


def test_an_entry_leads_to_the_verdict_box_of_its_chapter(browser):
    boxed = {i for page in PAGES for i in anchors(HTML / page).ids if i.startswith("box-")}
    linked = {target.partition("#")[2] for target in anchors(HTML / LEDGER).targets if "#box-" in target}
    assert linked == boxed
    with Visit(browser, (HTML / LEDGER).as_uri() + "#claim-p1-eq6-7") as v:
        v.page.locator("#claim-p1-eq6-7 a[href*='#box-']").click()
        v.page.wait_for_url("**/first_look.html#box-p1-eq6-7")
        top = "document.querySelector('#box-p1-eq6-7').getBoundingClientRect().top"
        v.page.wait_for_function(f"{top} > 0 && {top} < 300")  # the page scrolls there smoothly


def test_a_mark_of_the_map_leads_to_its_entry_from_every_page_that_has_the_map(browser):
    for page in ("book/intro.html", "book/papers.html", LEDGER):
        with visit(browser, page) as v:
            v.page.locator(".verdict-map a[href$='#claim-p2-eq9']").click()
            v.page.wait_for_url("**/ledger.html#claim-p2-eq9")
            v.page.locator("#claim-p2-eq9").wait_for(state="visible")


def test_the_errata_have_an_entry_for_each_slip_and_each_fallen_statement(browser):
    outcomes = [o for o in ledger.judge_all() if o.claim.id.startswith(errata.PAPERS)]
    fallen = [o for o in outcomes if o.verdict in (ledger.Verdict.FAILS, ledger.Verdict.CONDITIONS)]
    with visit(browser, "book/errata.html") as v:
        assert v.page.locator(".errata li[id^=erratum]").count() == len(errata.read_errata())
        assert v.page.locator(".errata li[id^=statement]").count() == len(fallen)


def test_the_solution_is_behind_a_click(browser):
    with visit(browser, "book/first_look.html") as v:
        answer = v.page.locator("details pre").filter(has_text="np.sin((k")
        assert not answer.first.is_visible()
        v.page.get_by_text("Show the solution").first.click()
        assert answer.first.is_visible()


def test_the_notebook_to_download_holds_no_solution():
    offered = (HTML / "_sources" / "book" / "first_look.ipynb").read_text(encoding="utf-8")
    assert "NotImplementedError" in offered
    assert "np.sin((k" not in offered


# Interactive figures, on the page and by themselves

FIGURE = ".pdelab-explore"


def picture(page):
    return page.locator(f"{FIGURE} svg, {FIGURE} img").first.evaluate("e => e.outerHTML")


@pytest.mark.parametrize("name", [p for p in PAGES if "pdelab-explore" in (HTML / p).read_text(encoding="utf-8")])
def test_every_control_on_a_page_moves_its_figure_by_keyboard(browser, name):
    with visit(browser, name) as v:
        for figure in v.page.locator(FIGURE).all():
            for control in figure.locator("input, select").all():
                control.press("End")  # not from the start, where a process may not depend on its parameters yet
                before = figure.locator("svg[role=img], img").evaluate("e => e.outerHTML")
                control.press("Home")
                after = figure.locator("svg[role=img], img").evaluate("e => e.outerHTML")
                assert before != after
        assert (v.external, v.complaints) == ([], [])


@pytest.fixture(scope="module")
def two_figures(tmp_path_factory):
    """One figure of each kind, twice on one page."""
    x = np.linspace(0, 1, 30)

    def curve(ax, k, sign):
        ax.plot(x, k * x if sign == "plus" else -k * x)
        ax.set(xlabel="x", ylabel="y", title=f"k = {k}")

    def heat_map(ax, k):
        ax.imshow(np.outer(x, x) * k, vmin=0, vmax=3)
        ax.set(xlabel="token", ylabel="feature")

    figures = [explore(curve, k=[1, 2, 3], sign=["plus", "minus"], play="k").html]
    figures = [*figures, explore(heat_map, k=[0, 1, 2, 3]).html] * 2
    path = tmp_path_factory.mktemp("figures") / "figures.html"
    head = '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>figures</title></head>'
    path.write_text(f"{head}<body><main><h1>Figures</h1>{''.join(figures)}</main></body></html>", encoding="utf-8")
    return path.as_uri()


@pytest.mark.parametrize("number", range(4))
def test_a_slider_moves_its_own_figure_and_no_other(browser, two_figures, number):
    with Visit(browser, two_figures) as v:
        figures = v.page.locator(FIGURE)
        before = [figures.nth(i).locator("svg, img").first.evaluate("e => e.outerHTML") for i in range(4)]
        figures.nth(number).locator("input").press("ArrowRight")
        after = [figures.nth(i).locator("svg, img").first.evaluate("e => e.outerHTML") for i in range(4)]
        assert [a != b for a, b in zip(after, before, strict=True)] == [i == number for i in range(4)]
        slider = figures.nth(number).locator("input")
        assert slider.get_attribute("aria-valuetext") == figures.nth(number).locator("output").inner_text()
        assert v.complaints == []


def test_a_menu_and_a_title_change_the_curves(browser, two_figures):
    with Visit(browser, two_figures) as v:
        figure = v.page.locator(FIGURE).first
        before = picture(v.page)
        figure.locator("select").select_option("minus")
        minus = picture(v.page)
        assert minus != before
        figure.locator("input").press("End")
        assert "k = 3" in picture(v.page)


def test_play_goes_to_the_end_of_its_slider_and_from_there_to_the_start(browser, two_figures):
    with Visit(browser, two_figures) as v:
        figure = v.page.locator(FIGURE).first
        button, slider = figure.locator("button"), figure.locator("input")
        button.click()
        assert "Pause" in button.inner_text()
        v.page.wait_for_function("b => b.textContent.includes('Play')", arg=button.element_handle())
        assert slider.input_value() == "2"
        assert "k = 3" in picture(v.page)

        button.click()
        assert slider.input_value() == "0"
        slider.press("End")  # a hand on the slider stops it
        assert ("Play" in button.inner_text(), slider.input_value()) == (True, "2")


def test_a_finger_moves_the_slider(browser, two_figures):
    with Visit(browser, two_figures, viewport=PHONE, touch=True) as v:
        before = picture(v.page)
        slider = v.page.locator(f"{FIGURE} input").first
        box = slider.bounding_box()
        assert box["height"] >= 24
        v.page.touchscreen.tap(box["x"] + 0.9 * box["width"], box["y"] + box["height"] / 2)
        assert picture(v.page) != before


def test_figures_by_themselves_are_accessible_and_fit_a_phone(browser, two_figures):
    with Visit(browser, two_figures, viewport=PHONE) as v:
        assert v.serious_faults() == []
        assert v.page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
