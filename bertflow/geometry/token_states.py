"""Every token of some sentences in every layer of a transformer: what measures of contextual vectors look at.

Special tokens are left out. All layers are in memory, (layers + 1) x tokens x dim x 4 bytes, so this is for a sample of
sentences: 500 of twenty tokens take 0.4 GB of a BERT-base.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from bertflow.encoder.abstract import check_sentences
from bertflow.encoder.batching import tokenize
from bertflow.encoder.checkpoint import Checkpoint
from bertflow.encoder.devices import TOKEN_BUDGETS, resolve_device
from bertflow.encoder.folders import open_model
from bertflow.encoder.pooling import Pooling
from bertflow.encoder.truncated import BlockStack


@dataclass(frozen=True)
class TokenStates:
    """The t tokens of some sentences, by layer.

    Attributes:
        tokens: Token ids (t,).
        sentences: Which sentence each stands in (t,).
        layers: Vectors (t, dim), float32, of each layer from 0, the embedding layer, on.
    """

    tokens: NDArray[np.int64]
    sentences: NDArray[np.int64]
    layers: tuple[NDArray[np.float32], ...]


def read_token_states(
    model: str | Path,
    sentences: Sequence[str],
    max_length: int = 64,
    revision: str | None = None,
    device: str = "auto",
) -> TokenStates:
    """Run a transformer, and keep the vectors of all tokens in all layers.

    Args:
        model: A hub id or a folder.
        sentences: A sample.
        max_length: Longest sentence, in tokens, special ones included.
        revision: Branch, tag or commit, for a hub id.
        device: Where it runs.

    Raises:
        DataError: For a folder that is missing, incomplete or damaged, or something that is no text.
    """
    check_sentences(sentences)
    checkpoint, place = Checkpoint.read(open_model(model, revision)), resolve_device(device)
    layers = tuple(range(checkpoint.config.num_hidden_layers + 1))
    stack = checkpoint.load([Pooling(layers)], torch.float32, place)
    text = tokenize(sentences, checkpoint.tokenizer, min(max_length, stack.longest_input()))
    tokens, rows, parts = [], [], []
    for batch in text.batches(TOKEN_BUDGETS.get(place.type, TOKEN_BUDGETS["cpu"]), checkpoint.pad_id):
        tokens.append(batch.ids[batch.content].numpy())
        rows.append(np.repeat(batch.rows, batch.content.sum(1).numpy()))
        moved = batch.to(place)
        parts.append(_read(stack, moved.ids, moved.mask, moved.content, layers))
    order = np.argsort(np.concatenate(rows), kind="stable")
    return TokenStates(
        np.concatenate(tokens)[order],
        np.concatenate(rows)[order],
        tuple(np.concatenate([part[layer] for part in parts])[order] for layer in layers),
    )


@torch.no_grad()
def _read(
    stack: BlockStack, ids: torch.Tensor, mask: torch.Tensor, content: torch.Tensor, layers: Sequence[int]
) -> list[NDArray[np.float32]]:
    states = stack.read({"input_ids": ids, "attention_mask": mask.long()}, layers)
    return [states.layers[layer][content].cpu().numpy() for layer in layers]
