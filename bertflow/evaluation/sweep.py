"""Which layer, which pooling? Every candidate on the same tasks, from one pass over the text.

    layers 0 ... last  x  token reductions       one layer each
    last-2-avg ... concat-last-4, mean of all    several layers
    weighted mean of all                         every layer scaled to the same root mean square norm

each raw, whitened, and whitened to 64 directions. The rows that the authors of BERT tried (last, second to last, sum
and concatenation of the last four, weighted sum of all) are among them; their weights were learned from labels, ours
are not. Under the cosine a sum over layers is their mean, so the sum of all has no row of its own.

Choose on ``tuning``, report on the test sets, never the reverse.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from bertflow.affine import NULL_SHARE, whitening_map
from bertflow.data.pairs import Pairs, unique_sentences
from bertflow.encoder.pooling import COUNTED, TOKEN_REDUCTIONS, Pooling, parse_pooling
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.errors import NullDirectionWarning
from bertflow.evaluation.encoding import Scratch, embed_poolings, readable, require_usable, row_numbers
from bertflow.evaluation.figures import ScoredTask, task_figures
from bertflow.evaluation.sweep_table import CALIBRATORS, METRIC, RAW, REDUCED, WEIGHTED, Candidate, Sweep, SweepRow
from bertflow.moments import Moments
from bertflow.similarity import SIMILARITIES
from bertflow.text_keys import hash_texts, seen_share

MULTI_LAYER = ("last-2-avg", "first-last-avg", "emb-last-avg", "sum-last-4", "concat-last-4")
NOT_OF_THE_SWEEP = ("pooling", "layers", "token_counts")
"""What an encoder says about itself that each candidate has its own of."""
Embeddings = NDArray[np.float32]
Scores = list[NDArray[np.float64]]
"""Similarities (n,) of the pairs of each task."""


def candidates(blocks: int, layers: Sequence[int] | None = None, tokens: Sequence[str] | None = None) -> list[str]:
    """The poolings of a sweep, by their spelling.

    Args:
        blocks: Of the encoder.
        layers: For the candidates of one layer, from 0; all by default.
        tokens: Their token reductions; all by default.
    """
    wanted = range(blocks + 1) if layers is None else layers
    reductions = list(TOKEN_REDUCTIONS) if tokens is None else tokens
    single = [str(Pooling((layer,), tokens=name)) for name in reductions for layer in wanted]
    return [*single, *readable([*MULTI_LAYER, _mean_of_all(blocks)], blocks)]


def sweep(
    encoder: TransformerEncoder,
    sets: Sequence[Pairs],
    poolings: Sequence[str],
    fit_on: Sequence[str] | None = None,
    progress: bool = False,
) -> Sweep:
    """Score every pooling on every task, raw and whitened.

    Args:
        encoder: Its own pooling does not matter, but all blocks that are read should be loaded. Its token counts, which
            ``sif`` reads, are counted anew.
        sets: The tasks.
        poolings: Spellings, as ``candidates`` gives them.
        fit_on: Text to fit whitening and token counts on; by default the scored sentences, without their labels.
        progress: Show a bar on stderr.

    Raises:
        DataError: For embeddings that cannot be scored or whitened.
    """
    scored = unique_sentences(sets)
    text = list(dict.fromkeys(scored if fit_on is None else fit_on))
    sentences = list(dict.fromkeys([*scored, *text]))
    row_of = row_numbers(sentences)
    fit_rows = np.array([row_of[sentence] for sentence in text])
    seen = seen_share(scored, hash_texts(text))
    encoder.count_tokens(text)
    blocks = int(encoder.describe()["blocks"])
    with embed_poolings(encoder, sentences, poolings, progress) as scratch:
        score = _scorer(sets, row_of)
        systems = [
            (candidate, scores)
            for name, tokens, layers, x in _embeddings(scratch, poolings, blocks)
            for candidate, scores in _calibrated(Candidate(name, tokens, layers, x.shape[1]), x, fit_rows, score)
        ]
        nbytes = scratch.nbytes
    rows = _rows([candidate for candidate, _ in systems], [scores for _, scores in systems], sets, seen)
    recipe = {key: value for key, value in encoder.describe().items() if key not in NOT_OF_THE_SWEEP}
    which = f"the {len(text)} scored sentences" if fit_on is None else f"{len(text)} given sentences"
    constant = tuple(name for name in poolings if all(name != candidate.pooling for candidate, _ in systems))
    return Sweep(tuple(rows), constant, recipe, len(sentences), f"{which}, without labels", seen, nbytes)


def _mean_of_all(blocks: int) -> str:
    return str(Pooling(tuple(range(blocks + 1))))


def _embeddings(
    scratch: Scratch, poolings: Sequence[str], blocks: int
) -> Iterator[tuple[str, str, tuple[int, ...], Embeddings]]:
    """Name, token reduction, layers and embeddings of each candidate, one in memory at a time."""
    for spelling in poolings:
        pooling = parse_pooling(spelling)
        yield spelling, pooling.tokens, pooling.resolve(blocks), scratch.read(spelling)
    means = [str(Pooling((layer,))) for layer in range(blocks + 1)]
    if set(means) <= set(poolings):
        total = sum(_scaled(scratch.read(spelling)) for spelling in means)
        yield WEIGHTED, "mean", tuple(range(blocks + 1)), np.asarray(total, dtype=np.float32)


def _scaled(x: Embeddings) -> Embeddings:
    return x / np.float32(np.sqrt(np.square(x, dtype=np.float64).sum(1).mean()))


def _scorer(sets: Sequence[Pairs], row_of: Mapping[str, int]) -> Callable[[str, Embeddings], Scores]:
    sides = [pairs.rows(row_of) for pairs in sets]

    def score(name: str, x: Embeddings) -> Scores:
        """Cosines of the pairs of each task."""
        found = []
        for pairs, (first, second) in zip(sets, sides, strict=True):
            for sentences, rows in ((pairs.first, first), (pairs.second, second)):
                require_usable(name, x[rows], sentences, "cosine", f"task {pairs.task}")
            found.append(SIMILARITIES["cosine"].paired(x[first], x[second]))
        return found

    return score


def _calibrated(
    candidate: Candidate, x: Embeddings, fit_rows: NDArray[np.intp], score: Callable[[str, Embeddings], Scores]
) -> Iterator[tuple[Candidate, Scores]]:
    """The candidate raw, whitened, and whitened to its first directions: one fit does for both.

    A candidate that is one vector for all sentences (layer 0 of [CLS] is) has no score, raw or whitened.
    """
    moments = Moments.of(x[fit_rows])
    if np.trace(moments.covariance) <= NULL_SHARE**2 * moments.mean_square_norm:
        return
    yield candidate, score(candidate.pooling, x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NullDirectionWarning)  # every row says how many directions are left
        whitening = whitening_map(moments)
    with torch.inference_mode():
        z = whitening(torch.from_numpy(x)).numpy()
    for name, dim in zip(CALIBRATORS[1:], (z.shape[1], REDUCED), strict=True):
        if dim <= z.shape[1]:
            calibrated = candidate.after(name, dim)
            yield calibrated, score(f"{candidate.pooling} {name}", z[:, :dim])


def _rows(
    systems: Sequence[Candidate], scores: Sequence[Scores], sets: Sequence[Pairs], seen: float
) -> Iterator[SweepRow]:
    values = []
    for at, pairs in enumerate(sets):
        task = ScoredTask(pairs, "cosine", np.stack([found[at] for found in scores]))
        figures = [f for f in task_figures(task, resamples=0, seed=0) if f.metric == METRIC and not f.subset]
        # As in every table: all pairs together, or the first aggregation of a task that has no such score.
        values.append(next((f for f in figures if f.aggregation == "all"), figures[0]))
    for at, system in enumerate(systems):
        own = [float(figure.values[at]) for figure in values]
        fitted = seen if system.calibrator != RAW or system.tokens in COUNTED else 0.0
        for figure, value in zip(values, own, strict=True):
            yield SweepRow(system, figure.task, figure.aggregation, figure.n, value, fitted)
        if len(own) > 1:
            n = sum(figure.n for figure in values)
            yield SweepRow.average(system, n, float(np.mean(own)), fitted)
