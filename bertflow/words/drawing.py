"""Heatmaps of a study of words; needs matplotlib."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bertflow.plots import heatmaps, save_figure
from bertflow.words.panels import MEASURES, Panel, StudyResult
from bertflow.words.study import STATIC

SCALES = (("cosine", slice(None)), ("euclidean", slice(1)), ("euclidean", slice(1, None)))
"""Heatmaps on one color scale: their row, what they show, and their columns, the static one first. Static vectors are
many times shorter than those of a layer, behind its LayerNorm, and so are their distances."""


def write_heatmaps(result: StudyResult, folder: Path, kind: str) -> None:
    """All heatmaps of a study, as files of one format."""
    figures = {f"by-layer-{measure}": layer_heatmaps(result, measure) for measure in MEASURES}
    for pooling, panels in result.panels.items():
        # mean(1,-1) becomes mean_1_-1
        name = re.sub(r"[(,]", "_", re.sub(r"[\s)]", "", pooling))
        figures[f"heatmaps-{name}"] = similarity_heatmaps(panels, f"{result.study.title}: {pooling}")
    for name, figure in figures.items():
        save_figure(figure, folder / f"{name}.{kind}")


def similarity_heatmaps(panels: Mapping[str, Panel], title: str) -> Any:
    """A row for each measure, a column for each panel: static first, then the contexts."""
    labels = panels[STATIC].labels
    scales = [
        (MEASURES[measure], {name: getattr(panel, measure) for name, panel in list(panels.items())[columns]})
        for measure, columns in SCALES
    ]
    return heatmaps(scales, labels, labels, title, decimals=2, across=len(panels))


def layer_heatmaps(result: StudyResult, measure: str) -> Any:
    """A panel for each context: the pairs that are followed, through the poolings; static cosines on the same scale."""
    pairs = result.study.followed()
    static = {STATIC: result.static} if measure == "cosine" else {}
    panels = {}
    for context in result.study.contexts:
        columns = static | {pooling: panel[context] for pooling, panel in result.panels.items()}
        panels[context] = np.array([[column.of(measure, pair) for column in columns.values()] for pair in pairs])
    names = [" ~ ".join(pair) for pair in pairs]
    return heatmaps([("", panels)], names, list(columns), f"{result.study.title}: {MEASURES[measure]}", decimals=2)
