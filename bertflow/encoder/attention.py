"""Attention among the tokens of short sentences, in bfloat16 on a processor with AMX.

There a block's products are so fast that attention would take as long as all of them: PyTorch's kernel makes a call for
each sentence and head, and is slow where tokens do not fill its registers. Here all sentences and heads make two
batched products and one softmax, among keys that are padded to ``LANES``. Scores are rounded to bfloat16 before the
softmax, as in transformers' own attention without a kernel.
"""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from bertflow.onednn import reaches_onednn

SHORT, LONG = "bertflow-short", "sdpa"
"""Names of this attention, and of that by PyTorch's kernels."""
LANES = 32
"""Numbers of bfloat16 in a register. Longer sentences than this are left to PyTorch's kernel, which is then faster."""


def short_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """What transformers asks of an attention: (batch, head, token, dim) each -> (batch, token, head, dim).

    What is no short sentence in bfloat16, and what is trained, goes to PyTorch's kernel.

    Args:
        module: The block's attention.
        query: One for each token.
        key: Likewise.
        value: Likewise.
        attention_mask: True where a token may attend to a key; (batch or 1, 1, token or 1, token). None: everywhere.
        options: Those of the kernel. Two are read here: ``dropout``, the share of the probabilities that is dropped,
            and ``scaling``, the factor of the scores; 1 / sqrt(dim) by default.
    """
    n, heads, tokens, dim = query.shape
    learns = torch.is_grad_enabled() or options.get("dropout", 0.0) > 0
    if learns or tokens > LANES or not _suits(query, attention_mask):
        return sdpa_attention_forward(module, query, key, value, attention_mask, **options)
    keys, values = _padded(key), _padded(value)
    scores = query.new_zeros(n, 1, tokens, LANES)
    scores[..., tokens:] = -torch.inf
    if attention_mask is not None:
        scores[..., :tokens].masked_fill_(~attention_mask, -torch.inf)
    scores = scores.repeat(1, heads, 1, 1).flatten(0, 1)
    scaling = options.get("scaling") or dim**-0.5
    scores = scores.baddbmm_(query.flatten(0, 1), keys.transpose(1, 2), alpha=scaling)
    return torch.bmm(scores.softmax(-1), values).view(n, heads, tokens, dim).transpose(1, 2), None


def _suits(query: Tensor, mask: Tensor | None) -> bool:
    return query.dtype == torch.bfloat16 and (mask is None or mask.dtype == torch.bool) and reaches_onednn(query)


def _padded(x: Tensor) -> Tensor:
    """(batch, head, token, dim) -> (batch x head, ``LANES``, dim), with zeros behind."""
    n, heads, tokens, dim = x.shape
    laid = x.new_zeros(n, heads, LANES, dim)
    laid[:, :, :tokens] = x
    return laid.flatten(0, 1)


AttentionInterface.register(SHORT, short_attention)
AttentionMaskInterface.register(SHORT, sdpa_mask)
