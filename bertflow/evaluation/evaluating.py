"""``evaluate``: open the systems, fit their baselines, score them on everything that is asked for.

Everything that depends on the time or the machine goes to ``run.json``; the other files are equal for equal input.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from bertflow.data.corpus import load_sentences
from bertflow.data.pairs import load_pairs, unique_sentences
from bertflow.data.sts import expand_tasks, load_sts
from bertflow.errors import UsageError
from bertflow.registry import lookup

if TYPE_CHECKING:
    from bertflow.data.pairs import Pairs
    from bertflow.encoder.abstract import SentenceEncoder
    from bertflow.evaluation.report import Report
    from bertflow.evaluation.systems import Opened
    from bertflow.tables import Section

LABELLED = "tuning"
"""The labelled pairs that the supervised ceiling is trained on."""


def evaluate(
    models: "list[str] | str | Sequence[SentenceEncoder] | SentenceEncoder",
    pooling: str | None = None,
    max_length: int | None = None,
    dtype: str | None = None,
    device: str = "auto",
    tasks: str | None = None,
    data_dir: str | Path = "hub",
    retrieval: "Pairs | str | Path | None" = None,
    binary: "Pairs | str | Path | None" = None,
    similarity: str = "cosine",
    aggregation: str = "all",
    compare: str = "",
    fit_on: Sequence[str] | str | Path | None = None,
    ceiling: bool = False,
    lexical: str | None = None,
    resamples: int = 1000,
    seed: int = 0,
    force: bool = False,
    fail_below: str = "",
    published: str | None = None,
    progress: bool | None = None,
) -> "Report":
    """Score systems on STS tasks, and on retrieval and binary tasks if asked for.

    A MODEL is an encoder (hub id or folder), a folder that CalibratedEncoder.save wrote, the folder of a train.py run,
    or a file of word vectors (.vec, .txt, .gz). Tables are x 100.

    Args:
        models: What to score; several are compared. In Python also encoders.
        pooling: Pooling of raw encoders: a row, or written out as mean(1,2) (default: its own, else mean).
        max_length: Maximum number of tokens of raw encoders (default: its own, else 128).
        dtype: Of raw encoders: float32, float16 or bfloat16 (default: float32).
        device: cpu, cuda, ...
        tasks: Tasks, suites and tables of your own, with commas (default: sts7; none with retrieval or binary).
        data_dir: Folder of the STS data; the default is the hub, at pinned revisions.
        retrieval: Table of queries and their texts, to be ranked as well.
        binary: Table of pairs labelled 0 or 1, scored by ROC AUC as well.
        similarity: cosine, dot, euclidean or manhattan.
        aggregation: Of the printed table: all, mean or wmean.
        compare: Baselines, with commas: raw,center,standardize,abtt(7),whitening(64),sif,static,...
        fit_on: Fit the baselines on this text; eval: on the scored sentences.
        ceiling: Add what labels (tuning) make of each encoder, and the share of that gap which is closed.
        lexical: Do similarities follow edit distance? On this task; without a value stsb-dev, as in the paper.
        resamples: Number of bootstrap resamples for the intervals; 0 for none.
        seed: Random seed for the bootstrap.
        force: Score, and mark, a system that was trained on the scored labels.
        fail_below: Exit code 4 if a MODEL scores less, as stsb=70,sts7=65.
        published: Published figures beside ours: those that hold this text; without a value all.
        progress: Whether to show a progress bar (default: in a terminal or a notebook).

    Returns:
        All numbers, with intervals, differences, and how each was made.

    Raises:
        UnknownNameError: For an unknown task, similarity, aggregation or baseline.
        UsageError: For options that do not go together.
        DataError: For data that is missing or damaged, a system trained on the labels, or embeddings that cannot be
            scored.
    """
    from bertflow.calibration.spelling import RAW, parse_systems
    from bertflow.evaluation.ceiling import ceiling_system
    from bertflow.evaluation.figures import AGGREGATIONS
    from bertflow.evaluation.lexical import lexical_table
    from bertflow.evaluation.report import Report
    from bertflow.evaluation.systems import build_systems
    from bertflow.evaluation.tasks import evaluate_binary, evaluate_retrieval, score_sets
    from bertflow.evaluation.verification import matching
    from bertflow.similarity import SIMILARITIES

    thresholds, baselines = parse_thresholds(fail_below), parse_systems(compare)
    lookup("similarity", SIMILARITIES, similarity)
    lookup("aggregation", AGGREGATIONS, aggregation)
    if fit_on is not None and not baselines:
        raise UsageError("fit_on is for the baselines, but none were asked for. Add compare, as center,whitening.")
    if resamples < 0:
        raise UsageError(f"resamples should be 0 or more, got {resamples}.")
    theirs = () if published is None else tuple(matching(published, aggregation))
    # Everything is read before anything is computed.
    ranked, paired = _pairs(retrieval, "retrieval"), _pairs(binary, "binary")
    names = expand_tasks(tasks or "sts7", data_dir) if tasks or not (ranked or paired) else ()
    sets = [load_sts(task, data_dir) for task in names]
    edited = load_sts(lexical, data_dir) if lexical else None
    labelled = load_sts(LABELLED, data_dir) if ceiling else None
    options = {"pooling": pooling, "max_length": max_length, "dtype": dtype}
    opened = _opened(
        [models] if isinstance(models, str) or not isinstance(models, Sequence) else models, device, options
    )
    corpus = _corpus(fit_on, [*sets, *(pairs for pairs in (ranked, paired) if pairs)])
    top = partial(ceiling_system, pairs=labelled, scored=sets, progress=progress) if labelled else None
    systems = build_systems(opened, baselines, corpus, progress, top)
    reports = []
    if sets:
        reports.append(score_sets(systems, sets, similarity, resamples, seed, force, progress))
    if ranked:
        reports.append(evaluate_retrieval(systems, ranked, similarity, resamples, seed, progress))
    if paired:
        reports.append(evaluate_binary(systems, paired, similarity, resamples, seed, force, progress))
    report = replace(Report.joined(reports), aggregation=aggregation, theirs=theirs)
    words = lexical_table(systems, edited, similarity, progress) if edited else None
    required = {one.name for one in opened if one.calibrator} or {name for name in systems if name.startswith(RAW)}
    return replace(
        report,
        lexical=words,
        sections=(*(_gaps(report) if ceiling else ()), *([words.section()] if words else ())),
        below=report.shortfalls(thresholds, sorted(required)),
    )


def parse_thresholds(spelling: str) -> dict[str, float]:
    """Thresholds x 100 by task or suite, from ``stsb=70,sts7=65``.

    Raises:
        UsageError: If a part is not a task, an equals sign and a number.
    """
    thresholds = {}
    for part in filter(None, (part.strip() for part in spelling.split(","))):
        task, equals, limit = part.partition("=")
        try:
            if not equals:
                raise ValueError
            thresholds[task.strip()] = float(limit)
        except ValueError:
            raise UsageError(f"A threshold is written task=score, as stsb=70; got {part!r}.") from None
    return thresholds


def _pairs(given: "Pairs | str | Path | None", kind: str) -> "Pairs | None":
    return load_pairs(given, kind) if isinstance(given, str | Path) else given


def _corpus(fit_on: Sequence[str] | str | Path | None, scored: "Sequence[Pairs]") -> list[str] | None:
    """The text that baselines are fitted on; the sentences of the lexical table change no other score."""
    if fit_on is None:
        return None
    if fit_on == "eval":
        return unique_sentences(scored)
    return load_sentences(fit_on) if isinstance(fit_on, str | Path) else list(dict.fromkeys(fit_on))


def _opened(
    models: "Sequence[str | SentenceEncoder]", device: str, options: Mapping[str, str | int | None]
) -> "list[Opened]":
    from bertflow.evaluation.systems import Opened, open_system

    given = {name: value for name, value in options.items() if value is not None}
    opened = [
        open_system(str(model), device, **given)
        if isinstance(model, str | Path)
        else Opened(str(model.describe().get("encoder", type(model).__name__)), model)
        for model in models
    ]
    if given and all(one.calibrator or one.recipe is None for one in opened):
        raise UsageError(
            f"{next(iter(given))} is for an encoder as it comes, but what was given is calibrated and keeps what it "
            "was fitted with, or word vectors, which have none. Leave it out."
        )
    return opened


def _gaps(report: "Report") -> "list[Section]":
    """For each encoder with a ceiling, which share of the gap between raw and ceiling the systems close."""
    from bertflow.calibration.spelling import RAW
    from bertflow.evaluation.ceiling import gap_section
    from bertflow.evaluation.systems import CEILING

    names = [facts.name for facts in report.systems if facts.name.split()[0] == CEILING]
    return [gap_section(report, RAW + name.removeprefix(CEILING), name) for name in names]
