"""How scored pairs lie in files: the SemEval packages, STS-B, SICK, and any table.

    SemEval   STS.input.X.txt (two sentences a line, tab-separated; STS16 adds columns of source notes) and
              STS.gs.X.txt (line i scores line i; a blank line means that the pair was never annotated)
    STS-B     tab-separated in spite of its name .csv, without a header; some lines have columns of source notes
    SICK      tab-separated with a header; CRLF in the test file
    table     columns sentence1, sentence2, score and, if there is one, subset

Nothing here is read with csv quoting: the sentences hold unbalanced quotation marks, and a csv reader merges lines in
silence. Sentences stay as they stand in the file.
"""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from bertflow.data.lines import read_lines
from bertflow.data.tables import TextTable
from bertflow.errors import DataError

Scale = tuple[float, float]
"""The lowest and the highest gold score there can be."""


class ScoredPair(NamedTuple):
    """Two sentences, their human score and the sub-set they came in."""

    sentence1: str
    sentence2: str
    gold: float
    subset: str


def read_semeval(folder: Path, subset: str, scale: Scale) -> list[ScoredPair]:
    """The annotated pairs of one sub-set of STS12 to STS16.

    Raises:
        DataError: If a file is missing, the line counts differ, or a line cannot be read.
    """
    inputs, golds = folder / f"STS.input.{subset}.txt", folder / f"STS.gs.{subset}.txt"
    for path in (inputs, golds):
        if not path.is_file():
            raise DataError(f"The sub-set {subset} should stand in {path}, which is missing. Is the folder complete?")
    texts = [line for _, line in read_lines(inputs)]
    scores = [line for _, line in read_lines(golds)]
    if len(texts) != len(scores):
        raise DataError(
            f"{inputs} has {len(texts)} lines and {golds} has {len(scores)}, but line i of one should score line i "
            "of the other. Fetch both again."
        )
    return [
        _pair_of_line(text, (0, 1), score, subset, scale, (f"{inputs}, line {number}", f"{golds}, line {number}"))
        for number, (text, score) in enumerate(zip(texts, scores, strict=True), start=1)
        if score.strip()
    ]


def read_stsb(folder: Path, name: str, scale: Scale) -> list[ScoredPair]:
    """One split of the STS Benchmark: genre, file, year, id, score, sentence 1, sentence 2."""
    return _read_columns(folder / name, (5, 6, 4), scale, skip=0)


def read_sick(folder: Path, name: str, scale: Scale) -> list[ScoredPair]:
    """One split of SICK: pair_ID, sentence_A, sentence_B, relatedness_score, entailment_judgment, under a header."""
    return _read_columns(folder / name, (1, 2, 3), scale, skip=1)


LAYOUTS: Mapping[str, Callable[[Path, str, Scale], list[ScoredPair]]] = {
    "semeval": read_semeval,
    "stsb": read_stsb,
    "sick": read_sick,
}
"""A row is how a package lays out its pairs; the reader takes the folder, the sub-set or file, and the scale."""


def read_table(table: TextTable, scale: Scale) -> list[ScoredPair]:
    """The pairs of a table with sentence1, sentence2, score and, if it is there, subset ("all" if not).

    Raises:
        DataError: If a column is missing, or a row cannot be read.
    """
    columns = table.require([("sentence1", "sentence2", "score")]) + (table.find(["subset"]) or ())
    pairs = []
    for number, (sentence1, sentence2, score, *subset) in table.read(columns):
        where = table.where(number)
        pairs.append(_scored_pair(sentence1, sentence2, score, str(subset[0]) if subset else "all", scale, where))
    return pairs


def _read_columns(path: Path, columns: tuple[int, int, int], scale: Scale, skip: int) -> list[ScoredPair]:
    pairs = []
    for number, line in read_lines(path):
        if number > skip:
            where = f"{path}, line {number}"
            score = _cell(line, columns[2], where)
            pairs.append(_pair_of_line(line, columns[:2], score, "all", scale, (where, where)))
    return pairs


def _pair_of_line(
    line: str, columns: tuple[int, int], score: str, subset: str, scale: Scale, where: tuple[str, str]
) -> ScoredPair:
    """Cut the two sentences out of a line; ``where`` is the place of the text and that of the score."""
    first, second = _cell(line, columns[0], where[0]), _cell(line, columns[1], where[0])
    return _scored_pair(first, second, parse_score(score, scale, where[1]), subset, scale, where[0])


def _cell(line: str, column: int, where: str) -> str:
    cells = line.split("\t")
    if len(cells) <= column:
        raise DataError(
            f"{where}: at least {column + 1} cells, separated by tabs, are wanted, but {len(cells)} are there. "
            "Fetch the file again."
        )
    return cells[column]


def _scored_pair(sentence1: Any, sentence2: Any, score: Any, subset: str, scale: Scale, where: str) -> ScoredPair:
    for sentence in (sentence1, sentence2):
        if not isinstance(sentence, str) or not sentence.strip():
            raise DataError(f"{where}: a pair needs two sentences, but one is {sentence!r}. Leave the pair out.")
    return ScoredPair(sentence1, sentence2, parse_score(score, scale, where), subset)


def parse_score(score: Any, scale: Scale, where: str) -> float:
    """A gold score as a number.

    Args:
        score: What stands in the file.
        scale: The lowest and the highest score allowed.
        where: File and line, for the message.

    Raises:
        DataError: If it is no finite number, or lies outside the scale.
    """
    try:
        value = float(score)
    except (TypeError, ValueError):
        value = math.nan
    if not math.isfinite(value):
        raise DataError(f"{where}: a score should be a number, got {score!r}. Repair the score or leave the pair out.")
    if not scale[0] <= value <= scale[1]:
        raise DataError(
            f"{where}: a score should lie between {scale[0]:g} and {scale[1]:g}, got {value:g}. Repair the score."
        )
    return value
