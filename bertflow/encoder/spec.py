"""What an encoder is, but for its weights: made of its options, which are checked before weights are read.

options  --TransformerEncoder-->  spec  --recipe-->  the arguments that open the encoder again
--facts--->  what decides its embeddings: ``describe()``, identity, saved record
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from bertflow.encoder.architecture import NO_LIMIT, longest_input
from bertflow.encoder.chunks import Chunks
from bertflow.encoder.folders import DEFAULTS, ModelFolder, Prompts
from bertflow.encoder.pooling import Pooling
from bertflow.encoder.template import Template
from bertflow.errors import UsageError


@dataclass(frozen=True)
class EncoderSpec:
    """Everything that defines an encoder, except its weights.

    Attributes:
        asked: The options that are kept as they were given: model, device, revision, prompt.
        folder: The model.
        pooling: Which layers are read, and how they become one vector.
        max_length: Longest sentence, in tokens, special ones included.
        device: Where the model runs.
        prompts: What is put before a sentence, by role.
        dtype: A row of ``PRECISIONS``.
        chunks: How longer texts are split; None where they are cut.
        template: What is put around every sentence, for the poolings that read its mask.
    """

    asked: Mapping[str, Any]
    folder: ModelFolder
    pooling: Pooling
    max_length: int
    device: torch.device
    prompts: Prompts
    dtype: str = DEFAULTS["dtype"]
    chunks: Chunks | None = None
    template: Template | None = None

    def fitted_chunks(self, spelling: str) -> Chunks:
        """Chunks as they are spelled, their size said, for this ``max_length`` and these prompts."""
        return Chunks.parse(spelling).fitted(self.folder.tokenizer, self.prompts.values(), self.max_length)

    @functools.cached_property
    def layers(self) -> tuple[int, ...]:
        """The layers that the pooling reads, from 0."""
        return self.pooling.resolve(self.folder.blocks)

    @property
    def recipe(self) -> dict[str, Any]:
        """The arguments that open the encoder again, ready for JSON."""
        resolved = {"pooling": str(self.pooling), "max_length": self.max_length, "dtype": self.dtype}
        switched_off = {"chunks": ""} if "chunks" in self.folder.record else {}
        return {"model": self.asked["model"], **resolved, **self.asked, **switched_off, **self._parts}

    @property
    def facts(self) -> dict[str, Any]:
        """All that decides the embeddings, ready for JSON."""
        facts = {
            "encoder": self.folder.name,
            "weights": self.folder.weights_hash,
            "blocks": self.folder.blocks,
            "pooling": str(self.pooling),
            "layers": list(self.layers),
            "max_length": self.max_length,
            "dtype": self.dtype,
            "prompt": self.prompts["document"],
        }
        if self.prompts["query"] != self.prompts["document"]:
            facts["query_prompt"] = self.prompts["query"]
        return facts | self._parts

    @property
    def _parts(self) -> dict[str, str]:
        """Chunks and template, where there are any."""
        parts = {"chunks": str(self.chunks or ""), "template": self.template.text if self.template else ""}
        return {name: text for name, text in parts.items() if text}


def choose_length(folder: ModelFolder, wanted: int | None) -> int:
    """The longest sentence in tokens: as wanted, else as the folder has it, up to what the model can read.

    Raises:
        UsageError: If the model cannot read this many, or they are its special tokens alone.
    """
    longest = int(min(longest_input(folder.shape), max(folder.length or 0, folder.tokenizer.model_max_length)))
    shortest = folder.tokenizer.num_special_tokens_to_add() + 1
    if shortest > longest:
        raise UsageError(
            f"The template takes {shortest - 1} tokens with the special ones, this model reads {longest}. Shorten it."
        )
    own = folder.saved["max_length"] or (longest if longest < NO_LIMIT else DEFAULTS["max_length"])
    length = min(own, longest) if wanted is None else wanted
    if not shortest <= length <= longest:
        raise UsageError(f"max_length must be from {shortest} to {longest} tokens for this model, got {length}.")
    return length
