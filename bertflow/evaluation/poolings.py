"""Many poolings of one encoder, from one pass over the text, and what each is worth.

    layers 0 ... last  x  token reductions       one layer each
    last-2-avg ... concat-last-4, mean of all    several layers
    weighted mean of all                         every layer scaled to the same root mean square norm

each scored raw, whitened, and whitened to 64 directions; or probed (``bertflow.studies.probing``). The rows that the
authors of BERT tried (last, second to last, sum and concatenation of the last four, weighted sum of all) are among
them; their weights were learned from labels. Under the cosine a sum over layers is their mean, so the sum of all has no
row of its own.
"""

import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bertflow.affine import NULL_SHARE, whitening_map
from bertflow.array_types import Float32, Intp
from bertflow.calibration.spelling import RAW
from bertflow.data.pairs import Pairs, unique_sentences
from bertflow.data.sts_tasks import task_title
from bertflow.encoder.pooling import COUNTED, POOLINGS, TEMPLATED, TOKEN_REDUCTIONS, Pooling, parse_pooling
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.errors import UsageError, without_null_warnings
from bertflow.evaluation.aggregation import ScoredTask, task_figures
from bertflow.evaluation.score_table import setting
from bertflow.evaluation.sides import checked_sides, row_numbers
from bertflow.evaluation.sweeping import Candidate, Sweep, SweepRow
from bertflow.moments import Moments
from bertflow.progress import bar
from bertflow.registry import lookup
from bertflow.similarity import COSINE
from bertflow.tables import number
from bertflow.text_keys import hash_texts, seen_share

ALL_BLOCKS = "sif"
"""A pooling that reads the last layer, so that the encoder is loaded once, with all blocks."""
CHUNK_BYTES = 2**28
"""Float32 that are held in memory before they are written."""
REDUCED = 64
CALIBRATORS = (RAW, "whitening", f"whitening({REDUCED})")
"""What every candidate is scored after."""
WEIGHTED = "weighted mean of all"
METRIC = "cosine_spearman"
AVERAGE = "average"
"""Name in place of a task where a value is the mean over all of them."""


def candidates(blocks: int, layers: Sequence[int] | str | None, tokens: Sequence[str] | str | None = None) -> list[str]:
    """The poolings of a sweep, by their spelling.

    Args:
        blocks: Number of blocks of the encoder.
        layers: Layers that are tried alone, from 0, also as "0,3,6"; all by default.
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
    wanted = numbered_layers(layers) or every
    for layer in wanted:
        if layer not in every:
            raise UsageError(f"layers go from 0 (embedding layer) to {blocks} for this encoder, got {layer}.")
    single = [str(Pooling((layer,), tokens=name)) for name in reductions for layer in wanted]
    several = [name for name, row in POOLINGS.items() if len(row.layers) > 1]
    return [*single, *readable([*several, str(Pooling(tuple(every)))], blocks)]


def numbered_layers(layers: Sequence[int] | str | None) -> list[int]:
    """Layers as numbers; none where none are named.

    Raises:
        UsageError: If they are something else.
    """
    try:
        return [int(part) for part in (layers.split(",") if isinstance(layers, str) else layers or ())]
    except ValueError:
        raise UsageError(f"layers should be numbers with commas between them, as 0,3,6; got {layers!r}.") from None


def readable(poolings: Sequence[str], blocks: int) -> list[str]:
    """Poolings whose layers an encoder of this many blocks has."""
    found = []
    for pooling in poolings:
        with suppress(UsageError):
            parse_pooling(pooling).resolve(blocks)
            found.append(pooling)
    return found


def try_poolings(
    encoder: TransformerEncoder,
    texts: Sequence[Any],
    poolings: Sequence[str],
    measure: Callable[[Candidate, Float32], Iterable[SweepRow]],
    progress: bool | None = None,
    encode: Callable[..., Mapping[str, Float32]] | None = None,
    each: float = 1,
) -> tuple[list[SweepRow], int]:
    """What is found for each pooling, with its embeddings alone in memory; and the bytes of scratch files.

    The texts are embedded once, by all poolings, into temporary files of float32 rows. The weighted mean of all layers
    comes last, if each layer's own mean is among the poolings.

    Args:
        encoder: The encoder, with all blocks that the poolings read: else it would load them again for each chunk.
        texts: One or more.
        poolings: Spellings.
        measure: What is found for a candidate, by its embeddings.
        progress: Whether to show a progress bar (default: in a terminal or a notebook).
        encode: Another method of the encoder that takes texts, poolings and progress, and gives rows for each text.
        each: How many rows it gives a text, on average.
    """
    encode, blocks = encode or encoder.encode_poolings, int(encoder.describe()["blocks"])
    layer = encoder.dim // parse_pooling(str(encoder.describe()["pooling"])).width(1)
    widths = {pooling: parse_pooling(pooling).width(layer) for pooling in poolings}
    chunk = max(1, int(CHUNK_BYTES / (4 * sum(widths.values()) * each)))
    rows, scratch = list[SweepRow](), 0
    with tempfile.TemporaryDirectory(prefix="bertflow-") as folder:
        files = {pooling: Path(folder) / f"{at}.f32" for at, pooling in enumerate(poolings)}
        for start in range(0, len(texts), chunk):
            for pooling, x in encode(texts[start : start + chunk], poolings, progress).items():
                with files[pooling].open("ab") as file:
                    x.tofile(file)

        def read(spelling: str) -> Float32:
            return np.fromfile(files[spelling], dtype=np.float32).reshape(-1, widths[spelling])

        with bar(len(poolings), "scoring", progress, "poolings") as advance:
            for spelling in poolings:
                row, x = parse_pooling(spelling), read(spelling)
                rows += measure(Candidate(spelling, row.tokens, row.resolve(blocks), x.shape[1]), x)
                scratch += x.nbytes
                advance(1)
        means = [str(Pooling((layer,))) for layer in range(blocks + 1)]
        if set(means) <= set(poolings):
            scaled = (x / np.float32(np.sqrt(np.square(x, dtype=np.float64).sum(1).mean())) for x in map(read, means))
            total = np.asarray(sum(scaled), dtype=np.float32)
            rows += measure(Candidate(WEIGHTED, "mean", tuple(range(blocks + 1)), total.shape[1]), total)
    return rows, scratch


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

    def measure(candidate: Candidate, x: Float32) -> Iterator[SweepRow]:
        for calibrator, z in _calibrated(x, fit_rows):
            fitted = seen if calibrator != RAW or candidate.tokens in COUNTED else 0.0
            system = candidate.pooling if calibrator == RAW else f"{candidate.pooling} {calibrator}"
            tried = replace(candidate, width=z.shape[1])
            for score in _scores(system, z, sets, row_of):
                facts = {"calibrator": calibrator, **score, "seen": fitted, "setting": setting(fitted)}
                yield SweepRow(tried, calibrator, score["value"], (number(score["value"]),), facts)

    rows, scratch = try_poolings(encoder, sentences, poolings, measure, progress)
    known, last = {row.pooling for row in rows}, rows[-1].facts
    constant = [name for name in poolings if name not in known]
    which = f"the {len(text)} scored" if fit_on is None else f"{len(text)} given"
    fitted_on = f"{which} sentences, without labels"
    what = f"average of {len(sets)} tasks" if last["task"] == AVERAGE else task_title(last["task"])
    described = recipe_of(encoder)
    how = [
        f"Spearman of the cosine x 100; {what}, {last['aggregation']}, {last['n']} pairs; {len(sentences)} sentences, "
        f"embedded once; {described['encoder']}.",
        f"Whitening and the token counts of sif were fitted on {fitted_on}: {setting(seen)} "
        f"({100 * seen:.0f} % of the scored sentences seen).",
        *(f"{name} gives every sentence the same vector, so it has no score." for name in constant),
    ]
    facts = {"constant": constant, "sentences": len(sentences), "fitted_on": fitted_on}
    return Sweep(CALIBRATORS, rows, described, facts, how, scratch)


def _calibrated(x: Float32, fit_rows: Intp) -> Iterator[tuple[str, Float32]]:
    """The embeddings raw, whitened, and whitened to their first directions: one fit does for both.

    One vector for all sentences (layer 0 of [CLS] gives it) has no score, raw or whitened.
    """
    moments = Moments.of(x[fit_rows])
    if np.trace(moments.covariance) <= NULL_SHARE**2 * moments.mean_square_norm:
        return
    yield RAW, x
    with without_null_warnings(), torch.inference_mode():  # every row says how many directions are left
        z = whitening_map(moments)(torch.from_numpy(x)).numpy()
    for name, dim in zip(CALIBRATORS[1:], (z.shape[1], REDUCED), strict=True):
        if dim <= z.shape[1]:
            yield name, z[:, :dim]


def _scores(system: str, x: Float32, sets: Sequence[Pairs], row_of: Mapping[str, int]) -> Iterator[dict[str, Any]]:
    """Task, aggregation, pairs and Spearman of the cosine of each task, and of their average if there are several."""
    values, n = [], 0
    for pairs in sets:
        [(_, first, second)] = checked_sides(pairs, pairs.rows(row_of), {system: x}, {}, "cosine")
        task = ScoredTask(pairs, "cosine", COSINE.paired(first, second)[None])
        # Of all pairs together if they can be ranked so.
        figure = next(one for one in task_figures(task, resamples=0, seed=0) if one.metric == METRIC and not one.subset)
        values.append(float(figure.values[0]))
        n += figure.n
        yield {"task": figure.task, "aggregation": figure.aggregation, "n": figure.n, "value": values[-1]}
    if len(sets) > 1:
        yield {"task": AVERAGE, "aggregation": "as each task", "n": n, "value": float(np.mean(values))}
