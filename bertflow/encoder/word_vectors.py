"""Word vectors of a file, averaged, as a ``SentenceEncoder``.

    sentences -> words  -> GloVe, word2vec or fastText text -> mean or sif -> x

They are the baseline that a raw BERT famously fails to beat. The file may be larger than memory: it is streamed, and
only the words that were asked for are kept. Sentences with new words stream it once more, so sentences are best
encoded together. A word is looked up as written, then in lower case. A sentence of which no word has a vector is
embedded as the first word of the file, its most frequent one: as if it said "the".
"""

import functools
import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from bertflow.array_types import Float32
from bertflow.data.corpus import words_of
from bertflow.data.lines import read_raw_lines
from bertflow.encoder.abstract import Role
from bertflow.encoder.pooling import STATIC_POOLINGS, Pooling
from bertflow.encoder.seen_text import AbstractLearner, WordCounts
from bertflow.errors import DataError, UsageError, logger, shown
from bertflow.files import file_sha256
from bertflow.registry import lookup
from bertflow.text_keys import hash_texts

OF_WORDS: Mapping[str, Pooling] = {name: STATIC_POOLINGS[name] for name in ("mean", "sif")}
"""How the vectors of the words become one."""


class WordVectorEncoder(AbstractLearner):
    """Averaged word vectors.

    Args:
        path: Text, also .gz: a line a word, the word and its numbers with blanks between them; a first line with the
            number of words and the dimension may be there or not.
        pooling: ``mean`` or ``sif``.
        word_counts: Counts by word, in lower case, for ``sif``. Or call ``count_words``.

    Attributes:
        dim: Width of a vector.

    Raises:
        UnknownNameError: For another pooling.
        DataError: If the file is missing, its first line is not a word vector, or there are no counts above zero.
    """

    def __init__(self, path: str | Path, pooling: str = "mean", word_counts: Mapping[str, int] | None = None) -> None:
        self.pooling = lookup("pooling of words", OF_WORDS, pooling)
        self._file = VectorFile(Path(path))
        self.dim = self._file.dim
        self.recipe: dict[str, Any] = {"model": str(path), "pooling": pooling}
        self._vectors: dict[str, Float32 | None] = {}
        self.counts: WordCounts | None = None if word_counts is None else WordCounts(word_counts)

    def _encode(self, sentences: list[str], role: Role, progress: bool | None, batch_size: int | None) -> Float32:
        counts = self.counts if self.pooling.counted else None
        if self.pooling.counted and counts is None:
            raise UsageError("The pooling sif needs word counts. Call count_words(sentences), or give word_counts.")
        tokens = [words_of(sentence) for sentence in sentences]
        if new := {word for words in tokens for word in words} - self._vectors.keys():
            found = self._file.read(new | {word.lower() for word in new})
            self._vectors |= {word: found.get(word, found.get(word.lower())) for word in new}
        known = [[word for word in words if self._vectors[word] is not None] for words in tokens]
        self._report(tokens, known)
        x = np.tile(self._file.first, (len(tokens), 1))
        for row, words in enumerate(known):
            if words:
                weights = [counts.weight(word) if counts else 1.0 for word in words]
                x[row] = np.average([self._vectors[word] for word in words], 0, weights)
        return x

    def count_words(self, sentences: Sequence[str]) -> Self:
        """Count the words of a corpus, for ``sif``; earlier counts are replaced.

        Raises:
            DataError: If there are no words to count.
        """
        counts = Counter(word.lower() for sentence in sentences for word in words_of(sentence))
        if not counts:
            raise DataError(f"Word counts need text, but {len(sentences)} sentences hold no words. Give a corpus.")
        self.counts = WordCounts(counts, hash_texts(sentences))
        return self

    _count = count_words

    def _facts(self) -> dict[str, Any]:
        file = self._file
        return {"encoder": file.path.name, "weights": file.digest, "pooling": f"words-{self.pooling.tokens}"}

    def _report(self, tokens: Sequence[Sequence[str]], known: Sequence[Sequence[str]]) -> None:
        """Say once how much of the text has no vector."""
        missing = Counter(word for words in tokens for word in words if self._vectors[word] is None)
        if missing:
            often = ", ".join(word for word, _ in missing.most_common(3))
            said = "%d of %d words (%d different ones: %s, ...) have no vector in %s and are left out."
            logger.warning(said, missing.total(), sum(map(len, tokens)), len(missing), often, self._file.path.name)
        if without := sum(not words for words in known):
            said = "%d of %d sentences have no word with a vector; they are embedded as the first word of %s."
            logger.warning(said, without, len(tokens), self._file.path.name)


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
        self.path, self.count = path, None
        (number, line), second = itertools.islice(itertools.chain(self._lines(), ((1, b""), (2, b""))), 2)
        head = line.split()
        self.dim = len(head) - 1
        if len(head) == 2 and all(part.isdigit() and len(part) < 16 for part in head):
            self.count, self.dim = map(int, head)
            number, line = 2, second[1]
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
        skipped = number = int(self.count is not None)
        for number, line in itertools.islice(self._lines(), skipped, None):
            if line.count(b" ") < self.dim:
                raise self._short(number, line)
            # "at name@host 0.1 ..." is a word with a blank in it: only the whole line says which word it is.
            if line[: line.find(b" ")] in wanted:
                word, vector = self._parse(number, line)
                if word in words:
                    found.setdefault(word, vector)
        if self.count not in (None, number - skipped):
            holds = f"should hold {self.count} words by its first line, but holds {number - skipped}"
            raise DataError(f"{self.path} {holds}. Fetch it again.")
        return found

    def _parse(self, number: int, line: bytes) -> tuple[str, Float32]:
        name, *numbers = line.rsplit(b" ", self.dim)
        try:
            with np.errstate(over="ignore"):  # refused below
                vector = np.array(numbers, dtype=np.float32).reshape(self.dim)
        except ValueError:
            raise self._short(number, line) from None
        word = name.decode(errors="replace")
        if not np.isfinite(vector).all():
            raise DataError(
                f"{self.path}, line {number}: the vector of {shown(word)} is not finite. Fetch the file again."
            )
        return word, vector

    def _short(self, number: int, line: bytes) -> DataError:
        return DataError(
            f"{self.path}, line {number}: a word and {self.dim} numbers with blanks between them are wanted, "
            f"got {_shown(line)}. {HOW}"
        )

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        """Lines with their numbers from 1, as bytes: most are never decoded."""
        return ((number, line.rstrip(b"\r\n ")) for number, line in read_raw_lines(self.path))


def _shown(line: bytes) -> str:
    """A line for a message: its beginning and its end."""
    text = line.decode(errors="replace")
    return repr(text if len(text) <= 40 else f"{text[:20]} ... {text[-15:]}")


HOW = "A file as an encoder holds word vectors, in the text form of GloVe, word2vec or fastText, unpacked or .gz."
