import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("matplotlib", reason="the plots extra is not installed")

from bertflow.analysis.plots import heatmaps, save_figure


def drawn():
    panels = {"raw": np.array([[1.0, 2.0], [3.0, np.nan]]), "whitening": np.array([[5.0, 6.0], [7.0, 8.0]])}
    return heatmaps(panels, ["layer 0", "layer 1"], ["mean", "cls"], "Spearman x 100")


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


def test_equal_figures_are_equal_bytes(tmp_path):
    for name in ("a.png", "b.png"):
        save_figure(drawn(), tmp_path / name)
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


def test_no_window_and_no_state_is_needed():
    script = "import sys, bertflow.analysis.plots; print('matplotlib.pyplot' in sys.modules)"
    assert (
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "False\n"
    )


def test_without_matplotlib_the_pip_line_is_given():
    script = (
        "import sys; sys.modules['matplotlib.figure'] = None\n"
        "try: import bertflow.analysis.plots\n"
        "except ImportError as error: print(type(error).__name__, error)"
    )
    finished = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert finished.stdout == (
        "MissingExtraError This needs the package matplotlib. Install it with: pip install 'bertflow[plots]'\n"
    )
