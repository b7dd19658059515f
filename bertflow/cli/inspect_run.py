"""What ``bertflow inspect`` does: text, pairs, frequencies and systems in; a report out.

The text is drawn apart: some sentences are looked at, others are what a calibrator is fitted on.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console

from bertflow.calibration.spelling import parse_systems
from bertflow.cli.printing import print_lines, print_table
from bertflow.data.corpus import count_words, load_sentences, read_frequencies
from bertflow.data.docstrings import docstring_corpus
from bertflow.data.pairs import Pairs
from bertflow.encoder.embedded import RAW_POOLING, embedded_encoder
from bertflow.errors import UsageError
from bertflow.evaluation.systems import Opened, build_systems, open_system
from bertflow.geometry.inspecting import FEWEST, make_report, require_sentences, save_report
from bertflow.geometry.measures import MEASURES
from bertflow.geometry.pairs import load_scored_pairs
from bertflow.geometry.report import GeometryReport, number
from bertflow.tables import Table
from bertflow.training.batches import seeded_order

FITTED = 6000
"""Sentences that calibrators are fitted on, at most."""
DOCSTRING_PAIRS = 500
"""Pairs of docstrings, where no others are given."""
MEASURED = "Measures"
"""The section that is printed, unless it is left out."""
NONE = "none"
"""What --pairs takes where there are to be none."""
DOCSTRINGS = "docstrings"
"""What --pairs is where nothing is said."""


@dataclass(frozen=True)
class Text:
    """The text of a report.

    Attributes:
        looked_at: Sentences that are measured.
        fitted_on: Others, for calibrators.
        pairs: Pairs of sentences; None if there are none.
        source: Where the sentences are from, in words.
    """

    looked_at: list[str]
    fitted_on: list[str]
    pairs: Pairs | None
    source: str


def run_inspect(options: argparse.Namespace) -> int:
    """Carry out what the command line asks for; returns the exit code.

    Raises:
        BertflowError: For what cannot be used.
    """
    if options.sentences < FEWEST:
        raise UsageError(f"--sentences should be at least {FEWEST}, got {options.sentences}. Look at more.")
    if options.output and options.output.is_file():
        raise UsageError(f"--output should be a folder, but {options.output} is a file. Choose another name.")
    opened = _open(options)
    compare = options.compare or ("raw" if opened.calibrator else "raw,whitening")
    baselines = parse_systems(compare)
    text = read_text(options)
    corpus = None if opened.calibrator and all(one.refittable for one in baselines) else text.fitted_on
    progress = sys.stderr.isatty()
    systems = build_systems([opened], baselines, corpus, progress)
    counts = read_frequencies(options.frequencies) if options.frequencies else None
    run = Path(options.model) if options.model and (Path(options.model) / "run.json").is_file() else None
    report = make_report(
        f"Geometry of {opened.name}",
        systems,
        text.looked_at,
        pairs=text.pairs,
        counts=counts or count_words([*text.looked_at, *text.fitted_on]),
        counted=f"counts of {Path(options.frequencies).name}" if options.frequencies else "counted in this text",
        recipe=None if opened.recipe is None else {**opened.recipe, "device": options.device},
        run=run,
        facts={"text": text.source, "fitted on": _fitted_on(opened, corpus)},
    )
    path = save_report(report, options.output or (run / "report" if run else Path("report")))
    out = Console()
    if MEASURED in report.sections:
        print_table(out, _summary(report, list(systems)))
    print_lines(out, [*(f"left out: {name}: {reason}" for name, reason in report.left_out.items()), f"report  {path}"])
    return 0


def read_text(options: argparse.Namespace) -> Text:
    """The text to look at and to fit on, and the pairs.

    Raises:
        DataError: If there are too few sentences, or data is missing or damaged.
    """
    wanted = options.pairs or DOCSTRINGS
    pairs = None if wanted in (NONE, DOCSTRINGS) else load_scored_pairs(wanted, options.data_dir)
    if wanted == DOCSTRINGS or not options.text:
        sentences, natural = docstring_corpus(DOCSTRING_PAIRS, seed=options.seed)
        source, pairs = natural.source, natural if wanted == DOCSTRINGS else pairs
    if options.text:
        sentences, source = load_sentences(options.text), Path(options.text).name
    require_sentences(sentences, 2 * FEWEST)  # half of them are looked at
    order = seeded_order(len(sentences), options.seed)
    n = min(options.sentences, len(sentences) // 2)
    looked_at, fitted_on = ([sentences[row] for row in np.sort(rows)] for rows in (order[:n], order[n : n + FITTED]))
    return Text(looked_at, fitted_on, pairs, source)


def _fitted_on(opened: Opened, corpus: list[str] | None) -> str:
    if corpus is not None:
        return f"{len(corpus):,} other sentences of this text"
    return f"what {opened.name} was fitted on"


def _open(options: argparse.Namespace) -> Opened:
    given = {name: value for name in ("pooling", "max_length") if (value := getattr(options, name)) is not None}
    if options.model is None:
        return open_system(embedded_encoder(), options.device, **{"pooling": RAW_POOLING} | given)
    opened = open_system(options.model, options.device, **given)
    if given and (opened.calibrator or opened.recipe is None):
        raise UsageError(
            f"--{next(iter(given))} is for an encoder as it comes, but {options.model} is calibrated and keeps what it "
            "was fitted with, or word vectors, which have none. Leave it out."
        )
    return opened


def _summary(report: GeometryReport, systems: Sequence[str]) -> Table:
    numbers = report.sections[MEASURED].numbers
    columns = [*(numbers["values"][name] for name in systems), numbers["gaussian"]]
    lines = tuple((row.title, *(number(column[key], 3) for column in columns)) for key, row in MEASURES.items())
    return Table(("measure", *systems, "Gaussian"), lines)
