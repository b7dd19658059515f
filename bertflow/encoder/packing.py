"""Sentences end to end instead of padded: no operator spends anything on padding, and no mask is needed.

    ids (batch, token) --the tokens alone--> (1, tokens) --blocks--> (1, tokens, dim) --> (batch, token, dim), else 0

All but attention works on each token by itself. For attention transformers is given a function of ours, by which each
sentence attends to itself alone: on a GPU PyTorch's ``varlen_attn`` in half precision, where the installed PyTorch and
the GPU have it; elsewhere the same by one mask over all tokens, which is what the tests compare with padding.
"""

import importlib
import importlib.util
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from bertflow.encoder.architecture import LONG, SHORT, first_position, same_tokens
from bertflow.errors import reason_of

if TYPE_CHECKING:
    from bertflow.encoder.model import BlockStack

logger = logging.getLogger("bertflow")

NAME = "bertflow-packed"
"""What transformers calls our attention."""
VARLEN = "torch.nn.attention.varlen"
"""The module of PyTorch, from 2.10 on, that has ``varlen_attn``."""


@dataclass(frozen=True)
class Packed:
    """Where the tokens of a padded batch stand; nothing of it asks a device for a number.

    Attributes:
        places: Of each token, its place in batch x token; (tokens,).
        starts: Where each sentence starts among the tokens, and the end; (batch + 1,), int32.
        longest: Most tokens of a sentence, or more.
        shape: (batch, token).
    """

    places: Tensor
    starts: Tensor
    longest: int
    shape: tuple[int, int]

    @classmethod
    def of(cls, mask: Tensor, tokens: int) -> "Packed":
        """From the mask (batch, token), in which ``tokens`` are True."""
        places = torch.nonzero_static(mask.flatten(), size=tokens)[:, 0]
        starts = nn.functional.pad(mask.sum(1).cumsum(0), (1, 0)).int()
        return cls(places, starts, mask.shape[1], (mask.shape[0], mask.shape[1]))

    def pack(self, padded: Tensor) -> Tensor:
        """(batch, token) -> (1, tokens)."""
        return padded.flatten()[self.places][None]

    def unpack(self, states: Tensor) -> Tensor:
        """(1, tokens, dim) -> (batch, token, dim), zero at padding."""
        whole = states.new_zeros(self.shape[0] * self.shape[1], states.shape[-1])
        return whole.index_copy(0, self.places, states[0]).unflatten(0, self.shape)


def positions(ids: Tensor, mask: Tensor, model: PreTrainedModel) -> Tensor:
    """The position of each token, as the model itself counts them where it is given a padded batch; (batch, token)."""
    first = first_position(model)
    # RoBERTa and its kin pass over the padding token, also where a text holds it.
    counted = ids != first - 1 if first else mask
    return counted.cumsum(1) * counted + first - 1


def within_sentences(query: Tensor, key: Tensor, value: Tensor, *, starts: Tensor, scale: float | None) -> Tensor:
    """What ``varlen_attn`` makes of (tokens, heads, dim), by one mask over all tokens."""
    owner = torch.bucketize(torch.arange(query.shape[0], device=query.device), starts[1:], right=True)
    q, k, v = (x.transpose(0, 1)[None] for x in (query, key, value))
    made = nn.functional.scaled_dot_product_attention(q, k, v, owner[:, None] == owner, scale=scale)
    return made[0].transpose(0, 1)


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    packed: Packed | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """The attention that transformers calls, (batch, heads, token, dim) each; its own where nothing is packed."""
    if packed is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **others)
    rows = [x[0].transpose(0, 1) for x in (query, key, value)]
    if query.device.type != "cpu" and query.dtype.itemsize == 2:
        usual = scaling in (None, query.shape[-1] ** -0.5)
        made = importlib.import_module(VARLEN).varlen_attn(
            *rows,
            *(packed.starts, packed.starts, packed.longest, packed.longest),
            **({} if usual else {"scale": scaling}),  # which PyTorch 2.10 does not know
        )
    else:
        made = within_sentences(*rows, starts=packed.starts, scale=scaling)
    return made[None], None


def may_pack(model: PreTrainedModel) -> bool:
    """Whether packing may pay: in half precision on a GPU, with a PyTorch that has attention of variable length."""
    return model.device.type == "cuda" and model.dtype.itemsize == 2 and importlib.util.find_spec(VARLEN) is not None


def use_packing(model: PreTrainedModel) -> None:
    """Have a model attend by ``packed_attention``."""
    AttentionInterface.register(NAME, packed_attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    model.config._attn_implementation = NAME


@torch.no_grad()
def try_packing(padded: "BlockStack", packed: "BlockStack", ids: Sequence[int], layers: Sequence[int]) -> bool:
    """Whether two sentences come out packed as they do padded; if not, or this GPU cannot, it is said."""
    model = padded.model
    rows = torch.tensor([[ids[(row + k) % len(ids)] for k in range(LONG)] for row in range(2)], device=model.device)
    mask = torch.arange(LONG, device=model.device) < torch.tensor([[SHORT], [LONG]], device=model.device)
    try:
        found = packed.read(rows, mask, layers, SHORT + LONG).values()
        if same_tokens([x[mask] for x in padded.read(rows, mask, layers).values()], [x[mask] for x in found], model):
            return True
        reason = "packed, they come out otherwise"
    except (RuntimeError, TypeError) as error:
        reason = reason_of(error)
    logger.info("Sentences are padded, not packed: %s.", reason)
    return False
