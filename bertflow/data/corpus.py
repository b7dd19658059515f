"""Sentences to fit on, and texts with a label each: any file of text in, a clean list out.

    .txt                          one sentence a line (also .gz)
    .tsv .csv .jsonl .parquet     the columns that hold text, found by their names or named by the user
    hub:owner/name[@revision][#config][:split]    a dataset of the hub, its train split unless named

Clean means: white space collapsed, nothing empty, no sentence twice, the order kept. Labelled texts are a table with
the columns text (or sentence, word) and label, or lines ``sentence<TAB>label`` without a header.
"""

import logging
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bertflow.data.columns import COLUMNS
from bertflow.data.tables import (
    TextTable,
    load_hub_table,
    open_table,
    parse_hub_split,
    read_lines,
    spell_choices,
    table_suffix,
)
from bertflow.errors import DataError

logger = logging.getLogger(__name__)


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
    columns = [columns] if isinstance(columns, str) else columns
    sources = [paths] if isinstance(paths, str | Path) else list(paths)
    sentences = dict.fromkeys(_read_clean(sources, columns, streaming=False))
    if not sentences:
        raise _nothing_in(sources)
    return list(sentences)


def stream_sentences(paths: Sequence[str | Path], columns: Sequence[str] | None = None) -> Iterator[str]:
    """The clean sentences of some sources one by one, repeats included: memory does not grow with the text.

    Args:
        paths: As for ``load_sentences``; datasets of the hub are streamed, not stored.
        columns: As for ``load_sentences``.

    Raises:
        DataError: As ``load_sentences``.
    """
    empty = True
    for sentence in _read_clean(paths, columns, streaming=True):
        empty = False
        yield sentence
    if empty:
        raise _nothing_in(paths)


def _read_clean(sources: Sequence[str | Path], columns: Sequence[str] | None, streaming: bool) -> Iterator[str]:
    for source in sources:
        for text in _read_source(str(source), columns, streaming):
            if sentence := " ".join(text.split()):
                yield sentence


def _nothing_in(sources: Sequence[str | Path]) -> DataError:
    return DataError(f"{', '.join(map(str, sources))} should hold sentences, but holds none. Give text.")


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


def _read_source(source: str, columns: Sequence[str] | None, streaming: bool) -> Iterator[str]:
    if source.startswith("hub:"):
        where = parse_hub_split(source.removeprefix("hub:"))
        return _read_columns(load_hub_table(where, streaming=streaming), columns)
    path = Path(source).expanduser()
    if path.name.lower().removesuffix(".gz").endswith(".txt"):
        return (line for _, line in read_lines(path))
    if path.is_dir():
        raise DataError(f"{path} is a folder. Name the files in it.")
    if table_suffix(path) is None:
        raise DataError(
            f"{path} should be text, by its ending one of .txt, .tsv, .csv, .jsonl (each also .gz), .parquet, or a "
            "dataset spelled hub:owner/name. Rename or convert it."
        )
    numbered = columns is not None and all(name.isdecimal() for name in columns)
    return _read_columns(open_table(path, header=not numbered), columns)


def _read_columns(table: TextTable, columns: Sequence[str] | None) -> Iterator[str]:
    names = table.known(COLUMNS["sentences"] if columns is None else [columns])
    if names and columns is None:
        logger.info("%s: text is read from %s.", table.name, " + ".join(names))
    if names is None:
        wanted = spell_choices(COLUMNS["sentences"]) if columns is None else " + ".join(columns or ())
        raise DataError(
            f"{table.name} should have text in the columns {wanted}, but its columns are "
            f"{table.spell_columns()}. Name those that hold text with the option columns "
            "(by number, from 1, if the file has no header)."
        )
    for number, cells in table.read(names):
        for name, cell in zip(names, cells, strict=True):
            if cell is None:
                continue
            if not isinstance(cell, str):
                raise DataError(
                    f"{table.where(number)}: the column {name} should hold text, got {cell!r}. "
                    "Name the columns that hold text with the option columns."
                )
            yield cell


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
    table = open_table(path)
    columns = table.known(COLUMNS["labelled"])
    if columns is None and len(table.columns) == 2 and table_suffix(path) == ".tsv":
        table = open_table(path, header=False)
        columns = table.columns
    columns = columns or table.require(COLUMNS["labelled"])
    texts, labels = [], []
    for number, (text, label) in table.read(columns):
        if not isinstance(text, str) or not text.strip() or label is None or not str(label).strip():
            raise DataError(f"{table.where(number)}: a text and its label are wanted, got {text!r} and {label!r}.")
        texts.append(" ".join(text.split()))
        labels.append(str(label).strip())
    if len(set(labels)) < 2:
        raise DataError(f"{table.name} should hold two labels or more, but holds {len(set(labels))}. Give more text.")
    return LabelledText(tuple(texts), tuple(labels), Path(path).name)


_WORD = re.compile(r"\w+|(?<=\w)['\u2019]\w+")


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
