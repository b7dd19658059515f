"""What a candidate is judged by: pairs that people labelled, or pairs from the structure of the text.

    graded labels      sentence1, sentence2, score    Spearman
    binary labels      a, b, label                    area under the ROC curve
    retrieval labels   query, text                    mean reciprocal rank
    mined pairs        from the text's structure      mean reciprocal rank

One half of the pairs chooses among the candidates, the other half judges the chosen one: on the pairs that chose it,
the best of ten looks better than it is.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertflow.advise.verdict import MINED_PAIRS, Figures, Gain, Geometry, choose
from bertflow.data.pairs import Pairs, load_pairs, unique_sentences
from bertflow.encoder.abstract import SentenceEncoder
from bertflow.errors import DataError, UsageError
from bertflow.evaluation.report import Report
from bertflow.evaluation.significance import Difference
from bertflow.evaluation.tables import Column, value_table
from bertflow.evaluation.tasks import evaluate_binary, evaluate_retrieval, score_sets
from bertflow.moments import Moments
from bertflow.scoring.random_pairs import RandomPairs
from bertflow.tables import Table
from bertflow.training.reduction import participation_ratio

Systems = Mapping[str, SentenceEncoder]
FEWEST_LABELS = 100
"""Fewest labelled pairs: with fewer, no interval can tell systems apart."""


@dataclass(frozen=True)
class EvidenceKind:
    """A kind of evidence.

    Attributes:
        title: Its name.
        score: Systems, pairs, ``resamples=``, ``seed=`` -> the scores.
        metric: What decides.
        shown: The metrics that its table shows -> their titles.
    """

    title: str
    score: Callable[..., Report]
    metric: str
    shown: Mapping[str, str]


def _score_graded(systems: Systems, pairs: Pairs, **how: Any) -> Report:
    return score_sets(systems, [pairs], **how)


RANKING = {"hit@1": "hit@1", "mrr": "MRR", "random_median_cosine": "median cosine", "random_p95_cosine": "95 % cosine"}
LABELLED: Mapping[str, EvidenceKind] = {
    "graded": EvidenceKind("graded labels", _score_graded, "cosine_spearman", {"cosine_spearman": "Spearman"}),
    "binary": EvidenceKind("binary labels", evaluate_binary, "cosine_auc", {"cosine_auc": "ROC AUC"}),
    "retrieval": EvidenceKind("retrieval labels", evaluate_retrieval, "mrr", RANKING),
}
"""By the kind of the labelled pairs, how they are scored."""
MINED = EvidenceKind(MINED_PAIRS, evaluate_retrieval, "mrr", RANKING)


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

    @classmethod
    def of(cls, kind: EvidenceKind, pairs: Pairs, seed: int) -> "Evidence":
        """Labelled pairs, split at random."""
        if len(pairs) < FEWEST_LABELS:
            raise DataError(
                f"A verdict needs at least {FEWEST_LABELS} labelled pairs, half to choose by and half to judge by, got "
                f"{len(pairs)}. Label more pairs, or leave labels out."
            )
        rows = np.random.default_rng(seed).permutation(len(pairs))
        return cls(kind, pairs.taken(rows[::2]), pairs.taken(rows[1::2]))

    def __len__(self) -> int:
        """The number of pairs in both halves."""
        return len(self.choosing) + len(self.judging)

    @property
    def sentences(self) -> list[str]:
        """All distinct sentences of both halves."""
        return unique_sentences([self.choosing, self.judging])

    def judge(self, systems: Systems, advice: Mapping[str, str], resamples: int, seed: int) -> "Judgement":
        """Score raw and all candidates on both halves."""
        halves = (self.choosing, self.judging)
        choosing, judging = (self.kind.score(systems, half, resamples=resamples, seed=seed) for half in halves)
        gains = {pair: _gain(row) for pair, row in self._differences(judging).items()}
        figures = Figures(
            kind=self.kind.title,
            metric=f"{self.kind.shown[self.kind.metric]} x 100",
            pairs=len(self.judging),
            choosing=self._values(choosing),
            leads={pair: _gain(row) for pair, row in self._differences(choosing).items()},
            judging=self._values(judging),
            gains={first: gain for (first, second), gain in gains.items() if second == "raw"},
        )
        chosen = choose(figures, advice)
        return Judgement(self, judging, figures, chosen, self._differences(judging)[chosen, "raw"] if chosen else None)

    def _values(self, report: Report) -> dict[str, float]:
        task, metric = self.judging.task, self.kind.metric
        return {system.name: report.value(system.name, task, metric=metric) for system in report.systems}

    def _differences(self, report: Report) -> dict[tuple[str, str], Difference]:
        """(system, other system) -> the one less the other."""
        rows = [row for row in report.differences if row.metric == self.kind.metric]
        return {(row.first, row.second): row for row in (*rows, *(row.seen_from(row.second) for row in rows))}


def _gain(row: Difference) -> Gain:
    return Gain(row.difference, row.ci_low, row.ci_high)


@dataclass(frozen=True)
class Judgement:
    """One kind of evidence with what it measured.

    Attributes:
        evidence: The pairs.
        report: The scores of all systems on the judging half.
        figures: What the verdict is based on.
        chosen: The candidate that the choosing half prefers; None if there is none.
        gain: Its score less that of raw, on the judging half.
    """

    evidence: Evidence
    report: Report
    figures: Figures
    chosen: str | None
    gain: Difference | None

    @property
    def table(self) -> Table:
        """All systems on the judging half, x 100."""
        task, shown = self.evidence.judging.task, self.evidence.kind.shown
        columns = [Column(title, task, "all", metric) for metric, title in shown.items()]
        return value_table(self.report.rows, columns)

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "kind": self.evidence.kind.title,
            "metric": self.evidence.kind.metric,
            "chosen": self.chosen,
            "gain": asdict(self.gain) if self.gain else None,
            "report": self.report.as_dict(),
        }


def measure_geometry(x: NDArray[np.floating], seed: int) -> Geometry:
    """The geometry of the rows of ``x`` (n, dim).

    Raises:
        DataError: If all embeddings are equal.
    """
    if not np.ptp(x, axis=0).any():
        raise DataError(f"All {len(x):,} embeddings are equal, so they tell nothing apart. Is this the right model?")
    cosines, norms = RandomPairs.of(x, seed).cosines, np.linalg.norm(x.astype(np.float64), axis=1)
    p5, median, p95 = np.quantile(cosines, [0.05, 0.5, 0.95])
    return Geometry(
        n=len(x),
        dim=x.shape[1],
        mean=float(cosines.mean()),
        p5=float(p5),
        median=float(median),
        p95=float(p95),
        participation=participation_ratio(Moments.of(x)),
        norm=float(norms.mean()),
        norm_deviation=float(norms.std()),
    )


def load_evidence(labels: str | Path | Pairs, seed: int) -> Evidence:
    """Labelled pairs in two halves.

    Args:
        labels: Pairs, or a file; its columns tell their kind.
        seed: Random seed of the halves.

    Raises:
        DataError: If the columns are of no kind, or there are too few pairs.
        UsageError: If the pairs have no labels.
    """
    pairs = labels if isinstance(labels, Pairs) else load_pairs(labels, tuple(LABELLED))
    if pairs.kind not in LABELLED:
        raise UsageError(f"Labels must be of the kinds {', '.join(LABELLED)}, got {pairs.kind}. Give other pairs.")
    return Evidence.of(LABELLED[pairs.kind], pairs, seed)
