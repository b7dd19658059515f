"""The verdict, from the geometry and what the evidence measured.

``decide`` reads figures and computes nothing else, so each of its rules (``bertflow.advise.rules``) can be checked with
a few numbers. Where nothing is changed, it is to rescale the scores if random pairs have a cosine above ``CENTERED``,
else to leave it; without pairs, you need labels. Rescaling changes no ranking, so it is never wrong, and
``scores.json`` is written whatever the verdict.
"""

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from bertflow.advise.naming import advice_for
from bertflow.advise.reasons import reasons_of
from bertflow.advise.rules import Known, Ruling, rule
from bertflow.calibration.spelling import RAW
from bertflow.evaluation.significance import Difference

RESCALE = "rescale the scores"


class Decision(NamedTuple):
    """What to do.

    Attributes:
        verdict: What is advised.
        system: The candidate to use; "raw" for none.
        standing: ``PROVEN``, ``FOR_SEARCH``, ``LIKELY``, ``GENTLE``, or empty where nothing is changed.
        reasons: Plain sentences with the numbers behind the advice, the most important ones first.
        gain: Gain of the system over raw, on the pairs that judged it; None where there were none.
        beside: The candidate that may help and may harm: it stands beside the encoder; empty for none.
    """

    verdict: str
    system: str
    standing: str
    reasons: tuple[str, ...]
    gain: Difference | None = None
    beside: str = ""


def decide(known: Known, among: Collection[str], vetoes: Callable[[str], Sequence[str]]) -> Decision:
    """The verdict. The first evidence decides; what the others say about the same system is added.

    Args:
        known: What is known.
        among: Which candidates may be advised.
        vetoes: Says of a candidate what speaks against it, where no labels prove it.
    """
    ruling = rule(known.limited(among), vetoes)
    beside = ruling.wanted if ruling.vetoed and ruling.wanted != ruling.safe else ""
    gain = ruling.gain if ruling.system != RAW else None
    return Decision(_verdict(ruling), ruling.system, ruling.standing, tuple(reasons_of(ruling)), gain, beside)


def _verdict(ruling: Ruling) -> str:
    """What is advised, in a few words."""
    if ruling.system != RAW:
        return advice_for(ruling.system)
    if not ruling.known.raw.centered:
        return RESCALE
    return "leave it" if ruling.known.evidence else "you need labels"
