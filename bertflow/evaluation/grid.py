"""What a sweep and a probe have in common when they are written: a grid of layers by token reductions, and CSV."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Cell:
    """One number of a grid: in which panel, of which layers, by which token reduction."""

    panel: str
    layers: tuple[int, ...]
    tokens: str
    value: float


@dataclass(frozen=True)
class Grid:
    """Matrices of one shape, a row a layer and a column a token reduction, by panel; NaN where nothing was scored."""

    layers: tuple[int, ...]
    tokens: tuple[str, ...]
    panels: Mapping[str, NDArray[np.float64]]


def layer_grid(cells: Iterable[Cell]) -> Grid:
    """The grid of those cells that read one layer."""
    single = [cell for cell in cells if len(cell.layers) == 1]
    layers = sorted({cell.layers[0] for cell in single})
    tokens = list(dict.fromkeys(cell.tokens for cell in single))
    panels = {
        name: np.full((len(layers), len(tokens)), np.nan) for name in dict.fromkeys(cell.panel for cell in single)
    }
    for cell in single:
        panels[cell.panel][layers.index(cell.layers[0]), tokens.index(cell.tokens)] = cell.value
    return Grid(tuple(layers), tuple(tokens), panels)


def to_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """A header and a line a row; all rows have the same keys, and there is at least one."""
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()
