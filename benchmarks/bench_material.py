"""What the benchmarks run on: the embedded encoder, and sentences of the STS data or of docstrings."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from bertflow.data.docstrings import docstring_sentences
from bertflow.data.pairs import Pairs, unique_sentences
from bertflow.data.sts import load_sts
from bertflow.data.sts_tasks import SUITES
from bertflow.encoder.embedded import embedded_encoder

SENTENCES = 1024
"""Enough for full batches of every length, as in a job of many sentences."""


@dataclass(frozen=True)
class Material:
    """Where the sentences come from.

    Attributes:
        data_dir: Folder of the STS data; None for docstrings.
    """

    data_dir: Path | None = None

    @cached_property
    def model(self) -> str:
        """Folder of the embedded encoder."""
        return embedded_encoder()

    @cached_property
    def _all(self) -> list[str]:
        if self.data_dir is None:
            return docstring_sentences()
        return unique_sentences(load_sts(task, self.data_dir) for task in SUITES["sts7"])

    @cached_property
    def sentences(self) -> list[str]:
        """Some sentences, drawn at random, the same each time."""
        chosen = np.random.default_rng(0).permutation(len(self._all))[:SENTENCES]
        return [self._all[i] for i in chosen]

    @cached_property
    def tuning(self) -> Pairs | None:
        """Scored pairs that no reported figure is made of; None without STS data."""
        return None if self.data_dir is None else load_sts("tuning", self.data_dir)

    def source(self) -> str:
        """What the sentences are, in words."""
        kind = "docstrings" if self.data_dir is None else "the seven STS tasks"
        return f"{len(self.sentences)} of {len(self._all):,} sentences of {kind}"
