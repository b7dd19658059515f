"""How contextual are the vectors of a layer? Three measures, each beside its baseline in the same layer.

    self-similarity    mean cosine of the occurrences of one word in different sentences
    intra-sentence     mean cosine of a sentence's words with their mean
    MEV                share of a word's squared singular values in the first one: could one static vector do?
    baseline           the mean cosine of different words; for MEV, of as many occurrences of random words

In an anisotropic layer all vectors are alike, so a high self-similarity says little by itself: what counts is by how
much it exceeds the baseline. A word is a token, special ones left out; vectors are not centered, as in the source. The
source's baseline of MEV is that of one large sample; here random groups have the size of the word's own, since fewer
vectors always share more.

All layers of the sampled sentences are in memory, (layers + 1) x tokens x dim x 4 bytes: 500 sentences of twenty tokens
take 0.4 GB with a BERT-base.

Source: Ethayarajh 2019, arXiv:1909.00512, sections 3.3 and 3.4.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from bertflow.encoder.abstract import check_sentences
from bertflow.encoder.folders import open_model
from bertflow.encoder.model import TOKEN_BUDGETS, Batch, BlockStack, resolve_device, tokenize
from bertflow.encoder.pooling import Pooling
from bertflow.errors import DataError
from bertflow.geometry.cloud import Float64
from bertflow.geometry.report import GeometrySection

FEWEST = 5
"""Sentences that a word must stand in."""
MOST_WORDS = 500
"""Words that self-similarity and MEV look at."""
MOST_OCCURRENCES = 50
"""Occurrences of a word that are looked at."""
BASELINE = 1000
"""Different words that the baseline looks at, one occurrence of each."""


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
    folder, place = open_model(model, revision), resolve_device(device)
    layers = tuple(range(folder.config.num_hidden_layers + 1))
    stack = BlockStack.load(folder, [Pooling(layers)], device=place)
    text = tokenize(sentences, folder.tokenizer, min(max_length, stack.longest_input()))
    tokens, rows, parts = [], [], []
    for batch in text.batches(TOKEN_BUDGETS.get(place.type, TOKEN_BUDGETS["cpu"]), folder.pad_id):
        tokens.append(batch.ids[batch.content].numpy())
        rows.append(np.repeat(batch.rows, batch.content.sum(1).numpy()))
        parts.append(_read(stack, batch.to(place), layers))
    order = np.argsort(np.concatenate(rows), kind="stable")
    return TokenStates(
        np.concatenate(tokens)[order],
        np.concatenate(rows)[order],
        tuple(np.concatenate([part[layer] for part in parts])[order] for layer in layers),
    )


@dataclass(frozen=True)
class LayerGeometry:
    """One layer; cosines in [-1, 1], shares in [0, 1].

    Attributes:
        layer: 0 is the embedding layer.
        baseline: Mean cosine of different words in different sentences: the anisotropy of the layer.
        self_similarity: Mean over words.
        intra_sentence: Mean over sentences.
        mev: Mean over words.
        mev_baseline: Mean over groups of random words of the same sizes.
        words: How many words self-similarity and MEV looked at.
        sentences: How many sentences there are.
    """

    layer: int
    baseline: float
    self_similarity: float
    intra_sentence: float
    mev: float
    mev_baseline: float
    words: int
    sentences: int


def contextuality(states: TokenStates, seed: int = 0) -> tuple[LayerGeometry, ...]:
    """Every layer.

    Raises:
        DataError: If no word stands in ``FEWEST`` sentences.
    """
    rng = np.random.default_rng(seed)
    words = _occurrences(states, rng)
    if not words:
        raise DataError(f"No word stands in {FEWEST} of the sentences, so none can be compared with itself. Give more.")
    different = _one_of_each(states.tokens, rng)[:BASELINE]
    random = [rng.choice(len(states.tokens), size=len(rows), replace=False) for rows in words]
    spans = _spans(states.sentences)
    found = []
    for layer, vectors in enumerate(states.layers):
        x = np.asarray(vectors, dtype=np.float64)
        units = x / np.linalg.norm(x, axis=1, keepdims=True)
        found.append(
            LayerGeometry(
                layer=layer,
                baseline=_mean_cosine(units[different]),
                self_similarity=float(np.mean([_mean_cosine(units[rows]) for rows in words])),
                intra_sentence=float(np.mean([_to_the_mean(x[span], units[span]) for span in spans])),
                mev=float(np.mean([explained_by_first(x[rows]) for rows in words])),
                mev_baseline=float(np.mean([explained_by_first(x[rows]) for rows in random])),
                words=len(words),
                sentences=len(spans),
            )
        )
    return tuple(found)


def explained_by_first(x: Float64) -> float:
    """MEV: the largest squared singular value of rows (m, dim) over the sum of all."""
    squares = np.linalg.eigvalsh(x @ x.T)
    return float(squares[-1] / squares.sum())


def show_layers(rows: Sequence[LayerGeometry]) -> GeometrySection:
    """Anisotropy and contextuality of every layer."""
    most, last = max(rows, key=lambda row: row.baseline), rows[-1]
    lines = {
        "different words (baseline)": [row.baseline for row in rows],
        "one word in different sentences": [row.self_similarity for row in rows],
        "a word and its sentence": [row.intra_sentence for row in rows],
        "MEV": [row.mev for row in rows],
        "MEV, baseline": [row.mev_baseline for row in rows],
    }
    return GeometrySection(
        f"Where the baseline is high the layer is anisotropic: it is highest, {most.baseline:.2f}, in layer "
        f"{most.layer}; what counts is by how much a word's similarity with itself exceeds it, in layer {last.layer} "
        f"by {last.self_similarity - last.baseline:.2f} ({last.words} words in {last.sentences:,} sentences).",
        {"layers": [vars(row) for row in rows]},
        lambda plots: plots.curves(
            {name: (np.array([float(row.layer) for row in rows]), np.array(values)) for name, values in lines.items()},
            plots.Axis("layer (0: embeddings)", ticks=tuple(str(row.layer) for row in rows)),
            plots.Axis("mean cosine, or share"),
        ),
        "Mean cosines of word vectors by layer: of different words, of one word in different sentences, of words with "
        "their sentence's mean; and MEV with its baseline.",
    )


@torch.no_grad()
def _read(stack: BlockStack, batch: Batch, layers: Sequence[int]) -> list[NDArray[np.float32]]:
    states = stack.read(batch.ids, batch.mask, layers)
    return [states[layer][batch.content].cpu().numpy() for layer in layers]


def _mean_cosine(units: Float64) -> float:
    n = len(units)
    return float((np.square(units.sum(0)).sum() - n) / (n * (n - 1)))


def _to_the_mean(x: Float64, units: Float64) -> float:
    mean = x.mean(0)
    return float((units @ mean / np.linalg.norm(mean)).mean())


def _occurrences(states: TokenStates, rng: np.random.Generator) -> list[NDArray[np.int64]]:
    """For each of some words its places, one in each of several sentences."""
    # The first place of every word in every sentence.
    first = np.unique(np.stack([states.tokens, states.sentences]), axis=1, return_index=True)[1]
    tokens = states.tokens[first]
    groups = np.split(first, np.flatnonzero(np.diff(tokens)) + 1)
    often = [rows for rows in groups if len(rows) >= FEWEST]
    chosen = rng.permutation(len(often))[:MOST_WORDS]
    return [rng.permutation(often[word])[:MOST_OCCURRENCES] for word in np.sort(chosen)]


def _one_of_each(tokens: NDArray[np.int64], rng: np.random.Generator) -> NDArray[np.int64]:
    """A random place of each different word, in random order."""
    order = rng.permutation(len(tokens))
    return rng.permutation(order[np.unique(tokens[order], return_index=True)[1]])


def _spans(sentences: NDArray[np.int64]) -> Sequence[slice]:
    """The tokens of each sentence of at least two."""
    starts = np.flatnonzero(np.diff(sentences, prepend=-1))
    ends = [*starts[1:], len(sentences)]
    return [slice(start, end) for start, end in zip(starts, ends, strict=True) if end - start > 1]
