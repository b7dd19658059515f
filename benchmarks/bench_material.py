"""What the benchmarks run on: two encoders, and sentences of the STS data or of docstrings."""

import atexit
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from transformers import AutoTokenizer, BertConfig, BertModel

from bertflow.data.docstrings import docstring_sentences
from bertflow.data.pairs import Pairs, unique_sentences
from bertflow.data.sts import load_sts
from bertflow.data.sts_tasks import SUITES
from bertflow.encoder.architecture import quiet_transformers
from bertflow.encoder.embedded import embedded_encoder

MINILM, BASE = "MiniLM", "BERT-base size"
WORDS: Mapping[str, int] = {MINILM: 9000, BASE: 1500}
"""How much each encodes: enough for full batches of every length, as in a job of many sentences."""


@dataclass(frozen=True)
class Material:
    """Where the sentences come from.

    Attributes:
        data_dir: Folder of the STS data; None for docstrings.
    """

    data_dir: Path | None = None

    @cached_property
    def model(self) -> str:
        """Folder of the built-in encoder."""
        return embedded_encoder()

    @cached_property
    def base(self) -> str:
        """Folder of a random encoder of the size of BERT-base, which is deleted in the end; needs no network."""
        folder = tempfile.TemporaryDirectory()
        atexit.register(folder.cleanup)
        tokenizer = AutoTokenizer.from_pretrained(self.model)
        torch.manual_seed(0)
        with quiet_transformers():
            BertModel(BertConfig(vocab_size=len(tokenizer))).save_pretrained(folder.name)
        tokenizer.save_pretrained(folder.name)
        return folder.name

    @cached_property
    def encoders(self) -> Mapping[str, tuple[str, list[str]]]:
        """Folders of both, with the sentences that each encodes."""
        return {MINILM: (self.model, self.sentences), BASE: (self.base, self.worth(WORDS[BASE]))}

    @cached_property
    def _all(self) -> list[str]:
        if self.data_dir is None:
            return docstring_sentences()
        return unique_sentences(load_sts(task, self.data_dir) for task in SUITES["sts7"])

    @cached_property
    def sentences(self) -> list[str]:
        """Some sentences, drawn at random, the same each time."""
        return self.worth(WORDS[MINILM])

    def worth(self, words: int) -> list[str]:
        """As many of them as have this many words, so that a run takes as long whatever the data."""
        drawn = self.draw(words)
        return drawn[: int(np.searchsorted(np.cumsum([len(sentence.split()) for sentence in drawn]), words))]

    def draw(self, n: int) -> list[str]:
        """So many of them; the first are the same whatever their number."""
        chosen = np.random.default_rng(0).permutation(len(self._all))[:n]
        return [self._all[i] for i in chosen]

    @cached_property
    def tuning(self) -> Pairs | None:
        """Scored pairs that no reported figure is made of; None without STS data."""
        return None if self.data_dir is None else load_sts("tuning", self.data_dir)

    def source(self) -> str:
        """What the sentences are, in words."""
        kind = "docstrings" if self.data_dir is None else "the seven STS tasks"
        return f"{len(self.sentences):,} of {len(self._all):,} sentences of {kind}"
