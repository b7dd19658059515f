"""How an encoder is opened. Making a spec checks it: folder, pooling and layers, length, chunks, template; no weights.

options  --EncoderSpec.of-->  spec  --recipe-->  the arguments that open the encoder again
--facts--->  what decides its embeddings: ``describe()``, identity, saved record
"""

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from bertflow.encoder.architecture import NO_LIMIT, longest_input
from bertflow.encoder.chunks import Chunks
from bertflow.encoder.device import PRECISIONS, resolve_device
from bertflow.encoder.folders import DEFAULTS, ModelFolder, Prompts, shown_prompts
from bertflow.encoder.locating import open_model, own_pooling
from bertflow.encoder.pooling import DENOISED, Pooling, parse_pooling
from bertflow.encoder.template import Template, require_positions
from bertflow.errors import UsageError, logger
from bertflow.registry import lookup, own_code


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

    @classmethod
    def of(
        cls,
        model: str | Path,
        pooling: str | None = None,
        max_length: int | None = None,
        device: str = "auto",
        dtype: str | None = None,
        revision: str | None = None,
        prompt: str | Prompts | None = None,
        chunks: str | None = None,
        template: str | None = None,
    ) -> "EncoderSpec":
        """What the options of ``TransformerEncoder`` stand for; what is None is the folder's own choice.

        Raises:
            UnknownNameError: For an unknown pooling or dtype.
            UsageError: For a layer, length, device, template or chunks that cannot be used.
            DataError: For a folder that is missing, incomplete or damaged.
        """
        folder = open_model(model, revision)
        with own_code(folder.path, folder.record.get("imports", [])):
            row = parse_pooling(own_pooling(folder) if pooling is None else pooling)
        folder.needed([row])
        prompts, dtype = folder.prompts(prompt), folder.saved["dtype"] if dtype is None else dtype
        if prompt is None and folder.modules and any(prompts.values()):
            logger.info("%s has prompts, which are used: %s.", folder.name, shown_prompts(prompts))
        around = Template.around(folder, row, template)
        if row.tokens == DENOISED:
            require_positions(folder.shape)
        lookup("dtype", PRECISIONS, dtype)
        kept = prompt if prompt is None or isinstance(prompt, str) else dict(prompt)
        asked = {"model": str(model), "device": device, "revision": revision, "prompt": kept}
        length = choose_length(folder, max_length)
        spec = cls(asked, folder, row, length, resolve_device(device), prompts, dtype, template=around)
        spelling = folder.saved.get("chunks", "") if chunks is None else chunks
        fitted = spec.fitted_chunks(spelling) if spelling else None
        return replace(spec, chunks=fitted and replace(fitted, pool=fitted.pool or "mean"))

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
