"""Many poolings of one encoder, from one pass over the text, and how they score.

    layers 0 ... last  x  token reductions       one layer each
    last-2-avg ... concat-last-4, mean of all    several layers
    weighted mean of all                         every layer scaled to the same root mean square norm

each raw, whitened, and whitened to 64 directions. The rows that the authors of BERT tried (last, second to last, sum
and concatenation of the last four, weighted sum of all) are among them; their weights were learned from labels. Under
the cosine a sum over layers is their mean, so the sum of all has no row of its own.
"""

import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import Unpack

from bertflow.affine import NULL_SHARE, whitening_map
from bertflow.data.pairs import Pairs, unique_sentences
from bertflow.encoder.abstract import Float32
from bertflow.encoder.pooling import COUNTED, POOLINGS, TEMPLATED, TOKEN_REDUCTIONS, Pooling, parse_pooling
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.errors import NullDirectionWarning, UsageError
from bertflow.evaluation.figures import ScoredTask, task_figures
from bertflow.evaluation.significance import Figure
from bertflow.evaluation.sweeping import (
    AVERAGE,
    CALIBRATORS,
    METRIC,
    RAW,
    REDUCED,
    WEIGHTED,
    Candidate,
    Sweep,
    SweepRow,
)
from bertflow.evaluation.systems import checked_sides, row_numbers
from bertflow.moments import Moments
from bertflow.opening import LoadOptions, load
from bertflow.progress import bar
from bertflow.registry import lookup
from bertflow.similarity import SIMILARITIES
from bertflow.text_keys import hash_texts, seen_share

ALL_BLOCKS = "sif"
"""A pooling that reads the last layer, so that the encoder is loaded once, with all blocks."""
CHUNK_BYTES = 2**28
"""Float32 that are held in memory before they are written."""


def open_transformer(model: str | Path, **options: Unpack[LoadOptions]) -> TransformerEncoder:
    """Open an encoder whose layers can be read, as ``require_transformer`` has made sure."""
    encoder = load(model, **options)
    assert isinstance(encoder, TransformerEncoder), "nothing else was let in"
    return encoder


def candidates(
    blocks: int, layers: Sequence[int] | str | None = None, tokens: Sequence[str] | str | None = None
) -> list[str]:
    """The poolings of a sweep, by their spelling.

    Args:
        blocks: Number of blocks of the encoder.
        layers: For the candidates of one layer, from 0, also as "0,3,6"; all by default.
        tokens: Their token reductions, also as "mean,cls"; by default all that need no template.

    Raises:
        UsageError: For layers that the encoder does not have.
        UnknownNameError: For an unknown token reduction.
    """
    without = [name for name in TOKEN_REDUCTIONS if name not in TEMPLATED]
    reductions = tokens.split(",") if isinstance(tokens, str) else tokens or without
    for name in reductions:
        lookup("token reduction", TOKEN_REDUCTIONS, name)
    every = range(blocks + 1)
    try:
        wanted = [int(part) for part in (layers.split(",") if isinstance(layers, str) else layers or every)]
    except ValueError:
        raise UsageError(f"layers takes numbers with commas, as 0,3,6; got {layers!r}.") from None
    for layer in wanted:
        if layer not in every:
            raise UsageError(f"layers go from 0 (embedding layer) to {blocks} for this encoder, got {layer}.")
    single = [str(Pooling((layer,), tokens=name)) for name in reductions for layer in wanted]
    several = [name for name, row in POOLINGS.items() if len(row.layers) > 1]
    return [*single, *readable([*several, str(Pooling(tuple(every)))], blocks)]


def readable(poolings: Sequence[str], blocks: int) -> list[str]:
    """Those poolings whose layers an encoder of so many blocks has."""
    found = []
    for pooling in poolings:
        with suppress(UsageError):
            parse_pooling(pooling).resolve(blocks)
            found.append(pooling)
    return found


def embed_poolings(
    encoder: TransformerEncoder,
    sentences: Sequence[Any],
    poolings: Sequence[str],
    progress: bool | None = None,
    encode: Callable[..., Mapping[str, Float32]] | None = None,
    each: float = 1,
) -> Iterator[tuple[Candidate, Float32]]:
    """Each candidate with its embeddings, one in memory at a time.

    The sentences are embedded once, by all poolings, into temporary files of float32 rows. The weighted mean of all
    layers comes last, if each layer's own mean is among the poolings.

    Args:
        encoder: With the blocks that the poolings read: it would load them anew for each chunk.
        sentences: One or more.
        poolings: Spellings.
        progress: Whether to show a progress bar (default: in a terminal or a notebook).
        encode: Another method of the encoder that takes these three, and gives rows for each sentence.
        each: How many rows it gives a sentence, on average.
    """
    encode = encode or encoder.encode_poolings
    layer = encoder.dim // parse_pooling(str(encoder.describe()["pooling"])).width(1)
    widths = {pooling: parse_pooling(pooling).width(layer) for pooling in poolings}
    chunk = max(1, int(CHUNK_BYTES / (4 * sum(widths.values()) * each)))
    with tempfile.TemporaryDirectory(prefix="bertflow-") as folder:
        files = {pooling: Path(folder) / f"{at}.f32" for at, pooling in enumerate(poolings)}
        for start in range(0, len(sentences), chunk):
            found = encode(sentences[start : start + chunk], poolings, progress)
            for pooling, x in found.items():
                with files[pooling].open("ab") as file:
                    x.tofile(file)

        def read(spelling: str) -> Float32:
            return np.fromfile(files[spelling], dtype=np.float32).reshape(-1, widths[spelling])

        blocks = int(encoder.describe()["blocks"])
        with bar(len(poolings), "scoring", progress, "poolings") as advance:
            for spelling in poolings:
                row, x = parse_pooling(spelling), read(spelling)
                yield Candidate(spelling, row.tokens, row.resolve(blocks), x.shape[1]), x
                advance(1)
        means = [str(Pooling((layer,))) for layer in range(blocks + 1)]
        if set(means) <= set(poolings):
            scaled = (x / np.float32(np.sqrt(np.square(x, dtype=np.float64).sum(1).mean())) for x in map(read, means))
            total = np.asarray(sum(scaled), dtype=np.float32)
            yield Candidate(WEIGHTED, "mean", tuple(range(blocks + 1)), total.shape[1]), total


def recipe_of(encoder: TransformerEncoder, *others: str) -> dict[str, Any]:
    """An encoder's description without what each pooling has of its own, and without ``others``."""
    own = ("pooling", "layers", "token_counts", *others)
    return {key: value for key, value in encoder.describe().items() if key not in own}


def sweep_poolings(
    encoder: TransformerEncoder,
    sets: Sequence[Pairs],
    poolings: Sequence[str],
    fit_on: Sequence[str] | None = None,
    progress: bool | None = None,
) -> Sweep:
    """Score every pooling on every task, raw and whitened.

    Args:
        encoder: Opened with all blocks that are read; its tokens are counted anew, for ``sif``.
        sets: The tasks.
        poolings: Spellings, as ``candidates`` gives them.
        fit_on: Text to fit whitening and token counts on; by default the scored sentences, without their labels.
        progress: Whether to show a progress bar (default: in a terminal or a notebook).

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
    rows: list[SweepRow] = []
    scratch = 0
    for candidate, x in embed_poolings(encoder, sentences, poolings, progress):
        scratch += x.nbytes if candidate.pooling != WEIGHTED else 0
        for calibrator, z in _calibrated(x, fit_rows):
            fitted = seen if calibrator != RAW or candidate.tokens in COUNTED else 0.0
            facts = {**vars(candidate), "width": z.shape[1], "calibrator": calibrator, "seen": fitted}
            system = candidate.pooling if calibrator == RAW else f"{candidate.pooling} {calibrator}"
            rows += [SweepRow(**facts, **score) for score in _scores(system, z, sets, row_of)]
    which = f"the {len(text)} scored sentences" if fit_on is None else f"{len(text)} given sentences"
    known = {row.pooling for row in rows}
    constant = tuple(name for name in poolings if name not in known)
    return Sweep(tuple(rows), recipe_of(encoder), scratch, constant, len(sentences), f"{which}, without labels", seen)


def _calibrated(x: Float32, fit_rows: NDArray[np.intp]) -> Iterator[tuple[str, Float32]]:
    """The embeddings raw, whitened, and whitened to their first directions: one fit does for both.

    One vector for all sentences (layer 0 of [CLS] gives it) has no score, raw or whitened.
    """
    moments = Moments.of(x[fit_rows])
    if np.trace(moments.covariance) <= NULL_SHARE**2 * moments.mean_square_norm:
        return
    yield RAW, x
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NullDirectionWarning)  # every row says how many directions are left
        z = _whitened(x, moments)
    for name, dim in zip(CALIBRATORS[1:], (z.shape[1], REDUCED), strict=True):
        if dim <= z.shape[1]:
            yield name, z[:, :dim]


def _whitened(x: Float32, moments: Moments) -> Float32:
    with torch.inference_mode():
        return whitening_map(moments)(torch.from_numpy(x)).numpy()


def _scores(system: str, x: Float32, sets: Sequence[Pairs], row_of: Mapping[str, int]) -> Iterator[dict[str, Any]]:
    """Task, aggregation, pairs and value of each task, as in every table, and of their average if there are several."""
    figures = [_figure(system, x, pairs, row_of) for pairs in sets]
    values = [float(figure.values[0]) for figure in figures]
    for figure, value in zip(figures, values, strict=True):
        yield {"task": figure.task, "aggregation": figure.aggregation, "n": figure.n, "value": value}
    if len(sets) > 1:
        n = sum(figure.n for figure in figures)
        yield {"task": AVERAGE, "aggregation": "as each task", "n": n, "value": float(np.mean(values))}


def _figure(system: str, x: Float32, pairs: Pairs, row_of: Mapping[str, int]) -> Figure:
    """Spearman of the cosine on one task, of all pairs together if they can be ranked so."""
    [(_, first, second)] = checked_sides(pairs, pairs.rows(row_of), {system: x}, {})
    task = ScoredTask(pairs, "cosine", SIMILARITIES["cosine"].paired(first, second)[None])
    return next(one for one in task_figures(task, resamples=0, seed=0) if one.metric == METRIC and not one.subset)
