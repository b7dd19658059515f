"""Pairs without labels: parts of a text that stand together belong together.

    a document               lines between blank lines                      line 1 -> line 2, line 3 -> line 4, ...
    a paragraph              a line of several sentences                    its first sentence -> the rest
    a row of a table         question, answer; query, text; title, text     the one -> the other

Lines that stand alone make no pairs. The documents that pairs are mined from are put aside whole, and nothing in them
is fitted on.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np

from bertflow.data.columns import COLUMNS
from bertflow.data.corpus import load_sentences
from bertflow.data.docstrings import sentences as complete_sentences
from bertflow.data.pairs import Pairs, unique_pairs
from bertflow.data.tables import open_table, read_lines, table_suffix
from bertflow.errors import DataError, UsageError
from bertflow.text_keys import text_key

LEAST_WORDS = 3
"""Fewest words of each text of a pair."""
HELD_OUT = 1 / 3
"""Largest share of the documents that is put aside."""
FEWEST_PAIRS = 100
"""Fewest held-out pairs that are used: with fewer, no interval can tell systems apart."""
FEWEST = 200
"""Fewest different sentences that anything is fitted on."""


@dataclass(frozen=True)
class Document:
    """Sentences that stand together.

    Attributes:
        sentences: The sentences.
        pairs: Queries, each with the text that should be found.
    """

    sentences: tuple[str, ...]
    pairs: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class SplitText:
    """Text to fit on, and text that is not.

    Attributes:
        fitted: Distinct sentences to fit on.
        reference: Distinct sentences of the documents put aside, a random one of each: for random pairs and the domain.
        choosing: Mined pairs to choose by; None where there are too few.
        judging: Other mined pairs to judge by.
        mined: Number of pairs in the whole text.
    """

    fitted: list[str]
    reference: list[str]
    choosing: Pairs | None
    judging: Pairs | None
    mined: int


def read_documents(source: str | Path | Sequence[str], whole_lines: bool = False) -> list[Document]:
    """The documents of a text or a table, in its order.

    Args:
        source: A file, a hub dataset as ``hub:owner/name``, or lines of text.
        whole_lines: Keep each line whole, because there is a vector for the line and not for its parts.

    Raises:
        UsageError: If lines should stay whole and the file is not plain text.
        DataError: If the file is missing, damaged, or holds no text.
    """
    if not isinstance(source, str | Path):
        return list(_documents_of_lines(source, whole_lines))
    source, path = str(source), Path(source).expanduser()
    if path.name.lower().removesuffix(".gz").endswith(".txt"):
        return list(_documents_of_lines((line for _, line in read_lines(path)), whole_lines))
    if whole_lines:
        raise UsageError(f"The text of vectors is a .txt file, one line a vector, got {source}. Convert it.")
    if not source.startswith("hub:") and table_suffix(path):
        table = open_table(path)
        if columns := table.known(COLUMNS["documents"]):
            rows = ([" ".join(str(cell or "").split()) for cell in cells] for _, cells in table.read(columns))
            return [_pair(*row) for row in rows if any(row)]
    return [Document((sentence,)) for sentence in load_sentences(source)]


def _pair(first: str, second: str) -> Document:
    return Document(tuple(cell for cell in (first, second) if cell), _usable([(first, second)]))


def _documents_of_lines(lines: Iterable[str], whole: bool) -> Iterable[Document]:
    cleaned = [" ".join(line.split()) for line in lines]
    blocks = [list(block) for filled, block in groupby(cleaned, key=bool) if filled]
    # Lines without a blank line between them are a list, not one document.
    for block in blocks if len(blocks) > 1 else [[line] for line in cleaned if line]:
        if len(block) > 1:
            yield Document(tuple(block), _usable(_neighbors(block)))
        else:
            yield Document(tuple(block)) if whole else _paragraph(block[0])


def _paragraph(line: str) -> Document:
    parts = complete_sentences(line)
    if len(parts) < 2 or not line.startswith(parts[0]):
        return Document((line,))
    return Document(tuple(parts), _usable([(parts[0], line[len(parts[0]) :].strip())]))


def _neighbors(block: Sequence[str]) -> list[tuple[str, str]]:
    return list(zip(block[::2], block[1::2], strict=False))


def _usable(pairs: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    return tuple(pair for pair in pairs if all(len(side.split()) >= LEAST_WORDS for side in pair))


def split_text(
    documents: Sequence[Document], source: str, labelled: Sequence[str], max_sentences: int, max_pairs: int, seed: int
) -> SplitText:
    """Put some documents aside: documents with pairs, if there are enough, else any.

    Args:
        documents: All documents.
        source: Name of the text.
        labelled: Sentences of labelled pairs, which are not fitted on either.
        max_sentences: Largest number of sentences to fit on.
        max_pairs: Largest number of pairs to choose by, and as many to judge by.
        seed: Random seed of what is put aside.

    Raises:
        DataError: If too few sentences are left to fit on; the message says how many are needed.
    """
    distinct = len({text_key(sentence) for document in documents for sentence in document.sentences})
    if distinct < FEWEST:
        raise _too_small(distinct, "")
    rng = np.random.default_rng(seed)
    shuffled = [documents[row] for row in rng.permutation(len(documents))]
    paired = [document for document in shuffled if document.pairs]
    # Whether a third of the documents with pairs has enough pairs.
    of_pairs = sum(len(document.pairs) for document in paired) * HELD_OUT >= FEWEST_PAIRS
    pool = paired if of_pairs else shuffled
    aside = _until(pool[: max(1, int(len(pool) * HELD_OUT))], 2 * max_pairs, of_pairs)
    if of_pairs:
        # The same share of the documents without pairs, so that the reference has the same kinds of text.
        others = [document for document in shuffled if not document.pairs]
        aside += others[: round(len(others) * len(aside) / len(paired))]
    pairs = unique_pairs(pair for document in aside for pair in document.pairs) if of_pairs else []
    taken = {text_key(text) for document in aside for text in _texts(document)} | {text_key(text) for text in labelled}
    left_out = set(map(id, aside))
    fitted = _distinct(
        (sentence for document in shuffled if id(document) not in left_out for sentence in document.sentences), taken
    )
    if len(fitted) < FEWEST // 2:
        raise _too_small(len(fitted), " that are neither put aside nor labelled")
    enough = len(pairs) >= FEWEST_PAIRS
    return SplitText(
        fitted=fitted[:max_sentences],
        reference=_distinct((document.sentences[rng.integers(len(document.sentences))] for document in aside), set()),
        choosing=_retrieval(pairs[::2], source) if enough else None,
        judging=_retrieval(pairs[1::2], source) if enough else None,
        mined=sum(len(document.pairs) for document in documents),
    )


def _until(documents: Sequence[Document], most: int, of_pairs: bool) -> list[Document]:
    """The first documents, until they have ``most`` pairs, or sentences."""
    sizes = np.cumsum([len(document.pairs if of_pairs else document.sentences) for document in documents])
    return list(documents[: int(np.searchsorted(sizes, most)) + 1])


def _texts(document: Document) -> Iterable[str]:
    yield from document.sentences
    for pair in document.pairs:
        yield from pair


def _distinct(sentences: Iterable[str], taken: set[str]) -> list[str]:
    """The sentences whose text key is not taken, each key once."""
    kept: dict[str, str] = {}
    for sentence in sentences:
        key = text_key(sentence)
        if key not in taken:
            kept.setdefault(key, sentence)
    return list(kept.values())


def _retrieval(pairs: Sequence[tuple[str, str]], source: str) -> Pairs:
    first, second = zip(*pairs, strict=True)
    return Pairs("mined pairs", first, second, kind="retrieval", source=source)


def _too_small(found: int, which: str) -> DataError:
    return DataError(
        f"A verdict needs at least {FEWEST} different sentences, to fit on some and to judge on others, got {found}"
        f"{which}. Give more text of the kind that you will embed."
    )
