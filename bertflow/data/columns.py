"""Which columns of a table hold text, and whether two of them are pairs.

    of known names    title, description; question, answer; sentence1, sentence2; text ...     ``COLUMNS``
    of other names    three words or more in the median: text. Of two whose rows mostly differ, the shorter one is a
                      query of the longer one

Pairs that were found in the second way may be none: what uses them looks whether the two texts of a row are alike.
"""

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from statistics import median

from bertflow.data.skipping import none_skipped
from bertflow.data.tables import COLUMNS, TextTable
from bertflow.errors import RowError

LEAST_WORDS = 3
"""Fewest words of each text of a pair; in the median, of a column of text."""
MOST_REPEATED = 0.5
"""Largest share of the rows of a column of pairs that repeat others."""
SAMPLE = 5000
"""Rows that tell what a column holds, the first ones."""
NAME_THEM = (
    "Rename the columns that hold text, or name them with the option columns (by number, from 1, if the file has no "
    "header)."
)
_WORD = re.compile(r"\S*[^\W\d_]\S*")
"""A word with a letter: dates and numbers are no text."""


@dataclass(frozen=True)
class TextColumns:
    """The columns of a table that are read.

    Attributes:
        names: As the table spells them.
        unused: The others.
        paired: Whether the first is a query of the second.
        alone: The one to read where pairs that were found by their text do not match; empty for columns of known names.
        note: What else there is to say.
    """

    names: tuple[str, ...]
    unused: tuple[str, ...]
    paired: bool
    alone: str = ""
    note: str = ""

    def __str__(self) -> str:
        """One line."""
        unused = f"unused: {', '.join(self.unused)}; " if self.unused else ""
        pairs = " as pairs" if self.paired else ""
        of = f"column{'s' if len(self.names) > 1 else ''} {', '.join(self.names)}"
        return f"using {of}{pairs} ({unused}see --columns){self.note}"


def choose_columns(table: TextTable, named: Sequence[str] | None) -> TextColumns:
    """The columns that a user named, or of known names, or that hold text.

    Raises:
        DataError: If none does; the message lists those that are there.
    """

    def chosen(names: Sequence[str], paired: bool, alone: str = "") -> TextColumns:
        return TextColumns(tuple(names), tuple(one for one in table.columns if one not in names), paired, alone)

    if named is not None:
        return chosen(table.require([named], NAME_THEM), len(named) == 2)
    if pair := table.known(COLUMNS["documents"]):
        return chosen(pair, True)
    known = table.known(COLUMNS["sentences"]) or ()
    if len(known) == 2:
        return chosen(known, False)
    found = _text_columns(table)
    varied = sorted((name for name in found if found[name][1] <= MOST_REPEATED), key=lambda name: found[name][0])
    main = [*known, *reversed(varied), *sorted(found, key=lambda name: found[name][1])][:1]
    beside = [name for name in varied if name not in main]
    if beside and main[0] in varied:
        return chosen(sorted((beside[0], main[0]), key=varied.index), True, main[0])
    return chosen(main or table.require(COLUMNS["sentences"], NAME_THEM), False)


def _text_columns(table: TextTable) -> Mapping[str, tuple[float, float]]:
    """Of each column of text, the median number of words, and the share of rows that repeat others."""
    rows = []
    with suppress(RowError), none_skipped():  # a row that cannot be used is refused when the text is read
        for _, cells in islice(table.read(table.columns), SAMPLE):
            rows.append(cells)
    found = {}
    for name, column in zip(table.columns, zip(*rows, strict=True), strict=False):
        filled = [cell for cell in column if cell is not None and cell != ""]
        if filled and all(isinstance(cell, str) for cell in filled):
            words = median(len(_WORD.findall(cell)) for cell in filled)
            if words >= LEAST_WORDS:
                found[name] = (words, 1 - len(set(filled)) / len(filled))
    return found
