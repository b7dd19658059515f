"""Text that an encoder has seen: counted, for its pooling, or labeled, when it was fine-tuned.

Smooth inverse frequency gives a token a weight by its share of the corpus:

    p(t) = count(t) / total        weight(t) = a / (a + p(t)),   a = 1e-3, 1e-2 for the soft one, 0.1 for the faint one

A token that was never counted has weight 1; for the faint one, the mean of the corpus. Special tokens do not count.

A score on pairs whose labels were learned says nothing, and a score on their sentences says less. So a
fine-tuned encoder keeps the names of the labeled data, which the evaluation refuses where they hold the scored labels,
and the hashes of its sentences, which count as seen.

Source: Arora et al. 2017, "A simple but tough-to-beat baseline for sentence embeddings", equation 3.
"""

import functools
import hashlib
import os
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.numpy import save_file
from transformers import PreTrainedTokenizerBase

from bertflow.array_types import Float32, Hashes, Int64
from bertflow.data.corpus import chunks
from bertflow.encoder import known_as
from bertflow.encoder.abstract import AbstractEncoder, check_sentences
from bertflow.encoder.batching import TokenizedText
from bertflow.encoder.device import sent
from bertflow.encoder.folders import RECORD_FILE, ModelFolder, write_facts
from bertflow.encoder.pooling import COUNTED, SIF_A, Pooling
from bertflow.errors import DataError, logger
from bertflow.files import atomic_folder, file_sha256
from bertflow.records import read_arrays, read_record
from bertflow.text_keys import hash_texts

COUNTS_FILE = "token_counts.safetensors"
CASES = (
    "The tokenizer tells cases, so a word weighs as counted in its own spelling alone: count_tokens(text) is better."
)
"""Note about counts by word."""
CHUNK = 65536
"""Sentences that are counted at a time."""


def vocabulary_size(tokenizer: PreTrainedTokenizerBase) -> int:
    """One more than the largest token id."""
    return max(tokenizer.get_vocab().values()) + 1


@dataclass(frozen=True)
class TokenCounts:
    """Occurrences by token id, and the text they were counted on.

    Attributes:
        counts: (vocabulary,), int64.
        text_hashes: Hashes of the sentences counted (``bertflow.text_keys``); None where the counts were given.
    """

    counts: Int64
    text_hashes: Hashes | None = None

    @classmethod
    def of_text(cls, sentences: Iterable[str], tokenize: Callable[[list[str]], TokenizedText], size: int) -> Self:
        """Counts of the tokens of a corpus, which may be a stream: ``CHUNK`` sentences are held in memory at a time.

        Raises:
            UsageError: If a single string is given.
            DataError: If something is not text, or there are no tokens to count.
        """
        if isinstance(sentences, Sequence):
            check_sentences(sentences)
        counts, n, hashes = np.zeros(size, dtype=np.int64), 0, np.empty(0, dtype=np.uint64)
        for chunk in chunks(sentences, CHUNK):
            counts += tokenize(chunk).count(size)
            n, hashes = n + len(chunk), np.union1d(hashes, hash_texts(chunk))
        if not counts.any():
            raise DataError(f"Token counts need text, but {n} sentences hold no tokens. Give a corpus.")
        return cls(counts, hashes)

    @classmethod
    def given(cls, value: "Mapping[str, int] | NDArray[Any]", tokenizer: PreTrainedTokenizerBase) -> "TokenCounts":
        """Counts by token id, or by word: these are given to the tokens that each word is made of.

        Raises:
            DataError: If they are neither, or do not fit the tokenizer.
        """
        wanted = (vocabulary_size(tokenizer),)
        if isinstance(value, Mapping):
            counts, words = np.zeros(wanted, dtype=np.int64), WordCounts(value).counts
            # Inside a sentence a word follows a space, and byte-level vocabularies make that a part of its first token.
            pieces = tokenizer([f" {word}" for word in words], add_special_tokens=False, verbose=False)["input_ids"]
            if len({tuple(tokenizer(f" {one}", add_special_tokens=False)["input_ids"]) for one in ("the", "The")}) > 1:
                logger.warning(CASES)
            for ids, count in zip(pieces, words.values(), strict=True):
                np.add.at(counts, ids, count)
            return cls(counts)
        counts = np.asarray(value)
        if counts.shape != wanted or counts.dtype.kind not in "iu" or counts.min() < 0 or not counts.any():
            raise DataError(
                f"Token counts by id need whole numbers of zero or more, shape {wanted}, not all zero; "
                f"got {counts.dtype} of shape {counts.shape}. Count them with this encoder's own tokenizer."
            )
        return cls(counts.astype(np.int64))

    @functools.cached_property
    def weights(self) -> dict[str, Float32]:
        """For each row of ``COUNTED``, the weight of each token id, in (0, 1]."""
        p = self.counts / self.counts.sum()
        return {name: weigh(p).astype(np.float32) for name, weigh in COUNTED.items()}

    def weigh(self, ids: torch.Tensor, content: torch.Tensor, names: Iterable[str]) -> dict[str, torch.Tensor]:
        """For some rows of ``COUNTED``, the weights of a batch of token ids; zero where there is no content."""
        return {name: sent(torch.from_numpy(self.weights[name]), ids.device)[ids] * content for name in names}

    def digest(self) -> str:
        """One fingerprint for equal counts."""
        return hashlib.sha256(self.counts.astype("<i8").tobytes()).hexdigest()

    def write(self, folder: Path) -> None:
        """Write into a saved encoder's folder."""
        hashes = {} if self.text_hashes is None else {"text_hashes": self.text_hashes}
        save_file({"counts": self.counts} | hashes, folder / COUNTS_FILE)

    @classmethod
    def read(cls, folder: ModelFolder) -> "TokenCounts | None":
        """What ``write`` wrote; None if it wrote nothing.

        Raises:
            DataError: If the file is damaged, or does not fit the tokenizer.
        """
        if not os.path.lexists(path := folder.path / COUNTS_FILE):
            return None
        wanted = {"counts": ("int64", 1), "text_hashes": ("uint64", 1)}
        arrays = read_arrays(path, wanted, ("text_hashes",), "Save the encoder again.")
        return replace(cls.given(arrays["counts"], folder.tokenizer), text_hashes=arrays.get("text_hashes"))


@dataclass(frozen=True)
class WordCounts:
    """Occurrences by word, in lower case, and the text they were counted on; None where the counts were given.

    Raises:
        DataError: If no count is above zero, or one is negative.
    """

    counts: Mapping[str, int]
    text_hashes: Hashes | None = None

    def __post_init__(self) -> None:
        if min(self.counts.values(), default=-1) < 0 or not any(self.counts.values()):
            raise DataError("Word counts need words with counts above zero, got none, or a negative one. Count again.")

    @functools.cached_property
    def total(self) -> int:
        """All occurrences."""
        return sum(self.counts.values())

    def weight(self, word: str) -> float:
        """Weight of a word for ``sif``, in (0, 1]."""
        return SIF_A / (SIF_A + self.counts.get(word.lower(), 0) / self.total)

    def digest(self) -> str:
        """One fingerprint for equal counts."""
        lines = (f"{word} {self.counts[word]}" for word in sorted(self.counts))
        return hashlib.sha256("\n".join(lines).encode()).hexdigest()


HASHES_FILE = "labeled_text.safetensors"
LEFT_OUT = "left_out"
"""Mark in that file that the hashes were left out on purpose: a file that is missing is damage."""


@dataclass(frozen=True)
class Supervision:
    """Labels that an encoder was fine-tuned on.

    Attributes:
        labels: Names of the labeled data: tasks, or files; of all stages, where it was fine-tuned more than once.
        tuned: How, in the last stage; ready for JSON.
        text_hashes: Hashes (``bertflow.text_keys``) of both sides of all labeled pairs; None where they were left out.
    """

    labels: tuple[str, ...]
    tuned: Mapping[str, Any]
    text_hashes: Hashes | None

    def after(self, earlier: "Supervision | None") -> "Supervision":
        """This stage on top of an earlier one: nothing that was seen is forgotten."""
        if earlier is None:
            return self
        labels = tuple(dict.fromkeys((*earlier.labels, *self.labels)))
        return Supervision(labels, self.tuned, _all_of([earlier.text_hashes, self.text_hashes]))

    def describe(self) -> dict[str, Any]:
        """What an encoder's ``describe()`` says of it."""
        return {"labels": list(self.labels), "tuned": dict(self.tuned)}

    def write(self, folder: Path) -> None:
        """Write the hashes into a saved encoder's folder; the rest stands in its record."""
        hashes = self.text_hashes
        save_file({LEFT_OUT: np.ones(1)} if hashes is None else {"text_hashes": hashes}, folder / HASHES_FILE)

    @classmethod
    def read(cls, folder: Path, record: Mapping[str, Any]) -> "Supervision | None":
        """What stands in a saved encoder's folder; None if it was not fine-tuned.

        Raises:
            DataError: If the hashes are missing or damaged.
        """
        if not {"labels", "tuned"} <= record.keys():
            return None
        of = ", ".join(record["labels"]) or "its training"
        do = f"It holds the text of {of}: copy the whole folder, or fine-tune again."
        wanted = {"text_hashes": ("uint64", 1), LEFT_OUT: ("float64", 1)}
        arrays = read_arrays(folder / HASHES_FILE, wanted, wanted, do)
        return cls(tuple(record["labels"]), record["tuned"], arrays.get("text_hashes"))


class AbstractLearner(AbstractEncoder):
    """An encoder that may have counted text, for its pooling, and may have been fine-tuned on labels.

    Attributes:
        pooling: How tokens, or words, become a vector.
        counts: How often each token or word occurs in the counted text; None if no text was counted.
        supervision: The labels that it was fine-tuned on; None if none are known.
    """

    pooling: Pooling
    counts: TokenCounts | WordCounts | None = None
    supervision: Supervision | None = None

    @abstractmethod
    def _facts(self) -> dict[str, Any]:
        """What ``describe`` says beside what was learned."""

    @abstractmethod
    def _count(self, sentences: Sequence[str]) -> object:
        """Count a corpus for the pooling; earlier counts are replaced."""

    def count_missing(self, sentences: Sequence[str]) -> bool:
        """Count a corpus, each distinct sentence once, where the pooling needs counts and has none; whether it did."""
        missing = self.pooling.counted and self.counts is None
        if missing:
            self._count(list(dict.fromkeys(sentences)))
        return missing

    def describe(self) -> dict[str, Any]:
        """All that decides the numbers, ready for JSON."""
        facts = self._facts()
        if self.pooling.counted:
            digest = self.counts.digest() if self.counts else None
            facts |= {"sif_a": COUNTED[self.pooling.tokens].keywords["a"], "token_counts": digest}
        return facts | (self.supervision.describe() if self.supervision else {})

    def fitted_hashes(self) -> Hashes | None:
        """The text that ``sif`` counted and that of labels; None where either came without it."""
        parts = [self.supervision.text_hashes] if self.supervision else []
        if self.pooling.counted and self.counts is not None:
            parts.append(self.counts.text_hashes)
        return _all_of(parts)

    def forget_text(self) -> Self:
        """Forget the hashes of the text that was counted and of that of labels."""
        if self.counts is not None:
            self.counts = replace(self.counts, text_hashes=None)
        if self.supervision is not None:
            self.supervision = replace(self.supervision, text_hashes=None)
        return self


def _all_of(parts: Sequence[Hashes | None]) -> Hashes | None:
    """The hashes of some texts together; None where one of them is unknown."""
    known = [part for part in parts if part is not None]
    return np.unique(np.concatenate([np.empty(0, np.uint64), *known])) if len(known) == len(parts) else None


def save_tuned(encoder: AbstractLearner, folder: str | Path, stage: Supervision) -> None:
    """Write an encoder that was trained in place: under its own name and weight hash, with what it was taught."""
    supervision, name = stage.after(encoder.supervision), Path(folder).resolve()
    with atomic_folder(folder) as aside:
        encoder.write(aside)
        supervision.write(aside)
        record = read_record(aside / RECORD_FILE, dict[str, Any])
        weights = file_sha256(*sorted(aside.glob("model*.safetensors")))  # other safetensors lie beside them
        record["encoder"] = known_as(name)
        write_facts(aside, {**record, "weights": weights, **supervision.describe()})
