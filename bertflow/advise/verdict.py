"""The verdict, from the geometry and what the evidence measured.

``decide`` reads figures and computes nothing else, so each of its rules (``bertflow.advise.rules``) can be checked with
a few numbers. Where nothing is changed, it is to rescale the scores if random pairs have a cosine above ``CENTERED``,
else to leave it; without pairs, you need labels. Rescaling changes no ranking, so it is never wrong, and
``scores.json`` is written whatever the verdict.
"""

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from bertflow.advise.evidence import Judgement
from bertflow.advise.likely import Geometry, Shape
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


def decide(
    raw: Geometry,
    evidence: Sequence[Judgement],
    missing: str = "",
    purpose: str = "similarity",
    shape: Shape | None = None,
    likely: Sequence[str] = (),
    stand_in: Judgement | None = None,
    among: Collection[str] | None = None,
    vetoes: Callable[[str], Sequence[str] | None] = lambda name: (),
    safe: str = "",
) -> Decision:
    """The verdict. The first evidence decides; what the others say about the same system is added.

    Args:
        raw: Geometry of the raw embeddings.
        evidence: What each kind of evidence measured, the one that decides first.
        missing: Why there is no evidence, if there is none.
        purpose: What the encoder is used for: a row of ``bertflow.advise.likely.PURPOSES``.
        shape: What the geometry of the plain mean says; None where that is unknown.
        likely: The candidates to use where the geometry is that of raw encoders, the first one by default.
        stand_in: What pairs of other text say of ``likely``; None where they were not asked.
        among: Which candidates may be advised; None for all.
        vetoes: Says of a candidate what speaks against it, where no labels prove it.
        safe: The candidate that takes the place of one that something speaks against; empty for the raw encoder.
    """
    if among is not None:
        evidence, likely = [one.limited(among) for one in evidence], [name for name in likely if name in among]
        stand_in, safe = stand_in.limited(among) if stand_in and likely else None, safe if safe in among else ""
    if purpose != "search":  # which mined pairs measure: for other uses they judge what is likely, and choose nothing
        evidence = [one.limited(likely) if one.evidence.mined else one for one in evidence]
    recipe = (stand_in.chosen or "") if stand_in else next(iter(likely), "")
    ruling = rule(Known(raw, shape, evidence, missing, purpose, recipe, stand_in, safe), vetoes)
    used = ruling.system != RAW
    beside = ruling.wanted if ruling.vetoed and ruling.wanted != ruling.safe else ""
    gain = ruling.gain if used else None
    return Decision(_verdict(ruling), ruling.system, ruling.standing, tuple(reasons_of(ruling)), gain, beside)


def _verdict(ruling: Ruling) -> str:
    """What is advised, in a few words."""
    if ruling.system != RAW:
        return advice_for(ruling.system)
    if not ruling.known.raw.centered:
        return RESCALE
    return "leave it" if ruling.known.evidence else "you need labels"
