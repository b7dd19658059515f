"""Measuring: ``evaluate`` scores systems, ``sweep`` the layers and poolings of an encoder."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

from typing_extensions import Unpack

from bertflow import kinds
from bertflow.data.corpus import load_sentences
from bertflow.data.labeled import load_labels
from bertflow.data.sts import StsSource, load_sts, load_tasks
from bertflow.data.tables import table_suffix
from bertflow.encoder.options import EncoderOptions
from bertflow.errors import UsageError, require_between, require_seed
from bertflow.places import require_files
from bertflow.progress import peak_memory

EVERY = "raw,sif,center,standardize,abtt,whitening"
"""The cheap baselines, which stand beside a flow with several seeds."""


def evaluate(
    models: "list[str] | str | Sequence[kinds.SentenceEncoder] | kinds.SentenceEncoder",
    tasks: str | None = None,
    data_dir: str | Path = "hub",
    retrieval: "kinds.Pairs | str | Path | None" = None,
    binary: "kinds.Pairs | str | Path | None" = None,
    similarity: str = "cosine",
    aggregation: str = "all",
    compare: str = "",
    fit_on: Sequence[str] | str | Path | None = None,
    seeds: int | None = None,
    ceiling: bool = False,
    lexical: str | None = None,
    resamples: int = 1000,
    seed: int = 0,
    force: bool = False,
    fail_below: str = "",
    published: str | None = None,
    candidate_lists: "kinds.Pairs | str | Path | None" = None,
    columns: str | None = None,
    progress: bool | None = None,
    **options: Unpack[EncoderOptions],
) -> "kinds.Report":
    """Score systems on STS tasks, and on retrieval and binary tasks if asked for.

    A MODEL is an encoder (hub id or folder), a folder that CalibratedEncoder.save wrote, the folder of a run of train,
    or a file of word vectors (.vec, .txt, .gz). Tables are x 100.

    Args:
        models: What to score; several are compared. In Python also encoders. NAME=path sets the name in tables, which
            is the end of the path by default.
        tasks: Tasks, suites and tables of your own, with commas (default: sts7; none with retrieval or binary).
        data_dir: Folder of the STS data; the default is the hub, at pinned revisions.
        retrieval: Table of queries and their texts, to be ranked as well; docstrings: some of the installed packages.
        binary: Table of pairs labeled 0 or 1, scored by ROC AUC as well.
        similarity: cosine, dot, euclidean or manhattan.
        aggregation: Aggregation of the printed table: all, mean or wmean.
        compare: Baselines, with commas: raw,center,standardize,abtt(7),whitening(64),ridge(1),background(0.25),sif,...
        fit_on: Fit the baselines on this text; eval: on the scored sentences.
        seeds: Number of seeds: fit the flow of a run again with other seeds, on the run's own text (or fit_on). The
            result has mean, standard deviation, and intervals over pairs and seeds; without compare, beside every cheap
            baseline.
        ceiling: Add the score of a model that is trained on each task's own labels with the same embeddings, and how
            much of the gap to it each system closes.
        lexical: Task on which to measure whether similarities follow edit distance; without a value stsb-dev, as in the
            paper.
        resamples: Number of bootstrap resamples for the intervals; 0 for none.
        seed: Random seed for the bootstrap.
        force: Score, and mark, a system that was trained on the scored labels.
        fail_below: Exit code 4 if a MODEL scores less, as stsb=70,sts7=65.
        published: Print published figures of the scored tasks beside ours, and how their protocols differ; with a value
            only the figures that contain this text.
        candidate_lists: Table of query, text and label (1 or 0): each query's own candidates, scored by MAP and MRR.
        columns: Columns of your tables: two of text, and that of the score or label, as a,b,c; for retrieval a,b.
            Found by their names by default.
        progress: Whether to show a progress bar (default: in a terminal or a notebook).
        options: ``EncoderOptions``, for raw encoders; folders that bertflow wrote keep their own beside one.

    Returns:
        All numbers, with intervals, differences, and how each was made.

    Raises:
        UnknownNameError: For an unknown task, similarity, aggregation or baseline.
        UsageError: For options that do not go together.
        DataError: For data that is missing or damaged, a system trained on the labels, or embeddings that cannot be
            scored.

    Examples:
        ```bash
        bertflow evaluate bert-base-uncased --pooling first-last-avg --tasks sts7 --data_dir data/sts
        bertflow evaluate runs/mine --compare raw,center,whitening --data_dir data/sts --output scores
        bertflow evaluate runs/mine --seeds 5 --data_dir data/sts --output seeds
        bertflow evaluate bert-base-uncased --compare "sif,sif+whitening(64),abtt(7)" --fit_on text.txt
        bertflow evaluate bert-base-uncased glove.6B.300d.txt --compare static --ceiling --lexical --data_dir data/sts
        ```
    """
    from bertflow.calibration.spelling import RAW
    from bertflow.evaluation.evaluating import Addition, evaluate_models
    from bertflow.studies.ceiling import labeled_pairs
    from bertflow.studies.literature import PublishedFigures, matching
    from bertflow.studies.sections import CeilingStudy, LexicalStudy

    require_between(1, seeds=seeds)
    tables = {"retrieval": retrieval, "candidates": candidate_lists, "binary": binary}
    alone = all(given is None for given in tables.values())
    if ceiling and not alone:
        raise UsageError("The ceiling is learned from graded pairs, but another table was given. Leave one out.")
    names = StsSource(tasks or "sts7", data_dir).names if tasks or alone else ()
    if lexical:
        StsSource(lexical, data_dir)
    lines = None if published is None else matching(published, names)

    def studies() -> Iterator[Addition]:
        if lines is not None:
            yield PublishedFigures(lines)
        if ceiling:
            yield CeilingStudy(labeled_pairs(names, data_dir))
        if lexical:
            yield LexicalStudy(load_sts(lexical, data_dir), similarity)

    again = None
    if seeds is not None:
        from bertflow.evaluation.refitting import refit

        again = partial(refit, seeds)
    wanted = compare or (EVERY if seeds else "")
    scoring: kinds.ScoreOptions = {
        "similarity": similarity, "resamples": resamples, "seed": seed, "force": force, "progress": progress
    }  # fmt: skip
    baselines = f"{RAW},{wanted}" if ceiling else wanted
    given = models, names, data_dir, tables, columns
    return evaluate_models(*given, baselines, fit_on, again, aggregation, fail_below, studies, scoring, options)


def sweep(
    model: "str | Path | kinds.TransformerEncoder",
    layers: list[int] | str | None = None,
    tokens: list[str] | str | None = None,
    tasks: str | None = None,
    data_dir: str | Path | None = None,
    fit_on: Sequence[str] | str | Path | None = None,
    labels: str | Path | None = None,
    columns: list[int] | str | None = None,
    compare: list[str] | str | None = None,
    folds: int | None = None,
    seed: int | None = None,
    progress: bool | None = None,
    say: Callable[[str], None] | None = None,
    **options: Unpack[EncoderOptions],
) -> "kinds.Sweep":
    """Find the layer and the pooling for your encoder and your data.

    Scores every layer and pooling of an encoder on STS tasks, raw and whitened, from one pass over the text. With
    labels, the value is that of a cross-validated linear probe on your own labels, of texts or of words in their
    sentences. Choose on tuning, and report on the test sets.

    Args:
        model: An encoder: hub id or folder.
        layers: Layers to try alone, as 0,3,6 (default: all).
        tokens: Token reductions to try, as mean,cls (default: all; for words mean and cls, the first piece).
        tasks: STS tasks (default: tuning).
        data_dir: Folder of the STS data (default: the hub, at pinned revisions).
        fit_on: Text to fit whitening and token counts on (default: the scored sentences, without their labels).
        labels: Labels for a probe, instead of STS tasks: lines sentence<TAB>label, or a table with text and label; or
            CoNLL columns, the word first and the tag last, with an empty line between sentences.
        columns: Columns of text and label in the table of labels, as a,b; of word and tag in CoNLL columns, as 1,2; of
            two texts and their score in a table of tasks, as a,b,c (default: found by their names; in CoNLL columns
            1,-1, the first and the last; .conllu: 2,4).
        compare: Calibrators of the word vectors before the probe, such as raw,sn,whitening(64) (default:
            raw,whitening).
        folds: Folds of the probe's cross-validation (default: 5).
        seed: Random seed for the folds, and for the interval of words (default: 0).
        progress: Whether to show a progress bar (default: in a terminal or a notebook).
        say: Takes a line on time, memory and disk.
        options: ``EncoderOptions`` without a pooling.

    Returns:
        All values with their table, and the best of them.

    Raises:
        UsageError: For options that do not go together, or layers that the encoder does not have.
        UnknownNameError: For an unknown token reduction or task.
        DataError: For data that cannot be read, or embeddings that cannot be scored or whitened.

    Examples:
        ```bash
        bertflow sweep bert-base-uncased --data_dir data/sts --output sweeps/bert
        bertflow sweep bert-base-uncased --layers 0,6,12 --tokens mean,cls --labels topics.tsv
        bertflow sweep bert-base-cased --labels eng.testa --compare raw,sn,whitening
        ```
    """
    from bertflow.calibration.spelling import RAW, parse_calibrator, split_spellings
    from bertflow.data.labeled import is_conll, load_conll
    from bertflow.evaluation.poolings import ALL_BLOCKS, candidates, numbered_layers, sweep_poolings
    from bertflow.opening import load_transformer
    from bertflow.studies.probing import COMPARED, TOKENS, probe_texts, probe_words

    begin = perf_counter()
    _refuse(bool(labels), "is for STS tasks, not for labels", tasks=tasks, data_dir=data_dir, fit_on=fit_on)
    _refuse(not labels, "needs labels", folds=folds, seed=seed)
    require_seed(seed)
    require_between(2, folds=folds)
    require_files(labels, fit_on)
    words = bool(labels) and is_conll(labels or "")
    _refuse(not words, "needs labels in CoNLL columns", compare=compare)
    if options.get("pooling"):
        raise UsageError("A sweep tries many poolings, so it takes none. Choose among them with layers and tokens.")
    pair = _two_columns(columns) if words else None
    after = split_spellings(compare) if isinstance(compare, str) else compare or COMPARED
    for name in set(after) - {RAW}:
        parse_calibrator(name)
    if not (labels or tasks or data_dir):
        raise UsageError(
            "A sweep needs scores or labels to judge by, got none. Give --tasks: a table with the columns sentence1, "
            "sentence2 and score, or a task as stsb-dev; or --labels FILE; or --data_dir, the folder of the STS data."
        )
    where = data_dir or "hub"
    names = () if labels else StsSource(tasks or "tuning", where).names
    _refuse(not (labels or any(map(table_suffix, names))), "needs labels, or a table in tasks", columns=columns)
    encoder = load_transformer(model, **options).with_pooling(ALL_BLOCKS)
    poolings = candidates(encoder.spec.folder.blocks, layers, tokens or (TOKENS if words else None))
    if labels and words:
        result = probe_words(encoder, load_conll(labels, pair), poolings, after, folds or 5, seed or 0, progress)
    elif labels:
        result = probe_texts(encoder, load_labels(labels, columns), poolings, folds or 5, seed or 0, progress)
    else:
        sets = load_tasks(names, where, [*map(str, columns)] if isinstance(columns, list) else columns)
        fitted_on = load_sentences(fit_on) if isinstance(fit_on, str | Path) else fit_on
        result = sweep_poolings(encoder, sets, poolings, fitted_on, progress)
    if say:
        peak, disk = peak_memory(), round(result.scratch_bytes / 2**20)
        memory = f"at most {round(peak / 2**20)} MiB of memory, " if peak else ""
        say(f"{perf_counter() - begin:.1f} s, {memory}{disk} MiB of scratch files.")
    return replace(result, asked=numbered_layers(layers))


def _refuse(ignored: bool, why: str, **options: Any) -> None:
    """Refuse options that would be ignored."""
    for name, value in options.items():
        if ignored and value is not None:
            raise UsageError(f"The option {name} {why}. Leave it out.")


def _two_columns(columns: list[int] | str | None) -> list[int] | None:
    if columns is None:
        return None
    try:
        word, tag = map(int, columns.split(",") if isinstance(columns, str) else columns)
    except ValueError:
        raise UsageError(f"columns takes those of word and tag, as 1,2 or 1,-1; got {columns!r}.") from None
    return [word, tag]
