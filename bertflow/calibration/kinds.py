"""How one calibrator is spelled: a name, and in brackets its parameter, as ``whitening(128)``.

The rows are in ``closed_forms.CLOSED_FORMS``, and all of them in ``spelling.CALIBRATORS``.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from bertflow.calibration.base import AbstractCalibrator
from bertflow.errors import UsageError
from bertflow.registry import lookup

Made = TypeVar("Made", bound=AbstractCalibrator, covariant=True)
FRACTION = (r"[0-9]+(\.[0-9]+)?", float)
"""A number that need not be whole."""
ALIASES: Mapping[str, str] = {"gaussian": "whitening", "sn": "standardize", "natsv": "abtt"}
"""Other names: of the density of whitening, and those of the BERT-flow paper."""
_SPELLING = re.compile(r"(?P<name>[a-z]+(-[a-z]+)*)(\((?P<value>.+)\))?")


@dataclass(frozen=True)
class CalibratorKind(Generic[Made]):
    """How a calibrator is spelled.

    Attributes:
        make: The class.
        parameter: What stands in brackets sets it; empty if it takes nothing.
        words: What else than a number may stand there.
        form: What a number looks like, and what reads it.
        nests: Whether a calibrator stands there instead, and after a comma the number of directions that are kept.
    """

    make: type[Made]
    parameter: str = ""
    words: tuple[str, ...] = ()
    form: tuple[str, Callable[[str], int | float]] = (r"[0-9]+", int)
    nests: bool = False

    def parameters(self, value: int | float | str | None) -> dict[str, Any]:
        """The parameters of the class, for what ``read_kind`` gave."""
        if value is None or not self.nests:
            return {} if value is None else {self.parameter: value}
        inner, _, last = str(value).rpartition(",")
        if not inner or not last.strip().isdecimal():
            return {self.parameter: str(value)}
        return {self.parameter: inner.strip(), "n_components": int(last)}


def read_kind(
    spelling: str, kinds: Mapping[str, CalibratorKind[AbstractCalibrator]], what: str = "calibrator"
) -> tuple[str, int | float | str | None]:
    """The row of ``kinds`` that a spelling names, and the value of its parameter; None for no brackets.

    Raises:
        UsageError: If it is misspelled; the message lists the known ones.
    """
    known = ", ".join(f"{name}({kind.parameter})" if kind.parameter else name for name, kind in kinds.items())
    match = _SPELLING.fullmatch(spelling)
    if match is None:
        raise UsageError(f"A calibrator is a name and one number, as whitening(128); got {spelling!r}. Known: {known}.")
    name, text = ALIASES.get(match["name"], match["name"]), match["value"]
    kind = lookup(what, kinds, name)
    if text is None or text in kind.words:
        return name, text
    if kind.nests:
        kind.make(**kind.parameters(text))._require_parameters()
        return name, text
    form, number = kind.form
    if kind.parameter and re.fullmatch(form, text):
        return name, number(text)
    takes = " or ".join(["a number", *kind.words]) if kind.parameter else "nothing"
    raise UsageError(f"{name} takes {takes} in brackets, got ({text}). Known: {known}.")
