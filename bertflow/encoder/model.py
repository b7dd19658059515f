"""What runs: batches of tokens -> the blocks that are needed -> hidden states.

A batch in which nothing is padded needs no mask.
"""

import functools
import hashlib
import inspect
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers import __version__ as transformers_version

from bertflow.encoder.architecture import (
    FAMILIES,
    OneLine,
    is_plain,
    model_class,
    some_ids,
    switch_off,
    truncate,
    try_padding,
)
from bertflow.encoder.attention import LONG, SHORT
from bertflow.encoder.device import PRECISIONS, TF32, tf32_products, unplanned_attention
from bertflow.encoder.folders import LOCALLY, ModelFolder
from bertflow.encoder.pooling import Pooling
from bertflow.errors import DataError, UsageError
from bertflow.onednn import computed_in, packs, use_onednn

POOLER = -1
"""Number of BERT's pooling layer among the layers that were read."""
CAPTURING = "transformers.utils.output_capturing"
"""The module of transformers whose hooks give the inner layers: local functions, which cannot be pickled."""
SELECTS = tuple(map(int, transformers_version.split(".")[:2])) >= (5, 23)
"""True where transformers can be asked for some layers by their numbers: 5.17 to 5.22 count them without layer 0."""
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
        tf32: Whether a GPU may round the numbers of products to TF32.
    """

    model: PreTrainedModel
    depth: int
    pooler: bool
    pads: bool = True
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
        options = {"add_pooling_layer": pooler} if folder.takes_pooler else {}
        model = _load_exactly(kind, folder.weights, config=config, dtype=PRECISIONS[dtype], **options)
        if depth < folder.blocks and (norm := FAMILIES[config.model_type].final_norm):
            switch_off(model, norm)
        nn.Module.to(model.eval(), device, computed_in(model.dtype, device))
        use_fastest(model)
        layers = sorted({layer for pooling in poolings for layer in pooling.resolve(folder.blocks)})
        stack, known = cls(model, depth, pooler, tf32=dtype == TF32), some_ids(folder.tokenizer, folder.config)
        pads = try_padding(
            lambda ids, mask: stack.read(ids, mask, layers, int(mask.sum())), known, folder.pad_id, model
        )
        return replace(stack, pads=pads)

    @property
    def dim(self) -> int:
        """Width of a layer."""
        return int(self.model.config.hidden_size)

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
            # As transformers would make it, but without a look at the numbers, for which a GPU would be waited for.
            whole = mask[:, None, None].expand(-1, 1, ids.shape[1], -1) if is_plain(self.model.config) else mask
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

    def _run(self, ids: Tensor, mask: Tensor | None, layers: Iterable[int], **inputs: Any) -> dict[int, Tensor]:
        inner = [layer for layer in layers if layer < self.depth]
        if self.takes_mask and mask is not None:
            inputs["attention_mask"] = mask.long() if mask.ndim == 2 else mask
        # Where gradients are wanted the caller decides, also for what is computed again on the way back.
        unplanned = ids.device.type != "cpu" and not torch.is_grad_enabled()
        attention = unplanned_attention() if unplanned else nullcontext()
        wanted = inner if inner and SELECTS else bool(inner)
        with tf32_products() if self.tf32 else nullcontext(), attention:
            output = self.model(input_ids=ids, output_hidden_states=wanted, **inputs)
        states = (output.hidden_states or ()) if inner else ()
        if inner and len(states) != self.depth + 1:
            raise UsageError(
                f"A model of type {self.model.config.model_type} gives {len(states)} hidden states for {self.depth} "
                "blocks, so they cannot be matched. Use a pooling of the last layer, such as mean."
            )
        found = {layer: states[layer] for layer in inner} | {self.depth: output.last_hidden_state}
        return found | ({POOLER: output.pooler_output} if self.pooler else {})


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


def word_embeddings(model: PreTrainedModel) -> Tensor:
    """A row for each token id: no position, no segment, no LayerNorm; (vocabulary, dim)."""
    return cast(nn.Embedding, model.get_input_embeddings()).weight.detach()


def digest_of(model: PreTrainedModel) -> str:
    """SHA-256 over the weights in memory and their names."""
    digest = hashlib.sha256()
    for name, weight in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(weight.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()


@contextmanager
def nothing_dropped(model: PreTrainedModel) -> Iterator[None]:
    """In this block a model has no dropout; afterwards each module is in the mode it was in."""
    training = [module for module in model.modules() if module.training]
    try:
        for module in training:
            module.training = False
        yield
    finally:
        for module in training:
            module.training = True


def use_fastest(model: PreTrainedModel, frozen: bool = True) -> None:
    """Let a model compute as is fastest on this processor; ``frozen`` weights must stay as they are."""
    packed = packs(model.dtype)
    use_onednn(model, packed and frozen)
    if packed and is_plain(model.config):
        model.set_attn_implementation(SHORT if frozen else LONG)


def for_others(model: PreTrainedModel) -> PreTrainedModel:
    """The model as others may train and pickle it: nothing packed, no attention of ours, no hooks of ``CAPTURING``.

    transformers installs the hooks again when it needs them.
    """
    use_fastest(model, frozen=False)
    for module in model.modules():
        module.__dict__.pop(INSTALLED, None)
        hooks = module._forward_hooks
        for number in [number for number, hook in hooks.items() if hook.__module__ == CAPTURING]:
            del hooks[number]
    return model
