"""Text in: sentences to fit on, texts with a label each, known answers, lists of words. A file in, a clean list out.

    .txt                          one sentence per line (also .gz)
    a table                       the columns that hold text, found by their names or named by the user
    hub:owner/name[@revision][#config][:split]    a dataset of the hub, its train split unless named

Clean means: white space collapsed, no sentence twice, the order kept. An empty line of a .txt is not one; an empty
cell of a table is refused, or left out with its row (``bertflow.skip_bad``). What else is read is a table:

    answers         id, text and, if there are past questions, questions: a list, or one cell with ``||`` between them
    questions       question, id: one row for each right answer of a question
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

from bertflow.data.columns import COLUMNS, RENAME, added_up, choose_columns, open_columns, split_columns, without_header
from bertflow.data.lines import is_blank, read_lines, usable_lines
from bertflow.data.tables import FORMATS, TableRow, is_hub, is_plain_text, open_table, table_suffix
from bertflow.errors import DataError, RowError, UsageError, logger, shown
from bertflow.places import expand, require_files
from bertflow.registry import several

DIGITS = 15
"""Most digits of a count, so that sums of counts are exact."""
SEPARATOR = "||"
"""Mark between the past questions of an answer in one cell."""
TITLES = ("title", "subject", "name")
"""Names of a column of titles; they are past questions, and stand before their texts as well."""
Place = Callable[[str], RowError]
"""Place where a sentence was read: it gives the error of its row, for a reason."""


@dataclass(frozen=True)
class TextSource:
    """Files that exist, and datasets of the hub; nothing is read yet except a header with named columns.

    Attributes:
        paths: Files, or hub datasets as ``hub:owner/name[@revision][#config][:split]``.
        columns: The columns of tables that hold text; found by their names if None. Numbers ("1", "2", counted
            from 1) choose columns of a tsv or csv without a header line.

    Raises:
        DataError: If a file, or a named column of one, is missing.
        UsageError: If columns are named, and no source is a table.
    """

    paths: Sequence[str | Path]
    columns: Sequence[str] | None = None

    def __post_init__(self) -> None:
        require_files(*self.paths)
        if self.paths and not any(is_hub(path) or expand(path).stat().st_size for path in self.paths):
            raise self._without_text()
        if self.columns and self.paths and all(map(is_plain_text, self.paths)):
            named = ",".join(self.columns)
            raise UsageError(f"{self.paths[0]} is text in lines, which has no columns, got {named}. Leave them out.")
        for path in filter(table_suffix, self.paths if self.columns else ()):
            open_table(expand(path), self.columns).named(self.columns or ())

    def __iter__(self) -> Iterator[str]:
        """The clean sentences one by one, repeats included: memory does not grow with the text."""
        return (sentence for _, sentence in self.placed())

    def placed(self, streaming: bool = True) -> Iterator[tuple[Place, str]]:
        """The clean sentences, each with its place.

        Args:
            streaming: Whether datasets of the hub are streamed instead of stored.

        Raises:
            DataError: If a file is damaged or not UTF-8, if no column holds text, or if nothing is left.
        """
        empty = True
        for source in self.paths:
            for place, text in _read_source(source, self.columns, streaming):
                if not is_blank(text):
                    empty = False
                    yield place, " ".join(text.split())
        if empty:
            raise self._without_text()

    def _without_text(self) -> DataError:
        return DataError(f"{', '.join(map(str, self.paths))} should hold sentences, but holds none. Give text.")


def load_sentences(paths: str | Path | Sequence[str | Path], columns: Sequence[str] | None = None) -> list[str]:
    """Read and clean the distinct sentences of one or several sources, in the order of their first appearance.

    Args:
        paths: Files, or hub datasets as ``hub:owner/name[@revision][#config][:split]``.
        columns: The columns of tables that hold text, as for ``TextSource``.

    Raises:
        DataError: If a file is missing, damaged or not UTF-8, if no column holds text, or if nothing is left.
    """
    source = TextSource(several(paths), [columns] if isinstance(columns, str) else columns)
    found = [sentence for _, sentence in source.placed(streaming=False)]
    distinct = list(dict.fromkeys(found))
    if copies := len(found) - len(distinct):
        total = added_up({"different": len(distinct), "repeated": copies})
        logger.info("%s: %s", ", ".join(map(str, source.paths)), total)
    return distinct


def require_corpus(sentences: Sequence[str]) -> None:
    """Refuse by a ``DataError`` a corpus of fewer than two sentences: one sentence has no spread."""
    if len(sentences) < 2:
        raise DataError(f"Fitting needs at least 2 different sentences, got {len(sentences)}. Give more text.")


def _read_source(source: str | Path, columns: Sequence[str] | None, streaming: bool) -> Iterator[tuple[Place, str]]:
    path = source if is_hub(source) else expand(source)
    if is_plain_text(path):
        for number, line in without_header(source, usable_lines(path)):
            yield partial(RowError, str(source), number), line
        return
    if not is_hub(path) and table_suffix(path) is None:
        raise DataError(
            f"{path} should be text, by its ending one of {', '.join(('.txt', *FORMATS))} (text also .gz), or a "
            "dataset spelled hub:owner/name. Rename or convert it."
        )
    table = open_table(path, columns, streaming=streaming)
    chosen = replace(choose_columns(table, columns or table.known(COLUMNS["sentences"])), paired=False, note="")
    chosen = replace(chosen, note=f"; each row is {n} sentences" if (n := len(chosen.names)) > 1 else "")
    logger.info("%s: %s", table.name, chosen)

    def texts(row: TableRow) -> list[tuple[Place, str]]:
        hints = [() if isinstance(cell, str | None) else (RENAME,) for cell in row.cells]
        return [(row.bad, row.text(at, *hint)) for at, hint in enumerate(hints)]

    yield from chain.from_iterable(table.usable(chosen.names, texts))


@dataclass(frozen=True)
class Answer:
    """Something that is known, under a name.

    Attributes:
        id: Its name; unique in an index.
        text: The answer.
        questions: Past questions that it answered.
    """

    id: str
    text: str
    questions: tuple[str, ...] = ()

    @property
    def phrases(self) -> tuple[str, ...]:
        """All texts by which it can be found, each once: its own text, then its past questions."""
        return tuple(dict.fromkeys((self.text, *self.questions)))


def load_answers(path: str | Path, columns: str | None = None, numbered: bool = False) -> list[Answer]:
    """Read a table of answers, in the order of the file.

    Args:
        path: A table, or a .txt of one answer per line.
        columns: Column of text; or columns of id, text and, if there are any, past questions. Found by name by default.
        numbered: Whether answers without a column id get their numbers as ids, from 1; a note says so.

    Raises:
        UsageError: If ``columns`` are more than three.
        DataError: If the file or a column is missing, a cell is empty, or an id occurs twice.
    """
    do = "Name the column of text with --columns; or those of id, text and, if there are any, past questions."
    named = split_columns(columns, "text, or id, text and, if there are any, past questions, as a,b or a,b,c", 1, 2, 3)
    table, names = open_columns(path, COLUMNS["answers"], named, is_plain_text(path), do, named=True, first=["id"])
    start = int("id" in map(str.casefold, names) or len(named or ()) > 1)
    if not start and not numbered:
        raise DataError(f"{path} has no column id. Add one, or name the column that holds the ids with --columns.")
    if named or not start:
        held = ", ".join(map("{} {}".format, names, ("holds the ids", "the texts", "past questions")))
        logger.info("%s%s.", path, f": {held}" if start else " has no column id: the answers are numbered from 1")
    found: dict[str, int] = {}

    def answer(row: TableRow) -> Answer:
        name = row.name(0) if start else str(len(found) + 1)
        text, past = row.text(start).strip(), _past(row, *row.cells[start + 1 :])
        made = Answer(name, f"{past[0]}\n{text}" if past and names[-1].casefold() in TITLES else text, past)
        if (before := found.setdefault(made.id, row.number)) != row.number:
            raise row.bad(
                f"the id {shown(made.id)} is already in {table.unit} {before}. "
                "Give each answer an id of its own, and its past questions in one cell."
            )
        return made

    return list(table.usable(names, answer))


def _past(row: TableRow, given: Any = None) -> tuple[str, ...]:
    """The past questions of a row; a cell may be empty."""
    listed = given.split(SEPARATOR) if isinstance(given, str) else [] if given is None else given
    if not isinstance(listed, list | tuple) or not all(isinstance(question, str) for question in listed):
        raise row.bad(f"past questions should be a list of texts, got {shown(given)}. Repair it.")
    return tuple(stripped for question in listed if (stripped := question.strip()))


def load_answer_labels(path: str | Path) -> dict[str, frozenset[str]]:
    """Read a table of questions: the ids of the right answers of each, in the order of the file.

    Raises:
        DataError: If the file or a column is missing, a cell is empty, or there is no question.
    """
    table, columns = open_columns(path, COLUMNS["answered"])
    labels: dict[str, frozenset[str]] = {}
    for question, name in table.usable(columns, lambda row: (row.text(0).strip(), row.name(1))):
        labels[question] = labels.get(question, frozenset()) | {name}
    if not labels:
        raise DataError(f"{path} holds no questions. Give lines with a question and the id of its right answer.")
    return labels


_WORD = re.compile(r"\w+|(?<=\w)['\u2019]\w+")
"""Letters and digits; contractions are split as in GloVe and the lists of word counts: don 't."""


def words_of(sentence: str) -> list[str]:
    """The words of a sentence; punctuation is left out."""
    return [word.replace("\u2019", "'") for word in _WORD.findall(sentence)]


_END = re.compile(r"\n[^\S\n]*\n\s*|(?<=[.!?])[\"')\]]*\s+(?=[\"'(\[]?[A-Z])")
"""Places where a sentence may end: at an empty line, or at a stop before a capital."""
_ABBREVIATION = re.compile(r"(?:\b(?:e\.g|i\.e|cf|vs|etc|resp|Fig|Eq|Sec|Ref|No|Dr|Mr|Mrs|St|al|approx|[A-Z]))\.$")


def sentence_spans(text: str) -> Iterator[tuple[int, int]]:
    """Where the sentences of a text start and stop, by the rules of English; without the white space around them.

    There is at least one, which may be empty.
    """
    start = 0
    for gap in _END.finditer(text):
        if not _ABBREVIATION.search(text, start, gap.start()):
            yield _stripped(text, start, gap.end())
            start = gap.end()
    yield _stripped(text, start, len(text))


def _stripped(text: str, start: int, stop: int) -> tuple[int, int]:
    piece = text[start:stop]
    start += len(piece) - len(piece.lstrip())
    return start, start + len(piece.strip())


def read_frequencies(path: str | Path) -> dict[str, int]:
    """Read a list of "word count" lines, also compressed (.gz), in its order.

    Raises:
        DataError: If the file is missing or empty, a line is not a word and a whole number, or a word comes twice.
    """
    counts: dict[str, int] = {}
    for number, line in read_lines(path):
        if not (cells := line.split()):
            continue
        if len(cells) != 2 or not (cells[1].isdecimal() and len(cells[1]) <= DIGITS):
            what = f"a word and its count, of up to {DIGITS} digits, are wanted, got {shown(line)}. Repair the line."
            raise DataError(f"{path}, line {number}: {what}")
        if cells[0] in counts:
            raise DataError(f"{path}, line {number}: the word {shown(cells[0])} stood before. Add its counts up.")
        counts[cells[0]] = int(cells[1])
    if not any(counts.values()):
        raise DataError(f"{path} should hold words and counts, but holds none above zero. Give a list of words.")
    return counts


def count_words(sentences: Iterable[str]) -> dict[str, int]:
    """Count the words of some sentences, by falling count and then by the alphabet."""
    counts = Counter(word for sentence in sentences for word in words_of(sentence.lower()))
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def refuse_ids(names: Sequence[str], why: str) -> None:
    """Refuse some ids: "The answer 'a' is ...", "5 answers ('a' the first) are ..."."""
    if names:
        many = f"{len(names)} answers ({names[0]!r} the first) are"
        raise DataError(f"{many if len(names) > 1 else f'The answer {names[0]!r} is'} {why}")


def drawn_rows(n: int, most: int, seed: int) -> list[int]:
    """A random sample of this many of ``n`` rows, rising."""
    import numpy as np  # the help of commands, whose options name text, loads none

    return sorted(np.random.default_rng(seed).permutation(n)[:most].tolist())


def chunks(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """Lists of ``size`` items, the last one shorter."""
    left = iter(items)
    yield from iter(lambda: list(islice(left, size)), [])
