"""Pairs of sentences in a report: random pairs against paraphrases, edit distance, and what a score means.

Pairs have a human score (an STS task, a table), where the highest fifth of the scale counts as a paraphrase; or they
are queries with their right text, which all count as paraphrases.

    alignment    mean over paraphrases of |u - v|^2, for unit rows            the lower, the closer
    separation   probability that a paraphrase has a higher cosine than a random pair

Uniformity (``Cloud.uniformity``) is easily improved at the cost of alignment: calibration improves uniformity and often
worsens alignment, so neither is read alone. ``separation`` reads both at once.

Source: Wang & Isola 2020, arXiv:2005.10242, equation 1; Gao et al. 2021, arXiv:2104.08821, section 7.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from bertflow.array_types import Bools, Float64
from bertflow.correlation import spearman
from bertflow.data.pairs import Pairs, load_pairs
from bertflow.data.sts import StsSource
from bertflow.data.tables import table_suffix
from bertflow.errors import UsageError
from bertflow.evaluation.bm25 import BM25, bm25_values
from bertflow.evaluation.edits import edits_of
from bertflow.evaluation.evaluating import evaluate_retrieval, score_sets
from bertflow.evaluation.sides import Systems, encode_sets
from bertflow.evaluation.ungraded import random_pair_cosines
from bertflow.geometry.cloud import Clouds
from bertflow.geometry.measures import uniformity
from bertflow.geometry.report import GeometrySection, docstring, listed, rounded
from bertflow.scoring.domain import auroc
from bertflow.similarity import COSINE
from bertflow.tables import Table

ALIKE = 0.8
"""Share of the range of the human scores from which a pair counts as a paraphrase: 4 on the scale from 0 to 5."""
COSINE_BINS = 60
"""Bins of the histogram of cosines."""
BINS = 15
"""Bins of the curve that says what a score means."""
HILLS = 30
"""Bins of the histograms whose overlap is measured."""
DRAWN = 2000
"""Largest number of pairs that are drawn as points."""
SCORES: Mapping[str, str] = {
    "hit@1": "Share of queries whose own text is nearer than every other text. 0 is none, 100 is all.",
    "Spearman": "Rank correlation of the cosines with the human scores. 0 is chance, 100 is the same order.",
    "interval": "It holds the value for 95 of 100 other samples of such pairs. Systems may differ though bars overlap.",
}
"""What the numbers are, and how to read them."""


@dataclass(frozen=True)
class PairCosines:
    """Pairs of sentences, by every system.

    Attributes:
        name: What the pairs are.
        cosines: Cosines of all pairs (p,), by system.
        alike: Which pairs count as paraphrases (p,).
        rule: The rule for that, in words.
        edits: Edit distance of each pair in words (p,).
        gold: Human scores (p,), if any.
    """

    name: str
    cosines: Mapping[str, Float64]
    alike: Bools
    rule: str
    edits: Float64
    gold: Float64 | None = None

    def paraphrases(self, system: str) -> Float64:
        """Cosines of the paraphrases by one system."""
        return self.cosines[system][self.alike]


@dataclass(frozen=True)
class PairScores:
    """How well systems rank pairs.

    Attributes:
        title: The metric and the pairs, in words: "hit@1 on docstrings".
        values: Value, lower and upper end of its 95 % interval, by system, the one "before" first.
        separable: Whether another system differs from the first by more than chance, by a paired test.
        bm25: The value of words in common, of queries alone.
    """

    title: str
    values: Mapping[str, tuple[float, float, float]]
    separable: Mapping[str, bool]
    bm25: float | None = None


def load_scored_pairs(name: str, data_dir: str) -> Pairs:
    """One STS task, or a table with a human score, or with query and text.

    Raises:
        DataError: If data is missing or damaged.
    """
    if table_suffix(name):
        return load_pairs(name, ("retrieval", "graded"))
    source = StsSource(name, data_dir)
    if len(source.names) > 1:
        raise UsageError(f"pairs takes one task, got {len(source.names)}: {', '.join(source.names)}. Choose one.")
    return next(iter(source))


def cosines_of_pairs(systems: Systems, pairs: Pairs) -> PairCosines:
    """The cosine of every pair by every system, and its edit distance in words."""
    gold, alike, rule = None, np.ones(len(pairs), dtype=bool), "a query and its text"
    if pairs.kind == "graded":
        gold = pairs.target
        bound = gold.min() + ALIKE * np.ptp(gold)
        alike, rule = gold >= bound, f"human score of at least {bound:g}"
    (embedded,) = encode_sets(systems, [pairs])
    cosines = {name: COSINE.paired(x, y) for name, x, y in embedded}
    return PairCosines(pairs.task, cosines, alike, rule, edits_of(pairs, "words"), gold)


def scores_of_pairs(systems: Systems, pairs: Pairs) -> PairScores:
    """Spearman with the human scores, or hit@1 of the queries, here of BM25 as well.

    Raises:
        DataError: If a system was trained on labels of these pairs.
    """
    if pairs.kind == "graded":
        report, metric, title, bm25 = score_sets(systems, [pairs]), "cosine_spearman", "Spearman", None
    else:
        report, metric, title, bm25 = evaluate_retrieval(systems, pairs), "hit@1", "hit@1", bm25_values(pairs)["hit@1"]
    values = {
        row.system: (row.value, row.ci_low, row.ci_high)
        for row in report.rows
        if (row.metric, row.aggregation) == (metric, "all") and row.ci_low is not None and row.ci_high is not None
    }
    first, *others = systems
    compared = [one for other in others for one in report.compared(other, first)]
    separable = {one.first: bool(one.separable) for one in compared if (one.metric, one.aggregation) == (metric, "all")}
    return PairScores(f"{title} on {pairs.task}", values, separable, bm25)


def alignment(cosines: Float64) -> float:
    """Mean squared distance of two paraphrases, scaled to length one. The lower, the closer they lie."""
    # For unit rows |u - v|^2 is 2 - 2 cos(u, v).
    return float((2 - 2 * cosines).mean())


def separation(paraphrases: Float64, random: Float64) -> float:
    """Probability that a paraphrase has a higher cosine than a random pair. 0.5 is chance, 1 is perfect."""
    return auroc(paraphrases, random)


def overlap(a: Float64, b: Float64) -> float:
    """Common area of the histograms of two samples, each of area 1, in ``HILLS`` bins: 0 for apart, 1 for the same."""
    edges = np.histogram_bin_edges(np.concatenate([a, b]), HILLS)
    return float(np.minimum(*(np.histogram(one, edges)[0] / len(one) for one in (a, b))).sum())


def show_cosines(clouds: Clouds, pairs: PairCosines | None = None) -> GeometrySection:
    """Cosines of random pairs, and of paraphrases where there are any."""
    panels = {name: {"random pairs": cloud.random_cosines} for name, cloud in clouds.items()}
    if pairs is not None:
        panels = {name: {**samples, "paraphrases": pairs.paraphrases(name)} for name, samples in panels.items()}
    quantiles = {
        name: {kind: np.quantile(sample, [0.05, 0.5, 0.95]) for kind, sample in samples.items()}
        for name, samples in panels.items()
    }
    kinds = list(next(iter(panels.values())))
    middle = {kind: listed({name: row[kind][1] for name, row in quantiles.items()}) for kind in kinds}
    told, numbers = f"Random pairs have a median cosine of {middle['random pairs']}", {}
    if pairs is None:
        ends = [(name, *map(rounded, row["random pairs"][::2])) for name, row in quantiles.items()]
        told += f"; 90 % of them lie between {', '.join(f'{low} and {high} ({name})' for name, low, high in ends)}. "
        told += "Unrelated sentences should have cosines around 0."
    else:
        shared = {name: 100 * overlap(*samples.values()) for name, samples in panels.items()}
        numbers = {"overlap": {name: value / 100 for name, value in shared.items()}}
        told += f", paraphrases ({pairs.rule}) of {middle['paraphrases']}. The two hills of a panel have "
        told += f"{listed(shared, 0, ' %')} of their area in common; the less, the better a threshold can work."
    everything = np.concatenate([sample for samples in panels.values() for sample in samples.values()])
    edges = np.linspace(everything.min(), everything.max() + 1e-9, COSINE_BINS + 1)
    counts = {
        name: {kind: np.histogram(sample, edges)[0] for kind, sample in samples.items()}
        for name, samples in panels.items()
    }
    return GeometrySection(
        told,
        {"quantiles 5, 50, 95 %": quantiles, **numbers, "histogram": {"edges": edges, "counts": counts}},
        lambda plots: plots.histograms(panels, edges, "cosine"),
        f"Histograms of cosines of {' and '.join(kinds)}, a panel for each of {', '.join(panels)}.",
    )


def show_paraphrases(clouds: Clouds, pairs: PairCosines) -> GeometrySection:
    """Alignment and uniformity side by side, and how well paraphrases and random pairs come apart."""
    numbers = {
        name: {
            "alignment": alignment(pairs.paraphrases(name)),
            "uniformity": cloud.uniformity,
            "separation": separation(pairs.paraphrases(name), cloud.random_cosines),
        }
        for name, cloud in clouds.items()
    }
    apart = {name: row["separation"] for name, row in numbers.items()}
    return GeometrySection(
        f"A paraphrase is more similar than a random pair with probability {listed(apart, 3)}. Calibration usually "
        "lowers uniformity and raises alignment, one better and one worse, so neither is read alone.",
        {"systems": numbers, "pairs": pairs.name, "paraphrases": int(pairs.alike.sum()), "rule": pairs.rule},
        table=Table(
            ("system", "alignment", "uniformity", "separation"),
            tuple((name, *(f"{value:.3f}" for value in row.values())) for name, row in numbers.items()),
        ),
        explained={one.__name__: docstring(one) for one in (alignment, uniformity, separation)},
    )


def show_edit_distances(pairs: PairCosines) -> GeometrySection:
    """Does a system find pairs similar because they share words?"""
    follows = {name: spearman(cosines, pairs.edits) for name, cosines in pairs.cosines.items()}
    gold = "" if pairs.gold is None else f"; the human scores themselves have {spearman(pairs.gold, pairs.edits):.2f}"
    shown = np.random.default_rng(0).permutation(len(pairs.edits))[:DRAWN]
    points = {name: np.column_stack([pairs.edits, cosines])[shown] for name, cosines in pairs.cosines.items()}
    return GeometrySection(
        f"Spearman's correlation of cosine and edit distance, in words, is {listed(follows)} on the "
        f"{len(pairs.edits):,} pairs of {pairs.name}{gold}. Below 0 a cloud falls: the similarity is partly one of "
        "spelling.",
        {"spearman": follows, "pairs": pairs.name, "n": len(pairs.edits)},
        lambda plots: plots.scatters(
            points, "edit distance in words", "cosine", None if pairs.gold is None else pairs.gold[shown], "human score"
        ),
        f"Cosine against edit distance of pairs of sentences, a panel for each of {', '.join(points)}.",
    )


def show_score_curve(clouds: Clouds, pairs: PairCosines) -> GeometrySection:
    """The meaning of a cosine: the mean human score of pairs with this cosine, or how probably they are paraphrases."""
    curves = {}
    for name, cloud in clouds.items():
        if pairs.gold is None:
            alike = pairs.paraphrases(name)
            random = random_pair_cosines(cloud.sample, np.random.default_rng(0), len(alike))
            scores, target = np.concatenate([alike, random]), np.repeat([1.0, 0.0], [len(alike), len(random)])
        else:
            scores, target = pairs.cosines[name], (pairs.gold - pairs.gold.min()) / np.ptp(pairs.gold)
        curves[name] = calibration_curve(scores, target)
    middle = {name: crossing(*curve) for name, curve in curves.items()}
    cross = listed({name: value for name, value in middle.items() if value is not None})
    told = f"The cosine to decide by, where a line rises through one half, is {cross}. " if cross else ""
    if never := [name for name, value in middle.items() if value is None]:
        told += f"No rise through one half: {', '.join(never)}. "
    meaning = (
        "probability that the pair is a paraphrase, were half of all pairs"
        if pairs.gold is None
        else "mean human score, over its range"
    )
    return GeometrySection(
        f"{told}The height is the {meaning} ({pairs.name}).",
        {"curves": {name: {"cosine": a, "meaning": b} for name, (a, b) in curves.items()}, "half": middle},
        lambda plots: plots.curves(curves, "cosine", meaning.partition(",")[0]),
        f"The {meaning} by cosine, a line for each of {', '.join(curves)}.",
    )


def show_scores(scores: PairScores) -> GeometrySection:
    """How good the systems are on the pairs, with intervals."""
    metric, before = scores.title, next(iter(scores.values))
    scaled = {name: (100 * value, 100 * low, 100 * high) for name, (value, low, high) in scores.values.items()}
    told = ", ".join(f"{value:.1f} ({low:.1f} to {high:.1f}) {name}" for name, (value, low, high) in scaled.items())
    bm25 = "" if scores.bm25 is None else f", {100 * scores.bm25:.1f} {BM25} (words in common)"
    apart = "; ".join(
        f"{name} and {before}: {'a' if known else 'no'} significant difference"
        for name, known in scores.separable.items()
    )
    return GeometrySection(
        f"{metric} x 100, with 95 % intervals, is {told}{bm25}{apart and f'; {apart}'}.",
        {"metric": metric, "values": scores.values, "separable": scores.separable, BM25: scores.bm25},
        lambda plots: plots.intervals(scaled, f"{metric} x 100"),
        f"{metric} of {', '.join(scaled)}, each a dot with its 95 % interval.",
        explained={name: SCORES[name] for name in (metric.partition(" ")[0], "interval")},
    )


def calibration_curve(scores: Float64, target: Float64) -> tuple[Float64, Float64]:
    """Mean score and mean target in bins of equal size by rising score, at most ``BINS``; (b,), (b,)."""
    parts = np.array_split(np.argsort(scores, kind="stable"), min(BINS, len(scores)))
    return np.array([scores[rows].mean() for rows in parts]), np.array([target[rows].mean() for rows in parts])


def crossing(score: Float64, meaning: Float64) -> float | None:
    """The lowest score at which the meaning rises through one half, between the points; None if it never does."""
    for (left, low), (right, high) in pairwise(zip(score.tolist(), meaning.tolist(), strict=True)):
        if low < 0.5 <= high:
            return float(left + (right - left) * (0.5 - low) / (high - low))
    return None
