"""Words in contexts: how contextual the vectors of each layer are.

Three measures of a layer, each beside its baseline in the same layer:

    self-similarity    mean cosine of the occurrences of one word in different sentences
    intra-sentence     mean cosine of a sentence's words with their mean
    MEV                share of a word's squared singular values in the first one: could one static vector do?
    baseline           the mean cosine of different words; for MEV, of as many occurrences of random words

In an anisotropic layer all vectors are alike, so what counts is by how much self-similarity exceeds its baseline. A
word is a token that is not special; vectors are not centered. The source's baseline of MEV is one large sample; here
random groups have the word's own size. All layers are in memory: with a BERT-base, 0.4 GB for 10,000 tokens.

Source: Ethayarajh 2019, arXiv:1909.00512, sections 3.3 and 3.4.
"""

from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bertflow.array_types import Float32, Float64, Floats, Int64
from bertflow.encoder.abstract import check_sentences
from bertflow.encoder.architecture import longest_input
from bertflow.encoder.batching import Batch, tokenize
from bertflow.encoder.locating import open_model
from bertflow.encoder.pooling import Pooling
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.errors import DataError
from bertflow.geometry.cloud import Cloud
from bertflow.geometry.measures import mean_cosine
from bertflow.geometry.report import GeometrySection, attributes
from bertflow.similarity import unit_rows

OFTEN = 5
"""Sentences in which a word must occur to be compared with itself."""
MOST_WORDS = 500
"""Largest number of words for self-similarity and MEV."""
MOST_OCCURRENCES = 50
"""Largest number of occurrences of a word."""
BASELINE = 1000
"""Different words in the baseline, one occurrence of each."""
MOST_TOKENS = 64
"""Longest sentence in tokens, special ones included."""
DRAWN = (
    "different words (baseline)",
    "one word in different sentences",
    "a word and its sentence",
    "MEV",
    "MEV, baseline",
)
"""Numbers of a layer, from ``baseline`` on."""


def read_token_states(
    model: str | Path, sentences: Sequence[str], revision: str | None = None, device: str = "auto"
) -> tuple[Int64, Int64, Float32]:
    """Run a transformer, and keep the vectors of all tokens in all layers.

    Args:
        model: A hub id or a folder.
        sentences: A sample.
        revision: Branch, tag or commit, for a hub id.
        device: Where the transformer runs.

    Returns:
        Ids (t,), sentences (t,) and vectors (layers, t, dim) of the t tokens; layer 0 is the embedding layer.

    Raises:
        DataError: If the folder is missing, incomplete or damaged, or a sentence is not text.
    """
    check_sentences(sentences)
    layers = range(open_model(model, revision).config.num_hidden_layers + 1)
    every = Pooling(tuple(layers))
    encoder = TransformerEncoder(model, str(every), device=device, revision=revision)
    longest = min(MOST_TOKENS, longest_input(encoder.spec.folder.shape))

    def read(batch: Batch) -> tuple[Int64, Int64, Float32]:
        states = encoder.layers(encoder.stack, batch, layers)
        vectors = np.stack([states[layer][batch.content].cpu().numpy() for layer in layers])
        return batch.ids[batch.content].cpu().numpy(), batch.content.sum(1).cpu().numpy(), vectors

    text = tokenize(sentences, encoder.tokenizer, longest)
    made = [(ids, np.repeat(at, n), x) for at, (ids, n, x) in encoder.run([text], read, len(sentences))]
    tokens, rows, parts = zip(*made, strict=True)
    order = np.argsort(np.concatenate(rows), kind="stable")
    return np.concatenate(tokens)[order], np.concatenate(rows)[order], np.concatenate(parts, axis=1)[:, order]


@dataclass(frozen=True)
class LayerGeometry:
    """One layer, by means over its words or sentences; cosines in [-1, 1], shares in [0, 1].

    Attributes:
        layer: 0 is the embedding layer.
        baseline: Mean cosine of two different words. It is what any two vectors of the layer have in common.
        self_similarity: Mean cosine of a word with itself in another sentence. The lower, the more its sentence
            decides.
        intra_sentence: Mean cosine of a word with the mean of its sentence. The higher, the more alike the words of a
            sentence are.
        mev: Share of the variance of a word's vectors that one static vector explains at most. The lower, the more
            contextual the word is.
        mev_baseline: The same share for vectors of different words. What MEV has above it belongs to the word.
        words: Number of words for self-similarity and MEV.
        sentences: Number of sentences.
    """

    layer: int
    baseline: float
    self_similarity: float
    intra_sentence: float
    mev: float
    mev_baseline: float
    words: int
    sentences: int


def contextuality(
    tokens: Int64, sentences: Int64, layers: Iterable[Floats], seed: int = 0
) -> tuple[LayerGeometry, ...]:
    """The geometry of every layer.

    Args:
        tokens: Token ids (t,).
        sentences: The sentence of each token (t,), rising.
        layers: Vectors of the tokens (t, dim) by layer.
        seed: Random seed for the choice of words and occurrences.

    Raises:
        DataError: If no word stands in ``OFTEN`` sentences.
    """
    rng = np.random.default_rng(seed)
    words = _occurrences(tokens, sentences, rng)
    if not words:
        raise DataError(f"No word stands in {OFTEN} of the sentences, so none can be compared with itself. Give more.")
    order = rng.permutation(len(tokens))
    different = rng.permutation(order[np.unique(tokens[order], return_index=True)[1]])[:BASELINE]
    random = [rng.choice(len(tokens), size=len(rows), replace=False) for rows in words]
    spans = [span for span in np.split(np.arange(len(tokens)), _changes(sentences)) if len(span) > 1]
    found = []
    for layer, vectors in enumerate(layers):
        x = np.asarray(vectors, dtype=np.float64)
        units = unit_rows(x)
        own = [mean_cosine(Cloud(x[rows])) for rows in words]
        inside = [units[span].mean(0) @ unit_rows(x[span].mean(0)) for span in spans]
        first, by_chance = ([explained_by_first(x[rows]) for rows in some] for some in (words, random))
        alike, together, mev, beside = (float(np.mean(values)) for values in (own, inside, first, by_chance))
        baseline = mean_cosine(Cloud(x[different]))
        found.append(LayerGeometry(layer, baseline, alike, together, mev, beside, len(words), len(spans)))
    return tuple(found)


def _occurrences(tokens: Int64, sentences: Int64, rng: np.random.Generator) -> list[Int64]:
    """For each of some words its places, one in each of several sentences."""
    # The first place of every word in every sentence.
    first = np.unique(np.stack([tokens, sentences]), axis=1, return_index=True)[1]
    often = [rows for rows in np.split(first, _changes(tokens[first])) if len(rows) >= OFTEN]
    chosen = np.sort(rng.permutation(len(often))[:MOST_WORDS])
    return [rng.permutation(often[word])[:MOST_OCCURRENCES] for word in chosen]


def _changes(values: Int64) -> Int64:
    """Where a value differs from the one before."""
    return np.flatnonzero(np.diff(values)) + 1


def explained_by_first(x: Float64) -> float:
    """MEV: the largest squared singular value of rows (m, dim) over the sum of all."""
    squares = np.linalg.eigvalsh(x @ x.T)
    return float(squares[-1] / squares.sum())


def show_layers(sentences: Sequence[str], **model: Any) -> GeometrySection:
    """Anisotropy and contextuality of every layer of what ``read_token_states`` takes."""
    rows = contextuality(*read_token_states(sentences=sentences, **model))
    most, last = max(rows, key=lambda row: row.baseline), rows[-1]
    exceeds = last.self_similarity - last.baseline
    lines = dict(zip(DRAWN, np.transpose([astuple(row)[1:6] for row in rows]), strict=True))
    return GeometrySection(
        f"The baseline, which is high where a layer is anisotropic, is highest in layer {most.layer}: "
        f"{most.baseline:.2f}. In layer {last.layer} a word's similarity with itself is {abs(exceeds):.2f} "
        f"{'above' if exceeds > 0 else 'below'} it ({last.words} words in {last.sentences:,} sentences).",
        {"layers": rows},
        lambda plots: plots.curves(
            lines, "layer (0: embeddings)", "mean cosine, or share", ticks=[str(row.layer) for row in rows]
        ),
        "Mean cosines of word vectors by layer: of different words, of one word in different sentences, of words with "
        "their sentence's mean; and MEV with its baseline.",
        explained=dict(zip(DRAWN, [*attributes(LayerGeometry).values()][1:6], strict=True)),
    )
