"""The verdict: *leave it*, *rescale the scores*, *whiten*, *use the flow*, or *you need labels*.

    a change      the candidate that the choosing half prefers, if on the judging half the paired 95 % interval of its
                  gain over raw lies above 0; a flow, only if it beats the best whitening in the same way
    no change     rescale the scores where random pairs have a cosine above ``CENTERED``, else leave it
    no pairs      nothing is known about ranking: rescale the scores, or you need labels

Rescaling changes no ranking, so it is always right, and ``scores.json`` is written whatever the verdict.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bertflow.advise.candidates import FLOW, WHITEN, Candidates
from bertflow.advise.evidence import MINED, Evidence
from bertflow.advise.geometry import Geometry
from bertflow.evaluation.report import Report
from bertflow.evaluation.significance import Difference

LEAVE, RESCALE, LABELS = "leave it", "rescale the scores", "you need labels"
VERDICTS = (LEAVE, RESCALE, WHITEN, FLOW, LABELS)
CENTERED = 0.2
"""Median cosine of random pairs up to which a cosine can be read as it is: 0.08 on docstrings by the tuned encoder at
hand, 0.28 and more by poolings that were not tuned."""

MINED_ONLY = (
    "Mined pairs speak of search: does a text find the one beside it? Whether paraphrases come closer, only --labels "
    "can tell; what helps the one can harm the other."
)


@dataclass(frozen=True)
class Judged:
    """One kind of evidence, after it has spoken.

    Attributes:
        evidence: The pairs.
        chosen: The candidate that the choosing half prefers; None where there is none.
        report: All systems on the judging half.
        gain: Of the chosen one over raw, on the judging half.
    """

    evidence: Evidence
    chosen: str | None
    report: Report
    gain: Difference | None

    @property
    def proven(self) -> bool:
        """Whether the gain is more than chance."""
        return self.gain is not None and self.gain.ci_low is not None and self.gain.ci_low > 0


@dataclass(frozen=True)
class Verdict:
    """What to do, and why.

    Attributes:
        word: One of ``VERDICTS``.
        system: The candidate to use; "raw" for none.
        reasons: Plain sentences with the numbers behind it.
    """

    word: str
    system: str
    reasons: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {"verdict": self.word, "system": self.system, "reasons": list(self.reasons)}


def judge(evidence: Evidence, candidates: Candidates, resamples: int, seed: int) -> Judged:
    """Choose by one half, judge by the other."""
    chosen = _choose(evidence, candidates, resamples, seed)
    report = evidence.judge(candidates.all, resamples, seed)
    gain = evidence.difference(report, chosen, "raw") if chosen else None
    return Judged(evidence, chosen, report, gain)


def _choose(evidence: Evidence, candidates: Candidates, resamples: int, seed: int) -> str | None:
    """The best closed form, or a flow that is better than it by more than chance."""
    if not candidates.systems:
        return None
    report = evidence.choose(candidates.all, resamples, seed)
    best = {
        advice: max(names, key=lambda name: evidence.value(report, name))
        for advice in (WHITEN, FLOW)
        if (names := [name for name in candidates.systems if candidates.advice[name] == advice])
    }
    if len(best) == 1:
        return next(iter(best.values()))
    ahead = evidence.difference(report, best[FLOW], best[WHITEN])
    return best[FLOW if ahead.ci_low is not None and ahead.ci_low > 0 else WHITEN]


def decide(raw: Geometry, judged: Sequence[Judged], candidates: Candidates, missing: str) -> Verdict:
    """The verdict; the first evidence decides, what the others say of the same system is added.

    Args:
        raw: Geometry of the raw embeddings.
        judged: What there is of evidence: labels first.
        candidates: What was tried.
        missing: Why there is no evidence, where there is none.
    """
    centered = raw.median <= CENTERED
    shape = f"Two random texts have a cosine of {raw.median:.2f} (90 % of them {raw.p5:.2f} to {raw.p95:.2f})"
    shape += ": near zero, as it should be." if centered else ": a cosine says little by its size."
    rescaled = "The percentiles of scores.json put that right without changing any ranking."
    if not judged:
        unknown = f"Whether anything ranks better cannot be known: {missing} Give --labels with pairs that you judged."
        word, known = (LABELS, (shape,)) if centered else (RESCALE, (shape, rescaled))
        return Verdict(word, "raw", (*known, unknown))
    first = judged[0]
    reasons = (shape, *(_said(one, first.chosen) for one in judged))
    if first.proven and first.chosen:
        beside = (MINED_ONLY,) if first.evidence.kind is MINED else ()
        return Verdict(candidates.advice[first.chosen], first.chosen, (*reasons, *beside))
    if centered:
        return Verdict(LEAVE, "raw", reasons)
    return Verdict(RESCALE, "raw", (*reasons, rescaled))


def _said(judged: Judged, chosen: str | None) -> str:
    """What one kind of evidence says about the chosen candidate."""
    kind, n = judged.evidence.kind, len(judged.evidence.judging)
    if chosen is None:
        return f"Nothing could be fitted, so {kind.title} have nothing to judge."
    gain = judged.evidence.difference(judged.report, chosen, "raw")
    before, after = (100 * judged.evidence.value(judged.report, name) for name in ("raw", chosen))
    line = (
        f"On {n:,} {kind.title} that nothing was fitted on or chosen by, {chosen} has {kind.words} {after:.1f}, raw "
        f"{before:.1f}"
    )
    if gain.ci_low is None or gain.ci_high is None:
        return f"{line}."
    low, high = 100 * gain.ci_low, 100 * gain.ci_high
    verdict = "better" if low > 0 else "worse" if high < 0 else "not to be told apart"
    return f"{line}: {verdict} ({100 * gain.difference:+.1f}, 95 % interval {low:+.1f} to {high:+.1f})."
