"""What ``fix`` reads: an encoder or vectors, and a text, of which some documents are put aside.

Parts of a text that stand together belong together, so they make pairs without labels:

    a document               lines between blank lines                      line 1 -> line 2, line 3 -> line 4, ...
    a paragraph              a line of several sentences                    its first sentence -> the rest
    a row of a table         question, answer; query, text; title, text     the one -> the other

Lines that stand alone make no pairs. The documents that pairs are mined from are put aside whole, and nothing in them
is fitted on.
"""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertflow.calibration.base import Provenance
from bertflow.data.corpus import load_sentences, require_columns
from bertflow.data.docstrings import sentences as complete_sentences
from bertflow.data.pairs import Pairs, unique_pairs
from bertflow.data.tables import COLUMNS, is_plain_text, open_table, read_lines, table_suffix, usable_lines
from bertflow.data.vectors import Vectors, open_vectors
from bertflow.encoder.abstract import AbstractEncoder, Float32, Role, SentenceEncoder
from bertflow.errors import DataError, UsageError
from bertflow.opening import LoadOptions, load
from bertflow.store.store import EmbeddingStore
from bertflow.text_keys import text_key

LEAST_WORDS = 3
"""Fewest words of each text of a pair."""
HELD_OUT = 1 / 3
"""Largest share of the documents that is put aside."""
FEWEST_PAIRS = 100
"""Fewest held-out pairs that are used: with fewer, no interval can tell systems apart."""
FEWEST = 200
"""Fewest different sentences that anything is fitted on."""


class VectorEncoder(AbstractEncoder):
    """Vectors that another encoder made, by their sentences.

    Args:
        path: A .npy or .parquet file (n, dim), or the folder of a store.
        sentences: The sentences of the vectors, in their order; None numbers them.
        most: Without sentences, so many of the rows are read, at random.
        seed: Random seed for that.

    Attributes:
        provenance: What a calibrator of the vectors was fitted on: encoder and text of a store; None for a file.

    Raises:
        DataError: If the file is missing or holds no such matrix, or the numbers of vectors and sentences differ.
    """

    def __init__(self, path: Path, sentences: Sequence[str] | None, most: int, seed: int) -> None:
        self._path = path
        source = EmbeddingStore.open(path) if path.is_dir() else open_vectors(path)
        self.provenance: Provenance | None = None
        places = np.arange(source.n)
        if isinstance(source, EmbeddingStore):
            self.provenance = Provenance.of(source.recipe, source.text_hashes)
            places = source.row_ids if sentences is not None else places
        if sentences is not None and len(sentences) != len(places):
            raise DataError(
                f"{path} holds {len(places):,} vectors, but the text has {len(sentences):,} lines that are not empty. "
                "Give the text that was embedded, one line a vector."
            )
        if sentences is None:
            places = np.sort(np.random.default_rng(seed).permutation(source.n)[:most])
            sentences = [f"row {row}" for row in places]
        self.sentences = list(sentences)
        self._x = _rows_of(source, places)
        self._row_of = {sentence: row for row, sentence in enumerate(self.sentences)}
        self.dim = self._x.shape[1]

    def _encode(self, sentences: list[str], role: Role, progress: bool | None, batch_size: int | None) -> Float32:
        missing = [sentence for sentence in sentences if sentence not in self._row_of]
        if missing:
            raise DataError(
                f"{self._path} has no vector for {missing[0]!r} (nor for {len(missing) - 1} others). Embed all "
                "sentences of the labels, and give them with the text."
            )
        return self._x[[self._row_of[sentence] for sentence in sentences]].reshape(-1, self.dim)

    def describe(self) -> dict[str, Any]:
        """The file and a checksum of what was read of it; of a store, its encoder."""
        if self.provenance is not None:
            return dict(self.provenance.encoder)
        return {"encoder": self._path.name, "weights": self._digest, "pooling": "as given"}

    @cached_property
    def _digest(self) -> str:
        return hashlib.sha256(self._x.tobytes()).hexdigest()


def _rows_of(source: EmbeddingStore | Vectors, places: NDArray[np.integer[Any]]) -> Float32:
    """Rows by their numbers, which may repeat, in that order; a file is read a block at a time."""
    if isinstance(source, EmbeddingStore):
        return np.asarray(source.rows(places), dtype=np.float32)
    found, first = [], 0
    wanted, back = np.unique(places, return_inverse=True)
    for block in source.blocks():
        inside = wanted[slice(*np.searchsorted(wanted, (first, first + len(block))))]
        found.append(block[inside - first].astype(np.float32))
        first += len(block)
    return np.concatenate(found)[back]


@dataclass(frozen=True)
class Document:
    """Sentences that stand together.

    Attributes:
        sentences: The sentences.
        pairs: Queries, each with the text that should be found.
    """

    sentences: tuple[str, ...]
    pairs: tuple[tuple[str, str], ...] = ()

    @classmethod
    def of(cls, sentences: Iterable[str], pairs: Iterable[tuple[str, str]]) -> "Document":
        """A document with those of the pairs that have enough words."""
        usable = (pair for pair in pairs if all(len(side.split()) >= LEAST_WORDS for side in pair))
        return cls(tuple(sentences), tuple(usable))


def read_all(
    encoder: "str | Path | SentenceEncoder | None",
    text: Any,
    columns: str | None,
    vectors: Any,
    options: LoadOptions,
    most: int,
    seed: int,
) -> tuple[str, SentenceEncoder, str, list[Document]]:
    """Open and read everything before anything is computed; of vectors without text, ``most`` at random.

    Returns:
        Name of the encoder, the encoder, name of the text (empty where vectors have no text), and its documents.
    """
    if vectors is not None and text is None:
        encoder, text = None, encoder  # `bertflow fix --vectors FILE TEXT`
    given = [name for name, value in options.items() if value is not None and name != "device"]
    if vectors is not None and (wrong := [*given, *(["an encoder"] if encoder is not None else [])]):
        do = "Leave it out." if given else "Leave it out, or give keep_vectors in place of vectors."
        raise UsageError(f"vectors take at most the text of the vectors, got {wrong[0]}. {do}")
    if vectors is None and (encoder is None or text is None):
        raise UsageError("An encoder and a text are needed, as `bertflow fix MODEL TEXT`. Give both, or vectors.")
    documents = [] if text is None else read_documents(text, columns, whole_lines=vectors is not None)
    opened: SentenceEncoder
    if vectors is not None:
        lines = None if text is None else [line for document in documents for line in document.sentences]
        name, opened = str(vectors), (rows := VectorEncoder(Path(vectors), lines, most, seed))
        documents = documents or [Document((sentence,)) for sentence in rows.sentences]
    elif isinstance(encoder, str | Path):
        name = Path(encoder).resolve().name if Path(encoder).exists() else str(encoder)
        opened = load(encoder, **options)
    else:
        assert encoder is not None, "checked above"
        name, opened = str(encoder.describe()["encoder"]), encoder
    if opened.calibrator is not None:
        calibrator = opened.describe()["calibrator"]
        raise UsageError(f"{name} is already calibrated by {calibrator}. Give the encoder without its calibrator.")
    return name, opened, Path(text).name if isinstance(text, str | Path) else "" if text is None else "text", documents


def read_documents(
    source: str | Path | Sequence[str], columns: str | None = None, whole_lines: bool = False
) -> list[Document]:
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
        return list(_documents_of_lines(source, whole_lines))
    source, path = str(source), Path(source).expanduser()
    named = columns.split(",") if columns else None
    require_columns([source], named)
    if is_plain_text(path):
        lines = (read_lines if whole_lines else usable_lines)(path)  # without a line, those after it have wrong vectors
        return list(_documents_of_lines((line for _, line in lines), whole_lines))
    if whole_lines:
        raise UsageError(f"The text of vectors is a .txt file, one line a vector, got {source}. Convert it.")
    if not source.startswith("hub:") and table_suffix(path):
        table = open_table(path, header=not all(map(str.isdecimal, named or [""])))
        pair = table.known(COLUMNS["documents"]) if named is None else table.find(named)
        if pair and len(pair) == 2:
            rows = ([" ".join(str(cell or "").split()) for cell in cells] for _, cells in table.read(pair))
            return [Document.of(filter(None, (query, text)), [(query, text)]) for query, text in rows if query or text]
    return [Document((sentence,)) for sentence in load_sentences(source, named)]


def _documents_of_lines(lines: Iterable[str], whole: bool) -> Iterable[Document]:
    cleaned = [" ".join(line.split()) for line in lines]
    blocks = [list(block) for filled, block in groupby(cleaned, key=bool) if filled]
    # Lines without a blank line between them are a list, not one document.
    for block in blocks if len(blocks) > 1 else [[line] for line in cleaned if line]:
        parts = [] if whole else complete_sentences(block[0])
        if len(block) > 1:
            yield Document.of(block, zip(block[::2], block[1::2], strict=False))
        elif len(parts) > 1 and block[0].startswith(parts[0]):
            yield Document.of(parts, [(parts[0], block[0][len(parts[0]) :].strip())])
        else:
            yield Document(tuple(block))


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

    def as_dict(self) -> dict[str, int]:
        """The sizes, ready for JSON."""
        return {"fitted": len(self.fitted), "reference": len(self.reference), "pairs_in_the_text": self.mined}

    @property
    def without_pairs(self) -> str:
        """Why there are no mined pairs to judge by."""
        if not self.mined:
            where = "paragraphs, blank lines, or question and answer columns"
            return f"the text has no structure to mine pairs from ({where})."
        return f"the structure of the text gives {self.mined:,} of some 300 pairs that are needed."


def split_text(
    documents: Sequence[Document], source: str, labelled: Sequence[str], max_sentences: int, max_pairs: int, seed: int
) -> SplitText:
    """Put some documents aside: documents with pairs, if there are enough, else any. One that is repeated counts once.

    Args:
        documents: All documents.
        source: Name of the text.
        labelled: Sentences of labelled pairs, which are not fitted on either.
        max_sentences: Largest number of sentences to fit on.
        max_pairs: Largest number of pairs to choose by, and as many to judge by.
        seed: Random seed for what is put aside.

    Raises:
        DataError: If too few sentences are left to fit on; the message says how many are needed.
    """
    # Copies of what is put aside could not be fitted on, so there would be little left.
    first_copies = {tuple(map(text_key, document.sentences)): document for document in reversed(documents)}
    documents = list(reversed(first_copies.values()))
    distinct = len({text_key(sentence) for document in documents for sentence in document.sentences})
    if distinct < FEWEST:
        raise _too_small(distinct, "")
    rng = np.random.default_rng(seed)
    shuffled = [documents[row] for row in rng.permutation(len(documents))]
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
    texts = (text for document in aside for text in chain(document.sentences, *document.pairs))
    taken, left_out = set(map(text_key, chain(texts, labelled))), set(map(id, aside))
    rest = (sentence for document in shuffled if id(document) not in left_out for sentence in document.sentences)
    fitted = _distinct(rest, taken)
    if len(fitted) < FEWEST // 2:
        raise _too_small(len(fitted), " that are neither put aside nor labelled")
    first, second = zip(*pairs, strict=True) if len(pairs) >= FEWEST_PAIRS else ((), ())
    usable = Pairs("mined pairs", first, second, kind="retrieval", source=source) if first else None
    return SplitText(
        fitted=fitted[:max_sentences],
        reference=_distinct((document.sentences[rng.integers(len(document.sentences))] for document in aside), set()),
        choosing=usable and usable.taken(range(0, len(pairs), 2)),
        judging=usable and usable.taken(range(1, len(pairs), 2)),
        mined=sum(len(document.pairs) for document in documents),
    )


def _distinct(sentences: Iterable[str], taken: set[str]) -> list[str]:
    """The sentences whose text key is not taken, each key once."""
    kept: dict[str, str] = {}
    for sentence in sentences:
        kept.setdefault(text_key(sentence), sentence)
    return [sentence for key, sentence in kept.items() if key not in taken]


def _too_small(found: int, which: str) -> DataError:
    return DataError(
        f"A verdict needs at least {FEWEST} different sentences, to fit on some and to judge on others, got {found}"
        f"{which}. Give more text of the kind that you will embed."
    )
