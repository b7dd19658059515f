"""How a report on the geometry is made and written; ``bertflow inspect``, ``train`` and ``demo`` end with it.

    systems, sentences, pairs, counts --> material --> sections --> report.html, report.json

What is not at hand is left out, and the report says why.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertflow.calibrated import CalibratedEncoder, encode_systems
from bertflow.data.corpus import count_words
from bertflow.data.pairs import Pairs
from bertflow.encoder.abstract import SentenceEncoder
from bertflow.errors import DataError
from bertflow.files import write_text
from bertflow.geometry.material import Material
from bertflow.geometry.pairs import cosines_of_pairs, scores_of_pairs
from bertflow.geometry.parts import Parts, gathered, latent_parts, model_parts, run_parts
from bertflow.geometry.report import GeometryReport
from bertflow.geometry.sections import build_sections
from bertflow.text_keys import seen_share
from bertflow.training.batches import Embeddings, Store, seeded_order

INSIDE = 300
"""Sentences whose tokens are looked at in every layer."""
LOOKED_AT = 2000
"""Sentences that the report at the end of another command looks at, at most."""
REPORT = "report.html"
NO_PAIRS = "no pairs were given. bertflow inspect RUN --pairs stsb-dev --data_dir DIR has them."
FEWEST = 24
"""Sentences that a report can be made of: two dozen, so that ten neighbors are fewer than half."""


def make_report(
    title: str,
    systems: Mapping[str, SentenceEncoder],
    sentences: Sequence[str],
    pairs: Pairs | None = None,
    counts: Mapping[str, int] | None = None,
    counted: str = "counted in this text",
    recipe: Mapping[str, Any] | None = None,
    run: Path | None = None,
    facts: Mapping[str, str] | None = None,
    embeddings: Mapping[str, NDArray[np.floating]] | None = None,
) -> GeometryReport:
    """The report on some systems; whatever is not given is left out, with the reason.

    Args:
        title: Of the report.
        systems: By the name they have in it, the one "before" first.
        sentences: Distinct sentences to look at; all of them are embedded.
        pairs: Pairs of sentences.
        counts: How often words occur; counted in the sentences if None.
        counted: Where the counts come from, in words.
        recipe: The arguments of the ``TransformerEncoder`` behind the systems, to look at its layers.
        run: The folder of a training run.
        facts: What else the reader should know.
        embeddings: Of the sentences by every system, where they are at hand.

    Raises:
        DataError: If there are fewer than ``FEWEST`` sentences.
    """
    require_sentences(sentences, FEWEST)
    counts = count_words(sentences) if counts is None else counts
    if embeddings is None:
        embeddings = encode_systems(systems, sentences, progress=sys.stderr.isatty())
    found = [
        model_parts(recipe, sentences[:INSIDE], counts),
        run_parts(run) if run else ({}, {"history": "this is not the folder of a training run."}),
        latent_parts(systems, embeddings),
        _pair_parts(systems, pairs),
    ]
    made = {name: part for parts, _ in found for name, part in parts.items()}
    reasons = {name: reason for _, missing in found for name, reason in missing.items()}
    material = Material(tuple(sentences), embeddings, counts, counted, **made, reasons=reasons)
    sections, left_out = build_sections(material)
    described = {name: _described(system, sentences) for name, system in systems.items()}
    given = {"sentences": f"{len(sentences):,}", "word frequencies": counted, **(facts or {})}
    return GeometryReport(title, {**given, **described}, sections, left_out)


def require_sentences(sentences: Sequence[str], fewest: int) -> None:
    """Refuse too little text.

    Raises:
        DataError: If there are fewer than ``fewest`` sentences.
    """
    if len(sentences) < fewest:
        raise DataError(f"A report needs at least {fewest} different sentences, got {len(sentences)}. Give more text.")


def save_report(report: GeometryReport, folder: Path) -> Path:
    """Write report.html and report.json; returns the path of the former."""
    write_text(folder / "report.json", report.to_json())
    write_text(folder / REPORT, report.to_html())
    return folder / REPORT


def write_report(
    folder: Path,
    title: str,
    systems: Mapping[str, SentenceEncoder],
    sentences: Sequence[str],
    pairs: Pairs | None = None,
    recipe: Mapping[str, Any] | None = None,
) -> Path:
    """Write the report of another command, on a sample of its sentences; returns the path of report.html.

    Args:
        folder: Where to.
        title: Of the report.
        systems: By the name they have in it, the one "before" first.
        sentences: Of which ``LOOKED_AT`` are looked at.
        pairs: Scored pairs, or queries with their texts; None if there are none.
        recipe: The arguments of the ``TransformerEncoder`` behind the systems.

    Raises:
        DataError: If there are too few sentences.
    """
    distinct = list(dict.fromkeys(sentences))
    chosen = [distinct[row] for row in np.sort(seeded_order(len(distinct), 0)[:LOOKED_AT])]
    counts = count_words(distinct)
    return save_report(make_report(title, systems, chosen, pairs=pairs, counts=counts, recipe=recipe), folder)


def write_run_report(
    folder: Path, system: CalibratedEncoder, x: Embeddings, sentences: Sequence[str], recipe: Mapping[str, Any]
) -> Path:
    """Write the report of a training run, without embedding its sentences again; returns the path of report.html.

    Args:
        folder: Of the run.
        system: The encoder with the flow that was fitted.
        x: Raw embeddings (n, dim_in) of the sentences.
        sentences: What the flow was fitted on; of them ``LOOKED_AT`` are looked at.
        recipe: The arguments of the ``TransformerEncoder``.

    Raises:
        DataError: If there are too few sentences.
    """
    rows = list({sentence: row for row, sentence in enumerate(sentences)}.values())
    index = np.sort(np.array(rows)[seeded_order(len(rows), 0)[:LOOKED_AT]])
    raw = np.asarray(x.rows(index) if isinstance(x, Store) else x[index], dtype=np.float32)
    report = make_report(
        f"Geometry of the run {folder.name}",
        {"raw": system.encoder, "flow": system},
        [sentences[row] for row in index],
        counts=count_words(sentences),
        recipe=recipe,
        run=folder,
        facts={"text": "a sample of what the flow was fitted on"},
        embeddings={"raw": raw, "flow": system.calibrate(raw)},
    )
    return save_report(report, folder / "report")


def _pair_parts(systems: Mapping[str, SentenceEncoder], pairs: Pairs | None) -> Parts:
    if pairs is None:
        return {}, dict.fromkeys(("pairs", "scores"), NO_PAIRS)
    return gathered(
        {"pairs": lambda: cosines_of_pairs(systems, pairs), "scores": lambda: scores_of_pairs(systems, pairs)}
    )


def _described(system: SentenceEncoder, sentences: Sequence[str]) -> str:
    facts, hashes = system.describe(), system.fitted_hashes()
    calibrator = f", {facts['calibrator']} on {facts['fitted_rows']:,} rows" if "calibrator" in facts else ""
    seen = "unknown" if hashes is None else f"{seen_share(sentences, hashes):.2f}"
    return f"{facts['encoder']}, {facts['pooling']}{calibrator}; seen {seen}"
