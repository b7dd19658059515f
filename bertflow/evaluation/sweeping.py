"""Which layer, which pooling? Every candidate on the same tasks, from one pass over the text.

    layers 0 ... last  x  token reductions       one layer each
    last-2-avg ... concat-last-4, mean of all    several layers
    weighted mean of all                         every layer scaled to the same root mean square norm

each raw, whitened, and whitened to 64 directions. The rows that the authors of BERT tried (last, second to last, sum
and concatenation of the last four, weighted sum of all) are among them; their weights were learned from labels, ours
are not. Under the cosine a sum over layers is their mean, so the sum of all has no row of its own.

Or, with labels, a linear probe of every candidate: how well does a linear classifier tell the labels apart?

    embeddings -> StandardScaler -> LogisticRegression,   accuracy over stratified folds

The scaler is fitted inside each fold, on its training part. A probe sees labels: it says what an embedding holds, not
what its cosine shows.
"""

import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from bertflow.data.corpus import LabelledText, load_labels, load_sentences
from bertflow.data.pairs import Pairs, unique_sentences
from bertflow.data.sts import expand_tasks, load_sts
from bertflow.errors import DataError, UsageError
from bertflow.evaluation.sweep_results import (
    AVERAGE,
    CALIBRATORS,
    METRIC,
    RAW,
    REDUCED,
    WEIGHTED,
    Candidate,
    Probe,
    ProbeRow,
    Sweep,
    SweepRow,
)
from bertflow.progress import peak_memory
from bertflow.registry import lookup
from bertflow.text_keys import hash_texts, seen_share

if TYPE_CHECKING:
    from bertflow.encoder.transformer import TransformerEncoder
    from bertflow.evaluation.encoding import Embeddings, Scratch

    Scores = list[NDArray[np.float64]]  # similarities (n,) of the pairs of each task

NOT_OF_THE_SWEEP = ("pooling", "layers", "token_counts")
"""Parts of an encoder's description that each candidate has its own of."""
ALL_BLOCKS = "sif"
"""A pooling that reads the last layer, so that the encoder is loaded once, with all blocks."""
ITERATIONS = 1000
"""Of the optimizer of the probe; scaled embeddings need some tens."""


def sweep(
    model: "str | Path | TransformerEncoder",
    layers: list[int] | str | None = None,
    tokens: list[str] | str | None = None,
    tasks: str | None = None,
    data_dir: str | Path | None = None,
    fit_on: Sequence[str] | str | Path | None = None,
    labels: str | Path | None = None,
    folds: int | None = None,
    seed: int | None = None,
    max_length: int | None = None,
    dtype: str | None = None,
    device: str = "auto",
    progress: bool | None = None,
    say: Callable[[str], None] | None = None,
) -> Sweep | Probe:
    """Find the layer and the pooling for your encoder and your data.

    Scores every layer and pooling of an encoder on STS tasks, raw and whitened, from one pass over the text. With
    labels: a cross-validated linear probe on your own labels instead. Choose on tuning, report on the test sets.

    Args:
        model: An encoder: hub id or folder.
        layers: Layers to try alone, as 0,3,6 (default: all).
        tokens: Token reductions to try, as mean,cls (default: all).
        tasks: STS tasks (default: tuning).
        data_dir: Folder of the STS data (default: the hub, at pinned revisions).
        fit_on: Text to fit whitening and token counts on (default: the scored sentences, without their labels).
        labels: Probe instead: lines sentence<TAB>label, or a table with text and label.
        folds: Folds of the probe's cross-validation (default: 5).
        seed: Random seed for the folds (default: 0).
        max_length: In tokens (default: the encoder's own, else 128).
        dtype: float32, float16 or bfloat16 (default: float32).
        device: cpu, cuda, ...
        progress: Whether to show a progress bar (default: in a terminal or a notebook).
        say: Takes a line on time, memory and disk.

    Returns:
        All values with their table, and the best of them.

    Raises:
        UsageError: For options that do not go together, or layers that the encoder does not have.
        UnknownNameError: For an unknown token reduction or task.
        DataError: For data that cannot be read, or embeddings that cannot be scored or whitened.
    """
    from bertflow.encoder.pooling import TOKEN_REDUCTIONS
    from bertflow.encoder.transformer import TransformerEncoder

    begin = perf_counter()
    of_sts, of_probe = {"tasks": tasks, "data_dir": data_dir, "fit_on": fit_on}, {"folds": folds, "seed": seed}
    for name, value in (of_sts if labels else of_probe).items():  # it would be ignored
        if value is not None:
            theirs = "STS tasks, which labels does without" if labels else "probe, which needs labels"
            raise UsageError(f"The option {name} belongs to the {theirs}. Leave one out.")
    if isinstance(model, TransformerEncoder):
        encoder = model
    else:
        encoder = TransformerEncoder(str(model), ALL_BLOCKS, max_length, device, dtype)
    blocks = int(encoder.describe()["blocks"])
    reductions = tokens.split(",") if isinstance(tokens, str) else tokens
    for name in reductions or ():
        lookup("token reduction", TOKEN_REDUCTIONS, name)
    poolings = candidates(blocks, _layers(layers, blocks), reductions)
    result: Sweep | Probe
    if labels:
        labelled = load_labels(labels)
        result = probe_poolings(encoder, labelled, poolings, 5 if folds is None else folds, seed or 0, progress)
    else:
        where = data_dir or "hub"
        sets = [load_sts(task, where) for task in expand_tasks(tasks or "tuning", where)]
        text = load_sentences(fit_on) if isinstance(fit_on, str | Path) else fit_on
        result = sweep_poolings(encoder, sets, poolings, text, progress)
    if say:
        peak, disk = peak_memory(), round(result.scratch_bytes / 2**20)
        memory = f"at most {round(peak / 2**20)} MiB of memory, " if peak else ""
        say(f"{perf_counter() - begin:.1f} s, {memory}{disk} MiB of scratch files.")
    return result


def _layers(spelling: list[int] | str | None, blocks: int) -> list[int] | None:
    if spelling is None:
        return None
    try:
        layers = [int(part) for part in (spelling.split(",") if isinstance(spelling, str) else spelling)]
    except ValueError:
        raise UsageError(f"layers takes numbers with commas, as 0,3,6; got {spelling!r}.") from None
    for layer in layers:
        if not 0 <= layer <= blocks:
            raise UsageError(f"layers go from 0 (embedding layer) to {blocks} for this encoder, got {layer}.")
    return layers


def candidates(blocks: int, layers: Sequence[int] | None = None, tokens: Sequence[str] | None = None) -> list[str]:
    """The poolings of a sweep, by their spelling.

    Args:
        blocks: Number of blocks of the encoder.
        layers: For the candidates of one layer, from 0; all by default.
        tokens: Their token reductions; all by default.
    """
    from bertflow.encoder.pooling import POOLINGS, TOKEN_REDUCTIONS, Pooling
    from bertflow.evaluation.encoding import readable

    wanted = range(blocks + 1) if layers is None else layers
    reductions = list(TOKEN_REDUCTIONS) if tokens is None else tokens
    single = [str(Pooling((layer,), tokens=name)) for name in reductions for layer in wanted]
    several = [name for name, row in POOLINGS.items() if len(row.layers) > 1]
    return [*single, *readable([*several, str(Pooling(tuple(range(blocks + 1))))], blocks)]


def sweep_poolings(
    encoder: "TransformerEncoder",
    sets: Sequence[Pairs],
    poolings: Sequence[str],
    fit_on: Sequence[str] | None = None,
    progress: bool | None = None,
) -> Sweep:
    """Score every pooling on every task, raw and whitened.

    Args:
        encoder: Its own pooling does not matter, but all blocks that are read should be loaded. Its token counts, which
            ``sif`` reads, are counted anew.
        sets: The tasks.
        poolings: Spellings, as ``candidates`` gives them.
        fit_on: Text to fit whitening and token counts on; by default the scored sentences, without their labels.
        progress: Whether to show a progress bar (default: in a terminal or a notebook).

    Raises:
        DataError: For embeddings that cannot be scored or whitened.
    """
    from bertflow.evaluation.encoding import embed_poolings, row_numbers

    scored = unique_sentences(sets)
    text = list(dict.fromkeys(scored if fit_on is None else fit_on))
    sentences = list(dict.fromkeys([*scored, *text]))
    row_of = row_numbers(sentences)
    fit_rows = np.array([row_of[sentence] for sentence in text])
    seen = seen_share(scored, hash_texts(text))
    encoder.count_tokens(text)
    blocks = int(encoder.describe()["blocks"])
    with embed_poolings(encoder, sentences, poolings, progress) as scratch:
        score = partial(_scores, [(pairs, pairs.rows(row_of)) for pairs in sets])
        systems = [
            one
            for candidate, x in _embeddings(scratch, poolings, blocks)
            for one in _calibrated(candidate, x, fit_rows, score)
        ]
        nbytes = scratch.nbytes
    rows = _rows([candidate for candidate, _ in systems], [scores for _, scores in systems], sets, seen)
    recipe = {key: value for key, value in encoder.describe().items() if key not in NOT_OF_THE_SWEEP}
    which = f"the {len(text)} scored sentences" if fit_on is None else f"{len(text)} given sentences"
    constant = tuple(name for name in poolings if all(name != candidate.pooling for candidate, _ in systems))
    return Sweep(tuple(rows), recipe, nbytes, constant, len(sentences), f"{which}, without labels", seen)


def _embeddings(scratch: "Scratch", poolings: Sequence[str], blocks: int) -> "Iterator[tuple[Candidate, Embeddings]]":
    """Each candidate with its embeddings, one in memory at a time."""
    from bertflow.encoder.pooling import Pooling, parse_pooling

    for spelling in poolings:
        pooling, x = parse_pooling(spelling), scratch.read(spelling)
        yield Candidate(spelling, pooling.tokens, pooling.resolve(blocks), x.shape[1]), x
    means = [str(Pooling((layer,))) for layer in range(blocks + 1)]
    if set(means) <= set(poolings):
        layers = (scratch.read(spelling) for spelling in means)
        scaled = (x / np.float32(np.sqrt(np.square(x, dtype=np.float64).sum(1).mean())) for x in layers)
        total = np.asarray(sum(scaled), dtype=np.float32)
        yield Candidate(WEIGHTED, "mean", tuple(range(blocks + 1)), total.shape[1]), total


def _scores(sides: "Sequence[tuple[Pairs, NDArray[np.intp]]]", name: str, x: "Embeddings") -> "Scores":
    """The cosines of the pairs of each task."""
    from bertflow.evaluation.encoding import checked_sides
    from bertflow.similarity import SIMILARITIES

    found = (both for pairs, rows in sides for _, *both in checked_sides(pairs, rows, {name: x}, {}))
    return [SIMILARITIES["cosine"].paired(first, second) for first, second in found]


def _calibrated(
    candidate: Candidate, x: "Embeddings", fit_rows: NDArray[np.intp], score: "Callable[[str, Embeddings], Scores]"
) -> "Iterator[tuple[Candidate, Scores]]":
    """The candidate raw, whitened, and whitened to its first directions: one fit does for both.

    A candidate that is one vector for all sentences (layer 0 of [CLS] is) has no score, raw or whitened.
    """
    import torch

    from bertflow.affine import NULL_SHARE, whitening_map
    from bertflow.errors import NullDirectionWarning
    from bertflow.moments import Moments

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
            yield replace(candidate, calibrator=name, width=dim), score(f"{candidate.pooling} {name}", z[:, :dim])


def _rows(
    systems: Sequence[Candidate], scores: "Sequence[Scores]", sets: Sequence[Pairs], seen: float
) -> Iterator[SweepRow]:
    from bertflow.encoder.pooling import COUNTED
    from bertflow.evaluation.figures import ScoredTask, task_figures

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
            yield SweepRow(system, AVERAGE, "as each task", n, float(np.mean(own)), fitted)


def probe_poolings(
    encoder: "TransformerEncoder",
    labelled: LabelledText,
    poolings: Sequence[str],
    folds: int = 5,
    seed: int = 0,
    progress: bool | None = None,
) -> Probe:
    """Cross-validate a linear probe on every pooling.

    Args:
        encoder: As for ``sweep_poolings``; its token counts are counted anew, on these texts.
        labelled: Texts and their labels.
        poolings: Spellings.
        folds: Two or more.
        seed: Random seed for the folds.
        progress: Whether to show a progress bar (default: in a terminal or a notebook).

    Raises:
        UsageError: For fewer than two folds.
        DataError: If a label has fewer texts than there are folds.
    """
    from bertflow.evaluation.encoding import embed_poolings

    counts = Counter(labelled.labels)
    label, fewest = counts.most_common()[-1]
    if folds < 2:
        raise UsageError(f"A cross-validation needs two folds or more, got {folds}.")
    if fewest < folds:
        raise DataError(
            f"Every label needs a text in each of {folds} folds, but {label!r} has {fewest}. "
            "Give more text, or fewer folds."
        )
    encoder.count_tokens(labelled.texts)
    description, rows = encoder.describe(), []
    with embed_poolings(encoder, labelled.texts, poolings, progress) as scratch:
        for candidate, x in _embeddings(scratch, poolings, description["blocks"]):
            if candidate.pooling in poolings:
                accuracies = accuracy_of_folds(x, labelled.labels, folds, seed)
                rows.append(ProbeRow(candidate, float(accuracies.mean()), float(accuracies.std(ddof=1))))
        nbytes = scratch.nbytes
    recipe = {key: value for key, value in description.items() if key not in NOT_OF_THE_SWEEP}
    n, most = len(labelled.labels), max(counts.values())
    return Probe(tuple(rows), recipe, nbytes, n, len(counts), most / n, folds, seed, labelled.source)


def accuracy_of_folds(x: "Embeddings", labels: Sequence[str], folds: int, seed: int) -> NDArray[np.float64]:
    """Accuracy (folds,) of a logistic regression on embeddings (n, width), each fold left out in turn."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold, cross_val_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    pipeline = make_pipeline(StandardScaler(), LogisticRegression(max_iter=ITERATIONS))
    splits = StratifiedKFold(folds, shuffle=True, random_state=seed)
    return np.asarray(cross_val_score(pipeline, x.astype(np.float64), np.asarray(labels), cv=splits))
