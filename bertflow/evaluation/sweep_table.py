"""What a sweep and a probe have in common when they are written: a grid of layers by token reductions, and CSV."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from bertflow.evaluation.rows import setting
from bertflow.evaluation.tables import number, task_title
from bertflow.files import to_json
from bertflow.tables import MISSING, Table


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


REDUCED = 64
RAW = "raw"
CALIBRATORS = (RAW, "whitening", f"whitening({REDUCED})")
"""What every candidate is scored after."""
WEIGHTED = "weighted mean of all"
METRIC = "cosine_spearman"
AVERAGE = "average"
"""What stands in the place of a task where a value is the mean over all of them."""


@dataclass(frozen=True)
class Candidate:
    """A pooling and what follows it.

    Attributes:
        pooling: A spelling, which ``--pooling`` takes; ``WEIGHTED`` is the one name that it does not.
        tokens: How the tokens of a layer are reduced.
        layers: From 0.
        width: Of the embeddings that are scored; whitening drops null directions.
        calibrator: A row of ``CALIBRATORS``.
    """

    pooling: str
    tokens: str
    layers: tuple[int, ...]
    width: int
    calibrator: str = RAW

    def after(self, calibrator: str, width: int) -> Self:
        """The same pooling, calibrated."""
        return replace(self, calibrator=calibrator, width=width)


@dataclass(frozen=True)
class SweepRow:
    """One value.

    Attributes:
        candidate: Of what.
        task: On which task; ``AVERAGE`` for the mean over all.
        aggregation: Over the sub-sets of the task.
        n: Pairs.
        value: Spearman of the cosine, in [-1, 1].
        seen: Share of the scored sentences that whitening or token counts were fitted on.
    """

    candidate: Candidate
    task: str
    aggregation: str
    n: int
    value: float
    seen: float

    @classmethod
    def average(cls, candidate: Candidate, n: int, value: float, seen: float) -> Self:
        """The mean over several tasks."""
        return cls(candidate, AVERAGE, "as each task", n, value, seen)

    def as_dict(self) -> dict[str, Any]:
        """Flat, ready for JSON and CSV."""
        own = asdict(self)
        candidate = own.pop("candidate")
        layers = " ".join(map(str, self.candidate.layers))
        return {**candidate, "layers": layers, **own, "setting": setting(self.seen)}


@dataclass(frozen=True)
class Sweep:
    """All values, and how they were made.

    Attributes:
        rows: By candidate, then by task.
        constant: Poolings that give all sentences one vector, so that they have no score.
        encoder: The encoder's description, without a pooling.
        sentences: Distinct sentences that were embedded, once.
        fitted_on: What whitening and token counts were fitted on.
        seen: Share of the scored sentences among those.
        scratch_bytes: What the embeddings of all poolings took on disk.
    """

    rows: tuple[SweepRow, ...]
    constant: tuple[str, ...]
    encoder: Mapping[str, Any]
    sentences: int
    fitted_on: str
    seen: float
    scratch_bytes: int

    @property
    def shown(self) -> list[SweepRow]:
        """What tables show: the one task, or the average."""
        return [row for row in self.rows if row.task == self.rows[-1].task]

    def best(self) -> list[SweepRow]:
        """The best row of each calibrator."""
        calibrators = dict.fromkeys(row.candidate.calibrator for row in self.shown)
        return [
            max((row for row in self.shown if row.candidate.calibrator == name), key=lambda row: row.value)
            for name in calibrators
        ]

    def table(self) -> Table:
        """A line a pooling, a column a calibrator, x 100; a dash where there are fewer directions than asked for."""
        found = {(row.candidate.pooling, row.candidate.calibrator): number(row.value, METRIC) for row in self.shown}
        lines = [
            (pooling, *(found.get((pooling, name), MISSING) for name in CALIBRATORS))
            for pooling in dict.fromkeys(row.candidate.pooling for row in self.shown)
        ]
        return Table(("pooling", *CALIBRATORS), tuple(lines))

    def grid(self) -> Grid:
        """The candidates of one layer, x 100, a panel a calibrator."""
        return layer_grid(
            Cell(row.candidate.calibrator, row.candidate.layers, row.candidate.tokens, 100 * row.value)
            for row in self.shown
        )

    def summary(self) -> list[str]:
        """What was best, and how the numbers were made."""
        row = self.shown[0]
        what = f"average of {len({row.task for row in self.rows}) - 1} tasks" if row.task == AVERAGE else row.task
        return [
            *(
                f"Best {row.candidate.calibrator}: {row.candidate.pooling}, {number(row.value, METRIC)}."
                for row in self.best()
            ),
            f"Spearman of the cosine x 100; {what if row.task == AVERAGE else task_title(what)}, {row.aggregation}, "
            f"{row.n} pairs; {self.sentences} sentences, embedded once; {self.encoder['encoder']}.",
            f"Whitening and the token counts of sif were fitted on {self.fitted_on}: {setting(self.seen)} "
            f"({self.seen:.0%} of the scored sentences seen).",
            *(f"{name} gives every sentence the same vector, so it has no score." for name in self.constant),
        ]

    def to_markdown(self) -> str:
        """The table, and how it was made."""
        lines = "".join(f"* {line}\n" for line in self.summary())
        return f"# Layers and poolings\n\n{self.table().to_markdown()}\n{lines}"

    def to_json(self) -> str:
        """Everything; values in [-1, 1]."""
        own = {"encoder": dict(self.encoder), "sentences": self.sentences, "fitted_on": self.fitted_on}
        rows = [row.as_dict() for row in self.rows]
        return to_json({"format": 1, **own, "constant": list(self.constant), "rows": rows})

    def to_csv(self) -> str:
        """One line a value."""
        return to_csv([row.as_dict() for row in self.rows])
