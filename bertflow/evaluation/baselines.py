"""The cheap systems that always stand beside a flow, by their spelling.

    raw   center   standardize   abtt   abtt(7)   whitening   whitening(64)    a calibrator, and its one number
    sif   mean(0)                                                              a pooling instead of the encoder's own
    static   static-sif                                                        a transformer's word embeddings, averaged
    sif+whitening(64)   mean(0)+abtt                                           a pooling, then a calibrator

``sif`` or ``soft-sif`` alone reads the layers that the encoder's own pooling reads. A baseline is fitted on sentences,
or, where the moments of a calibrator are at hand, refitted from them: exactly, and without the text.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from bertflow.calibration.base import AbstractCalibrator
from bertflow.calibration.flow import FlowCalibrator
from bertflow.calibration.linear import AbstractLinearCalibrator, AllButTheTop, Center, Standardize, Whitening
from bertflow.encoder.abstract import SentenceEncoder
from bertflow.encoder.pooling import COUNTED, POOLINGS, parse_pooling
from bertflow.errors import UsageError

RAW = "raw"
STATIC: Mapping[str, str] = {"static": "content", "static-sif": "sif"}
"""Baselines that leave the transformer out -> how its word embeddings become one vector."""


@dataclass(frozen=True)
class Kind:
    """A calibrator class, and the parameter that a number in its spelling sets; empty where it takes none."""

    make: type[AbstractCalibrator]
    parameter: str = ""


BASELINES: Mapping[str, Kind] = {
    "center": Kind(Center),
    "standardize": Kind(Standardize),
    "abtt": Kind(AllButTheTop, "k"),
    "whitening": Kind(Whitening, "n_components"),
    "flow": Kind(FlowCalibrator, "n_components"),
}
"""Calibrators by name; ``raw`` and ``sif`` are none."""
_SPELLING = re.compile(r"(?P<name>[a-z]+)(\((?P<number>\d+)\))?")


@dataclass(frozen=True)
class Baseline:
    """One baseline.

    Attributes:
        spelling: As the user wrote it, and the table calls it.
        pooling: A pooling in the place of the encoder's own, or "sif" or "soft-sif", or a row of ``STATIC``; None
            keeps the encoder's.
        calibrator: A row of ``BASELINES``; None calibrates nothing.
        number: What the calibrator's parameter is set to; None keeps its default.
    """

    spelling: str
    pooling: str | None = None
    calibrator: str | None = None
    number: int | None = None

    @property
    def counts(self) -> bool:
        """Whether it needs counts of text, whatever the encoder's own pooling is."""
        return self.pooling in (*COUNTED, "static-sif")

    def pooling_for(self, own: str) -> str:
        """The pooling's spelling, where the encoder's own is ``own``."""
        if self.pooling is not None and self.pooling in COUNTED:
            return str(replace(parse_pooling(own), tokens=self.pooling))
        return self.pooling or own

    def fitted(self, encoder: SentenceEncoder, sentences: list[str], progress: bool = False) -> AbstractCalibrator:
        """The calibrator, fitted on ``sentences`` as ``encoder`` embeds them."""
        return self._made().fit_sentences(encoder, sentences, progress=progress)

    def refitted(self, calibrator: AbstractCalibrator) -> AbstractCalibrator:
        """The calibrator, fitted on what ``calibrator`` was fitted on.

        Raises:
            UsageError: If it is no function of the moments.
        """
        made = self._made()
        if not isinstance(made, AbstractLinearCalibrator):
            raise UsageError(f"{self.spelling} cannot be fitted from moments alone. Give text with --fit_on.")
        made.fit_moments(calibrator.moments_)
        made.provenance_ = calibrator.provenance
        return made

    def _made(self) -> AbstractCalibrator:
        assert self.calibrator is not None, "only baselines with a calibrator are fitted"
        kind = BASELINES[self.calibrator]
        return kind.make() if self.number is None else kind.make(**{kind.parameter: self.number})


def parse_baselines(spellings: str) -> list[Baseline]:
    """Baselines of a list with commas, each once.

    Raises:
        UsageError: If one is spelled wrongly; the message lists the known ones.
    """
    parts = [part.strip() for part in re.split(r",(?![^(]*\))", spellings)]
    return list(dict.fromkeys(parse_baseline(part) for part in parts if part))


def parse_baseline(spelling: str) -> Baseline:
    """One baseline from its spelling.

    Raises:
        UsageError: If it is spelled wrongly; the message lists the known ones.
    """
    if spelling == RAW:
        return Baseline(spelling)
    *poolings, last = (part.strip() for part in spelling.split("+"))
    match = _SPELLING.fullmatch(last)
    kind = BASELINES.get(match["name"]) if match else None
    if kind is None:
        poolings, match = [*poolings, last], None
    if len(poolings) > 1 or (match and match["number"] and kind and not kind.parameter):
        raise _misspelled(spelling)
    pooling = poolings[0] if poolings else None
    if pooling is not None and pooling not in (*COUNTED, *STATIC):
        _require_pooling(spelling, pooling)
    if match is None:
        return Baseline(spelling, pooling)
    return Baseline(spelling, pooling, match["name"], int(match["number"]) if match["number"] else None)


def _require_pooling(spelling: str, pooling: str) -> None:
    try:
        parse_pooling(pooling)
    except UsageError:
        raise _misspelled(spelling) from None


def _misspelled(spelling: str) -> UsageError:
    numbered = [f"{name}(N)" for name, kind in BASELINES.items() if kind.parameter]
    known = ", ".join([RAW, *BASELINES, *numbered, *COUNTED, *STATIC])
    return UsageError(
        f"Unknown baseline {spelling!r}. Known: {known}; a pooling ({', '.join(POOLINGS)}, or written out as "
        "mean(1,2)); and a pooling with a calibrator, as sif+whitening(64)."
    )
