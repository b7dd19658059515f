"""The sum that BERT calls an input embedding, taken apart.

    word[id] + position[place] + segment[0 or 1]   --LayerNorm-->   layer 0

Two rows of layer 0 for one word differ by where it stands and on which side of a pair, not by its neighbors: those come
in with block 1. Not every family has all terms: DistilBERT and MPNet have no segments, GPT-2 no LayerNorm, ModernBERT
turns positions into rotations of later layers, ELECTRA and ALBERT project the narrow sum to the width of their blocks.
The terms are found by the names of modules, and believed only where the sum put together again is the model's layer 0.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from bertflow.encoder.model import first_line
from bertflow.errors import UsageError
from bertflow.words.tokens import TokenBatch

NAMES: Mapping[str, tuple[str, ...]] = {
    "word": ("embeddings.word_embeddings", "embeddings.tok_embeddings", "wte"),
    "position": ("embeddings.position_embeddings", "wpe"),
    "segment": ("embeddings.token_type_embeddings",),
    "norm": ("embeddings.LayerNorm", "embeddings.norm"),
    "projection": ("embeddings_project", "encoder.embedding_hidden_mapping_in"),
}
"""Where transformers keeps each step; the first name that a model has."""
TERMS = ("word", "position", "segment")
"""The steps that are added up; the others act on the sum, in the order of ``NAMES``."""
TOLERANCE = 1e-5
"""Of the check against the model's layer 0, relative to the largest number there; the model is float32."""


def count_segments(model: PreTrainedModel) -> int:
    """How many segments a model tells apart; 0 where it is not told."""
    modules: Mapping[str, Any] = dict(model.named_modules())
    return next((int(modules[name].num_embeddings) for name in NAMES["segment"] if name in modules), 0)


@dataclass(frozen=True)
class InputSum:
    """The steps of a model's input embedding, by the names of ``NAMES``; what it has not is absent."""

    steps: Mapping[str, Any]

    @classmethod
    def find(cls, model: PreTrainedModel) -> "InputSum":
        """Look for the steps; whether they are all, ``check`` says.

        Raises:
            UsageError: If the model has no matrix of word embeddings under a known name.
        """
        modules = dict(model.named_modules())
        steps = {
            step: next(modules[name] for name in names if name in modules)
            for step, names in NAMES.items()
            if not modules.keys().isdisjoint(names)
        }
        if "word" not in steps:
            raise UsageError(
                f"The input embedding of a model of type {model.config.model_type} cannot be taken apart: it has none "
                f"of {', '.join(NAMES['word'])}. Choose a model such as BERT, RoBERTa, MPNet, DistilBERT or ELECTRA."
            )
        return cls(steps)

    @property
    def absent(self) -> tuple[str, ...]:
        """What BERT's sum has and this model has not: terms, or the norm."""
        return tuple(step for step in (*TERMS, "norm") if step not in self.steps)

    def positions(self, ids: Tensor) -> Tensor:
        """The row of the position matrix that the model gives each token; (text, token).

        RoBERTa and its kin count from behind the padding index, and give padding that index itself.
        """
        padding = getattr(self.steps.get("position"), "padding_idx", None)
        if padding is None:
            return torch.arange(ids.shape[1]).expand(ids.shape)
        counted = ids.ne(padding)
        return counted.cumsum(1) * counted + padding

    def terms(self, ids: Tensor, positions: Tensor, segments: Tensor) -> dict[str, Tensor]:
        """What is added up, by its name; each (text, token, dim)."""
        rows = dict(zip(TERMS, (ids, positions, segments), strict=True))
        with torch.no_grad():
            return {term: self.steps[term](row) for term, row in rows.items() if term in self.steps}

    def put_together(self, terms: Mapping[str, Tensor]) -> Tensor:
        """Layer 0 of some terms: their sum, normalized and projected where the model does that."""
        total = torch.stack(list(terms.values())).sum(0)
        with torch.no_grad():
            for step in ("norm", "projection"):
                total = self.steps[step](total) if step in self.steps else total
        return total

    def check(self, batch: TokenBatch, layer_0: Tensor, family: str) -> float:
        """Whether the steps are all there is.

        Args:
            batch: Some text.
            layer_0: What the model made of it; (text, token, dim).
            family: The model's type, for the message.

        Returns:
            The largest difference, padding left out.

        Raises:
            UsageError: If the sum is not the model's layer 0.
        """
        try:
            made = self.put_together(self.terms(batch.ids, self.positions(batch.ids), batch.segments))
        except RuntimeError as error:
            raise UsageError(_other_sum(family, self.steps, f"they do not fit ({first_line(error)})")) from error
        if made.shape != layer_0.shape:
            raise UsageError(_other_sum(family, self.steps, f"it is {made.shape[-1]} wide, not {layer_0.shape[-1]}"))
        difference = float((made - layer_0)[batch.mask].abs().max())
        if difference > TOLERANCE * float(layer_0[batch.mask].abs().max()):
            raise UsageError(_other_sum(family, self.steps, f"they differ by up to {difference:.2g}"))
        return difference


def _other_sum(family: str, steps: Iterable[str], how: str) -> str:
    return (
        f"The input embedding of a model of type {family} cannot be taken apart: {' + '.join(steps)} put together "
        f"again should be its layer 0, but {how}. It is made in another way; `bertflow words` works all the same."
    )
