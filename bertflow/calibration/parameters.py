"""The parameters of calibrators: which numbers they take, and how a calibrator is spelled with them."""

import numbers
import re
import sys
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
"""Further names: of the density of whitening, and those of the BERT-flow paper."""
_SPELLING = re.compile(r"(?P<name>[a-z]+(-[a-z]+)*)(\((?P<value>.+)\))?")


def whole_number(parameter: str, value: Any, least: int, of: str = "directions") -> Any:
    """The value of a parameter that is a whole number of at least ``least``."""
    if not isinstance(value, numbers.Integral) or isinstance(value, bool) or value < least:
        raise UsageError(f"{parameter} takes a whole number of {of}, {least} or more, got {value!r}.")
    return value


def real_number(parameter: str, value: Any, most: float = sys.float_info.max) -> Any:
    """The value of a parameter that is a number from 0 to ``most``."""
    if not isinstance(value, numbers.Real) or isinstance(value, bool) or not 0 <= float(value) <= most:
        takes = "of 0 or more" if most > 1 else f"from 0 to {most:g}"
        raise UsageError(f"{parameter} takes a number {takes}, got {value!r}.")
    return value


@dataclass(frozen=True)
class CalibratorKind(Generic[Made]):
    """How a calibrator is spelled.

    Attributes:
        make: The class.
        parameter: Name of the parameter in brackets; empty if it takes none.
        words: Words that may stand there instead of a number.
        form: What a number looks like, and what reads it.
        nests: Whether a calibrator stands there instead, and after a comma the number of directions that are kept.
        keywords: Parameters that may follow it by their names, as ``power=0.5``; each is a number.
    """

    make: type[Made]
    parameter: str = ""
    words: tuple[str, ...] = ()
    form: tuple[str, Callable[[str], int | float]] = (r"[0-9]+", int)
    nests: bool = False
    keywords: tuple[str, ...] = ()

    def parameters(self, value: int | float | str | None) -> dict[str, Any]:
        """The parameters of the class, for the value that ``read_kind`` gave."""
        if value is None or not self.nests:
            return {} if value is None else {self.parameter: value}
        inner, _, last = str(value).rpartition(",")
        if not inner or not last.strip().isdecimal():
            return {self.parameter: str(value)}
        return {self.parameter: inner.strip(), "n_components": int(last)}


def read_kind(
    spelling: str, kinds: Mapping[str, CalibratorKind[AbstractCalibrator]], what: str = "calibrator"
) -> tuple[str, int | float | str | None, tuple[tuple[str, float], ...]]:
    """The row of ``kinds`` that a spelling names, the value of its parameter (None for none), and its keywords.

    Raises:
        UsageError: If it is misspelled; the message lists the known ones.
    """
    known = ", ".join(f"{name}({kind.parameter})" if kind.parameter else name for name, kind in kinds.items())
    match = _SPELLING.fullmatch(spelling)
    if match is None:
        raise UsageError(f"A calibrator is a name and one number, as whitening(128); got {spelling!r}. Known: {known}.")
    name, text = ALIASES.get(match["name"], match["name"]), match["value"]
    kind = lookup(what, kinds, name)
    if text and kind.nests:
        kind.make(**kind.parameters(text))._parameters()
    if text is None or text in kind.words or kind.nests:
        return name, text, ()
    (form, number), parts = kind.form, text.replace(" ", "").split(",")
    first = "" if "=" in parts[0] else parts.pop(0)
    named = [(key, part) for key, _, part in (part.partition("=") for part in parts)]
    numbers_named = all(key in kind.keywords and re.fullmatch(FRACTION[0], part) for key, part in named)
    if kind.parameter and (re.fullmatch(form, first) or (named and not first)) and numbers_named:
        return name, number(first) if first else None, tuple((key, float(part)) for key, part in named)
    words = [*kind.words, *(f"{key}=NUMBER" for key in kind.keywords)]
    takes = " or ".join(["a number", *words]) if kind.parameter else "nothing"
    raise UsageError(f"{name} takes {takes} in brackets, got ({text}). Known: {known}.")
