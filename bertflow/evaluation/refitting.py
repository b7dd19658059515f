"""One flow with several seeds: fitted again, on the text of its run, as one system a seed."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NotRequired

from typing_extensions import TypedDict

from bertflow.affine import AffineMap
from bertflow.calibrated import CalibratedEncoder
from bertflow.calibration.base import AbstractCalibrator
from bertflow.calibration.flow import FlowCalibrator
from bertflow.data.fitting_text import TextOptions, training_text
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.errors import BertflowError, DataError, UsageError
from bertflow.evaluation.report import Report
from bertflow.evaluation.rows import interval, number
from bertflow.evaluation.seeds import SeveralSeeds, spread
from bertflow.evaluation.systems import SharedPass
from bertflow.maps import of_unit_rows
from bertflow.progress import bar
from bertflow.records import read_record
from bertflow.store.embeddings import embedded
from bertflow.tables import MISSING, Section, Table
from bertflow.text_keys import digest, hash_texts


class RunText(TypedDict):
    """Where the record of a run says that its text came from."""

    source: str


class RefittedRun(TypedDict):
    """What the record of a run tells of its fit."""

    options: dict[str, Any]
    text: NotRequired[RunText]


def refit(
    opened: Sequence[SharedPass],
    models: Sequence[Any],
    n: int,
    given: list[str] | None = None,
    progress: bool | None = None,
) -> tuple[list[SharedPass], SeveralSeeds, list[str]]:
    """Fit the one flow among some systems again, with the next seeds.

    Args:
        opened: The systems.
        models: What the user named each of them by.
        n: Number of seeds, that of the given flow included.
        given: The text that the flow was fitted on; by default what the run's folder says is read again.
        progress: Whether to show a progress bar (default: in a terminal or a notebook).

    Returns:
        The systems with those that were fitted again, the seeds, and the text.

    Raises:
        UsageError: If there is not one flow that can be fitted again; the message says why.
        DataError: If its text is missing or has changed.
    """
    from bertflow.training.fitting import fit_flow
    from bertflow.training.trainer import repeatable_options

    if n < 1:
        raise UsageError(f"seeds is a number of seeds, from 1; got {n}.")
    at, calibrator = the_flow([(one.name, one.calibrator) for one in opened])
    system, run, facts = opened[at], _run_of(models[at]), calibrator.facts_
    options = {} if run is None else run["options"]
    sentences = _text_of(system.name, calibrator, run, given)
    seeds = tuple(range(facts["seed"], facts["seed"] + n))
    several = SeveralSeeds(system.name, seeds, (system.name, *(f"{system.name}, seed {seed}" for seed in seeds[1:])))
    recipe = replace(calibrator.recipe, dropout=facts["dropout"])
    trainer = calibrator.trainer or repeatable_options(options.get("trainer") or {})
    encoder = system.own if isinstance(system.own, TransformerEncoder) else None
    store = options.get("data", {}).get("store")
    systems = []
    if n > 1:
        x = embedded(system.own, sentences, store if store and Path(store).is_dir() else None, progress)
        with bar((n - 1) * facts["steps"], f"fitting {system.name} with other seeds", progress, "steps") as advance:
            for seed in seeds[1:]:
                fitted = fit_flow(x, recipe, seed, trainer, None, sentences, encoder, advance)
                flow = FlowCalibrator.of(fitted, recipe, calibrator.moments_, calibrator.provenance)
                systems.append(CalibratedEncoder(system.own, flow))
    refitted = map(SharedPass, systems, several.systems[1:])
    return [*opened[: at + 1], *refitted, *opened[at + 1 :]], several, sentences


def the_flow(systems: Sequence[tuple[str, AbstractCalibrator | None]]) -> tuple[int, FlowCalibrator]:
    """Which of some systems, each with its name, is a flow that a seed has decided.

    Raises:
        UsageError: If none is, or several are, or its fit was interrupted.
    """
    found = [(at, one) for at, (_, one) in enumerate(systems) if isinstance(one, FlowCalibrator)]
    names = ", ".join(f"{name} ({type(one).__name__ if one else 'raw'})" for name, one in systems)
    if len(found) != 1:
        raise UsageError(
            f"seeds fits one flow again, but {len(found) or 'none'} of {names} {'are' if found else 'is a'} "
            f"flow{'s' if found else ''}. Only a flow depends on a seed; give a run of `bertflow train`."
        )
    at, calibrator = found[0]
    if isinstance(of_unit_rows(calibrator.map), AffineMap):
        raise UsageError(f"The flow of {systems[at][0]} is an affine map, so it has no seeds. Leave seeds out.")
    if calibrator.facts_["interrupted"]:
        raise UsageError(f"The fit of {systems[at][0]} was interrupted. Finish it with --resume auto.")
    return at, calibrator


def _run_of(model: Any) -> RefittedRun | None:
    path = Path(model, "run.json") if isinstance(model, str | Path) else None
    return read_record(path, RefittedRun, "training run", "Train again.") if path and path.is_file() else None


def _text_of(name: str, calibrator: FlowCalibrator, run: RefittedRun | None, given: list[str] | None) -> list[str]:
    """The text that the flow was fitted on, checked."""
    provenance, do = calibrator.provenance, "Give the text that it was fitted on with fit_on."
    known: object = dict(run["text"]).get("text_keys") if run and "text" in run else None
    if provenance is not None and provenance.text_hashes is not None:
        known = digest(provenance.text_hashes)
    if known is None:
        raise UsageError(f"The flow of {name} does not record the text that it was fitted on. Leave seeds out.")
    if given is None:
        data = TextOptions(**run["options"]["data"]) if run else TextOptions()
        source = run["text"]["source"] if run and "text" in run else ""
        if not (data.sentences or data.tasks or source.startswith("docstrings")):
            raise UsageError(f"{name} does not say where its text is. {do}")
        try:
            given = training_text(data, calibrator.facts_["seed"])
        except BertflowError as error:
            raise DataError(f"The text of {name}, {source}, cannot be read again. {error} {do}") from None
    sentences = list(dict.fromkeys(given)) if calibrator.recipe.unit == 1 else given
    if (len(sentences), digest(hash_texts(sentences))) != (calibrator.moments_.n, known):
        raise DataError(
            f"The flow of {name} was fitted on {calibrator.moments_.n:,} sentences, but this is other text, of "
            f"{len(sentences):,}. {do}"
        )
    return sentences


def add_seeds(report: Report, several: SeveralSeeds) -> Report:
    """The report with each seed's scores, their mean and spread, and what the mean is more than each other system."""
    columns, titles = report.columns, [column.title for column in report.columns]

    def line(title: str, found: Sequence[float | None]) -> tuple[str, ...]:
        return title, *(number(value, column.metric) for value, column in zip(found, columns, strict=True))

    scores, mean = ([report.shown_values(name) for name in names] for names in (several.systems, [several.name]))
    lines = [line(str(seed), row) for seed, row in zip(several.seeds, scores, strict=True)]
    lines += [line("mean", mean[0]), line("standard deviation", [spread(one) for one in zip(*scores, strict=True)])]
    words = f"Seed {several.seeds[0]} is {several.flow} itself. The standard deviation, with n - 1, is that of one fit."
    found = [Section(f"Seeds of the flow of {several.flow}", Table(("seed", *titles), tuple(lines)), (words,))]
    if others := [facts.name for facts in report.shown if facts.name != several.name]:
        table = Table(("less", *titles), tuple((name, *_differences(report, several.name, name)) for name in others))
        words = "95 % intervals, of pairs and of seeds." if report.resamples else "Nothing was resampled."
        found.append(Section(f"{several.name}, less each other system", table, (words,)))
    return report.add(*found, data={"seeds": several.spreads(report.rows)})


def _differences(report: Report, system: str, other: str) -> Iterator[str]:
    """The cells of a line: differences with their intervals."""
    rows = {(row.task, row.aggregation, row.metric): row for row in report.compared(system, other)}
    for column in report.columns:
        row = rows.get((column.task, column.aggregation, column.metric))
        ends = "" if row is None or row.ci_low is None else f" ({interval(row.ci_low, row.ci_high, row.metric)})"
        yield MISSING if row is None else f"{number(row.difference, row.metric)}{ends}"
