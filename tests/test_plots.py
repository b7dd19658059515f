import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="the plots extra is not installed")

from bertflow.plots import curves, heatmaps, histograms, intervals, scatters, to_svg


def drawn():
    panels = {"raw": np.array([[1.0, 2.0], [3.0, np.nan]]), "whitening": np.array([[5.0, 6.0], [7.0, 8.0]])}
    return heatmaps([("", panels)], ["layer 0", "layer 1"], ["mean", "cls"], "Spearman x 100")


def test_every_number_stands_in_its_cell():
    raw = drawn().axes[0]
    assert {text.get_text(): text.get_position() for text in raw.texts} == {"1.0": (0, 0), "2.0": (1, 0), "3.0": (0, 1)}


def test_panels_share_one_scale():
    assert {image.get_clim() for axis in drawn().axes for image in axis.images} == {(1.0, 8.0)}


def test_rows_columns_and_panels_are_named():
    raw = drawn().axes[0]
    assert [label.get_text() for label in raw.get_yticklabels()] == ["layer 0", "layer 1"]
    assert [label.get_text() for label in raw.get_xticklabels()] == ["mean", "cls"]
    assert raw.get_title() == "raw"


def test_no_window_and_no_state_is_needed():
    script = "import sys, bertflow.plots; print('matplotlib.pyplot' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "False\n"
    )


LINE = (np.arange(3.0), np.array([1.0, 2.0, 4.0]))


def test_curves_are_drawn_as_they_are_given():
    axis = curves({"raw": LINE, "flow": LINE}, "step", "bits").axes[0]
    for line in axis.lines:
        np.testing.assert_array_equal(line.get_data(), LINE)
    assert (axis.get_xlabel(), axis.get_ylabel()) == ("step", "bits")


def test_systems_differ_in_color_and_in_dashes():
    axis = curves(dict.fromkeys("abcdef", LINE), "x", "y").axes[0]
    assert len({line.get_color() for line in axis.lines}) == 6
    assert len({str(line._dash_pattern) for line in axis.lines}) == 6


def test_a_system_keeps_its_color_where_another_is_missing():
    both = curves({"raw": LINE, "flow": LINE}, "x", "y").axes[0].lines[1]
    alone = curves({"flow": LINE}, "x", "y", order=("raw", "flow")).axes[0].lines[0]
    assert alone.get_color() == both.get_color()


def test_the_reference_is_where_x_equals_y():
    axis = curves({"z": LINE}, "x", "y", reference="a Gaussian").axes[0]
    np.testing.assert_array_equal(*axis.lines[-1].get_data())


@pytest.mark.parametrize(
    ("top", "ticks"), [(1.1, ["1", "1.02"]), (30, ["1", "3", "10", "30"]), (1e6, ["1", "10", "100", "1,000", "10,000"])]
)
def test_a_logarithmic_axis_has_few_ticks_that_are_plain_numbers(top, ticks):
    axis = curves({"raw": ([1, 2], [1, top])}, "x", "y", log="y").axes[0]
    low, high = axis.get_ylim()
    shown = [text.get_text() for text in axis.get_yticklabels() if low <= text.get_position()[1] <= high]
    assert shown[: len(ticks)] == ticks
    assert len(shown) < 10


def test_histograms_share_their_axes_and_bins():
    figure = histograms(
        {"raw": {"random": np.ones(9)}, "flow": {"random": np.zeros(9)}}, np.linspace(0, 1, 5), "cosine"
    )
    assert len({axis.get_xlim() for axis in figure.axes}) == len({axis.get_ylim() for axis in figure.axes}) == 1


def test_scatters_share_their_axes_and_leave_out_what_has_no_color():
    points = np.array([[0.0, 1.0], [2.0, 3.0], [9.0, 9.0]])
    figure = scatters({"raw": points, "flow": 2 * points}, "x", "y", np.array([1.0, 2.0, np.nan]), "f")
    raw, flow = figure.axes[:2]
    np.testing.assert_array_equal(np.ma.compress_rows(raw.collections[0].get_offsets()), points[:2])
    assert raw.get_xlim() == flow.get_xlim()


def test_many_panels_stand_in_rows_of_three():
    points = np.ones((2, 2))
    figure = scatters(dict.fromkeys(["a", "b", "c", "d", "e"], points), "x", "y", None, "")
    titles = [axis.get_title() for axis in figure.axes]
    assert titles == ["a", "b", "c", "d", "e"]
    assert figure.axes[0].get_gridspec().get_geometry() == (2, 3)


def test_a_frame_bounds_a_scatter_and_marks_the_origin():
    frame = np.array([[-1.0, -2.0], [3.0, 4.0]])
    axis = scatters({"raw": np.ones((2, 2))}, "x", "y", None, "", frame).axes[0]
    assert (*axis.get_xlim(), *axis.get_ylim()) == (-1, 3, -2, 4)
    assert axis.lines[0].get_data() == ([0], [0])


def test_intervals_stand_in_their_order_from_the_top():
    axis = intervals({"raw": (5.0, 4.0, 6.0), "flow": (7.0, 6.5, 7.5)}, "Spearman").axes[0]
    assert [label.get_text() for label in axis.get_yticklabels()] == ["raw", "flow"]
    assert axis.lines[0].get_xdata().tolist() == [4, 6]
    assert axis.lines[0].get_ydata()[0] > axis.lines[2].get_ydata()[0]


def test_an_svg_has_no_letters_and_equal_figures_are_equal_bytes():
    drawn = [to_svg(curves({"raw": LINE}, "step", "bits")) for _ in range(2)]
    assert drawn[0] == drawn[1]
    assert b"<text" not in drawn[0]
    assert b"<svg" in drawn[0]
