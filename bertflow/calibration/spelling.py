"""How calibrators, and systems with one, are spelled: on the command line, in YAML, in tables.

    center   standardize   abtt   abtt(7)   whitening   whitening(64)   flow   flow(all)   a calibrator, its number
    ridge(1)   two-band(0.5)                                        a number with a fraction
    whitening(power=0.5)   whitening(128,power=0.5)                 a parameter by its name
    background(0.25)                                                centered; deviations of general text, to a power
    blocks(whitening)   blocks(ridge(1),384)                        a calibrator of each joined layer, and a reduction
    raw                                                             the encoder as it is
    sif   mean(0)                                                   a pooling instead of the encoder's
    static   static-sif                                             a transformer's word embeddings, averaged
    sif+whitening(64)   mean(0)+abtt                                a pooling, then a calibrator
    ridge(1)+crops   sif+ridge(1)+crops                             queries are moved, as crops of the text tell

``sif`` or ``soft-sif`` alone reads the layers that the encoder's own pooling reads. The calibrator of a system is
fitted on sentences, or, where the moments of a calibrator are at hand, refitted from them: exactly, without the text.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bertflow.calibration.background import Background
from bertflow.calibration.base import AbstractCalibrator
from bertflow.calibration.blocks import Blocks
from bertflow.calibration.closed_forms import CLOSED_FORMS, AbstractClosedForm, LinearStandIn
from bertflow.calibration.flow import FlowCalibrator
from bertflow.calibration.parameters import FRACTION, CalibratorKind, read_kind
from bertflow.calibration.queries import QueryShift, crops
from bertflow.calibration.saving import read_calibrator
from bertflow.encoder.pooling import COUNTED, POOLINGS, parse_pooling
from bertflow.errors import UsageError
from bertflow.registry import did_you_mean

RAW = "raw"
CROPS = "crops"
STATIC: Mapping[str, str] = {"static": "content", "static-sif": "sif"}
"""Poolings that leave the transformer out -> how its word embeddings become one vector."""
CALIBRATORS: dict[str, CalibratorKind[AbstractCalibrator]] = {
    **CLOSED_FORMS,
    "background": CalibratorKind(Background, "power", form=FRACTION),
    "blocks": CalibratorKind(Blocks, "calibrator", nests=True),
    "flow": CalibratorKind(FlowCalibrator, "n_components", words=("all", "auto")),
}
"""Every calibrator, by the name that command lines and tables use: whatever takes a calibrator looks here."""


@dataclass(frozen=True)
class SystemSpec:
    """An encoder with another pooling, a calibrator, or both.

    Attributes:
        spelling: Its name, as the user wrote it and tables show it.
        pooling: A pooling instead of the encoder's own, or "sif" or "soft-sif", or a row of ``STATIC``; None keeps the
            encoder's.
        calibrator: A row of ``CALIBRATORS``; None calibrates nothing.
        value: The parameter of the calibrator; None keeps its default.
        keywords: Other parameters by their names, each a number.
        crops: Whether crops of the text stand in for queries.
    """

    spelling: str
    pooling: str | None = None
    calibrator: str | None = None
    value: int | float | str | None = None
    keywords: tuple[tuple[str, float], ...] = ()
    crops: bool = False

    @property
    def counts(self) -> bool:
        """Whether it needs counts of text, whatever the encoder's own pooling is."""
        return self.pooling in (*COUNTED, "static-sif")

    @property
    def number(self) -> int | None:
        """The parameter, if it is a number."""
        return self.value if isinstance(self.value, int) else None

    @property
    def refittable(self) -> bool:
        """Whether the moments of a calibrator are enough to fit it, without text."""
        closed = self.calibrator is None or issubclass(CALIBRATORS[self.calibrator].make, AbstractClosedForm)
        return closed and not self.counts and not self.crops and (self.pooling is None or self.calibrator is None)

    def pooling_for(self, own: str) -> str:
        """The spelling of the pooling, where the encoder's own is ``own``."""
        if self.pooling is not None and self.pooling in COUNTED:
            return str(replace(parse_pooling(own), tokens=self.pooling))
        return self.pooling or own

    def queries(self, sentences: Sequence[str]) -> list[str] | None:
        """What stands in for queries where the calibrator is fitted to ``sentences``; None for nothing."""
        return crops(sentences) if self.crops else None

    def make(self) -> AbstractCalibrator:
        """The calibrator, not fitted."""
        assert self.calibrator is not None, "only a system with a calibrator makes one"
        kind = CALIBRATORS[self.calibrator]
        return kind.make(**kind.parameters(self.value), **dict(self.keywords))

    def refitted(self, calibrator: AbstractCalibrator) -> AbstractCalibrator:
        """The calibrator, fitted on what ``calibrator`` was fitted on.

        Raises:
            UsageError: If it is not a function of the moments.
        """
        made = self.make()
        if not isinstance(made, AbstractClosedForm):
            raise UsageError(f"{self.spelling} cannot be fitted from moments alone. Give text with --fit_on.")
        return made.fit_moments(calibrator.moments_, calibrator.provenance)


def split_spellings(spellings: str) -> list[str]:
    """The parts of a list with commas; commas within brackets do not count."""
    return [part.strip() for part in re.split(r",(?![^(]*\))", spellings)]


def parse_systems(spellings: str) -> list[SystemSpec]:
    """Systems from a list with commas, each once.

    Raises:
        UsageError: If one is misspelled; the message lists the known ones.
    """
    return list(dict.fromkeys(parse_system(part) for part in split_spellings(spellings) if part))


def parse_system(spelling: str) -> SystemSpec:
    """One system from its spelling.

    Raises:
        UsageError: If it is misspelled; the message lists the known ones.
    """
    if spelling == RAW:
        return SystemSpec(spelling)
    parts = [part.strip() for part in spelling.split("+")]
    found: Any = ()
    cropped = len(parts) > 1 and parts[-1] == CROPS
    *poolings, last = parts[:-1] if cropped else parts
    try:
        found = read_kind(last, CALIBRATORS)
    except UsageError:
        poolings.append(last)
    pooling = "+".join(poolings) or None
    if pooling and pooling not in (*COUNTED, *STATIC):
        try:
            parse_pooling(pooling)
        except UsageError:
            numbered = [f"{name}({'C' if kind.nests else 'N'})" for name, kind in CALIBRATORS.items() if kind.parameter]
            known = ", ".join([RAW, *CALIBRATORS, *numbered, *COUNTED, *STATIC])
            names = [] if {"(", "+"} & {*spelling} else [*CALIBRATORS, *COUNTED, *STATIC, *POOLINGS]
            raise UsageError(
                f"Unknown baseline {spelling!r}. Known: {known}; a pooling ({', '.join(POOLINGS)}, or written out as "
                f"mean(1,2)); and a pooling with a calibrator, as sif+whitening(64).{did_you_mean(spelling, names)}"
            ) from None
    if cropped and not found:
        raise UsageError(f"Crops need a calibrator that is fitted to them, as ridge(1)+crops; got {spelling!r}.")
    return replace(SystemSpec(spelling, pooling, *found), crops=cropped)


def parse_calibrator(spelling: str) -> AbstractCalibrator:
    """A calibrator, not fitted, from its spelling: ``whitening(128)``, ``flow(all)``.

    Raises:
        UsageError: If it is misspelled; the message lists the known ones.
    """
    return SystemSpec(spelling, None, *read_kind(spelling, CALIBRATORS)).make()


def load_calibrator(folder: str | Path) -> AbstractCalibrator:
    """Read a calibrator folder.

    Raises:
        DataError: If the folder is missing, incomplete, damaged, or of a later format; the message names the file.
    """
    kinds: list[type[AbstractCalibrator]] = [LinearStandIn, QueryShift, *(kind.make for kind in CALIBRATORS.values())]
    return read_calibrator(Path(folder), {kind.__name__: kind for kind in kinds})
