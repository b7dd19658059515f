"""What candidates are judged by, and the verdict.

    graded labels      sentence1, sentence2, score    Spearman
    binary labels      a, b, label                    area under the ROC curve
    retrieval labels   query, text                    mean reciprocal rank
    mined pairs        from the text's structure      mean reciprocal rank

One half of the pairs chooses among the candidates, the other half judges the chosen one: on the pairs that chose it,
the best of ten looks better than it is. ``decide`` reads figures and computes nothing else, so each of its rules can be
checked with a few numbers:

    a change      the candidate that the choosing half prefers, if the 95 % interval of its gain over raw lies above 0
                  on the judging half; a flow is preferred only if it beats the best closed form in the same way
    no proof      the recipe for raw encoders, where the geometry is theirs and no pairs speak against it; it is likely
    no change     rescale the scores where random pairs have a cosine above ``CENTERED``, else leave it; without pairs,
                  you need labels

Rescaling changes no ranking, so it is never wrong, and ``scores.json`` is written whatever the verdict.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from bertflow.advise.likely import Geometry, Shape
from bertflow.calibration.spelling import RAW, parse_system
from bertflow.data.pairs import Pairs, load_pairs, unique_sentences
from bertflow.encoder.abstract import SentenceEncoder
from bertflow.errors import DataError, UsageError
from bertflow.evaluation.report import Report, score_sets
from bertflow.evaluation.rows import Column
from bertflow.evaluation.significance import Difference
from bertflow.tables import Section

FEWEST_LABELS = 100
"""Fewest labelled pairs: with fewer, no interval can tell systems apart."""
FLOW = "use the flow"
ADVICE: Mapping[str, str] = {"whitening": "whiten", "flow": FLOW}
"""Row of ``CALIBRATORS`` -> what is advised where a candidate of that row is best."""
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
NOT_KNOWN = "So it may be tuned already, and calibration may cost similarity."
PROOF = (
    f"To prove more: --labels FILE with {FEWEST_LABELS} labelled pairs or more, better some hundreds (sentence1, "
    "sentence2, score; or a, b, label; or query, text), or a text with 300 pairs in it (paragraphs of several "
    "sentences, lines between blank lines, or columns such as question and answer)."
)
RESCALED = "The percentiles of scores.json correct that without changing any ranking."


@dataclass(frozen=True)
class EvidenceKind:
    """A kind of evidence.

    Attributes:
        title: Its name.
        metric: What decides.
        shown: The metrics that its table shows -> their titles.
    """

    title: str
    metric: str
    shown: Mapping[str, str]


RANKING = {"hit@1": "hit@1", "mrr": "MRR", "random_median_cosine": "median cosine", "random_p95_cosine": "95 % cosine"}
LABELLED: Mapping[str, EvidenceKind] = {
    "graded": EvidenceKind("graded labels", "cosine_spearman", {"cosine_spearman": "Spearman"}),
    "binary": EvidenceKind("binary labels", "cosine_auc", {"cosine_auc": "ROC AUC"}),
    "retrieval": EvidenceKind("retrieval labels", "mrr", RANKING),
}
"""By the kind of the labelled pairs, how they are scored."""
MINED = replace(LABELLED["retrieval"], title="mined pairs")
"""Evidence from the text itself."""


@dataclass(frozen=True)
class Evidence:
    """Pairs in two halves.

    Attributes:
        kind: How they are scored.
        choosing: The half that chooses among the candidates.
        judging: The half that judges the chosen one.
    """

    kind: EvidenceKind
    choosing: Pairs
    judging: Pairs

    @property
    def sentences(self) -> list[str]:
        """All distinct sentences of both halves."""
        return unique_sentences([self.choosing, self.judging])

    def judge(self, systems: Mapping[str, SentenceEncoder], resamples: int, seed: int) -> "Judgement":
        """Score raw and all candidates on both halves."""
        halves = (self.choosing, self.judging)
        return Judgement(self, *(score_sets(systems, [half], resamples=resamples, seed=seed) for half in halves))


def load_evidence(labels: str | Path | Pairs, seed: int) -> Evidence:
    """Labelled pairs in two halves, split at random.

    Args:
        labels: Pairs, or a file; its columns tell their kind.
        seed: Random seed for the halves.

    Raises:
        DataError: If the columns are of no kind, or there are too few pairs.
        UsageError: If the pairs have no labels.
    """
    pairs = labels if isinstance(labels, Pairs) else load_pairs(labels, tuple(LABELLED))
    if pairs.kind not in LABELLED:
        raise UsageError(f"Labels must be of the kinds {', '.join(LABELLED)}, got {pairs.kind}. Give other pairs.")
    if len(pairs) < FEWEST_LABELS:
        raise DataError(
            f"A verdict needs at least {FEWEST_LABELS} labelled pairs, half to choose by and half to judge by, got "
            f"{len(pairs)}. Label more pairs, or leave labels out."
        )
    rows = np.random.default_rng(seed).permutation(len(pairs))
    return Evidence(LABELLED[pairs.kind], pairs.taken(rows[::2]), pairs.taken(rows[1::2]))


def announced(evidence: Sequence[Evidence], missing: str) -> str:
    """What can be said in the end, before anything is encoded: which evidence decides, and how much there is."""
    if not evidence:
        return f"{missing} So nothing can be proven on it: the geometry decides whether a change is likely to help."
    first, *others = (f"{len(one.choosing) + len(one.judging):,} {one.kind.title}" for one in evidence)
    beside = f"; {', '.join(others)} are shown beside" if others else ""
    return f"{first} decide, half of them choose and half judge: a change can be proven{beside}"


@dataclass(frozen=True)
class Judgement:
    """What one kind of evidence measured; scores are in [-1, 1].

    Attributes:
        evidence: The pairs.
        choosing: The scores of all systems on the choosing half.
        judging: The scores of all systems on the judging half.
    """

    evidence: Evidence
    choosing: Report
    judging: Report

    @property
    def chosen(self) -> str | None:
        """The candidate that the choosing half prefers; None if there is none.

        It is the best closed form, or a flow that is better by more than chance.
        """
        scores = self.choosing.values(self.evidence.kind.metric)
        names = sorted((name for name in scores if name != RAW), key=lambda name: -scores[name])
        flows = [name for name in names if advice_for(name) == FLOW]
        closed = [name for name in names if name not in flows]
        if flows and closed:
            return flows[0] if proven(self._lead(self.choosing, flows[0], closed[0])) else closed[0]
        return next(iter(names), None)

    @property
    def gain(self) -> Difference | None:
        """The gain of the chosen candidate."""
        return self._lead(self.judging, self.chosen, RAW) if self.chosen else None

    def against(self, candidate: str) -> bool:
        """Whether the judging half says that a candidate is worse than raw by more than chance."""
        ci_high = self._lead(self.judging, candidate, RAW).ci_high
        return ci_high is not None and ci_high < 0

    def _lead(self, report: Report, first: str, second: str) -> Difference:
        metric = self.evidence.kind.metric
        return [row for row in report.compared(first, second) if row.metric == metric][-1]

    def section(self) -> Section:
        """All systems on the judging half, x 100."""
        evidence, task = self.evidence, self.evidence.judging.task
        columns = [Column(title, task, "all", metric) for metric, title in evidence.kind.shown.items()]
        how = (
            f"{len(evidence.choosing):,} chose ({self.chosen}), {len(evidence.judging):,} others judge. x 100, and "
            "cosines as they are."
        )
        return Section(evidence.kind.title.capitalize(), self.judging.table(columns), (how, *self.judging.captions()))

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        kind, gain = self.evidence.kind, asdict(self.gain) if self.gain else None
        what = {"kind": kind.title, "metric": kind.metric, "chosen": self.chosen}
        return {**what, "gain": gain, "report": self.judging.as_dict()}

    def __str__(self) -> str:
        """What it says about the chosen candidate."""
        kind, chosen, gain = self.evidence.kind, self.chosen, self.gain
        if chosen is None or gain is None:
            return f"Nothing could be fitted, so the {kind.title} have nothing to judge."
        scores = self.judging.values(kind.metric)
        before, after = (100 * scores[name] for name in (RAW, chosen))
        said = ""
        if gain.ci_low is not None and gain.ci_high is not None:
            word = "better" if gain.ci_low > 0 else "worse" if gain.ci_high < 0 else "not to be told apart"
            ends = f"95 % interval {100 * gain.ci_low:+.1f} to {100 * gain.ci_high:+.1f}"
            said = f": {word} ({100 * gain.difference:+.1f}, {ends})"
        return (
            f"On {len(self.evidence.judging):,} {kind.title} that nothing was fitted on or chosen by, {chosen} has "
            f"{kind.shown[kind.metric]} x 100 {after:.1f}, raw {before:.1f}{said}."
        )


def advice_for(candidate: str) -> str:
    """What is advised where this candidate is best."""
    calibrator = parse_system(candidate).calibrator or ""
    return ADVICE.get(calibrator, f"use {calibrator}")


def proven(row: Difference) -> bool:
    """Whether the first system is better by more than chance; not where a resample had no variance."""
    return row.ci_low is not None and row.ci_low > 0


class Decision(NamedTuple):
    """What to do.

    Attributes:
        verdict: What is advised.
        system: The candidate to use; "raw" for none.
        standing: ``PROVEN``, ``LIKELY``, or empty where nothing is changed.
        reasons: Plain sentences with the numbers behind the advice.
    """

    verdict: str
    system: str
    standing: str
    reasons: tuple[str, ...]


def decide(
    raw: Geometry,
    evidence: Sequence[Judgement],
    missing: str = "",
    purpose: str = "similarity",
    shape: Shape | None = None,
    likely: str = "",
) -> Decision:
    """The verdict. The first evidence decides; what the others say about the same system is added.

    Args:
        raw: Geometry of the raw embeddings.
        evidence: What each kind of evidence measured, the one that decides first.
        missing: Why there is no evidence, if there is none.
        purpose: What the encoder is used for: similarity, search or both.
        shape: What the geometry of the plain mean says; None where that is unknown.
        likely: The candidate to use where the geometry is that of raw encoders; empty for none.
    """
    gain = evidence[0].gain if evidence else None
    looks_raw = shape is not None and shape.raw and not raw.centered
    refuted = bool(likely and evidence and evidence[0].against(likely))
    system, standing = RAW, ""
    if gain and proven(gain):
        system, standing = gain.first, PROVEN
    elif likely and looks_raw and not refuted:
        system, standing = likely, LIKELY
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
        reasons.append(f"{shape} {HELPED if looks_raw else NOT_KNOWN}")
    if verdict == RESCALE:
        reasons.append(RESCALED)
    if standing == LIKELY or not evidence:
        reasons.append(PROOF)
    if standing == PROVEN and evidence[0].evidence.kind is MINED and purpose != "search":
        reasons.append(MINED_ONLY)
    return Decision(verdict, system, standing, tuple(reasons))
