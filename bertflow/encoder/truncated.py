"""Load only the blocks that are needed, and read layers from them.

Layer k of a transformer depends on blocks 1 to k alone, so for ``mean(3)`` a model of 12 blocks is loaded with 3. What
comes out equals ``hidden_states[k]`` of the whole model, with one thing to mind: some families put a final norm behind
their last block, and truncated they would put it behind block k. There it is switched off.

A family that is not in ``FAMILIES`` is loaded whole: slower, never wrong.
"""

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import MODEL_MAPPING, AutoModel, PreTrainedConfig, PreTrainedModel
from transformers.utils import logging as transformers_logging

from bertflow.errors import DataError, UsageError
from bertflow.onednn import use_onednn


@dataclass(frozen=True)
class Family:
    """What to mind when a family is truncated.

    Attributes:
        final_norm: The module behind the last block, which must not act behind an earlier one.
        least_blocks: With fewer blocks the model cannot be built.
    """

    final_norm: str | None = None
    least_blocks: int = 0


FAMILIES: Mapping[str, Family] = {
    "albert": Family(),
    "bert": Family(),
    "distilbert": Family(),
    "electra": Family(),
    "gpt2": Family(final_norm="ln_f"),
    "modernbert": Family(final_norm="final_norm", least_blocks=1),
    "mpnet": Family(),
    "roberta": Family(),
    "xlm-roberta": Family(),
}
"""By model_type: the families whose truncated form is tested to be exact."""


LOCALLY: Mapping[str, Any] = {"local_files_only": True, "trust_remote_code": False}
"""For everything that is read. Left unsaid, transformers asks on the terminal whether to run a folder's own code."""


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """No report about the weights that are left out on purpose, no progress bar for a file on disk."""
    verbosity, bar = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(verbosity)
        if bar:
            transformers_logging.enable_progress_bar()


def first_line(error: Exception) -> str:
    """The first line of what a library says."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


@dataclass(frozen=True)
class HiddenStates:
    """What a batch left behind: some layers, each (batch, token, dim), and BERT's pooled [CLS], (batch, dim)."""

    layers: Mapping[int, Tensor]
    pooler: Tensor | None


@dataclass(frozen=True)
class BlockStack:
    """The first ``depth`` of a model's blocks, ready to run.

    Attributes:
        model: The transformers model, in eval mode.
        depth: Its deepest layer; what the model calls its last hidden state.
        pooler: Whether BERT's pooling layer is there.
    """

    model: PreTrainedModel
    depth: int
    pooler: bool

    @classmethod
    def load(
        cls, folder: Path, config: PreTrainedConfig, blocks: int, depth: int, pooler: bool, dtype: torch.dtype
    ) -> "BlockStack":
        """Load what layers 0 to ``depth`` need.

        Args:
            folder: Config and weights.
            config: The folder's config; left as it is.
            blocks: Blocks of the whole model, which the folder may hold only the first of.
            depth: Deepest layer that will be read.
            pooler: Whether BERT's pooling layer is needed.
            dtype: Of the weights.

        Raises:
            DataError: If weights are missing or damaged.
            UsageError: If a pooler is wanted and the model has none.
        """
        config = _truncate(config, depth)
        depth = config.num_hidden_layers
        model_class: Any = MODEL_MAPPING[type(config)]
        takes_pooler = "add_pooling_layer" in inspect.signature(model_class).parameters
        if pooler and not takes_pooler:
            raise UsageError(
                f"The pooling pooler needs BERT's pooling layer, and {config.model_type} has none. Use cls."
            )
        options = {"add_pooling_layer": pooler} if takes_pooler else {}
        model = _load_exactly(folder, config=config, dtype=dtype, **options)
        if depth < blocks and (norm := FAMILIES[config.model_type].final_norm):
            switch_off(model, norm)
        use_onednn(model)
        return cls(model.eval(), depth, pooler)

    @property
    def dim(self) -> int:
        """Width of a layer."""
        return int(self.model.config.hidden_size)

    def longest_input(self) -> int:
        """How many tokens the model has positions for."""
        positions = int(self.model.config.max_position_embeddings)
        for name, module in self.model.named_modules():
            # RoBERTa and its kin count positions from behind the padding index.
            if name.endswith("position_embeddings") and getattr(module, "padding_idx", None) is not None:
                positions -= module.padding_idx + 1
        return positions

    def read(self, inputs: Mapping[str, Tensor], layers: Sequence[int]) -> "HiddenStates":
        """The layers asked for; no others are kept in memory."""
        inner = [layer for layer in layers if layer < self.depth]
        output = self.model(**inputs, output_hidden_states=inner or False)
        found = {layer: output.hidden_states[layer] for layer in inner} | {self.depth: output.last_hidden_state}
        return HiddenStates(found, output.pooler_output if self.pooler else None)


def switch_off(model: nn.Module, norm: str) -> None:
    """Let a norm pass its input on; it keeps its weights, so that the model is saved and loaded as any other."""
    getattr(model, norm).forward = _unchanged


def _unchanged(hidden_states: Tensor) -> Tensor:
    return hidden_states


def _truncate(config: PreTrainedConfig, depth: int) -> PreTrainedConfig:
    """The same config with ``depth`` blocks, where the family is known to stand it."""
    config = type(config).from_dict(config.to_dict())
    config.use_cache = False
    # ALBERT deals its blocks out to groups by their number, so with several groups fewer blocks would be others.
    if config.model_type in FAMILIES and getattr(config, "num_hidden_groups", 1) == 1:
        depth = max(depth, FAMILIES[config.model_type].least_blocks)
        if getattr(config, "layer_types", None):
            config.layer_types = config.layer_types[:depth]
        config.num_hidden_layers = depth
    return config


def _load_exactly(folder: Path, **options: Any) -> PreTrainedModel:
    """Load a model, and refuse one of which a part would be random."""
    try:
        with quiet_transformers():
            model, info = AutoModel.from_pretrained(folder, output_loading_info=True, **LOCALLY, **options)
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise DataError(f"The weights in {folder} cannot be loaded: {first_line(error)}") from error
    if missing := sorted(info["missing_keys"]):
        raise DataError(
            f"The weights in {folder} lack {len(missing)} tensors, {missing[0]} the first, which would be random. "
            "Give the complete model, or a pooling that does not need them."
        )
    return model
