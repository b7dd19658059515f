"""Words in contexts: how contextual the vectors of each layer are, and the dot products of a masked language model.

Three measures of a layer, each beside its baseline in the same layer:

    self-similarity    mean cosine of the occurrences of one word in different sentences
    intra-sentence     mean cosine of a sentence's words with their mean
    MEV                share of a word's squared singular values in the first one: could one static vector do?
    baseline           the mean cosine of different words; for MEV, of as many occurrences of random words

In an anisotropic layer all vectors are alike, so what counts is by how much self-similarity exceeds its baseline. A
word is a token that is not special; vectors are not centered. The source's baseline of MEV is one large sample; here
random groups have the word's own size. All layers are in memory: with a BERT-base, 0.4 GB for 10,000 tokens.

A masked-language-model head says log p(x | c) = h_c . w_x + b_x - log Z_c for a word x in a context c. With PMI(x, c) =
log p(x | c) - log p(x), where p(x) is the mean of p(x | c) over the contexts,

    h_c . w_x  =  PMI(x, c)  +  log p(x)  -  b_x  +  log Z_c

so, centered over the words of each context, the dot product is a sum of three parts, and its variance a sum of three
covariances: with the PMI, which is meaning; with the log frequency, which is not; and with the head's bias.

Source: Ethayarajh 2019, arXiv:1909.00512, sections 3.3 and 3.4 (layers); Li et al. 2020, arXiv:2011.05864, section 2.1,
after Yang et al. 2018, arXiv:1711.03953 (dot products).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import logsumexp
from transformers import AutoModelForMaskedLM

from bertflow.correlation import pearson
from bertflow.encoder.abstract import check_sentences
from bertflow.encoder.architecture import first_position
from bertflow.encoder.batching import Batch, tokenize
from bertflow.encoder.device import TokenBudget, resolve_device
from bertflow.encoder.folders import LOCALLY, ModelFolder, open_model
from bertflow.encoder.foreign import quiet_transformers
from bertflow.encoder.length import longest_input
from bertflow.encoder.model import BlockStack
from bertflow.encoder.pooling import Pooling
from bertflow.errors import DataError
from bertflow.geometry.cloud import Cloud, mean_cosine
from bertflow.geometry.explained import LAYERS
from bertflow.geometry.report import GeometrySection
from bertflow.moments import Float64
from bertflow.similarity import unit_rows
from bertflow.tables import Table
from bertflow.words.vocabulary import whole_words

Int64 = NDArray[np.int64]
OFTEN = 5
"""Sentences in which a word must occur to be compared with itself."""
MOST_WORDS = 500
"""Largest number of words for self-similarity and MEV."""
MOST_OCCURRENCES = 50
"""Largest number of occurrences of a word."""
BASELINE = 1000
"""Different words in the baseline, one occurrence of each."""
BLOCK = 32
"""Contexts whose words are in memory together."""
BUDGET = 2048
"""Tokens of a batch for the masked language model, padding included."""
MOST_TOKENS = 64
"""Longest sentence in tokens, special ones included."""


@torch.no_grad()
def read_token_states(
    model: str | Path, sentences: Sequence[str], revision: str | None = None, device: str = "auto"
) -> tuple[Int64, Int64, NDArray[np.float32]]:
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
    folder, place = open_model(model, revision), resolve_device(device)
    layers = range(folder.config.num_hidden_layers + 1)
    stack = BlockStack.load(folder, [Pooling(tuple(layers))], device=place)
    text = tokenize(sentences, folder.tokenizer, min(MOST_TOKENS, longest_input(stack.model)))
    tokens, rows, parts = [], [], []

    def read(batch: Batch) -> NDArray[np.float32]:
        moved = batch.to(place)
        states = stack.read(moved.ids, moved.mask, layers, moved.tokens)
        return np.stack([states[layer][moved.content].cpu().numpy() for layer in layers])

    for batch, vectors in TokenBudget(place).run(text, folder.pad_id, read):
        tokens.append(batch.ids[batch.content].numpy())
        rows.append(np.repeat(batch.rows, batch.content.sum(1).numpy()))
        parts.append(vectors)
    order = np.argsort(np.concatenate(rows), kind="stable")
    return np.concatenate(tokens)[order], np.concatenate(rows)[order], np.concatenate(parts, axis=1)[:, order]


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
    tokens: Int64, sentences: Int64, layers: Iterable[NDArray[np.floating]], seed: int = 0
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
        found.append(
            LayerGeometry(
                layer=layer,
                baseline=mean_cosine(Cloud(x[different])),
                self_similarity=float(np.mean([mean_cosine(Cloud(x[rows])) for rows in words])),
                intra_sentence=float(np.mean([units[span].mean(0) @ unit_rows(x[span].mean(0)) for span in spans])),
                mev=float(np.mean([explained_by_first(x[rows]) for rows in words])),
                mev_baseline=float(np.mean([explained_by_first(x[rows]) for rows in random])),
                words=len(words),
                sentences=len(spans),
            )
        )
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


def show_layers(rows: Sequence[LayerGeometry]) -> GeometrySection:
    """Anisotropy and contextuality of every layer."""
    most, last = max(rows, key=lambda row: row.baseline), rows[-1]
    exceeds = last.self_similarity - last.baseline
    shown = [(row.baseline, row.self_similarity, row.intra_sentence, row.mev, row.mev_baseline) for row in rows]
    lines = {name: list(values) for name, values in zip(LAYERS, zip(*shown, strict=True), strict=True)}
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
        explained=LAYERS,
    )


@dataclass(frozen=True)
class MaskedWords:
    """Contexts and words, as a masked language model sees them.

    Attributes:
        contexts: h_c (contexts, dim).
        vectors: w_x (words, dim), of the words of the vocabulary.
        bias: b_x (words,).
        words: Their spelling.
    """

    contexts: Float64
    vectors: Float64
    bias: Float64
    words: tuple[str, ...]


@dataclass(frozen=True)
class DotProductParts:
    """Where the variance of the context-word dot product over the words comes from; the shares sum to 1.

    Attributes:
        pmi: Share of the PMI.
        log_frequency: Share of the log frequency, as the model has it.
        bias: Share of the head's bias, which is negative where the bias takes over what the product leaves.
        corpus: Pearson's correlation of the model's log frequency with that of the counts; None without counts.
        contexts: Number of contexts.
        words: Number of words.
    """

    pmi: float
    log_frequency: float
    bias: float
    corpus: float | None
    contexts: int
    words: int


def dot_product_parts(masked: MaskedWords, counts: Mapping[str, int] | None = None) -> DotProductParts:
    """Split the variance of h_c . w_x over the words into its parts; ``counts`` tell how often words occur in text."""
    n, width = len(masked.contexts), len(masked.words)
    log_p, together, total = np.full(width, -np.inf), np.zeros(width), 0.0
    for start in range(0, n, BLOCK):
        products = masked.contexts[start : start + BLOCK] @ masked.vectors.T
        given = products + masked.bias
        log_p = np.logaddexp(log_p, logsumexp(given - logsumexp(given, axis=1, keepdims=True), axis=0))
        centered = products - products.mean(1, keepdims=True)
        together += centered.sum(0)
        total += float(np.square(centered).sum())
    log_p -= np.log(n)
    # Linear in the centered products, so their sum over the contexts is enough.
    log_frequency = float(together @ (log_p - log_p.mean())) / total
    bias = -float(together @ (masked.bias - masked.bias.mean())) / total
    known = [at for at, word in enumerate(masked.words) if counts and counts.get(word)]
    return DotProductParts(
        pmi=1 - log_frequency - bias,
        log_frequency=log_frequency,
        bias=bias,
        corpus=pearson(log_p[known], np.log([counts[masked.words[at]] for at in known])) if counts and known else None,
        contexts=n,
        words=width,
    )


@torch.no_grad()
def read_masked_words(
    model: str | Path, sentences: Sequence[str], revision: str | None = None, seed: int = 0
) -> MaskedWords:
    """Mask one random token of each sentence, and read what the head makes of its place.

    Args:
        model: A hub id or a folder of a model with a masked-language-model head.
        sentences: One context each.
        revision: Branch, tag or commit, for a hub id.
        seed: Random seed for the choice of tokens.

    Raises:
        DataError: If the model has no such head, or no sentence has a token to mask.
    """
    folder, rng = open_model(model, revision), np.random.default_rng(seed)
    network = _with_head(folder)
    limit = min(MOST_TOKENS, int(folder.config.max_position_embeddings) - first_position(network))
    # The contexts are the input of the head's last matrix.
    head, caught, contexts = network.get_output_embeddings(), [], []
    head.register_forward_pre_hook(lambda module, inputs: caught.append(inputs[0]))
    for batch in tokenize(sentences, folder.tokenizer, limit).batches(BUDGET, folder.pad_id):
        places = torch.from_numpy((rng.random(batch.ids.shape) * batch.content.numpy()).argmax(1))
        rows, ids = torch.arange(len(places)), batch.ids.clone()
        ids[rows, places] = folder.tokenizer.mask_token_id
        network(input_ids=ids, attention_mask=batch.mask.long())
        contexts.append(caught.pop()[rows, places])
    if not contexts:
        raise DataError("No sentence has a token to mask. Give text.")
    words = whole_words(folder.tokenizer)
    index = torch.tensor(list(words.values()))
    bias = np.zeros(len(words)) if head.bias is None else head.bias[index].double().numpy()
    return MaskedWords(torch.cat(contexts).double().numpy(), head.weight[index].double().numpy(), bias, tuple(words))


def _with_head(folder: ModelFolder) -> Any:
    names, missing = folder.config.architectures or [], True
    if any(name.endswith("ForMaskedLM") for name in names):
        with quiet_transformers():
            network, info = AutoModelForMaskedLM.from_pretrained(
                folder.path, output_loading_info=True, dtype=torch.float32, **LOCALLY
            )
        missing = info["missing_keys"]
    if missing:
        raise DataError(
            f"{folder.name} has no masked-language-model head (it is a "
            f"{', '.join(names) or 'bare encoder'}). Give the folder of a ...ForMaskedLM."
        )
    return network.eval()


def show_masked_words(parts: DotProductParts) -> GeometrySection:
    """The split of the context-word dot product."""
    corpus = (
        "" if parts.corpus is None else f"; the model's log frequency and that of the list correlate {parts.corpus:.2f}"
    )
    lines = (
        ("PMI: what the context says about the word", f"{100 * parts.pmi:.1f}"),
        ("log frequency: how common the word is", f"{100 * parts.log_frequency:.1f}"),
        ("less the head's own bias", f"{100 * parts.bias:.1f}"),
    )
    return GeometrySection(
        "The theory behind BERT-flow: a masked language model's dot product of context and word holds log frequency "
        f"beside meaning; here {100 * parts.log_frequency:.0f} % of its variance over {parts.words:,} words is log "
        f"frequency and {100 * parts.pmi:.0f} % PMI ({parts.contexts} contexts{corpus}).",
        vars(parts),
        table=Table(("part", "% of the variance"), lines),
    )
