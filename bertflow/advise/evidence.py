"""What candidates are judged by: pairs in two halves.

    asked labels       the table of fix --ask         Spearman
    graded labels      sentence1, sentence2, score    Spearman
    binary labels      a, b, label                    area under the ROC curve
    retrieval labels   query, text                    mean reciprocal rank
    mined pairs        from the text's structure      mean reciprocal rank
    docstring pairs    not of the user's text         mean reciprocal rank

One half of the pairs chooses among the candidates, the other half judges the chosen one: on the pairs that chose it,
the best of ten looks better than it is. Docstring pairs prove nothing; they may veto (``bertflow.advise.rules``).
"""

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bertflow.advise.asking import read_asked
from bertflow.advise.naming import FLOW, advice_for
from bertflow.calibration.spelling import RAW
from bertflow.data.docstrings import SOME_FILES, docstring_pairs
from bertflow.data.pairs import Pairs, load_pairs, unique_sentences
from bertflow.encoder.abstract import SentenceEncoder
from bertflow.encoder.cutting import unknown_share
from bertflow.errors import DataError, UsageError
from bertflow.evaluation.evaluating import score_sets
from bertflow.evaluation.report import Report
from bertflow.evaluation.score_table import METRIC_TITLES, Column
from bertflow.evaluation.sides import Systems
from bertflow.evaluation.significance import LEVEL, Difference, Place
from bertflow.tables import Section

FEWEST_LABELS = 100
"""Fewest labeled pairs: with fewer, no interval can tell systems apart."""
STAND_INS = 600
"""Docstring pairs: a third of them choose, the others judge."""
UNKNOWN_WORDS = 0.1
"""Largest share of tokens that the encoder may not know, of a text or of docstrings."""
FREQUENT, SAME_LANGUAGE = 100, 0.1
"""Most frequent words of docstrings, and their least share in a text of the same language: 0.15 for a catalog in
English, 0.3 to 0.4 for English sentences, 0.04 or less for German, Dutch and French."""


@dataclass(frozen=True)
class EvidenceKind:
    """A kind of evidence.

    Attributes:
        title: Its name.
        metric: What decides.
        plain: What decides, in words.
        shown: The metrics that its table shows -> their titles.
    """

    title: str
    metric: str
    plain: str
    shown: Mapping[str, str]


SPEARMAN, AUC = "cosine_spearman", "cosine_auc"
RANKING = {one: METRIC_TITLES.get(one, one) for one in ("hit@1", "mrr", "random_median_cosine", "random_p95_cosine")}
LABELED: Mapping[str, EvidenceKind] = {
    "graded": EvidenceKind("graded labels", SPEARMAN, "agreement with your scores", {SPEARMAN: "Spearman"}),
    "binary": EvidenceKind("binary labels", AUC, "separation of matches from others", {AUC: "ROC AUC"}),
    "retrieval": EvidenceKind("retrieval labels", "mrr", "search quality", RANKING),
}
"""Kind of the labeled pairs -> how they are scored."""
ASKED = replace(LABELED["graded"], title="asked labels")
"""Judgements of pairs on which the candidates differ."""
MINED = replace(LABELED["retrieval"], title="mined pairs")
"""Evidence from the text itself."""
STAND_IN = replace(MINED, title="docstring pairs")
"""Evidence from other text."""


@dataclass(frozen=True)
class Evidence:
    """Pairs in two halves.

    Attributes:
        kind: How they are scored.
        choosing: The half that chooses among the candidates.
        judging: The half that judges the chosen one; the same pairs where they were asked for, since they are few.
        asked: How many pairs were asked for, judged or not; 0 for other evidence.
    """

    kind: EvidenceKind
    choosing: Pairs
    judging: Pairs
    asked: int = 0

    @property
    def mined(self) -> bool:
        """Whether the text gave them, and no person."""
        return self.kind is MINED

    def __len__(self) -> int:
        """The number of pairs that were given."""
        return len(self.judging) if self.asked else len(self.choosing) + len(self.judging)

    @property
    def sentences(self) -> list[str]:
        """All distinct sentences of both halves."""
        return unique_sentences([self.choosing, self.judging])

    def judge(self, systems: Systems, resamples: int, seed: int) -> "Judgement":
        """Score raw and all candidates on both halves."""
        halves = (self.choosing,) if self.asked else (self.choosing, self.judging)
        reports = [score_sets(systems, [half], resamples=resamples, seed=seed) for half in halves]
        ranked = self.judging.kind == "retrieval"
        return Judgement(self, reports[0], reports[-1].beside_bm25(self.judging) if ranked else reports[-1])


def load_evidence(labels: str | Path | Pairs, seed: int) -> Evidence:
    """Labeled pairs in two halves, split at random; all of those that ``fix --ask`` asked for, in both.

    Args:
        labels: Pairs, or a file; its columns tell their kind.
        seed: Random seed for the halves.

    Raises:
        DataError: If the columns are of no kind, or there are too few pairs.
        UsageError: If the pairs have no labels.
    """
    if not isinstance(labels, Pairs) and (found := read_asked(labels)):
        return Evidence(ASKED, found[0], found[0], asked=found[1])
    pairs = load_pairs(labels, tuple(LABELED))
    if pairs.kind not in LABELED:
        raise UsageError(f"Labels must be of the kinds {', '.join(LABELED)}, got {pairs.kind}. Give other pairs.")
    if len(pairs) < FEWEST_LABELS:
        raise DataError(
            f"A verdict needs at least {FEWEST_LABELS} labeled pairs, half to choose by and half to judge by, got "
            f"{len(pairs)}. Label more pairs, or leave labels out."
        )
    rows = np.random.default_rng(seed).permutation(len(pairs))
    return Evidence(LABELED[pairs.kind], pairs.taken(rows[::2]), pairs.taken(rows[1::2]))


def docstring_evidence(encoder: SentenceEncoder, text: Sequence[str] = ()) -> Evidence | None:
    """Pairs of the docstrings that are installed, which stand in where the user's text has none.

    Returns:
        None for an encoder that does not know their words, and for text in another language, if there is text.
    """
    if not reads_docstrings(encoder):
        return None
    pairs = docstring_pairs(SOME_FILES).sample(STAND_INS, seed=0)
    lowered = (" ".join(lines).lower() for lines in (pairs.second, text))
    counts, words = (Counter(re.findall(r"[^\W\d_]+", lines)) for lines in lowered)
    if sum(words[word] for word, _ in counts.most_common(FREQUENT)) < SAME_LANGUAGE * words.total():  # 0 without text
        return None
    choosing = np.arange(len(pairs)) % 3 == 0
    return Evidence(STAND_IN, pairs.taken(np.flatnonzero(choosing)), pairs.taken(np.flatnonzero(~choosing)))


def reads_docstrings(encoder: SentenceEncoder) -> bool:
    """Whether an encoder knows the words of docstrings, which are English."""
    return unknown_share(encoder, [__doc__]) <= UNKNOWN_WORDS


@dataclass(frozen=True)
class Judgement:
    """What one kind of evidence measured; scores are in [-1, 1].

    Attributes:
        evidence: The pairs.
        choosing: The scores of all systems on the choosing half.
        judging: The scores of all systems on the judging half.
        among: Which candidates may be chosen; None for all.
    """

    evidence: Evidence
    choosing: Report
    judging: Report
    among: Collection[str] | None = None

    def limited(self, among: Collection[str]) -> "Judgement":
        """This judgement, where only some candidates may be chosen."""
        return replace(self, among=among)

    @property
    def chosen(self) -> str | None:
        """The candidate that the choosing half prefers; None if there is none.

        It is the best closed form, or a flow that is better by more than chance.
        """
        scores = self.choosing.values(self.evidence.kind.metric)
        names = sorted(self._candidates, key=lambda name: -scores[name])
        flows = [name for name in names if advice_for(name) == FLOW]
        closed = [name for name in names if name not in flows]
        if flows and closed:
            return flows[0] if proven(self._lead(self.choosing, flows[0], closed[0])) else closed[0]
        return next(iter(names), None)

    @property
    def gain(self) -> Difference | None:
        """The gain of the chosen candidate."""
        return self.lead(self.chosen) if self.chosen else None

    @property
    def proves(self) -> bool:
        """Whether the chosen candidate is better than raw by more than chance.

        Where the same pairs chose it, its p-value is corrected for the number of candidates (Bonferroni).
        """
        gain = self.gain
        if not self.evidence.asked or gain is None or gain.p_bootstrap is None:
            return proven(gain)
        return proven(gain) and gain.p_bootstrap * len(self._candidates) < LEVEL

    @property
    def _candidates(self) -> list[str]:
        names = self.choosing.values(self.evidence.kind.metric)
        return [name for name in names if name != RAW and (self.among is None or name in self.among)]

    def lead(self, candidate: str) -> Difference:
        """The gain of a candidate over raw, on the judging half."""
        return self._lead(self.judging, candidate, RAW)

    def refuses(self, candidate: str | None) -> bool:
        """Whether the judging half says that a candidate is worse than raw by more than chance."""
        ci_high = self.lead(candidate).ci_high if candidate else None
        return ci_high is not None and ci_high < 0

    def _lead(self, report: Report, first: str, second: str) -> Difference:
        metric = self.evidence.kind.metric
        return [row for row in report.compared(first, second) if row.metric == metric][-1]

    def section(self) -> Section:
        """All systems on the judging half, x 100."""
        evidence, task = self.evidence, self.evidence.judging.task
        columns = [Column(title, Place(task, "all", metric)) for metric, title in evidence.kind.shown.items()]
        n, chosen = len(evidence.judging), self.chosen
        who = f"{chosen or 'nothing'} was tested on {n:,} pairs"
        if len(self._candidates) > 1:
            best = f"Best{' for search' * evidence.mined} on {len(evidence.choosing):,} pairs: {chosen}"
            who = f"{best}; tested on {n:,} others"
        if evidence.asked:
            who = f"{n:,} of {evidence.asked:,} are filled in; chosen on all of them ({chosen})"
        how = f"{who}. Scores, but not cosines, are x 100."
        return Section(evidence.kind.title.capitalize(), self.judging.table(columns), (how, *self.judging.captions()))

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        kind, gain = self.evidence.kind, asdict(self.gain) if self.gain else None
        what = {"kind": kind.title, "metric": kind.metric, "chosen": self.chosen}
        return {**what, "gain": gain, "report": self.judging.as_dict()}

    def said_of(self, candidate: str | None) -> str:
        """What it says about a candidate."""
        kind = self.evidence.kind
        if candidate is None:
            return f"No candidate was fitted that the {kind.title} could judge."
        gain, scores = self.lead(candidate), self.judging.values(kind.metric)
        before, after = (100 * scores[name] for name in (RAW, candidate))
        said = ""
        if gain.ci_low is not None and gain.ci_high is not None:
            word = "better" if gain.ci_low > 0 else "worse" if gain.ci_high < 0 else "no significant difference"
            ends = f"95 % interval {100 * gain.ci_low:+.1f} to {100 * gain.ci_high:+.1f}"
            said = f": {word} ({100 * gain.difference:+.1f}, {ends})"
        on = f"On {len(self.evidence.judging):,} {'' if kind is STAND_IN else 'held-out '}{kind.title}"
        if self.evidence.asked:
            on = f"On {len(self.evidence.judging):,} of {self.evidence.asked:,} {kind.title} (used to choose it)"
            if candidate == self.chosen and proven(gain) and not self.proves:
                said += f", but not significantly for the best of {len(self._candidates)}"
            said += ". These pairs were picked where candidates differ most, so only the difference counts"
        chance = 100 * float((1 / np.arange(1, 1 + len(self.evidence.judging))).mean())
        by_chance = ""
        if kind.metric == "mrr" and max(before, after) < 2 * chance:
            by_chance = f" Chance gives {chance:.1f}.{' Are these labels right?' * (kind is LABELED['retrieval'])}"
        what = f"{kind.plain} ({kind.shown[kind.metric]} x 100)"
        return f"{on}, {what} is {after:.1f} with {candidate} and {before:.1f} raw{said}.{by_chance}"


def proven(row: Difference | None) -> bool:
    """Whether the first system is better by more than chance; not where a resample had no variance."""
    return row is not None and row.ci_low is not None and row.ci_low > 0
