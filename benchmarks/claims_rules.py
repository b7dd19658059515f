"""How a claim gets its verdict: from its numbers, by one rule, never by hand.

    effect above (or below) the boundary     the whole interval is          holds here
                                             none of the interval is        does not hold here
                                             the boundary lies within it    cannot be tested here

A number that is not an estimate from a sample has no interval and stands for itself. What an encoder lacks cannot be
tested on it either, and the reason is kept.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

HOLDS, FAILS, UNTESTED = "holds here", "does not hold here", "cannot be tested here"
SUBJECTS: Mapping[str, str] = {
    "inner": "MiniLM, inner layers",
    "last": "MiniLM, last layers (tuned)",
    "mlm4": "MLM4 (plain, small)",
}
"""The encoders at hand. The first two are one model: its inner layers stand in for a raw BERT."""


@dataclass(frozen=True)
class Claim:
    """What people say, and what would show it.

    Attributes:
        says: The claim in one plain sentence.
        source: Paper and place, or the kind of tutorial.
        measure: The function that calls them, as "module:function"; or two rows of ``claims_systems.SYSTEMS``, as
            "compare:one - other".
        effect: What the number is.
        boundary: Where the claim ends.
        by: The functions or the command of this repository that measure it.
        side: On which side of the boundary the claim is true.
    """

    says: str
    source: str
    measure: str
    effect: str
    boundary: float = 0.0
    by: str = "bertflow.evaluation.aggregation.suite_figures"
    side: Literal["above", "below"] = "above"


@dataclass(frozen=True)
class Measured:
    """What was found on one encoder.

    Attributes:
        value: The effect.
        low: Lower end of its 95 % interval; None where it is not an estimate from a sample.
        high: Upper end.
        n: How much was looked at.
        unit: Of what.
        numbers: What the effect was computed from, by name.
    """

    value: float
    low: float | None
    high: float | None
    n: int
    unit: str
    numbers: Mapping[str, float] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Untested:
    """Why an encoder says nothing about a claim."""

    reason: str

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)


Result = Measured | Untested


def result_from(found: Mapping[str, Any]) -> Result:
    """What ``to_dict`` gave."""
    kept = {key: value for key, value in found.items() if key != "verdict"}
    return Untested(**kept) if "reason" in kept else Measured(**kept)


def verdict(claim: Claim, result: Result) -> str:
    """The rule."""
    if isinstance(result, Untested):
        return UNTESTED
    low = result.value if result.low is None else result.low
    high = result.value if result.high is None else result.high
    if claim.side == "below":
        low, high, boundary = -high, -low, -claim.boundary
    else:
        boundary = claim.boundary
    if low > boundary:
        return HOLDS
    # A number without an interval that lies on the boundary is not beyond it.
    return FAILS if high < boundary or low == high else UNTESTED


def spelled(result: Measured) -> str:
    """The effect with its interval."""
    if result.low is None or result.high is None:
        return figure(result.value)
    return f"{figure(result.value)} [{figure(result.low)}, {figure(result.high)}]"


def figure(value: float) -> str:
    """A number with as many decimals as one wants to read."""
    if value == int(value):
        return f"{value:.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}" if abs(value) >= 0.1 else f"{value:.3f}"
