"""From sentences to raw embeddings, with a frozen transformer.

sentences -> tokens -> batches of one length -> the blocks that are needed -> pool -> x (n x dim), float32
"""

import copyreg
import functools
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from bertflow.encoder.abstract import Role
from bertflow.encoder.batching import Batch, TokenizedText
from bertflow.encoder.device import resolve_device, sent
from bertflow.encoder.folders import Prompts, open_model, shown_prompts, write_facts
from bertflow.encoder.foreign import quiet_transformers
from bertflow.encoder.learned import Supervision, TokenCounts
from bertflow.encoder.length import choose_length
from bertflow.encoder.license import license_of
from bertflow.encoder.model import BlockStack, without_captures
from bertflow.encoder.pooling import TEMPLATED, parse_pooling
from bertflow.encoder.template import Template, described
from bertflow.encoder.token_encoder import AbstractTokenEncoder
from bertflow.errors import UsageError
from bertflow.onednn import prepacked

logger = logging.getLogger("bertflow")


class TransformerEncoder(AbstractTokenEncoder):
    """A frozen transformer and a pooling.

    A prompt is put in front of every sentence and is text like the rest: its tokens count in every pooling. A model
    whose tokenizer has no padding token (GPT-2) is padded with its end token, which the mask hides.

    An empty sentence is embedded by its special tokens; one longer than ``max_length`` is cut. How many are, is logged.

    Args:
        model: A hub id, a transformers or sentence-transformers folder, or one written by ``save``.
        pooling: A row of ``POOLINGS`` or one written out, as ``mean(1,2)``. By default the folder's own choice, else
            ``mean``.
        max_length: Longest sentence, in tokens, special ones included. By default that of the saved encoder or of the
            sentence-transformers folder, else 128, or what the model can read if that is less.
        device: ``auto`` (cuda, mps or cpu, whichever is there), or a name that is meant.
        dtype: Precision: ``float32`` (default), ``float16``, ``bfloat16``, or ``tf32``: float32 whose products a GPU
            rounds to TF32. Embeddings are float32 in any case.
        revision: Branch, tag or commit, for a hub id.
        prompt: Text that is put in front of every sentence, or the name of a prompt of a sentence-transformers folder;
            or one for each role, as ``{"query": "query: ", "document": "passage: "}``. By default the folder's own;
            ``""`` switches them off.
        token_counts: For ``sif``: counts by word or by token id. Or call ``count_tokens``.
        chunks: How longer texts are read whole instead: split, and pooled over their chunks, as ``tokens:126:0:mean``
            (``bertflow.encoder.chunks``). By default the saved encoder's, else not at all; ``""`` switches it off.
        template: For ``mask`` and ``denoised-mask``, with {} and [MASK] (``bertflow.encoder.template``); has a default.

    Attributes:
        dim: Width of an embedding.
        recipe: The arguments that open it again, ready for JSON.
        device: Where the model is.
        supervision: The labels that it was fine-tuned on; None where none are known of.

    Raises:
        UnknownNameError: For an unknown pooling or dtype.
        UsageError: For a layer, length or device that cannot be used.
        DataError: For a folder that is missing, incomplete or damaged.
    """

    def __init__(
        self,
        model: str | Path,
        pooling: str | None = None,
        max_length: int | None = None,
        device: str = "auto",
        dtype: str | None = None,
        revision: str | None = None,
        prompt: str | Prompts | None = None,
        token_counts: Mapping[str, int] | NDArray[Any] | None = None,
        chunks: str | None = None,
        template: str | None = None,
    ) -> None:
        self._folder = folder = open_model(model, revision)
        saved = folder.saved
        self._pooling = parse_pooling(folder.own_pooling() if pooling is None else pooling)
        self._template = Template.around(folder, self._pooling, template)
        self._dtype: str = saved["dtype"] if dtype is None else dtype
        self._prompts = folder.prompts(prompt)
        if prompt is None and folder.modules and any(self._prompts.values()):
            logger.info("%s has prompts, which are used: %s.", folder.name, shown_prompts(self._prompts))
        self.device = resolve_device(device)
        self._stack = BlockStack.load(folder, [self._pooling], self._dtype, self.device)
        self._max_length = choose_length(folder, self._stack.model, max_length)
        if spelling := saved.get("chunks", "") if chunks is None else chunks:
            fitted = self.fitted_chunks(spelling)
            self._chunks = replace(fitted, pool=fitted.pool or "mean")
        self._read_learned()
        self._may_change = self._lent = False
        if token_counts is not None:
            self._counts = TokenCounts.given(token_counts, self._folder.tokenizer)
        self.dim = self._pooling.width(self._stack.dim)
        self.recipe: dict[str, Any] = {
            "model": str(model),
            "pooling": str(self._pooling),
            "max_length": self._max_length,
            "device": device,
            "dtype": self._dtype,
            "revision": revision,
            "prompt": prompt if prompt is None or isinstance(prompt, str) else dict(prompt),
        }
        if spelling or "chunks" in saved:
            self.recipe["chunks"] = str(self._chunks or "")
        self.recipe |= described(self._template)

    def with_pooling(self, pooling: str) -> "TransformerEncoder":
        """The encoder with another pooling, as it is opened from its folder: with no counts but those that lie there.

        Where the same layers are read, nothing is loaded again: both have the same weights, until ``model`` is asked
        for.
        """
        row, blocks = parse_pooling(pooling), self._folder.blocks
        alike = {*row.resolve(blocks)} == {*self._pooling.resolve(blocks)}
        alike = alike and "pooler" not in (row.tokens, self._pooling.tokens)
        if not alike or self._may_change or self._template or row.tokens in TEMPLATED:
            return TransformerEncoder(**{**self.recipe, "pooling": pooling})
        self._lent = True
        other = object.__new__(TransformerEncoder)
        vars(other).update(vars(self))
        other._folder = self._folder.again()
        other._pooling, other.dim = row, row.width(self._stack.dim)
        other.recipe = {**self.recipe, "pooling": str(row)}
        other._read_learned()
        return other

    def _read_learned(self) -> None:
        self._counts = TokenCounts.read(self._folder) if self._folder.record else None
        self.supervision = Supervision.read(self._folder.path, self._folder.record)

    def encode_poolings(
        self, sentences: Sequence[str], poolings: Sequence[str], progress: bool | None = None, role: Role = "document"
    ) -> dict[str, NDArray[np.float32]]:
        """Several poolings of the same sentences from one pass, whatever the encoder's own is.

        Args:
            sentences: As for ``encode``.
            poolings: Names or rows written out; the keys of what comes back.
            progress: Show a bar; by default in a terminal or a notebook, for work that takes over a second.
            role: What the sentences are.
        """
        rows = [parse_pooling(spelling) for spelling in poolings]
        return dict(zip(poolings, self._pooled(sentences, rows, role, progress, None), strict=True))

    @torch.no_grad()
    def embed(self, sentences: Sequence[str], dropout: bool = False) -> Tensor:
        """The sentences of one step, as a tensor on the device: for training with the encoder in the loop.

        They are read in batches of about one length, as in ``encode``: of a random batch, most would be padding.

        Args:
            sentences: As for ``encode``.
            dropout: Whether the model's dropout is on, as when BERT-flow was fitted. The weights stay as they are.

        Returns:
            (n, dim), float32, without gradients.
        """
        if self._chunks:
            raise UsageError("embed reads whole sentences. Use encode, or open the encoder with chunks=''.")
        x = torch.empty(len(sentences), self.dim, device=self.device)
        if not len(sentences):
            return x
        self._stack.model.train(dropout)
        try:
            text = self._tokenize(sentences)
            run = self.budget.run(text, self._folder.pad_id, lambda batch: self.embed_batch(batch.to(self.device)))
            with prepacked(len(text.ids)):
                for batch, made in run:
                    x[sent(torch.from_numpy(batch.rows), x.device)] = made
        finally:
            self._stack.model.eval()
        return x

    @property
    def model(self) -> PreTrainedModel:
        """The blocks in use, in eval mode, for training in place: the weights may then be others than on disk.

        It can be pickled until inner layers are read again.
        """
        if self._lent:  # encoders of other poolings have the same weights, which should stay as they are
            self._stack = BlockStack.load(self._folder, [self._pooling], self._dtype, self.device)
            self._lent = False
        self._may_change = True
        return without_captures(self._stack.model)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles hold the recipe, not the weights, which are read again; unless they may have changed."""
        if self._may_change:
            without_captures(self._stack.model)
            return copyreg.__newobj__, (type(self),), self.__dict__  # type: ignore[attr-defined]
        kept = {name: self.__dict__[name] for name in ("_counts", "supervision")}
        given = Path(self.recipe["model"]).expanduser()
        place = {"model": str(given.resolve())} if given.is_dir() else {}
        return functools.partial(type(self), **{**self.recipe, **place}), (), kept

    def padded(self, text: TokenizedText, rows: NDArray[np.int64]) -> Batch:
        """Some tokenized sentences as one batch, on the CPU."""
        return text.batch(rows, self._folder.pad_id)

    def embed_batch(self, batch: Batch) -> Tensor:
        """One batch (n, dim), float32, with gradients where torch keeps them; the model is run in the mode it is in."""
        return self._run(self._stack, batch, [self._pooling])[0]

    def _facts(self) -> dict[str, Any]:
        facts = {
            "encoder": self._folder.name,
            "weights": self._folder.weights_hash,
            "blocks": self._folder.blocks,
            "pooling": str(self._pooling),
            "layers": list(self._pooling.resolve(self._folder.blocks)),
            "max_length": self._max_length,
            "dtype": self._dtype,
            "prompt": self._prompts["document"],
        }
        if self._prompts["query"] != self._prompts["document"]:
            facts["query_prompt"] = self._prompts["query"]
        return facts | ({"chunks": str(self._chunks)} if self._chunks else {}) | described(self._template)

    def write(self, folder: Path) -> None:
        """Write the blocks in use, the tokenizer, and what describes them: all that makes equal embeddings."""
        with quiet_transformers():
            self._stack.model.save_pretrained(folder)
            (replace(self._folder) if self._template else self._folder).tokenizer.save_pretrained(folder)
        for learned in (self._counts, self.supervision):
            if learned is not None:
                learned.write(folder)
        write_facts(folder, self.describe() | ({"license": said} if (said := license_of(self._folder)) else {}))
