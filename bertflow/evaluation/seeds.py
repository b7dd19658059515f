"""One flow with several seeds: is a score the recipe's, or one seed's luck?

    the run's text, embedded once -> the same recipe with the next seeds -> a system for each -> their mean

The seed decides the rows that are held out, the flow's first weights and the order of the rows. A score of the recipe
is the mean over seeds; its spread, with n - 1, is that of one fit. Both the pairs and the seeds are samples, so the
interval of the mean resamples both, independently of each other:

    pairs (or sentences, or queries)   as for every other system, with the same weights: differences are paired
    seeds                              n - 1 of the n, with replacement, the same ones for every task

The plain bootstrap of n seeds has (n - 1) / n of the variance of their mean, a fifth too little for five; n - 1 draws
have all of it. So few seeds still make an interval too short where they differ more than the pairs' noise, as a normal
one is beside Student's: with normal noise, 95 % intervals of 5 seeds cover 94 % if a seed's spread is at most that of
the pairs, 93 % at twice that, and 86 % without noise of pairs (simulated).

Source: Owen 2007, "The pigeonhole bootstrap", for two crossed samples; McCarthy & Snowden 1985, "The
bootstrap and finite population sampling", for n - 1 draws.
"""

import logging
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NotRequired

import numpy as np
from typing_extensions import TypedDict

from bertflow.affine import AffineMap
from bertflow.bands import of_unit_rows
from bertflow.calibrated import CalibratedEncoder
from bertflow.calibration.base import AbstractCalibrator, load_calibrator
from bertflow.calibration.calibrators import FlowCalibrator
from bertflow.data.fitting_text import TextOptions, training_text
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.errors import BertflowError, DataError, UsageError
from bertflow.evaluation.rows import FittedText, Row, SystemFacts, interval, number
from bertflow.evaluation.significance import Figure, generator
from bertflow.evaluation.systems import SharedPass
from bertflow.progress import bar
from bertflow.records import read_record
from bertflow.store.embeddings import embedded
from bertflow.tables import MISSING, Section, Table
from bertflow.text_keys import digest, hash_texts

if TYPE_CHECKING:
    from bertflow.evaluation.report import Report
    from bertflow.training.recipe import Recipe

logger = logging.getLogger("bertflow")

SEEDS = "seeds"
"""The folder of a run that keeps its flows with other seeds."""


class RunText(TypedDict):
    """Where the record of a run says that its text came from."""

    source: str


class RefittedRun(TypedDict):
    """What the record of a run tells of its fit."""

    options: dict[str, Any]
    text: NotRequired[RunText]


@dataclass(frozen=True)
class SeveralSeeds:
    """One flow with several seeds.

    Attributes:
        flow: Name of the system that was given.
        seeds: The given one first.
        systems: Names of the systems, in the order of the seeds.
    """

    flow: str
    seeds: tuple[int, ...]
    systems: tuple[str, ...]

    @property
    def name(self) -> str:
        """What tables call the mean."""
        return f"flow of {self.flow}, {len(self.seeds)} seed{'s' if len(self.seeds) > 1 else ''}"

    def facts(self, systems: Sequence[SystemFacts]) -> SystemFacts:
        """What the mean says about itself: the same as the given system, with all seeds."""
        given = next(facts for facts in systems if facts.name == self.flow)
        spelling = given.description["calibrator"].replace(
            f"random_state={self.seeds[0]}", f"random_state={list(self.seeds)}"
        )
        return replace(given, name=self.name, description={**given.description, "calibrator": spelling})

    def with_mean(self, figure: Figure, systems: Sequence[str], seed: int) -> Figure:
        """The figure with the mean over seeds as one more system.

        Args:
            figure: Of k systems.
            systems: Their names.
            seed: Random seed for the bootstrap.
        """
        members = [systems.index(name) for name in self.systems]
        values, replicates = figure.values[members], figure.replicates[members]
        n, resamples = replicates.shape
        drawn = generator(seed, "seeds").integers(0, n, (max(1, n - 1), resamples))
        mean, influence, between = values.mean(), figure.influence, figure.between
        if influence is not None:  # the seeds' own stand beside those of the pairs
            of_pairs = np.vstack([influence, influence[members].mean(0)])
            of_seeds = np.vstack([np.zeros((len(influence), n)), (values - mean) / n])
            influence = np.hstack([of_pairs, of_seeds])
        return replace(
            figure,
            values=np.append(figure.values, mean),
            replicates=np.vstack([figure.replicates, np.take_along_axis(replicates, drawn, axis=0).mean(0)]),
            influence=influence,
            between=None if between is None else np.pad(between, (0, 1), constant_values=np.nan),
        )

    def spreads(self, rows: Sequence[Row]) -> list[dict[str, Any]]:
        """Of each task, aggregation, sub-set and metric: every seed's value, their mean and standard deviation."""
        found: dict[tuple[str, ...], list[float]] = {}
        for row in rows:
            if row.system in self.systems:
                found.setdefault((row.task, row.aggregation, row.subset, row.metric), []).append(row.value)
        names = ("task", "aggregation", "subset", "metric")
        return [
            dict(zip(names, place, strict=True))
            | {
                "seeds": self.seeds,
                "values": values,
                "mean": float(np.mean(values)),
                "standard_deviation": spread(values),
            }
            for place, values in found.items()
        ]


def spread(values: Sequence[float]) -> float | None:
    """Standard deviation, with n - 1; None of a single value."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else None


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
    folder = Path(models[at]) if run and os.access(models[at], os.W_OK) else None
    flows = {seed: folder and _kept(folder / SEEDS / str(seed), calibrator, recipe) for seed in seeds[1:]}
    if missing := [seed for seed, flow in flows.items() if flow is None]:
        store = options.get("data", {}).get("store")
        x = embedded(system.own, sentences, store if store and Path(store).is_dir() else None, progress)
        title = f"fitting {system.name} with other seeds"
        with bar(len(missing) * facts["steps"], title, progress, "steps") as advance:
            for seed in missing:
                fitted = fit_flow(x, recipe, seed, trainer, None, sentences, encoder, advance)
                flow = FlowCalibrator.of(fitted, recipe, calibrator.moments_, calibrator.provenance)
                if folder:  # an evaluation that is interrupted, or has more seeds, goes on from here
                    flow.save(folder / SEEDS / str(seed))
                flows[seed] = flow
    systems = [CalibratedEncoder(system.own, flow) for flow in flows.values() if flow]
    refitted = map(SharedPass, systems, several.systems[1:])
    return [*opened[: at + 1], *refitted, *opened[at + 1 :]], several, sentences


def _kept(folder: Path, like: FlowCalibrator, recipe: "Recipe") -> FlowCalibrator | None:
    """What an earlier evaluation fitted with a seed, which is the folder's name; None if it is not there.

    Raises:
        DataError: If it is another fit than that of ``like``.
    """
    if not folder.is_dir():
        return None
    flow = load_calibrator(folder)
    facts = {"seed": int(folder.name), "steps": like.facts_["steps"]}
    if not (
        isinstance(flow, FlowCalibrator)
        and flow.recipe == recipe
        and facts == {name: flow.facts_[name] for name in facts}
        and FittedText.of(flow) == FittedText.of(like)
    ):
        raise DataError(
            f"{folder} should hold this run's flow with the seed {folder.name}, but holds one of another recipe or "
            "text. Delete it: it is then fitted again."
        )
    logger.info("The flow with the seed %s was fitted before, and is in %s.", folder.name, folder)
    return flow


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


def sections_of_seeds(report: "Report", several: SeveralSeeds) -> list[Section]:
    """Each seed's scores with their mean and spread, and what the mean is more than each other system."""
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
    return found


def _differences(report: "Report", system: str, other: str) -> Iterator[str]:
    """The cells of a line: differences with their intervals."""
    rows = {(row.task, row.aggregation, row.metric): row for row in report.compared(system, other)}
    for column in report.columns:
        row = rows.get((column.task, column.aggregation, column.metric))
        ends = "" if row is None or row.ci_low is None else f" ({interval(row.ci_low, row.ci_high, row.metric)})"
        yield MISSING if row is None else f"{number(row.difference, row.metric)}{ends}"
