"""The page as a product: keyboard, search, jumps, icons, weight, and what a page says of itself."""

import os
import re
from html import unescape
from io import BytesIO
from xml.etree import ElementTree

import pytest
from PIL import Image
from print_book import NAME, PRINT_BUTTON, join, offer
from print_book import printed as on_paper
from publishing import CARD, citation, description, plain_formula
from pypdf import PdfReader
from search_index import places, printed, readable
from visits import HTML, PAGES, Visit, visit

from pdebook import explore

READ = [page for page in PAGES if page.startswith("book/")]
SEARCH = (HTML / "search.html").as_uri()


# Keyboard


def test_formulas_are_no_tab_stops_but_are_read_aloud(browser):
    with visit(browser, "book/stability.html") as v:
        slider = v.page.locator("article input[type=range]").first.element_handle()
        v.page.keyboard.press("Tab")  # the link that skips the menus
        v.page.keyboard.press("Enter")
        presses = 0
        while presses < 40 and not slider.evaluate("e => e === document.activeElement"):
            v.page.keyboard.press("Tab")
            presses += 1
        assert presses <= 20, "too far from the top of the text to the first slider"
        formulas = v.page.locator("mjx-container").count()
        assert v.page.locator("mjx-container[tabindex='0']").count() < formulas / 10
        assert v.page.locator("mjx-container > mjx-assistive-mml > math").count() == formulas > 100


def test_a_formula_that_scrolls_is_a_tab_stop(browser):
    with visit(browser, "book/stability.html", viewport={"width": 320, "height": 740}) as v:
        wide = v.page.locator("div.math, mjx-container[display]").evaluate_all(
            "found => found.filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.tabIndex)"
        )
        assert wide
        assert set(wide) == {0}


# Jumps


@pytest.mark.parametrize("place", ["book/glossary.html#term-spread", "book/residual.html#exercises"])
def test_a_jump_lands_on_its_target_after_the_formulas_are_typeset(browser, place):
    with Visit(browser, f"{HTML.as_uri()}/{place}", viewport={"width": 390, "height": 800}) as v:
        v.page.wait_for_timeout(300)
        top = v.page.evaluate("document.querySelector(location.hash).getBoundingClientRect().top")
        assert -5 <= top <= 200


def test_a_reader_who_has_scrolled_is_left_alone(browser):
    context = browser.new_context(offline=True, viewport={"width": 390, "height": 800})
    page = context.new_page()
    page.goto(f"{HTML.as_uri()}/book/residual.html#exercises", wait_until="commit")
    page.wait_for_selector("article h1")
    page.keyboard.press("Home")
    page.evaluate("scrollTo({ top: 0, behavior: 'instant' })")
    page.wait_for_load_state("load")
    page.evaluate("MathJax.startup.promise")
    page.wait_for_timeout(300)
    assert page.evaluate("document.querySelector('#exercises').getBoundingClientRect().top") > 2000
    context.close()


# Search


@pytest.fixture(scope="module")
def search(browser):
    """results(query): the titles, addresses and pages of what is found, from a disk and without a network."""
    with Visit(browser, SEARCH) as v:

        def results(query):
            v.page.goto(f"{SEARCH}?q={query.replace(' ', '+')}")
            links = v.page.locator("#search-results li > a")
            return links.evaluate_all("found => found.map(e => [e.textContent, e.getAttribute('href')])")

        yield results
        assert v.external == []


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("eq 9", "book/ledger.html#claim-p2-eq9"),
        ("Equation (9)", "book/ledger.html#claim-p2-eq9"),
        ("P2-eq9", "book/ledger.html#claim-p2-eq9"),
        ("p2 eq9", "book/ledger.html#claim-p2-eq9"),
        ("P2-thm3.4", "book/ledger.html#claim-p2-thm3-4"),
        ("theorem 3.4", "book/ledger.html#claim-p2-thm3-4"),
        ("table 2", "book/ledger.html#claim-p1-table2"),
        ("Gronwall", "book/toolbox.html#lem-gronwall"),
        ("grönwall", "book/toolbox.html#lem-gronwall"),
        ("rank collapse", "book/glossary.html#term-rank-collapse"),
        ("thm-sb-basin", "book/stability.html#thm-sb-basin"),
        ("pdelab.solve", "book/api.html#pdelab.solve"),
    ],
)
def test_what_is_searched_for_comes_first(search, query, first):
    assert search(query)[0][1].startswith(first)


def test_a_result_is_a_section_and_not_a_chapter(search):
    found = search("LayerNorm")
    assert sum("#" in address for _, address in found) > len(found) / 2
    assert "LayerNorm" in found[0][0]


def test_a_word_is_not_found_inside_another(search):
    assert all("sequence" not in title.lower() or re.search(r"\beq", title) for title, _ in search("eq"))
    assert not search("quence")


def test_every_place_of_the_index_is_there():
    index = (HTML / "_static" / "search_index.js").read_text(encoding="utf-8")
    for page in READ:
        if page != "book/statements.html":
            assert f'["{page}"' in index, page


def test_excerpts_hold_the_words(browser):
    with Visit(browser, f"{SEARCH}?q=basin") as v:
        marks = v.page.locator("#search-results mark").all_text_contents()
        assert len(marks) > 5
        assert {mark.lower() for mark in marks} == {"basin"}


def test_nothing_found_is_said_with_what_to_do(browser):
    with Visit(browser, f"{SEARCH}?q=xqzzy") as v:
        assert "Nothing is found for “xqzzy”" in v.page.get_by_role("status").inner_text()
        assert v.page.get_by_role("link", name="all statements").is_visible()


def test_ctrl_k_leads_to_the_results_and_the_arrow_keys_through_them(browser):
    with visit(browser, "book/first_look.html") as v:
        v.page.keyboard.press("Control+k")
        v.page.keyboard.type("eq 9")
        v.page.keyboard.press("Enter")
        v.page.wait_for_url("**/search.html?q=eq+9")
        v.page.wait_for_selector("#search-results li")
        v.page.keyboard.press("ArrowDown")
        v.page.keyboard.press("ArrowDown")
        v.page.keyboard.press("ArrowUp")
        assert v.page.evaluate("document.activeElement.textContent").startswith("P2-eq9")
        v.page.keyboard.press("Enter")
        v.page.wait_for_url("**/ledger.html#claim-p2-eq9")
        assert v.page.locator("#claim-p2-eq9").is_visible()


def test_the_list_of_statements_has_each_of_them():
    listed = set(re.findall(r'href="([^"]*)"', (HTML / "book/statements.html").read_text(encoding="utf-8")))
    for page in READ:
        for kind, title, anchor, *_ in places((HTML / page).read_text(encoding="utf-8")):
            if kind == "statement":
                assert f"{page.removeprefix('book/')}#{anchor}" in listed, title


def test_there_is_no_empty_index_page():
    assert not (HTML / "genindex.html").exists()
    assert not any("genindex" in (HTML / page).read_text(encoding="utf-8") for page in READ)


def test_the_places_of_a_page_have_titles_words_and_names():
    found = places(
        '<article><section id="a"><h1>1. One<a class="headerlink">#</a></h1><p>Words \\(\\gamma\\le1\\).</p>'
        '<div class="proof theorem admonition" id="thm-x"><p class="admonition-title">Theorem 1.1 (Big)</p>'
        '<section id="proof-content"><p>Let.</p></section></div><div class="highlight">code</div></section></article>'
    )
    assert found == [
        ["section", "1. One", "a", "Words γ≤1.", []],
        ["statement", "Theorem 1.1 (Big)", "thm-x", "Let.", ["Theorem 1.1", "thm-x"]],
    ]


@pytest.mark.parametrize(
    ("tex", "text"),
    [
        (r"E=\tfrac12\int\|u\|^2", "E=(1/2)∫‖u‖^2"),
        (r"-\gamma\frac{u-\mu}{\sqrt{\sigma_u^2(t)+\epsilon}}", "-γ((u-μ)/√(σ_u^2(t)+ε))"),
        (r"\sqrt N+\sqrt\gamma", "√(N)+√(γ)"),
    ],
)
def test_a_fraction_and_a_root_keep_their_cover_in_an_excerpt(tex, text):
    assert readable(f"so \\({tex}\\) falls") == f"so {text} falls"


def test_the_places_of_the_papers_are_names():
    assert printed("P2 §3.2, eq 9") == ["P2 eq 9", "eq 9"]
    assert printed("P1 A.1.2, eqs 9 to 11")[:3] == ["P1 eq 9", "P1 eq 10", "P1 eq 11"]
    assert printed("P2 abstract") == []


# Icons and weight


def test_every_icon_is_drawn_without_the_icon_font(browser):
    for viewport in ({"width": 1280, "height": 900}, {"width": 390, "height": 800}):
        with visit(browser, "book/stability.html", viewport=viewport) as v:
            bare = v.page.locator("i[class*=fa-], span[class*=fa-]").evaluate_all(
                """found => found.filter(e => !getComputedStyle(e).maskImage.includes("data:image/svg"))
                                 .map(e => e.className)"""
            )
            assert bare == []
            for icon in v.page.locator("i[class*=fa-]:visible, span[class*=fa-]:visible").all():
                box = icon.bounding_box()
                assert min(box["width"], box["height"]) >= 12, icon.get_attribute("class")
            boxes = v.page.locator(".admonition > .admonition-title").evaluate_all(
                "found => found.map(e => getComputedStyle(e, '::after').maskImage.slice(0, 20))"
            )
            assert all("data:image" in one for one in boxes)


def test_a_page_loads_less_than_three_megabytes_and_no_icon_font(browser):
    context = browser.new_context(offline=True)
    page = context.new_page()
    session = context.new_cdp_session(page)
    session.send("Network.enable")
    loaded, names = [], []
    session.on("Network.dataReceived", lambda event: loaded.append(event["dataLength"]))
    page.on("request", lambda request: names.append(request.url))
    page.goto(f"{HTML.as_uri()}/book/glossary.html", wait_until="load")
    page.evaluate("MathJax.startup.promise")
    context.close()
    assert sum(loaded) < 2_200_000
    assert not any("fontawesome" in name or "thebe" in name for name in names)


# What a page says of itself


def head(page):
    return (HTML / page).read_text(encoding="utf-8").partition("</head>")[0]


def test_every_page_has_a_description_of_its_own():
    found = {}
    for page in READ:
        words = unescape(re.search(r'<meta name="description" content="([^"]*)"', head(page))[1])
        assert 20 <= len(words) <= 203, page
        assert "\\" not in words, page
        found.setdefault(words, []).append(page)
    assert [same for same in found.values() if len(same) > 1] == []


def test_a_page_claims_an_address_only_where_one_is_known():
    address = os.environ.get("BOOK_ADDRESS", "")
    for page in READ:
        assert bool(re.search("canonical", head(page))) == bool(address), page
        assert f'content="{address.rstrip("/")}/_static/card.png"' in head(page) or not address, page
    assert (HTML / "sitemap.xml").exists() == bool(address)


def test_the_icon_and_the_licences_are_there():
    foot = (HTML / READ[0]).read_text(encoding="utf-8")
    for name in ("_static/icon.svg", "LICENSE.txt", "LICENSE-TEXT.txt"):
        assert (HTML / name).exists()
        assert f'href="../{name}"' in foot
    ElementTree.parse(HTML / "_static/icon.svg")


def test_the_foot_says_the_version_and_how_to_cite():
    given = citation()
    foot = unescape((HTML / READ[0]).read_text(encoding="utf-8"))
    assert f"Version {given['version']}, {given['date']}" in foot
    assert given["bibtex"] in foot


def test_a_lost_address_leads_back_from_any_depth(browser, tmp_path):
    """As a server would: the page not found stands for any address."""
    deep = tmp_path / "somewhere" / "book" / "evidence"
    deep.mkdir(parents=True)
    lost = deep / "heat_on_tokens.html"
    lost.write_text((HTML / "404.html").read_text(encoding="utf-8"), encoding="utf-8")
    with Visit(browser, lost.as_uri()) as v:
        links = v.page.locator("a").evaluate_all("found => found.map(e => e.href)")
    root = os.environ.get("BOOK_ADDRESS", "").rstrip("/") or (tmp_path / "somewhere").as_uri()
    assert links == [f"{root}/", f"{root}/search.html?q=heat%20on%20tokens"]


@pytest.mark.parametrize(
    ("tex", "text"),
    [(r"\gamma\le\frac{1}{N}", "γ≤1/N"), (r"\mathrm{Att}(u)_{ij}", "Att(u)_ij"), (r"\|V\|\,\Lambda", "‖V‖ Λ")],
)
def test_a_formula_is_a_line_of_text(tex, text):
    assert plain_formula(tex) == text


def test_a_page_without_text_has_no_description():
    assert description(None) == ""


def test_menus_and_maps_use_titles():
    for page in ("book/intro.html", "book/ledger.html"):
        text = (HTML / page).read_text(encoding="utf-8")
        assert ">trained corners<" not in text
        assert ">continuum limit<" not in text


def test_the_card_of_a_link_is_a_picture_of_the_book():
    with Image.open(HTML / CARD) as card:
        assert (card.format, card.size) == ("PNG", (1200, 630))  # the size that messengers ask for


# Paper

TEXT_WIDTH = 680  # of A4 between its margins, in CSS pixels


@pytest.mark.parametrize(
    "page", ["evidence/experiments_listops", "evidence/experiments_images_text", "trained_corners"]
)
def test_no_text_is_cut_on_paper(browser, page):
    with visit(browser, f"book/{page}.html", viewport={"width": TEXT_WIDTH, "height": 1000}) as v:
        v.page.emulate_media(media="print")
        v.page.evaluate("dispatchEvent(new Event('beforeprint'))")
        cut = v.page.locator("article :is(p, pre, td, th, img, svg, figure, mjx-container, li, caption)").evaluate_all(
            f"""found => found.filter(e => e.getClientRects().length)
                             .filter(e => e.getBoundingClientRect().right > {TEXT_WIDTH + 2})
                             .map(e => e.outerHTML.slice(0, 120))"""
        )
        assert cut == []
        hidden = v.page.locator("article :is(pre, table, .cell_output, .measured)").evaluate_all(
            """found => found.filter(e => getComputedStyle(e).overflowX !== "visible")
                             .filter(e => e.scrollWidth > e.clientWidth + 2).map(e => e.outerHTML.slice(0, 120))"""
        )
        assert hidden == []


def test_on_paper_proofs_are_open_and_the_code_of_figures_is_left_out(browser):
    with visit(browser, "book/stability.html") as v:
        v.page.emulate_media(media="print")
        assert v.page.locator(".proof-fold .proof").first.evaluate(
            "e => e.checkVisibility({ contentVisibilityAuto: true })"
        )
        assert v.page.locator("details.hide:visible").count() == 0
        assert v.page.locator(".pdelab-explore input:visible").count() == 0


def test_the_printed_book_has_a_bookmark_for_each_page_and_no_place_on_this_disk(browser, tmp_path):
    names = ["book/playground", "book/bibliography"]
    parts = [(name, *on_paper(browser, HTML / f"{name}.html")) for name in names]
    book = PdfReader(join(parts, HTML))
    lengths = [len(PdfReader(BytesIO(made)).pages) for _, _, made in parts]
    assert len(book.pages) == sum(lengths)
    marks = [(mark.title, book.get_destination_page_number(mark)) for mark in book.outline]
    assert marks == [("The playground", 0), ("Bibliography", lengths[0])]
    notes = [str(note.get_object()) for sheet in book.pages for note in sheet.get("/Annots", [])]
    assert notes
    assert not [note for note in notes if "file:" in note]
    assert not [sheet for sheet in book.pages if "file:" in sheet.extract_text()]


def test_the_pages_offer_the_printed_book_once_it_is_there(tmp_path):
    (tmp_path / "book").mkdir()
    page = tmp_path / "book" / "a.html"
    page.write_text('<li>\n<button onclick="window.print()"\n  class="x">Print this page</button>\n</li>')
    offer(tmp_path)
    assert "window.print" in page.read_text()
    (tmp_path / NAME).write_bytes(b"")
    offer(tmp_path)
    assert f'href="../{NAME}"' in page.read_text()
    assert "window.print" not in page.read_text()


def test_the_menu_prints_the_page_or_hands_out_the_book():
    text = (HTML / READ[0]).read_text(encoding="utf-8")
    assert (PRINT_BUTTON.search(text) is None) == (HTML / NAME).exists()


# A figure that moves says so


def test_the_sentence_under_a_figure_is_read_aloud_but_not_while_it_plays(browser, tmp_path):
    figure = explore(lambda ax, t: ax.plot([0, 1], [0, t]), t=[1, 2, 3, 4], play="t", alt=lambda t: f"slope {t}").html
    path = tmp_path / "figure.html"
    path.write_text(f"<!doctype html><meta charset='utf-8'><body>{figure}</body>", encoding="utf-8")
    with Visit(browser, path.as_uri()) as v:
        says, button = v.page.locator(".says"), v.page.locator("button")
        assert says.get_attribute("aria-live") == "polite"
        button.click()
        assert says.get_attribute("aria-live") == "off"
        v.page.wait_for_function("document.querySelector('button').textContent.includes('Play')")
        assert (says.get_attribute("aria-live"), says.text_content()) == ("polite", "slope 4")
