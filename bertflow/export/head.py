"""A pooling that needs nothing but what every server has: hidden states, token ids and a mask.

    before        how many special tokens stand before the text       content = mask, without the first ``before``
    after         and how many behind it                              and the last ``after`` tokens of the sentence

It is the same ``pool`` that the encoder runs, so a new row of ``POOLINGS`` needs nothing here.
"""

from collections.abc import Mapping, Sequence

from torch import Tensor, nn

from bertflow.encoder.pooling import COUNTED, Pooling, TokenViews, pool


class PoolingHead(nn.Module):
    """Hidden states -> one vector a sentence.

    Args:
        layers: Indices from 0 of the layers that are read, in the pooling's order.
        join: A row of ``JOINS``.
        tokens: A row of ``TOKEN_REDUCTIONS``.
        before: Special tokens before the text.
        after: Special tokens behind it.
        weights: For ``sif`` and ``soft-sif``: the weight of each token id, (vocabulary,).
    """

    token_weights: Tensor | None

    def __init__(
        self,
        layers: Sequence[int],
        join: str = "mean",
        tokens: str = "mean",
        before: int = 1,
        after: int = 1,
        weights: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.pooling = Pooling(tuple(layers), join, tokens)
        self.before, self.after = before, after
        self.register_buffer("token_weights", weights)

    def forward(self, layers: Mapping[int, Tensor], ids: Tensor, mask: Tensor) -> Tensor:
        """The embeddings of a batch.

        Args:
            layers: The layers that are read, by their index; each (batch, token, dim).
            ids: Token ids; (batch, token).
            mask: Not zero at tokens, zero at padding, on whichever side it is; (batch, token).

        Returns:
            (batch, dim), float32.
        """
        mask = mask != 0
        content = self._content(mask)
        views = TokenViews(mask, content, self._counted(ids, content))
        return pool([layers[layer] for layer in self.pooling.layers], views, self.pooling)

    def _content(self, mask: Tensor) -> Tensor:
        place = mask.long().cumsum(1)  # 1 for a sentence's first token
        length = mask.long().sum(1, keepdim=True)
        content = mask & (place > self.before) & (place <= length - self.after)
        # A sentence without text is embedded by its special tokens.
        return content | (mask & (length <= self.before + self.after))

    def _counted(self, ids: Tensor, content: Tensor) -> Mapping[str, Tensor] | None:
        if self.pooling.tokens not in COUNTED or self.token_weights is None:
            return None
        return {self.pooling.tokens: self.token_weights[ids] * content}
