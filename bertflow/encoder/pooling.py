"""A pooling is a row: which layers are read, how a layer's tokens become one vector, how the layers become one.

    hidden states --reduce the tokens of each layer--> one vector a layer --join--> one vector a sentence

Layers are literal indices: 0 is the output of the embedding layer, k that of block k, and negative ones count from the
end, -1 being the last. ``first-last-avg`` is block 1 and the last block, never the embedding layer (that one is
``emb-last-avg``): the literature uses one name for both.

Any row can be written out. The reduction stands before the layers and implies their mean; another join goes in front:

    mean(1,2)   cls(3)   sif(3)   content(1,-1)        sum(3,4)   concat(0,3)   concat-sif(0,3)

``sum`` and ``concat`` alone reduce tokens by ``mean``; a reduction without layers (``sif``, ``content``) reads the last
one. ``pooler`` is the odd one out: BERT's own tanh of [CLS], computed by the model from its last layer.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import torch
from torch import Tensor

from bertflow.array_types import Float64
from bertflow.errors import UnknownNameError, UsageError
from bertflow.registry import did_you_mean

Shares: TypeAlias = Float64
SIF_A = 1e-3
"""The a of a / (a + p(token)): Arora et al. 2017, "A simple but tough-to-beat baseline for sentence embeddings"."""


def _inverse(p: Shares, a: float) -> Shares:
    return a / (a + p)


def _inverse_of_known(p: Shares, a: float) -> Shares:
    """A token that is not in the corpus gets the mean weight of the tokens that are, not 1.

    Queries to a text of few words have words that it never has ("which ones are"), and at full weight they drowned the
    words that were asked for (benchmarks/EXPLORED.md).
    """
    weights = _inverse(p, a)
    weights[p == 0] = p @ weights
    return weights


COUNTED: Mapping[str, partial[Shares]] = {
    "sif": partial(_inverse, a=SIF_A),
    "soft-sif": partial(_inverse, a=1e-2),
    "faint-sif": partial(_inverse_of_known, a=1e-1),
}
"""Token reductions that weight a token by its frequency -> shares of the corpus to weights, (vocabulary,) each.
``soft-sif`` still hears frequent words, which is better where the corpus is narrow, and where calibration follows
(benchmarks/EXPLORED.md). ``faint-sif`` is for text of few words, and lowers only those of its templates."""
DENOISED = "denoised-mask"
TEMPLATED = ("mask", DENOISED)
"""Token reductions that read the mask of a template (``bertflow.encoder.template``)."""


@dataclass(frozen=True)
class TokenViews:
    """Which tokens of a batch count, and how much; and where a template has its mask.

    Attributes:
        mask: True where there is a token, False at padding; (batch, token).
        content: True at tokens of the text itself, special tokens left out; (batch, token). A sentence without
            content tokens has its special tokens here, so that it has an embedding.
        counted: Weights of the content tokens by rows of ``COUNTED``, zero elsewhere; (batch, token). None without
            counts.
        mask_at: Place of the template's mask: from 0 at the first token, or from -1 at the last. None without one.
        bias: For ``denoised-mask``: what the template by itself has there, in the layers that are read; (layer, batch,
            dim).
    """

    mask: Tensor
    content: Tensor
    counted: Mapping[str, Tensor] | None = None
    mask_at: int | None = None
    bias: Tensor | None = None


def _weighted_mean(tokens: Tensor, weights: Tensor) -> Tensor:
    weights = weights.to(tokens.dtype).unsqueeze(-1)
    # Padding may hold anything, also infinity, and zero times infinity is NaN: so it is filled, not only weighted.
    return (tokens * weights).masked_fill(weights == 0, 0).sum(1) / weights.sum(1)


def _at(tokens: Tensor, position: Tensor) -> Tensor:
    # Not len(tokens): a traced graph would keep the number of the batch that it was traced with.
    return tokens[torch.arange(tokens.shape[0], device=tokens.device), position]


def _counted(name: str, tokens: Tensor, views: TokenViews) -> Tensor:
    if views.counted is None:
        raise UsageError(f"The pooling {name} needs token counts. Call count_tokens(sentences), or give token_counts.")
    return _weighted_mean(tokens, views.counted[name])


def _first(views: TokenViews) -> Tensor:
    return views.mask.int().argmax(1)


def _end(views: TokenViews) -> Tensor:
    return views.mask.shape[1] - views.mask.flip(1).int().argmax(1)


def _template_mask(tokens: Tensor, views: TokenViews) -> Tensor:
    if views.mask_at is None:
        raise UsageError("The mask of a template is asked for, and this encoder has none. Open it with pooling mask.")
    start = _first(views) if views.mask_at >= 0 else _end(views)
    return _at(tokens, (start + views.mask_at).clamp(min=0))


TOKEN_REDUCTIONS: dict[str, Callable[[Tensor, TokenViews], Tensor]] = {
    "mean": lambda tokens, views: _weighted_mean(tokens, views.mask),
    "content": lambda tokens, views: _weighted_mean(tokens, views.content),
    **{name: partial(_counted, name) for name in COUNTED},
    "max": lambda tokens, views: tokens.masked_fill(~views.mask.unsqueeze(-1), -torch.inf).amax(1),
    "cls": lambda tokens, views: _at(tokens, _first(views)),
    "last-token": lambda tokens, views: _at(tokens, _end(views) - 1),
    **dict.fromkeys(TEMPLATED, _template_mask),
}
"""(batch, token, dim) -> (batch, dim). ``mean`` and ``max`` count special tokens, as the papers do; ``content``,
those of ``COUNTED`` do not. ``cls`` and ``last-token`` are the first and last token, padding left out, whichever
side it is on; ``mask`` is the mask of the encoder's template, ``denoised-mask`` the same less what the template has
there by itself."""

JOINS: Mapping[str, Callable[[list[Tensor]], Tensor]] = {
    "mean": lambda vectors: torch.stack(vectors).mean(0),
    "sum": lambda vectors: torch.stack(vectors).sum(0),
    "concat": lambda vectors: torch.cat(vectors, dim=-1),
}
"""Name -> how the vectors of layers become one. Reducing comes first, so ``max(1,2)`` is the mean of two maxima."""


@dataclass(frozen=True)
class Pooling:
    """How hidden states become one vector a sentence.

    Attributes:
        layers: Literal layer indices; 0 is the embedding layer, k the output of block k, -1 the last.
        join: A row of ``JOINS``.
        tokens: A row of ``TOKEN_REDUCTIONS``, or ``pooler``.
    """

    layers: tuple[int, ...] = (-1,)
    join: str = "mean"
    tokens: str = "mean"

    def __str__(self) -> str:
        """The one spelling of this row: its name where it has one, else written out."""
        for name, row in POOLINGS.items():
            if row == self:
                return name
        prefixes = [] if self.join == "mean" else [self.join]
        if self.tokens != "mean" or not prefixes:
            prefixes.append(self.tokens)
        return f"{'-'.join(prefixes)}({','.join(map(str, self.layers))})"

    @property
    def counted(self) -> bool:
        """Whether it needs token counts."""
        return self.tokens in COUNTED

    def resolve(self, blocks: int) -> tuple[int, ...]:
        """The layers as indices from 0 to ``blocks``.

        Raises:
            UsageError: If a layer is out of range; the message gives the range.
        """
        for layer in self.layers:
            if not -blocks - 1 <= layer <= blocks:
                raise UsageError(
                    f"Pooling {self} reads layer {layer}, but the encoder has {blocks} blocks. "
                    f"Layers go from 0 (embedding layer) to {blocks}, or from -1 (last) to {-blocks - 1}."
                )
        return tuple(layer % (blocks + 1) for layer in self.layers)

    def width(self, dim: int) -> int:
        """Width of an embedding made from layers ``dim`` wide."""
        return dim * len(self.layers) if self.join == "concat" else dim


POOLINGS: dict[str, Pooling] = {
    **{name: Pooling(tokens=name) for name in ("mean", "content", *COUNTED, "max", "cls", "pooler", "last-token")},
    **{name: Pooling(tokens=name) for name in TEMPLATED},
    "second-to-last": Pooling(layers=(-2,)),
    "last-2-avg": Pooling(layers=(-2, -1)),
    "first-last-avg": Pooling(layers=(1, -1)),  # block 1, not the embedding layer
    "emb-last-avg": Pooling(layers=(0, -1)),
    "sum-last-4": Pooling(layers=(-4, -3, -2, -1), join="sum"),
    "concat-last-4": Pooling(layers=(-4, -3, -2, -1), join="concat"),
}

STATIC_POOLINGS: Mapping[str, Pooling] = {
    name: Pooling((0,), tokens=name) for name in ("content", "mean", "sif", "max")
}
"""How static vectors of the tokens become one; ``mean`` and ``max`` count special tokens, the others do not."""


def parse_pooling(spelling: str) -> Pooling:
    """The row that a name or a written-out row stands for; spaces do not matter.

    Raises:
        UnknownNameError: If it is neither; the message lists the names and the forms.
    """
    text = "".join(spelling.split())
    if text in POOLINGS:
        return POOLINGS[text]
    tokens = "|".join(TOKEN_REDUCTIONS)
    match = re.fullmatch(
        rf"(?:(?P<join>sum|concat)(?:-(?={tokens})|(?=\()))?(?P<tokens>{tokens})?\((?P<layers>-?\d+(?:,-?\d+)*)\)", text
    )
    if match is None or not (match["join"] or match["tokens"]):
        raise UnknownNameError(
            f"Unknown pooling {spelling!r}. Known: {', '.join(POOLINGS)}; or a row of your own such as mean(1,2), "
            f"cls(3), sif(3), sum(3,4), concat(0,3), concat-sif(0,3), with any of {', '.join(TOKEN_REDUCTIONS)}."
            f"{'' if '(' in text else did_you_mean(text, POOLINGS)}"
        )
    layers = tuple(int(layer) for layer in match["layers"].split(","))
    return Pooling(layers, match["join"] or "mean", match["tokens"] or "mean")


def uncalibrated(pooling: str | None) -> str:
    """What an encoder without a calibrator is, in words; some of its poolings weight tokens by their counts."""
    return "weights tokens, no calibrator" if pooling and parse_pooling(pooling).counted else "no calibrator"


def pool(layers: Sequence[Tensor], views: TokenViews, pooling: Pooling) -> Tensor:
    """One vector a sentence, in float32.

    Args:
        layers: The layers the pooling reads, in its order; each (batch, token, dim).
        views: Which tokens count.
        pooling: The row.
    """
    vectors = [TOKEN_REDUCTIONS[pooling.tokens](layer.float(), views) for layer in layers]
    if pooling.tokens == DENOISED and views.bias is not None:
        vectors = [vector - bias for vector, bias in zip(vectors, views.bias, strict=True)]
    return JOINS[pooling.join](vectors)
