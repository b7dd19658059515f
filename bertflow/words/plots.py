"""Heatmaps of a study of words: cosine and distance side by side, static and in each context; and layer by layer."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from bertflow.plots import CELL, heatmaps, save_figure, shade
from bertflow.plots import Figure as Figure  # type: ignore[attr-defined]  # the one door to matplotlib
from bertflow.words.compare import Panel, StudyResult
from bertflow.words.study import STATIC

MEASURES: Mapping[str, str] = {"cosine": "cosine", "euclidean": "Euclidean distance"}
"""A row of pictures each."""
ONE_SCALE = ("cosine",)
"""Measures whose static panel has the color scale of the others: static vectors are many times shorter than those of a
layer, behind its LayerNorm, so their distances are."""


def write_heatmaps(result: StudyResult, folder: Path, kind: str = "png") -> list[Path]:
    """Draw a study; returns the files.

    Args:
        result: The study.
        folder: Created if it is missing.
        kind: ``png`` or ``svg``.
    """
    figures = {f"by-layer-{measure}": layer_heatmaps(result, measure) for measure in MEASURES} | {
        f"heatmaps-{_spell(pooling)}": similarity_heatmaps(panels, f"{result.study.title}: {pooling}")
        for pooling, panels in result.panels.items()
    }
    paths = [folder / f"{name}.{kind}" for name in figures]
    for path, figure in zip(paths, figures.values(), strict=True):
        save_figure(figure, path)
    return paths


def similarity_heatmaps(panels: Mapping[str, Panel], title: str) -> Figure:
    """A row for each measure, a column for each panel.

    Args:
        panels: By their titles: static first, then the contexts.
        title: Title of the figure.
    """
    labels = next(iter(panels.values())).labels
    width, height = CELL[0] * len(labels) + 1.4, CELL[1] * len(labels) + 1.2
    figure = Figure(figsize=(width * len(panels) + 1.6, height * len(MEASURES) + 0.5), layout="constrained")
    grid = figure.subplots(len(MEASURES), len(panels), squeeze=False)
    for axes, measure in zip(grid, MEASURES, strict=True):
        groups = [slice(None)] if measure in ONE_SCALE else [slice(0, 1), slice(1, None)]
        for group in groups:
            matrices = {name: getattr(panel, measure) for name, panel in list(panels.items())[group]}
            shade(figure, axes[group], matrices, labels, labels, decimals=2, label=MEASURES[measure])
    figure.suptitle(title)
    return figure


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


def _spell(pooling: str) -> str:
    """A pooling as part of a file name: mean(1,-1) becomes mean_1_-1."""
    return "".join(pooling.split()).rstrip(")").translate(str.maketrans("(,", "__"))
