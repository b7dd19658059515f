"""Claims about a cloud of sentence embeddings: its cone, its outliers, its hubs, and what frequency does to it.

Looked at are 3,000 of the test sentences by the mean of a subject's layers; maps are fitted on all of them.
"""

import functools

import numpy as np
from claims_bench import Bench, Float64, chosen_by, estimated, ranked_by
from claims_rules import Measured
from claims_systems import FORMS, PARTS
from closed_forms import applied
from numpy.typing import NDArray

from bertflow.evaluation.significance import Figure
from bertflow.geometry.cloud import Cloud, nearest
from bertflow.geometry.frequency import explained_by, fifths, log_frequencies, plane
from bertflow.geometry.measures import hub_skewness, iso_score, mean_cosine
from bertflow.moments import Moments

LOOKED_AT, ALL_PAIRS = 3_000, 1_500
"""Sentences; and where every pair of them is in memory."""
OUTLIERS = 3
PARAPHRASE = 4.0
"""Gold score of STS-B, of 5, from which a pair counts as a paraphrase."""
NEIGHBORS = 5
COMPARED = ("raw", "center", "abtt(3)", "whitening", "whitening(64)")
"""Closed forms of each pooling, among which one is chosen by isotropy."""


def looked_at(bench: Bench, part: str, form: str = "raw", n: int = LOOKED_AT) -> tuple[NDArray[np.intp], Cloud]:
    """Some test sentences and their embeddings, calibrated on all of them."""
    subject = PARTS[part]
    x = bench.material.embedded(subject.encoder, "transductive").scored[subject.stand_in.mean]
    fitted = FORMS[form](Moments.of(np.array(x)))
    rows = bench.rows("looked at", len(x), n)
    return rows, Cloud(applied(fitted, x[rows]))


def weighted_coordinates(units: Float64, weights: Float64) -> Float64:
    """What each coordinate adds to the mean cosine of different rows (rows, dim), rows weighing ``weights``."""
    total, squares = weights.sum(1), np.square(weights).sum(1)
    sums = np.square(weights @ units) - np.square(weights) @ np.square(units)
    coordinates: Float64 = sums / (np.square(total) - squares)[:, None]
    return coordinates


def cone(bench: Bench, part: str) -> Measured:
    """Mean cosine."""
    _, cloud = looked_at(bench, part)
    drawn = bench.replicates("cone", cloud.n, lambda w: weighted_coordinates(cloud.sample, w).sum(1))
    value = mean_cosine(cloud)
    return estimated(value, drawn, cloud.n, "sentences", {"mean cosine": value})


def cone_without_mean(bench: Bench, part: str) -> Measured:
    """Share of the mean cosine that centering takes away."""
    _, raw = looked_at(bench, part)
    _, centered = looked_at(bench, part, "center")

    def left(weights: Float64) -> Float64:
        after, before = (weighted_coordinates(cloud.sample, weights).sum(1) for cloud in (centered, raw))
        return 1 - np.abs(after) / before

    before, after = mean_cosine(raw), mean_cosine(centered)
    drawn = bench.replicates("cone", raw.n, left)
    return estimated(1 - abs(after) / before, drawn, raw.n, "sentences", {"raw": before, "centered": after})


def outliers(bench: Bench, part: str) -> Measured:
    """Share of the mean cosine in its largest coordinates, which are chosen on the whole sample."""
    _, cloud = looked_at(bench, part)
    by_coordinate = cloud.cosine_by_coordinate
    top = np.argsort(-by_coordinate)[:OUTLIERS]

    def share(weights: Float64) -> Float64:
        found = weighted_coordinates(cloud.sample, weights)
        return found[:, top].sum(1) / found.sum(1)

    shares = {f"coordinate {at}": by_coordinate[at] / by_coordinate.sum() for at in top}
    drawn = bench.replicates("cone", cloud.n, share)
    return estimated(sum(shares.values()), drawn, cloud.n, "sentences", shares)


def hubs(bench: Bench, part: str) -> Measured:
    """Hub skewness of raw minus that of whitened embeddings."""
    clouds = {form: looked_at(bench, part, form)[1] for form in ("raw", "whitening")}
    counts = {form: cloud.occurrences for form, cloud in clouds.items()}

    def fall(weights: Float64) -> Float64:
        return _skewness(counts["raw"], weights) - _skewness(counts["whitening"], weights)

    skewness = {form: hub_skewness(cloud) for form, cloud in clouds.items()}
    n = len(counts["raw"])
    drawn = bench.replicates("hubs", n, fall)
    return estimated(skewness["raw"] - skewness["whitening"], drawn, n, "sentences", skewness)


def _skewness(counts: NDArray[np.int64], weights: Float64) -> Float64:
    total = weights.sum(1)
    deviations = counts - (weights @ counts / total)[:, None]
    second, third = ((weights * deviations**power).sum(1) / total for power in (2, 3))
    return third / second**1.5


def spread_on_sphere(bench: Bench, part: str) -> Measured:
    """Uniformity of whitened minus that of raw embeddings."""
    clouds = {form: looked_at(bench, part, form, ALL_PAIRS)[1] for form in ("raw", "whitening")}
    kernels = {form: np.exp(4 * cloud.sample @ cloud.sample.T - 4) for form, cloud in clouds.items()}

    def change(weights: Float64) -> Float64:
        squares = np.square(weights).sum(1)
        pairs = {form: np.einsum("rn,rn->r", weights @ kernel, weights) - squares for form, kernel in kernels.items()}
        return np.log(pairs["whitening"] / pairs["raw"])

    values = {form: cloud.uniformity for form, cloud in clouds.items()}
    drawn = bench.replicates("sphere", ALL_PAIRS, change)
    return estimated(values["whitening"] - values["raw"], drawn, ALL_PAIRS, "sentences", values)


def paraphrases_apart(bench: Bench, part: str) -> Measured:
    """Alignment of whitened minus that of raw embeddings, on paraphrases of STS-B."""
    at, pairs = next((at, one) for at, one in enumerate(bench.material.sets) if one.task == "stsb")
    alike = pairs.target >= PARAPHRASE
    # Of unit rows |u - v|^2 = 2 - 2 cos.
    apart = {form: 2 - 2 * bench.similarities(part, form)[at][alike] for form in ("raw", "whitening")}
    change = apart["whitening"] - apart["raw"]
    drawn = bench.means("paraphrases", change)
    return estimated(change.mean(), drawn, len(change), "pairs", {form: x.mean() for form, x in apart.items()})


def rare_sentences_sparser(bench: Bench, part: str) -> Measured:
    """Distance to the nearest, of sentences of rare words minus of frequent ones, over the mean of all."""
    rows, cloud = looked_at(bench, part)
    found = bench.material.sentences
    groups = fifths(log_frequencies([found[row] for row in rows], bench.counts))
    x = cloud.rows(np.arange(cloud.n))
    near = -nearest(x, NEIGHBORS, "euclidean")[1].mean(1)
    rarest, frequent = (near[members] for members in (groups["rarest fifth"], groups["most frequent fifth"]))
    drawn = bench.means("rarest", rarest) - bench.means("most frequent", frequent)
    value = (rarest.mean() - frequent.mean()) / near.mean()
    numbers = {f"{at} ({name})": near[members].mean() for at, (name, members) in enumerate(groups.items(), start=1)}
    return estimated(value, drawn / near.mean(), cloud.n, "sentences", numbers)


def frequency_in_plane(bench: Bench, part: str) -> Measured:
    """Share of the variance of log frequency that the two largest singular directions explain."""
    rows, cloud = looked_at(bench, part)
    found = bench.material.sentences
    frequency = log_frequencies([found[row] for row in rows], bench.counts)
    known = np.isfinite(frequency)
    coordinates, target = plane(cloud)[known], frequency[known]

    drawn = bench.redrawn("plane", len(target), lambda each: explained_by(coordinates[each], target[each]))
    value = explained_by(coordinates, target)
    return estimated(value, drawn, len(target), "sentences", {"raw": value})


def isotropy_ranks(bench: Bench, part: str) -> Measured:
    """Spearman of IsoScore and STS score, over poolings and calibrators of one encoder."""
    return ranked_by(*_isotropic_systems(bench, part))


def isotropy_chooses(bench: Bench, part: str) -> Measured:
    """STS score of the most isotropic system minus that of the best."""
    return chosen_by(*_isotropic_systems(bench, part))


@functools.cache
def _isotropic_systems(bench: Bench, part: str) -> tuple[Float64, Figure]:
    """IsoScore and scores of every pooling with every closed form."""
    subject = PARTS[part]
    by_layer = bench.by_layer(subject.encoder)
    isotropy, systems = [], []
    for pooling in [f"{kind}({k})" for kind in ("mean", "cls") for k in subject.layers if kind == "mean" or k]:
        moments = Moments.of(by_layer[pooling])
        for form in COMPARED:
            z = applied(FORMS[form](moments), by_layer[pooling])
            isotropy.append(iso_score(Cloud(z)))
            systems.append([task.similarities[0] for task in bench.sample.scored_tasks([z])])
    return np.array(isotropy), bench.scores(systems)
