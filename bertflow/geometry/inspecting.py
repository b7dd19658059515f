"""How a report on the geometry is made: by ``bertflow inspect``, and at the end of other commands.

``bertflow inspect`` draws the text apart: some sentences are looked at, calibrators are fitted on others. The report of
another command is on a sample of its sentences.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bertflow.breadth import narrowness
from bertflow.calibrated import CalibratedEncoder, encode_systems
from bertflow.calibration.closed_forms import Whitening
from bertflow.calibration.flow import FlowCalibrator
from bertflow.calibration.spelling import parse_systems
from bertflow.data import DOCSTRINGS
from bertflow.data.columns import split_columns
from bertflow.data.corpus import TextSource, count_words, drawn_rows, load_sentences, read_frequencies
from bertflow.data.docstrings import DOCSTRING_PAIRS, docstring_corpus
from bertflow.data.pairs import Pairs
from bertflow.data.sts import StsSource
from bertflow.encoder.embedded import RAW_POOLING, embedded_encoder
from bertflow.encoder.options import given_options
from bertflow.errors import DataError, UsageError, logger
from bertflow.evaluation.names import Model, Text
from bertflow.evaluation.sides import Systems
from bertflow.evaluation.systems import SharedPass, build_systems, open_system
from bertflow.geometry import FEWEST, NONE, REPORT, pairs, run_folder
from bertflow.geometry.report import GeometryReport
from bertflow.geometry.sections import Material, make_report
from bertflow.next_steps import FEWEST as FIX_NEEDS
from bertflow.next_steps import next_command, option_words
from bertflow.text_keys import text_key
from bertflow.training.batches import Embeddings, seeded_order, take

LOOKED_AT = 2000
"""Largest sample of sentences for the report of another command."""
FITTED = 6000
"""Largest sample of sentences that calibrators are fitted on."""


def write_report(
    folder: Path,
    heading: str,
    systems: Systems,
    sentences: Sequence[str],
    pairs: Pairs | None = None,
    recipe: Mapping[str, Any] | None = None,
    run: Path | None = None,
    x: Embeddings | None = None,
    facts: Mapping[str, str] | None = None,
    verdict: str = "",
    then: str = "",
) -> Path:
    """Write the report of another command, on a sample of its sentences; returns the path of report.html.

    Args:
        folder: Where to write.
        heading: Title of the report.
        systems: Systems by name, the one "before" first. Whitening is added where there is none, and a calibrator
            holds the moments to fit it from.
        sentences: All sentences; at most ``LOOKED_AT`` of them are looked at.
        pairs: Scored pairs, or queries with their texts.
        recipe: Arguments of the ``TransformerEncoder`` behind the systems.
        run: Folder of a training run.
        x: Raw embeddings (n, dim) of the sentences, so that nothing is embedded again; all systems have this encoder.
        facts: What else the reader should know.
        verdict: What to do, if that was decided already.
        then: A command that can be typed next; that of the run, if it is one.

    Raises:
        DataError: If there are too few sentences.
    """
    systems = with_whitening(systems)
    rows = np.array(sorted({sentence: row for row, sentence in reversed([*enumerate(sentences)])}.values()))
    index = rows[drawn_rows(len(rows), LOOKED_AT, 0)]
    chosen = enough_text([sentences[row] for row in index], FEWEST)
    if x is None:
        embeddings = encode_systems(systems, chosen)
    else:
        raw = np.asarray(take(x, index), dtype=np.float32)
        embeddings = {name: system.calibrate(raw) for name, system in systems.items()}
    material = Material(systems, chosen, embeddings, count_words(sentences), given_pairs=pairs, recipe=recipe, run=run)
    then = then if run is None else next_command(run)
    return make_report(heading, material, facts, verdict, then).save(folder) / REPORT


def with_whitening(systems: Systems) -> Systems:
    """The systems with whitening after the first, if none of them is, and a calibrator of that encoder has moments."""
    (name, first), *others = systems.items()
    raw, fitted = first.raw, [one for _, one in others if one.calibrator]
    alike = next((one.calibrator for one in fitted if one.raw.identity.key == raw.identity.key), None)
    if alike is None or "whitening" in systems or any(isinstance(one.calibrator, Whitening) for one in fitted):
        return systems
    whitening = Whitening().fit_moments(alike.moments_, alike.provenance)
    return {name: first, "whitening": CalibratedEncoder(raw, whitening, force=True), **dict(others)}


def enough_text(sentences: list[str], fewest: int) -> list[str]:
    """The sentences, if they are enough.

    Raises:
        DataError: If there are fewer than ``fewest``.
    """
    if len(sentences) < fewest:
        raise DataError(f"A report needs at least {fewest} different sentences, got {len(sentences)}. Give more text.")
    return sentences


def open_encoder(model: "Model | None", device: str, **options: Any) -> SharedPass:
    """The encoder that the user named or gave; ``options`` of ``TransformerEncoder`` that are None were not given."""
    if model is None:
        model, options = embedded_encoder(), {**options, "pooling": options.get("pooling") or RAW_POOLING}
    opened = open_system(model, device=device, **options)
    if (given := given_options(options)) and (opened.calibrator or opened.recipe is None):
        raise UsageError(
            f"{given[0]} cannot be used with {model}: a calibrated encoder keeps what it was fitted with, and word "
            "vectors have none. Leave it out."
        )
    return opened


def inspect_model(
    model: "Model | None",
    text: Text | None,
    columns: str | None,
    compare: str | None,
    n: int,
    given: str | Path | Pairs,
    data_dir: str,
    frequencies: str | Path | None,
    options: Mapping[str, Any],
    device: str,
    seed: int,
    progress: bool | None,
) -> GeometryReport:
    """The report on what a user names, and its baselines."""
    parse_systems(compare or "")
    named = isinstance(given, str | Path) and given not in (NONE, DOCSTRINGS)
    if named:
        StsSource(str(given), data_dir)
    chosen = split_columns(columns)
    if isinstance(text, str | Path):
        TextSource([text], chosen)  # refuses before the encoder is opened
    opened = open_encoder(model, device, **options)
    known = pairs.load_scored_pairs(str(given), data_dir) if named else given if isinstance(given, Pairs) else None
    if given == DOCSTRINGS or text is None:
        sentences, natural = docstring_corpus(DOCSTRING_PAIRS, seed=seed)
        source, known = natural.source, natural if given == DOCSTRINGS else known
    if isinstance(text, str | Path):
        sentences, source = load_sentences(text, chosen), Path(text).name
    elif text is not None:
        sentences, source = list(dict.fromkeys(text)), "sentences that were given"
    order = seeded_order(len(enough_text(sentences, 2 * FEWEST)), seed)
    n = min(n, len(sentences) // 2)
    looked_at, fitted_on = ([sentences[row] for row in np.sort(rows)] for rows in (order[:n], order[n : n + FITTED]))
    if compare is None:
        flow = isinstance(opened.calibrator, FlowCalibrator)
        compare = "raw,whitening,flow" if opened.calibrator is None else "raw,whitening" if flow else "raw"
    baselines, own = parse_systems(compare), opened.calibrator is not None
    anew = [one.spelling for one in baselines if not (own and one.refittable)]
    systems = build_systems([opened], baselines, fitted_on if anew else None, progress, refits=own)
    if not own:  # a flow that was not trained is a second whitening, which is said
        facts_of = {name: getattr(one.calibrator, "facts_", {}) for name, one in systems.items()}
        systems = {name: one for name, one in systems.items() if facts_of[name].get("kept") != "start"}
    counts = read_frequencies(frequencies) if frequencies else count_words([*looked_at, *fitted_on])
    counted = f"counts of {Path(frequencies).name}" if frequencies else "counted in this text"
    embeddings = encode_systems(systems, looked_at, progress=progress)
    narrow = "" if text is None else narrowness(looked_at, lambda rows: next(iter(embeddings.values()))[rows])
    run = run_folder(model)
    material = Material(systems, looked_at, embeddings, counts, counted, known, opened.recipe, run, narrow)
    apart = f"{len(fitted_on):,} other sentences of this text"
    where = f"what {opened.name} was fitted on" if own else apart
    if own and anew:
        where += f"; {', '.join(anew)} on {apart}"
        logger.info("baselines are fitted on %s", where)
    facts = {"text": source, "fitted on": where}
    n = FIX_NEEDS if text is None else len({*map(text_key, sentences)})
    then = next_command(model, calibrated=own, text=text, n=n, options=option_words(columns=columns, **options))
    name = "the built-in MiniLM" if model is None else opened.name
    return replace(make_report(f"Geometry report: {name}", material, facts, then=then), n=n)
