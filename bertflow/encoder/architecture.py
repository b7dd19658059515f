"""Which models can be read, how few of their blocks, and whether they may be padded.

A class reads a sentence if it takes token ids and is one stack of blocks; of T5 and its kin it is the encoder alone.

Layer k of a transformer depends on blocks 1 to k alone, so for ``mean(3)`` a model of 12 blocks is loaded with 3. What
comes out equals ``hidden_states[k]`` of the whole model, with one thing to mind: some families put a final norm behind
their last block, and truncated they would put it behind block k. There it is switched off. A family that is not in
``FAMILIES`` is loaded whole: slower, never wrong.

Every model is tried before it gives out an embedding. One short row of tokens must come out the same

    alone and padded             batches are padded, as usual
    alone and beside its equal   batches of one length: models without a mask (FNet), and those that read beyond it

and a model for which neither holds is refused. While it is read, transformers says nothing; what it and other libraries
cannot read is refused in one line (``OneLine``).
"""

import inspect
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    MODEL_FOR_TEXT_ENCODING_MAPPING,
    MODEL_MAPPING,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging as transformers_logging

from bertflow.errors import BertflowError, DataError, UsageError, logger, reason_of
from bertflow.progress import at_level

SHORT, LONG = 2, 6
"""Tokens of the rows on which a model is tried; an empty sentence has as few as the short one."""
WANTS_MORE = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What models raise that want more than tokens."""
FOREIGN = (*WANTS_MORE, EOFError, MemoryError, OSError)
"""What other libraries raise about damaged files, beside errors of their own."""
LIBRARIES = ("_pickle", "huggingface_hub", "onnxruntime", "pyo3_runtime", "safetensors", "zipfile", "zlib")
"""The libraries that have errors of their own."""
POSITIONS = ("max_position_embeddings", "max_seq_len")
"""What configs call the number of positions; MPT calls it by the second name. XLNet's is -1, T5 has none."""
NO_LIMIT = 2**20
"""Number that means no limit to the length of a sentence."""
TOLERANCES: Mapping[torch.dtype, float] = {torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 1e-1}
"""How far a token's vector may move, as a share of its length: well above rounding, and below what padding costs where
it is read; half precision hides a small leak."""


@dataclass(frozen=True)
class Family:
    """What to mind when a family is truncated.

    Attributes:
        final_norm: The module behind the last block, which must not act behind an earlier one.
        least_blocks: Fewest blocks with which the model can be built.
        plain: Whether each token attends to all others (unless the config says ``is_decoder``), by nothing but their
            vectors: then one mask over the keys says which are padding, and no device is asked for a number.
    """

    final_norm: str | None = None
    least_blocks: int = 0
    plain: bool = False


FAMILIES: Mapping[str, Family] = {
    **dict.fromkeys(("albert", "bert", "distilbert", "electra", "roberta", "xlm-roberta"), Family(plain=True)),
    "mpnet": Family(),
    **dict.fromkeys(("t5", "mt5", "umt5"), Family(final_norm="encoder.final_layer_norm")),
    "gpt2": Family(final_norm="ln_f"),
    "modernbert": Family(final_norm="final_norm", least_blocks=1),
}
"""Families, by model_type, whose truncated form is tested to be exact."""


def is_plain(config: PreTrainedConfig) -> bool:
    """Whether each token of a model attends to all others, as ``Family`` says."""
    return FAMILIES.get(config.model_type, Family()).plain and not getattr(config, "is_decoder", False)


Read = Callable[[Tensor, Tensor], Mapping[int, Tensor]]
"""Token ids and mask, each (batch, token) -> layers, each (batch, token, dim), or (batch, dim) for a pooled one."""


def model_class(config: PreTrainedConfig, where: object) -> type[PreTrainedModel]:
    """The class that reads sentences: transformers' own choice, and of T5 and its kin the encoder alone.

    Args:
        config: The model's config.
        where: The model, for the message.

    Raises:
        UsageError: If there is none; the message says why.
    """
    kind: Any = MODEL_FOR_TEXT_ENCODING_MAPPING.get(type(config), None) or MODEL_MAPPING.get(type(config), None)
    kind = kind[0] if isinstance(kind, tuple) else kind
    if kind is None:
        why = "transformers has no class for it that gives hidden states"
    elif "input_ids" not in inspect.signature(kind.forward).parameters:
        why = "it reads no text"
    elif config.is_encoder_decoder and type(config) not in MODEL_FOR_TEXT_ENCODING_MAPPING:
        why = "it is an encoder with a decoder; only those of T5, mT5 and UMT5 can be read without"
    elif not hasattr(config, "num_hidden_layers"):
        parts = sorted(getattr(config, "sub_configs", {}))
        why = f"it has several ({', '.join(parts)})" if parts else "its config does not give their number"
    else:
        return kind
    raise UsageError(
        f"{where} is a model of type {config.model_type}, but sentences need one stack of blocks that reads text: "
        f"{why}. Choose another model, such as BERT, RoBERTa, MPNet, T5 or GPT-2."
    )


def switch_off(model: nn.Module, norm: str) -> None:
    """Let a norm pass its input on; it keeps its weights, so that the model is saved and loaded as any other."""
    model.get_submodule(norm).forward = nn.Identity().forward


def first_position(model: PreTrainedModel) -> int:
    """The position of the first token: RoBERTa and its kin count from behind the padding index."""
    tables = (module for name, module in model.named_modules() if name.endswith("position_embeddings"))
    padding = (getattr(table, "padding_idx", None) for table in tables)
    return max((index + 1 for index in padding if index is not None), default=0)


def longest_input(model: PreTrainedModel) -> int:
    """How many tokens a model has positions for; ``NO_LIMIT`` where it counts none. Its weights are not needed."""
    stated = [getattr(model.config, name, None) for name in POSITIONS]
    return next((int(number) for number in stated if number and number > 0), NO_LIMIT) - first_position(model)


def truncate(config: PreTrainedConfig, depth: int) -> PreTrainedConfig:
    """A copy of the config with ``depth`` blocks, where the family is known to stand it."""
    config = type(config).from_dict(config.to_dict())
    config.use_cache = False
    # ALBERT deals its blocks out to groups by their number, so with several groups fewer blocks would be others.
    if config.model_type in FAMILIES and getattr(config, "num_hidden_groups", 1) == 1:
        depth = max(depth, FAMILIES[config.model_type].least_blocks)
        if getattr(config, "layer_types", None):
            config.layer_types = config.layer_types[:depth]
        config.num_hidden_layers = depth
    return config


def some_ids(tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig) -> list[int]:
    """Token ids from all over the vocabulary, special tokens left out."""
    known = min(len(tokenizer), getattr(config, "vocab_size", len(tokenizer)))
    ids = set(range(0, known, max(1, known // LONG))) - set(tokenizer.all_special_ids)
    return sorted(ids) or [0]


@torch.no_grad()
def try_padding(read: Read, ids: Sequence[int], pad_id: int, model: PreTrainedModel) -> bool:
    """Whether rows of several lengths may be padded to one batch.

    Args:
        read: Runs the model.
        ids: Some token ids.
        pad_id: What fills a batch.
        model: The model; its type, width, dtype and device are read.

    Raises:
        UsageError: If the model cannot be run on token ids alone, or not even equal lengths agree.
    """
    kind, dim = model.config.model_type, int(model.config.hidden_size)
    short = [ids[k % len(ids)] for k in range(SHORT)]
    long = [ids[k % len(ids)] for k in range(LONG)][::-1]

    def first(*rows: Sequence[int]) -> list[Tensor]:
        """The layers of the first row at its tokens, in float32."""
        width, device = max(map(len, rows)), model.device
        padded = torch.tensor([[*row, *[pad_id] * (width - len(row))] for row in rows], device=device)
        mask = torch.arange(width, device=device) < torch.tensor([[len(row)] for row in rows], device=device)
        layers = read(padded, mask).values()
        if wrong := [tuple(layer.shape) for layer in layers if layer.shape[1:] not in ((width, dim), (dim,))]:
            raise ValueError(f"it gives a layer of {wrong[0]} where {(len(rows), width, dim)} is wanted")
        return [layer[0, : len(rows[0])].float() if layer.ndim == 3 else layer[:1].float() for layer in layers]

    try:
        alone = first(short)
        if not all(layer.isfinite().all() for layer in alone):
            return True  # an embedding that is not finite is refused where it is made, with its own words
        if same_tokens(alone, first(short, long), model):
            return True
        equal = same_tokens(alone, first(short, short[::-1]), model)
    except UsageError:
        raise
    except WANTS_MORE as error:
        raise UsageError(
            f"A model of type {kind} cannot read a sentence by itself: {reason_of(error)}. Choose another model."
        ) from error
    if not equal:
        raise UsageError(
            f"This model of type {kind} gives a sentence another embedding beside other sentences than alone, even "
            "without padding. Choose another model."
        )
    logger.warning("Padding changes what a model of type %s reads, so sentences are run in groups of one length.", kind)
    return False


def same_tokens(alone: Sequence[Tensor], batched: Sequence[Tensor], model: PreTrainedModel) -> bool:
    """Whether no token moved by more than the tolerance of the model's dtype, in any layer."""
    return all(
        bool(((there - here).norm(dim=-1) <= TOLERANCES[model.dtype] * here.norm(dim=-1)).all())
        for here, there in zip(alone, batched, strict=True)
    )


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """No report about the weights that are left out on purpose, no progress bar for a file on disk."""
    bar = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        with at_level(logging.ERROR, "transformers"):
            yield
    finally:
        if bar:
            transformers_logging.enable_progress_bar()


class OneLine(AbstractContextManager[None]):
    """Says in one line, as ``DataError``, what another library cannot read: ``failed``, and the reason."""

    def __init__(self, failed: str) -> None:
        self.failed, self._quiet = failed, quiet_transformers()

    def __enter__(self) -> None:
        self._quiet.__enter__()

    def __exit__(self, kind: Any, error: Any, *place: Any) -> None:
        self._quiet.__exit__(None, None, None)
        library = kind.__module__.partition(".")[0] if kind else ""
        foreign = kind is Exception or isinstance(error, FOREIGN) or library in LIBRARIES  # tokenizers raise Exception
        if foreign and not isinstance(error, BertflowError):
            raise DataError(f"{self.failed}: {reason_of(error)}.") from error
