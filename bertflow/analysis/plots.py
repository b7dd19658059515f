"""The one door to matplotlib: numbers in, a Figure out; whoever asked for it saves it.

Figures are made without pyplot, so no display, no window and no state. Colors are from palettes that color-blind
readers can read, and every cell has its number.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bertflow.errors import MissingExtraError
from bertflow.files import atomic_file

try:
    from matplotlib.figure import Figure
except ImportError:
    raise MissingExtraError("matplotlib", "plots") from None

PALETTE = "cividis"
CELL = (0.75, 0.42)
"""Inches: width and height of a cell."""
DARK = 0.5
"""Below this share of the color scale a number is white."""


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
        title: Of the figure: what the numbers are.
        decimals: Of the numbers in the cells.
    """
    width, height = CELL[0] * len(columns) + 0.6, CELL[1] * len(rows) + 1.6
    figure = Figure(figsize=(width * len(panels) + 0.8, height), layout="constrained")
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    values = np.concatenate([matrix.ravel() for matrix in panels.values()])
    low, high = float(np.nanmin(values)), float(np.nanmax(values))
    for axis, (name, matrix) in zip(axes, panels.items(), strict=True):
        image = axis.imshow(matrix, cmap=PALETTE, vmin=low, vmax=high, aspect="auto")
        axis.set_title(name)
        axis.set_xticks(range(len(columns)), columns, rotation=45, ha="right")
        axis.set_yticks(range(len(rows)), rows)
        for (row, column), value in np.ndenumerate(matrix):
            if np.isfinite(value):
                dark = value < low + DARK * (high - low)
                color = "white" if dark else "black"
                axis.text(column, row, f"{value:.{decimals}f}", ha="center", va="center", fontsize=8, color=color)
    figure.colorbar(image, ax=list(axes), shrink=0.8)
    figure.suptitle(title)
    return figure


def save_figure(figure: Figure, path: str | Path) -> None:
    """Write a figure as PNG, whole or not at all; equal figures are equal bytes."""
    with atomic_file(path) as aside:
        figure.savefig(aside, format="png", dpi=150, metadata={"Software": None})
