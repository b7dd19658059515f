"""The dot products of a masked language model: how much of them is meaning, and how much word frequency?

A masked-language-model head says log p(x | c) = h_c . w_x + b_x - log Z_c for a word x in a context c. With PMI(x, c) =
log p(x | c) - log p(x), where p(x) is the mean of p(x | c) over the contexts,

    h_c . w_x  =  PMI(x, c)  +  log p(x)  -  b_x  +  log Z_c

so, centered over the words of each context, the dot product is a sum of three parts, and its variance a sum of three
covariances: with the PMI, which is meaning; with the log frequency, which is not; and with the head's bias.

Source: Li et al. 2020, arXiv:2011.05864, section 2.1, after Yang et al. 2018, arXiv:1711.03953.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.special import logsumexp
from transformers import AutoModelForMaskedLM

from bertflow.array_types import Float64
from bertflow.correlation import correlation
from bertflow.encoder.architecture import first_position, quiet_transformers
from bertflow.encoder.batching import tokenize
from bertflow.encoder.folders import LOCALLY, ModelFolder
from bertflow.encoder.locating import open_model
from bertflow.errors import DataError
from bertflow.geometry.cloud import Counts
from bertflow.geometry.contexts import MOST_TOKENS
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
        contexts: Number of contexts.
        words: Number of words.
    """

    pmi: float
    log_frequency: float
    bias: float
    corpus: float | None
    contexts: int
    words: int


def dot_product_parts(masked: MaskedWords, counts: Counts) -> DotProductParts:
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
    known = [at for at, word in enumerate(masked.words) if counts.get(word)]
    corpus = correlation("pearson", log_p[known], np.log([counts[masked.words[at]] for at in known])) if known else None
    return DotProductParts(1 - log_frequency - bias, log_frequency, bias, corpus, n, width)


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


def show_masked_words(sentences: Sequence[str], counts: Counts, **model: Any) -> GeometrySection:
    """The split of the context-word dot product of what ``read_masked_words`` takes."""
    parts = dot_product_parts(read_masked_words(sentences=sentences, **model), counts)
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
