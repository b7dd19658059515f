"""What ``fix`` reads: an encoder or vectors, and a text, of which some documents are put aside.

Parts of a text that stand together belong together, so they make pairs without labels:

    a document               lines between empty lines                      line 1 -> line 2, line 3 -> line 4, ...
    a paragraph              a line of several sentences                    its first sentence -> the rest
    a row of a table         question, answer; title, text; two other columns of text     the one -> the other

Lines that stand alone make no pairs. The documents that pairs are mined from are put aside whole, and nothing in them
is fitted on.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain, groupby
from pathlib import Path
from typing import Any

import numpy as np

from bertflow.data.columns import LEAST_WORDS, RENAME, TextColumns, added_up, choose_columns, is_long, without_header
from bertflow.data.corpus import TextSource, load_sentences
from bertflow.data.docstrings import sentences as complete_sentences
from bertflow.data.lines import read_lines, usable_lines
from bertflow.data.pairs import Pairs, unique_sentences
from bertflow.data.tables import TableRow, TextTable, is_hub, is_plain_text, open_table, table_suffix
from bertflow.errors import DataError, UsageError
from bertflow.evaluation.names import Text
from bertflow.next_steps import FEWEST
from bertflow.text_keys import text_key, unique_pairs

HELD_OUT = 1 / 3
"""Largest share of the documents that is put aside."""
FEWEST_PAIRS = 100
"""Fewest held-out pairs that are used: with fewer, no interval can tell systems apart."""
ALWAYS = ("used", "put aside", "seen before")
"""Counts of rows that are named even if they are 0."""


@dataclass(frozen=True)
class Document:
    """Sentences that stand together.

    Attributes:
        sentences: The sentences.
        pairs: Queries, each with the text that should be found.
        lines: How many lines, or rows, of the text it is.
    """

    sentences: tuple[str, ...]
    pairs: tuple[tuple[str, str], ...] = ()
    lines: int = 1

    @classmethod
    def of(cls, sentences: Iterable[str], pairs: Iterable[tuple[str, str]], lines: int = 1) -> "Document":
        """A document with those of the pairs that have enough words."""
        enough = (pair for pair in pairs if all(map(is_long, pair)))
        return cls(tuple(sentences), tuple(enough), lines)


class Documents(list[Document]):
    """The documents of a text, in its order.

    Args:
        documents: The documents.
        lines: Number of lines of the text, those included that are empty; None counts those of the documents.
        unit: What is counted: lines, rows, the cells of rows, or vectors.
        columns: Where a table holds them; None for plain text.
    """

    def __init__(
        self,
        documents: Iterable[Document],
        lines: int | None = None,
        unit: str = "lines",
        columns: TextColumns | None = None,
    ) -> None:
        super().__init__(documents)
        self.lines = sum(one.lines for one in self) if lines is None else lines
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
    source, path = str(source), Path(source).expanduser()
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


def _document_of_block(block: list[str], whole: bool) -> Document:
    parts = [] if whole else complete_sentences(block[0])
    if len(block) > 1:
        return Document.of(block, zip(block[::2], block[1::2], strict=False), len(block))
    if len(parts) > 1 and block[0].startswith(parts[0]):
        return Document.of(parts, [(parts[0], block[0][len(parts[0]) :].strip())])
    return Document(tuple(block))


def _documents_of_rows(table: TextTable, named: Sequence[str] | None) -> Documents:
    columns = choose_columns(table, named)
    rows = list(table.usable(columns.names, _texts_of_row))
    if columns.paired:
        found = [Document.of(filter(None, row), [(row[0], row[1])]) for row in rows if any(row)]
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


@dataclass(frozen=True)
class SplitText:
    """Text to fit on, and text that is not.

    Attributes:
        fitted: Distinct sentences to fit on.
        reference: Distinct sentences, a random one of each document put aside, if possible one of no other document.
        choosing: Mined pairs to choose by; None where there are too few.
        judging: Other mined pairs to judge by.
        mined: Number of different pairs in the whole text: no query and no text occurs twice.
        rows: What became of each line of the text, or row of a table; the numbers add up to all.
        unit: What they count.
        columns: Where a table holds the text; None for plain text.
    """

    fitted: list[str]
    reference: list[str]
    choosing: Pairs | None
    judging: Pairs | None
    mined: int
    rows: Mapping[str, int]
    unit: str = "lines"
    columns: TextColumns | None = None

    @property
    def read(self) -> list[str]:
        """The sentences that are embedded: how broad the text is, and how rich in words, is told by them."""
        mined = unique_sentences(filter(None, (self.choosing, self.judging)))
        return list(dict.fromkeys([*self.fitted, *self.reference, *mined]))

    def as_dict(self) -> dict[str, Any]:
        """The sizes, ready for JSON."""
        sizes = {"fitted": len(self.fitted), "reference": len(self.reference), "pairs_in_the_text": self.mined}
        counted = {"unit": self.unit, "rows": {"all": sum(self.rows.values()), **self.rows}}
        return {**sizes, **counted, "columns": asdict(self.columns) if self.columns else None}

    @property
    def counted(self) -> str:
        """How the rows add up, and on how many sentences a fit is, if more or fewer than those used."""
        n = len(self.fitted)
        held = "" if n == self.rows["used"] else f"; fitted on {n:,} distinct sentences of the used ones"
        return f"{added_up(self.rows, self.unit, ALWAYS)}{held}"

    @property
    def without_pairs(self) -> str:
        """Why there are no mined pairs to judge by."""
        if not self.mined and not (self.columns and self.columns.paired):
            where = "paragraphs, empty lines, or question and answer columns"
            return f"the text has no structure that gives pairs ({where})."
        return f"about 300 pairs without a repeated text are needed, and there are {self.mined:,}."


def split_text(
    documents: Documents, source: str, labeled: Sequence[str], max_sentences: int, max_pairs: int, seed: int
) -> SplitText:
    """Put some documents aside: documents with pairs, if there are enough, else any. One that is repeated counts once.

    Args:
        documents: All documents.
        source: Name of the text.
        labeled: Sentences of labeled pairs, which are not fitted on either.
        max_sentences: Largest number of sentences to fit on.
        max_pairs: Largest number of pairs to choose by, and as many to judge by.
        seed: Random seed for what is put aside.

    Raises:
        DataError: If too few sentences are left to fit on; the message says how many are needed.
    """
    # Copies of what is put aside could not be fitted on, so there would be little left.
    first_copies: dict[tuple[str, ...], Document] = {}
    for document in documents:
        first_copies.setdefault(tuple(map(text_key, document.sentences)), document)
    often = Counter(chain.from_iterable(map(set, first_copies)))
    if len(often) < FEWEST:
        raise _too_small(len(often), "")
    rng = np.random.default_rng(seed)
    copies = list(first_copies.values())
    shuffled = [copies[row] for row in rng.permutation(len(copies))]
    paired = [document for document in shuffled if document.pairs]
    # Whether a third of the documents with pairs has enough pairs.
    of_pairs = sum(len(document.pairs) for document in paired) * HELD_OUT >= FEWEST_PAIRS
    pool = paired if of_pairs else shuffled
    pool = pool[: max(1, int(len(pool) * HELD_OUT))]
    # The first documents, until they have enough pairs, or sentences.
    sizes = np.cumsum([len(document.pairs if of_pairs else document.sentences) for document in pool])
    aside = pool[: int(np.searchsorted(sizes, 2 * max_pairs)) + 1]
    if of_pairs:
        # The same share of the documents without pairs, so that the reference has the same kinds of text.
        others = [document for document in shuffled if not document.pairs]
        aside += others[: round(len(others) * len(aside) / len(paired))]
    pairs = unique_pairs(pair for document in aside for pair in document.pairs) if of_pairs else []
    drawn = [[one for one in each.sentences if often[text_key(one)] == 1] or each.sentences for each in aside]
    texts = (text for document in aside for text in chain(document.sentences, *document.pairs))
    known, left_out = set(map(text_key, labeled)), set(map(id, aside))
    rest = [document for document in shuffled if id(document) not in left_out]
    fitted, rows = _fitted(rest, known | set(map(text_key, texts)), known, max_sentences)
    rows["put aside"] = sum(document.lines for document in aside)
    rows["empty"] = documents.lines - sum(document.lines for document in documents)
    rows["seen before"] += documents.lines - sum(rows.values())
    if len(fitted) < FEWEST // 2:
        raise _too_small(len(fitted), " that are neither put aside nor labeled")
    first, second = zip(*pairs, strict=True) if len(pairs) >= FEWEST_PAIRS else ((), ())
    usable = Pairs("mined pairs", first, second, kind="retrieval", source=source) if first else None
    return SplitText(
        fitted=fitted[:max_sentences],
        reference=_distinct(sentences[rng.integers(len(sentences))] for sentences in drawn),
        choosing=usable and usable.taken(range(0, len(pairs), 2)),
        judging=usable and usable.taken(range(1, len(pairs), 2)),
        mined=len(unique_pairs(pair for document in copies for pair in document.pairs)),
        rows=rows,
        unit=documents.unit,
        columns=documents.columns,
    )


def _fitted(
    documents: Sequence[Document], taken: set[str], labeled: set[str], most: int
) -> tuple[list[str], dict[str, int]]:
    """The sentences that are not taken, each once, and what became of the lines of their documents."""
    found: list[str] = []
    rows = dict.fromkeys((*ALWAYS, "in the labels", "above max_sentences", "empty"), 0)
    for document in documents:
        new = {key: sentence for sentence in document.sentences if (key := text_key(sentence)) not in taken}
        taken |= new.keys()
        kept, left = min(len(new), max(0, most - len(found))), document.lines
        asked = sum(text_key(sentence) in labeled for sentence in document.sentences)
        for what, n in {"used": kept, "above max_sentences": len(new) - kept, "in the labels": asked}.items():
            rows[what] += (counted := min(left, n))
            left -= counted
        rows["seen before"] += left
        found += new.values()
    return found, rows


def _distinct(sentences: Iterable[str]) -> list[str]:
    """The sentences, each text key once."""
    kept: dict[str, str] = {}
    for sentence in sentences:
        kept.setdefault(text_key(sentence), sentence)
    return list(kept.values())


def _too_small(found: int, which: str) -> DataError:
    return DataError(
        f"A verdict needs at least {FEWEST} different sentences, to fit on some and to judge on others, got {found}"
        f"{which}. Give more text of the kind that you will embed."
    )
