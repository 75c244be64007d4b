import matplotlib as mpl
from matplotlib.figure import Figure

from pdelab import plots


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
