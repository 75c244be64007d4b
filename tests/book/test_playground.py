"""The playground as a reader meets it: by hand, by keyboard, from a link, on a phone, in the dark, twice on a page."""

import gzip
import json
import re

import pytest
from exercises import BOOK
from visits import HTML, Visit, visit

from pdebook import play
from pdebook.kit import play as kit

PAGE = "book/playground.html"
PLAYS = "document.querySelectorAll('.pdelab-play')"
PARTS = (".play-views", ".play-questbox", ".play-settings")
PHONE = {"width": 390, "height": 844}
SOLVED = "quest=sweep&scheme=lie&beta=4.25"  # the quest asks for this scheme; β, that the address is not the default
BUDGET = {"as it is": 140_500, "compressed": 42_500}  # bytes of all scripts, style, settings and quests


def of(page, expression, number=0):
    """What `expression` says of the page's first playground, called `it`."""
    return page.evaluate(f"() => {{ const it = {PLAYS}[{number}].play; return {expression}; }}")


def settle(page):
    """Until the run of the last change is shown, judged and in the address."""
    page.wait_for_function(
        "[...document.querySelectorAll('.pdelab-play')].every((one) => one.play?.run && !one.play.running)"
    )
    page.wait_for_timeout(600)


@pytest.fixture
def opened(browser):
    """The playground's page with this state in its address."""
    visits = []

    def at(state="", *, film=False, **options):
        visits.append(Visit(browser, (HTML / PAGE).as_uri() + (f"#{state}" if state else ""), **options))
        settle(visits[-1].page)
        if not state and not film:
            of(visits[-1].page, "it.showLayer(it.last)")  # what plays on opening would take seconds
        return visits[-1].page

    yield at
    for one in visits:
        assert (one.external, one.complaints) == ([], [])
        one.context.close()


# Links


def test_a_link_gives_the_same_run_to_the_last_digit(opened):
    page = opened()
    of(page, "it.set({ beta: 7.25, norm: 'none', dt: 0.07, matrices: 'random' })")
    settle(page)
    of(page, "(it.chosen = 5, it.move(0.1234, -0.5, [0.3, 0.4]))")
    settle(page)
    state, final = page.evaluate("location.hash"), of(page, "[...it.run.states.at(-1)]")
    again = opened(state[1:])
    assert of(again, "[...it.run.states.at(-1)]") == final
    assert again.evaluate("location.hash") == state
    assert of(again, "it.moved") == {"5": [0.42, -0.1]}


def test_python_and_the_page_write_the_same_address(opened):
    given = play(beta=6, norm="none", dt=0.05, start="sphere", moved={3: (0.5, -1.25)})
    page = opened(given.address)
    assert page.evaluate("location.hash") == f"#{given.address}"
    assert of(page, "[it.o.beta, it.o.norm, it.o.dt, it.o.start]") == [6, "none", 0.05, "sphere"]
    assert of(page, "[...it.u0.slice(6, 8)]") == [0.5, -1.25]


HOSTILE = [
    "beta=1e999&N=1e9&L=-5&d=NaN&dt=0",
    "N=%3Cimg%20src%3Dx%20onerror%3Ddocument.body.dataset.harm%3D1%3E&norm=<script>document.body.dataset.harm=1</script>",
    "quest=<img src=x onerror=document.body.dataset.harm=1>",
    "__proto__=1&constructor=2&toString=3&quest=__proto__",
    "u=0,1e308,1e308;9999999,1,1;-1,2,2;x,y;1;;;2,NaN,Infinity",
    "u=" + ";".join(f"{i},0.1,0.1" for i in range(5000)),
    "%E0%A4%A&beta=%zz",
]


@pytest.mark.parametrize("hostile", HOSTILE)
def test_a_hostile_address_is_clamped_and_harms_nothing(opened, hostile):
    page = opened(hostile)
    settings = json.loads((BOOK / "pdebook/kit/play/settings.json").read_text(encoding="utf-8"))
    for name, value in of(page, "it.o").items():
        known = settings[name]
        assert value in known["choices"] if "choices" in known else known["min"] <= value <= known["max"]
    assert page.evaluate("document.body.dataset.harm") is None
    assert page.locator(".pdelab-play img, .pdelab-play [onerror]").count() == 0
    assert page.locator(".play-status").inner_text()


def test_every_link_into_the_playground_holds_a_state_that_it_takes_as_it_is():
    found = {
        link
        for path in HTML.rglob("*.html")
        for link in re.findall(r'href="[\w./]*playground\.html#([^"]+)"', path.read_text(encoding="utf-8"))
    }
    assert len(found) > 5
    for state in found:
        given = dict(part.split("=") for part in state.replace("&amp;", "&").split("&"))
        if "quest" in given:
            assert given["quest"] in kit._quests()
            continue
        known = kit._settings()
        moved = given.pop("u", "")
        settings = {name: value if "choices" in known[name] else float(value) for name, value in given.items()}
        places = {int(one.split(",")[0]): tuple(map(float, one.split(",")[1:])) for one in moved.split(";") if one}
        assert set(play(moved=places, **settings).address.split("&")) == set(state.replace("&amp;", "&").split("&"))


def statements():
    """(page, anchor) of every quest, and of every law that the engine draws in dashes."""
    engine = (BOOK / "pdebook/kit/play/engine.js").read_text(encoding="utf-8")
    laws = re.findall(r'entry\([^;]*?"([\w/]+)", "([\w-]+)"\)', engine)
    assert len(laws) > 10
    read = (tuple(quest["read"].split("#")) for quest in kit._quests().values() if "read" in quest)
    ideas = ((quest["page"], "the-idea") for quest in kit._quests().values() if "read" not in quest)
    return {*laws, *read, *ideas, *((quest["page"], quest["statement"]) for quest in kit._quests().values())}


@pytest.mark.parametrize(("page", "anchor"), sorted(statements()))
def test_what_a_dash_or_a_quest_links_to_is_there(page, anchor):
    assert f'id="{anchor}"' in (HTML / f"book/{page}.html").read_text(encoding="utf-8")


def test_dashes_have_words_that_lead_to_their_statement(opened):
    page = opened("v=0&gamma=2&norm=none&dt=0.05")
    links = page.locator(".play-theory a:visible")
    assert links.count() >= 1
    for link in links.all():
        address, _, anchor = link.evaluate("one => one.href").partition("#")
        assert (page.url.partition("#")[0].rpartition("/")[0]) in address
        assert anchor


def test_reset_goes_back_and_compare_keeps_the_run_before(opened):
    page = opened()
    before = of(page, "it.measured.at(-1).spread")
    page.get_by_label("sharpness β").fill("12")
    settle(page)
    assert of(page, "it.before.at(-1).spread") == before != of(page, "it.measured.at(-1).spread")
    page.get_by_role("button", name="Reset").click()
    settle(page)
    assert of(page, "it.measured.at(-1).spread") == before
    assert page.evaluate("location.hash") == ""


# Hand and keys


def test_a_token_can_be_dragged_and_the_status_speaks_seldom(opened):
    page = opened("start=sphere&beta=9")
    page.evaluate("""() => {
        window.said = 0;
        const watch = new MutationObserver(() => window.said++);
        watch.observe(document.querySelector(".play-status"), { childList: true });
    }""")
    box = page.locator("canvas.play-stage").bounding_box()
    x, y = of(page, "it.toScreen(it.project(it.u0, 7))")
    right, up = (1 if x < box["width"] / 2 else -1), (1 if y > box["height"] / 2 else -1)  # into the picture
    page.mouse.move(box["x"] + x, box["y"] + y)
    page.mouse.down()
    for step in range(40):
        page.mouse.move(box["x"] + x + right * step, box["y"] + y - up * step)
    page.mouse.up()
    settle(page)
    (moved,) = of(page, "Object.keys(it.moved)")
    u0, reach = of(page, f"[...it.u0.slice({moved} * 2, {moved} * 2 + 2)]"), of(page, "it.reach")
    found = of(page, f"it.toScreen([{u0[0]}, {u0[1]}])")
    assert found == pytest.approx([x + right * 39, y - up * 39], abs=box["width"] * 0.01 / reach + 3)
    assert page.evaluate("window.said") <= 8


def press_until(page, key, wanted, most=150):
    """Press a key until the focus is on what `wanted`, JavaScript on the element in focus, says."""
    for _ in range(most):
        if page.evaluate(f"(() => {{ const at = document.activeElement; return {wanted}; }})()"):
            return
        page.keyboard.press(key)
    raise AssertionError(f"{most} times {key} did not reach {wanted}")


def test_all_can_be_done_by_keyboard(opened):
    page = opened()
    page.locator("h1").first.evaluate("one => { one.tabIndex = -1; one.focus(); }")
    press_until(page, "Tab", "at.matches('canvas.play-stage')")
    page.keyboard.press("PageDown")
    page.keyboard.press("ArrowRight")
    settle(page)
    assert of(page, "Object.keys(it.moved)") == ["1"]
    press_until(page, "Tab", "at.closest('.play-row')?.textContent.includes('sharpness')")
    page.keyboard.press("ArrowRight")
    settle(page)
    assert of(page, "it.o.beta") == 4.25
    press_until(page, "Tab", "at.ariaLabel === 'Start here: A sum or a sweep'")
    page.keyboard.press("Enter")
    settle(page)
    assert page.evaluate("document.activeElement.className") == "play-stage"
    press_until(page, "Tab", "at.closest('.play-row')?.textContent.startsWith('scheme')")
    page.keyboard.press("ArrowDown")
    settle(page)
    assert of(page, "it.o.scheme") == "lie"
    assert page.locator(".play-quests .play-done").count() == 1
    assert page.locator(".play-task").inner_text().endswith("✓ reached")


def test_tab_comes_to_the_code_of_the_playground_after_the_playground(opened):
    page = opened()
    parts = page.locator(".play-body, details.hide")  # in the order of the page's source
    assert parts.count() == 2
    assert parts.first.get_attribute("class") == "play-body"
    assert parts.first.bounding_box()["y"] < parts.last.bounding_box()["y"]


def test_a_dot_of_a_later_layer_moves_its_start_and_says_so(opened):
    page = opened("norm=none&N=2&dt=0.05&L=20")
    box = page.locator("canvas.play-stage").bounding_box()
    x, y = of(page, "it.toScreen(it.project(it.run.states.at(-1), 1))")
    page.mouse.move(box["x"] + x, box["y"] + y)
    page.mouse.down()
    page.wait_for_timeout(100)
    assert of(page, "it.at") == 0
    assert page.locator(".play-caption").inner_text().startswith("You move the start")
    page.mouse.up()
    settle(page)
    assert of(page, "it.at === it.last")


def test_who_moves_a_start_while_a_later_layer_is_shown_is_told_so(opened):
    page = opened("norm=none&N=2&dt=0.05&L=20")
    box = page.locator("canvas.play-stage").bounding_box()
    x, y = of(page, "it.toScreen(it.project(it.u0, 1))")
    page.mouse.move(box["x"] + x, box["y"] + y)
    page.mouse.down()
    page.wait_for_timeout(500)
    assert page.locator(".play-status").inner_text().startswith("You move where token 2 starts. Finished: ")
    page.mouse.up()
    page.wait_for_timeout(500)
    assert not page.locator(".play-status").inner_text().startswith("You move")


def test_the_space_bar_plays_and_pauses_and_escape_leaves_a_quest(opened):
    page = opened("quest=sweep")
    page.locator("canvas.play-stage").focus()
    top = page.evaluate("scrollY")
    for playing in (True, False):
        page.keyboard.press(" ")
        assert of(page, "Boolean(it.timer)") is playing
    assert page.evaluate("scrollY") == top
    page.keyboard.press("Escape")
    assert page.locator(".play-task").is_hidden()


def test_tokens_that_listen_to_all_alike_are_not_said_to_listen_to_one(opened):
    for state in ("v=0&gamma=1&norm=none", "beta=0"):
        page = opened(state)
        page.locator("canvas.play-stage").press("PageDown")
        page.wait_for_timeout(200)
        assert "token 2 starts at" in page.locator(".play-caption").inner_text()
        assert "listens" not in page.locator(".play-caption").inner_text()
    page.get_by_label("sharpness β").fill("4")
    settle(page)
    page.locator("canvas.play-stage").focus()
    page.wait_for_timeout(200)
    assert "listens most to" in page.locator(".play-caption").inner_text()


def test_a_mean_that_is_out_of_the_picture_is_said_to_be_outside(opened):
    assert "the mean is outside" in opened("quest=consensus").locator(".play-caption").inner_text()
    assert "+ is the mean" in opened().locator(".play-caption").inner_text()


def test_the_tokens_set_out_once_on_opening_unless_the_address_asks_for_a_state(opened):
    page = opened(film=True)
    page.wait_for_function(f"{PLAYS}[0].play.timer")
    page.wait_for_function(f"(({{ at, last, timer }}) => at === last && !timer)({PLAYS}[0].play)")
    for still in (opened("beta=9"), opened("quest=three"), opened(film=True, reduced_motion="reduce")):
        assert of(still, "[it.timer, it.at === it.last]") == [0, True]


def test_the_status_says_that_it_speaks_of_the_end_while_an_earlier_layer_is_shown(opened):
    page = opened()
    last = page.locator(".play-status").inner_text()
    of(page, "it.showLayer(7)")
    settle(page)
    assert page.locator(".play-status").inner_text() == f"In the end: {last[0].lower()}{last[1:]}"
    of(page, "it.showLayer(it.last)")
    settle(page)
    assert page.locator(".play-status").inner_text() == last


def test_no_word_of_a_menu_is_cut(opened):
    page = opened()
    page.get_by_role("radio", name="all").check()
    cut = page.locator(".play-row select").evaluate_all(
        """all => all.flatMap((menu) => {
            const pen = document.createElement("canvas").getContext("2d");
            pen.font = getComputedStyle(menu).font;
            const room = menu.clientWidth - 36; // its padding and its arrow
            return [...menu.options].map((one) => one.text).filter((text) => pen.measureText(text).width > room);
        })"""
    )
    assert cut == []


# Quests


def marked(page):
    return page.locator(".play-quests .play-done b").all_inner_texts()


def test_a_reached_quest_is_marked_and_remembered_and_one_opened_on_its_solution_is_not(opened):
    page = opened(SOLVED)
    assert of(page, "pdelab.quests.reached(it.quest, it.now, it.run, it.measured, it.run.states[0])")
    assert marked(page) == []
    page.get_by_role("button", name="Start here: A sum or a sweep").click()
    settle(page)
    assert marked(page) == []
    page.get_by_label("scheme").select_option("lie")
    settle(page)
    assert marked(page) == ["A sum or a sweep", "✓ reached"]
    assert page.locator(".play-count").inner_text() == f"1 of {len(kit._quests())} reached"
    page.reload()
    settle(page)
    assert marked(page) == ["A sum or a sweep", "✓ reached"]


def test_a_solved_quest_comes_back_solved(opened):
    page = opened("quest=sweep")
    page.get_by_label("scheme").select_option("lie")
    settle(page)
    assert page.evaluate("location.hash") == "#scheme=lie&quest=sweep"
    page.reload()
    settle(page)
    assert of(page, "it.o.scheme") == "lie"
    assert page.locator(".play-task").inner_text().endswith("✓ reached before")


def test_a_link_that_already_solves_its_quest_says_so(opened):
    page = opened(SOLVED)
    assert "This link already solves it" in page.locator(".play-goal").inner_text()
    page.get_by_label("scheme").select_option("euler")
    settle(page)
    assert "already" not in page.locator(".play-goal").inner_text()
    page.get_by_label("scheme").select_option("lie")
    settle(page)
    assert page.locator(".play-task").inner_text().endswith("✓ reached")
    assert "already" not in page.locator(".play-goal").inner_text()


def test_a_quest_shows_what_is_measured_now_and_what_is_wanted(opened):
    page = opened("quest=three&beta=9")
    goal = page.locator(".play-goal")
    assert re.fullmatch(
        r"Now 3 to 4 groups in the second half, speed [\d.e−]+; wanted 3, below 0.02.", goal.inner_text()
    )
    of(page, "it.change('beta', 8)")
    settle(page)
    assert goal.inner_text().startswith("Now 3 groups")


def test_a_quest_is_reached_in_green_also_where_the_rest_is_an_alarm(opened):
    page = opened("quest=heat")
    of(page, "it.set({ dt: 1.5, L: 128 })")
    settle(page)
    status = page.locator(".play-status")
    assert re.match("✓ Quest reached. (Escaped|Diverged): ", status.inner_text())
    colour = "one => getComputedStyle(one).color"
    assert status.evaluate(colour) != status.locator("b").evaluate(colour)


def test_quests_that_another_page_reached_stay_reached(opened):
    page = opened("quest=sweep")
    other = page.context.new_page()
    other.goto(page.url)
    settle(other)
    page.get_by_label("scheme").select_option("lie")
    settle(page)
    of(other, "it.change('beta', 9)")
    settle(other)
    assert other.evaluate("localStorage['pdelab-quests']") == '["sweep"]'
    of(other, "it.begin('#quest=length')")
    settle(other)
    of(other, "it.change('norm', 'circle')")
    settle(other)
    assert other.evaluate("localStorage['pdelab-quests']") == '["sweep","length"]'


def test_the_way_back_from_what_is_behind_a_quest_restores_it(opened):
    page = opened("quest=three")
    of(page, "it.change('beta', 3)")
    settle(page)
    page.get_by_role("link", name="What is behind it: Three groups that last").first.click()
    page.wait_for_url("**/clusters.html#the-idea")
    page.go_back()
    settle(page)
    assert of(page, "[it.quest.id, it.o.beta]") == ["three", 3]


def test_a_quest_begun_on_a_phone_shows_its_settings_and_chooses_no_token(opened):
    page = opened(viewport=PHONE)
    page.get_by_role("button", name="Quests", exact=True).click()
    page.get_by_role("button", name="Start here: A poke spreads").click()
    settle(page)
    assert page.locator(".play-settings").is_visible()
    assert page.locator(".play-questbox").is_hidden()
    assert "starts at" not in page.locator(".play-caption").inner_text()


@pytest.mark.parametrize("width", [1280, 1440])
def test_what_stays_in_sight_ends_before_the_quests(opened, width):
    page = opened("quest=sweep", viewport={"width": width, "height": 800})
    for y in range(0, 2400, 200):
        page.evaluate(f"scrollTo({{ top: {y}, behavior: 'instant' }})")
        tops = page.locator(".play-left, .play-questbox").evaluate_all(
            "all => all.map((one) => one.getBoundingClientRect())"
        )
        assert tops[0]["bottom"] <= tops[1]["top"], y


@pytest.mark.parametrize("size", [{"width": 1280, "height": 900}, PHONE])
def test_a_quest_begins_with_its_words_and_the_top_of_the_picture_in_sight(opened, size):
    page = opened(viewport=size)
    if size == PHONE:
        page.get_by_role("button", name="Quests", exact=True).click()
    page.get_by_role("button", name="Start here: It only looks compressed").click()
    settle(page)
    page.wait_for_timeout(600)
    seen = """one => {
        const { x, y } = one.getBoundingClientRect();
        return one.contains(document.elementFromPoint(x + 9, y + 9)); // and not the header
    }"""
    assert page.locator(".play-task").evaluate(seen)
    assert page.locator("canvas.play-stage").evaluate(seen)


def test_a_quest_can_be_left_and_its_tokens_stay(opened):
    page = opened("quest=sweep")
    page.get_by_label("scheme").select_option("lie")
    settle(page)
    status = page.locator(".play-status")
    assert status.inner_text().startswith("✓ Quest reached.")
    page.get_by_role("button", name="Leave the quest").click()
    settle(page)
    assert not status.inner_text().startswith("✓")
    assert page.locator(".play-task").is_hidden()
    assert of(page, "[it.quest, it.o.scheme]") == [None, "lie"]
    assert "quest" not in page.evaluate("location.hash")


@pytest.mark.parametrize("size", [{"width": 1280, "height": 800}, PHONE])
def test_what_the_tokens_do_stays_in_sight_while_settings_far_below_are_changed(opened, size):
    page = opened("quest=three", viewport=size)
    seed = page.get_by_label("seed")
    seed.focus()
    of(page, "it.change('beta', 8)")
    settle(page)
    status = page.locator(".play-status")
    assert status.inner_text().startswith("✓ Quest reached.")
    below, box = page.locator(".bd-header-article").bounding_box()["height"], status.bounding_box()
    assert below - 1 <= box["y"]
    assert box["y"] + box["height"] <= size["height"]
    top = seed.bounding_box()["y"]
    assert top >= (box["y"] + box["height"] if size == PHONE else below)


def test_quests_work_where_nothing_can_be_stored(browser):
    context = browser.new_context(offline=True)
    context.add_init_script(
        "Object.defineProperty(window, 'localStorage', { get() { throw new DOMException('no', 'SecurityError'); } })"
    )
    page = context.new_page()
    page.goto((HTML / PAGE).as_uri() + "#quest=sweep")
    settle(page)
    page.get_by_label("scheme").select_option("lie")
    settle(page)
    assert marked(page) == ["A sum or a sweep", "✓ reached"]
    context.close()


# How it looks


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_on_a_phone_each_part_is_a_tab_and_axe_finds_nothing_serious(browser, scheme):
    with visit(browser, PAGE, scheme=scheme, viewport=PHONE) as v:
        settle(v.page)
        for tab, part in zip(("Curves", "Quests", "Settings"), PARTS, strict=True):
            v.page.get_by_role("button", name=tab, exact=True).click()
            shown = [
                one for one in (".play-views", ".play-questbox", ".play-settings") if v.page.locator(one).is_visible()
            ]
            assert shown == [part]
            assert v.page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
            assert v.serious_faults() == []
        assert v.page.locator("canvas.play-stage").is_visible()


def test_on_a_phone_the_tokens_their_sentence_and_a_slider_share_a_screen(opened):
    page = opened(viewport=PHONE)
    page.get_by_label("sharpness β").evaluate("one => one.scrollIntoView({ block: 'end', behavior: 'instant' })")
    top, bottom = page.locator(".bd-header").bounding_box()["height"], PHONE["height"]
    for part in ("canvas.play-stage", ".play-status", ".play-row input"):
        box = page.locator(part).first.bounding_box()
        assert box["y"] >= top, part
        assert box["y"] + box["height"] <= bottom, part


def test_nothing_floats_over_what_is_to_be_pressed(opened):
    page = opened(viewport=PHONE)
    page.mouse.wheel(0, 700)
    page.wait_for_timeout(300)
    page.mouse.wheel(0, -150)
    page.wait_for_timeout(500)
    assert page.locator("#pst-back-to-top").is_hidden()


def test_a_press_on_a_name_or_the_keyboard_on_its_control_says_what_it_means(opened):
    page = opened(viewport=PHONE, touch=True)
    page.get_by_role("radio", name="all").check()
    for name, setting in kit._settings().items():
        control, says = page.locator(".play-control").nth(list(kit._settings()).index(name)), f"{setting['words']}."
        assert control.locator(".play-says").text_content() == says
    control = page.locator(".play-control").filter(has_text="leak θ")
    assert control.locator(".play-says").is_hidden()
    control.locator(".play-word").tap()
    assert control.locator(".play-says").is_visible()
    control.locator(".play-word").tap()
    assert control.locator(".play-says").is_hidden()
    page.get_by_label("value V").focus()
    page.keyboard.press("Shift+Tab")
    assert page.locator(".play-says:visible").all_inner_texts() == [f"{kit._settings()['beta']['words']}."]


def test_a_reached_quest_says_its_theorem_in_a_sentence(opened):
    page = opened("quest=sweep")
    laws = page.locator(".play-law:visible")
    assert laws.count() == 0
    page.get_by_label("scheme").select_option("lie")
    settle(page)
    says = kit._quests()["sweep"]["says"]
    assert [words.strip() for words in laws.all_inner_texts()] == [says, says]  # above the tokens and in the list


def test_everything_to_press_is_at_least_44_pixels_high(opened):
    page = opened("quest=basin", viewport=PHONE)
    page.get_by_role("radio", name="all").check()
    for tab in ("Settings", "Quests"):
        page.get_by_role("button", name=tab, exact=True).click()
        found = page.locator(
            ".pdelab-play :is(button, select, input[type=range], .play-levels span, .play-check):visible"
        )
        heights = found.evaluate_all("all => all.map((one) => one.getBoundingClientRect().height)")
        assert len(heights) > 10
        assert min(heights) >= 43.5


def test_the_pictures_follow_the_theme(opened):
    page = opened()
    light = of(page, "it.canvas.toDataURL()")
    page.evaluate("document.documentElement.dataset.theme = 'dark'")
    page.wait_for_timeout(500)
    assert of(page, "it.canvas.toDataURL()") != light


def test_paper_shows_the_picture_and_the_address_of_its_state(opened):
    page = opened("beta=9&start=sphere")
    page.emulate_media(media="print")
    assert page.locator(".play-address").inner_text() == page.url.split("/")[-1]  # no place on this disk
    assert page.locator(".pdelab-play input:visible").count() == 0
    assert page.locator("canvas.play-stage").is_visible()
    assert page.locator(".pdelab-play button:visible").count() == 0
    said = page.locator(".play-address").evaluate("one => getComputedStyle(one, '::before').content")
    assert said == '"sharpness β: 9; start: random directions "'
    of(page, "it.begin('')")
    settle(page)
    assert page.locator(".play-address").text_content() == "playground.html"


def test_paper_keeps_the_shape_of_the_pictures_and_is_white(opened):
    light = opened("beta=9", viewport=PHONE)
    dark = opened("beta=9", viewport=PHONE, scheme="dark")
    drawn = []
    for page in (light, dark):
        page.evaluate("dispatchEvent(new Event('beforeprint'))")
        drawn.append(of(page, "it.canvas.toDataURL()"))
        page.set_viewport_size({"width": 680, "height": 960})
        page.emulate_media(media="print")
        shapes = page.locator(".pdelab-play canvas:visible").evaluate_all(
            "all => all.map((one) => one.clientWidth / one.clientHeight / (one.width / one.height))"
        )
        assert shapes == pytest.approx([1] * len(shapes), abs=0.02)
    assert drawn[0] == drawn[1]
    before = of(dark, "it.canvas.toDataURL()")
    dark.evaluate("dispatchEvent(new Event('afterprint'))")
    assert of(dark, "it.canvas.toDataURL()") != before


def test_with_two_features_the_plane_is_theirs_and_with_more_it_is_said_to_be_of_largest_variance(opened):
    page = opened("d=8&matrices=random&norm=none&dt=0.05")
    assert "PCA) of 8 features" in page.locator(".play-caption").inner_text()
    axes = of(page, "it.plane.axes.map((axis) => [...axis])")
    dots = [sum(a * b for a, b in zip(axes[i], axes[j], strict=True)) for i, j in ((0, 0), (1, 1), (0, 1))]
    assert dots == pytest.approx([1, 1, 0], abs=1e-9)
    assert "PCA" not in opened().locator(".play-caption").inner_text()


# Several, and fast


@pytest.fixture
def two(browser, tmp_path):
    """Two playgrounds of a notebook in one page, each with its script."""
    path = tmp_path / "two.html"
    first, second = play(beta=9, show=["spread"], controls=["beta"]), play("basin", show=["spread"])
    path.write_text(f"<!doctype html><html lang=en><title>two</title><body>{first._repr_html_()}{second._repr_html_()}")
    with Visit(browser, path.as_uri()) as v:
        settle(v.page)
        yield v
        assert (v.external, v.complaints) == ([], [])


def test_several_on_one_page_do_not_disturb_each_other_or_the_address(two):
    page = two.page
    assert page.locator("style").count() == 1
    other = of(page, "it.o", 1)
    page.get_by_label("sharpness β").first.fill("2")
    settle(page)
    assert (of(page, "it.o.beta"), of(page, "it.o", 1)) == (2, other)
    assert page.evaluate("location.hash") == ""


def test_a_large_run_does_not_hold_up_the_page(opened):
    page = opened()
    late = of(page, "(it.set({ N: 128, d: 32, L: 128 }), Boolean(it.running))")
    assert late
    of(page, "it.set({ beta: 5 })")  # a second change waits for the first and is not lost
    page.wait_for_function("document.querySelector('.pdelab-play').play.now.beta === 5", timeout=60_000)
    assert of(page, "it.now.N") == 128


def test_the_script_stays_small_and_is_one_file_for_all_pages():
    script = kit.script().encode()
    assert len(script) <= BUDGET["as it is"]
    assert len(gzip.compress(script)) <= BUDGET["compressed"]
    assert (HTML / "_static" / kit.FILE).read_bytes() == script


def test_the_first_frame_comes_soon_after_the_script(browser):
    with visit(browser, PAGE) as v:
        settle(v.page)
        script, frame = v.page.evaluate(
            "['play-script', 'play-frame'].map((name) => performance.getEntriesByName(name)[0].startTime)"
        )
        assert frame - script < 1500  # ms, on a machine that does other things too; alone it is about 100


# The cell and its notebook


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"bета": 1}, "there is no setting 'bета'; there are beta, v,"),
        ({"beta": 99}, "beta must be a number from 0 to 25; not 99"),
        ({"beta": "sharp"}, "beta must be a number from 0 to 25; not 'sharp'"),
        ({"beta": float("nan")}, "beta must be a number from 0 to 25; not nan"),
        ({"N": True}, "N must be a number from 2 to 128; not True"),
        ({"dt": 0.123}, "dt goes in steps of 0.01, nearest is 0.12; not 0.123"),
        ({"norm": "batch"}, "norm must be one of 'none', 'circle', 'post', 'pre'; not 'batch'"),
        ({"quest": "holy grail"}, "quest must be one of three, consensus,"),
        ({"quest": "basin", "beta": 3}, "quest brings its own settings; leave out beta, or the quest"),
        ({"show": ["stage", "sound"]}, "show names 'sound'; there are stage, curves,"),
        ({"controls": ["gama"]}, "controls names 'gama'; there are beta,"),
        ({"level": 4}, r"level must be 1 \(basic\), 2 \(terms\) or 3 \(all\); not 4"),
        ({"moved": {-1: (0, 0)}}, "moved names tokens by number, 0 to 127; not -1"),
        ({"moved": {2: (0,)}}, r"moved puts token 2 at \(0,\); it needs two numbers or more"),
    ],
)
def test_play_says_what_is_wrong_and_what_would_work(given, says):
    with pytest.raises(ValueError, match=says):
        play(**given)


def test_words_of_a_cell_cannot_become_markup():
    shown = play(words="<img src=x onerror=alert(1)>", show=["spread"])._repr_html_()
    assert "<img" not in shown
    assert shown.count("</script>") == 2


def test_a_stored_notebook_holds_the_settings_and_not_the_script():
    stored = (BOOK / "playground.ipynb").read_text(encoding="utf-8")
    assert 'src=\\"play.js\\"' in stored
    assert len(stored) < 6_000


# The landing page


@pytest.mark.parametrize("size", [{"width": 1280, "height": 900}, PHONE])
def test_the_doors_of_the_book_are_on_the_first_screen(browser, size):
    with visit(browser, "book/intro.html", viewport=size) as v:
        doors = v.page.locator(".doors a")
        assert [door.inner_text() for door in doors.all()] == ["Play", "Read chapter 1", "Choose a path"]
        for door in doors.all():
            box = door.bounding_box()
            assert box["x"] >= 0
            assert box["x"] + box["width"] <= size["width"]
            assert box["y"] + box["height"] <= size["height"]


def test_who_asked_for_less_motion_finds_the_tokens_at_rest(browser):
    context = browser.new_context(offline=True, reduced_motion="reduce")
    page = context.new_page()
    page.goto((HTML / "book/intro.html").as_uri())
    settle(page)
    assert of(page, "[it.timer, it.at === it.last]") == [0, True]
    context.close()


def test_without_javascript_there_are_words_and_a_picture(browser):
    context = browser.new_context(offline=True, java_script_enabled=False)
    page = context.new_page()
    page.goto((HTML / "book/intro.html").as_uri())
    assert page.locator(".hero img").is_visible()
    assert "need JavaScript" in page.locator(".pdelab-play").inner_text()
    context.close()
