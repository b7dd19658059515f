"""The encoders at hand, and the systems that claims compare: which layers and pooling, what is fitted on which text."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from closed_forms import CLOSED_FORMS
from material import STAND_INS, TUNED, StandIn

from bertflow.affine import AffineMap, standardize_map
from bertflow.moments import Moments

FORMS: Mapping[str, Callable[[Moments], AffineMap]] = {**CLOSED_FORMS, "standardize": standardize_map}
"""Closed forms by name."""


@dataclass(frozen=True)
class Subject:
    """An encoder with the layers that are looked at: its stand-in, and single layers from low to high."""

    encoder: str
    stand_in: StandIn
    name: str
    layers: tuple[int, ...]
    blocks: int


PARTS: Mapping[str, Subject] = {
    "inner": Subject("minilm", STAND_INS["L1L2"], "L1L2", (0, 1, 2, 3), 6),
    "last": Subject("minilm", TUNED["last"], "last", (4, 5, 6), 6),
    "mlm4": Subject("mlm4", STAND_INS["MLM4"], "MLM4", (0, 1, 2, 3, 4), 4),
}


@dataclass(frozen=True)
class System:
    """A pooling (``mean`` or ``sif`` of the subject's layers), what is fitted on which text."""

    pooling: str = "mean"
    form: str = "raw"
    on: str = "target"


SYSTEMS: Mapping[str, System] = {
    "raw": System(),
    **{form: System(form=form) for form in ("center", "standardize", "abtt(3)", "whitening", "whitening(128)")},
    "sif": System("sif"),
    "sif, whitening(64)": System("sif", "whitening(64)"),
    "whitening of other text": System(form="whitening", on="other"),
    "whitening of part": System(form="whitening", on="part of target"),
    "whitening of NLI": System(form="whitening", on="nli"),
    "whitening of part of other": System(form="whitening", on="part of other"),
    "flow of part": System(form="flow", on="part of target"),
    "flow of part of other": System(form="flow", on="part of other"),
}
"""What is scored on the seven test sets."""
