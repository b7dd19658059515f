"""What a sweep finds: what each pooling is worth, as a table, a grid of layers by token reductions, and files."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from bertflow.array_types import Float64
from bertflow.errors import MissingExtraError
from bertflow.files import write_text
from bertflow.progress import peak_memory, working
from bertflow.results import AbstractResult, Parts
from bertflow.tables import MISSING, REST, Strong, Table, to_csv

BEST = 6
"""Number of poolings shown at first; with the lines about them they fit on a screen of 24 lines."""

CHOSEN = "The best of {} on this data: expect less on other data, and test your choice there."
"""Note about the best of several."""


@dataclass(frozen=True)
class Candidate:
    """A pooling that is tried.

    Attributes:
        pooling: A spelling, which ``--pooling`` takes; ``WEIGHTED`` is the one name that it does not.
        tokens: How the tokens of a layer are reduced.
        layers: Layers, from 0.
        width: Width of the embeddings; whitening drops null directions.
    """

    pooling: str
    tokens: str
    layers: tuple[int, ...]
    width: int


@dataclass(frozen=True)
class SweepRow:
    """What a pooling is worth.

    Attributes:
        candidate: The pooling.
        column: Column of the table: a calibrator, or a measure.
        value: The value, in [-1, 1].
        cells: The value as tables show it, and what stands behind it.
        facts: All that was found, for the JSON.
    """

    candidate: Candidate
    column: str
    value: float
    cells: tuple[str, ...]
    facts: Mapping[str, Any]

    @property
    def pooling(self) -> str:
        """The spelling of the pooling."""
        return self.candidate.pooling

    def as_dict(self) -> dict[str, Any]:
        """Flat, ready for JSON and CSV."""
        return {**asdict(self.candidate), "layers": " ".join(map(str, self.candidate.layers)), **self.facts}


@dataclass(frozen=True, repr=False)
class Sweep(AbstractResult):
    """Values of poolings: a table, a grid of layers by token reductions, and files.

    Attributes:
        columns: Columns of the table.
        rows: Values by pooling, then by column, then by task.
        encoder: The encoder's description, without a pooling.
        facts: How the values were made, for the JSON.
        how: The same in words.
        scratch_bytes: Disk that the embeddings of all poolings took.
        asked: Layers that the user asked for, whose best poolings are in the answer.
    """

    columns: Sequence[str]
    rows: Sequence[SweepRow]
    encoder: Mapping[str, Any]
    facts: Mapping[str, Any]
    how: Sequence[str]
    scratch_bytes: int
    asked: Sequence[int] = ()

    name = "sweep"
    title = "Layers and poolings"
    quantity = "Spearman x 100"
    """What a value is."""
    behind: ClassVar[tuple[str, ...]] = ()
    """Titles of the cells behind a value."""
    spelled = "{}"
    """How the cells of a row are written in a line."""

    @property
    def shown(self) -> list[SweepRow]:
        """What tables show: of several tasks their average."""
        return [row for row in self.rows if row.facts.get("task") == self.rows[-1].facts.get("task")]

    @property
    def falling(self) -> list[SweepRow]:
        """What tables show, the best first; of values that are printed alike, the deepest layers first."""
        return sorted(self.shown, key=lambda row: (-round(row.value, 4), -np.mean(row.candidate.layers)))

    def best(self) -> list[SweepRow]:
        """The best row of each column."""
        first = {row.column: row for row in reversed(self.falling)}
        return [first[name] for name in self.columns if name in first]

    def table(self) -> Table:
        """A line a pooling, x 100; a dash where there are fewer directions than asked for."""
        found = {(row.pooling, row.column): row.cells for row in self.shown}
        nothing = (MISSING,) * (1 + len(self.behind))
        poolings = dict.fromkeys(row.pooling for row in self.shown)
        lines = [
            (one, *(cell for name in self.columns for cell in found.get((one, name), nothing))) for one in poolings
        ]
        return Table(("pooling", *(title for name in self.columns for title in (name, *self.behind))), tuple(lines))

    def grid(self) -> tuple[list[int], list[str], dict[str, Float64]]:
        """The poolings of one layer: layers, token reductions, and a matrix of them by column; NaN without a score."""
        single = [row for row in self.shown if len(row.candidate.layers) == 1]
        layers = sorted({row.candidate.layers[0] for row in single})
        tokens = list(dict.fromkeys(row.candidate.tokens for row in single))
        panels = {row.column: np.full((len(layers), len(tokens)), np.nan) for row in single}
        for row in single:
            at = layers.index(row.candidate.layers[0]), tokens.index(row.candidate.tokens)
            panels[row.column][at] = 100 * row.value
        return layers, tokens, panels

    def parts(self) -> Parts:
        """The table, what was best, and how the numbers were made."""
        yield self.table()
        yield from self._best_lines()
        yield from self.how

    def answer(self) -> Parts:
        """The best poolings, the best first, what the numbers are, and at last what was best in each column."""
        table, falling = self.table(), self.falling
        alone = {row.candidate.layers: row for row in reversed(falling)}
        asked = [alone[layer,] for layer in self.asked if (layer,) in alone]
        first = [*dict.fromkeys(row.pooling for row in (*asked, *self.best(), *falling))][:BEST]
        lines, ranked = {line[0]: line for line in table.lines}, dict.fromkeys(row.pooling for row in falling)
        yield Table(table.header, tuple(lines[name] for name in ranked if name in first))
        if len(table.lines) > BEST:
            which = "The best of the layers asked for, and the best of all:" if asked else "These are the best"
            yield f"{which} {BEST} of {len(table.lines)} poolings. All of them: {REST}."
        yield from self.how[:2]
        yield Strong("\n".join(self._best_lines()))

    def _best_lines(self) -> Iterator[str]:
        """The best of each column beside the mean of the last layer, or the next best; and that it was chosen."""
        usual = f"mean({self.encoder['blocks']})"
        for best in self.best():
            others = [row for row in self.shown if row.column == best.column and row.pooling != best.pooling]
            other = max(others, key=lambda row: (row.pooling == usual, row.value), default=None)
            beside = f"; {other.pooling} has {other.cells[0]}" if other else ""
            yield f"Best {best.column}: {best.pooling}, {self.spelled.format(*best.cells)}{beside}."
        if (tried := len({row.pooling for row in self.shown})) > 1:
            yield CHOSEN.format(tried)

    def as_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        return {"format": 1, "rows": [row.as_dict() for row in self.rows], "encoder": dict(self.encoder), **self.facts}

    def run_facts(self) -> dict[str, Any]:
        """Memory and disk that the sweep took."""
        return {"peak_memory_bytes": peak_memory(), "scratch_bytes": self.scratch_bytes}

    def to_csv(self) -> str:
        """A header and a line for each value."""
        records = [row.as_dict() for row in self.rows]
        return to_csv(list(records[0]), [list(record.values()) for record in records])

    @working("drawing the figure")
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
