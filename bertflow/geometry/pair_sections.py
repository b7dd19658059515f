"""Sections on pairs of sentences: cosines of random pairs and paraphrases, edit distance, what a score means."""

from itertools import pairwise

import numpy as np

from bertflow.correlation import spearman
from bertflow.geometry.cloud import Float64
from bertflow.geometry.cosine import random_cosines
from bertflow.geometry.material import Material, PairCosines
from bertflow.geometry.report import Grid, Section
from bertflow.geometry.space_sections import listed
from bertflow.geometry.uniformity import separation, uniformity

BINS = 15
"""Of the curve that says what a score means."""
DRAWN = 2000
"""Pairs that are drawn as points, at most."""


def cosine_histograms(material: Material) -> Section:
    """Cosines of random pairs, and of paraphrases where there are any."""
    panels = {name: {"random pairs": random_cosines(cloud)} for name, cloud in material.clouds.items()}
    middle = {name: float(np.median(samples["random pairs"])) for name, samples in panels.items()}
    told = f"random pairs have a median cosine of {listed(middle)}"
    if material.pairs is not None:
        for name, samples in panels.items():
            samples["paraphrases"] = material.pairs.cosines[name][material.pairs.alike]
        alike = {name: float(np.median(samples["paraphrases"])) for name, samples in panels.items()}
        told += f", paraphrases ({material.pairs.rule}) of {listed(alike)}"
    quantiles = {
        name: {kind: np.quantile(sample, [0.05, 0.5, 0.95]).tolist() for kind, sample in samples.items()}
        for name, samples in panels.items()
    }
    return Section(
        f"A threshold works where the two hills do not overlap: {told}.",
        {"quantiles 5, 50, 95 %": quantiles},
        lambda plots: plots.histograms(panels, plots.Axis("cosine")),
        f"Histograms of cosines of {' and '.join(next(iter(panels.values())))}, a panel for each of "
        f"{', '.join(panels)}.",
    )


def pair_measures(material: Material) -> Section:
    """Alignment and uniformity side by side, and how well paraphrases and random pairs come apart."""
    pairs = _pairs(material)
    lines, numbers = [], {}
    for name, cloud in material.clouds.items():
        alike, random = pairs.cosines[name][pairs.alike], random_cosines(cloud)
        # Of unit rows |u - v|^2 is 2 - 2 cos.
        row = {
            "alignment": float((2 - 2 * alike).mean()),
            "uniformity": uniformity(cloud),
            "separation": separation(alike, random),
        }
        numbers[name] = row
        lines.append((name, *(f"{value:.3f}" for value in row.values())))
    apart = {name: row["separation"] for name, row in numbers.items()}
    return Section(
        "Calibration lowers uniformity (evenly spread) and often raises alignment (paraphrases farther apart), so "
        f"neither is read alone; a paraphrase is more similar than a random pair with probability {listed(apart, 3)}.",
        {"systems": numbers, "pairs": pairs.name, "paraphrases": int(pairs.alike.sum()), "rule": pairs.rule},
        grid=Grid(("system", "alignment", "uniformity", "separation"), tuple(lines)),
    )


def edit_distances(material: Material) -> Section:
    """Does a system find pairs similar because they share words?"""
    pairs = _pairs(material)
    follows = {name: spearman(cosines, pairs.edits.astype(float)) for name, cosines in pairs.cosines.items()}
    gold = ""
    if pairs.gold is not None:
        follows_gold = spearman(pairs.gold, pairs.edits.astype(float))
        gold = f"; the human scores themselves have {follows_gold:.2f}"
    shown = np.random.default_rng(0).permutation(len(pairs.edits))[:DRAWN]
    points = {
        name: np.column_stack([pairs.edits[shown].astype(float), cosines[shown]])
        for name, cosines in pairs.cosines.items()
    }
    return Section(
        "The steeper the cloud falls, the more a similarity is spelling: Spearman's correlation of cosine and edit "
        f"distance, in words, is {listed(follows)} on the {len(pairs.edits):,} pairs of {pairs.name}{gold}.",
        {"spearman": follows, "pairs": pairs.name, "n": len(pairs.edits)},
        lambda plots: plots.scatters(
            points,
            plots.Axis("edit distance in words"),
            plots.Axis("cosine"),
            None if pairs.gold is None else pairs.gold[shown],
            "human score",
        ),
        f"Cosine against edit distance of pairs of sentences, a panel for each of {', '.join(points)}.",
    )


def score_curve(material: Material) -> Section:
    """What does a cosine of so much mean?"""
    pairs = _pairs(material)
    curves = {}
    for name, cloud in material.clouds.items():
        if pairs.gold is None:
            alike = pairs.cosines[name][pairs.alike]
            random = random_cosines(cloud, len(alike))
            scores, target = np.concatenate([alike, random]), np.repeat([1.0, 0.0], [len(alike), len(random)])
        else:
            scores, target = pairs.cosines[name], (pairs.gold - pairs.gold.min()) / np.ptp(pairs.gold)
        curves[name] = calibration_curve(scores, target)
    middle = {name: crossing(*curve) for name, curve in curves.items()}
    told = ", ".join(f"{'none' if value is None else f'{value:.2f}'} {name}" for name, value in middle.items())
    meaning = (
        "probability that the pair is a paraphrase, were half of all pairs"
        if pairs.gold is None
        else "mean human score, over its range"
    )
    return Section(
        f"Where a line crosses one half stands the cosine to decide by: {told}. The height is the {meaning} "
        f"({pairs.name}).",
        {
            "curves": {name: {"cosine": a.tolist(), "meaning": b.tolist()} for name, (a, b) in curves.items()},
            "half": middle,
        },
        lambda plots: plots.curves(curves, plots.Axis("cosine"), plots.Axis(meaning.partition(",")[0])),
        f"The {meaning} by cosine, a line for each of {', '.join(curves)}.",
    )


def scores(material: Material) -> Section:
    """How good the systems are on the pairs, with intervals."""
    found = material.scores
    assert found is not None, "the section needs them"
    told = ", ".join(
        f"{100 * value:.1f} ({100 * low:.1f} to {100 * high:.1f}) {name}"
        for name, (value, low, high) in found.rows.items()
    )
    scaled = {name: (100 * value, 100 * low, 100 * high) for name, (value, low, high) in found.rows.items()}
    return Section(
        "Systems whose bars do not overlap can be told apart, others only by a paired test (bertflow evaluate): "
        f"{found.metric} x 100, with 95 % intervals, is {told}.",
        {"metric": found.metric, "values": {name: list(row) for name, row in found.rows.items()}},
        lambda plots: plots.intervals(scaled, plots.Axis(f"{found.metric} x 100")),
        f"{found.metric} of {', '.join(found.rows)}, each a dot with its 95 % interval.",
    )


def calibration_curve(scores: Float64, target: Float64, bins: int = BINS) -> tuple[Float64, Float64]:
    """Mean score and mean target in bins of equal size by rising score, at most ``bins``; (b,), (b,)."""
    parts = np.array_split(np.argsort(scores, kind="stable"), min(bins, len(scores)))
    return np.array([scores[rows].mean() for rows in parts]), np.array([target[rows].mean() for rows in parts])


def crossing(score: Float64, meaning: Float64) -> float | None:
    """The lowest score at which the meaning rises through one half, between the points; None if it never does."""
    for (left, low), (right, high) in pairwise(zip(score.tolist(), meaning.tolist(), strict=True)):
        if low < 0.5 <= high:
            return float(left + (right - left) * (0.5 - low) / (high - low))
    return None


def _pairs(material: Material) -> PairCosines:
    assert material.pairs is not None, "the section needs them"
    return material.pairs
