"""Sentences to fit on: any file of text in, a clean list out.

    .txt                          one sentence a line (also .gz)
    .tsv .csv .jsonl .parquet     the columns that hold text, found by their names or named by the user
    hub:owner/name[@revision][#config][:split]    a dataset of the hub, its train split unless named

Clean means: white space collapsed, nothing empty, no sentence twice, the order kept.
"""

import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from bertflow.data.hub import load_hub_table, parse_hub_split
from bertflow.data.lines import read_lines
from bertflow.data.tables import TextTable, open_table, spell_choices, table_suffix
from bertflow.errors import DataError, UsageError

logger = logging.getLogger(__name__)

TEXT_COLUMNS = (
    ("query", "text"),
    ("text",),
    ("sentence",),
    ("sentence1", "sentence2"),
    ("sentence_A", "sentence_B"),
    ("premise", "hypothesis"),
    ("question", "answer"),
    ("anchor", "positive"),
)
"""A row is a set of columns that hold text; of several in one table the first row counts. Case does not matter."""


def load_sentences(paths: str | Path | Sequence[str | Path], columns: Sequence[str] | None = None) -> list[str]:
    """Read, clean and deduplicate the sentences of one or several sources.

    Args:
        paths: Files, or hub datasets as ``hub:owner/name[@revision][#config][:split]``.
        columns: The columns of tables that hold text; found by ``TEXT_COLUMNS`` if None. Numbers ("1", "2", counted
            from 1) choose columns of a tsv or csv without a header line.

    Returns:
        Distinct sentences by exact text, in the order of their first appearance.

    Raises:
        DataError: If a file is missing, damaged or no UTF-8, if no column holds text, or if nothing is left.
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


def require_corpus(sentences: Sequence[str], minimum: int = 2) -> None:
    """Refuse a corpus too small to fit on: one sentence has no spread.

    Raises:
        DataError: If there are fewer than ``minimum`` sentences.
    """
    if len(sentences) < minimum:
        noun = "sentence" if len(sentences) == 1 else "sentences"
        raise DataError(
            f"Fitting needs a corpus of at least {minimum} different sentences, got {len(sentences)} {noun}. "
            "Give more text."
        )


def split_held_out(sentences: Sequence[str], share: float = 0.05, seed: int = 0) -> tuple[list[str], list[str]]:
    """Put some sentences aside, drawn by ``seed``; both parts keep the order.

    Args:
        sentences: Distinct sentences.
        share: The part to hold out, in [0, 1); at least one sentence unless 0.
        seed: The same seed draws the same sentences.

    Returns:
        The sentences to fit on, and those held out.

    Raises:
        UsageError: If share is not in [0, 1).
        DataError: If fewer than two sentences would be left to fit on.
    """
    if not 0 <= share < 1:
        raise UsageError(f"The held-out share should be at least 0 and less than 1, got {share}. Choose 0.05, say.")
    count = max(1, round(share * len(sentences))) if share else 0
    require_corpus(sentences, minimum=count + 2)
    held_out = np.zeros(len(sentences), dtype=bool)
    held_out[np.random.default_rng(seed).permutation(len(sentences))[:count]] = True
    kept = [sentence for sentence, out in zip(sentences, held_out, strict=True) if not out]
    return kept, [sentence for sentence, out in zip(sentences, held_out, strict=True) if out]


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
    names = _find_text(table) if columns is None else table.find(columns)
    if names is None:
        wanted = spell_choices(TEXT_COLUMNS) if columns is None else " + ".join(columns or ())
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


def _find_text(table: TextTable) -> tuple[str, ...] | None:
    for choice in TEXT_COLUMNS:
        if names := table.find(choice):
            logger.info("%s: text is read from %s.", table.name, " + ".join(names))
            return names
    return None
