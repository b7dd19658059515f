"""The reasons of a verdict: plain sentences with the numbers behind it, the most important ones first."""

from collections.abc import Iterator, Sequence

from bertflow.advise.evidence import FEWEST_LABELS, Evidence, Judgement, proven
from bertflow.advise.likely import CHANGED, OF_WEIGHTS, WEIGHTS, linear_form
from bertflow.advise.rules import PROVEN, Known, Ruling
from bertflow.calibration.spelling import RAW, parse_system
from bertflow.training.recipe import PURPOSES as PRESET_OF

MINED_ONLY = (
    "Mined pairs measure search: does a text find its neighbor in the file? Only labels can tell whether texts of the "
    "same meaning come closer; what helps search can harm similarity."
)
SIMILARITY_ONLY = "These labels measure similarity. What they prove can harm search and topic."
SEARCH_ONLY = "These labels measure search. What they prove can harm similarity and topic."
HELPED = (
    "Calibration improved agreement with human scores (STS, Spearman) for 24 of 25 other encoders with such a "
    "geometry, by 3 to 28 points."
)
NO_QUESTIONS = (
    "These pairs are of your text. Questions in other words may gain less: --labels FILE, with pairs of a query and "
    "its text, tells how much."
)
UNKNOWN = (
    "Vectors do not say how their encoder was made. If it was made for sentences, as those of most services and of "
    "sentence-transformers are, calibration may cost 1 to 5 points of similarity, though it helped search."
)
STOOD_IN = "These pairs are not from your text: they support the change, but prove nothing."
NOT_AGREED = "These pairs contradict the geometry, so this change is not used."
NOT_KNOWN = "It may be tuned already; a change may then harm similarity."
_LABELS = (
    f"To prove a change, give --labels FILE with {FEWEST_LABELS} or, better, several hundred labeled pairs (columns "
    "sentence1, sentence2, score; or a, b, label; or query, text)"
)
_ASK = "--ask 100 writes a table of the pairs most worth labeling."
PROOF_BY_LABELS = f"{_LABELS}. {_ASK}"
PROOF = (
    f"{_LABELS}, or a text with 300 pairs (paragraphs of several sentences, documents split by empty lines, or "
    f"columns such as question and answer). {_ASK}"
)
PROOF_BY_QUERIES = (
    f"To prove a change, give --labels FILE with {FEWEST_LABELS} or, better, several hundred pairs of a query and its "
    "text (columns query, text)."
)
WITH_FLOW = (
    "This is the recipe {} without its flow. The flow takes longer; fitted on text of several kinds it added 0.5 to 1 "
    'point of similarity: --candidates "{}".'
)
INSTEAD = "{} is used instead: on other narrow texts it gave {}."
OUTRANKED = "Your labels outrank this sign."
NOT_OUTRANKED = "These labels measure similarity, not search: only --purpose similarity lets them outrank this sign."
NOT_SUCH = "Such pairs need not be like real queries: no proof."
RESCALED = "Percentiles (`bertflow score`) correct that, and change no ranking."
RESCALED_ALONE = "Percentiles (bertflow.ScoreCalibrator.load of scores/) correct that, and change no ranking."
UNMOVED = "Mined pairs measure search. They change an encoder that looks tuned only with --purpose search."
SPANS_FEWER = "the sentences span fewer directions"
NOTHING = "Nothing was tried: {} cannot be fitted ({}). Give more text, or name another candidate."
NAMING = "on other texts, --purpose search was 3 points better in search, topic up to 5 in finding texts of one source"
FOR_TOPIC = "on other texts, --purpose topic was 15 points better in finding texts of the same kind"
COST = "may cost {}"


def reasons_of(ruling: Ruling) -> Iterator[str]:
    """What a verdict says, in its order."""
    known = ruling.known
    yield _cosines(known, ruling.system)
    yield from _against(ruling)
    if ruling.replaced:
        changed = OF_WEIGHTS if ruling.system == WEIGHTS else CHANGED[known.purpose]
        instead = INSTEAD.format(ruling.system, changed)
        yield " ".join([instead, *(_measured(one, ruling.system, ruling.vetoed) for one in known.evidence)])
    yield from _judged(ruling)
    if ruling.wanted == RAW and known.mined and known.purpose != "search" and not known.untuned:
        yield UNMOVED
    if not known.evidence:
        yield f"Whether a change improves ranking cannot be proven on this text: {known.missing}"
    if ruling.system != ruling.safe and (ruling.likely or not known.evidence):
        yield f"{known.shape} {_history(known)}"
    if known.stand_in and not known.refused and (ruling.wanted == RAW or ruling.system == known.stand_in.chosen):
        yield _heard(known)
    if ruling.likely and not ruling.vetoed and (preset := _without_flow(ruling)):
        pooling = parse_system(ruling.system).pooling
        yield WITH_FLOW.format(preset, f"{pooling}+flow(auto)" if pooling else "flow(auto)")
    unproven = ruling.likely and ruling.standing != PROVEN
    if (unproven or ruling.vetoed or not known.evidence) and not ruling.labeled:
        yield _proof(ruling)
    if ruling.standing and not unproven and (other := _not_measured(known.evidence[0].evidence, known.purpose)):
        yield other


def announced(evidence: Sequence[Evidence], missing: str, purpose: str, bare: bool = False) -> str:
    """What the verdict can rest on, before anything is encoded: which evidence decides, and how much there is."""
    if not evidence:
        agree = f"signs of narrow text{'' if bare else ', or a test on English docstrings,'} may veto it"
        likely = "the geometry says whether a change is likely to help"
        return f"{missing} So nothing can be proven here: {likely}; {agree}."
    first = evidence[0]
    counts = [f"{len(one):,} {one.kind.title}" for one in evidence]
    beside = f"; {', '.join(counts[1:])} are shown, too" if counts[1:] else ""
    if first.asked:
        return (
            f"{len(first.judging):,} of {first.asked:,} {first.kind.title} are filled in and decide: all of them "
            f"choose the change, and all of them test it, corrected for the number of candidates{beside}"
        )
    broad = " if the text is not narrow" if first.mined else ""
    if first.mined and purpose != "search":
        return f"{len(first.judging):,} mined pairs test the likely change, and may prove it{broad}{beside}"
    return f"{counts[0]} decide: half choose the change; the others test it, and may prove it{broad}{beside}"


def _cosines(known: Known, system: str) -> str:
    """The cosines of random pairs, and what corrects them where nothing else is done."""
    raw = known.raw
    read = "near zero, as it should be" if raw.centered else "so a cosine alone does not say whether texts are alike"
    said = f"Random pairs have cosine {raw.median:.2f} (90 % of them: {raw.p5:.2f} to {raw.p95:.2f}), {read}."
    if system != RAW or raw.centered:
        return said
    return f"{said} {RESCALED_ALONE if known.shape.bare else RESCALED}"


def _against(ruling: Ruling) -> list[str]:
    """What speaks against what was wanted, and which evidence found worse what is not used."""
    known, told = ruling.known, [*ruling.signs]
    if ruling.signs and ruling.labeled:
        told.append(OUTRANKED if ruling.outranked else NOT_OUTRANKED)
    doubts = [ruling.worse[name] for name in ruling.put_aside] + [_heard(known)] * known.refused
    if ruling.system not in (RAW, ruling.safe):
        doubts = []
    if not told:
        return doubts
    # Of what gave way, both are about the same candidate.
    return [" ".join([*told, *doubts])] if ruling.gave_way else [" ".join(told), *doubts]


def _judged(ruling: Ruling) -> Iterator[str]:
    """What each kind of evidence says of what was wanted."""
    for one in ruling.known.evidence:
        name = one.chosen if ruling.wanted == RAW else ruling.wanted
        said = name in ruling.worse or (ruling.replaced and name == ruling.safe)
        if not said and (name or not one.evidence.mined):
            yield _measured(one, name, ruling.vetoed)


def _measured(judgement: Judgement, name: str | None, vetoed: bool) -> str:
    """What evidence says of a candidate, and why that proves nothing where something speaks against a change."""
    such = name and vetoed and judgement.evidence.mined and proven(judgement.lead(name))
    return f"{judgement.said_of(name)}{f' {NOT_SUCH}' if such else ''}"


def _heard(known: Known) -> str:
    """What pairs of other text say; empty where they were not asked."""
    if known.stand_in is None:
        return ""
    return f"{known.stand_in.said_of(known.stand_in.chosen)} {NOT_AGREED if known.refused else STOOD_IN}"


def _proof(ruling: Ruling) -> str:
    """What would prove it."""
    if not ruling.vetoed:
        return PROOF
    return PROOF_BY_LABELS if ruling.known.purpose == "similarity" else PROOF_BY_QUERIES


def _not_measured(evidence: Evidence, purpose: str) -> str:
    """What the evidence does not measure of the purpose; empty where it measures all of it."""
    search = evidence.kind.metric == "mrr"
    if evidence.mined:
        return NO_QUESTIONS if purpose == "search" else MINED_ONLY
    if purpose == ("search" if search else "similarity"):
        return ""
    return SEARCH_ONLY if search else SIMILARITY_ONLY


def _without_flow(ruling: Ruling) -> str:
    """The preset that a candidate is without its flow; empty for none."""
    shape, purpose = ruling.known.shape, ruling.known.purpose
    if shape.steep or purpose != "similarity":
        return ""
    same = parse_system(ruling.system).spelling.endswith(linear_form(purpose, shape.dim, shape.steep))
    return PRESET_OF[purpose] if same else ""


def _history(known: Known) -> str:
    """What such a geometry meant elsewhere."""
    if not known.untuned:
        return NOT_KNOWN
    return UNKNOWN if known.shape.bare else HELPED
