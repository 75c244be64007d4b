import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pdebook import plots
from pdebook.ledger.record import interval


def test_the_book_s_style_is_taken_over_and_can_be_left_again():
    with mpl.rc_context():
        plots.use_style()
        assert {key: mpl.rcParams[key] for key in ("font.size", "axes.grid", "figure.dpi")} == {
            key: plots.STYLE[key] for key in ("font.size", "axes.grid", "figure.dpi")
        }


def test_a_logarithmic_axis_shows_the_values_that_were_measured():
    ax = Figure().add_subplot()
    ax.loglog([8, 128], [1, 2])
    plots.label_x(ax, (8, 32, 128))
    assert [label.get_text() for label in ax.get_xticklabels()] == ["8", "32", "128"]
    assert len(ax.get_xticks(minor=True)) == 0


def test_stacked_bars_end_where_the_positive_and_the_negative_parts_add_up():
    ax = Figure().add_subplot()
    table = [[1.0, -2.0, 3.0], [0.5, 0.25, -0.25]]
    plots.stacked_bars(ax, ("A", "S", "R"), table)
    tops = [max(p.get_y() + p.get_height() for p in ax.patches[row::2]) for row in (0, 1)]
    feet = [min(p.get_y() + min(p.get_height(), 0) for p in ax.patches[row::2]) for row in (0, 1)]
    assert tops == [4.0, 0.75]
    assert feet == [-2.0, -0.25]
    assert ax.get_legend_handles_labels()[1] == ["A", "S", "R"]


def test_intervals_reach_from_low_to_high():
    ax = Figure().add_subplot()
    plots.with_intervals(ax, [0, 1], [interval([1.0, 2.0, 3.0]), interval([5.0, 5.5, 6.0])], label="seen")
    _, _, (bars,) = ax.containers[0]
    low, high = bars.get_segments()[0][:, 1]
    found = interval([1.0, 2.0, 3.0])
    assert (low, high) == pytest.approx((found.low, found.high))


def test_a_numbered_map_shows_its_numbers():
    ax = Figure().add_subplot()
    image = plots.numbered_map(ax, [[1.0, -3.0]], ("a", "b"), ("c",), 4.0)
    assert [text.get_text() for text in ax.texts] == ["+1.0", "-3.0"]
    assert [text.get_color() for text in ax.texts] == ["black", "white"]
    assert image.get_clim() == (-4.0, 4.0)


def test_heat_maps_share_one_scale_and_have_a_key():
    figure = Figure()
    maps = np.arange(24.0).reshape(2, 3, 4)
    plots.heat_maps(figure, {"one": maps, "other": -2 * maps}, ("digit 7", "digit 2"))
    images = [image for ax in figure.axes for image in ax.images]
    assert [image.get_clim() for image in images] == [(-46.0, 46.0)] * 4
    assert figure.axes[0].get_title() == "one"
    assert figure.axes[-1].get_ylabel() == "state, mean over the tokens"


def test_the_picture_of_the_four_terms_names_each_of_them():
    figure = Figure()
    plots.four_terms(figure, [[0.0, 1.0], [1.0, 0.0]])
    titles = " ".join(ax.get_title(loc="left") for ax in figure.findobj(Axes))
    for word in ("interaction", "reaction", "diffusion", "stabilisation"):
        assert word in titles
