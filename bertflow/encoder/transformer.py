"""The encoders that read text with a model: a frozen transformer with a pooling, and its word embeddings alone.

sentences -> tokens -> the blocks that are needed            -> pool -> x (n x dim), float32
sentences -> tokens -> rows of the embedding matrix          -> pool -> x
"""

import copyreg
import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from bertflow.array_types import Float32, Int64
from bertflow.encoder.abstract import Role
from bertflow.encoder.architecture import quiet_transformers
from bertflow.encoder.batching import Batch, TokenizedText
from bertflow.encoder.device import sent
from bertflow.encoder.folders import DEFAULTS, ModelFolder, Prompts, write_facts
from bertflow.encoder.locating import open_model
from bertflow.encoder.model import BlockStack, digest_of, for_others, word_embeddings
from bertflow.encoder.pooling import STATIC_POOLINGS, TEMPLATED, TOKEN_REDUCTIONS, parse_pooling
from bertflow.encoder.reading import AbstractTokenEncoder
from bertflow.encoder.seen_text import Supervision, TokenCounts
from bertflow.encoder.spec import EncoderSpec
from bertflow.errors import UsageError
from bertflow.places import expand
from bertflow.registry import lookup, own_modules


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
        token_counts: Counts by word or by token id, for ``sif``. Or call ``count_tokens``.
        chunks: How longer texts are read whole instead: split, and pooled over their chunks, as ``tokens:126:0:mean``
            (``bertflow.encoder.chunks``). By default the saved encoder's, else not at all; ``""`` switches it off.
        template: Text with {} and [MASK], for ``mask`` and ``denoised-mask`` (``bertflow.encoder.template``).

    Attributes:
        dim: Width of an embedding.
        recipe: The arguments that open it again, ready for JSON.
        device: Where the model is.
        supervision: The labels that it was fine-tuned on; None if none are known.

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
        super().__init__(EncoderSpec.of(model, pooling, max_length, device, dtype, revision, prompt, chunks, template))
        self.counts, self.supervision = _seen_in(self.spec.folder)
        self._lent, self._as_read = False, ""  # a digest of the weights once others have the model and may change them
        if token_counts is not None:
            self.counts = TokenCounts.given(token_counts, self.tokenizer)

    def with_pooling(self, pooling: str) -> "TransformerEncoder":
        """The encoder with another pooling, opened from its folder: with only the counts that the folder holds.

        Where the same layers are read, nothing is loaded again: both have the same weights, until ``model`` is asked
        for.
        """
        row = parse_pooling(pooling)
        alike = {*row.resolve(self.spec.folder.blocks)} == {*self.spec.layers}
        alike = alike and "pooler" not in (row.tokens, self.pooling.tokens)
        if not alike or self._as_read or self.spec.template or row.tokens in TEMPLATED:
            return TransformerEncoder(**{**self.recipe, "pooling": pooling})
        self._lent = True
        other = _as_specified(self, replace(self.spec, pooling=row))
        other._stacks = self._stacks
        other.counts, other.supervision = _seen_in(self.spec.folder)
        return other

    def encode_poolings(
        self, sentences: Sequence[str], poolings: Sequence[str], progress: bool | None = None, role: Role = "document"
    ) -> dict[str, Float32]:
        """Several poolings of the same sentences from one pass, whatever the encoder's own is.

        Args:
            sentences: As for ``encode``.
            poolings: Names or rows written out; the keys of what comes back.
            progress: Show a bar; by default in a terminal or a notebook, for work that takes over a second.
            role: What the sentences are.
        """
        rows = [parse_pooling(spelling) for spelling in poolings]
        return dict(zip(poolings, self._by_poolings(sentences, rows, role, progress, None), strict=True))

    def embed(self, sentences: Sequence[str], dropout: bool = False) -> Tensor:
        """The sentences of one step, as a tensor on the device: for training with the encoder in the loop.

        They are read in batches of about one length, as in ``encode``: of a random batch, most would be padding.

        Args:
            sentences: As for ``encode``.
            dropout: Whether the model's dropout is on, as when BERT-flow was fitted. The weights stay as they are.

        Returns:
            (n, dim), float32, without gradients.
        """
        if self.spec.chunks:
            raise UsageError("embed reads whole sentences. Use encode, or open the encoder with chunks=''.")
        x = torch.empty(len(sentences), self.dim, device=self.device)
        if not len(sentences):
            return x
        self.stack.model.train(dropout)
        try:
            for rows, made in self.run([self._tokenize(sentences)], self.embed_batch, len(sentences)):
                x[sent(torch.from_numpy(rows), x.device)] = made
        finally:
            self.stack.model.eval()
        return x

    @property
    def model(self) -> PreTrainedModel:
        """The blocks in use, in eval mode, for training in place: the weights may then differ from those on disk.

        If they do, ``describe`` tells of other weights, so that nothing of the encoder as it was fits it any longer.
        It can be pickled until inner layers are read again.
        """
        if self._lent:  # encoders of other poolings have the same weights, which should stay as they are
            self._stacks, self._lent = [], False
        self._as_read = self._as_read or digest_of(self.stack.model)
        return for_others(self.stack.model)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles hold the recipe, not the weights, which are read again; unless they may have changed."""
        if self._as_read:
            for_others(self.stack.model)
            return copyreg.__newobj__, (type(self),), self.__dict__  # type: ignore[attr-defined]
        kept = {"counts": self.counts, "supervision": self.supervision}
        given = expand(self.recipe["model"])
        place = {"model": str(given.resolve())} if given.is_dir() else {}
        return functools.partial(type(self), **{**self.recipe, **place}), (), kept

    def padded(self, text: TokenizedText, rows: Int64) -> Batch:
        """Some tokenized sentences as one batch, on the CPU."""
        return text.batch(rows, self.spec.folder.pad_id)

    def embed_batch(self, batch: Batch) -> Tensor:
        """One batch (n, dim), float32, with gradients where torch keeps them; the model is run in the mode it is in."""
        return self._pooled(self.stack, [self.pooling], batch)[0]

    def _facts(self) -> dict[str, Any]:
        weights = digest_of(self.stack.model) if self._as_read else ""
        return self.spec.facts | ({"weights": weights} if weights != self._as_read else {})

    def write(self, folder: Path) -> None:
        """Write the blocks in use, the tokenizer, and what describes them: all that makes equal embeddings."""
        own = self.spec.folder
        with quiet_transformers():
            self.stack.model.save_pretrained(folder)
            (replace(own) if self.spec.template else own).tokenizer.save_pretrained(folder)
        for seen in (self.counts, self.supervision):
            if seen is not None:
                seen.write(folder)
        beside = {"license": own.license, "imports": own_modules(TOKEN_REDUCTIONS.get(self.pooling.tokens, ""))}
        write_facts(folder, self.describe() | {key: value for key, value in beside.items() if value})


def in_dtype(encoder: TransformerEncoder, dtype: str) -> TransformerEncoder:
    """The encoder in another precision; its weights are read again from its folder."""
    return _as_specified(encoder, replace(encoder.spec, dtype=dtype))


def _as_specified(encoder: TransformerEncoder, spec: EncoderSpec) -> TransformerEncoder:
    """The encoder with another specification of the same folder, which is not opened again."""
    other = object.__new__(TransformerEncoder)
    vars(other).update(vars(encoder), _as_read="")
    AbstractTokenEncoder.__init__(other, spec)
    return other


def _seen_in(folder: ModelFolder) -> tuple[TokenCounts | None, Supervision | None]:
    """The text that a saved encoder has seen."""
    return TokenCounts.read(folder) if folder.record else None, Supervision.read(folder.path, folder.record)


class StaticEncoder(AbstractTokenEncoder):
    """The word embeddings of a transformer, averaged: the same word has the same vector in every sentence.

    No position, no segment, no LayerNorm and no block is used. What ``mean(0)`` pools is something else: the output of
    the embedding layer, which adds position and segment vectors and normalizes.

    Args:
        model: A hub id or a folder.
        pooling: A row of ``STATIC_POOLINGS``.
        max_length: Longest sentence, in tokens, special ones included; by default the folder's own, else 128.
        revision: Branch, tag or commit, for a hub id.

    Attributes:
        dim: Width of a word embedding.

    Raises:
        UnknownNameError: For an unknown pooling.
        DataError: For a folder that is missing, incomplete or damaged.
    """

    def __init__(
        self, model: str | Path, pooling: str = "content", max_length: int | None = None, revision: str | None = None
    ) -> None:
        row, folder = lookup("pooling of static vectors", STATIC_POOLINGS, pooling), open_model(model, revision)
        length = max_length or folder.saved["max_length"] or DEFAULTS["max_length"]
        asked = {"model": str(model), "device": "cpu", "revision": revision, "prompt": None}
        super().__init__(EncoderSpec(asked, folder, row, length, torch.device("cpu"), folder.prompts("")))
        self.recipe = {"model": str(model), **self._said(), "revision": revision}

    @property
    def width(self) -> int:
        """Width of a word embedding."""
        return int(word_embeddings(self.spec.folder.shape).shape[1])

    def layers(self, stack: BlockStack, batch: Batch, wanted: Iterable[int]) -> dict[int, Tensor]:
        """The word embeddings of a batch, (batch, token, dim), as layer 0."""
        return {0: word_embeddings(stack.model)[batch.ids]}

    def _said(self) -> dict[str, Any]:
        return {"pooling": f"static-{self.pooling.tokens}", "max_length": self.spec.max_length}

    def _facts(self) -> dict[str, Any]:
        return {"encoder": self.spec.folder.name, "weights": self.spec.folder.weights_hash, **self._said()}
