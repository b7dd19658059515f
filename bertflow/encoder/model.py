"""What runs: batches of tokens -> the blocks that are needed -> hidden states.

Nothing is spent on padding where that can be spared: a batch in which nothing is padded needs no mask, and on a GPU its
sentences may be run end to end (``bertflow.encoder.packing``).
"""

import functools
import inspect
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from bertflow.encoder.architecture import FAMILIES, Family, model_class, some_ids, switch_off, truncate, try_padding
from bertflow.encoder.device import PRECISIONS, TF32, tf32_products, unplanned_attention
from bertflow.encoder.folders import LOCALLY, ModelFolder
from bertflow.encoder.foreign import OneLine
from bertflow.encoder.packing import Packed, may_pack, positions, try_packing, use_packing
from bertflow.encoder.pooling import Pooling
from bertflow.errors import DataError, UsageError
from bertflow.onednn import computed_in, use_onednn
from bertflow.registry import lookup

POOLER = -1
"""Stands for BERT's pooling layer among the layers that were read."""
CAPTURING = "transformers.utils.output_capturing"
"""The module of transformers whose hooks give the inner layers: local functions, which cannot be pickled."""
INSTALLED = "_output_capturing_hooks_installed"
"""What transformers notes on a model that has them."""


@dataclass(frozen=True)
class BlockStack:
    """The first ``depth`` of a model's blocks, ready to run.

    Attributes:
        model: The transformers model, in eval mode.
        depth: Its deepest layer; what the model calls its last hidden state.
        pooler: Whether BERT's pooling layer is there.
        pads: Whether sentences of several lengths are padded to one batch; else each length is run by itself.
        packs: Whether those of one batch are run end to end, without padding.
        tf32: Whether a GPU may round the numbers of products to TF32.
    """

    model: PreTrainedModel
    depth: int
    pooler: bool
    pads: bool = True
    packs: bool = False
    tf32: bool = False

    @classmethod
    def load(
        cls,
        folder: ModelFolder,
        poolings: Sequence[Pooling],
        dtype: str = "float32",
        device: torch.device | str = "cpu",
    ) -> "BlockStack":
        """Load the blocks that some poolings need.

        Raises:
            DataError: If weights are missing or damaged.
            UsageError: If the model does not have what a pooling reads, or cannot embed sentences.
        """
        depth, pooler = folder.needed(poolings)
        config = truncate(folder.config, depth)
        depth, kind = config.num_hidden_layers, model_class(config, folder.path)
        takes_pooler = "add_pooling_layer" in inspect.signature(kind).parameters
        if pooler and not takes_pooler:
            raise UsageError(
                f"The pooling pooler needs BERT's pooling layer, and {config.model_type} has none. Use cls."
            )
        options = {"add_pooling_layer": pooler} if takes_pooler else {}
        model = _load_exactly(kind, folder.weights, config=config, dtype=lookup("dtype", PRECISIONS, dtype), **options)
        if depth < folder.blocks and (norm := FAMILIES[config.model_type].final_norm):
            switch_off(model, norm)
        use_onednn(model)
        nn.Module.to(model.eval(), device, computed_in(model.dtype, device))
        layers = {layer for pooling in poolings for layer in pooling.resolve(folder.blocks)}
        return cls(model, depth, pooler, tf32=dtype == TF32)._tried(folder, sorted(layers))

    def _tried(self, folder: ModelFolder, layers: Sequence[int]) -> Self:
        """The same, once it is known whether it pads, and whether it packs."""
        known = some_ids(folder.tokenizer, folder.config)

        def read(ids: Tensor, mask: Tensor) -> dict[int, Tensor]:
            """As every batch of sentences is read."""
            return self.read(ids, mask, layers, int(mask.sum()))

        stack = replace(self, pads=try_padding(read, known, folder.pad_id, self.model))
        return stack.packing(known, layers) if may_pack(self.model) else stack

    def packing(self, ids: Sequence[int], layers: Sequence[int]) -> Self:
        """The same without padding, where some token ``ids`` then come out as before in all ``layers``."""
        if not (self.pads and self._family.plain) or self.pooler:
            return self
        use_packing(self.model)
        packs = replace(self, packs=True)
        return packs if try_packing(self, packs, ids, layers) else self

    @functools.cached_property
    def _family(self) -> Family:
        family = FAMILIES.get(self.model.config.model_type, Family())
        return replace(family, plain=family.plain and not getattr(self.model.config, "is_decoder", False))

    @property
    def dim(self) -> int:
        """Width of a layer."""
        return int(self.model.config.hidden_size)

    @property
    def word_embeddings(self) -> Tensor:
        """A row for each token id: no position, no segment, no LayerNorm; (vocabulary, dim)."""
        return cast(nn.Embedding, self.model.get_input_embeddings()).weight.detach()

    @functools.cached_property
    def takes_mask(self) -> bool:
        """Whether the model can be told which tokens are padding (FNet cannot)."""
        return "attention_mask" in inspect.signature(self.model.forward).parameters

    def read(
        self, ids: Tensor, mask: Tensor, layers: Iterable[int], tokens: int | None = None, **inputs: Tensor
    ) -> dict[int, Tensor]:
        """The layers asked for, each (batch, token, dim); under ``POOLER`` BERT's pooled [CLS] (batch, dim), if loaded.

        The last layer is what transformers calls ``last_hidden_state``, layer k its ``hidden_states[k]``. No other
        layers are kept in memory.

        Args:
            ids: Token ids; (batch, token).
            mask: True at tokens, False at padding, which is on the right; (batch, token).
            layers: Their indices; they need not hold the last one.
            tokens: How many the mask shows, where that is known: then padding is spared where it can be.
            inputs: What else the model takes, (batch, token).
        """
        if self.pads:
            if tokens is None or self.model.config.model_type not in FAMILIES:
                return self._run(ids, mask, layers, **inputs)
            if tokens == ids.numel():
                return self._run(ids, None, layers, **inputs)
            if self.packs and not self.model.training:
                return self._run_packed(ids, Packed.of(mask, tokens), positions(ids, mask, self.model), layers)
            # As transformers would make it, but without a look at the numbers, for which a GPU would be waited for.
            whole = mask[:, None, None].expand(-1, 1, ids.shape[1], -1) if self._family.plain else mask
            return self._run(ids, whole, layers, **inputs)
        lengths, found = mask.sum(1), dict[int, Tensor]()
        for length in lengths.unique().tolist():
            rows = torch.nonzero(lengths == length)[:, 0]
            given = {name: value[rows, :length] for name, value in inputs.items()}
            for layer, states in self._run(ids[rows, :length], mask[rows, :length], layers, **given).items():
                shape = ids.shape if states.ndim == 3 else ids.shape[:1]
                whole = found.setdefault(layer, states.new_zeros(*shape, states.shape[-1]))
                whole[(rows, slice(length))[: states.ndim - 1]] = states
        return found

    def _run_packed(self, ids: Tensor, packed: Packed, where: Tensor, layers: Iterable[int]) -> dict[int, Tensor]:
        told: dict[str, Any] = {"position_ids": packed.pack(where), "packed": packed}
        return {layer: packed.unpack(x) for layer, x in self._run(packed.pack(ids), None, layers, **told).items()}

    def _run(self, ids: Tensor, mask: Tensor | None, layers: Iterable[int], **inputs: Any) -> dict[int, Tensor]:
        inner = [layer for layer in layers if layer < self.depth]
        if self.takes_mask and mask is not None:
            inputs["attention_mask"] = mask.long() if mask.ndim == 2 else mask
        # Where gradients are wanted the caller decides, also for what is computed again on the way back.
        unplanned = ids.device.type != "cpu" and not torch.is_grad_enabled()
        with (
            tf32_products() if self.tf32 else nullcontext(),
            unplanned_attention() if unplanned else nullcontext(),
        ):
            output = self.model(input_ids=ids, output_hidden_states=inner or False, **inputs)
        states = (output.hidden_states or ()) if inner else ()
        if inner and len(states) != self.depth + 1:
            raise UsageError(
                f"A model of type {self.model.config.model_type} gives {len(states)} hidden states for {self.depth} "
                "blocks, so they cannot be matched. Use a pooling of the last layer, such as mean."
            )
        found = {layer: states[layer] for layer in inner} | {self.depth: output.last_hidden_state}
        return found | ({POOLER: output.pooler_output} if self.pooler else {})


class WordEmbeddings(BlockStack):
    """The word embeddings alone, which are read as layer 0."""

    @property
    def dim(self) -> int:
        """Width of a word embedding."""
        return self.word_embeddings.shape[1]

    def _tried(self, *_: Any) -> Self:
        return self

    def read(self, ids: Tensor, *_: Any, **__: Any) -> dict[int, Tensor]:
        """The rows of some token ids, (batch, token, dim), under 0."""
        return {0: self.word_embeddings[ids]}


def _load_exactly(kind: Any, folder: Path, **options: Any) -> PreTrainedModel:
    """Load a model, and refuse one of which a part would be random."""
    with OneLine(f"The weights in {folder} cannot be loaded"):
        model, info = kind.from_pretrained(folder, output_loading_info=True, **LOCALLY, **options)
    if missing := sorted(info["missing_keys"]):
        raise DataError(
            f"The weights in {folder} lack {len(missing)} tensors, {missing[0]} the first, which would be random. "
            "Give the complete model, or a pooling that does not need them."
        )
    return model


def without_captures(model: PreTrainedModel) -> PreTrainedModel:
    """The same model, without the hooks of ``CAPTURING``: transformers installs them again when it needs them."""
    for module in model.modules():
        module.__dict__.pop(INSTALLED, None)
        for number, hook in list(module._forward_hooks.items()):
            if hook.__module__ == CAPTURING:
                del module._forward_hooks[number]
    return model
