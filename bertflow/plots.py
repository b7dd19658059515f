"""The one door to matplotlib: numbers in, a Figure out; the caller saves it.

Figures are made without pyplot, so no display, no window and no state. Colors are from palettes that color-blind
readers can read (Okabe and Ito's for systems, which also differ in their dashes; cividis for a scale), and every cell
of a heatmap has its number.
"""

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertflow.errors import needs
from bertflow.files import atomic_file

with needs("matplotlib", "plots"):
    from matplotlib import rc_context
    from matplotlib.figure import Figure as Figure  # also for those who draw with it

Float64 = NDArray[np.float64]
PALETTE = "cividis"
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's, those that stand out on white first."""
DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (1, 1)), (0, (3, 1, 1, 1)))
GREY = "#666666"
CELL = (0.75, 0.42)
"""Inches: width and height of a cell."""
DARK = 0.5
"""Below this share of the color scale a number is white."""
WIDTH = 8.6
"""Inches: width of a figure of a report."""
HEIGHT = 3.6
COLUMNS = 3
"""Panels of points in a row."""
BINS = 60
"""Of a histogram."""


@dataclass(frozen=True)
class Axis:
    """How an axis of a figure is drawn.

    Attributes:
        label: What it shows.
        log: Whether it is logarithmic.
        ticks: Names at 0, 1, 2, ... instead of numbers.
    """

    label: str
    log: bool = False
    ticks: tuple[str, ...] = ()


def heatmaps(
    panels: Mapping[str, NDArray[np.float64]],
    rows: Sequence[str],
    columns: Sequence[str],
    title: str,
    decimals: int = 1,
) -> Figure:
    """Matrices of one shape side by side, on one color scale; a NaN is an empty cell.

    Args:
        panels: A matrix (rows, columns) by its title.
        rows: Their labels, from the top.
        columns: Their labels.
        title: Title of the figure: what the numbers are.
        decimals: Decimals of the numbers in the cells.
    """
    width, height = CELL[0] * len(columns) + 0.6, CELL[1] * len(rows) + 1.6
    figure = Figure(figsize=(width * len(panels) + 0.8, height), layout="constrained")
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    shade(figure, axes, panels, rows, columns, decimals)
    figure.suptitle(title)
    return figure


def shade(
    figure: Figure,
    axes: Sequence[Any],
    panels: Mapping[str, Float64],
    rows: Sequence[str],
    columns: Sequence[str],
    decimals: int = 1,
    label: str = "",
) -> None:
    """Draw matrices of one shape on one color scale, each cell with its number.

    Args:
        figure: Which also gets the scale.
        axes: One for each matrix.
        panels: A matrix (rows, columns) by its title; a NaN is an empty cell.
        rows: Row labels, from the top.
        columns: Column labels.
        decimals: Decimals of the numbers in the cells.
        label: Label of the color scale.
    """
    values = np.concatenate([matrix.ravel() for matrix in panels.values()])
    low = float(np.nanmin(values))
    spread = float(np.nanmax(values)) - low or 1.0
    for axis, (name, matrix) in zip(axes, panels.items(), strict=True):
        image = axis.imshow(matrix, cmap=PALETTE, vmin=low, vmax=low + spread, aspect="auto")
        axis.set_title(name)
        axis.set_xticks(range(len(columns)), columns, rotation=45, ha="right")
        axis.set_yticks(range(len(rows)), rows)
        for (row, column), value in np.ndenumerate(matrix):
            if np.isfinite(value):
                color = "white" if value < low + DARK * spread else "black"
                axis.text(column, row, f"{value:.{decimals}f}", ha="center", va="center", fontsize=8, color=color)
    figure.colorbar(image, ax=list(axes), shrink=0.8, label=label)


def curves(
    lines: Mapping[str, tuple[Float64, Float64]], x: Axis, y: Axis, reference: str = "", order: Sequence[str] = ()
) -> Figure:
    """Lines in the same axes, each by its name.

    Args:
        lines: Points (x, y) by name.
        x: The horizontal axis.
        y: The vertical axis.
        reference: Name of a thin grey line where x equals y; none if empty.
        order: Names in the order of the colors, so that a system has one color throughout a report; by default lines'.
    """
    figure, axis = _one(x, y)
    places = {name: at for at, name in enumerate(order or lines)}
    for name, (across, up) in lines.items():
        at = places[name]
        marker = "o" if len(across) <= 20 else None
        axis.plot(across, up, color=_color(at), linestyle=_dashes(at), marker=marker, markersize=4, label=name)
    if reference:
        ends = [min(axis.get_xlim()[0], axis.get_ylim()[0]), max(axis.get_xlim()[1], axis.get_ylim()[1])]
        axis.plot(ends, ends, color=GREY, linewidth=0.8, label=reference, zorder=0)
    # Above the axes, where it covers no line.
    figure.legend(loc="outside upper left", ncols=3, frameon=False, fontsize=9)
    return figure


def histograms(panels: Mapping[str, Mapping[str, Float64]], x: Axis) -> Figure:
    """Densities of some samples, a panel below the other, in equal axes.

    Args:
        panels: By the name of the panel, samples by their own names; equal names in every panel have equal colors.
        x: The horizontal axis of all panels.
    """
    figure = Figure(figsize=(WIDTH, 0.9 + 1.5 * len(panels)), layout="constrained")
    axes = figure.subplots(len(panels), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    everything = np.concatenate([sample for samples in panels.values() for sample in samples.values()])
    edges = np.linspace(everything.min(), everything.max() + 1e-9, BINS + 1)
    for axis, (panel, samples) in zip(axes, panels.items(), strict=True):
        for at, (name, sample) in enumerate(samples.items()):
            look = {"color": _color(at), "linestyle": _dashes(at)}
            axis.hist(sample, edges, density=True, histtype="stepfilled", alpha=0.25, color=_color(at))
            axis.hist(sample, edges, density=True, histtype="step", label=name, linewidth=1.4, **look)
        axis.set_title(panel, fontsize=10, loc="left")
        axis.set_yticks([])
        _plain(axis)
    names = axes[0].get_legend_handles_labels()
    figure.legend(*names, loc="outside upper left", ncols=3, frameon=False, fontsize=9)
    axes[-1].set_xlabel(x.label)
    figure.supylabel("density", fontsize=10)
    return figure


def scatters(
    panels: Mapping[str, Float64],
    x: Axis,
    y: Axis,
    color: Float64 | None = None,
    scale: str = "",
    frame: Float64 | None = None,
) -> Figure:
    """Points side by side in equal axes, at most ``COLUMNS`` in a row.

    Args:
        panels: Points (n, 2) by the name of the panel; the same n points in each.
        x: The horizontal axis.
        y: The vertical axis.
        color: Of each point (n,), on a scale; a NaN is not drawn. One color if None.
        scale: What the colors mean.
        frame: Lower left and upper right corner (2, 2) of what is shown, in which (0, 0) is marked; all points if None.
    """
    columns = min(COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    figure = Figure(figsize=(WIDTH, 0.6 + rows * WIDTH / max(2, columns)), layout="constrained")
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).ravel()
    axes = grid[: len(panels)]
    for unused in grid[len(panels) :]:
        unused.remove()
    for lowest in axes[-columns:]:
        lowest.tick_params(labelbottom=True)  # also where the row below is not full
    for axis, (panel, points) in zip(axes, panels.items(), strict=True):
        shown = np.ones(len(points), dtype=bool) if color is None else np.isfinite(color)
        values = COLORS[0] if color is None else color[shown]
        dots = axis.scatter(*points[shown].T, c=values, cmap=None if color is None else PALETTE, s=7, rasterized=True)
        if frame is not None:
            axis.plot(0, 0, marker="+", markersize=14, markeredgewidth=2, color=COLORS[1])
            axis.set(xlim=frame[:, 0], ylim=frame[:, 1])
        axis.set_title(panel, fontsize=10)
        _plain(axis)
    figure.supxlabel(x.label, fontsize=10)
    figure.supylabel(y.label, fontsize=10)
    if color is not None:
        figure.colorbar(dots, ax=list(axes), label=scale, shrink=0.8)
    return figure


def intervals(rows: Mapping[str, tuple[float, float, float]], x: Axis) -> Figure:
    """A dot with its interval for each name, from the top.

    Args:
        rows: Value, lower and upper end by name.
        x: The horizontal axis.
    """
    figure = Figure(figsize=(WIDTH, 0.9 + 0.42 * len(rows)), layout="constrained")
    axis = figure.subplots()
    for at, (value, low, high) in enumerate(rows.values()):
        axis.plot([low, high], [-at, -at], color=_color(at), linewidth=3, alpha=0.5, solid_capstyle="butt")
        axis.plot(value, -at, marker="o", color=_color(at))
    axis.set_yticks([-at for at in range(len(rows))], list(rows))
    axis.set_ylim(-len(rows) + 0.4, 0.6)
    axis.set_xlabel(x.label)
    _plain(axis)
    return figure


def save_figure(figure: Figure, path: str | Path) -> None:
    """Write a figure as SVG or PNG, as the name ends, whole or not at all; equal figures are equal bytes."""
    with atomic_file(path) as aside:
        if Path(path).suffix == ".svg":
            aside.write_bytes(to_svg(figure))
        else:
            figure.savefig(aside, format="png", dpi=150, metadata={"Software": None})


def to_svg(figure: Figure) -> bytes:
    """A figure as SVG, its letters as shapes, so that it needs no font; equal figures are equal bytes."""
    drawn = io.BytesIO()
    with rc_context({"svg.hashsalt": "bertflow", "svg.fonttype": "path"}):
        figure.savefig(drawn, format="svg", dpi=130, metadata={"Date": None, "Creator": None})
    return drawn.getvalue()


def _one(x: Axis, y: Axis) -> tuple[Figure, Any]:
    figure = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
    axis = figure.subplots()
    axis.set_xlabel(x.label)
    axis.set_ylabel(y.label)
    if x.log:
        axis.set_xscale("log")
    if y.log:
        axis.set_yscale("log")
    if x.ticks:
        axis.set_xticks(range(len(x.ticks)), x.ticks)
    _plain(axis)
    return figure, axis


def _plain(axis: Any) -> None:
    """No frame but the two axes."""
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)


def _color(at: int) -> str:
    return COLORS[at % len(COLORS)]


def _dashes(at: int) -> Any:
    return DASHES[at % len(DASHES)]
