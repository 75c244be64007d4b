"""A digit through the layers: the page runs the recorded networks as torch does, and every reader can draw."""

import base64
import json

import numpy as np
import pytest
import torch
from visits import visit

from pdebook import Store, digit
from pdebook.chapters.trained_corners.digit import accuracy, grey, pack, run, seen, task_of, token_cosine, unpack
from pdebook.chapters.trained_corners.measure import CORNERS
from pdebook.evidence.trained import build
from pdebook.kit.play import without_script
from pdelab import datasets
from pdelab.metrics.stability import spread

DATA = datasets.load("digits-rows")
NARROW = {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def record():
    (found,) = Store().load("digit", "book")
    return found


@pytest.fixture(scope="module")
def networks(record):
    """The recorded networks in torch, in double precision, with the weights that the page has."""
    task = task_of("book")
    return {name: unpack(text, build(name, task, DATA, 0, "corner")) for name, text in record.weights.items()}


# The record


def test_the_record_names_the_commit_that_made_it_and_all_four_networks(record):
    assert record.weights.keys() == set(CORNERS)
    assert record.environment["commit"] not in ("", "unknown")
    assert "dirty" not in record.environment["commit"]


@pytest.mark.parametrize("corner", CORNERS)
def test_the_weights_have_the_accuracy_and_the_spreads_that_are_recorded(record, networks, corner):
    assert accuracy(networks[corner], DATA.test) == record.figures[f"{corner}/packed_accuracy"]
    for name, values in seen(networks[corner], DATA.test).items():
        np.testing.assert_allclose(values, record.figures[f"{corner}/{name}"], rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("corner", CORNERS)
def test_eight_bits_cost_at_most_half_a_point_of_accuracy(record, corner):
    packed, exact = (round(400 * record.figures[f"{corner}/{name}"]) for name in ("packed_accuracy", "accuracy"))
    assert abs(packed - exact) <= 2  # of 400 digits


def test_the_command_makes_a_record_whose_weights_have_its_accuracy():
    made = run("smoke", 0)
    for corner in CORNERS:
        model = unpack(made.weights[corner], build(corner, task_of("smoke"), DATA, 0, "corner"))
        assert accuracy(model, DATA.test) == made.figures[f"{corner}/packed_accuracy"]


def test_a_packed_weight_is_off_by_half_a_step_of_its_row_at_most():
    model = build("residual_norm", task_of("smoke"), DATA, 3)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    unpack(pack(model), model)
    for name, after in model.state_dict().items():
        step = before[name].abs().amax(dim=-1, keepdim=True) / 127
        assert ((after - before[name]).abs() <= 0.501 * step).all(), name


def test_weights_of_another_network_are_refused():
    small, large = (build("bare", task_of(scale), DATA, 0) for scale in ("smoke", "book"))
    with pytest.raises(ValueError, match="weights of this model"):
        unpack(pack(large), small)


def test_digits_of_the_data_set_fill_the_height_and_30_percent_of_the_square():
    """What the page makes of a drawing follows these."""
    paper, ink = grey(DATA)
    images = (torch.cat([DATA.train.x, DATA.test.x]) - paper) / (ink - paper)
    assert (images.sum(dim=2) > 1e-3).all()  # something in every row
    wide = (images.sum(dim=1) > 1e-3).sum(dim=1)
    assert wide.median() == 6
    assert (wide <= 6).double().mean() > 0.9
    each = [images[torch.cat([DATA.train.y, DATA.test.y]) == digit].mean() for digit in range(10)]
    assert 0.29 < min(each) < 0.305 < max(each) < 0.33


# The page


PAGE = "book/trained_corners.html"


@pytest.fixture(scope="module")
def page(browser):
    with visit(browser, PAGE) as opened:
        yield opened.page


def test_the_figure_is_small(record):
    assert sum(len(base64.b64decode(text)) for text in record.weights.values()) < 100_000
    assert len(without_script(digit()._repr_html_())) < 140_000


READ = """([corner, images]) => {
    const data = JSON.parse(document.querySelector('.pdelab-digit script[type="application/json"]').textContent);
    const read = pdelab.digit.network(corner, data.networks[corner].weights, data);
    return images.map((image) => {
        const { logits, measured } = read(image);
        return [...logits, ...measured.map((m) => m.spread), ...measured.map((m) => m.cosine)];
    });
}"""


@pytest.mark.parametrize("corner", CORNERS)
def test_the_page_computes_what_torch_computes(page, networks, corner):
    """Logits of 20 test digits, and spread and cosine of every state."""
    paper, ink = grey(DATA)
    x = DATA.test.x[::20].double()
    greys = ((x - paper) / (ink - paper)).flatten(1).tolist()
    found = torch.tensor(page.evaluate(READ, [corner, greys]), dtype=torch.float64)
    with torch.no_grad():
        states = networks[corner].trajectory(x).states
        logits = networks[corner](x)
    cosines = [torch.stack([token_cosine(u[None]) for u in state]) for state in states]
    want = torch.cat([logits, torch.stack([*map(spread, states), *cosines], dim=1)], dim=1)
    assert found.shape == want.shape == (20, 10 + 2 * 7)
    torch.testing.assert_close(found, want, rtol=1e-9, atol=1e-9)


STROKES = {
    0: [[(16, 4), (10, 8), (8, 16), (10, 24), (16, 28), (22, 24), (24, 16), (22, 8), (16, 4)]],
    1: [[(12, 9), (16, 4), (16, 28)]],
    2: [[(9, 10), (12, 5), (18, 4), (22, 9), (20, 15), (14, 22), (8, 28), (24, 28)]],
    3: [[(9, 6), (15, 4), (21, 7), (21, 12), (15, 15), (22, 19), (21, 25), (15, 28), (8, 26)]],
    4: [[(19, 28), (19, 4), (8, 20), (24, 20)]],
    5: [[(22, 4), (11, 4), (10, 14), (16, 13), (22, 18), (21, 25), (15, 28), (8, 26)]],
    6: [[(19, 4), (12, 10), (9, 20), (11, 27), (18, 28), (22, 23), (19, 18), (14, 18), (10, 22)]],
    7: [[(8, 4), (24, 4), (18, 16), (14, 28)]],
    8: [
        [(16, 15), (11, 11), (12, 6), (16, 4), (21, 6), (21, 11), (16, 15)],
        [(16, 15), (10, 21), (12, 27), (16, 28), (22, 21), (16, 15)],
    ],
    9: [[(21, 10), (17, 15), (11, 13), (11, 7), (16, 4), (21, 6), (22, 12), (20, 20), (15, 28)]],
}


def seen_as(page, strokes):
    return np.array(page.evaluate("strokes => [...pdelab.digit.image(strokes)]", strokes)).reshape(8, 8)


def moved(strokes, scale, right, down):
    return [[(scale * x + right, scale * y + down) for x, y in stroke] for stroke in strokes]


@pytest.mark.parametrize("number", STROKES)
def test_a_drawing_is_seen_the_same_wherever_and_however_large_it_is_drawn(page, number):
    image = seen_as(page, STROKES[number])
    assert (image.sum(axis=1) > 0).all()
    assert image[:, [0, 7]].sum() == 0
    assert 0.25 < image.mean() < 0.34
    np.testing.assert_array_equal(image, seen_as(page, moved(STROKES[number], 0.5, 14, 1)))


def draw(page, strokes):
    """With the pointer, in the square on the page."""
    page.get_by_role("button", name="Clear").click()
    box = page.locator(".pad").bounding_box()
    for stroke in strokes:
        places = [(box["x"] + x / 32 * box["width"], box["y"] + y / 32 * box["height"]) for x, y in stroke]
        page.mouse.move(*places[0])
        page.mouse.down()
        for place in places[1:]:
            page.mouse.move(*place, steps=3)
        page.mouse.up()


def test_with_a_skip_nine_of_ten_drawn_digits_are_read(page):
    read = {"skip": 0, "both": 0}
    for number, strokes in STROKES.items():
        draw(page, strokes)
        assert "your drawing" in page.locator(".sentence").inner_text()
        for name in read:
            read[name] += page.locator(f".panel.{name} .says strong").inner_text() == str(number)
    assert min(read.values()) >= 9, read


def test_a_test_digit_is_named_and_every_answer_judged(page):
    for number in range(10):
        page.get_by_role("button", name=f"a {number} of the test set").click()
        said = page.locator(".sentence").inner_text()
        answers = page.locator(".panel .says strong").all_inner_texts()
        assert f"this {number}" in said
        assert ("(wrong)" in said) == any(one != str(number) for one in answers)
        assert ("(right)" in said) == (str(number) in answers)


def test_without_a_skip_the_rows_become_alike_and_the_digit_is_read_all_the_same(page):
    """On the test digit that the page opens with."""
    page.reload()
    said = page.locator(".sentence").inner_text()
    assert "become alike in bare" in said
    assert "in norm" in said
    assert "they stay apart in skip and both" in said
    assert page.locator(".panel.bare .says strong").inner_text() == "3"


def test_a_digit_can_be_drawn_and_wiped_by_keyboard_alone(page):
    page.get_by_role("button", name="Clear").focus()
    page.keyboard.press("Enter")
    assert "empty" in page.locator(".sentence").inner_text()
    page.keyboard.press("Shift+Tab")
    assert page.evaluate("document.activeElement.matches('.pad')")
    for _ in range(7):  # down the fourth column
        page.keyboard.press("ArrowUp")
        page.keyboard.press("ArrowLeft")
    for key in ["ArrowRight"] * 3 + [" ", "ArrowDown"] * 7 + [" "]:
        page.keyboard.press(key)
    assert page.locator(".heard").inner_text() == "row 8, column 4, inked"
    assert page.locator(".ink polyline").count() == 8
    assert page.locator(".panel.both .says strong").inner_text() == "1"
    page.keyboard.press(" ")
    assert page.locator(".ink polyline").count() == 7


def test_touch_draws_and_does_not_scroll(browser):
    with visit(browser, PAGE, viewport=NARROW, touch=True) as opened:
        assert opened.page.locator(".pad").evaluate("pad => getComputedStyle(pad).touchAction") == "none"
        opened.page.locator(".pad").tap()
        assert opened.page.locator(".ink polyline").count() == 1


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_a_phone_axe_finds_nothing_serious_and_nothing_is_cut_or_asked_for(browser, scheme):
    with visit(browser, PAGE, scheme=scheme, viewport=NARROW) as opened:
        assert (opened.external, opened.complaints) == ([], [])
        assert opened.serious_faults() == []
        figure = opened.page.locator(".pdelab-digit")
        assert figure.evaluate("figure => figure.scrollWidth <= figure.clientWidth")
        small = "found => found.filter(b => b.offsetHeight < 44 || b.offsetWidth < 44).length"
        assert figure.locator("button").evaluate_all(small) == 0


def test_on_a_phone_no_number_of_a_table_touches_the_next_and_none_is_minus_zero(browser):
    with visit(browser, PAGE, viewport={"width": 360, "height": 740}) as opened:
        cells = opened.page.locator(".pdelab-digit .panel :is(td, th)")
        for number in range(10):
            opened.page.get_by_role("button", name=f"a {number} of the test set").click()
            wide = cells.evaluate_all("all => all.filter((e) => e.scrollWidth > e.clientWidth).map((e) => e.innerText)")
            assert wide == []
            assert "−0.00" not in cells.all_inner_texts()


def test_without_javascript_words_say_what_would_be_there():
    markup = digit()._repr_html_()
    assert "The figure needs JavaScript" in markup
    data = markup.partition('<script type="application/json">')[2].partition("</script>")[0]
    assert json.loads(data)["networks"].keys() == set(CORNERS)
