"""Text in: sentences to fit on, texts with a label each, known answers, lists of words. A file in, a clean list out.

    .txt                          one sentence a line (also .gz)
    .tsv .csv .jsonl .parquet     the columns that hold text, found by their names or named by the user
    hub:owner/name[@revision][#config][:split]    a dataset of the hub, its train split unless named

Clean means: white space collapsed, no sentence twice, the order kept. An empty line of a .txt is no sentence; an empty
cell of a table is refused, or left out with its row (``bertflow.skip_bad``). What else is read is a table:

    labelled text   text (or sentence, word) and label; or lines ``sentence<TAB>label`` without a header
    answers         id, text and, if there are past questions, questions: a list, or one cell with ``||`` between them
    questions       question, id: one row for each right answer of a question
"""

import logging
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from bertflow.data.hub import load_hub_table
from bertflow.data.skipping import usable
from bertflow.data.tables import (
    COLUMNS,
    TextTable,
    is_plain_text,
    open_columns,
    read_lines,
    table_suffix,
    usable_lines,
)
from bertflow.errors import DataError, RowError, UsageError, shown
from bertflow.text_keys import is_blank

logger = logging.getLogger(__name__)

DIGITS = 15
"""Most digits of a count, so that sums of counts are exact."""
SEPARATOR = "||"
"""Between the past questions of an answer in one cell."""
Place = Callable[[str], RowError]
"""Where a sentence was read: gives the error of its row, for a reason."""


def load_sentences(paths: str | Path | Sequence[str | Path], columns: Sequence[str] | None = None) -> list[str]:
    """Read, clean and deduplicate the sentences of one or several sources.

    Args:
        paths: Files, or hub datasets as ``hub:owner/name[@revision][#config][:split]``.
        columns: The columns of tables that hold text; found by their names if None. Numbers ("1", "2", counted
            from 1) choose columns of a tsv or csv without a header line.

    Returns:
        Distinct sentences by exact text, in the order of their first appearance.

    Raises:
        DataError: If a file is missing, damaged or not UTF-8, if no column holds text, or if nothing is left.
    """
    sources = [paths] if isinstance(paths, str | Path) else paths
    return list(dict.fromkeys(stream_sentences(sources, columns, streaming=False)))


def stream_sentences(
    paths: Sequence[str | Path], columns: Sequence[str] | None = None, streaming: bool = True
) -> Iterator[str]:
    """The clean sentences of some sources one by one, repeats included: memory does not grow with the text.

    Args:
        paths: As for ``load_sentences``.
        columns: As for ``load_sentences``.
        streaming: Whether datasets of the hub are streamed instead of stored.

    Raises:
        DataError: As ``load_sentences``.
    """
    return (sentence for _, sentence in placed_sentences(paths, columns, streaming))


def placed_sentences(
    paths: Sequence[str | Path], columns: Sequence[str] | None = None, streaming: bool = True
) -> Iterator[tuple[Place, str]]:
    """As ``stream_sentences``, each with its place."""
    columns = [columns] if isinstance(columns, str) else columns
    require_columns(paths, columns)
    empty = True
    for source in paths:
        for place, text in _read_source(str(source), columns, streaming):
            if not is_blank(text):
                empty = False
                yield place, " ".join(text.split())
    if empty:
        raise DataError(f"{', '.join(map(str, paths))} should hold sentences, but holds none. Give text.")


def require_columns(paths: Sequence[str | Path], columns: Sequence[str] | None) -> None:
    """Refuse columns of text that has none.

    Raises:
        UsageError: If no source is a table.
    """
    if columns and paths and all(is_plain_text(path) and not str(path).startswith("hub:") for path in paths):
        raise UsageError(f"{paths[0]} is text in lines, which has no columns, got {','.join(columns)}. Leave them out.")


def require_corpus(sentences: Sequence[str]) -> None:
    """Refuse a corpus of fewer than two sentences: one sentence has no spread.

    Raises:
        DataError: If it is too small to fit on.
    """
    if len(sentences) < 2:
        noun = "sentence" if len(sentences) == 1 else "sentences"
        raise DataError(
            f"Fitting needs a corpus of at least 2 different sentences, got {len(sentences)} {noun}. Give more text."
        )


def _read_source(source: str, columns: Sequence[str] | None, streaming: bool) -> Iterator[tuple[Place, str]]:
    choices = COLUMNS["sentences"] if columns is None else [columns]
    do = "Rename the columns that hold text, or name them with the option columns"
    numbers = f"{do} (by number, from 1, if the file has no header)."
    path = Path(source).expanduser()
    if source.startswith("hub:"):
        table = load_hub_table(source.removeprefix("hub:"), streaming=streaming)
        names = table.require(choices, numbers)
    elif is_plain_text(path) or path.is_dir():
        yield from ((partial(RowError, source, number), line) for number, line in usable_lines(path))
        return
    elif table_suffix(path) is None:
        raise DataError(
            f"{path} should be text, by its ending one of .txt, .tsv, .csv, .jsonl (each also .gz), .parquet, or a "
            "dataset spelled hub:owner/name. Rename or convert it."
        )
    else:
        table, names = open_columns(path, choices, columns, do=numbers)
    if columns is None:
        logger.info("%s: text is read from %s.", table.name, " + ".join(names))

    def texts(row: tuple[int, tuple[Any, ...]]) -> list[tuple[Place, str]]:
        number, cells = row
        hints = [() if isinstance(cell, str | None) else (f"{do}.",) for cell in cells]
        found = zip(names, cells, hints, strict=True)
        return [(partial(table.bad, number), table.text(number, name, cell, *hint)) for name, cell, hint in found]

    for found in usable(texts, table.read(names)):
        yield from found


@dataclass(frozen=True)
class LabelledText:
    """Some texts and the label of each, in the order of the file.

    Attributes:
        texts: Sentences, or words.
        labels: As long as ``texts``.
        source: The file.
    """

    texts: tuple[str, ...]
    labels: tuple[str, ...]
    source: str


def load_labels(path: str | Path) -> LabelledText:
    """Read a file of labelled text.

    Raises:
        DataError: If the file is missing or damaged, a cell is empty, or there is only one label.
    """
    table, columns = open_columns(path, COLUMNS["labelled"], headless=True)

    def labelled(row: tuple[int, tuple[Any, ...]]) -> tuple[str, str]:
        number, (text, label) = row
        label = str(label) if isinstance(label, int | float) and label == label else label  # NaN is not a label
        return " ".join(table.text(number, columns[0], text).split()), table.text(number, columns[1], label).strip()

    rows = list(usable(labelled, table.read(columns)))
    if (n := len({label for _, label in rows})) < 2:
        raise DataError(f"{table.name} should hold two labels or more, but holds {n}. Give more text.")
    texts, labels = zip(*rows, strict=True)
    return LabelledText(texts, labels, Path(path).name)


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
        """All by which it can be found, each once: its own text, then its past questions."""
        return tuple(dict.fromkeys((self.text, *self.questions)))


def load_answers(path: str | Path) -> list[Answer]:
    """Read a table (tsv, csv, jsonl, parquet) of answers, in the order of the file.

    Raises:
        DataError: If the file or a column is missing, a cell is empty, or an id occurs twice.
    """
    do = "Rename its columns. Each answer needs an id, such as its number; past questions may be left out."
    table, columns = open_columns(path, COLUMNS["answers"], do=do)
    lines: dict[str, int] = {}

    def answer(row: tuple[int, tuple[Any, ...]]) -> Answer:
        number, (name, text, *past) = row
        said = table.text(number, columns[1], text).strip()
        made = Answer(_id(table, number, name), said, _past(table, number, *past))
        if made.id in lines:
            raise table.bad(
                number,
                f"the id {shown(made.id)} is already in {table.unit} {lines[made.id]}. "
                "Give each answer an id of its own, and its past questions in one cell.",
            )
        lines[made.id] = number
        return made

    return list(usable(answer, table.read(columns)))


def load_answer_labels(path: str | Path) -> dict[str, frozenset[str]]:
    """Read a table of questions: the ids of the right answers of each, in the order of the file.

    Raises:
        DataError: If the file or a column is missing, a cell is empty, or there is no question.
    """
    table, columns = open_columns(path, COLUMNS["answered"])
    labels: dict[str, set[str]] = {}

    def labelled(row: tuple[int, tuple[Any, ...]]) -> tuple[str, str]:
        number, (question, name) = row
        return table.text(number, "question", question).strip(), _id(table, number, name)

    for question, name in usable(labelled, table.read(columns)):
        labels.setdefault(question, set()).add(name)
    if not labels:
        raise DataError(f"{path} holds no questions. Give lines with a question and the id of its right answer.")
    return {question: frozenset(names) for question, names in labels.items()}


def _id(table: TextTable, number: int, cell: Any) -> str:
    """An id, which may be a number in jsonl and parquet."""
    return table.text(number, "id", str(cell) if type(cell) is int else cell).strip()


def _past(table: TextTable, number: int, given: Any = None) -> tuple[str, ...]:
    """The past questions of a row; a cell may be empty."""
    listed = given.split(SEPARATOR) if isinstance(given, str) else [] if given is None else given
    if not isinstance(listed, list | tuple) or not all(isinstance(question, str) for question in listed):
        raise table.bad(number, f"past questions should be a list of texts, got {shown(given)}. Repair it.")
    return tuple(stripped for question in listed if (stripped := question.strip()))


_WORD = re.compile(r"\w+|(?<=\w)['\u2019]\w+")
"""Letters and digits; contractions are split as in GloVe and the lists of word counts: don 't."""


def words_of(sentence: str) -> list[str]:
    """The words of a sentence; punctuation is left out."""
    return [word.replace("\u2019", "'") for word in _WORD.findall(sentence)]


_END = re.compile(r"\n[^\S\n]*\n\s*|(?<=[.!?])[\"')\]]*\s+(?=[\"'(\[]?[A-Z])")
"""Where a sentence may end: at an empty line, or at a stop before a capital."""
_ABBREVIATION = re.compile(r"(?:\b(?:e\.g|i\.e|cf|vs|etc|resp|Fig|Eq|Sec|Ref|No|Dr|Mr|Mrs|St|al|approx|[A-Z]))\.$")


def sentence_spans(text: str) -> Iterator[tuple[int, int]]:
    """Where the sentences of a text start and stop, by the rules of English; without the white space around them.

    There is at least one, be it empty.
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
        cells = line.split()
        if not cells:
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
        subject = (
            f"The answer {names[0]!r} is" if len(names) == 1 else f"{len(names)} answers ({names[0]!r} the first) are"
        )
        raise DataError(f"{subject} {why}")


def chunks(items: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """Lists of ``size`` items, the last one shorter."""
    left = iter(items)
    while chunk := list(islice(left, size)):
        yield chunk
