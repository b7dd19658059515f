"""How often words occur: read from a list, or counted.

A list has a word and its count on each line, by falling count. Words are lower-case and contractions are split as in
the OpenSubtitles lists (``don't`` is ``don`` and ``'t``), so that counted and listed words meet.
"""

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from bertflow.data.lines import read_lines
from bertflow.errors import DataError

_WORD = re.compile(r"\w+|(?<=\w)['\u2019]\w+")


def read_frequencies(path: str | Path) -> dict[str, int]:
    """Read a list of "word count" lines, also compressed (.gz), in its order.

    Raises:
        DataError: If the file is missing or empty, a line is no word and whole number, or a word comes twice.
    """
    counts: dict[str, int] = {}
    for number, line in read_lines(path):
        cells = line.split()
        if not cells:
            continue
        if len(cells) != 2 or not cells[1].isdecimal():
            raise DataError(f"{path}, line {number}: a word and its count are wanted, got {line!r}. Repair the line.")
        if cells[0] in counts:
            raise DataError(f"{path}, line {number}: the word {cells[0]!r} stood before. Add its counts up.")
        counts[cells[0]] = int(cells[1])
    if not counts:
        raise DataError(f"{path} should hold words and counts, but holds none. Give a list of words.")
    return counts


def count_words(sentences: Iterable[str]) -> dict[str, int]:
    """Count the words of some sentences, by falling count and then by the alphabet."""
    counts = Counter(word.replace("\u2019", "'") for sentence in sentences for word in _WORD.findall(sentence.lower()))
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))
