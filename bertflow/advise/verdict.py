"""The verdict, from the geometry and what the evidence measured.

``decide`` reads figures and computes nothing else, so each of its rules can be checked with a few numbers:

    a change      the candidate that the choosing half prefers, if the 95 % interval of its gain over raw lies above 0
                  on the judging half; a flow is preferred only if it beats the best closed form in the same way
    no proof      a recipe for raw encoders, where the geometry is theirs and no pairs speak against it; it is likely.
                  Pairs of docstrings must not speak against it
    no change     rescale the scores where random pairs have a cosine above ``CENTERED``, else leave it; without pairs,
                  you need labels

Rescaling changes no ranking, so it is never wrong, and ``scores.json`` is written whatever the verdict.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from bertflow.advise.evidence import FEWEST_LABELS, FLOW, MINED, Judgement, advice_for
from bertflow.advise.likely import Geometry, Shape
from bertflow.calibration.spelling import RAW, parse_system
from bertflow.evaluation.significance import Difference
from bertflow.training.recipe import PURPOSES

RESCALE = "rescale the scores"
MINED_ONLY = (
    "Mined pairs measure search: does a text find the one beside it? Only labels can tell whether paraphrases come "
    "closer; what helps search can harm similarity."
)
PROVEN = "proven on your text"
LIKELY = (
    "likely: the same geometry as encoders where it helped; not proven on your text, and here is what would prove it"
)
HELPED = (
    "Of 25 poolings of two encoders with such a geometry, 24 gained 3 to 28 points of similarity by calibration; one, "
    "the mean of two tuned layers, lost 1 (benchmarks/already_calibrated.md)."
)
UNKNOWN = (
    "Vectors do not say how their encoder was made. If it was made for sentences, as those of most services and of "
    "sentence-transformers are, calibration may cost 1 to 5 points of similarity, though it helped search."
)
STOOD_IN = "They may be of another kind or language than your text: they agree with the geometry, and prove nothing."
NOT_AGREED = "So the encoder is left as it is: they speak against what the geometry says."
NOT_KNOWN = "So it may be tuned already, and calibration may cost similarity."
PROOF = (
    f"To prove more: --labels FILE with {FEWEST_LABELS} labelled pairs or more, better some hundreds (sentence1, "
    "sentence2, score; or a, b, label; or query, text), or a text with 300 pairs in it (paragraphs of several "
    "sentences, lines between blank lines, or columns such as question and answer). --ask 100 writes a table of the "
    "pairs that are most worth labelling."
)
WITH_FLOW = (
    "This is the recipe {} without its flow. The flow takes longer; fitted on text of several kinds it added 0.5 to 1 "
    'point of similarity, in search 0.7 to 1.9 hits of 100: --candidates "{}".'
)
RESCALED = "The percentiles of scores.json correct that without changing any ranking."


class Decision(NamedTuple):
    """What to do.

    Attributes:
        verdict: What is advised.
        system: The candidate to use; "raw" for none.
        standing: ``PROVEN``, ``LIKELY``, or empty where nothing is changed.
        reasons: Plain sentences with the numbers behind the advice.
        gain: Of the system over raw, on the pairs that judged it; None where there were none.
    """

    verdict: str
    system: str
    standing: str
    reasons: tuple[str, ...]
    gain: Difference | None = None


def looks_raw(raw: Geometry, shape: Shape | None) -> bool:
    """Whether the geometry is that of encoders that calibration helped."""
    return shape is not None and shape.raw and not raw.centered


def decide(
    raw: Geometry,
    evidence: Sequence[Judgement],
    missing: str = "",
    purpose: str = "similarity",
    shape: Shape | None = None,
    likely: Sequence[str] = (),
    stand_in: Judgement | None = None,
    among: Collection[str] | None = None,
) -> Decision:
    """The verdict. The first evidence decides; what the others say about the same system is added.

    Args:
        raw: Geometry of the raw embeddings.
        evidence: What each kind of evidence measured, the one that decides first.
        missing: Why there is no evidence, if there is none.
        purpose: What the encoder is used for: similarity, search or both.
        shape: What the geometry of the plain mean says; None where that is unknown.
        likely: The candidates to use where the geometry is that of raw encoders, the first one by default.
        stand_in: What pairs of other text say of ``likely``; None where they were not asked.
        among: Which candidates may be advised; None for all.
    """
    if among is not None:
        evidence, likely = [one.limited(among) for one in evidence], [name for name in likely if name in among]
        stand_in = stand_in.limited(among) if stand_in and likely else None
    gain = evidence[0].gain if evidence else None
    recipe = stand_in.chosen if stand_in else next(iter(likely), None)
    agreed = stand_in is None or (stand_in.gain is not None and stand_in.gain.difference > 0)
    system, standing = RAW, ""
    if gain and evidence[0].proves:
        system, standing = gain.first, PROVEN
    elif recipe and looks_raw(raw, shape) and agreed and not (evidence and evidence[0].against(recipe)):
        system, standing = recipe, LIKELY
        gain = evidence[0].lead(recipe) if evidence else stand_in.gain if stand_in else None
    if system != RAW:
        verdict = advice_for(system)
    elif raw.centered:
        verdict = "leave it" if evidence else "you need labels"
    else:
        verdict = RESCALE
    read = "near zero, as it should be" if raw.centered else "the size of a cosine says little"
    cosines = (
        f"Two random texts have a cosine of {raw.median:.2f} (90 % of them {raw.p5:.2f} to {raw.p95:.2f}): {read}."
    )
    reasons = [cosines, *map(str, evidence)]
    if not evidence:
        reasons.append(f"Whether a change ranks better cannot be proven on this text: {missing}")
    if shape is not None and (standing == LIKELY or not evidence):
        reasons.append(f"{shape} {_history(raw, shape)}")
    if stand_in is not None:
        reasons.append(f"{stand_in} {STOOD_IN if agreed else NOT_AGREED}")
    if verdict == RESCALE:
        reasons.append(RESCALED)
    if standing == LIKELY and shape is not None and not shape.steep and advice_for(system) != FLOW:
        pooling = parse_system(system).pooling
        reasons.append(WITH_FLOW.format(PURPOSES[purpose], f"{pooling}+flow(auto)" if pooling else "flow(auto)"))
    if standing == LIKELY or not evidence:
        reasons.append(PROOF)
    if standing == PROVEN and evidence[0].evidence.kind is MINED and purpose != "search":
        reasons.append(MINED_ONLY)
    return Decision(verdict, system, standing, tuple(reasons), gain if system != RAW else None)


def _history(raw: Geometry, shape: Shape) -> str:
    """What such a geometry meant elsewhere."""
    if not looks_raw(raw, shape):
        return NOT_KNOWN
    return UNKNOWN if shape.bare else HELPED
