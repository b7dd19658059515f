"""The verdict, from the geometry and what the evidence measured.

``decide`` reads figures and computes nothing else, so each of its rules can be checked with a few numbers:

    a change      the candidate that the choosing half prefers, if the 95 % interval of its gain over raw lies above 0
                  on the judging half; a flow is preferred only if it beats the best closed form in the same way.
                  Mined pairs measure search: for another use they prove a change only of a raw encoder
    no proof      a recipe for raw encoders, where the geometry is theirs; it is likely. Labels, and pairs that measure
                  the use, must not find it worse, not even by chance; other pairs not by more than chance
    a veto        either stands beside the encoder and not in its place where something speaks against it: a narrow
                  text, queries of another kind, other neighbors. Labels outrank that if they are the use itself: of
                  search, or of similarity for similarity alone. In its place is a gentler change, where the purpose
                  has such a thing and no pairs find it worse in the same sense; or else the encoder as it is
    no change     rescale the scores where random pairs have a cosine above ``CENTERED``, else leave it; without pairs,
                  you need labels

Rescaling changes no ranking, so it is never wrong, and ``scores.json`` is written whatever the verdict.
"""

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from bertflow.advise.evidence import FEWEST_LABELS, Evidence, Judgement, proven
from bertflow.advise.likely import CHANGED, Geometry, Shape, linear_form
from bertflow.advise.naming import advice_for
from bertflow.calibration.spelling import RAW, parse_system
from bertflow.evaluation.significance import Difference
from bertflow.training.recipe import PURPOSES as PRESET_OF

RESCALE = "rescale the scores"
MINED_ONLY = (
    "Mined pairs measure search: does a text find its neighbor in the file? Only labels can tell whether texts of the "
    "same meaning come closer; what helps search can harm similarity."
)
SIMILARITY_ONLY = "These labels measure similarity. What they prove can harm search and topic."
SEARCH_ONLY = "These labels measure search. What they prove can harm similarity and topic."
PROVEN = "proven on your text"
LIKELY = "likely, not proven on your text"
GENTLE = "from other narrow texts, not proven on yours"
FOR_SEARCH = "proven on your text for search, likely for other uses"
HELPED = (
    "Calibration improved agreement with human scores (STS, Spearman) for 24 of 25 other encoders with such a "
    "geometry, by 3 to 28 points."
)
UNKNOWN = (
    "Vectors do not say how their encoder was made. If it was made for sentences, as those of most services and of "
    "sentence-transformers are, calibration may cost 1 to 5 points of similarity, though it helped search."
)
STOOD_IN = "These pairs are not from your text: they support the change, but prove nothing."
NOT_AGREED = "These pairs contradict the geometry, so this change is not used."
NOT_KNOWN = "It may be tuned already, and calibration may make similarity worse."
_LABELS = (
    f"For proof: --labels FILE with {FEWEST_LABELS} or, better, several hundred labeled pairs (columns "
    "sentence1, sentence2, score; or a, b, label; or query, text)"
)
_ASK = "--ask 100 writes a table of the pairs most worth labeling."
PROOF_BY_LABELS = f"{_LABELS}. {_ASK}"
PROOF = (
    f"{_LABELS}, or a text with 300 pairs in it (paragraphs of several sentences, documents split by empty lines, or "
    f"columns such as question and answer). {_ASK}"
)
PROOF_BY_QUERIES = (
    f"For proof: --labels FILE with {FEWEST_LABELS} or, better, several hundred pairs of a query and its text (columns "
    "query, text)."
)
WITH_FLOW = (
    "This is the recipe {} without its flow. The flow takes longer; fitted on text of several kinds it added 0.5 to 1 "
    'point of similarity: --candidates "{}".'
)
INSTEAD = "{} is used instead: on other narrow texts it gave {}."
OUTRANKED = "Your labels outrank this sign."
NOT_OUTRANKED = "These labels measure similarity, not search: only --purpose similarity lets them outrank this sign."
NOT_SUCH = "Such pairs need not be like real queries: no proof."
WORSE = "So {} is not used."
RESCALED = "Percentiles (`bertflow score`) correct that, and change no ranking."
RESCALED_ALONE = "Percentiles (bertflow.ScoreCalibrator.load of scores/) correct that, and change no ranking."
UNMOVED = "Mined pairs measure search. They change an encoder that looks tuned only with --purpose search."
SPANS_FEWER = "the sentences span fewer directions"
NOTHING = "Nothing was tried: {} cannot be fitted ({}). Give more text, or name another candidate."
NAMING = "on other texts, --purpose search was 3 points better in search"
FOR_TOPIC = "on other texts, --purpose topic was 9 points better in finding texts of the same kind"
COST = "may cost {}"


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
    refused = stand_in is not None and stand_in.refuses(stand_in.chosen)
    asked = [name for name in (recipe, safe) if name and evidence]
    worse = {name: said for name in asked if (said := _found_worse(evidence[0], name, purpose))}
    first, spare = recipe, safe
    recipe, safe = ("" if name in worse else name for name in ("" if refused else recipe, safe))
    wanted, standing = _wanted(evidence, purpose, looks_raw(raw, shape), recipe, safe)
    proved = standing == PROVEN
    labeled = proved and not evidence[0].evidence.mined
    gave_way = bool(first and not recipe) and (wanted, standing) == (safe, LIKELY)
    signs = () if wanted == RAW else tuple(vetoes(first if gave_way else wanted) or ())
    outranked = labeled and (purpose == "similarity" or evidence[0].evidence.kind.metric == "mrr")
    against = () if outranked else signs
    system = wanted
    if against:
        system, standing = (RAW, "") if safe and vetoes(safe) else (safe or RAW, LIKELY)
    gain = evidence[0].lead(system) if evidence and system != RAW else stand_in.gain if stand_in else None
    if system != RAW:
        verdict = advice_for(system)
    elif raw.centered:
        verdict = "leave it" if evidence else "you need labels"
    else:
        verdict = RESCALE
    read = "near zero, as it should be" if raw.centered else "so a cosine alone does not say whether texts are alike"
    cosines = f"Random pairs have cosine {raw.median:.2f} (90 % of them: {raw.p5:.2f} to {raw.p95:.2f}), {read}."
    judged = [(one, one.chosen if wanted == RAW else wanted) for one in evidence]
    told = [*signs, *([OUTRANKED if outranked else NOT_OUTRANKED] if labeled else [])]
    heard = f"{stand_in.said_of(stand_in.chosen)} {NOT_AGREED if refused else STOOD_IN}" if stand_in else ""
    doubts = [said for name, said in worse.items() if not proved or name == spare] + [heard] * refused
    doubts = doubts if system in (RAW, safe) else []
    if gave_way and signs:  # both are about the same candidate
        told, doubts = [*told, *doubts], []
    spoken = [" ".join(told)] if signs else []
    rescaled = RESCALED_ALONE if shape is not None and shape.bare else RESCALED
    reasons = [f"{cosines} {rescaled}" if verdict == RESCALE else cosines, *spoken, *doubts]
    replaced = system == safe and standing == LIKELY and len(reasons) > 1
    if replaced:
        instead = INSTEAD.format(system, CHANGED[purpose])
        reasons.append(" ".join([instead, *(_doubted(one, system, against) for one in evidence)]))
    reasons += (
        _doubted(one, name, against)
        for one, name in judged
        if name not in worse and not (replaced and name == safe) and (name or not one.evidence.mined)
    )
    mined = any(one.evidence.mined for one in evidence[:1])
    if wanted == RAW and mined and purpose != "search" and not looks_raw(raw, shape):
        reasons.append(UNMOVED)
    if not evidence:
        reasons.append(f"Whether a change improves ranking cannot be proven on this text: {missing}")
    if shape is not None and system != safe and (standing == LIKELY or not evidence):
        reasons.append(f"{shape} {_history(raw, shape)}")
    if stand_in is not None and not refused and (wanted == RAW or system == stand_in.chosen):
        reasons.append(heard)
    if standing == LIKELY and not against and shape is not None and (preset := _without_flow(system, purpose, shape)):
        pooling = parse_system(system).pooling
        reasons.append(WITH_FLOW.format(preset, f"{pooling}+flow(auto)" if pooling else "flow(auto)"))
    if (standing == LIKELY or not evidence or against) and not labeled:
        vetoed = PROOF_BY_QUERIES if purpose != "similarity" else PROOF_BY_LABELS
        reasons.append(vetoed if against else PROOF)
    if standing == PROVEN and (other := _not_measured(evidence[0].evidence, purpose)):
        reasons.append(other)
    if standing == LIKELY and mined and proven(gain) and purpose == "all" and not against:
        standing = FOR_SEARCH
    elif replaced:
        standing = GENTLE
    used = standing if system != RAW else ""
    beside = wanted if against and wanted != safe else ""
    return Decision(verdict, system, used, tuple(reasons), gain if used else None, beside)


def _wanted(evidence: Sequence[Judgement], purpose: str, untuned: bool, recipe: str, safe: str) -> tuple[str, str]:
    """The candidate that evidence or geometry asks for, and its standing; raw for none."""
    for first in evidence[:1]:
        if first.chosen and first.proves and (not first.evidence.mined or purpose == "search" or untuned):
            return first.chosen, PROVEN
    if recipe and untuned:
        return recipe, LIKELY
    return (safe, LIKELY) if safe else (RAW, "")


def _found_worse(first: Judgement, name: str, purpose: str) -> str:
    """What the first evidence says of a candidate that it finds worse: by chance is enough if it measures the use."""
    measures = purpose in ("search", "all") or not first.evidence.mined
    worse = first.lead(name).difference < 0 if measures else first.refuses(name)
    return f"{first.said_of(name)} {WORSE.format(name)}" if worse else ""


def _doubted(judgement: Judgement, name: str | None, against: Sequence[str]) -> str:
    """What evidence says of a candidate, and why that proves nothing where something speaks against a change."""
    such = name and against and judgement.evidence.mined and proven(judgement.lead(name))
    return f"{judgement.said_of(name)}{f' {NOT_SUCH}' if such else ''}"


def _not_measured(evidence: Evidence, purpose: str) -> str:
    """What the evidence does not measure of the purpose; empty where it measures all of it."""
    search = evidence.kind.metric == "mrr"
    if purpose == ("search" if search else "similarity"):
        return ""
    if evidence.mined:
        return MINED_ONLY
    return SEARCH_ONLY if search else SIMILARITY_ONLY


def _without_flow(system: str, purpose: str, shape: Shape) -> str:
    """The preset that a candidate is without its flow; empty for none."""
    if shape.steep or purpose != "similarity":
        return ""
    same = parse_system(system).spelling.endswith(linear_form(purpose, shape.dim, shape.steep))
    return PRESET_OF[purpose] if same else ""


def _history(raw: Geometry, shape: Shape) -> str:
    """What such a geometry meant elsewhere."""
    if not looks_raw(raw, shape):
        return NOT_KNOWN
    return UNKNOWN if shape.bare else HELPED
