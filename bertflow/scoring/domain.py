"""In or out of domain? How likely sentences are under the density of a text.

    u = x / |x|            embeddings scaled to length one
    log-likelihood l(u)    under a Gaussian (Whitening: -1/2 Mahalanobis^2 + constant) or a flow, fitted on some text
    percentile             100 (1 + held-out sentences with l or less) / (1 + N): low is strange, 50 is ordinary
    drift                  is a whole batch other text? drift.py

Without the scaling the length of an embedding decides on a tuned encoder, and long sentences, whose embeddings are
short, look more ordinary than the text itself (docs/fix.md has the figures). The N sentences must be held out: those
that a density was fitted on look too likely, above all if they are few.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import ks_2samp
from sklearn.metrics import roc_auc_score

from bertflow.array_types import Bools, Float64, Floats
from bertflow.calibration.base import AbstractCalibrator, AbstractDensity
from bertflow.calibration.closed_forms import Whitening
from bertflow.calibration.spelling import load_calibrator, parse_calibrator
from bertflow.encoder.abstract import SentenceEncoder
from bertflow.encoder.identity import Identity, MadeBy
from bertflow.errors import DataError, UsageError, how_many, without_null_warnings
from bertflow.files import atomic_folder
from bertflow.records import read_record, write_record
from bertflow.results import AbstractResult, Parts
from bertflow.scoring.drift import STRANGE, Coordinates, Drift
from bertflow.scoring.scores import finite
from bertflow.similarity import unit_rows
from bertflow.tables import Table, shortened

DOMAIN, DENSITY, RECORD = "domain", "density", "domain.json"
"""The folder in an encoder's folder, and what is in it."""
FEWEST_HELD_OUT = 50
"""Fewest held-out sentences of a percentile."""
MOST = 5000
"""Held-out sentences that are kept."""
ROWS_A_DIRECTION = 2
"""Sentences that a Gaussian is fitted on, for each direction."""
UNCHECKED = (
    "Without a domain check it is not known whether texts are in domain. With a TEXT of "
    f"{2 * ROWS_A_DIRECTION} sentences for each dimension of the embeddings, `bertflow score MODEL --fit_on TEXT "
    "--save DIR` fits one."
)
"""Line where nothing tells whether percentiles or scores hold."""
SHOWN, BRIEF = (10, 70), (5, 34)
"""Sentences that a table shows, and characters of each; and those in an answer of 24 lines."""


@dataclass(frozen=True, repr=False)
class DomainReport(AbstractResult):
    """How ordinary the sentences of a text are, and whether the whole has drifted; the arrays are (sentences,)."""

    sentences: Sequence[str]
    log_likelihoods: Float64
    percentiles: Float64
    drift: Drift

    header = ("sentence", "log_likelihood", "percentile", "in_domain")

    def rows(self) -> list[tuple[str, float, float, str]]:
        """One a sentence, in the order of the text."""
        return [
            (sentence, round(float(value), 4), round(float(percentile), 4), "yes" if percentile > STRANGE else "no")
            for sentence, value, percentile in zip(self.sentences, self.log_likelihoods, self.percentiles, strict=True)
        ]

    def parts(self) -> Parts:
        """The strangest sentences, and what is said about the whole."""
        return self._told(*SHOWN)

    def answer(self) -> Parts:
        """The parts, with fewer sentences, each in one line."""
        return self._told(*BRIEF)

    def _told(self, most: int, width: int) -> Parts:
        rows = sorted(self.rows(), key=lambda row: row[1])[:most]
        lines = tuple(
            (shortened(text, width), f"{value:.1f}", f"{place:.2f}", inside) for text, value, place, inside in rows
        )
        yield Table(self.header, lines, prose=True)
        strange = int((self.percentiles <= STRANGE).sum())
        yield (
            f"Out of domain: {strange:,} of {how_many(len(self.sentences), 'sentences')}, less likely than "
            f"{100 - STRANGE:g} % of the held-out text ({STRANGE:g} % of ordinary ones are, too). The table shows the "
            "strangest."
        )
        yield str(self.drift)

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        sentences = [dict(zip(self.header, row, strict=True)) for row in self.rows()]
        return {"sentences": sentences, **asdict(self.drift), "drifted": self.drift.drifted, "refit": self.drift.refit}


@dataclass(frozen=True)
class DomainRecord:
    """The form of ``domain.json``."""

    format: Literal[1]
    unit: bool
    held_out: list[float]
    made_by: MadeBy
    coordinates: Coordinates

    def __post_init__(self) -> None:
        if len(self.held_out) < FEWEST_HELD_OUT or np.any(np.diff(self.held_out) < 0):
            raise DataError(f"held_out should be {FEWEST_HELD_OUT} numbers or more that do not fall. Fit again.")


class DomainCheck:
    """Percentiles of log-likelihoods among held-out text.

    Args:
        density: A calibrator that has a density: Whitening (the default), Standardize or FlowCalibrator. ``fit`` fits
            it; with a density that is fitted already, call only ``hold``.
        unit: Whether rows are scaled to length one first, in fitting as in asking.

    Attributes:
        held_out_: Log-likelihoods of held-out sentences, rising.
        coordinates_: Their mean and variances in the coordinates of the density.
        made_by_: Identity of the encoder.

    Raises:
        UsageError: If the calibrator has no density.
    """

    def __init__(self, density: AbstractCalibrator | None = None, unit: bool = True) -> None:
        density = Whitening() if density is None else density
        if not isinstance(density, AbstractDensity):
            raise UsageError(
                f"A domain check needs a density, which {type(density).__name__} does not have. "
                "Use Whitening, Standardize or FlowCalibrator."
            )
        self.density: AbstractDensity = density
        self.unit = unit
        self.held_out_: Float64 = np.empty(0)
        self.coordinates_ = Coordinates([], [])
        self.made_by_ = Identity()

    @classmethod
    def of_text(cls, encoder: SentenceEncoder, sentences: Sequence[str], density: str = "gaussian") -> Self:
        """Fit a density on one half of a text, and hold out the other half.

        Args:
            encoder: A raw encoder.
            sentences: Distinct sentences.
            density: The spelling of a calibrator that has a density: ``gaussian`` (which is whitening) or ``flow``.

        Raises:
            UsageError: If it is misspelled, or has no density.
            DataError: If half the text has fewer than two sentences for each direction of the embeddings.
        """
        check = cls(parse_calibrator(density))
        fitted, held_out = sentences[::2], sentences[1::2]
        if len(fitted) < ROWS_A_DIRECTION * encoder.dim:
            raise DataError(
                f"A density is fitted on at least {ROWS_A_DIRECTION} sentences for each of {encoder.dim} dimensions, "
                f"and compared with as many: {2 * ROWS_A_DIRECTION * encoder.dim:,} sentences in all, got "
                f"{len(sentences):,}. Give more text with --fit_on."
            )
        return check.fit_sentences(encoder, fitted, held_out)

    def fit(self, X: ArrayLike, held_out: ArrayLike) -> Self:
        """Fit the density to raw embeddings (n, dim), and remember the log-likelihoods of others.

        Raises:
            DataError: If fewer than 50 are held out, or the density cannot be fitted.
        """
        self.density.fit(self._scaled(X))
        return self.hold(held_out)

    def hold(self, held_out: ArrayLike) -> Self:
        """Remember the log-likelihoods of raw embeddings (n, dim) that the density was not fitted on.

        Raises:
            DataError: If there are fewer than 50.
        """
        x = np.asarray(held_out)[:MOST]
        if len(x) < FEWEST_HELD_OUT:
            raise DataError(
                f"A domain check needs at least {FEWEST_HELD_OUT} held-out sentences, got {len(x)}. Give more text."
            )
        self.held_out_, self.coordinates_ = np.sort(self.log_likelihood(x)), Coordinates.of(self._coordinates(x))
        return self

    def fit_sentences(self, encoder: SentenceEncoder, sentences: Sequence[str], held_out: Sequence[str]) -> Self:
        """Fit to sentences as the raw ``encoder`` embeds them, compare with others, and remember the encoder."""
        with without_null_warnings():
            self.fit(encoder.encode(list(sentences)), encoder.encode(list(held_out)[:MOST]))
        self.made_by_ = encoder.identity
        return self

    def log_likelihood(self, X: ArrayLike) -> Float64:
        """Log density (n,) of raw embeddings, in nats, within the span of directions that are not null."""
        with without_null_warnings():
            return np.asarray(self.density.score_samples(self._scaled(X)), dtype=np.float64)

    def _coordinates(self, X: ArrayLike) -> Floats:
        """Where raw embeddings lie in the space of the density, whose coordinates held-out text fills alike; (n, k)."""
        with without_null_warnings():
            z = self.density.transform(self._scaled(X))
        with np.errstate(over="ignore"):
            finite(np.square(z).sum(1), "Squared coordinates")
        return z

    def _scaled(self, X: ArrayLike) -> ArrayLike:
        return unit_rows(np.asarray(X)) if self.unit else X

    def percentile(self, log_likelihoods: ArrayLike) -> Float64:
        """Percent of held-out sentences that are as strange or stranger; in (0, 100]."""
        if not len(self.held_out_):
            raise UsageError("This DomainCheck is not fitted. Call fit with embeddings of held-out text first.")
        at_most = np.searchsorted(self.held_out_, finite(log_likelihoods, "Log-likelihoods"), side="right")
        return 100 * (1 + at_most) / (1 + len(self.held_out_))

    def is_outside(self, X: ArrayLike) -> Bools:
        """Whether raw embeddings (n, dim) are out of domain: stranger than all but ``STRANGE`` % of held-out text."""
        return self.percentile(self.log_likelihood(X)) <= STRANGE

    def drift(self, log_likelihoods: ArrayLike, X: ArrayLike | None = None) -> Drift:
        """Compare a new batch with the held-out text.

        Args:
            log_likelihoods: Log-likelihoods of the batch (n,).
            X: Its raw embeddings (n, dim); without them means and variances are not compared.

        Raises:
            DataError: For fewer than two sentences.
        """
        batch, kept = finite(log_likelihoods, "Log-likelihoods"), self.held_out_
        if len(batch) < 2:
            raise DataError(f"Drift is a matter of several sentences, got {len(batch)}. Give at least 2.")
        outside = float((self.percentile(batch) <= STRANGE).mean())
        test, shift = ks_2samp(kept, batch), float((batch.mean() - kept.mean()) / kept.std())
        means = None if X is None else self.coordinates_.against(self._coordinates(X), len(kept))
        p_value, ks = float(test.pvalue), float(test.statistic)
        return Drift(len(batch), len(kept), p_value, ks, shift, auroc(kept, batch), outside, means)

    def report(self, encoder: SentenceEncoder, sentences: Sequence[str], progress: bool | None = None) -> DomainReport:
        """Ask about each sentence as the raw ``encoder`` embeds it, and about all of them.

        Raises:
            DataError: For fewer than two sentences.
        """
        x = encoder.encode(list(sentences), progress=progress)
        values = self.log_likelihood(x)
        return DomainReport(sentences, values, self.percentile(values), self.drift(values, x))

    def save(self, folder: str | Path) -> None:
        """Write ``domain/`` into an encoder's folder, complete or not at all."""
        record = DomainRecord(1, self.unit, self.held_out_.tolist(), self.made_by_.as_dict(), self.coordinates_)
        with atomic_folder(Path(folder) / DOMAIN) as aside:
            (aside / DENSITY).mkdir()
            self.density.write(aside / DENSITY)
            write_record(aside / RECORD, asdict(record))

    @classmethod
    def find(cls, folder: str | Path, encoder: SentenceEncoder) -> Self | None:
        """What ``load`` reads, for a raw encoder; None where the folder holds no domain check."""
        return cls.load(folder, encoder) if (Path(folder) / DOMAIN).exists() else None

    @classmethod
    def load(cls, folder: str | Path, encoder: SentenceEncoder | None, force: bool = False) -> Self:
        """Read what ``save`` wrote.

        Args:
            folder: Folder of the encoder.
            encoder: Raw encoder whose embeddings will be asked about; None checks nothing, for other embeddings.
            force: Accept an encoder that differs in what ``bertflow.encoder.identity.RULES`` refuses.

        Raises:
            DataError: If it is missing or damaged, or the encoder or its pooling is another one.
        """
        path = Path(folder) / DOMAIN
        record = read_record(path / RECORD, DomainRecord, "domain check", "Fit the domain check again.")
        check = cls(load_calibrator(path / DENSITY), record.unit)
        check.made_by_ = Identity.from_record(record.made_by)
        check.held_out_, check.coordinates_ = np.array(record.held_out, dtype=np.float64), record.coordinates
        known = record.coordinates
        if not (len(known.mean) == len(known.variance) == check.density.dim_out and min(known.variance) >= 0):
            raise DataError(
                f"{path / RECORD}: its coordinates are not those of its density. Fit the domain check again."
            )
        if encoder is not None:
            do = "Use the encoder that it was fitted on, fit the domain check again, or pass force=True in Python."
            check.made_by_.require(encoder.identity, f"{path / RECORD} was fitted on embeddings by", do, force)
        return check


def auroc(inside: Floats, outside: Floats) -> float:
    """How often a log-likelihood of ``outside`` is below one of ``inside``, ties counting half; in [0, 1]."""
    return float(roc_auc_score(np.repeat([1, 0], [len(inside), len(outside)]), np.concatenate([inside, outside])))
