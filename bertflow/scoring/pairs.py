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
from bertflow.data.pairs import Pairs
from bertflow.encoder.abstract import SentenceEncoder
from bertflow.files import write_text
from bertflow.registry import lookup
from bertflow.scoring.scores import ScoreCalibrator, Threshold
from bertflow.tables import Table

Row = tuple[str | float, ...]


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
            for row, pair in enumerate(zip(self.pairs.first, self.pairs.second, strict=True))
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
