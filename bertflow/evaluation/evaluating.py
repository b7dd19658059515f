"""``evaluate``: open the systems, fit their baselines, score them on everything that is asked for.

Everything that depends on the time or the machine goes to ``run.json``; the other files are equal for equal input.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from typing_extensions import TypedDict, Unpack

from bertflow.data.corpus import load_sentences
from bertflow.data.pairs import load_pairs, unique_sentences
from bertflow.data.sts import expand_tasks, load_sts, require_tasks
from bertflow.data.sts_tasks import suites_of
from bertflow.data.tables import table_name, table_suffix
from bertflow.errors import MOST_RESAMPLES, UsageError, require_between, require_seed
from bertflow.evaluation.names import distinct_names, split_name
from bertflow.evaluation.rows import number
from bertflow.files import require_files
from bertflow.opening import LoadOptions, calibrator_of, require_openable
from bertflow.registry import lookup

if TYPE_CHECKING:
    from bertflow.data.pairs import Pairs
    from bertflow.encoder.abstract import SentenceEncoder
    from bertflow.evaluation.report import Report

EVERY = "raw,sif,center,standardize,abtt,whitening"
"""The cheap baselines, which stand beside a flow with several seeds."""


class ScoreOptions(TypedDict, total=False):
    """How systems are scored.

    Attributes:
        similarity: cosine, dot, euclidean or manhattan (default: cosine).
        resamples: Number of bootstrap resamples for the intervals; 0 for none (default: 1000).
        seed: Random seed for the bootstrap (default: 0).
        force: Score, and mark, systems that were trained on labels of the scored pairs.
        progress: Whether to show a progress bar (default: in a terminal or a notebook).
    """

    similarity: str
    resamples: int
    seed: int
    force: bool
    progress: bool | None


def evaluate(
    models: "list[str] | str | Sequence[SentenceEncoder] | SentenceEncoder",
    tasks: str | None = None,
    data_dir: str | Path = "hub",
    retrieval: "Pairs | str | Path | None" = None,
    binary: "Pairs | str | Path | None" = None,
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
    candidate_lists: "Pairs | str | Path | None" = None,
    progress: bool | None = None,
    **options: Unpack[LoadOptions],
) -> "Report":
    """Score systems on STS tasks, and on retrieval and binary tasks if asked for.

    A MODEL is an encoder (hub id or folder), a folder that CalibratedEncoder.save wrote, the folder of a run of train,
    or a file of word vectors (.vec, .txt, .gz). Tables are x 100.

    Args:
        models: What to score; several are compared. In Python also encoders. NAME=path is what tables call one, which
            is otherwise the end of its path.
        tasks: Tasks, suites and tables of your own, with commas (default: sts7; none with retrieval or binary).
        data_dir: Folder of the STS data; the default is the hub, at pinned revisions.
        retrieval: Table of queries and their texts, to be ranked as well.
        binary: Table of pairs labelled 0 or 1, scored by ROC AUC as well.
        similarity: cosine, dot, euclidean or manhattan.
        aggregation: Aggregation of the printed table: all, mean or wmean.
        compare: Baselines, with commas: raw,center,standardize,abtt(7),whitening(64),ridge(1),two-band(0.5),sif,...
        fit_on: Fit the baselines on this text; eval: on the scored sentences.
        seeds: Number of seeds: fit the flow of a run again with other seeds, on the run's own text (or fit_on). The
            result has mean, standard deviation, and intervals over pairs and seeds; without compare, beside every cheap
            baseline.
        ceiling: Add the score of a model that is trained on each task's own labels with the same embeddings, and the
            share of that gap which each system closes.
        lexical: Task on which to measure whether similarities follow edit distance; without a value stsb-dev, as in the
            paper.
        resamples: Number of bootstrap resamples for the intervals; 0 for none.
        seed: Random seed for the bootstrap.
        force: Score, and mark, a system that was trained on the scored labels.
        fail_below: Exit code 4 if a MODEL scores less, as stsb=70,sts7=65.
        published: Print published figures of the scored tasks beside ours, and how their protocol differs: those that
            contain this text; without a value all.
        candidate_lists: Table of query, text and label (1 or 0): each query's own candidates, scored by MAP and MRR.
        progress: Whether to show a progress bar (default: in a terminal or a notebook).
        options: ``LoadOptions``, for raw encoders; what is calibrated keeps what it was fitted with.

    Returns:
        All numbers, with intervals, differences, and how each was made.

    Raises:
        UnknownNameError: For an unknown task, similarity, aggregation or baseline.
        UsageError: For options that do not go together.
        DataError: For data that is missing or damaged, a system trained on the labels, or embeddings that cannot be
            scored.
    """
    from bertflow.calibration.spelling import RAW, parse_systems
    from bertflow.evaluation.ceiling import ceilings_of, labelled_pairs
    from bertflow.evaluation.figures import AGGREGATIONS
    from bertflow.evaluation.gap import gap_sections
    from bertflow.evaluation.lexical import lexical_table
    from bertflow.evaluation.literature import matching
    from bertflow.evaluation.report import score_sets
    from bertflow.evaluation.seeds import refit, sections_of_seeds, the_flow
    from bertflow.evaluation.systems import build_systems, open_system, require_fitted_on, takes_options
    from bertflow.similarity import SIMILARITIES

    wanted = compare or (EVERY if seeds else "")
    thresholds, baselines = parse_thresholds(fail_below), parse_systems(f"{RAW},{wanted}" if ceiling else wanted)
    lookup("similarity", SIMILARITIES, similarity)
    lookup("aggregation", AGGREGATIONS, aggregation)
    if fit_on is not None and not baselines:
        raise UsageError("fit_on is for the baselines, but none were asked for. Add compare, as center,whitening.")
    if ceiling and any(given is not None for given in (retrieval, candidate_lists, binary)):
        raise UsageError("The ceiling is learned from graded pairs, but another table was given. Leave one out.")
    require_between(0, MOST_RESAMPLES, resamples=resamples)
    require_between(1, seeds=seeds)
    require_seed(seed)
    tables = {"retrieval": retrieval, "candidates": candidate_lists, "binary": binary}
    require_files(*tables.values(), None if fit_on == "eval" else fit_on)
    alone = all(given is None for given in tables.values())
    for some in filter(None, (tasks or ("sts7" if alone else None), lexical)):
        require_tasks(some, data_dir)
    names = expand_tasks(tasks or "sts7", data_dir) if tasks or alone else ()
    theirs = () if published is None else tuple(matching(published, names))
    split = list(map(split_name, [models] if isinstance(models, str) or not isinstance(models, Sequence) else models))
    named = [model for _, model in split]
    for model in named:
        require_openable(model, **options)
    given = [name for name, value in options.items() if value is not None and name != "device"]
    if given and not any(takes_options(model, options.get("revision")) for model in named):
        raise UsageError(
            f"{given[0]} is for an encoder as it comes, but what was given is calibrated and keeps what it "
            "was fitted with, or word vectors, which have none. Leave it out."
        )
    labels = distinct_names(split)
    calibrators = [calibrator_of(model, options.get("revision")) for model in named]
    if seeds is not None:
        the_flow([*zip(labels, calibrators, strict=True)])
    elif fit_on is None:
        for one in baselines:
            require_fitted_on(one, any(fitted is not None for fitted in calibrators))
    scored = [
        table_name(one) if isinstance(one, str | Path) else one.task for one in tables.values() if one is not None
    ]
    scored += [table_name(one) if table_suffix(one) else one for one in names]
    require_scored(thresholds, [*scored, *suites_of(scored)])
    # Everything is read before anything is computed.
    others = [_pairs(given, kind) for kind, given in tables.items() if given is not None]
    sets = [load_sts(task, data_dir) for task in names]
    edited = load_sts(lexical, data_dir) if lexical else None
    labelled = labelled_pairs(names, data_dir) if ceiling else {}
    opened = [open_system(model, name, **options) for name, model in zip(labels, named, strict=True)]
    corpus, text, several = _corpus(fit_on, [*sets, *others]), None, None
    if seeds is not None:
        opened, several, text = refit(opened, named, seeds, corpus, progress)
    systems = build_systems(opened, baselines, corpus, progress, text)
    ceilings = ceilings_of(systems, sets, labelled, progress) if ceiling else {}
    report = score_sets(systems, [*sets, *others], similarity, resamples, seed, force, progress, ceilings, several)
    report = replace(report, aggregation=aggregation, theirs=theirs)
    spread = sections_of_seeds(report, several) if several else []
    sections = gap_sections(report) if ceiling else []
    words = lexical_table(systems, edited, similarity, progress) if edited else None
    required = {one.name for one in opened if one.calibrator} or {name for name in systems if name.startswith(RAW)}
    return replace(
        report,
        files={"lexical.json": words.to_json()} if words else {},
        sections=(*spread, *sections, *([words.section()] if words else ())),
        below=shortfalls(report, thresholds, sorted(required)),
    )


def evaluate_sts(
    systems: "Mapping[str, SentenceEncoder]",
    tasks: str | Sequence[str] = "sts7",
    data_dir: str | Path = "hub",
    **options: Unpack[ScoreOptions],
) -> "Report":
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
    from bertflow.evaluation.report import score_sets

    # Loaded one by one, after the systems were looked at.
    return score_sets(systems, (load_sts(task, data_dir) for task in expand_tasks(tasks, data_dir)), **options)


def evaluate_retrieval(
    systems: "Mapping[str, SentenceEncoder]", pairs: "Pairs", **options: Unpack[ScoreOptions]
) -> "Report":
    """Rank all texts for each query, by every system; or the candidates of each query, by MAP and MRR.

    Args:
        systems: Encoders, raw or calibrated, by the name they have in the report.
        pairs: Queries, each with its one right text; of the kind ``candidates`` queries with texts of their own, whose
            target is 1 or 0 (``bertflow.evaluation.candidate_lists``).
        options: ``ScoreOptions``; resamples are drawn among the queries.

    Raises:
        UnknownNameError: For an unknown similarity.
        DataError: For embeddings that are not finite, or of length zero, or queries without right and wrong candidates.
    """
    from bertflow.evaluation.report import score_sets

    return score_sets(systems, [pairs if pairs.kind == "candidates" else replace(pairs, kind="retrieval")], **options)


def evaluate_binary(
    systems: "Mapping[str, SentenceEncoder]", pairs: "Pairs", **options: Unpack[ScoreOptions]
) -> "Report":
    """ROC AUC of the similarity, by every system; the options are those of ``evaluate_sts``.

    Resamples are drawn among the positive and among the negative pairs, so that their shares stay.

    Raises:
        UnknownNameError: For an unknown similarity.
        DataError: For a system trained on the labels, or embeddings that have no similarity.
    """
    from bertflow.evaluation.report import score_sets

    return score_sets(systems, [replace(pairs, kind="binary")], **options)


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


def _pairs(given: "Pairs | str | Path", kind: str) -> "Pairs":
    return load_pairs(given, kind) if isinstance(given, str | Path) else replace(given, kind=kind)


def _corpus(fit_on: Sequence[str] | str | Path | None, scored: "Sequence[Pairs]") -> list[str] | None:
    """The text that baselines are fitted on; the sentences of the lexical table change no other score."""
    if fit_on is None:
        return None
    if fit_on == "eval":
        return unique_sentences(scored)
    return load_sentences(fit_on) if isinstance(fit_on, str | Path) else list(dict.fromkeys(fit_on))


def shortfalls(report: "Report", thresholds: Mapping[str, float], systems: Collection[str]) -> str:
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
