"""What ``bertflow score`` does: open, fit if asked to, score, print, write."""

import argparse
import sys
from pathlib import Path

import numpy as np
from rich.console import Console

from bertflow.calibrated import CalibratedEncoder
from bertflow.cli.printing import print_lines, print_table
from bertflow.data.corpus import load_sentences
from bertflow.data.pairs import Pairs, load_pairs
from bertflow.encoder.abstract import SentenceEncoder
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.errors import DataError, UsageError
from bertflow.evaluation.encoding import pair_cosines
from bertflow.evaluation.systems import open_system
from bertflow.files import atomic_folder
from bertflow.scoring.domain import DOMAIN, DomainCheck
from bertflow.scoring.drift import HEADER, check_domain, fit_domain
from bertflow.scoring.pairs import ScoredPairs, raw_encoder, require_writable, write_rows
from bertflow.scoring.random_pairs import FEWEST
from bertflow.scoring.scores import SCORES, ScoreCalibrator
from bertflow.text_keys import hash_text

OF_ENCODERS = ("pooling", "max_length", "prompt")
"""Options that say how an encoder as it comes is used."""
OF_FIT = ("labels", "save", "density")
"""Options that need --fit_on."""
SHOWN = 20
"""Pairs that are printed; all of them go to --output."""


def score(options: argparse.Namespace) -> int:
    """Carry out what the command line asks for; returns the exit code."""
    out, progress = Console(), sys.stderr.isatty()
    _check(options)
    text = load_sentences(options.fit_on) if options.fit_on else None
    labels = load_pairs(options.labels, "binary") if options.labels else None
    pairs = load_pairs(options.pairs, "texts", options.columns) if options.pairs else None
    domain = load_sentences(options.domain) if options.domain else None
    system = _open(options)
    text = None if text is None else _unseen(text, system, options)
    scores = None
    if pairs is not None or options.save:
        scores = _scores(options, system, text, labels, progress)
        threshold = scores.threshold(options.false_match_rate)
        print_lines(out, [f"Match: {threshold}; {scores.pairs_:,} random pairs of {scores.n_:,} sentences."])
        if pairs is not None:
            scored = ScoredPairs.of(pairs, pair_cosines(system, pairs, progress), scores, threshold)
            print_table(out, scored.table(SHOWN))
            print_lines(out, [f"{int(scored.matches.sum()):,} of {len(pairs):,} pairs match."])
            if options.output:
                write_rows(options.output, scored.header, scored.rows())
    if options.save and scores:
        _save(options.save, system, scores)
    if domain is not None:
        _domain(out, options, system, domain, text, progress)
    return 0


def _check(options: argparse.Namespace) -> None:
    require_writable(options.output)
    for name in OF_FIT:
        if getattr(options, name) is not None and not options.fit_on:
            raise UsageError(f"--{name} goes with --fit_on TEXT, which is missing. Add it, or leave --{name} out.")
    if options.pairs and options.domain and options.output:
        raise UsageError("--output holds one table, but both PAIRS and --domain were given. Call the command twice.")
    if not options.pairs and not options.domain and not options.save:
        raise UsageError("There is nothing to score. Give a table of PAIRS, or a text with --domain.")


def _open(options: argparse.Namespace) -> SentenceEncoder:
    given = {name: value for name in OF_ENCODERS if (value := getattr(options, name)) is not None}
    opened = open_system(options.folder, options.device, **given)
    if opened.calibrator is None:
        return opened.shared.own
    if given:
        raise UsageError(f"--{next(iter(given))} is for an encoder as it comes; this one is calibrated. Leave it out.")
    return CalibratedEncoder(opened.shared.own, opened.calibrator)


def _unseen(text: list[str], system: SentenceEncoder, options: argparse.Namespace) -> list[str]:
    """A random sample of the sentences that nothing was fitted on."""
    hashes = system.fitted_hashes()
    seen = set() if hashes is None else set(hashes.tolist())
    left = [sentence for sentence in text if hash_text(sentence) not in seen]
    if len(left) < FEWEST:
        raise DataError(
            f"{options.fit_on} should hold at least {FEWEST} sentences that the encoder was not fitted on, but holds "
            f"{len(left)} (of {len(text)}). Give other text."
        )
    chosen = np.random.default_rng(options.seed).permutation(len(left))[: options.max_sentences]
    return [left[row] for row in np.sort(chosen)]


def _scores(
    options: argparse.Namespace,
    system: SentenceEncoder,
    text: list[str] | None,
    labels: Pairs | None,
    progress: bool,
) -> ScoreCalibrator:
    folder = Path(options.folder)
    if text is None:
        if not (folder / SCORES).is_file():
            raise UsageError(f"{folder} holds no {SCORES}. Fit the scores to your text: add --fit_on TEXT.")
        return ScoreCalibrator.load(folder, system)
    scores = ScoreCalibrator(options.method, options.seed).fit_sentences(system, text, progress=progress)
    if labels is not None:
        scores.fit_labels(pair_cosines(system, labels, progress), labels.target)
    return scores


def _save(folder: Path, system: SentenceEncoder, scores: ScoreCalibrator) -> None:
    encoder = raw_encoder(system)
    if not isinstance(encoder, TransformerEncoder):
        raise UsageError(f"--save is for transformers, this is a {type(encoder).__name__}. Leave it out.")
    with atomic_folder(folder) as aside:
        if isinstance(system, CalibratedEncoder):
            system.save(aside)
        else:
            encoder.write(aside)
        scores.save(aside)


def _domain(
    out: Console,
    options: argparse.Namespace,
    system: SentenceEncoder,
    sentences: list[str],
    text: list[str] | None,
    progress: bool,
) -> None:
    folder = Path(options.folder)
    if text is None and not (folder / DOMAIN).is_dir():
        raise UsageError(f"{folder} holds no {DOMAIN}/. Say what ordinary text is: add --fit_on TEXT.")
    raw = raw_encoder(system)
    check = DomainCheck.load(folder, raw) if text is None else fit_domain(raw, text, options.density or "gaussian")
    report = check_domain(check, raw, sentences, progress)
    print_table(out, report.table())
    print_lines(out, report.lines())
    if options.output:
        write_rows(options.output, HEADER, report.rows())
