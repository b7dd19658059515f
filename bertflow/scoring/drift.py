"""How ordinary is a text? Each sentence by its log-likelihood, the whole by a test for drift."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bertflow.calibration.flow import FlowCalibrator
from bertflow.calibration.linear import Whitening
from bertflow.calibration.spelling import parse_calibrator
from bertflow.encoder.abstract import SentenceEncoder
from bertflow.errors import DataError, UsageError
from bertflow.scoring.domain import DomainCheck, Drift
from bertflow.scoring.pairs import Row
from bertflow.tables import Table

HEADER = ("sentence", "log_likelihood", "percentile", "in_domain")
STRANGE = 1.0
"""Percentile below which a sentence is called out of domain: one in a hundred ordinary ones is."""
SHOWN = 10
"""Sentences that are printed; all of them go to --output."""
ROWS_A_DIRECTION = 2
"""Sentences that a Gaussian is fitted on, for each direction."""


@dataclass(frozen=True)
class DomainReport:
    """What is said about a text; the arrays are as long as ``sentences``."""

    sentences: Sequence[str]
    log_likelihoods: NDArray[np.float64]
    percentiles: NDArray[np.float64]
    drift: Drift

    def rows(self) -> list[Row]:
        """One a sentence, in the order of the text."""
        return [
            (sentence, round(float(value), 4), round(float(percentile), 4), "yes" if percentile > STRANGE else "no")
            for sentence, value, percentile in zip(self.sentences, self.log_likelihoods, self.percentiles, strict=True)
        ]

    def table(self) -> Table:
        """The strangest sentences."""
        rows = sorted(self.rows(), key=lambda row: float(row[1]))[:SHOWN]
        return Table(HEADER, tuple((str(row[0])[:70], f"{row[1]:.1f}", f"{row[2]:.2f}", str(row[3])) for row in rows))

    def lines(self) -> list[str]:
        """What is said about the whole."""
        strange = int((self.percentiles <= STRANGE).sum())
        return [
            f"{strange:,} of {len(self.sentences):,} sentences are out of domain: less likely than {100 - STRANGE:g} % "
            f"of the held-out text ({STRANGE:g} % of ordinary ones are, too). The strangest stand above.",
            f"The whole text: {self.drift}.",
        ]


def check_domain(check: DomainCheck, encoder: SentenceEncoder, sentences: list[str], progress: bool) -> DomainReport:
    """Ask about each sentence as the raw ``encoder`` embeds it, and about all of them.

    Raises:
        DataError: If there are fewer than two sentences.
    """
    values = check.log_likelihood(encoder.encode(sentences, progress=progress))
    return DomainReport(sentences, values, check.percentile(values), check.drift(values))


def fit_domain(encoder: SentenceEncoder, sentences: list[str], density: str) -> DomainCheck:
    """A domain check from text: a density fitted on one half, and the other half to compare with.

    Args:
        encoder: A raw one.
        sentences: Distinct ones.
        density: The spelling of a calibrator that has one: ``gaussian`` (which is whitening) or ``flow``.

    Raises:
        UsageError: If it is misspelled, or has no density.
        DataError: If the text has fewer sentences than two for each direction of the embeddings.
    """
    made = parse_calibrator(density)
    if not isinstance(made, Whitening | FlowCalibrator):
        raise UsageError(f"A density is gaussian or flow, but {density} has none. Choose one of them.")
    fitted, held_out = sentences[::2], sentences[1::2]
    if len(fitted) < ROWS_A_DIRECTION * encoder.dim:
        raise DataError(
            f"A density of {encoder.dim} dimensions needs at least {2 * ROWS_A_DIRECTION * encoder.dim:,} sentences, "
            f"half of them to compare with, got {len(sentences):,}. Give more text with --fit_on."
        )
    return DomainCheck(made).fit_sentences(encoder, fitted, held_out)
