"""A word in its sentence, its static vector, and what an input embedding is made of.

    static       the word alone          -> its pieces -> rows of the embedding matrix     -> reduce -> one vector
    contextual   the word in a sentence  -> its pieces -> layers, at those pieces alone    -> pool   -> one vector

A pooling is the row that it is for sentences, with the pieces of one word in the place of a sentence's tokens: by
``mean(3)`` a word is the mean of its pieces at layer 3, by ``cls(3)`` the first of them.

The sum that BERT calls an input embedding can be taken apart:

    word[id] + position[place] + segment[0 or 1]   --LayerNorm-->   layer 0

Not every family has all terms: DistilBERT and MPNet have no segments, GPT-2 no LayerNorm, ModernBERT turns positions
into rotations of later layers, ELECTRA and ALBERT project the narrow sum to the width of their blocks. The terms are
found by the names of modules, and accepted only if the sum put together again is the model's layer 0.
"""

import functools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import groupby, product
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from bertflow.array_types import Float32
from bertflow.encoder.architecture import longest_input
from bertflow.encoder.locating import open_model
from bertflow.encoder.model import BlockStack, word_embeddings
from bertflow.encoder.pooling import Pooling, TokenViews, pool
from bertflow.encoder.words import of_words
from bertflow.errors import DataError, UsageError, reason_of
from bertflow.similarity import COSINE
from bertflow.tables import shortened
from bertflow.words.study import Mention
from bertflow.words.tokens import Tokens, find_word, normalize, read_tokens, spelled_alike, stack_tokens, whole_words

NAMES: Mapping[str, tuple[str, ...]] = {
    "word": ("embeddings.word_embeddings", "embeddings.tok_embeddings", "wte"),
    "position": ("embeddings.position_embeddings", "wpe"),
    "segment": ("embeddings.token_type_embeddings",),
    "norm": ("embeddings.LayerNorm", "embeddings.norm"),
    "projection": ("embeddings_project", "encoder.embedding_hidden_mapping_in"),
}
"""Step of the input embedding -> its names in transformers; the first that a model has counts."""
TERMS = ("word", "position", "segment")
"""The steps that are added up; the others act on the sum, in the order of ``NAMES``."""
TOLERANCE = 1e-5
"""Tolerance of the check against the model's layer 0, a share of the largest number there; the model is float32."""


class InputSum:
    """The steps of a model's input embedding; ``check`` says whether these are all.

    Attributes:
        steps: Steps of ``NAMES`` that the model has.
        segments: How many segments the model tells apart; 0 where it is not told.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        modules: Mapping[str, Any] = dict(model.named_modules())
        self.steps = {
            step: modules[name] for step, names in NAMES.items() for name in reversed(names) if name in modules
        }
        self.segments = int(self.steps["segment"].num_embeddings) if "segment" in self.steps else 0
        self._family = str(model.config.model_type)

    @property
    def absent(self) -> list[str]:
        """What BERT's sum has and this model does not: terms, or the norm."""
        return [step for step in (*TERMS, "norm") if step not in self.steps]

    def rows(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Row of each term's matrix that the model gives each token; (text, token).

        RoBERTa and its kin count positions from behind the padding index, and give padding that index itself.
        """
        ids = inputs["input_ids"]
        positions = torch.arange(ids.shape[1]).expand(ids.shape)
        padding = getattr(self.steps.get("position"), "padding_idx", None)
        if padding is not None:
            counted = ids.ne(padding)
            positions = counted.cumsum(1) * counted + padding
        return dict(zip(TERMS, (ids, positions, inputs["token_type_ids"]), strict=True))

    @torch.no_grad()
    def terms(self, rows: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What is added up, by its name in ``TERMS``; each (text, token, dim)."""
        return {term: self.steps[term](rows[term]) for term in TERMS if term in self.steps}

    @torch.no_grad()
    def put_together(self, terms: Mapping[str, Tensor]) -> Tensor:
        """Layer 0 of some terms: their sum, normalized and projected where the model does that."""
        total = torch.stack(list(terms.values())).sum(0)
        for step in ("norm", "projection"):
            total = self.steps[step](total) if step in self.steps else total
        return total

    def check(self, inputs: Mapping[str, Tensor], layer_0: Tensor) -> float:
        """Whether the steps are all there is.

        Args:
            inputs: Some texts.
            layer_0: What the model made of it; (text, token, dim).

        Returns:
            The largest difference, padding left out.

        Raises:
            UsageError: If the sum is not the model's layer 0.
        """
        if "word" not in self.steps:
            raise self._refused(
                f"it has none of {', '.join(NAMES['word'])}. "
                "Choose a model such as BERT, RoBERTa, MPNet, DistilBERT or ELECTRA."
            )
        other = (
            f"{' + '.join(self.steps)} put together again should be its layer 0, but {{}}. "
            "It is made in another way; `bertflow words` works all the same."
        )
        try:
            made = self.put_together(self.terms(self.rows(inputs)))
        except RuntimeError as error:
            raise self._refused(other.format(f"they do not fit ({reason_of(error)})")) from error
        if made.shape != layer_0.shape:
            raise self._refused(other.format(f"it is {made.shape[-1]} wide, not {layer_0.shape[-1]}"))
        mask = inputs["attention_mask"].bool()
        difference = float((made - layer_0)[mask].abs().max())
        if difference > TOLERANCE * float(layer_0[mask].abs().max()):
            raise self._refused(other.format(f"they differ by up to {difference:.2g}"))
        return difference

    def _refused(self, why: str) -> UsageError:
        return UsageError(f"The input embedding of a model of type {self._family} cannot be taken apart: {why}")


class WordEncoder:
    """A transformer that is asked about words and tokens rather than sentences; on the CPU, in float32.

    Args:
        model: A hub id or a folder.
        revision: Branch, tag or commit, for a hub id.

    Attributes:
        tokenizer: The model's own.
        blocks: Blocks that are in the folder; layers go from 0 (embedding layer) to this.

    Raises:
        UsageError: If the model cannot be loaded, or is not a single stack of blocks.
        DataError: For a folder that is missing, incomplete or damaged.
    """

    def __init__(self, model: str | Path, revision: str | None = None) -> None:
        self._folder = open_model(model, revision)
        self.tokenizer = self._folder.tokenizer
        self.blocks = int(self._folder.config.num_hidden_layers)

    @functools.cached_property
    def stack(self) -> BlockStack:
        """All blocks of the model; loaded when they are needed."""
        return BlockStack.load(self._folder, [Pooling((self.blocks,))])

    @functools.cached_property
    def input_sum(self) -> InputSum:
        """What the model's input embedding is made of."""
        return InputSum(self.stack.model)

    def tokenize(self, text: str, second: str | None = None, segment: int | None = None) -> Tokens:
        """Cut a text, or a pair, as the model reads it.

        Args:
            text: The text, or the first of a pair.
            second: The second of a pair.
            segment: Given to every token; by default the model's own way: 0, and 1 in the second of a pair.

        Raises:
            UsageError: If the model does not know that segment.
            DataError: If the text is longer than the model can read, or has no tokens.
        """
        known = InputSum(self._folder.shape).segments
        if segment is not None and not 0 <= segment < known:
            has = f"it knows segments 0 to {known - 1}" if known else "it has no segments"
            raise UsageError(
                f"Segment {segment} was asked for, but this is a {self._folder.config.model_type}, and {has}. "
                "Leave it out."
            )
        # Tokenizers count the texts of a pair also for models that are not told.
        if segment is None and known < 2:
            segment = 0
        tokens = read_tokens(self.tokenizer, text, second, segment)
        longest = longest_input(self._folder.shape)
        if len(tokens) > longest:
            raise DataError(
                f"The text {shortened(text, 60)!r} has {len(tokens)} tokens, and this model reads {longest}. "
                "Shorten it."
            )
        return tokens

    @torch.no_grad()
    def layers(self, texts: Sequence[Tokens]) -> tuple[dict[str, Tensor], Mapping[int, Tensor]]:
        """Several texts side by side, and all layers from 0, each (text, token, dim)."""
        inputs = stack_tokens(texts, self._folder.pad_id)
        ids, mask, segments = inputs.values()
        told: dict[str, Any] = {"token_type_ids": segments} if self.input_sum.segments else {}
        return inputs, self.stack.read(ids, mask, range(self.blocks + 1), **told)

    def find(self, mention: Mention) -> dict[str, Any]:
        """Where a word stands: its pieces, their places among the tokens of the sentence, and the segment of these.

        Raises:
            DataError: If it does not stand there, or not that often; the message names word, sentence and pieces.
        """
        tokens = self.tokenize(mention.sentence, segment=mention.segment)
        at = find_word(tokens, mention, self.tokenizer)
        return {"pieces": tokens.encoding.tokens[at.start : at.stop], "tokens": list(at), "segment": tokens.segments[0]}

    def contextual(self, mentions: Sequence[Mention], poolings: Sequence[str]) -> dict[str, Float32]:
        """One vector for each mention by each pooling; mentions of one sentence that follow one another share a pass.

        Args:
            mentions: Words in their sentences.
            poolings: Names or rows written out; the keys of what comes back, each (n, dim of the row).

        Raises:
            UsageError: For a layer out of range, and a pooling that is for sentences only.
            DataError: If a word is not in its sentence.
        """
        rows = {spelling: self._parse(spelling) for spelling in poolings}
        found = defaultdict(list)
        for (sentence, segment), group in groupby(mentions, key=attrgetter("sentence", "segment")):
            tokens = self.tokenize(sentence, segment=segment)
            layers = self.layers([tokens])[1]
            places = [find_word(tokens, mention, self.tokenizer) for mention in group]
            for at, (spelling, row) in product(places, rows.items()):
                read = [layers[layer][0, at] for layer in row.resolve(self._folder.blocks)]
                found[spelling].append(_pool_pieces(read, row))
        return {spelling: np.array(vectors) for spelling, vectors in found.items()}

    def static(self, words: Sequence[str], pooling: str = "mean") -> Float32:
        """One vector for each word: rows of the embedding matrix, no position, no segment, no LayerNorm; (n, dim).

        Args:
            words: Without a sentence; cut as they would be inside one.
            pooling: How several pieces become one vector; the layers of a row do not matter here.

        Raises:
            DataError: If a word has no pieces.
        """
        row = Pooling((0,), tokens=self._parse(pooling).tokens)
        matrix = word_embeddings(self.stack.model)
        return np.array([_pool_pieces([matrix[spelled_alike(self.tokenizer, word)]], row) for word in words])

    def nearest(self, vector: Float32, without: Sequence[str], k: int = 10) -> dict[str, float]:
        """The words of the vocabulary whose static vectors are the most like a vector (dim,), and their cosines."""
        words, known = whole_words(self.tokenizer), {normalize(self.tokenizer, word) for word in without}
        matrix = word_embeddings(self.stack.model)[list(words.values())].numpy()
        cosines = COSINE.matrix(vector[None], matrix)[0]
        ranked = sorted(zip(cosines.tolist(), words, strict=True), reverse=True)
        return dict([(word, round(cosine, 4)) for cosine, word in ranked if word not in known][:k])

    def describe(self) -> dict[str, Any]:
        """All that decides the numbers, ready for JSON."""
        return {
            "encoder": self._folder.name,
            "weights": self._folder.weights_hash,
            "blocks": self.blocks,
            "family": self._folder.config.model_type,
        }

    def _parse(self, spelling: str) -> Pooling:
        row = of_words(spelling)
        self._folder.needed([row])
        return row


def _pool_pieces(layers: Sequence[Tensor], row: Pooling) -> Float32:
    """One vector of the pieces of a word, from the layers of a row; each (piece, dim)."""
    every = torch.ones(1, len(layers[0]), dtype=torch.bool)
    return np.asarray(pool([layer[None] for layer in layers], TokenViews(every, every), row)[0], np.float32)


def read_static_words(model: str | Path, revision: str | None = None) -> tuple[tuple[str, ...], Float32]:
    """The words (n) that a model's tokenizer keeps whole, and their static vectors (n, dim), without its blocks.

    Raises:
        DataError: If the folder is missing, incomplete or damaged.
    """
    folder = open_model(model, revision)
    words = whole_words(folder.tokenizer)
    matrix = word_embeddings(BlockStack.load(folder, [Pooling((0,))]).model)
    return tuple(words), matrix[list(words.values())].numpy()
