"""What two encoders find for the same queries, side by side, without labels or a judgement."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from bertflow.calibrated import encode_systems
from bertflow.data.columns import choose_columns
from bertflow.data.corpus import load_sentences
from bertflow.data.tables import COLUMNS, open_table, table_suffix
from bertflow.encoder.abstract import SentenceEncoder
from bertflow.errors import DataError
from bertflow.evaluation.systems import takes_options
from bertflow.opening import LoadOptions, load, require_openable
from bertflow.results import AbstractResult
from bertflow.similarity import unit_rows
from bertflow.tables import Section, Table

FEWEST, MOST = 20, 2000
"""Fewest queries, and the most that are read."""
SHOWN, NEAREST = 20, 5
"""Queries that are shown, and the nearest texts of each."""
SHARED = 10
"""Nearest texts of which both encoders should have some."""
WIDTH = 60
"""Characters of a text that are shown."""
BLOCK = 256
"""Queries whose cosines with all texts are in memory together."""


@dataclass(frozen=True)
class SideBySide:
    """A query and its nearest texts, the nearest first.

    Attributes:
        query: The query.
        first: What the first encoder finds.
        second: What the second one finds.
    """

    query: str
    first: tuple[str, ...]
    second: tuple[str, ...]


@dataclass(frozen=True, repr=False)
class Comparison(AbstractResult):
    """What two encoders find for the same queries among the same texts.

    Attributes:
        first: Name of the first encoder.
        second: Name of the second encoder.
        queries: Number of queries.
        texts: Number of texts.
        shared: Share of the ten nearest texts of a query that both encoders have in common, mean over the queries.
        changed: Number of queries whose nearest text is another one.
        shown: Some of the queries, drawn at random, with their nearest texts.
    """

    first: str
    second: str
    queries: int
    texts: int
    shared: float
    changed: int
    shown: tuple[SideBySide, ...]

    title: ClassVar[str] = "The same queries, two encoders"

    def parts(self) -> Iterator[Section]:
        """The queries with their nearest texts, side by side, and how much changed."""
        yield self.section()

    def section(self, lines: Sequence[str] = ()) -> Section:
        """The table, after it how much changed, and ``lines``."""
        rows = (
            ("" if at else one.query, *pair)
            for one in self.shown
            for at, pair in enumerate(zip(one.first, one.second, strict=True))
        )
        table = Table(("query", self.first, self.second), tuple(tuple(map(_cut, row)) for row in rows))
        title = f"{len(self.shown)} of {self.queries:,} queries and their nearest of {self.texts:,} texts"
        return Section(title, table, (self.headline(), *lines))

    def headline(self) -> str:
        """How much changed, in one line."""
        return (
            f"The nearest text is another one for {self.changed:,} of {self.queries:,} queries; of their {SHARED} "
            f"nearest texts both encoders have {100 * self.shared:.0f} % in common."
        )


def compare_encoders(
    models: Sequence[str | Path | SentenceEncoder],
    options: LoadOptions,
    queries: str | Path | Sequence[str],
    text: str | Path | Sequence[str],
    columns: list[str] | None,
    max_sentences: int,
    seed: int,
    progress: bool | None,
) -> Comparison:
    """What two encoders find, that are opened here."""
    for model in models:
        require_openable(model, **options)
    asked = load_queries(queries, seed)
    texts = list(dict.fromkeys(_texts(text, columns)))
    some = np.sort(np.random.default_rng(seed).permutation(len(texts))[:max_sentences])
    systems = [_opened(model, options) for model in models]
    return compare_systems(systems, asked, [texts[row] for row in some], seed, progress)


def _opened(model: str | Path | SentenceEncoder, options: LoadOptions) -> tuple[str, SentenceEncoder]:
    """An encoder and its name."""
    if not isinstance(model, str | Path):
        facts = model.describe()
        return ", ".join(str(facts[name]) for name in ("encoder", "calibrator") if name in facts), model
    takes = takes_options(model, options.get("revision"))
    return str(model), load(model, **options if takes else LoadOptions(device=options.get("device")))


def _texts(source: str | Path | Sequence[str], named: Sequence[str] | None) -> list[str]:
    """The different sentences of a text; of a table, of the columns that ``fix`` would read."""
    if not isinstance(source, str | Path):
        return [sentence for one in source if (sentence := " ".join(one.split()))]
    if named is None and table_suffix(source) and not str(source).startswith("hub:"):
        named = choose_columns(open_table(source), None).names
    return load_sentences(source, named)


def load_queries(source: str | Path | Sequence[str], seed: int) -> list[str]:
    """Different queries, each once; of very many a random sample.

    Raises:
        DataError: If the file is missing or damaged, or they are too few.
    """
    if isinstance(source, str | Path):
        names = open_table(source).require(COLUMNS["queries"]) if table_suffix(source) else None
        found, where = load_sentences(source, names), str(source)
    else:
        found, where = list(dict.fromkeys(_texts(source, None))), "queries"
    if len(found) < FEWEST:
        raise DataError(f"{where} should hold at least {FEWEST} different queries, but holds {len(found)}. Give more.")
    rows = np.random.default_rng(seed).permutation(len(found))[:MOST]
    return [found[row] for row in sorted(rows)]


def compare_systems(
    systems: Sequence[tuple[str, SentenceEncoder]],
    queries: Sequence[str],
    texts: Sequence[str],
    seed: int = 0,
    progress: bool | None = None,
) -> Comparison:
    """What two systems, by their names, find for queries among texts.

    Raises:
        DataError: If there are fewer texts than are compared, or a system gives an embedding of zeros.
    """
    if len(texts) < SHARED:
        raise DataError(f"At least {SHARED} different texts are needed to search in, got {len(texts)}. Give more text.")
    sides = {str(side): system for side, (_, system) in enumerate(systems)}
    x, asked = encode_systems(sides, texts, progress), encode_systems(sides, queries, progress, "query")
    first, second = (nearest_rows(asked[side], x[side]) for side in sides)
    drawn = np.sort(np.random.default_rng(seed).permutation(len(queries))[:SHOWN])
    shown = (
        SideBySide(queries[row], *(tuple(texts[at] for at in side[row][:NEAREST]) for side in (first, second)))
        for row in drawn
    )
    changed = int((first[:, 0] != second[:, 0]).sum())
    shared = share_in_common(first, second)
    return Comparison(systems[0][0], systems[1][0], len(queries), len(texts), shared, changed, tuple(shown))


def _cut(text: str) -> str:
    return text if len(text) <= WIDTH else f"{text[: WIDTH - 3]}..."


def share_in_common(first: NDArray[np.intp], second: NDArray[np.intp]) -> float:
    """Share of the nearest texts (q, SHARED) that both found, mean over the queries."""
    return float(np.mean([len({*a} & {*b}) / SHARED for a, b in zip(first, second, strict=True)]))


def nearest_rows(queries: NDArray[np.floating], texts: NDArray[np.floating]) -> NDArray[np.intp]:
    """The texts of the largest cosines with each query (q, SHARED), the nearest first; equal ones in their order."""
    found, unit = [], unit_rows(texts)
    for start in range(0, len(queries), BLOCK):
        cosines = unit_rows(queries[start : start + BLOCK]) @ unit.T
        found.append(np.argsort(-cosines, axis=1, kind="stable")[:, :SHARED])
    return np.concatenate(found)
