"""Pictures of a study of words: cosine and distance side by side, static and in each context; and layer by layer."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from bertflow.plots import CELL, DARK, PALETTE, heatmaps
from bertflow.plots import Figure as Figure  # type: ignore[attr-defined]  # the one door to matplotlib
from bertflow.words.compare import Panel, StudyResult
from bertflow.words.study import STATIC

MEASURES: Mapping[str, str] = {"cosine": "cosine", "euclidean": "Euclidean distance"}
"""A row of pictures each."""
ONE_SCALE = ("cosine",)
"""Measures whose static panel has the color scale of the others: static vectors are many times shorter than those of a
layer, behind its LayerNorm, so their distances are."""


def similarity_heatmaps(panels: Mapping[str, Panel], title: str) -> Figure:
    """A row for each measure, a column for each panel.

    Args:
        panels: By their titles: static first, then the contexts.
        title: Of the figure.
    """
    labels = next(iter(panels.values())).labels
    width, height = CELL[0] * len(labels) + 1.4, CELL[1] * len(labels) + 1.2
    figure = Figure(figsize=(width * len(panels) + 1.6, height * len(MEASURES) + 0.5), layout="constrained")
    grid = figure.subplots(len(MEASURES), len(panels), squeeze=False)
    for axes, measure in zip(grid, MEASURES, strict=True):
        groups = [slice(None)] if measure in ONE_SCALE else [slice(0, 1), slice(1, None)]
        for group in groups:
            _draw(figure, axes[group], dict(list(panels.items())[group]), measure)
    figure.suptitle(title)
    return figure


def _draw(figure: Figure, axes: Sequence[Any], panels: Mapping[str, Panel], measure: str) -> None:
    """Some panels on one color scale, each cell with its number."""
    matrices = [getattr(panel, measure) for panel in panels.values()]
    low = float(np.min(matrices))
    spread = float(np.max(matrices)) - low or 1.0
    for axis, (name, panel), matrix in zip(axes, panels.items(), matrices, strict=True):
        image = axis.imshow(matrix, cmap=PALETTE, vmin=low, vmax=low + spread, aspect="auto")
        axis.set_title(name)
        axis.set_xticks(range(len(panel.labels)), panel.labels, rotation=45, ha="right")
        axis.set_yticks(range(len(panel.labels)), panel.labels)
        for (row, column), value in np.ndenumerate(matrix):
            color = "white" if value < low + DARK * spread else "black"
            axis.text(column, row, f"{value:.2f}", ha="center", va="center", fontsize=8, color=color)
    figure.colorbar(image, ax=list(axes), shrink=0.8, label=MEASURES[measure])


def layer_heatmaps(result: StudyResult, measure: str) -> Figure:
    """A panel for each context: the pairs that are followed, through the poolings; static first, on one scale.

    Args:
        result: The study.
        measure: A row of ``MEASURES``.
    """
    pairs = result.study.followed()
    static = list(result.panels.values())[:1] if measure in ONE_SCALE else []
    panels = {}
    for context in result.study.contexts:
        columns = [panel[STATIC] for panel in static] + [panel[context] for panel in result.panels.values()]
        panels[context] = np.array([[column.of(measure, pair) for column in columns] for pair in pairs])
    rows, titles = [" ~ ".join(pair) for pair in pairs], [STATIC] * len(static) + list(result.panels)
    return heatmaps(panels, rows, titles, f"{result.study.title}: {MEASURES[measure]}", decimals=2)
