"""What a sweep finds: a row is a pooling with its value; rows become a table, a grid of layers by tokens, and files."""

import warnings
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from bertflow.errors import MissingExtraError
from bertflow.evaluation.rows import number, setting, task_title
from bertflow.files import write_text
from bertflow.progress import peak_memory, working
from bertflow.results import AbstractResult
from bertflow.tables import Table, to_csv

REDUCED = 64
RAW = "raw"
CALIBRATORS = (RAW, "whitening", f"whitening({REDUCED})")
"""What every candidate is scored after."""
WEIGHTED = "weighted mean of all"
METRIC = "cosine_spearman"
AVERAGE = "average"
"""Takes the place of a task where a value is the mean over all of them."""


@dataclass(frozen=True)
class Candidate:
    """A pooling that is tried.

    Attributes:
        pooling: A spelling, which ``--pooling`` takes; ``WEIGHTED`` is the one name that it does not.
        tokens: How the tokens of a layer are reduced.
        layers: From 0.
        width: Width of the embeddings; whitening drops null directions.
    """

    pooling: str
    tokens: str
    layers: tuple[int, ...]
    width: int

    def as_dict(self) -> dict[str, Any]:
        """Flat, ready for JSON and CSV."""
        return {**asdict(self), "layers": " ".join(map(str, self.layers))}


@dataclass(frozen=True)
class SweepRow(Candidate):
    """The score of a pooling on a task.

    Attributes:
        calibrator: A row of ``CALIBRATORS``.
        task: On which task; ``AVERAGE`` for the mean over all.
        aggregation: Over the sub-sets of the task.
        n: Pairs.
        value: Spearman of the cosine, in [-1, 1].
        seen: Share of the scored sentences that whitening or token counts were fitted on.
    """

    calibrator: str
    task: str
    aggregation: str
    n: int
    value: float
    seen: float

    def as_dict(self) -> dict[str, Any]:
        """Flat, ready for JSON and CSV."""
        return {**super().as_dict(), "setting": setting(self.seen)}


@dataclass(frozen=True, repr=False)
class AbstractSweep(AbstractResult):
    """Values of poolings: a table, a grid and files.

    Attributes:
        rows: By pooling.
        encoder: The encoder's description, without a pooling.
        scratch_bytes: Disk that the embeddings of all poolings took.
    """

    rows: Sequence[Any]
    encoder: Mapping[str, Any]
    scratch_bytes: int

    name: ClassVar[str] = "sweep"
    format: ClassVar[int | None] = 1
    not_in_json: ClassVar[tuple[str, ...]] = ("scratch_bytes", "seen")
    quantity: ClassVar[str]
    """What a value is."""

    @abstractmethod
    def table(self) -> Table:
        """A line a pooling, x 100."""

    @abstractmethod
    def summary(self) -> list[str]:
        """What was best, and how the numbers were made."""

    @abstractmethod
    def cells(self) -> list[tuple[str, Candidate, float]]:
        """What the grid shows: panel, pooling, value x 100."""

    def grid(self) -> tuple[list[int], list[str], dict[str, NDArray[np.float64]]]:
        """The poolings of one layer: layers, token reductions, and a matrix of them by panel; NaN without a score."""
        single = [cell for cell in self.cells() if len(cell[1].layers) == 1]
        layers = sorted({one.layers[0] for _, one, _ in single})
        tokens = list(dict.fromkeys(one.tokens for _, one, _ in single))
        panels = {panel: np.full((len(layers), len(tokens)), np.nan) for panel, _, _ in single}
        for panel, one, value in single:
            panels[panel][layers.index(one.layers[0]), tokens.index(one.tokens)] = value
        return layers, tokens, panels

    def parts(self) -> Iterator[Table | str]:
        """The table, what was best, and how the numbers were made."""
        yield self.table()
        yield from self.summary()

    def run_facts(self) -> dict[str, Any]:
        """Memory and disk that the sweep took."""
        return {"peak_memory_bytes": peak_memory(), "scratch_bytes": self.scratch_bytes}

    def to_csv(self) -> str:
        """A header and a line for each value."""
        records = [row.as_dict() for row in self.rows]
        return to_csv(list(records[0]), [list(record.values()) for record in records])

    @working("drawing")
    def save(self, folder: str | Path) -> Path:
        """Write sweep.json, sweep.md, sweep.csv and, where matplotlib is installed, sweep.png."""
        folder = super().save(folder)
        write_text(folder / "sweep.csv", self.to_csv())
        try:
            from bertflow.plots import heatmaps, save_figure
        except MissingExtraError as error:
            warnings.warn(f"no heatmap was drawn. {error}", stacklevel=2)
            return folder
        layers, tokens, panels = self.grid()
        title = f"{self.quantity}: {self.encoder['encoder']}"
        figure = heatmaps([("", panels)], [f"layer {layer}" for layer in layers], tokens, title)
        save_figure(figure, folder / "sweep.png")
        return folder


@dataclass(frozen=True, repr=False)
class Sweep(AbstractSweep):
    """Scores on STS tasks.

    Attributes:
        rows: By pooling and calibrator, then by task.
        constant: Poolings that give all sentences one vector, so that they have no score.
        sentences: Distinct sentences that were embedded, once.
        fitted_on: What whitening and token counts were fitted on.
        seen: Share of the scored sentences among those.
    """

    rows: tuple[SweepRow, ...]
    constant: tuple[str, ...]
    sentences: int
    fitted_on: str
    seen: float

    title: ClassVar[str] = "Layers and poolings"
    quantity: ClassVar[str] = "Spearman x 100"

    @property
    def shown(self) -> list[SweepRow]:
        """What tables show: the one task, or the average."""
        return [row for row in self.rows if row.task == self.rows[-1].task]

    def best(self) -> list[SweepRow]:
        """The best row of each calibrator."""
        falling = sorted(self.shown, key=lambda row: -row.value)
        names = dict.fromkeys(row.calibrator for row in self.shown)
        return [next(row for row in falling if row.calibrator == name) for name in names]

    def table(self) -> Table:
        """A line a pooling, a column a calibrator, x 100; a dash where there are fewer directions than asked for."""
        found = {(row.pooling, row.calibrator): row.value for row in self.shown}
        lines = [
            (pooling, *(number(found.get((pooling, name)), METRIC) for name in CALIBRATORS))
            for pooling in dict.fromkeys(row.pooling for row in self.shown)
        ]
        return Table(("pooling", *CALIBRATORS), tuple(lines))

    def cells(self) -> list[tuple[str, Candidate, float]]:
        """A panel for each calibrator."""
        return [(row.calibrator, row, 100 * row.value) for row in self.shown]

    def summary(self) -> list[str]:
        """What was best, and how the numbers were made."""
        row, tasks = self.shown[0], len({row.task for row in self.rows})
        what = f"average of {tasks - 1} tasks" if row.task == AVERAGE else task_title(row.task)
        return [
            *(f"Best {best.calibrator}: {best.pooling}, {number(best.value, METRIC)}." for best in self.best()),
            f"Spearman of the cosine x 100; {what}, {row.aggregation}, {row.n} pairs; {self.sentences} sentences, "
            f"embedded once; {self.encoder['encoder']}.",
            f"Whitening and the token counts of sif were fitted on {self.fitted_on}: {setting(self.seen)} "
            f"({self.seen:.0%} of the scored sentences seen).",
            *(f"{name} gives every sentence the same vector, so it has no score." for name in self.constant),
        ]
