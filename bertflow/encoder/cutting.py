"""What an encoder does not read of a text: sentences longer than it takes, and words that it does not know."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bertflow.encoder.abstract import SentenceEncoder
from bertflow.encoder.architecture import longest_input
from bertflow.encoder.batching import tokenize
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.similarity import COSINE

COMPARED = 64
"""Number of cut sentences that are read twice: cut, and as long as the model can read."""
MOST_TOKENS = 512
"""Largest number of tokens that are then read."""
WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|[^\W\d_]+")
"""A word of letters; of Chinese and Japanese, which have no spaces, one sign."""


@dataclass(frozen=True)
class Cut:
    """What ``max_length`` does to a text.

    Attributes:
        n: Number of sentences.
        cut: How many of them are longer than ``max_length``, and are cut.
        max_length: Tokens that are read.
        longer: Tokens up to which a sample of the cut sentences was read as well; None where the model reads no more.
        cosine: Median cosine between the two embeddings of a sentence, cut and longer.
        others: Median cosine between the embeddings of two different ones; None for fewer than two.
    """

    n: int
    cut: int
    max_length: int
    longer: int | None = None
    cosine: float | None = None
    others: float | None = None

    def __str__(self) -> str:
        """One line."""
        if not self.cut:
            return f"no text is truncated (limit: {self.max_length} tokens)"
        share = f"{100 * self.cut / self.n:.2g} % of the sentences ({self.cut:,} of {self.n:,})"
        said = f"{share} are longer than max_length ({self.max_length} tokens) and are cut"
        if self.longer is None:
            return f"{said}; this is the model's limit, so encode them in parts: --chunks tokens:{self.max_length}"
        compared = f"their embedding up to {self.longer} tokens has a cosine of {self.cosine:.2f} with the present one"
        if self.others is not None:
            compared += f" (median; two different sentences: {self.others:.2f})"
        return f"{said}; {compared}. To read more of them: --max_length {self.longer}"


def unknown_share(encoder: SentenceEncoder, sentences: Sequence[str]) -> float:
    """Share of the tokens that stand for words which the tokenizer does not know, in [0, 1]; 0 where it has none."""
    if not isinstance(encoder, TransformerEncoder):
        return 0.0
    text = tokenize(sentences, encoder.tokenizer, None)
    ids = text.ids[~text.special]
    return float((ids == encoder.tokenizer.unk_token_id).mean()) if ids.size else 0.0


def tokens_per_word(encoder: SentenceEncoder, sentences: Sequence[str]) -> float:
    """Mean number of tokens of a word of letters; 1 where there are no tokens or no words."""
    words = [WORD.findall(sentence) for sentence in sentences]
    n = sum(map(len, words))
    if not isinstance(encoder, TransformerEncoder) or not n:
        return 1.0
    return float((~tokenize([*map(" ".join, words)], encoder.tokenizer, None).special).sum()) / n


def measure_cut(encoder: SentenceEncoder, sentences: Sequence[str], seed: int = 0) -> Cut | None:
    """How many of some sentences are cut, and how far that moves a sample of them.

    Returns:
        None for an encoder that reads texts whole: word vectors, chunks, vectors from a file.
    """
    if not isinstance(encoder, TransformerEncoder) or encoder.spec.chunks is not None:
        return None
    tokenizer, max_length = encoder.tokenizer, encoder.spec.max_length
    prompted = [encoder.spec.prompts["document"] + sentence for sentence in sentences]
    lengths = tokenize(prompted, tokenizer, None).lengths
    cut = np.flatnonzero(lengths > max_length)
    sample = np.random.default_rng(seed).permutation(cut)[:COMPARED]
    longest = min(longest_input(encoder.spec.folder.shape), tokenizer.model_max_length, MOST_TOKENS)
    if not len(cut) or longest <= max_length:
        return Cut(len(sentences), len(cut), max_length)
    longer = int(min(longest, lengths[sample].max()))
    texts = [tokenize([prompted[row] for row in sample], tokenizer, tokens) for tokens in (max_length, longer)]
    before, after = (encoder.vectors([text], range(len(sample)), progress=False)[0] for text in texts)
    cosine = COSINE.paired
    others = float(np.median(cosine(after[:-1], after[1:]))) if len(sample) > 1 else None
    return Cut(len(sentences), len(cut), max_length, longer, float(np.median(cosine(before, after))), others)
