"""``evaluate``: open the systems, fit their baselines, score them on everything that is asked for.

Everything that depends on the time or the machine goes to ``run.json``; the other files are equal for equal input.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from bertflow.calibration.spelling import RAW, parse_systems
from bertflow.data.corpus import load_sentences
from bertflow.data.pairs import Pairs, load_pairs, unique_sentences
from bertflow.data.sts import load_sts
from bertflow.data.sts_tasks import suites_of
from bertflow.data.tables import table_name, table_suffix
from bertflow.encoder.abstract import SentenceEncoder
from bertflow.errors import MOST_RESAMPLES, UsageError, require_between, require_seed
from bertflow.evaluation.evaluating import PairScorer, ScoreOptions, score_sets
from bertflow.evaluation.figures import AGGREGATIONS
from bertflow.evaluation.names import Model, distinct_names, split_name
from bertflow.evaluation.refitting import add_seeds, refit, the_flow
from bertflow.evaluation.report import Report
from bertflow.evaluation.rows import number
from bertflow.evaluation.systems import build_systems, open_system, require_fitted_on, takes_options
from bertflow.files import require_files
from bertflow.opening import LoadOptions, calibrator_of, require_openable
from bertflow.registry import lookup
from bertflow.similarity import SIMILARITIES


class Addition:
    """What a report may have besides the scores of what was named."""

    def scorers(
        self, systems: Mapping[str, SentenceEncoder], sets: Sequence[Pairs], progress: bool | None
    ) -> Mapping[str, PairScorer]:
        """More systems on the STS tasks, by their names in tables."""
        return {}

    def add_to(self, report: Report, systems: Mapping[str, SentenceEncoder], progress: bool | None) -> Report:
        """The report with what this adds (``Report.add``)."""
        return report


def evaluate_models(
    models: "Sequence[Model] | Model",
    tasks: Sequence[str],
    data_dir: str | Path,
    tables: Mapping[str, Pairs | str | Path | None],
    compare: str,
    fit_on: Sequence[str] | str | Path | None,
    seeds: int | None,
    aggregation: str,
    fail_below: str,
    studies: Callable[[], Iterable[Addition]],
    scoring: ScoreOptions,
    opening: LoadOptions,
) -> Report:
    """See ``bertflow.evaluate``.

    Args:
        models: What to score.
        tasks: STS tasks, checked.
        data_dir: Folder of the STS data, or ``hub``.
        tables: By kind of pairs, the tables to score as well.
        compare: Baselines.
        fit_on: What they are fitted on.
        seeds: Number of seeds of the flow.
        aggregation: Aggregation of the printed table.
        fail_below: Thresholds.
        studies: Reads what the report has besides.
        scoring: How systems are scored.
        opening: How raw encoders are opened.
    """
    similarity, progress = scoring.get("similarity", "cosine"), scoring.get("progress")
    thresholds, baselines = parse_thresholds(fail_below), parse_systems(compare)
    lookup("similarity", SIMILARITIES, similarity)
    lookup("aggregation", AGGREGATIONS, aggregation)
    if fit_on is not None and not baselines:
        raise UsageError("fit_on is for the baselines, but none were asked for. Add compare, as center,whitening.")
    require_between(0, MOST_RESAMPLES, resamples=scoring.get("resamples"))
    require_between(1, seeds=seeds)
    require_seed(scoring.get("seed"))
    require_files(*tables.values(), None if fit_on == "eval" else fit_on)
    split = list(map(split_name, [models] if isinstance(models, str) or not isinstance(models, Sequence) else models))
    named = [model for _, model in split]
    for model in named:
        require_openable(model, **opening)
    given = [name for name, value in opening.items() if value is not None and name != "device"]
    if given and not any(takes_options(model, opening.get("revision")) for model in named):
        raise UsageError(
            f"{given[0]} is for an encoder as it comes, but what was given is calibrated and keeps what it "
            "was fitted with, or word vectors, which have none. Leave it out."
        )
    labels = distinct_names(split)
    calibrators = [calibrator_of(model, opening.get("revision")) for model in named]
    if seeds is not None:
        the_flow([*zip(labels, calibrators, strict=True)])
    elif fit_on is None:
        for one in baselines:
            require_fitted_on(one, any(fitted is not None for fitted in calibrators))
    scored = [
        table_name(one) if isinstance(one, str | Path) else one.task for one in tables.values() if one is not None
    ]
    scored += [table_name(one) if table_suffix(one) else one for one in tasks]
    require_scored(thresholds, [*scored, *suites_of(scored)])
    # Everything is read before anything is computed.
    others = [_pairs(given, kind) for kind, given in tables.items() if given is not None]
    sets = [load_sts(task, data_dir) for task in tasks]
    added = list(studies())
    opened = [open_system(model, name, **opening) for name, model in zip(labels, named, strict=True)]
    corpus, text, several = _corpus(fit_on, [*sets, *others]), None, None
    if seeds is not None:
        opened, several, text = refit(opened, named, seeds, corpus, progress)
    systems = build_systems(opened, baselines, corpus, progress, text)
    scorers = {name: one for study in added for name, one in study.scorers(systems, sets, progress).items()}
    report = score_sets(systems, [*sets, *others], **scoring, scorers=scorers, seeds=several)
    report = replace(report, aggregation=aggregation)
    report = add_seeds(report, several) if several else report
    for study in added:
        report = study.add_to(report, systems, progress)
    required = {one.name for one in opened if one.calibrator} or {name for name in systems if name.startswith(RAW)}
    return replace(report, below=shortfalls(report, thresholds, sorted(required)))


def parse_thresholds(spelling: str) -> dict[str, float]:
    """Thresholds x 100 by task or suite, from ``stsb=70,sts7=65``.

    Raises:
        UsageError: If a part is not a task, an equals sign and a number.
    """
    thresholds = {}
    for part in filter(None, (part.strip() for part in spelling.split(","))):
        task, _, limit = part.partition("=")
        try:
            thresholds[task.strip()] = float(limit)
            require_between(-100, 100, threshold=thresholds[task.strip()])
        except ValueError:
            raise UsageError(f"A threshold is written task=score, as stsb=70; got {part!r}.") from None
    return thresholds


def require_scored(thresholds: Collection[str], scored: Collection[str]) -> None:
    """Refuse thresholds for what is not among the scored tasks and suites.

    Raises:
        UsageError: For the first one.
    """
    for task in thresholds:
        if task not in scored:
            raise UsageError(f"There is a threshold for {task}, which is not scored. Scored: {', '.join(scored)}.")


def _pairs(given: Pairs | str | Path, kind: str) -> Pairs:
    return load_pairs(given, kind) if isinstance(given, str | Path) else replace(given, kind=kind)


def _corpus(fit_on: Sequence[str] | str | Path | None, scored: Sequence[Pairs]) -> list[str] | None:
    """The text that baselines are fitted on; the sentences of the lexical table change no other score."""
    if fit_on is None:
        return None
    if fit_on == "eval":
        return unique_sentences(scored)
    return load_sentences(fit_on) if isinstance(fit_on, str | Path) else list(dict.fromkeys(fit_on))


def shortfalls(report: Report, thresholds: Mapping[str, float], systems: Collection[str]) -> str:
    """Which systems fall short of thresholds (x 100, by task or suite), in words; empty if none does.

    Raises:
        UsageError: If a threshold names a task that was not scored.
    """
    shown = {column.task: column for column in report.columns}
    require_scored(thresholds, shown)
    missed = []
    for task, limit in thresholds.items():
        for system in systems:
            value = report.value(system, task, shown[task].aggregation, shown[task].metric)
            if 100 * value < limit:
                missed.append(f"{system} scores {number(value, shown[task].metric)} on {task}, below {limit:g}")
    return f"{'; '.join(missed)}." if missed else ""
