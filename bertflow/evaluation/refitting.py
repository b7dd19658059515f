"""One flow with several seeds: fitted again, on the text of its run, as one system a seed."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NotRequired

from typing_extensions import TypedDict

from bertflow.calibrated import CalibratedEncoder
from bertflow.calibration.flow import FlowCalibrator
from bertflow.data.fitting_text import TextOptions, training_text
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.errors import BertflowError, DataError, UsageError
from bertflow.evaluation.names import Model
from bertflow.evaluation.seeds import SeveralSeeds, the_flow
from bertflow.evaluation.systems import SharedPass
from bertflow.progress import bar
from bertflow.records import read_record
from bertflow.store.embeddings import embedded
from bertflow.text_keys import digest, hash_texts
from bertflow.training.flow_fit import fit_flow
from bertflow.training.trainer import repeatable_options


class RefittedRun(TypedDict):
    """What the record of a run tells of its fit."""

    options: dict[str, Any]
    text: NotRequired[dict[str, Any]]


def refit(
    n: int, opened: Sequence[SharedPass], models: Sequence[Model], given: list[str] | None, progress: bool | None
) -> tuple[list[SharedPass], SeveralSeeds, list[str]]:
    """Fit the one flow among some systems again, with the next seeds.

    Args:
        n: Number of seeds, that of the given flow included.
        opened: The systems.
        models: What the user named each of them by.
        given: The text that the flow was fitted on; if None, what the run's folder says is read again.
        progress: Whether to show a progress bar (default: in a terminal or a notebook).

    Returns:
        The systems with those that were fitted again, the seeds, and the text.

    Raises:
        UsageError: If there is not one flow that can be fitted again; the message says why.
        DataError: If its text is missing or has changed.
    """
    at, calibrator = the_flow(opened)
    system, model, facts = opened[at], models[at], calibrator.facts_
    path = Path(model, "run.json") if isinstance(model, str | Path) else None
    run = read_record(path, RefittedRun, "training run", "Train again.") if path and path.is_file() else None
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
    opened = [*opened[: at + 1], *map(SharedPass, systems, several.systems[1:]), *opened[at + 1 :]]
    return opened, several, sentences


def _text_of(name: str, calibrator: FlowCalibrator, run: RefittedRun | None, given: list[str] | None) -> list[str]:
    """The text that the flow was fitted on, checked."""
    provenance, do = calibrator.provenance, "Give fit_on, the text that the flow was fitted on."
    text = run.get("text", {}) if run else {}
    known = text.get("text_keys")
    if provenance is not None and provenance.text_hashes is not None:
        known = digest(provenance.text_hashes)
    if known is None:
        raise UsageError(f"The flow of {name} does not record the text that it was fitted on. Leave seeds out.")
    if given is None:
        data, source = run["options"]["data"] if run else {}, text.get("source", "")
        if not (data.get("sentences") or data.get("tasks") or source.startswith("docstrings")):
            raise UsageError(f"{name} does not say where its text is. {do}")
        try:
            given = training_text(TextOptions(**data), calibrator.facts_["seed"])
        except BertflowError as error:
            raise DataError(f"The text of {name}, {source}, cannot be read again. {error} {do}") from None
    sentences = list(dict.fromkeys(given)) if calibrator.recipe.unit == 1 else given
    if (len(sentences), digest(hash_texts(sentences))) != (calibrator.moments_.n, known):
        raise DataError(
            f"The flow of {name} was fitted on {calibrator.moments_.n:,} sentences, but this is another text, of "
            f"{len(sentences):,}. {do}"
        )
    return sentences
