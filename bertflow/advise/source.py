"""What is to be fixed: an encoder with its poolings, or vectors that someone else's encoder made."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from bertflow.calibration.spelling import SystemSpec
from bertflow.data.vectors import open_vectors
from bertflow.encoder.abstract import AbstractEncoder, Float32, Role, SentenceEncoder
from bertflow.encoder.folders import DOWNLOAD, StConfig, open_model
from bertflow.encoder.pooling import parse_pooling
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.errors import DataError
from bertflow.evaluation.shared_pass import SharedPass
from bertflow.files import file_sha256
from bertflow.records import read_record

PROMPTS = "config_sentence_transformers.json"


class Source(Protocol):
    """Where embeddings come from."""

    @property
    def own_pooling(self) -> str:
        """The pooling that was asked for, else the encoder's own."""
        ...

    def pooled(self, pooling: str, corpus: list[str] | None = None) -> SentenceEncoder:
        """The encoder with ``pooling``; ``corpus`` is what ``sif`` counts."""
        ...

    def counts(self) -> bool:
        """Whether it can pool its tokens by their frequency."""
        ...

    def saved(self, pooling: str, corpus: list[str]) -> TransformerEncoder | None:
        """An encoder with ``pooling`` that can be written; None where there is none."""
        ...


@dataclass(frozen=True)
class ModelSource:
    """A transformer, each sentence through it once for all poolings."""

    shared: SharedPass
    open: Callable[[str | None], TransformerEncoder]

    @classmethod
    def of(cls, model: str, options: dict[str, Any]) -> "ModelSource":
        """Open a model with options of ``TransformerEncoder``."""

        def open_encoder(pooling: str | None) -> TransformerEncoder:
            return TransformerEncoder(model, **options | ({"pooling": pooling} if pooling else {}))

        return cls(SharedPass(open_encoder), open_encoder)

    @property
    def own_pooling(self) -> str:
        """The pooling that was asked for, else the model's own."""
        return self.shared.own_pooling

    def pooled(self, pooling: str, corpus: list[str] | None = None) -> SentenceEncoder:
        """The encoder with ``pooling``."""
        return self.shared.pooled(pooling, corpus)

    def counts(self) -> bool:
        """BERT's pooler reads no tokens, all other poolings do; one that counts already needs no other."""
        own = parse_pooling(self.own_pooling)
        return own.tokens != "pooler" and not own.counted

    def saved(self, pooling: str, corpus: list[str]) -> TransformerEncoder:
        """A fresh encoder with the same counts."""
        encoder = self.open(pooling)
        return encoder.count_tokens(corpus) if parse_pooling(pooling).counted else encoder


class VectorSource(AbstractEncoder):
    """Rows of a matrix, by their sentences.

    Args:
        path: A .npy or .parquet file (n, dim).
        sentences: What the rows are embeddings of; None numbers them.

    Raises:
        DataError: If the file is missing or holds no such matrix, or the sentences are not as many.
    """

    own_pooling = "as given"

    def __init__(self, path: Path, sentences: Sequence[str] | None) -> None:
        vectors = open_vectors(path)
        self._x = np.concatenate([block.astype(np.float32) for block in vectors.blocks()])
        self._path = path
        if sentences is not None and len(sentences) != len(self._x):
            raise DataError(
                f"{path} holds {len(self._x):,} vectors, but the text has {len(sentences):,} lines that are not empty. "
                "Give the text that was embedded, one line a vector."
            )
        self.named = sentences is not None
        self.sentences = [f"row {row}" for row in range(len(self._x))] if sentences is None else list(sentences)
        self._row_of = {sentence: row for row, sentence in enumerate(self.sentences)}
        self.dim = self._x.shape[1]

    def _encode(self, sentences: list[str], role: Role, progress: bool | None, batch_size: int | None) -> Float32:
        missing = [sentence for sentence in sentences if sentence not in self._row_of]
        if missing:
            raise DataError(
                f"{self._path} has no vector of {missing[0]!r} (nor of {len(missing) - 1} others). Embed all sentences "
                "of --labels, and give them with the text."
            )
        return self._x[[self._row_of[sentence] for sentence in sentences]].reshape(-1, self.dim)

    def describe(self) -> dict[str, Any]:
        """The file and its checksum."""
        return {"encoder": self._path.name, "weights": file_sha256(self._path), "pooling": self.own_pooling}

    def pooled(self, pooling: str, corpus: list[str] | None = None) -> SentenceEncoder:
        """There is one pooling."""
        return self

    def counts(self) -> bool:
        """Tokens are not at hand."""
        return False

    def saved(self, pooling: str, corpus: list[str]) -> None:
        """There is no encoder to write."""
        return


def resolve_prompt(model: str, revision: str | None, wanted: str | None) -> tuple[str | None, str]:
    """The prompt of a sentence-transformers folder.

    Args:
        model: A hub id or a folder.
        revision: Of a hub id.
        wanted: A name among its prompts, or text; None for its default.

    Returns:
        The text, None to leave it to the encoder, and a line for the user; empty where there is nothing to say.
    """
    folder = open_model(model, revision).path
    found = [place / PROMPTS for place in (folder, folder.parent) if (place / PROMPTS).is_file()]
    config = read_record(found[0], StConfig, "configuration", DOWNLOAD) if found else StConfig()
    prompts = {name: text for name, text in (config.prompts or {}).items() if text}
    if wanted is not None:
        return prompts.get(wanted, wanted), ""
    if default := prompts.get(config.default_prompt_name or ""):
        return default, f"prompt    {default!r}, the folder's default"
    if prompts:
        return None, f"prompt    none; the folder has {', '.join(prompts)}, none of them its default: see --prompt"
    return None, ""


def sif_of(pooling: str) -> str:
    """The same layers, pooled by token frequency."""
    return SystemSpec("sif", "sif").pooling_for(pooling)
