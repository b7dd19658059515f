"""What a masked language model's dot products are made of: the theory behind BERT-flow, measured.

The head says log p(x | c) = h_c . w_x + b_x - log Z_c for a word x in a context c. With PMI(x, c) = log p(x | c) - log
p(x), where p(x) is the mean of p(x | c) over the contexts,

    h_c . w_x  =  PMI(x, c)  +  log p(x)  -  b_x  +  log Z_c

so that, centered over the words within each context, the dot product is a sum of three parts, and its variance a sum of
three covariances: with the PMI, which is meaning; with the log frequency, which is not; and with the head's bias.

Source: Li et al. 2020, arXiv:2011.05864, section 2.1, after Yang et al. 2018, arXiv:1711.03953.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import logsumexp
from transformers import AutoModelForMaskedLM

from bertflow.correlation import pearson
from bertflow.encoder.folders import LOCALLY, ModelFolder, open_model, quiet_transformers
from bertflow.encoder.model import TokenizedText, tokenize
from bertflow.errors import DataError
from bertflow.geometry.cloud import Float64
from bertflow.geometry.report import GeometrySection
from bertflow.tables import Table
from bertflow.words.tokens import whole_words

BLOCK = 32
"""Contexts whose words are in memory together."""
BUDGET = 2048
"""Tokens of a batch, padding included."""


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
        contexts: How many contexts.
        words: How many words.
    """

    pmi: float
    log_frequency: float
    bias: float
    corpus: float | None
    contexts: int
    words: int


def dot_product_parts(masked: MaskedWords, counts: Mapping[str, int] | None = None) -> DotProductParts:
    """Split the variance of h_c . w_x over the words into its parts, averaged over contexts, in blocks.

    Args:
        masked: Contexts and words.
        counts: How often words occur, to compare the model's frequencies with.
    """
    n, width = len(masked.contexts), len(masked.words)
    log_p = np.full(width, -np.inf)
    for products in _products(masked):
        given = products + masked.bias
        log_p = np.logaddexp(log_p, logsumexp(given - logsumexp(given, axis=1, keepdims=True), axis=0))
    log_p -= np.log(n)
    frequency, bias = log_p - log_p.mean(), masked.bias - masked.bias.mean()
    total = along_frequency = along_bias = 0.0
    for products in _products(masked):
        centered = products - products.mean(1, keepdims=True)
        total += float(np.square(centered).sum())
        along_frequency += float((centered @ frequency).sum())
        along_bias -= float((centered @ bias).sum())
    known = [at for at, word in enumerate(masked.words) if counts and counts.get(word)]
    return DotProductParts(
        pmi=1 - (along_frequency + along_bias) / total,
        log_frequency=along_frequency / total,
        bias=along_bias / total,
        corpus=pearson(log_p[known], np.log([counts[masked.words[at]] for at in known])) if counts and known else None,
        contexts=n,
        words=width,
    )


def read_masked_words(
    model: str | Path, sentences: Sequence[str], max_length: int = 64, revision: str | None = None, seed: int = 0
) -> MaskedWords:
    """Mask one random token of each sentence, and read what the head makes of its place.

    Args:
        model: A hub id or a folder of a model with a masked-language-model head.
        sentences: One context each.
        max_length: Longest sentence, in tokens.
        revision: Branch, tag or commit, for a hub id.
        seed: Random seed for the choice of tokens.

    Raises:
        DataError: If the model has no such head, or no sentence has a token to mask.
    """
    folder = open_model(model, revision)
    network = _with_head(folder)
    limit = min(max_length, int(folder.config.max_position_embeddings))
    text = tokenize(sentences, folder.tokenizer, limit)
    head: Any = network.get_output_embeddings()
    contexts = _contexts(network, head, folder, text, np.random.default_rng(seed))
    words = whole_words(folder.tokenizer)
    index = torch.tensor(list(words.values()))
    vectors = head.weight.detach()[index].double().numpy()
    bias = np.zeros(len(words)) if head.bias is None else head.bias.detach()[index].double().numpy()
    return MaskedWords(contexts, vectors, bias, tuple(words))


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


def _products(masked: MaskedWords) -> Any:
    for start in range(0, len(masked.contexts), BLOCK):
        yield masked.contexts[start : start + BLOCK] @ masked.vectors.T


def _with_head(folder: ModelFolder) -> Any:
    names = folder.config.architectures or []
    refusal = DataError(
        f"{folder.name} has no masked-language-model head (it is a {', '.join(names) or 'bare encoder'}). "
        "Give the folder of a ...ForMaskedLM."
    )
    if not any(name.endswith("ForMaskedLM") for name in names):
        raise refusal
    with quiet_transformers():
        network, info = AutoModelForMaskedLM.from_pretrained(
            folder.path, output_loading_info=True, dtype=torch.float32, **LOCALLY
        )
    if info["missing_keys"]:
        raise refusal
    return network.eval()


@torch.no_grad()
def _contexts(network: Any, head: Any, folder: ModelFolder, text: TokenizedText, rng: np.random.Generator) -> Float64:
    """What the head's last matrix is multiplied with, at one masked token of each sentence, in any order."""
    caught: list[torch.Tensor] = []
    hook = head.register_forward_pre_hook(lambda module, inputs: caught.append(inputs[0]))
    found: list[NDArray[np.float64]] = []
    try:
        for batch in text.batches(BUDGET, folder.pad_id):
            weights = rng.random(batch.ids.shape) * batch.content.numpy()
            places = torch.from_numpy(weights.argmax(1))
            rows = torch.arange(len(places))
            ids = batch.ids.clone()
            ids[rows, places] = folder.tokenizer.mask_token_id
            network(input_ids=ids, attention_mask=batch.mask.long())
            found.append(caught.pop()[rows, places].double().numpy())
    finally:
        hook.remove()
    if not found:
        raise DataError("No sentence has a token to mask. Give text.")
    return np.concatenate(found)
