"""What ``fix`` reads of a text: its documents, each with the pairs that stand in it.

Parts of a text that stand together belong together, so they make pairs without labels:

    a document               lines between empty lines                      line 1 -> line 2, line 3 -> line 4, ...
    a paragraph              a line of several sentences                    its first sentence -> the rest
    a row of a table         question, answer; title, text; two other columns of text     the one -> the other

Lines that stand alone make no pairs.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path

from bertflow.data.columns import LEAST_WORDS, RENAME, TextColumns, choose_columns, is_long, without_header
from bertflow.data.corpus import TextSource, load_sentences
from bertflow.data.docstrings import sentences as complete_sentences
from bertflow.data.lines import read_lines, usable_lines
from bertflow.data.tables import TableRow, TextTable, is_hub, is_plain_text, open_table, table_suffix
from bertflow.errors import DataError, UsageError
from bertflow.evaluation.names import Text
from bertflow.places import expand


@dataclass(frozen=True)
class Document:
    """Sentences that stand together.

    Attributes:
        sentences: The sentences.
        pairs: Queries, each with the text that should be found.
        lines: How many lines, or rows, of the text it is.
        line: The line that the sentences are parts of; empty where each is a line, or a cell, of its own.
    """

    sentences: tuple[str, ...]
    pairs: tuple[tuple[str, str], ...] = ()
    lines: int = 1
    line: str = ""


class Documents(list[Document]):
    """The documents of a text, in its order.

    Args:
        documents: The documents.
        lines: Number of lines of the text, those included that are empty; 0 counts those of the documents.
        unit: What is counted: lines, rows, the cells of rows, or vectors.
        columns: Where a table holds them; None for plain text.
    """

    def __init__(
        self, documents: Iterable[Document], lines: int = 0, unit: str = "lines", columns: TextColumns | None = None
    ) -> None:
        super().__init__(documents)
        self.lines = lines or sum(one.lines for one in self)
        self.unit, self.columns = unit, columns


def read_documents(source: Text, columns: str | None = None, whole_lines: bool = False) -> Documents:
    """The documents of a text or a table, in its order.

    Args:
        source: A file, a hub dataset as ``hub:owner/name``, or lines of text.
        columns: The columns of a table that hold text, as a,b; of two, the first is a query of the second.
        whole_lines: Keep each line whole, because there is a vector for the line and not for its parts.

    Raises:
        UsageError: If lines should stay whole and the file is not plain text.
        DataError: If the file is missing, damaged, or holds no text.
    """
    if not isinstance(source, str | Path):
        return _documents_of_lines(source, whole_lines)
    source, path = str(source), expand(source)
    named = columns.split(",") if columns else None
    TextSource([source], named)
    if is_plain_text(path):
        # Without a line, those after it have wrong vectors.
        lines = read_lines(path) if whole_lines else without_header(source, usable_lines(path))
        return _refused_if_empty(_documents_of_lines((line for _, line in lines), whole_lines), source)
    if whole_lines:
        raise UsageError(f"The text of vectors is a .txt file, one line a vector, got {source}. Convert it.")
    if not is_hub(source) and table_suffix(path) is None:
        return Documents(Document((sentence,)) for sentence in load_sentences(source, named))
    return _documents_of_rows(open_table(source if is_hub(source) else path, named), named)


def _documents_of_lines(given: Iterable[str], whole: bool) -> Documents:
    cleaned = [" ".join(line.split()) for line in given]
    blocks = [list(block) for filled, block in groupby(cleaned, key=bool) if filled]
    # Lines without a blank line between them are a list, not one document.
    blocks = blocks if len(blocks) > 1 else [[line] for line in cleaned if line]
    return Documents((_document_of_block(block, whole) for block in blocks), len(cleaned))


def _long_enough(*pairs: tuple[str, str]) -> tuple[tuple[str, str], ...]:
    """The pairs that have enough words."""
    return tuple(pair for pair in pairs if all(map(is_long, pair)))


def _document_of_block(block: list[str], whole: bool) -> Document:
    parts = [] if whole else complete_sentences(block[0])
    if len(block) > 1:
        return Document(tuple(block), _long_enough(*zip(block[::2], block[1::2], strict=False)), len(block))
    if len(parts) > 1 and block[0].startswith(parts[0]):
        pairs = _long_enough((parts[0], block[0][len(parts[0]) :].strip()))
        return Document(tuple(parts), pairs, line=block[0])
    return Document(tuple(block))


def _documents_of_rows(table: TextTable, named: Sequence[str] | None) -> Documents:
    columns = choose_columns(table, named)
    rows = list(table.usable(columns.names, _texts_of_row))
    if columns.paired:
        found = [Document(tuple(filter(None, row)), _long_enough((row[0], row[1]))) for row in rows if any(row)]
        if (n := sum(bool(one.pairs) for one in found)) < len(rows):
            columns = replace(columns, note=f"; {n:,} of {len(rows):,} rows have {LEAST_WORDS} words or more in both")
        return _refused_if_empty(Documents(found, len(rows), "rows", columns), table.name)
    alone = (Document((text,)) for row in rows for text in row if text)
    unit = "rows" if len(columns.names) == 1 else "cells"
    return _refused_if_empty(Documents(alone, len(rows) * len(columns.names), unit, columns), table.name)


def _refused_if_empty(documents: Documents, name: str) -> Documents:
    if documents:
        return documents
    raise DataError(f"{name} should hold sentences, but holds none. Give text.")


def _texts_of_row(row: TableRow) -> list[str]:
    """The cells of a row as clean text; an empty one is empty."""
    filled = [cell.strip() if isinstance(cell, str) else cell is not None for cell in row.cells]
    return [" ".join(row.text(at, RENAME).split()) if there else "" for at, there in enumerate(filled)]
