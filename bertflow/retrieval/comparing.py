"""What two encoders find for the same queries, side by side, without labels or a judgement."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, TypeAlias

import numpy as np

from bertflow.array_types import Floats, Intp
from bertflow.calibrated import encode_systems
from bertflow.data.columns import COLUMNS, choose_columns
from bertflow.data.corpus import drawn_rows, load_sentences
from bertflow.data.tables import open_table, table_suffix
from bertflow.encoder.abstract import SentenceEncoder
from bertflow.encoder.options import EncoderOptions
from bertflow.errors import DataError
from bertflow.evaluation.names import Model, distinct_names, poolings_differ
from bertflow.opening import load_each
from bertflow.results import AbstractResult
from bertflow.similarity import unit_rows
from bertflow.tables import REST, Section, Table, shortened

FEWEST, MOST = 20, 2000
"""Fewest queries, and the most that are read."""
SHOWN, NEAREST = 20, 5
"""Queries that are shown, and the nearest texts of each."""
SHARED = 10
"""Nearest texts of which both encoders should have some."""
WIDTH, BRIEF = 60, 40
"""Characters of a text that are shown, and those in an answer of 24 lines."""
UNJUDGED = (
    "No labels were given, so neither is called better. To know which is, give pairs of a query and its text: "
    "`bertflow evaluate FIRST SECOND --retrieval FILE`."
)
"""Note in place of a judgement."""
BLOCK = 256
"""Queries whose cosines with all texts are in memory together."""
Named: TypeAlias = Sequence[tuple[str, SentenceEncoder]]
"""Encoders and what tables call them; two may have one name."""


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
        poolings: The pooling of each encoder that pools tokens.
        shown: Some of the queries, drawn at random, with their nearest texts.
    """

    first: str
    second: str
    queries: int
    texts: int
    shared: float
    changed: int
    poolings: tuple[str, ...]
    shown: tuple[SideBySide, ...]

    title: ClassVar[str] = "The same queries, two encoders"

    def parts(self) -> Iterator[Section]:
        """The queries with their nearest texts, side by side, and how much changed."""
        yield self.section([*poolings_differ(self.poolings), UNJUDGED])

    def answer(self) -> Iterator[Section]:
        """One query, if there is one whose nearest text is another one."""
        told = (min(self.shown, key=lambda one: one.first[0] == one.second[0]),)
        lines = [*poolings_differ(self.poolings), f"{len(self.shown)} of the queries: {REST}.", UNJUDGED]
        yield replace(self, shown=told).section(lines, BRIEF)

    def section(self, lines: Sequence[str] = (), width: int = WIDTH) -> Section:
        """The table, with this many characters of a text; after it how much changed, and ``lines``."""
        rows = (
            tuple(shortened(text, width) for text in ("" if at else one.query, *pair))
            for one in self.shown
            for at, pair in enumerate(zip(one.first, one.second, strict=True))
        )
        table = Table(("query", self.first, self.second), tuple(rows), prose=True)
        title = f"{len(self.shown)} of {self.queries:,} queries and their nearest of {self.texts:,} texts"
        return Section(title, table, (self.headline(), *lines))

    def headline(self) -> str:
        """How much changed, in one line."""
        return (
            f"The nearest text is another one for {self.changed:,} of {self.queries:,} queries; of their {SHARED} "
            f"nearest texts both encoders have {100 * self.shared:.0f} % in common."
        )


def open_named(models: Sequence[Model], options: EncoderOptions) -> Named:
    """Encoders, opened, and what the tables call them."""
    names = distinct_names([("" if isinstance(model, str | Path) else _called(model), model) for model in models])
    return [*zip(names, load_each([*zip(names, models, strict=True)], options), strict=True)]


def _called(encoder: SentenceEncoder) -> str:
    facts = encoder.describe()
    return ", ".join(str(facts[name]) for name in ("encoder", "calibrator") if name in facts)


def load_texts(source: str | Path | Sequence[str], named: Sequence[str] | None = None) -> list[str]:
    """The different sentences of a text; of a table, of the columns that ``fix`` would read."""
    if not isinstance(source, str | Path):
        return list(dict.fromkeys(sentence for one in source if (sentence := " ".join(one.split()))))
    if named is None and table_suffix(source):
        named = choose_columns(open_table(source), None).names
    return load_sentences(source, named)


def load_queries(source: str | Path | Sequence[str], seed: int) -> list[str]:
    """Different queries, each once; of very many a random sample.

    Raises:
        DataError: If the file is missing or damaged, or they are too few.
    """
    if isinstance(source, str | Path):
        table = open_table(source) if table_suffix(source) else None
        named = table.require(COLUMNS["queries"]) if table and len(table.columns) > 1 else None
        found = load_texts(source, named)
    else:
        found, source = load_texts(source), "queries"
    if len(found) < FEWEST:
        raise DataError(f"{source} should hold at least {FEWEST} different queries, but holds {len(found)}. Give more.")
    return [found[row] for row in drawn_rows(len(found), MOST, seed)]


def compare_systems(
    systems: Named, queries: Sequence[str], texts: Sequence[str], seed: int = 0, progress: bool | None = None
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
    shown = (
        SideBySide(queries[row], *(tuple(texts[at] for at in side[row][:NEAREST]) for side in (first, second)))
        for row in drawn_rows(len(queries), SHOWN, seed)
    )
    shared, changed = share_in_common(first, second), int((first[:, 0] != second[:, 0]).sum())
    poolings = tuple(str(one.describe()["pooling"]) for _, one in systems if "pooling" in one.describe())
    return Comparison(systems[0][0], systems[1][0], len(queries), len(texts), shared, changed, poolings, tuple(shown))


def share_in_common(first: Intp, second: Intp) -> float:
    """Share of the nearest texts (q, SHARED) that both found, mean over the queries."""
    return float(np.mean([len({*a} & {*b}) / SHARED for a, b in zip(first, second, strict=True)]))


def nearest_rows(queries: Floats, texts: Floats) -> Intp:
    """The texts of the largest cosines with each query (q, SHARED), the nearest first; equal ones in their order."""
    asked, unit = unit_rows(queries), unit_rows(texts).T
    starts = range(0, len(asked), BLOCK)
    return np.concatenate([np.argsort(-asked[at : at + BLOCK] @ unit, 1, "stable")[:, :SHARED] for at in starts])
