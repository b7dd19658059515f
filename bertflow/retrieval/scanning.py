"""All rows of a collection, read a part at a time: exact ranks of known answers, and cosines of random pairs of rows.

Memory does not grow with the rows.
"""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from bertflow.errors import DataError
from bertflow.retrieval.collections import AbstractCollection, Id
from bertflow.retrieval.ranking import CELLS, Float64
from bertflow.similarity import SIMILARITIES, unit_rows

ROWS = 8192
"""Rows in memory at a time."""
TOGETHER, GROUPS, PAIRS = 16, 128, 50_000
"""For random pairs: rows that are read at one place, places, and pairs. No pair is of rows at one place, which may be
of one document."""
ROWS_FOR_PAIRS = 50
"""Rows below which random pairs say too little."""
TIE = 1e-12
"""Cosines this close are equal: those of equal rows have other last digits in another block."""


class Scan:
    """The rows of a collection.

    Args:
        collection: Open.
        number: Whether its ids are numbers.
    """

    def __init__(self, collection: AbstractCollection, number: bool) -> None:
        self.collection, self._number = collection, number

    def blocks(self, rows: int = ROWS) -> Iterator[tuple[list[str], Float64]]:
        """Ids as text, and vectors of length one (n, dim); rows without a vector are left out."""
        for part in self.collection.parts(rows):
            read = self.collection.read(part)
            kept = [at for at in range(len(read)) if at not in read.bad]
            if kept:
                yield [str(read.ids[at]) for at in kept], unit_rows(read.vectors[kept])

    def ids(self, names: Iterable[str]) -> list[Id]:
        """Ids as the database has them.

        Raises:
            DataError: If they are numbers there, and one is not.
        """
        if not self._number:
            return list(names)
        try:
            return [int(name) for name in names]
        except ValueError as error:
            reason = str(error).rpartition(": ")[2]
            raise DataError(
                f"The ids of {self.collection.address} are numbers, but {reason} is not. Give those."
            ) from None

    def missing(self, names: Sequence[str]) -> list[str]:
        """Those of some ids that no row has.

        Raises:
            DataError: As ``ids``, and if the database cannot be read.
        """
        try:
            self.collection.vectors_of(self.ids(names))
        except DataError:
            wanted = set(names).difference(*(found for found, _ in self.blocks()))
            if not wanted:
                raise
            return sorted(wanted)
        return []

    def ranks(self, questions: NDArray[np.floating], right: Sequence[frozenset[str]]) -> list[NDArray[np.int64]]:
        """As ``Phrases.ranks``, in one pass over the rows; ``missing`` says which ids cannot be ranked."""
        names = sorted({name for some in right for name in some})
        place = {name: at for at, name in enumerate(names)}
        unit, vectors = unit_rows(questions), unit_rows(self.collection.vectors_of(self.ids(names)))
        mine = [np.array(sorted(place[name] for name in some)) for some in right]
        falling = [np.sort(vectors[at] @ row)[::-1] for at, row in zip(mine, unit, strict=True)]
        above = [np.zeros(len(at), np.int64) for at in mine]
        for found, block in self.blocks():
            at_row = {place[name]: row for row, name in enumerate(found) if name in place}
            size = max(1, CELLS // len(found))
            for start in range(0, len(unit), size):
                for question, cosines in enumerate(unit[start : start + size] @ block.T, start):
                    cosines[[at_row[at] for at in mine[question].tolist() if at in at_row]] = -np.inf
                    above[question] += (cosines >= falling[question][:, None] - TIE).sum(1)
        return [wrong + np.arange(1, len(wrong) + 1) for wrong in above]

    def random_cosines(self, seed: int = 0) -> Float64:
        """Cosines of random pairs of rows, rising; none where there are too few rows.

        Source: Places are drawn with the same chance, so every row is.
        """
        rng = np.random.default_rng(seed)
        parts = self.collection.parts(TOGETHER)
        chosen = sorted(rng.permutation(len(parts))[:GROUPS].tolist())
        read = [self.collection.read(parts[at]) for at in chosen]
        kept = [np.delete(rows.vectors, list(rows.bad), axis=0) for rows in read]
        group = np.repeat(np.arange(len(kept)), [len(x) for x in kept])
        if len(group) < ROWS_FOR_PAIRS:
            return np.empty(0)
        x = unit_rows(np.concatenate(kept))
        first, second = rng.integers(0, len(x), (2, PAIRS))
        apart = group[first] != group[second]
        return np.sort(SIMILARITIES["cosine"].paired(x[first[apart]], x[second[apart]]))
