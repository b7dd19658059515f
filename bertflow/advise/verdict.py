"""The verdict: *leave it*, *rescale the scores*, *whiten*, *use the flow*, or *you need labels*.

``decide`` reads figures and computes nothing else, so each of its rules can be checked with a few numbers:

    a change      the candidate that the choosing half prefers, if the 95 % interval of its gain over raw lies above 0
                  on the judging half; a flow is preferred only if it beats the best closed form in the same way
    no change     rescale the scores where random pairs have a cosine above ``CENTERED``, else leave it
    no pairs      nothing is known about ranking: rescale the scores, or you need labels

Rescaling changes no ranking, so it is never wrong, and ``scores.json`` is written whatever the verdict.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

WHITEN, FLOW = "whiten", "use the flow"
LEAVE, RESCALE, LABELS = "leave it", "rescale the scores", "you need labels"
UNCHANGED: Mapping[tuple[bool, bool], str] = {
    (True, True): LEAVE,
    (True, False): LABELS,
    (False, True): RESCALE,
    (False, False): RESCALE,
}
"""Random pairs are near zero?, there are pairs to judge by? -> what is advised where no candidate is better."""
CENTERED = 0.2
"""Median cosine of random pairs up to which a cosine can be read as it is: 0.08 on docstrings by the tuned encoder at
hand, 0.28 and more by poolings that were not tuned."""
MINED_PAIRS = "mined pairs"
"""Name of the evidence that comes from the text itself."""
MINED_ONLY = (
    "Mined pairs measure search: does a text find the one beside it? Only labels can tell whether paraphrases come "
    "closer; what helps search can harm similarity."
)
RESCALED = "The percentiles of scores.json correct that without changing any ranking."


@dataclass(frozen=True)
class Geometry:
    """The shape of a cloud of embeddings of text that nothing was fitted on.

    Attributes:
        n: Number of embeddings.
        dim: Their width.
        mean: Mean cosine of random pairs; 0 is isotropic, 1 is one direction.
        p5: 5 % of random pairs have a lower cosine.
        median: Half of the random pairs have a lower cosine.
        p95: 95 % of random pairs have a lower cosine.
        participation: Number of directions over which the variance is spread (participation ratio), from 1 to dim.
        norm: Mean length of an embedding.
        norm_deviation: Standard deviation of the length.
    """

    n: int
    dim: int
    mean: float
    p5: float
    median: float
    p95: float
    participation: float
    norm: float
    norm_deviation: float

    @property
    def centered(self) -> bool:
        """Whether random pairs have cosines near zero."""
        return self.median <= CENTERED

    def __str__(self) -> str:
        """One line."""
        return (
            f"random pairs have cosine {self.median:.2f} (90 % of them {self.p5:.2f} to {self.p95:.2f}); the variance "
            f"is spread over {self.participation:.0f} of {self.dim} directions; length {self.norm:.3g} +- "
            f"{self.norm_deviation:.2g}"
        )


@dataclass(frozen=True)
class Gain:
    """One system's score less another's, with its paired 95 % interval; in [-1, 1].

    The interval is None where a resample had no variance.
    """

    difference: float
    low: float | None
    high: float | None

    @property
    def proven(self) -> bool:
        """Whether the first system is better by more than chance."""
        return self.low is not None and self.low > 0

    def __str__(self) -> str:
        """In words, x 100; empty without an interval."""
        if self.low is None or self.high is None:
            return ""
        verdict = "better" if self.proven else "worse" if self.high < 0 else "not to be told apart"
        return (
            f": {verdict} ({100 * self.difference:+.1f}, 95 % interval {100 * self.low:+.1f} to {100 * self.high:+.1f})"
        )


@dataclass(frozen=True)
class Figures:
    """What one kind of evidence measured.

    Attributes:
        kind: Name of the evidence, as "graded labels".
        metric: Name of its metric, as "Spearman x 100".
        pairs: Number of pairs in the judging half.
        choosing: Score of each candidate on the choosing half, in [-1, 1].
        leads: (candidate, other candidate) -> the lead of the one over the other on the choosing half.
        judging: Score of "raw" and of each candidate on the judging half, in [-1, 1].
        gains: Gain of each candidate over raw on the judging half.
    """

    kind: str
    metric: str
    pairs: int
    choosing: Mapping[str, float]
    leads: Mapping[tuple[str, str], Gain]
    judging: Mapping[str, float]
    gains: Mapping[str, Gain]


@dataclass(frozen=True)
class Verdict:
    """What to do, and why.

    Attributes:
        verdict: What is advised.
        system: The candidate to use; "raw" for none.
        reasons: Plain sentences with the numbers behind the advice.
    """

    verdict: str
    system: str
    reasons: tuple[str, ...]


def advice_for(calibrator: str) -> str:
    """What is advised where a candidate with this row of ``CALIBRATORS`` is best."""
    return {"whitening": WHITEN, "flow": FLOW}.get(calibrator, f"use {calibrator}")


def choose(figures: Figures, advice: Mapping[str, str]) -> str | None:
    """The candidate that the choosing half prefers: the best closed form, or a flow that is better by more than chance.

    Args:
        figures: The evidence.
        advice: Candidate -> its ``advice_for``.

    Returns:
        A candidate; None if there is none.
    """
    closed, flows = ([name for name in advice if (advice[name] == FLOW) is flow] for flow in (False, True))
    best = [max(names, key=lambda name: figures.choosing[name]) for names in (closed, flows) if names]
    if len(best) < 2:
        return best[0] if best else None
    simple, flow = best
    return flow if figures.leads[flow, simple].proven else simple


def decide(
    raw: Geometry,
    evidence: Sequence[Figures],
    advice: Mapping[str, str],
    missing: str = "",
    purpose: str = "similarity",
) -> Verdict:
    """The verdict. The first evidence decides; what the others say about the same system is added.

    Args:
        raw: Geometry of the raw embeddings.
        evidence: The figures of each kind of evidence, the one that decides first.
        advice: Candidate -> its ``advice_for``.
        missing: Why there is no evidence, if there is none.
        purpose: What the encoder is used for: similarity or search.
    """
    chosen = choose(evidence[0], advice) if evidence else None
    system = chosen if chosen and evidence[0].gains[chosen].proven else "raw"
    verdict = advice.get(system) or UNCHANGED[raw.centered, bool(evidence)]
    reasons = [_shape(raw), *(_said(figures, chosen) for figures in evidence)]
    if verdict == RESCALE:
        reasons.append(RESCALED)
    if not evidence:
        reasons.append(f"Whether a change ranks better is unknown: {missing} Give labels: pairs that you judged.")
    if system != "raw" and evidence[0].kind == MINED_PAIRS and purpose != "search":
        reasons.append(MINED_ONLY)
    return Verdict(verdict, system, tuple(reasons))


def _shape(raw: Geometry) -> str:
    read = "near zero, as it should be" if raw.centered else "the size of a cosine says little"
    return f"Two random texts have a cosine of {raw.median:.2f} (90 % of them {raw.p5:.2f} to {raw.p95:.2f}): {read}."


def _said(figures: Figures, chosen: str | None) -> str:
    """What one kind of evidence says about the chosen candidate."""
    if chosen is None:
        return f"Nothing could be fitted, so the {figures.kind} have nothing to judge."
    before, after = (100 * figures.judging[name] for name in ("raw", chosen))
    return (
        f"On {figures.pairs:,} {figures.kind} that nothing was fitted on or chosen by, {chosen} has {figures.metric} "
        f"{after:.1f}, raw {before:.1f}{figures.gains[chosen]}."
    )
