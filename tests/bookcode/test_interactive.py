import json
import re

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from pdebook import explore, plots

X = np.linspace(0, 1, 50)


def curve(ax, k):
    ax.plot(X, k * X**2)
    ax.set(xlabel="x", ylabel="y")


def curve2(ax, ends, t):
    curve(ax, t + (ends == "open"))


def heat_map(ax, k):
    ax.imshow(np.outer(X, X) * k, vmin=0, vmax=3)
    ax.set(xlabel="token", ylabel="feature")


def data(figure):
    return json.loads(re.search(r'<script type="application/json">(.*?)</script>', figure.html, re.DOTALL)[1])


def test_curves_become_one_svg_and_coordinates():
    figure = explore(curve, k=[1, 2, 3])
    assert figure.kind == "curves"
    assert figure.html.count("<svg") == 1
    assert len({frame[0] for frame in data(figure)["frames"]}) == 3
    assert len(figure.html) < 25_000


def test_other_figures_become_webp_frames():
    figure = explore(heat_map, k=[1, 2, 3])
    assert figure.kind == "frames"
    frames = data(figure)["frames"]
    assert len(set(frames)) == 3
    assert all(frame.startswith("UklGR") for frame in frames)  # RIFF in base64


def test_frames_that_change_their_parts_become_pictures():
    def draw(ax, n):
        for _ in range(n):
            ax.plot(X, X)

    assert explore(draw, n=[1, 2]).kind == "frames"


def test_a_function_without_ax_returns_its_own_figure():
    def draw(k):
        figure = Figure()
        for ax in figure.subplots(1, 2):
            ax.plot(X, k * X)
        return figure

    assert explore(draw, k=[1.0, 2.0]).kind == "curves"
    one = Figure()
    with pytest.raises(ValueError, match="a new Figure each time"):
        explore(lambda k: one, k=[1, 2])
    with pytest.raises(ValueError, match="must return a Figure"):
        explore(lambda k: None, k=[1, 2])


def test_the_axes_agree_in_every_frame_and_stay_inverted_where_they_were():
    figure = explore(curve, k=[1, 10])
    assert "ylim" in figure._axes[0]
    assert figure._axes[0]["ylim"][1] >= 10
    low, high = explore(heat_map, k=[1, 2])._axes[0]["ylim"]
    assert low > high


def test_the_output_is_the_same_each_time():
    """A stored notebook must not change when nothing did."""
    assert explore(curve, k=[1, 2]).html == explore(curve, k=[1, 2]).html


def test_every_combination_of_sliders_has_its_frame():
    def draw(ax, a, b):
        ax.plot(X, a + b * X)

    figure = explore(draw, a=[0, 1, 2], b=torch.linspace(0, 1, 4))
    assert len(data(figure)["frames"]) == 12
    assert [len(v) for v in data(figure)["values"]] == [3, 4]


def test_numbers_get_a_slider_and_words_a_menu_both_labelled():
    def draw(ax, k, scheme):
        ax.plot(X, k * X if scheme == "Euler" else -k * X)

    html = explore(draw, k=[1, 2], scheme=["Euler", "Heun"], labels={"k": "strength"}).html
    assert html.count('type="range"') == html.count("<select") == 1
    assert re.search(r"<label[^>]*><span[^>]*>strength</span><input", html)
    assert re.search(r"<label[^>]*><span[^>]*>scheme</span><select", html)


def test_it_starts_where_it_is_told():
    figure = explore(curve, k=[1, 2, 3], start={"k": 3})
    assert 'value="2"' in figure.html
    assert "k 3" in re.search(r'aria-label="([^"]*)"', figure.html)[1]


def test_alternative_text_comes_from_the_author_the_docstring_or_the_axes():
    def documented(ax, k):
        """A parabola."""
        curve(ax, k)

    assert explore(curve, k=[1, 2], alt=lambda k: f"slope {k}").alts == ["slope 1", "slope 2"]
    assert explore(documented, k=[1, 2]).alts == ["A parabola."] * 2
    assert explore(curve, k=[1, 2]).alts[1] == "y against x, at k 2"


def test_text_from_the_author_cannot_break_the_page():
    figure = explore(
        curve, k=[1, 2], alt='a "</script><!--<script><b>" text', caption="<b>bold</b>", labels={"k": "<i>k</i>"}
    )
    assert "<b>" not in figure.html
    assert "<i>" not in figure.html
    assert figure.html.count("</script>") == 2


def test_with_a_kernel_a_move_draws_anew():
    calls = []

    def draw(ax, k):
        calls.append(k)
        curve(ax, k)

    figure = explore(draw, k=[1, 2, 3])
    widget = figure.widget()
    picture, slider = widget.children[:2]
    before, calls[:] = picture.value, []
    slider.value = 3
    assert calls == [3]
    assert picture.value != before
    assert picture.value.startswith("<svg")


def test_an_error_in_draw_is_shown_to_the_reader():
    def draw(ax, k):
        ax.plot(X, X * k)
        if broken and k == 2:
            raise RuntimeError("k is <too> large")

    broken = False
    figure = explore(draw, k=[1, 2])
    broken = True
    assert "RuntimeError: k is &lt;too&gt; large" in figure.picture(k=2)


def test_a_notebook_gets_the_widget_and_the_plain_html():
    bundle = explore(curve, k=[1, 2])._repr_mimebundle_()
    assert {"application/vnd.jupyter.widget-view+json", "text/html", "text/plain"} <= bundle.keys()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "at least one slider"),
        ({"k": 3}, "slider k needs a list"),
        ({"k": "abc"}, "slider k needs a list"),
        ({"k": [1]}, "at least two values"),
        ({"k": [1, 1]}, "all different"),
        ({"k": [[1, 2], [3, 4]]}, "slider k needs numbers or words"),
        ({"k": np.ones((2, 2))}, "slider k needs numbers or words"),
        ({"k": [1.0, float("nan")]}, "slider k needs numbers or words"),
        ({"k": range(200)}, "200 k = 200 frames; keep the product at or below 150"),
        ({"k": [1, 2], "labels": {"q": "?"}}, r"labels names \['q'\]"),
        ({"k": [1, 2], "start": {"k": 9}}, "start gives k=9"),
    ],
)
def test_wrong_sliders_are_refused_by_name(arguments, words):
    with pytest.raises(ValueError, match=words):
        explore(curve, **arguments)
    with pytest.raises(ValueError, match="draw must be a function"):
        explore("curve", k=[1, 2])


def test_every_part_that_the_picture_refers_to_is_there():
    """Clip paths and markers are named by id; a figure that lost them draws nothing."""

    def draw(ax, k):
        ax.plot(X, k * X, "o-")

    html = explore(draw, k=[1, 2]).html
    used = set(re.findall(r'(?:url\(#|href="#)([\w-]+)', html))
    assert used
    assert used == set(re.findall(r' id="([\w-]+)"', html))


def test_a_title_that_changes_is_data_too():
    def draw(ax, k):
        ax.plot(X, X)
        ax.set_title(f"k = {k}")

    figure = explore(draw, k=[-1, 2])
    assert figure.kind == "curves"
    assert {"k = -1", "k = 2"} <= {value for frame in data(figure)["frames"] for value in frame}
    assert data(figure)["values"] == [["−1", "2"]]


def test_limits_that_the_author_set_stay():
    def draw(ax, k):
        ax.plot(X, k * X)
        ax.set_ylim(-7, 7)

    assert "ylim" not in explore(draw, k=[1, 2])._axes[0]


def test_figures_of_different_size_are_pictures():
    def draw(k):
        figure = Figure(figsize=(k, 3))
        figure.subplots().plot(X, X)
        return figure

    assert explore(draw, k=[3, 4]).kind == "frames"


def test_the_book_s_style_is_used():
    def draw(ax, k):
        assert ax.figure.get_size_inches().tolist() == list(plots.STYLE["figure.figsize"])
        ax.plot(X, k * X)

    assert plots.COLOURS["transformer"].lower() in explore(draw, k=[1, 2]).html.lower()


def test_frames_stay_pictures_when_drawn_live():
    assert explore(heat_map, k=[1, 2]).picture(k=2).startswith('<img src="data:image/webp')


def test_a_play_button_names_the_slider_that_it_moves():
    figure = explore(curve2, ends=["open", "closed"], t=[0, 1, 2], play="t")
    assert data(figure)["play"] == 1
    assert "▶ Play</button>" in figure.html
    slider, player = figure.widget().children[2:4]
    player.value = 2
    assert slider.value == 2
    slider.index = 1
    assert player.value == 1
    assert "<button" not in explore(curve, k=[1, 2]).html


@pytest.mark.parametrize("name", ["k", "ends"])
def test_only_a_slider_of_numbers_can_be_played(name):
    with pytest.raises(ValueError, match=rf"play names '{name}'; the sliders of numbers are \['t'\]"):
        explore(curve2, ends=["open", "closed"], t=[0, 1, 2], play=name)


def test_the_sentence_stands_under_the_picture():
    figure = explore(curve, k=[1, 2], alt=lambda k: f"k is <{k}>")
    assert '<p class="says" aria-live="polite">k is &lt;1&gt;</p>' in figure.html
    assert figure.picture(k=2).endswith('<p class="says" aria-live="polite">k is &lt;2&gt;</p>')
