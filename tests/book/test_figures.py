"""What a page shows is sharp, legible and whole: figures and formulas, in light and dark, on a desk and on a phone."""

import io

import pytest
from editions import edition
from exercises import chapters
from PIL import Image
from visits import PAGES, visit

PHONE = {"width": 390, "height": 800}
FIGURE = "div.cell_output img"
CUT = """() => {
    const boxes = [...document.querySelectorAll(".math, mjx-container, .scrolls")];
    const scroll = boxes.filter((box) => box.clientWidth && getComputedStyle(box).overflowX === "auto");
    return scroll.filter((box) => box.scrollWidth - box.clientWidth > 1);
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_figure_stands_on_the_ground_of_its_page_and_its_letters_stand_out(browser, scheme):
    with visit(browser, "book/first_look.html", scheme=scheme) as v:
        picture = Image.open(io.BytesIO(v.page.locator(FIGURE).first.screenshot())).convert("RGB")
        ground = v.page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert f"rgb{picture.getpixel((1, 1))}" == ground
        darkest, lightest = picture.convert("L").getextrema()
        assert (darkest < 40, lightest > 215) == (True, True)


@pytest.fixture(scope="module", params=PAGES)
def phone(browser, request):
    """Each page once, all of it open and at rest; the tests that read it share the visit.

    At rest: nothing plays, and a jump or a key moves at once what else glides from frame to frame, too slowly for a
    test where other programs keep the processor busy.
    """
    with visit(browser, request.param, viewport=PHONE, reduced_motion="reduce") as v:
        v.unfold()
        v.page.wait_for_timeout(100)
        yield v.page


def test_letters_of_a_figure_are_legible_on_a_phone(phone):
    """Drawn are 11 points, four pixels to three points at full size."""
    for figure in phone.locator(f"{FIGURE}[src$='.svg']").all():
        shown, drawn = figure.evaluate("image => [image.clientWidth, image.naturalWidth]")
        assert 11 * 4 / 3 * shown / drawn >= 9.5, figure.get_attribute("alt")
    for figure in phone.locator(".pdelab-explore svg").all():
        shown, drawn = figure.evaluate("one => [one.clientWidth, one.viewBox.baseVal.width]")
        assert 11 * shown / drawn >= 9.5, figure.get_attribute("aria-label")


def test_no_picture_to_play_with_is_cut_on_a_phone(phone):
    """It fits the box that would cut it, or stands in one that scrolls."""
    cut = phone.locator(".pdelab-explore > :is(img, svg)").evaluate_all(
        """found => found.filter((one) => {
            const [mine, box] = [one, one.closest(".output")].map((it) => it.getBoundingClientRect());
            return mine.left < box.left - 1 || mine.right > box.right + 1;
        }).map((one) => one.outerHTML.slice(0, 80))"""
    )
    assert cut == []


def test_no_formula_reaches_out_of_its_box(phone):
    out = phone.evaluate(
        """() => [...document.querySelectorAll("article mjx-math")].filter((formula) => {
            let box = formula;
            while (box && !["auto", "scroll"].includes(getComputedStyle(box).overflowX)) box = box.parentElement;
            const right = box ? box.getBoundingClientRect().left + box.scrollWidth - box.scrollLeft : innerWidth;
            return formula.getBoundingClientRect().right > right + 3;
        }).map((formula) => formula.parentElement.outerHTML.slice(0, 200))"""
    )
    assert out == []


def test_what_is_cut_on_a_phone_says_so_and_a_key_scrolls_it(phone):
    unsaid = phone.evaluate(
        f"""({CUT})().filter((box) => box.tabIndex || getComputedStyle(box).maskImage === "none")
            .map((box) => box.outerHTML.slice(0, 200))"""
    )
    assert unsaid == []
    if box := phone.evaluate_handle(f"({CUT})().at(0) ?? null").as_element():
        box.focus()
        box.press("ArrowRight")
        phone.wait_for_function("box => box.scrollLeft > 0 && box.matches('.more-left')", arg=box)
        box.evaluate("box => box.scrollLeft = box.scrollWidth")
        phone.wait_for_function("box => !box.matches('.more-right')", arg=box)


def test_no_markdown_is_left_in_the_words_of_a_page(phone):
    """Stars and backquotes around words, outside code, formulas and the signatures of the reference."""
    words = phone.evaluate(
        r"""() => {
            const page = document.querySelector("main, body").cloneNode(true);
            const other = "code, pre, script, style, svg, mjx-container, .math, .sig";
            page.querySelectorAll(other).forEach((e) => e.remove());
            return page.textContent.match(/(?<![\w*])\*{1,2}[\w“][^*\n]*?\*{1,2}(?!\w)|`[^`\n]+`/g) ?? [];
        }"""
    )
    assert words == []


def test_a_notebook_to_work_in_shows_its_figures_before_it_is_trusted():
    """JupyterLab shows no SVG in a notebook that was not run here, but pictures in HTML."""
    outputs = [
        out for path in chapters() for cell in edition(path.stem, "student").cells for out in cell.get("outputs", [])
    ]
    data = [out["data"] for out in outputs if "data" in out]
    assert not [one for one in data if "image/svg+xml" in one]
    shown = [one["text/html"] for one in data if "data:image/svg+xml" in one.get("text/html", "")]
    assert shown
    assert all(len(markup.partition('alt="')[2].partition('"')[0]) > 20 for markup in shown)
