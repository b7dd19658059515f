"""Retrieval with natural labels: queries, each with its one right text.

All texts are ranked for each query, so a text that answers two queries, or a query with two texts, would count right
answers as wrong. Such pairs are left out, the first one kept, and the number is said.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from bertflow.data.tables import open_table
from bertflow.errors import DataError
from bertflow.text_keys import text_key

logger = logging.getLogger(__name__)

PAIR_COLUMNS = (("query", "text"), ("question", "answer"))
"""A row is what the columns of a retrieval file may be called."""


@dataclass(frozen=True)
class RetrievalPairs:
    """Queries and texts, of one length: the one right text of query i is ``texts[i]``."""

    task: str
    queries: tuple[str, ...]
    texts: tuple[str, ...]
    source: str
    """Where the pairs came from."""

    def __len__(self) -> int:
        """The number of pairs."""
        return len(self.queries)


def load_retrieval(path: str | Path) -> RetrievalPairs:
    """Load a table (tsv, csv, jsonl, parquet) with the columns query and text.

    Raises:
        DataError: If the file or a column is missing, a cell is empty, or fewer than two pairs are left.
    """
    table = open_table(path)
    rows: list[tuple[str, str]] = []
    for number, (query, text) in table.read(table.require(PAIR_COLUMNS)):
        for cell in (query, text):
            if not isinstance(cell, str) or not cell.strip():
                raise DataError(
                    f"{table.where(number)}: a query and its text are wanted, but one is {cell!r}. Leave the pair out."
                )
        rows.append((query, text))
    pairs = unique_pairs(rows)
    if dropped := len(rows) - len(pairs):
        logger.warning(
            "%s: %d of %d pairs are left out, since their query or text stood before and one right text a query is "
            "scored.",
            path,
            dropped,
            len(rows),
        )
    if len(pairs) < 2:
        raise DataError(f"{path} holds {len(pairs)} different pairs, but a ranking needs at least 2. Give more pairs.")
    name = Path(path).name
    return RetrievalPairs(name.partition(".")[0], *_columns(pairs), source=name)


def unique_pairs(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """The pairs of which neither side stood in an earlier pair that was kept, by text key."""
    kept: list[tuple[str, str]] = []
    queries: set[str] = set()
    texts: set[str] = set()
    for query, text in pairs:
        query_key, text_key_ = text_key(query), text_key(text)
        if query_key not in queries and text_key_ not in texts:
            queries.add(query_key)
            texts.add(text_key_)
            kept.append((query, text))
    return kept


def _columns(pairs: list[tuple[str, str]]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return tuple(query for query, _ in pairs), tuple(text for _, text in pairs)
