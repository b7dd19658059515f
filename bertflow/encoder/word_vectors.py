"""Word vectors as a ``SentenceEncoder``: the baseline that a raw BERT famously fails to beat.

    sentences -> words -> the vectors of a file (GloVe, word2vec text, fastText .vec) -> mean or sif -> x

A file may be larger than memory: it is streamed, and only the words that were asked for are kept. Sentences with new
words stream it once more, so sentences are best encoded together. (``bertflow.encoder.static`` is the same
of a transformer's own word embeddings.)

A word is looked up as written, then in lower case. A sentence of which no word has a vector is embedded as the first
word of the file, its most frequent one: as if it said "the".
"""

import functools
import gzip
import hashlib
import logging
import re
import zlib
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from bertflow.encoder.abstract import AbstractEncoder, Float32, Role
from bertflow.encoder.pooling import SIF_A
from bertflow.errors import DataError, UsageError
from bertflow.files import file_sha256
from bertflow.registry import lookup
from bertflow.text_keys import hash_texts

logger = logging.getLogger("bertflow")

POOLINGS: Mapping[str, bool] = {"mean": False, "sif": True}
"""Poolings of words, and whether they weigh by a / (a + p(word))."""
_WORD = re.compile(r"\w+|(?<=\w)['\u2019]\w+")
"""Letters and digits; contractions are split as in GloVe and the lists of word counts: don 't."""


def words_of(sentence: str) -> list[str]:
    """The words of a sentence; punctuation is left out."""
    return [word.replace("\u2019", "'") for word in _WORD.findall(sentence)]


class WordVectorEncoder(AbstractEncoder):
    """Averaged word vectors.

    Args:
        path: Text, also .gz: a line a word, the word and its numbers with blanks between them; a first line with the
            number of words and the dimension may be there or not.
        pooling: ``mean`` or ``sif``.
        word_counts: For ``sif``: counts by word, in lower case. Or call ``count_words``.

    Attributes:
        dim: Width of a vector.

    Raises:
        UnknownNameError: For another pooling.
        DataError: If the file is missing, its first line is not a word vector, or there are no counts above zero.
    """

    def __init__(self, path: str | Path, pooling: str = "mean", word_counts: Mapping[str, int] | None = None) -> None:
        if word_counts is not None and (min(word_counts.values(), default=-1) < 0 or not any(word_counts.values())):
            raise DataError("Word counts need counts above zero, got none, or a negative one. Count again.")
        self._weighted = lookup("pooling of words", POOLINGS, pooling)
        self._pooling = pooling
        self._file = VectorFile(Path(path))
        self.dim = self._file.dim
        self.recipe: dict[str, Any] = {"model": str(path), "pooling": pooling}
        self._vectors: dict[str, Float32] = {}
        self._looked_for: set[str] = set()
        self._counts: Mapping[str, int] | None = word_counts
        self._text_hashes: NDArray[np.uint64] | None = None

    def _encode(self, sentences: list[str], role: Role, progress: bool | None, batch_size: int | None) -> Float32:
        if self._weighted and self._counts is None:
            raise UsageError("The pooling sif needs word counts. Call count_words(sentences), or give word_counts.")
        tokens = [words_of(sentence) for sentence in sentences]
        self._look_up({word for words in tokens for word in words})
        self._report(tokens)
        if not tokens:
            return np.empty((0, self.dim), np.float32)
        weights = self._weights()
        return np.stack([self._embedded(words, weights) for words in tokens])

    def count_words(self, sentences: Sequence[str]) -> Self:
        """Count the words of a corpus, for ``sif``; earlier counts are replaced.

        Raises:
            DataError: If there are no words to count.
        """
        counts = Counter(word.lower() for sentence in sentences for word in words_of(sentence))
        if not counts:
            raise DataError(f"Word counts need text, but {len(sentences)} sentences hold no words. Give a corpus.")
        self._counts, self._text_hashes = counts, hash_texts(sentences)
        return self

    def describe(self) -> dict[str, Any]:
        """All that decides the numbers, ready for JSON."""
        recipe: dict[str, Any] = {
            "encoder": self._file.path.name,
            "weights": self._file.digest,
            "pooling": f"words-{self._pooling}",
        }
        if self._weighted:
            counted = None if self._counts is None else _digest_of(self._counts)
            recipe |= {"sif_a": SIF_A, "token_counts": counted}
        return recipe

    def fitted_hashes(self) -> NDArray[np.uint64] | None:
        """The text that ``sif`` counted; empty for ``mean``, None where counts came without their text."""
        if not self._weighted or self._counts is None:
            return np.empty(0, dtype=np.uint64)
        return self._text_hashes

    def _look_up(self, words: set[str]) -> None:
        spellings = {spelling for word in words for spelling in (word, word.lower())} - self._looked_for
        if spellings:
            self._vectors.update(self._file.read(spellings))
            self._looked_for |= spellings

    def _vector(self, word: str) -> Float32 | None:
        found = self._vectors.get(word)
        return self._vectors.get(word.lower()) if found is None else found

    def _embedded(self, words: Sequence[str], weights: Callable[[str], float]) -> Float32:
        known = [(word, vector) for word in words if (vector := self._vector(word)) is not None]
        if not known:
            return self._file.first
        vectors = np.stack([vector for _, vector in known]).astype(np.float64)
        row = np.array([weights(word) for word, _ in known])
        mean: Float32 = (row @ vectors / row.sum()).astype(np.float32)
        return mean

    def _weights(self) -> Callable[[str], float]:
        """The weight of a word."""
        if self._counts is None or not self._weighted:
            return lambda _: 1.0
        counts, total = self._counts, sum(self._counts.values())
        return lambda word: SIF_A / (SIF_A + counts.get(word.lower(), 0) / total)

    def _report(self, tokens: Sequence[Sequence[str]]) -> None:
        """Say once how much of the text has no vector."""
        missing = Counter(word for words in tokens for word in words if self._vector(word) is None)
        if missing:
            words = sum(map(len, tokens))
            often = ", ".join(word for word, _ in missing.most_common(3))
            logger.warning(
                "%d of %d words (%d different ones: %s, ...) have no vector in %s and are left out.",
                missing.total(), words, len(missing), often, self._file.path.name,
            )  # fmt: skip
        if without := sum(all(self._vector(word) is None for word in words) for words in tokens):
            logger.warning(
                "%d of %d sentences have no word with a vector; they are embedded as the first word of %s.",
                without, len(tokens), self._file.path.name,
            )  # fmt: skip


class VectorFile:
    """A text file of word vectors, read as a stream.

    Args:
        path: The file.

    Attributes:
        path: The file.
        dim: Numbers in a vector.
        count: Words that the first line promises; None without such a line.
        first: The vector of the first word.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        lines = self._lines()
        number, line = next(lines, (1, b""))
        head = line.split()
        self.count = None
        if len(head) == 2 and all(part.isdigit() for part in head):
            self.count, self.dim = map(int, head)
            number, line = next(lines, (2, b""))
        else:
            self.dim = len(head) - 1
        lines.close()
        if self.dim < 1:
            raise DataError(f"{path}, line {number}: a word and its numbers are wanted, got {_shown(line)}. {HOW}")
        self.first = self._parse(number, line)[1]

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 of the file."""
        return file_sha256(self.path)

    def read(self, words: set[str]) -> dict[str, Float32]:
        """The vectors of those of ``words`` that the file has; of a word that comes twice the first one.

        Raises:
            DataError: If a line has too few numbers, a vector is not finite, or lines are missing at the end.
        """
        wanted = {word.encode() for word in words}
        found: dict[str, Float32] = {}
        lines, skipped, number = self._lines(), 0, 0
        if self.count is not None:
            skipped = 1
            next(lines)
        for number, line in lines:
            if line.count(b" ") < self.dim:
                raise self._short(number, line)
            # "at name@host 0.1 ..." is a word with a blank in it: only the whole line says which word it is.
            if line[: line.find(b" ")] in wanted:
                word, vector = self._parse(number, line)
                if word in words:
                    found.setdefault(word, vector)
        if self.count is not None and number - skipped != self.count:
            raise DataError(
                f"{self.path} should hold {self.count} words by its first line, but holds {number - skipped}. "
                "Fetch it again."
            )
        return found

    def _parse(self, number: int, line: bytes) -> tuple[str, Float32]:
        cells = line.rstrip().rsplit(b" ", self.dim)
        if len(cells) != self.dim + 1:
            raise self._short(number, line)
        try:
            vector = np.array(cells[1:], dtype=np.float32)
        except ValueError:
            raise self._short(number, line) from None
        word = cells[0].decode(errors="replace")
        if not np.isfinite(vector).all():
            raise DataError(f"{self.path}, line {number}: the vector of {word!r} is not finite. Fetch the file again.")
        return word, vector

    def _short(self, number: int, line: bytes) -> DataError:
        return DataError(
            f"{self.path}, line {number}: a word and {self.dim} numbers with blanks between them are wanted, "
            f"got {_shown(line)}. {HOW}"
        )

    def _lines(self) -> Generator[tuple[int, bytes], None, None]:
        """Lines with their numbers from 1, as bytes: most are never decoded."""
        opened = gzip.open if self.path.suffix == ".gz" else open
        try:
            with opened(self.path, "rb") as file:
                for number, line in enumerate(file, start=1):
                    yield number, line.rstrip(b"\r\n ")
        except FileNotFoundError:
            raise DataError(f"{self.path} is missing. Give the path of an existing file.") from None
        except IsADirectoryError:
            raise DataError(f"{self.path} is a folder. Name the file in it.") from None
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            reason = str(error).rstrip(".")
            raise DataError(f"{self.path} is damaged: it should be gzip-compressed, but: {reason}.") from None


def _shown(line: bytes) -> str:
    """A line for a message: its beginning and its end."""
    text = line.decode(errors="replace")
    return repr(text if len(text) <= 40 else f"{text[:20]} ... {text[-15:]}")


HOW = "Give the text form of GloVe, word2vec or fastText, unpacked or .gz."


def _digest_of(counts: Mapping[str, int]) -> str:
    """One fingerprint for equal counts."""
    return hashlib.sha256("\n".join(f"{word} {counts[word]}" for word in sorted(counts)).encode()).hexdigest()
