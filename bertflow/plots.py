"""The only module that imports matplotlib. Each function takes numbers and returns a Figure; the caller saves it.

Figures are made without pyplot, so they need no display and keep no global state. The colors suit color-blind readers:
Okabe and Ito's palette for systems, which also differ in their dashes, and cividis for scales. Every cell of a heatmap
shows its number.
"""

import io
import textwrap
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertflow.array_types import Float64
from bertflow.errors import needs
from bertflow.files import atomic_file

with needs("matplotlib", "plots"):
    import matplotlib.backends.backend_svg
    from matplotlib.figure import Figure as Figure  # also for those who draw with it

PALETTE = "cividis"
COLORS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's palette; the colors with most contrast on white come first."""
DASHES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (1, 1)), (0, (3, 1, 1, 1)))
GREY = "#666666"
LEGEND: dict[str, Any] = {"loc": "outside upper left", "frameon": False, "fontsize": 9}
CELL = (0.75, 0.42)
"""Width and height of a cell, in inches."""
DARK = 0.5
"""Share of the color scale below which a number is white."""
WIDTH = 4.8
"""Width of a figure of the report, in inches: on a telephone it is shrunk by a quarter, and can still be read."""
LETTER = 0.075
"""Width of a letter of a legend or a tick, in inches."""
LABEL = 30
"""Letters of a line of a vertical label."""
UNDATED: Mapping[str, tuple[str, ...]] = {"png": ("Software",), "pdf": ("CreationDate",), "svg": ("Date", "Creator")}
"""Kind of a file of a picture -> what is left out of it, so that equal pictures are equal bytes."""
COLUMNS = 3
"""Panels of points side by side."""


def heatmaps(
    scales: Sequence[tuple[str, Mapping[str, Float64]]],
    rows: Sequence[str],
    columns: Sequence[str],
    title: str,
    decimals: int = 1,
    across: int = 0,
) -> Figure:
    """Matrices of one shape, each cell with its number; a NaN is an empty cell.

    Args:
        scales: The label of each color scale, with its matrices (rows, columns) by their titles.
        rows: Row labels, from the top.
        columns: Column labels, from the left.
        title: Title of the figure: what the numbers are.
        decimals: Decimals of the numbers in the cells.
        across: Matrices side by side (default: all).
    """
    count = sum(len(panels) for _, panels in scales)
    across = across or count
    width, height = CELL[0] * len(columns) + 0.6, CELL[1] * len(rows) + 1.6
    figure = Figure(figsize=(width * across + 0.8, height * (count // across)), layout="constrained")
    grid = iter(figure.subplots(count // across, across, sharey=True, squeeze=False).flat)
    for label, panels in scales:
        axes = list(islice(grid, len(panels)))
        values = np.stack(list(panels.values()))
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
        figure.colorbar(image, ax=axes, shrink=0.8, label=label)
    figure.suptitle(title)
    return figure


def curves(
    lines: Mapping[str, Any],
    x: str,
    y: str,
    log: str = "",
    ticks: Sequence[str] = (),
    reference: str = "",
    order: Sequence[str] = (),
    mark: tuple[float, str] | None = None,
) -> Figure:
    """Lines in the same axes, each with its name.

    Args:
        lines: Points (x, y) by name; with ``ticks`` only y.
        x: Label of the horizontal axis.
        y: Label of the vertical axis.
        log: The logarithmic axes: "", "x", "y" or "xy".
        ticks: Names at x = 0, 1, 2, ... instead of numbers.
        reference: Name of a thin grey line where x equals y; none if empty.
        order: Names in the order of the colors, so that a system keeps its color throughout a report (default: the
            order of ``lines``).
        mark: Place on the horizontal axis of a vertical line, and its name.
    """
    figure, (axis,) = _panels()
    axis.set(xlabel=x, ylabel=textwrap.fill(y, LABEL), **{f"{name}scale": "log" for name in log})
    if ticks:
        crowded = LETTER * sum(map(len, ticks)) > 0.6 * WIDTH
        axis.set_xticks(range(len(ticks)), ticks, **({"rotation": 25, "ha": "right"} if crowded else {}))
    for name, points in lines.items():
        across, up = (range(len(ticks)), points) if ticks else points
        look = _look(list(order or lines).index(name))
        axis.plot(across, up, marker="o" if len(across) <= 20 else None, markersize=4, label=name, **look)
    for name in log:  # few ticks, and no exponents, which take long to draw
        scale, (low, high) = getattr(axis, f"{name}axis"), getattr(axis, f"get_{name}lim")()
        decades = matplotlib.ticker.LogLocator(subs=(1, 3) if high < 1000 * low else (1,))
        scale.set_major_locator(decades if high > 10 * low else matplotlib.ticker.AutoLocator())
        axis.minorticks_off()
        scale.set_major_formatter("{x:,.10g}")
    if reference:
        ends = [min(axis.get_xlim()[0], axis.get_ylim()[0]), max(axis.get_xlim()[1], axis.get_ylim()[1])]
        axis.plot(ends, ends, color=GREY, linewidth=0.8, label=reference, zorder=0)
    if mark:
        axis.axvline(mark[0], color=GREY, linewidth=1.2, linestyle=(0, (4, 2)), label=mark[1], zorder=0)
    _name_lines(figure, axis)
    return figure


def histograms(panels: Mapping[str, Mapping[str, Float64]], edges: Float64, x: str) -> Figure:
    """Densities of samples, in panels of equal axes, one below the other.

    Args:
        panels: Samples by name, by the title of the panel. Every panel has the same names, in the same order.
        edges: Edges of the bins.
        x: Label of the horizontal axis.
    """
    figure, axes = _panels(0.9 + 1.1 * len(panels), rows=len(panels))
    for axis, (panel, samples) in zip(axes, panels.items(), strict=True):
        for at, (name, sample) in enumerate(samples.items()):
            axis.hist(sample, edges, density=True, histtype="stepfilled", alpha=0.25, color=_look(at)["color"])
            axis.hist(sample, edges, density=True, histtype="step", label=name, linewidth=1.4, **_look(at))
        axis.set_title(panel, fontsize=10, loc="left")
        axis.set_yticks([])
    _name_lines(figure, axes[0])
    axes[-1].set_xlabel(x)
    figure.supylabel("density", fontsize=10)
    return figure


def scatters(
    panels: Mapping[str, Float64], x: str, y: str, color: Float64 | None, scale: str, frame: Float64 | None = None
) -> Figure:
    """Points in panels of equal axes, at most ``COLUMNS`` side by side.

    Args:
        panels: Points (n, 2) by the title of the panel; row i is the same point in every panel.
        x: Label of the horizontal axis.
        y: Label of the vertical axis.
        color: Value (n,) that decides the color of each point; a point whose value is NaN is not drawn. If None, all
            points have one color.
        scale: Label of the color scale.
        frame: Lower left and upper right corner (2, 2) of the part that is shown, with the origin marked (default: all
            points, without a mark).
    """
    columns = min(COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    figure, grid = _panels(0.5 + 0.6 * (color is not None) + rows * WIDTH / max(2, columns), rows, columns)
    axes = grid[: len(panels)]
    for unused in grid[len(panels) :]:
        unused.remove()
    for lowest in axes[-columns:]:
        lowest.tick_params(labelbottom=True)  # also above the gaps of a last row that is not full
    look = {"c": COLORS[0]} if color is None else {"c": color, "cmap": PALETTE}
    for axis, (panel, points) in zip(axes, panels.items(), strict=True):
        dots = axis.scatter(*points.T, **look, s=7, rasterized=True)
        if frame is not None:
            axis.plot(0, 0, marker="+", markersize=14, markeredgewidth=2, color=COLORS[1])
            axis.set(xlim=frame[:, 0], ylim=frame[:, 1])
        axis.set_title(panel.replace("+", "+\n"), fontsize=10)  # a long name is wider than its panel
        axis.tick_params(labelsize=8)
        axis.locator_params(nbins=4)
    figure.supxlabel(x, fontsize=10)
    figure.supylabel(y, fontsize=10)
    if color is not None:
        figure.colorbar(dots, ax=list(axes), label=scale, shrink=0.8, location="top", aspect=40)
    return figure


def intervals(rows: Mapping[str, tuple[float, float, float]], x: str) -> Figure:
    """A dot with its interval for each name, from the top.

    Args:
        rows: Value, lower and upper end by name.
        x: Label of the horizontal axis.
    """
    figure, (axis,) = _panels(0.9 + 0.42 * len(rows))
    for at, (value, low, high) in enumerate(rows.values()):
        color = _look(at)["color"]
        axis.plot([low, high], [-at, -at], color=color, linewidth=3, alpha=0.5, solid_capstyle="butt")
        axis.plot(value, -at, marker="o", color=color)
    axis.set_yticks([-at for at in range(len(rows))], list(rows))
    axis.set(xlabel=x, ylim=(-len(rows) + 0.4, 0.6))
    return figure


def save_figure(figure: Figure, path: str | Path) -> None:
    """Write a figure as SVG, PNG or PDF, by the ending of the path. Equal figures give equal bytes."""
    kind = Path(path).suffix[1:]
    with atomic_file(path) as aside:
        if kind == "svg":
            aside.write_bytes(to_svg(figure))
        else:
            figure.savefig(aside, format=kind, dpi=150, metadata=dict.fromkeys(UNDATED[kind]))


def to_svg(figure: Figure) -> bytes:
    """A figure as SVG. Letters are drawn as shapes, so no font is needed. Equal figures give equal bytes."""
    drawn = io.BytesIO()
    figure.set_dpi(130)
    with matplotlib.rc_context({"svg.hashsalt": "bertflow", "svg.fonttype": "path"}):
        # Not by savefig, which draws twice where there is a layout; the bytes are the same.
        canvas = matplotlib.backends.backend_svg.FigureCanvasSVG(figure)
        canvas.print_svg(drawn, metadata=dict.fromkeys(UNDATED["svg"]))
    return drawn.getvalue()


def _name_lines(figure: Figure, axis: Any) -> None:
    """The names of the lines of a panel above all panels, where they cover nothing."""
    handles, names = axis.get_legend_handles_labels()
    widest = 0.6 + LETTER * max(map(len, names))
    figure.legend(handles, names, ncols=max(1, min(len(names), int(WIDTH / widest))), **LEGEND)


def _panels(height: float = 3.0, rows: int = 1, columns: int = 1) -> tuple[Figure, NDArray[Any]]:
    """A figure of the report, and its panels of equal axes (rows * columns,), row by row."""
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).ravel()
    for axis in grid:
        axis.spines[["top", "right"]].set_visible(False)
    return figure, grid


def _look(at: int) -> dict[str, Any]:
    """Color and dashes of the system at a place."""
    return {"color": COLORS[at % len(COLORS)], "linestyle": DASHES[at % len(DASHES)]}
