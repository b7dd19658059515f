"""Pairs of text in, scored pairs out."""

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bertflow.calibrated import CalibratedEncoder
from bertflow.data.tables import open_table
from bertflow.encoder.transformer import SentenceEncoder
from bertflow.errors import DataError, UsageError
from bertflow.files import write_text
from bertflow.registry import lookup
from bertflow.scoring.scores import ScoreCalibrator, Threshold
from bertflow.similarity import SIMILARITIES
from bertflow.tables import Table

PAIR_COLUMNS = (
    ("sentence1", "sentence2"),
    ("a", "b"),
    ("query", "text"),
    ("question", "answer"),
    ("sentence_A", "sentence_B"),
    ("premise", "hypothesis"),
    ("text1", "text2"),
    ("anchor", "positive"),
)
"""What the two columns of text may be called, where they are not named."""
Pairs = list[tuple[str, str]]
Row = tuple[str | float, ...]


def read_pairs(path: str, columns: str | None) -> Pairs:
    """The pairs of a table.

    Args:
        path: A tsv, csv, jsonl or parquet file.
        columns: Two names with a comma, or two numbers from 1 for a table without a header.

    Raises:
        UsageError: If ``columns`` are not two.
        DataError: If the file or a column is missing, a cell is empty, or there is no pair.
    """
    names = None if columns is None else tuple(name.strip() for name in columns.split(","))
    if names is not None and len(names) != 2:
        raise UsageError(f"--columns takes two columns of text, as a,b or 1,2; got {columns!r}.")
    table = open_table(path, header=names is None or not all(name.isdecimal() for name in names))
    pairs: Pairs = []
    for number, (a, b) in table.read(table.require(PAIR_COLUMNS if names is None else (names,))):
        for cell in (a, b):
            if not isinstance(cell, str) or not cell.strip():
                raise DataError(f"{table.where(number)}: a pair is two texts, but one is {cell!r}. Leave the pair out.")
        pairs.append((a, b))
    if not pairs:
        raise DataError(f"{path} should hold pairs of text, but holds none.")
    return pairs


def pair_cosines(encoder: SentenceEncoder, pairs: Pairs, progress: bool = False) -> NDArray[np.float64]:
    """Cosine of each pair; every distinct text is embedded once."""
    texts = list(dict.fromkeys(text for pair in pairs for text in pair))
    row_of = {text: row for row, text in enumerate(texts)}
    x = encoder.encode(texts, progress=progress)
    first, second = ([row_of[pair[side]] for pair in pairs] for side in (0, 1))
    return SIMILARITIES["cosine"].paired(x[first], x[second])


@dataclass(frozen=True)
class ScoredPairs:
    """Pairs and what is said about each; all of one length."""

    pairs: Pairs
    cosines: NDArray[np.float64]
    percentiles: NDArray[np.float64]
    probabilities: NDArray[np.float64] | None
    matches: NDArray[np.bool_]

    @classmethod
    def of(cls, pairs: Pairs, cosines: NDArray[np.float64], scores: ScoreCalibrator, at: Threshold) -> "ScoredPairs":
        """Ask ``scores`` about each pair."""
        return cls(
            pairs,
            cosines,
            scores.percentile(cosines),
            scores.probability(cosines) if scores.probability_ else None,
            cosines >= at.value,
        )

    @property
    def header(self) -> tuple[str, ...]:
        """The columns that are written."""
        probability = () if self.probabilities is None else ("probability",)
        return ("sentence1", "sentence2", "cosine", "percentile", *probability, "match")

    def rows(self) -> list[Row]:
        """One a pair; "match" is yes or no."""
        return [
            (
                *pair,
                round(float(self.cosines[row]), 6),
                round(float(self.percentiles[row]), 6),
                *(() if self.probabilities is None else (round(float(self.probabilities[row]), 6),)),
                "yes" if self.matches[row] else "no",
            )
            for row, pair in enumerate(self.pairs)
        ]

    def table(self, most: int) -> Table:
        """The first pairs, for reading."""
        cut = [tuple(_cell(cell) for cell in row) for row in self.rows()[:most]]
        return Table(self.header, tuple(cut))


def _cell(value: str | float, width: int = 40) -> str:
    if isinstance(value, float):
        return f"{value:.4f}"
    return value if len(value) <= width else f"{value[: width - 3]}..."


def _csv(header: Sequence[str], rows: Sequence[Row]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([header, *rows])
    return out.getvalue()


def _tsv(header: Sequence[str], rows: Sequence[Row]) -> str:
    # As bertflow reads it: no quoting, so white space inside a text becomes a space.
    lines = [[" ".join(cell.split()) if isinstance(cell, str) else f"{cell}" for cell in row] for row in rows]
    return "\n".join("\t".join(line) for line in [header, *lines]) + "\n"


def _jsonl(header: Sequence[str], rows: Sequence[Row]) -> str:
    return "".join(json.dumps(dict(zip(header, row, strict=True)), ensure_ascii=False) + "\n" for row in rows)


WRITERS: Mapping[str, Callable[[Sequence[str], Sequence[Row]], str]] = {
    ".tsv": _tsv,
    ".csv": _csv,
    ".jsonl": _jsonl,
}
"""A row is a file ending and how a table becomes such text."""


def require_writable(path: Path | None) -> None:
    """Refuse an ending that is none of ``WRITERS``, before anything is computed."""
    if path is not None:
        lookup("ending of --output", WRITERS, path.suffix)


def write_rows(path: Path, header: Sequence[str], rows: Sequence[Row]) -> None:
    """Write a table by the file's ending, whole or not at all."""
    write_text(path, lookup("ending of --output", WRITERS, path.suffix)(header, rows))


def raw_encoder(system: SentenceEncoder) -> SentenceEncoder:
    """The encoder without its calibrator."""
    return system.encoder if isinstance(system, CalibratedEncoder) else system
