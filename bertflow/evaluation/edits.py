"""Edit distance of two sentences, by characters or by words of their lower-cased text."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from bertflow.array_types import Float64
from bertflow.data.pairs import Pairs

LEVELS: Mapping[str, Callable[[str], list[str]]] = {
    "characters": lambda sentence: list(sentence.lower()),
    "words": lambda sentence: sentence.lower().split(),
}
"""What is inserted, deleted or replaced."""


def edit_distance(first: Sequence[str], second: Sequence[str]) -> int:
    """The fewest insertions, deletions and replacements that turn one into the other (Levenshtein).

    Row i holds the distances of the first i parts of ``first`` to every beginning of ``second``. Insertions run along
    a row, so that each entry is the smallest of those left of it plus their distance in columns: a running minimum.
    """
    codes = {part: code for code, part in enumerate(dict.fromkeys([*first, *second]))}
    others = np.array([codes[part] for part in second], dtype=np.intp)
    columns = np.arange(len(second) + 1)
    row = columns
    for at, part in enumerate(first, start=1):
        without_insertions = np.minimum(row[1:] + 1, row[:-1] + (others != codes[part]))
        row = np.minimum.accumulate(np.concatenate([[at], without_insertions]) - columns) + columns
    return int(row[-1])


def edits_of(pairs: Pairs, level: str) -> Float64:
    """The edit distance of each pair (n,), by a row of ``LEVELS``."""
    sides = (map(LEVELS[level], side) for side in (pairs.first, pairs.second))
    return np.array([*map(edit_distance, *sides)], dtype=np.float64)
