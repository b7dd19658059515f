"""What a sweep found: rows by candidate, with their table, grid of layers by token reductions, and files."""

import csv
import io
import warnings
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from bertflow.errors import MissingExtraError
from bertflow.evaluation.tables import number, setting, task_title
from bertflow.files import write_text
from bertflow.progress import peak_memory
from bertflow.results import AbstractResult
from bertflow.tables import MISSING, Table

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
    """A pooling and what follows it.

    Attributes:
        pooling: A spelling, which ``--pooling`` takes; ``WEIGHTED`` is the one name that it does not.
        tokens: How the tokens of a layer are reduced.
        layers: From 0.
        width: Width of the scored embeddings; whitening drops null directions.
        calibrator: A row of ``CALIBRATORS``.
    """

    pooling: str
    tokens: str
    layers: tuple[int, ...]
    width: int
    calibrator: str = RAW

    def as_dict(self) -> dict[str, Any]:
        """Flat, ready for JSON and CSV."""
        return {**asdict(self), "layers": " ".join(map(str, self.layers))}


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

    def as_dict(self) -> dict[str, Any]:
        """Flat, ready for JSON and CSV."""
        own = {name: value for name, value in vars(self).items() if name != "candidate"}
        return {**self.candidate.as_dict(), **own, "setting": setting(self.seen)}


@dataclass(frozen=True)
class Grid:
    """Matrices of one shape, a row a layer and a column a token reduction, by panel; NaN where nothing was scored."""

    layers: tuple[int, ...]
    tokens: tuple[str, ...]
    panels: Mapping[str, NDArray[np.float64]]


class AbstractSweep(AbstractResult):
    """Values of poolings: a table, a grid and files; the fields are those of both kinds of sweep."""

    name: ClassVar[str] = "sweep"
    format: ClassVar[int | None] = 1
    not_in_json: ClassVar[tuple[str, ...]] = ("scratch_bytes",)
    quantity: ClassVar[str]
    """What a value is."""

    rows: Sequence[Any]
    encoder: Mapping[str, Any]
    scratch_bytes: int

    @abstractmethod
    def table(self) -> Table:
        """A line a pooling, x 100."""

    @abstractmethod
    def summary(self) -> list[str]:
        """What was best, and how the numbers were made."""

    @abstractmethod
    def cells(self) -> Iterable[tuple[str, Candidate, float]]:
        """What the grid shows: panel, pooling, value x 100."""

    def grid(self) -> Grid:
        """The poolings of one layer."""
        single = [(panel, one, value) for panel, one, value in self.cells() if len(one.layers) == 1]
        layers = sorted({one.layers[0] for _, one, _ in single})
        tokens = list(dict.fromkeys(one.tokens for _, one, _ in single))
        panels = {panel: np.full((len(layers), len(tokens)), np.nan) for panel, _, _ in single}
        for panel, one, value in single:
            panels[panel][layers.index(one.layers[0]), tokens.index(one.tokens)] = value
        return Grid(tuple(layers), tuple(tokens), panels)

    def records(self) -> list[dict[str, Any]]:
        """A flat record for each row."""
        return [row.as_dict() for row in self.rows]

    def parts(self) -> Iterator[Table | str]:
        """The table, what was best, and how the numbers were made."""
        yield self.table()
        yield from self.summary()

    def run_facts(self) -> dict[str, Any]:
        """Memory and disk that the sweep took."""
        return {"peak_memory_bytes": peak_memory(), "scratch_bytes": self.scratch_bytes}

    def to_csv(self) -> str:
        """A header and a line for each value."""
        out, records = io.StringIO(), self.records()
        writer = csv.DictWriter(out, list(records[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(records)
        return out.getvalue()

    def save(self, folder: str | Path) -> Path:
        """Write sweep.json, sweep.md, sweep.csv and, where matplotlib is installed, sweep.png."""
        folder = super().save(folder)
        write_text(folder / "sweep.csv", self.to_csv())
        try:
            from bertflow.plots import heatmaps, save_figure
        except MissingExtraError as error:
            warnings.warn(f"no heatmap was drawn. {error}", stacklevel=2)
            return folder
        grid = self.grid()
        layers = [f"layer {layer}" for layer in grid.layers]
        title = f"{self.quantity}: {self.encoder['encoder']}"
        save_figure(heatmaps(grid.panels, layers, grid.tokens, title), folder / "sweep.png")
        return folder


@dataclass(frozen=True, repr=False)
class Sweep(AbstractSweep):
    """Scores on STS tasks.

    Attributes:
        rows: By candidate, then by task.
        encoder: The encoder's description, without a pooling.
        scratch_bytes: Disk that the embeddings of all poolings took.
        constant: Poolings that give all sentences one vector, so that they have no score.
        sentences: Distinct sentences that were embedded, once.
        fitted_on: What whitening and token counts were fitted on.
        seen: Share of the scored sentences among those.
    """

    rows: tuple[SweepRow, ...]
    encoder: Mapping[str, Any]
    scratch_bytes: int
    constant: tuple[str, ...]
    sentences: int
    fitted_on: str
    seen: float

    title: ClassVar[str] = "Layers and poolings"
    not_in_json: ClassVar[tuple[str, ...]] = ("scratch_bytes", "seen")
    quantity: ClassVar[str] = "Spearman x 100"

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

    def cells(self) -> Iterable[tuple[str, Candidate, float]]:
        """A panel for each calibrator."""
        return ((row.candidate.calibrator, row.candidate, 100 * row.value) for row in self.shown)

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


@dataclass(frozen=True)
class ProbeRow:
    """One pooling.

    Attributes:
        candidate: The pooling.
        accuracy: Mean over the folds, in [0, 1].
        deviation: Standard deviation over the folds.
    """

    candidate: Candidate
    accuracy: float
    deviation: float

    def as_dict(self) -> dict[str, Any]:
        """Flat, ready for JSON and CSV."""
        own = {"accuracy": self.accuracy, "deviation": self.deviation}
        return {name: value for name, value in self.candidate.as_dict().items() if name != "calibrator"} | own


@dataclass(frozen=True, repr=False)
class Probe(AbstractSweep):
    """Accuracies of a linear probe.

    Attributes:
        rows: By pooling.
        encoder: The encoder's description, without a pooling.
        scratch_bytes: Disk that the embeddings of all poolings took.
        n: Number of labelled texts.
        labels: Number of different labels.
        majority: Share of the most frequent label, the accuracy of guessing.
        folds: Folds of the cross-validation.
        seed: Random seed for the folds.
        source: Where the labels came from.
    """

    rows: tuple[ProbeRow, ...]
    encoder: Mapping[str, Any]
    scratch_bytes: int
    n: int
    labels: int
    majority: float
    folds: int
    seed: int
    source: str

    title: ClassVar[str] = "A linear probe of layers and poolings"
    quantity: ClassVar[str] = "accuracy of a linear probe x 100"

    def best(self) -> ProbeRow:
        """The most accurate pooling."""
        return max(self.rows, key=lambda row: row.accuracy)

    def table(self) -> Table:
        """A line a pooling, x 100."""
        lines = tuple(
            (row.candidate.pooling, f"{100 * row.accuracy:.2f}", f"{100 * row.deviation:.2f}") for row in self.rows
        )
        return Table(("pooling", "accuracy", "+-"), lines)

    def cells(self) -> Iterable[tuple[str, Candidate, float]]:
        """One panel."""
        return (("probe", row.candidate, 100 * row.accuracy) for row in self.rows)

    def summary(self) -> list[str]:
        """What was best, and how the numbers were made."""
        best = self.best()
        return [
            f"Best: {best.candidate.pooling}, {100 * best.accuracy:.2f} +- {100 * best.deviation:.2f}.",
            f"Accuracy x 100 of a logistic regression, mean and standard deviation over {self.folds} stratified folds "
            f"(seed {self.seed}); {self.n} texts of {self.source}, {self.labels} labels, the most frequent "
            f"{100 * self.majority:.2f}; {self.encoder['encoder']}.",
        ]
