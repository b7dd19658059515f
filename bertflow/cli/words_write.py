"""The pictures that ``bertflow words`` writes: one a pooling, and one a measure that goes through the layers."""

from collections.abc import Mapping
from pathlib import Path

from bertflow.files import atomic_file
from bertflow.plots import save_figure, to_svg
from bertflow.words.compare import StudyResult
from bertflow.words.plots import MEASURES, Figure, layer_heatmaps, similarity_heatmaps


def write_pictures(result: StudyResult, folder: Path, kind: str) -> list[Path]:
    """Draw a study; returns the files.

    Args:
        result: The study.
        folder: Made if it is missing.
        kind: ``png`` or ``svg``.
    """
    figures = {f"by-layer-{measure}": layer_heatmaps(result, measure) for measure in MEASURES} | {
        f"heatmaps-{_spell(pooling)}": similarity_heatmaps(panels, f"{result.study.title}: {pooling}")
        for pooling, panels in result.panels.items()
    }
    return _save(figures, folder, kind)


def _save(figures: Mapping[str, Figure], folder: Path, kind: str) -> list[Path]:
    paths = []
    for name, figure in figures.items():
        path = folder / f"{name}.{kind}"
        if kind == "svg":
            with atomic_file(path) as aside:
                aside.write_bytes(to_svg(figure))
        else:
            save_figure(figure, path)
        paths.append(path)
    return paths


def _spell(pooling: str) -> str:
    """A pooling as part of a file name: mean(1,-1) becomes mean_1_-1."""
    return "".join(pooling.split()).rstrip(")").translate(str.maketrans("(,", "__"))
