"""What a flow is trained on: the text, the encoder, and the embeddings that the one makes of the other."""

import sys
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertflow.calibration.base import Provenance
from bertflow.cli.train_options import DataOptions, EncoderOptions, TrainOptions
from bertflow.data.corpus import load_sentences, require_corpus
from bertflow.data.docstrings import docstring_sentences
from bertflow.data.sts import expand_tasks, load_sts
from bertflow.encoder.embedded import RAW_POOLING, embedded_encoder
from bertflow.encoder.pooling import parse_pooling
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.errors import UsageError
from bertflow.store.store import EmbeddingStore
from bertflow.text_keys import digest, hash_texts
from bertflow.training.batches import Embeddings, rows_of
from bertflow.training.presets import Recipe


@dataclass(frozen=True)
class Inputs:
    """Text, encoder and embeddings of one run.

    Attributes:
        sentences: The text, each sentence once; but pair by pair, with repeats, where the recipe wants pairs.
        source: Where the text came from.
        encoder: The frozen encoder.
        arguments: What it was opened with.
        store: Where the embeddings rest; None for in memory.
    """

    sentences: list[str]
    source: Any
    encoder: TransformerEncoder
    arguments: dict[str, Any]
    store: str | None

    @classmethod
    def read(cls, options: TrainOptions) -> "Inputs":
        """Read the text and open the encoder; nothing is encoded yet."""
        sentences = read_text(options.data, options.seed)
        if options.recipe.unit == 1:
            # A sentence that comes twice would be learned by heart, and could stand on both sides of the held-out line.
            sentences = list(dict.fromkeys(sentences))
        arguments = resolve_encoder(options.encoder, options.recipe)
        encoder = TransformerEncoder(**arguments)
        if parse_pooling(encoder.describe()["pooling"]).counted:
            encoder.count_tokens(sentences)
        source = options.data.tasks or options.data.sentences or "docstrings of installed packages"
        return cls(sentences, source, encoder, arguments, options.data.store)

    def embed(self) -> Embeddings:
        """Embeddings (n, dim) of all sentences; one that comes twice is encoded once.

        Raises:
            DataError: If the store holds embeddings of other text, or by another encoder.
        """
        progress = sys.stderr.isatty()
        if self.store is not None:
            store = EmbeddingStore.build(self.encoder, self.sentences, self.store, progress=progress)
            return store if len(store) == len(self.sentences) else store.rows(store.row_ids)
        rows = {sentence: row for row, sentence in enumerate(dict.fromkeys(self.sentences))}
        x = self.encoder.encode(list(rows), progress=progress)
        return x if len(rows) == len(self.sentences) else x[[rows[sentence] for sentence in self.sentences]]

    def provenance(self) -> Provenance:
        """What a calibrator fitted on this remembers."""
        description = self.encoder.describe()
        return Provenance(description, self.text_hashes, tuple(description.get("labels", ())))

    @cached_property
    def text_hashes(self) -> NDArray[np.uint64]:
        """Hashes of the text, sorted; of millions of sentences they take a while, so they are made once."""
        return hash_texts(self.sentences)

    def facts(self) -> dict[str, Any]:
        """For ``run.json``: ``encoder`` opens the encoder again, ``describe`` is what decides its numbers."""
        text = {
            "sentences": len(self.sentences),
            "text_keys": digest(self.text_hashes),
            "source": self.source,
        }
        return {"encoder": self.arguments, "describe": self.encoder.describe(), "text": text}


def read_text(options: DataOptions, seed: int) -> list[str]:
    """The sentences to fit on: those of files, the pairs of STS tasks, or docstrings.

    Raises:
        UsageError: If both files and tasks are named, or tasks without their folder.
        DataError: If a file cannot be read, or holds fewer than two sentences.
    """
    if options.sentences and options.tasks:
        raise UsageError("Text comes from data.sentences or from data.tasks, but both were given. Leave one out.")
    if options.tasks:
        sentences = _read_tasks(options.tasks, options.data_dir)
    elif options.sentences:
        sentences = load_sentences(options.sentences, options.columns)
    else:
        sentences = docstring_sentences()
    require_corpus(sentences)
    if options.max_sentences is None or options.max_sentences >= len(sentences):
        return sentences
    unit = 2 if options.tasks else 1  # pairs stay pairs
    units = np.random.default_rng(seed).permutation(len(sentences) // unit)[: max(1, options.max_sentences // unit)]
    return [sentences[row] for row in rows_of(np.sort(units) * unit, unit)]


def _read_tasks(tasks: str, data_dir: str | None) -> list[str]:
    if data_dir is None:
        raise UsageError(f"The tasks {tasks} need the folder they lie in. Give data.data_dir.")
    sets = [load_sts(task, data_dir) for task in expand_tasks(tasks, data_dir)]
    pairs = [pair for each in sets for pair in zip(each.first, each.second, strict=True)]
    return [sentence for pair in pairs for sentence in pair]


def resolve_encoder(options: EncoderOptions, recipe: Recipe) -> dict[str, Any]:
    """The arguments of ``TransformerEncoder``: what was given, else the recipe's, else the embedded encoder's."""
    embedded = options.model is None
    return {
        "model": embedded_encoder() if options.model is None else options.model,
        "pooling": options.pooling or recipe.pooling or (RAW_POOLING if embedded else None),
        "max_length": options.max_length or recipe.max_length,
        "device": options.device,
        "dtype": options.dtype,
        "revision": options.revision,
        "prompt": options.prompt,
    }
