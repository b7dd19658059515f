"""A template around every sentence: the hidden state of its mask is an embedding, which masked-word models learned.

    [CLS] This sentence of " A man is playing . " means [MASK] . [SEP]      mask             the mask's hidden state
    [CLS] This sentence of "                    " means [MASK] . [SEP]      denoised-mask    minus the template's own

What the template says by itself is its hidden state without a sentence, the tokens behind standing as far back as they
do behind the sentence: their positions leave room for it. So the bias depends on the length of the sentence alone.

The tokenizer puts the template around a sentence as it puts its special tokens: it is never cut, a longer sentence is.
Its tokens are special tokens to all that follows: ``content`` and ``sif`` leave them out, as do counts. A sentence is
tokenized by itself, as are both parts of the template. A mask written in a sentence is a mask to the model, but its
hidden state is not the one that is read.

Source: Jiang et al. 2022, "PromptBERT: Improving BERT Sentence Embeddings with Prompts", arXiv:2201.04337: the template
and "template denoising". The released code tokenizes the whole line, and puts a full stop behind sentences that end
without one, which is not done here.
"""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from tokenizers.processors import TemplateProcessing
from torch import Tensor
from transformers import PreTrainedModel

from bertflow.array_types import Int64
from bertflow.encoder.architecture import first_position
from bertflow.encoder.device import sent
from bertflow.encoder.folders import ModelFolder
from bertflow.encoder.model import BlockStack
from bertflow.encoder.pooling import DENOISED, TEMPLATED, Pooling, TokenViews
from bertflow.errors import UsageError

DEFAULT = 'This sentence of "{}" means [MASK] .'
"""PromptBERT's for BERT."""
SENTENCE, MASK = "{}", "[MASK]"
"""Place of the sentence, and of the mask, whatever the model's tokenizer calls it."""


@dataclass(frozen=True)
class Template:
    """A template in the tokens of a model.

    Attributes:
        text: The template as it was written.
        before: Token ids before the sentence, the model's special ones included.
        after: Token ids behind it, likewise.
        mask_at: Place of the mask: from 0 at the first token, or from -1 at the last where it stands behind.
    """

    text: str
    before: tuple[int, ...]
    after: tuple[int, ...]
    mask_at: int

    @classmethod
    def around(cls, folder: ModelFolder, pooling: Pooling, wanted: str | None) -> "Template | None":
        """The template of a pooling; the folder's tokenizer puts it around every text from now on.

        Args:
            folder: The model.
            pooling: The pooling; one that reads no mask has no template.
            wanted: Text with {} and [MASK]; by default the template of the saved encoder, else ``DEFAULT``.

        Raises:
            UsageError: If the pooling reads no mask and a template is given, the model has no mask, or the template
                does not hold both.
        """
        if pooling.tokens not in TEMPLATED:
            if wanted:
                raise UsageError(
                    f"A template is for the poolings {' and '.join(TEMPLATED)}, not {pooling}. Leave it out."
                )
            return None
        text = str(folder.record.get("template", DEFAULT)) if wanted is None else wanted
        if [text.count(part) for part in (SENTENCE, MASK)] != [1, 1]:
            raise UsageError(f"A template holds {SENTENCE} and {MASK} once each, as {DEFAULT!r}; got {text!r}.")
        tokenizer = folder.tokenizer
        if tokenizer.mask_token is None or not tokenizer.is_fast:
            lacks = "mask token" if tokenizer.mask_token is None else "tokenizer.json"
            raise UsageError(
                f"The pooling {pooling} is for models that learned masked words, and {folder.name} has no {lacks}. "
                "Use mean, or a model such as BERT or RoBERTa."
            )
        own = tokenizer("a", return_special_tokens_mask=True)
        first, behind = own["special_tokens_mask"].index(0), own["special_tokens_mask"][::-1].index(0)
        parts = (part.replace(MASK, tokenizer.mask_token) for part in text.split(SENTENCE))
        prefix, suffix = (tokenizer(part, add_special_tokens=False, verbose=False)["input_ids"] for part in parts)
        before = (*own["input_ids"][:first], *prefix)
        after = (*suffix, *own["input_ids"][len(own["input_ids"]) - behind :])
        place = (*before, *after).index(tokenizer.mask_token_id)
        found = cls(text, before, after, place if place < len(before) else place - len(before) - len(after))
        tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
            single=["before:0", "$A:0", "after:0"],
            special_tokens=[
                {"id": name, "ids": list(ids), "tokens": tokenizer.convert_ids_to_tokens(list(ids))}
                for name, ids in (("before", before), ("after", after))
            ],
        )
        return found

    def __len__(self) -> int:
        """Tokens beside the sentence, the model's special ones included."""
        return len(self.before) + len(self.after)

    def bias(self, stack: BlockStack, layers: Sequence[int], lengths: Tensor) -> Tensor:
        """The hidden states of the mask without a sentence, with room for ``lengths`` (n,) tokens; (layer, n, dim).

        Raises:
            UsageError: If the model cannot be told positions.
        """
        require_positions(stack.model)
        ids = sent(torch.from_numpy(np.array([*self.before, *self.after])), lengths.device).expand(len(lengths), -1)
        places = torch.arange(len(self), device=lengths.device) + first_position(stack.model)
        behind = torch.arange(len(self), device=lengths.device) >= len(self.before)
        positions = places + behind * lengths[:, None]
        whole = torch.ones_like(ids, dtype=torch.bool)
        states = stack.read(ids, whole, sorted({*layers}), ids.numel(), position_ids=positions)
        found = torch.stack([states[layer][:, self.mask_at].float() for layer in layers])
        return found * (lengths > 0)[:, None]  # an empty sentence is the template by itself, not nothing

    def views(
        self, views: TokenViews, pooling: Pooling, stack: BlockStack, layers: Sequence[int], lengths: Int64
    ) -> TokenViews:
        """The views of a batch, and what a pooling must know of the template.

        Args:
            views: Views of the batch.
            pooling: The pooling.
            stack: What runs.
            layers: Layers that the pooling reads.
            lengths: Tokens of each sentence, the template's included; (batch,).
        """
        if pooling.tokens != DENOISED:
            return replace(views, mask_at=self.mask_at)
        found = np.unique(lengths - len(self), return_inverse=True)
        own, which = (sent(torch.from_numpy(each), views.mask.device) for each in found)
        return replace(views, mask_at=self.mask_at, bias=self.bias(stack, layers, own)[:, which])


def require_positions(model: PreTrainedModel) -> None:
    """Refuse a model that cannot be told positions, which ``denoised-mask`` needs; its weights are not needed.

    Raises:
        UsageError: If it cannot.
    """
    if "position_ids" not in inspect.signature(model.forward).parameters:
        raise UsageError(
            f"The pooling {DENOISED} needs a model that can be told positions, and one of type "
            f"{model.config.model_type} cannot. Use mask."
        )
