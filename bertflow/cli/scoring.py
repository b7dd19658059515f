"""What ``bertflow evaluate`` does: open, fit the baselines, score, print, write.

Everything that depends on the time or the machine goes to ``run.json``; the other files are equal for equal input.
"""

import argparse
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path

from rich.console import Console

from bertflow.calibration.spelling import RAW, SystemSpec, parse_systems
from bertflow.cli.printing import print_lines, print_table
from bertflow.data.corpus import load_sentences
from bertflow.data.pairs import Pairs, load_pairs, unique_sentences
from bertflow.data.sts import expand_tasks, load_sts
from bertflow.encoder.abstract import SentenceEncoder
from bertflow.errors import UsageError
from bertflow.evaluation.ceiling import ceiling_system, gap_section
from bertflow.evaluation.figures import AGGREGATIONS
from bertflow.evaluation.lexical import lexical
from bertflow.evaluation.mteb_files import mteb_files, predictions_csv
from bertflow.evaluation.report import Report
from bertflow.evaluation.systems import CEILING, Opened, build_systems, open_system
from bertflow.evaluation.tables import Published, matching, published_table
from bertflow.evaluation.tasks import evaluate_binary, evaluate_retrieval, score_sets
from bertflow.evaluation.thresholds import parse_thresholds, require_thresholds
from bertflow.files import write_json, write_text
from bertflow.registry import lookup
from bertflow.similarity import SIMILARITIES
from bertflow.tables import Section

VERSIONS = ("bertflow", "torch", "transformers", "numpy", "scipy")
LABELLED = "tuning"
"""The labelled pairs that the supervised ceiling is trained on."""
OF_ENCODERS = ("pooling", "max_length", "dtype")
"""Options that say how an encoder as it comes is used."""


@dataclass(frozen=True)
class Work:
    """What is scored on: STS tasks, pairs to retrieve, pairs that belong together or do not.

    Attributes:
        sets: STS tasks.
        retrieval: Queries and their texts.
        binary: Pairs that belong together or do not.
        lexical: Pairs whose edit distance is looked at.
        labelled: What the supervised ceiling is trained on; the others are only scored.
    """

    sets: list[Pairs]
    retrieval: Pairs | None
    binary: Pairs | None
    lexical: Pairs | None
    labelled: Pairs | None

    @classmethod
    def load(cls, options: argparse.Namespace) -> "Work":
        """Read everything before anything is computed."""
        others = options.retrieval or options.binary
        tasks = expand_tasks(options.tasks or "sts7", options.data_dir) if options.tasks or not others else ()
        return cls(
            [load_sts(task, options.data_dir) for task in tasks],
            load_pairs(options.retrieval, "retrieval") if options.retrieval else None,
            load_pairs(options.binary, "binary") if options.binary else None,
            load_sts(options.lexical, options.data_dir) if options.lexical else None,
            load_sts(LABELLED, options.data_dir) if options.ceiling else None,
        )

    def sentences(self) -> list[str]:
        """All distinct sentences that are scored, without labels; those of the lexical table change no other score."""
        return unique_sentences([*self.sets, *(pairs for pairs in (self.retrieval, self.binary) if pairs)])

    def report(self, systems: Mapping[str, SentenceEncoder], options: argparse.Namespace, progress: bool) -> Report:
        """Score everything."""
        how = {
            "similarity": options.similarity,
            "resamples": options.resamples,
            "seed": options.seed,
            "progress": progress,
        }
        reports = []
        if self.sets:
            reports.append(score_sets(systems, self.sets, force=options.force, **how))
        if self.retrieval:
            reports.append(evaluate_retrieval(systems, self.retrieval, **how))
        if self.binary:
            reports.append(evaluate_binary(systems, self.binary, force=options.force, **how))
        return Report.joined(reports)

    def ceiling(self, encoder: SentenceEncoder, progress: bool) -> SentenceEncoder:
        """The supervised ceiling of an encoder."""
        assert self.labelled is not None, "asked for with --ceiling"
        return ceiling_system(encoder, self.labelled, self.sets, progress=progress)

    def gaps(self, report: Report, aggregation: str) -> list[Section]:
        """What share of the gap between raw and ceiling the systems close, for each encoder with a ceiling."""
        names = [facts.name for facts in report.systems if self.labelled and facts.name.split()[0] == CEILING]
        return [gap_section(report, RAW + name.removeprefix(CEILING), name, aggregation) for name in names]


def score(options: argparse.Namespace, argv: Sequence[str]) -> int:
    """Carry out what the command line asks for; returns the exit code.

    Raises:
        BertflowError: For what cannot be used, and for a threshold that was missed.
    """
    begin, progress = time.perf_counter(), sys.stderr.isatty()
    thresholds, baselines = parse_thresholds(options.fail_below), parse_systems(options.compare)
    _check(options, baselines)
    theirs = [] if options.published is None else matching(options.published, options.aggregation)
    work = Work.load(options)
    opened = _open(options)
    corpus = _corpus(options.fit_on, work)
    ceiling = partial(work.ceiling, progress=progress) if work.labelled else None
    systems = build_systems(opened, baselines, corpus, progress, ceiling)
    report = work.report(systems, options, progress)
    words = lexical(systems, work.lexical, options.similarity, progress) if work.lexical else None
    sections = [*work.gaps(report, options.aggregation), *([words.section()] if words else [])]
    if options.output:
        if words:
            write_text(options.output / "lexical.json", words.to_json())
        _write(report, sections, options, argv, time.perf_counter() - begin)
    _print(report, sections, options.aggregation, theirs)
    named = {one.name for one in opened if one.calibrator} or {name for name in systems if name.startswith(RAW)}
    require_thresholds(report, thresholds, sorted(named), options.aggregation)
    return 0


def _check(options: argparse.Namespace, baselines: Sequence[SystemSpec]) -> None:
    lookup("similarity", SIMILARITIES, options.similarity)
    lookup("aggregation", AGGREGATIONS, options.aggregation)
    if options.fit_on and not baselines:
        raise UsageError("--fit_on is for the baselines, but none were asked for. Add --compare center,whitening.")
    if options.resamples < 0:
        raise UsageError(f"--resamples should be 0 or more, got {options.resamples}.")


def _corpus(fit_on: str | None, work: Work) -> list[str] | None:
    if fit_on is None:
        return None
    return work.sentences() if fit_on == "eval" else load_sentences(fit_on)


def _open(options: argparse.Namespace) -> list[Opened]:
    given = {name: getattr(options, name) for name in OF_ENCODERS if getattr(options, name) is not None}
    opened = [open_system(model, options.device, **given) for model in options.models]
    if given and all(one.calibrator or one.open_static is None for one in opened):
        raise UsageError(
            f"--{next(iter(given))} is for an encoder as it comes, but what was given is calibrated and keeps what it "
            "was fitted with, or word vectors, which have none. Leave it out."
        )
    return opened


def _print(report: Report, sections: Sequence[Section], aggregation: str, theirs: Sequence[Published]) -> None:
    out = Console()
    tables = [report.table(aggregation)]
    if theirs:
        tables.append(published_table(theirs, report.columns(aggregation)))
    for table in tables:
        print_table(out, table)
    print_lines(out, [*report.comparison(aggregation), "", *report.captions(aggregation)])
    for section in sections:
        print_table(out, section.table)
        print_lines(out, section.lines)


def _write(
    report: Report, sections: Sequence[Section], options: argparse.Namespace, argv: Sequence[str], seconds: float
) -> None:
    folder: Path = options.output
    write_text(folder / "results.json", report.to_json())
    parts = [report.to_markdown(options.aggregation), *(section.to_markdown() for section in sections)]
    write_text(folder / "results.md", "\n".join(parts))
    if report.tasks:
        write_text(folder / "predictions.csv", predictions_csv(report))
    if report.tasks and options.similarity == "cosine":  # mteb's main score is of the cosine
        for path, text in mteb_files(report).items():
            write_text(folder / "mteb" / path, text)
    run = {
        "arguments": list(argv),
        "seconds": round(seconds, 1),
        "finished": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "host": platform.node(),
        "versions": {name: version(name) for name in VERSIONS},
    }
    write_json(folder / "run.json", run)
