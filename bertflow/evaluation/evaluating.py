"""Systems are scored on pairs of any kind, and become a report; ``evaluate`` opens them and fits baselines first."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import numpy as np
from typing_extensions import TypedDict, Unpack

from bertflow.array_types import Float64
from bertflow.calibration.spelling import RAW, parse_systems
from bertflow.data import DOCSTRINGS
from bertflow.data.corpus import load_sentences
from bertflow.data.docstrings import DOCSTRING_PAIRS, SOME_FILES, docstring_pairs
from bertflow.data.pairs import Pairs, load_pairs, unique_sentences
from bertflow.data.sts import StsSource, load_tasks, own_task
from bertflow.data.sts_tasks import suites_of
from bertflow.data.tables import table_name, table_suffix
from bertflow.encoder.options import EncoderOptions
from bertflow.errors import MOST_RESAMPLES, DataError, UsageError, require_between, require_seed
from bertflow.evaluation.aggregation import AGGREGATIONS, ScoredTask, suite_figures, task_figures
from bertflow.evaluation.names import Model, Text, distinct_names, split_name
from bertflow.evaluation.report import Report
from bertflow.evaluation.score_table import SystemFacts, make_rows, refuse_label_leaks
from bertflow.evaluation.seeds import SeveralSeeds, the_flow
from bertflow.evaluation.sides import Sides, Systems, encode_sets
from bertflow.evaluation.significance import Figure, differences, enough
from bertflow.evaluation.systems import SharedPass, build_systems, require_fitted_on, say_choices
from bertflow.evaluation.thresholds import parse_thresholds, shortfalls
from bertflow.evaluation.ungraded import UNGRADED
from bertflow.opening import load_each
from bertflow.places import require_files
from bertflow.progress import working
from bertflow.registry import lookup
from bertflow.similarity import SIMILARITIES


class ScoreOptions(TypedDict, total=False):
    """How systems are scored.

    Attributes:
        similarity: cosine, dot, euclidean or manhattan (default: cosine).
        resamples: Number of bootstrap resamples for the intervals; 0 for none (default: 1000). At least 400 for each
            task, so that a difference can be significant after correction over the tasks.
        seed: Random seed for the bootstrap (default: 0).
        force: Score, and mark, systems that were trained on labels of the scored pairs.
        progress: Whether to show a progress bar (default: in a terminal or a notebook).
    """

    similarity: str
    resamples: int
    seed: int
    force: bool
    progress: bool | None


class PairScorer(Protocol):
    """A system that scores pairs, and embeds nothing."""

    def facts(self, name: str) -> SystemFacts:
        """What a report says of it, under its name in tables."""

    def scores(self, pairs: Pairs) -> Float64:
        """How similar it finds each pair (n,)."""


def evaluate_sts(
    systems: Systems, tasks: str | Sequence[str] = "sts7", data_dir: str | Path = "hub", **options: Unpack[ScoreOptions]
) -> Report:
    """Score systems on STS tasks.

    Args:
        systems: Encoders, raw or calibrated, by the name they have in the report. Those that share an encoder share
            its pass over the distinct sentences of all tasks.
        tasks: Tasks and suites, as ``"sts7"``, ``"sts12,stsb"`` or a list; also tables of your own.
        data_dir: The folder of the data, or ``hub``.
        options: ``ScoreOptions``.

    Raises:
        UnknownNameError: For an unknown task or similarity.
        DataError: For data that is missing or damaged, a system trained on the labels, embeddings that are not finite,
            or similarities without variance.
    """

    def sets() -> Iterator[Pairs]:  # looked for, and loaded one by one, after the systems were looked at
        yield from StsSource(tasks, data_dir)

    return score_sets(systems, sets(), **options)


def evaluate_retrieval(systems: Systems, pairs: Pairs, **options: Unpack[ScoreOptions]) -> Report:
    """Rank all texts for each query, by every system; or the candidates of each query, by MAP and MRR.

    Args:
        systems: Encoders, raw or calibrated, by the name they have in the report.
        pairs: Queries, each with its one right text; of the kind ``candidates`` queries with texts of their own, whose
            target is 1 or 0 (``bertflow.evaluation.ungraded``).
        options: ``ScoreOptions``; resamples are drawn among the queries.

    Raises:
        UnknownNameError: For an unknown similarity.
        DataError: For embeddings that are not finite, or of length zero, or queries without right and wrong candidates.
    """
    return score_sets(systems, [pairs if pairs.kind == "candidates" else replace(pairs, kind="retrieval")], **options)


def evaluate_binary(systems: Systems, pairs: Pairs, **options: Unpack[ScoreOptions]) -> Report:
    """ROC AUC of the similarity, by every system; the options are those of ``evaluate_sts``.

    Resamples are drawn among the positive and among the negative pairs, so that their shares stay.

    Raises:
        UnknownNameError: For an unknown similarity.
        DataError: For a system trained on the labels, or embeddings that have no similarity.
    """
    return score_sets(systems, [replace(pairs, kind="binary")], **options)


@working("scoring the pairs")
def score_sets(
    systems: Systems,
    sets: Iterable[Pairs],
    similarity: str = "cosine",
    resamples: int = 1000,
    seed: int = 0,
    force: bool = False,
    progress: bool | None = None,
    scorers: Mapping[str, PairScorer] | None = None,
    seeds: SeveralSeeds | None = None,
) -> Report:
    """Score systems on pairs of any kind, and the mean over ``seeds``; see ``bertflow.evaluate_sts``.

    Where ``resamples`` are too few for the number of tasks, there are more. Scorers are for graded pairs alone.
    """
    if not isinstance(systems, Mapping):
        raise UsageError(
            f"systems should be a dict of names and encoders, as {{'raw': encoder}}; got a {type(systems).__name__}."
        )
    sets, scorers = list(sets), scorers or {}
    resamples = enough(resamples, len(sets))
    facts = [SystemFacts.of(name, system) for name, system in systems.items()]
    facts += [scorer.facts(name) for name, scorer in scorers.items()]
    refuse_label_leaks(facts, [pairs.task for pairs in sets if pairs.kind != "retrieval" and not force])
    tasks: list[ScoredTask] = []
    figures: list[Figure] = []
    for pairs, sides in zip(sets, encode_sets(systems, sets, similarity, progress), strict=True):
        if pairs.kind in UNGRADED:
            figures += UNGRADED[pairs.kind](pairs, sides, similarity, resamples, seed)
        else:
            tasks.append(_scored(pairs, sides, similarity, scorers))
            figures += task_figures(tasks[-1], resamples, seed)
    parts = {pairs.task: [pairs] for pairs in sets}
    suites = suites_of({task.pairs.task for task in tasks})
    for suite, members in suites.items():
        figures += suite_figures(suite, [task for task in tasks if task.pairs.task in members], resamples, seed)
        parts[suite] = [pairs for pairs in sets if pairs.task in members]
    mean = seeds.facts(facts) if seeds else None
    if seeds:
        figures = [seeds.with_mean(figure, [one.name for one in facts], seed) for figure in figures]
    described = [*facts, mean] if mean else facts
    rows, names = make_rows(described, figures, parts), [one.name for one in described]
    found = tuple(rows), tuple(differences(names, figures, suites)), tuple(facts)
    of_seeds = seeds.systems if seeds else ()
    return Report(*found, resamples, seed, figures[0].metric, tuple(tasks), mean=mean, seeds=of_seeds)


def _scored(pairs: Pairs, sides: Sides, similarity: str, scorers: Mapping[str, PairScorer]) -> ScoredTask:
    paired = SIMILARITIES[similarity].paired
    similarities = {system: paired(first, second) for system, first, second in sides}
    similarities |= {name: scorer.scores(pairs) for name, scorer in scorers.items()}
    for system, scores in similarities.items():
        if np.ptp(scores) == 0:
            same = all(map(str.__eq__, pairs.first, pairs.second))
            why = "Both texts of every pair are the same" if same else "Its embeddings have collapsed: fit again"
            raise DataError(
                f"The system {system} finds all {len(scores)} pairs of {pairs.task} equally similar ({scores[0]:g}), "
                f"so there is no correlation. {why}."
            )
    return ScoredTask(pairs, similarity, np.stack(list(similarities.values())))


class Addition:
    """What a report may have besides the scores of what was named."""

    def scorers(self, systems: Systems, sets: Sequence[Pairs], progress: bool | None) -> Mapping[str, PairScorer]:
        """More systems on the STS tasks, by their names in tables."""
        return {}

    def add_to(self, report: Report, systems: Systems, progress: bool | None) -> Report:
        """The report with what this adds (``Report.add``)."""
        return report


def evaluate_models(
    models: "Sequence[Model] | Model",
    tasks: Sequence[str],
    data_dir: str | Path,
    tables: Mapping[str, Pairs | str | Path | None],
    columns: str | None,
    compare: str,
    fit_on: Text | None,
    refit: Callable[..., tuple[list[SharedPass], SeveralSeeds, list[str]]] | None,
    aggregation: str,
    fail_below: str,
    studies: Callable[[], Iterable[Addition]],
    scoring: ScoreOptions,
    opening: EncoderOptions,
) -> Report:
    """See ``bertflow.evaluate``.

    Args:
        models: What to score.
        tasks: STS tasks, checked.
        data_dir: Folder of the STS data, or ``hub``.
        tables: Kind of pairs -> the table to score as well.
        columns: Columns of these and of the user's own tasks; found by their names if None.
        compare: Baselines.
        fit_on: What they are fitted on.
        refit: Fits the one flow again with other seeds (``bertflow.evaluation.refitting``); None where one is enough.
        aggregation: Aggregation of the printed table.
        fail_below: Thresholds.
        studies: Reads what the report has besides.
        scoring: How systems are scored.
        opening: How raw encoders are opened.
    """
    similarity, progress = scoring.get("similarity", "cosine"), scoring.get("progress")
    given = {kind: table for kind, table in tables.items() if table is not None}
    scored = [table_name(one) if isinstance(one, str | Path) else one.task for one in given.values()]
    scored += [own_task(one) if table_suffix(one) else one for one in tasks]
    thresholds = parse_thresholds(fail_below, [*scored, *suites_of(scored)])
    baselines = parse_systems(compare)
    lookup("similarity", SIMILARITIES, similarity)
    lookup("aggregation", AGGREGATIONS, aggregation)
    if fit_on is not None and not baselines:
        raise UsageError("fit_on is for baselines, but there are none. Add some with compare, as center,whitening.")
    require_between(0, MOST_RESAMPLES, resamples=scoring.get("resamples"))
    require_seed(scoring.get("seed"))
    require_files(*(one for one in given.values() if one != DOCSTRINGS), None if fit_on == "eval" else fit_on)
    listed = [models] if isinstance(models, str) or not isinstance(models, Sequence) else models
    split = [split_name(model) for model in listed]
    named = [model for _, model in split]
    labels = distinct_names(split)
    opened = [*map(SharedPass, load_each([*zip(labels, named, strict=True)], opening), labels)]
    say_choices(named, [*given.values(), *tasks])
    if refit:
        the_flow(opened)
    elif fit_on is None:
        for baseline in baselines:
            require_fitted_on(baseline, any(one.calibrator for one in opened))
    # Everything is read before anything is computed.
    if given.get("retrieval") == DOCSTRINGS:
        given["retrieval"] = docstring_pairs(SOME_FILES).sample(DOCSTRING_PAIRS, scoring.get("seed", 0))
    others = [load_pairs(one, kind, columns) for kind, one in given.items()]
    sets = load_tasks(tasks, data_dir, columns)
    added = list(studies())
    text, several = _text(fit_on, [*sets, *others]), None
    if refit:
        opened, several, text = refit(opened, named, text, progress)
    systems = build_systems(opened, baselines, text, progress, refits=fit_on is None, names=[name for name, _ in split])
    scorers = {name: one for study in added for name, one in study.scorers(systems, sets, progress).items()}
    report = score_sets(systems, [*sets, *others], **scoring, scorers=scorers, seeds=several)
    report = replace(report, aggregation=aggregation)
    report = several.add_to(report) if several else report
    for queried in (one for one in others if one.kind == "retrieval"):
        report = report.beside_bm25(queried)
    for study in added:
        report = study.add_to(report, systems, progress)
    required = {one.name for one in opened if one.calibrator}
    required = required or {name for name in systems if name in labels or name.startswith(RAW)}
    return replace(report, below=shortfalls(report, thresholds, sorted(required)))


def _text(fit_on: Text | None, scored: Sequence[Pairs]) -> list[str] | None:
    """The text that baselines are fitted on; the sentences of the lexical table change no other score."""
    if fit_on is None:
        return None
    if fit_on == "eval":
        return unique_sentences(scored)
    return load_sentences(fit_on) if isinstance(fit_on, str | Path) else list(dict.fromkeys(fit_on))
