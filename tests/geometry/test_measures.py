"""Every measure of a cloud against a slow twin that follows its definition word by word."""

import math

import numpy as np
import pytest
from scipy import stats

from bertflow.geometry.cloud import ROWS, Cloud, K, nearest
from bertflow.geometry.fitted import LEVELS, length_quantiles, length_spread
from bertflow.geometry.measures import MEASURES, measured, of_gaussian
from bertflow.geometry.pairs import alignment
from bertflow.similarity import SIMILARITIES
from bertflow.store.store import EmbeddingStore


def cone(n=60, dim=8, seed=0):
    """A narrow, stretched cloud, as raw embeddings are."""
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, dim)) * np.geomspace(3, 0.1, dim) + np.linspace(2, 0, dim)


def pairs_of(n):
    return [(i, j) for i in range(n) for j in range(n) if i != j]


def cosine(a, b):
    return a @ b / math.sqrt(a @ a) / math.sqrt(b @ b)


def slow_largest_share(x):
    units = [row / np.linalg.norm(row) for row in x]
    return np.mean([units[i] * units[j] for i, j in pairs_of(len(x))], axis=0).max()


def slow_partition(x):
    scaled = x / math.sqrt(np.mean([row @ row for row in x]))
    axes = np.linalg.svd(scaled)[2]
    z = [sum(math.exp(sign * (axis @ row)) for row in scaled) for axis in axes for sign in (1, -1)]
    return min(z) / max(z)


def slow_iso_score(x):
    """As published: rotate, scale the variances to length sqrt(d), take the distance to the vector of ones."""
    d = x.shape[1]
    variance = np.linalg.eigvalsh(np.cov(x.T))
    scaled = variance * math.sqrt(d) / np.linalg.norm(variance)
    defect = np.linalg.norm(scaled - 1) / math.sqrt(2 * (d - math.sqrt(d)))
    return ((d - defect**2 * (d - math.sqrt(d))) ** 2 - d) / (d * (d - 1))


def shares(x):
    variance = np.linalg.svd(x - x.mean(0), compute_uv=False) ** 2
    return variance / variance.sum()


def slow_outliers(x):
    sizes = [math.sqrt(np.mean(column**2)) for column in x.T]
    return sum(size > np.mean(sizes) + 3 * np.std(sizes) for size in sizes)


def slow_uniformity(x):
    units = [row / np.linalg.norm(row) for row in x]
    distances = [np.linalg.norm(units[i] - units[j]) for i, j in pairs_of(len(x))]
    return math.log(np.mean([math.exp(-2 * distance**2) for distance in distances]))


def slow_occurrences(x):
    counts = np.zeros(len(x))
    for i in range(len(x)):
        others = sorted((j for j in range(len(x)) if j != i), key=lambda j: -cosine(x[i], x[j]))
        counts[others[:K]] += 1
    return counts


TWINS = {
    "mean_cosine": lambda x: np.mean([cosine(x[i], x[j]) for i, j in pairs_of(len(x))]),
    "largest_cosine_share": slow_largest_share,
    "mean_length_share": lambda x: np.linalg.norm(sum(x)) / math.sqrt(len(x) * sum(row @ row for row in x)),
    "partition_isotropy": slow_partition,
    "iso_score": slow_iso_score,
    "participation_ratio": lambda x: 1 / sum(shares(x) ** 2),
    "effective_rank": lambda x: math.exp(stats.entropy(shares(x))),
    "top_1_share": lambda x: shares(x)[0],
    "top_10_share": lambda x: sum(shares(x)[:10]),
    "outlier_dimensions": slow_outliers,
    "uniformity": slow_uniformity,
    "hub_skewness": lambda x: stats.skew(slow_occurrences(x)),
    "orphans": lambda x: np.mean(slow_occurrences(x) == 0),
}
NEARLY = {
    "partition_isotropy": 0.02,
    "participation_ratio": 0.3,
    "effective_rank": 0.1,
    "top_10_share": 0.03,
    "outlier_dimensions": 2,
    "uniformity": 0.02,
    "hub_skewness": 0.8,
}
"""How near a Gaussian comes; the bounds of shares and neighbors drawn at random are not exact values."""


def test_every_measure_has_a_twin_and_comes_by_name():
    assert TWINS.keys() == MEASURES.keys() == measured(Cloud(cone())).keys() == of_gaussian(60, 8).keys()
    assert all(str(K) in MEASURES[name].of.__doc__ for name in ("hub_skewness", "orphans"))


@pytest.mark.parametrize("name", MEASURES)
@pytest.mark.parametrize("x", [cone(), cone(40, 12, seed=1) @ np.diag([*[1] * 11, 60.0])], ids=["cone", "outlier"])
def test_every_measure_is_what_its_twin_says(name, x):
    assert MEASURES[name].of(Cloud(x)) == pytest.approx(TWINS[name](x), abs=1e-10)


@pytest.mark.parametrize("name", MEASURES)
def test_a_gaussian_has_the_value_that_the_table_says(name):
    n, dim = 3000, 48
    found = MEASURES[name].of(Cloud(np.random.default_rng(0).normal(size=(n, dim))))
    expected = MEASURES[name].gaussian(n, dim)
    assert found == pytest.approx(expected, abs=NEARLY.get(name, 0.01))


@pytest.mark.parametrize("name", MEASURES)
def test_scale_does_not_matter(name):
    x = cone()
    assert MEASURES[name].of(Cloud(x)) == pytest.approx(MEASURES[name].of(Cloud(1e4 * x)), rel=1e-9, abs=1e-12)


def test_a_store_is_read_by_rows_in_blocks(monkeypatch):
    class Stored(EmbeddingStore):
        """Rows that can only be asked for by number."""

        def __init__(self, x):
            self.x = x

        def __len__(self):
            return len(self.x)

        def rows(self, indices):
            return self.x[indices].astype(np.float32)

    x = cone(30).astype(np.float32)
    whole = measured(Cloud(x))
    monkeypatch.setattr("bertflow.geometry.cloud.ROWS", 11)
    assert measured(Cloud(Stored(x))) == pytest.approx(whole, rel=1e-6, abs=1e-9)


def test_measures_of_all_pairs_look_at_a_seeded_sample(monkeypatch):
    monkeypatch.setattr("bertflow.geometry.cloud.SAMPLE", 20)
    x = cone(100)
    cloud, again = Cloud(x), Cloud(x)
    assert len(cloud.sample) == 20
    np.testing.assert_array_equal(cloud.sample, again.sample)
    assert len(cloud.occurrences) == 20
    assert cloud.moments.n == 100


def test_iso_score_needs_the_reference_of_its_sample():
    x, row = np.random.default_rng(0).normal(size=(100, 50)), MEASURES["iso_score"]
    assert row.of(Cloud(x)) == pytest.approx(row.gaussian(100, 50), abs=0.02)
    assert row.gaussian(2758, 768) == pytest.approx(0.782, abs=5e-4)  # 1 / (1 + d/n)


@pytest.mark.parametrize("by", ["dot", "euclidean"])
def test_nearest_are_those_that_a_sort_finds(by):
    x = cone(30)
    closeness = x @ x.T if by == "dot" else -np.linalg.norm(x[:, None] - x, axis=2)
    np.fill_diagonal(closeness, -np.inf)
    found, values = nearest(x, 4, by)
    np.testing.assert_array_equal(found, np.argsort(-closeness, axis=1)[:, :4])
    np.testing.assert_allclose(values, np.sort(closeness, axis=1)[:, ::-1][:, :4], atol=1e-9)


def test_hubs_by_hand(monkeypatch):
    monkeypatch.setattr("bertflow.geometry.cloud.K", 1)
    # Four rows on a line around a hub: with k = 1 the hub is the nearest of three, its own nearest is row 1.
    angles = np.radians([0, 10, -11, 12])
    assert Cloud(np.column_stack([np.cos(angles), np.sin(angles)])).occurrences.tolist() == [1, 2, 0, 1]


def test_alignment_is_the_mean_squared_distance_on_the_sphere():
    x, y = cone(10), cone(10, seed=1)
    slow = np.mean(
        [np.linalg.norm(a / np.linalg.norm(a) - b / np.linalg.norm(b)) ** 2 for a, b in zip(x, y, strict=True)]
    )
    assert alignment(SIMILARITIES["cosine"].paired(x, y)) == pytest.approx(slow)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.ones((1, 3)), "A cloud needs at least 2 embeddings, got 1. Give more sentences."),
        (np.ones((4, 3)), "All 4 rows are equal, so they have no spectrum. Give different sentences."),
        (np.array([[1.0, 2.0]] * (ROWS + 1) + [[0.0, 0.0]]),
         f"Cosine needs embeddings of length above zero, but row {ROWS + 1} is all zeros. Leave it out."),
        (np.array([[1.0, 2.0], [np.nan, 1.0], [2.0, 1.0]]), "Embeddings must be finite, but row 1, column 0 holds nan. "
         "Look for a half-precision overflow in the encoder, or leave the row out."),
        (np.arange(6.0)[:, None] + 1,
         "IsoScore needs embeddings of at least 2 dimensions, got 1. Keep more directions."),
        (cone(5), "The 10 nearest of 5 embeddings are wanted. Give at least 11 sentences."),
    ],
)  # fmt: skip
def test_what_has_no_measures_is_refused(x, message, refusal):
    assert refusal(lambda: measured(Cloud(x))).lower() == message.lower()


def test_a_gaussian_lies_on_the_diagonal():
    expected, observed = length_quantiles(np.random.default_rng(0).normal(size=(20_000, 32)))
    np.testing.assert_allclose(observed, expected, atol=0.02)
    assert length_spread(expected, observed) == pytest.approx(1, abs=0.03)


def test_quantiles_are_those_of_the_squared_lengths():
    z = np.random.default_rng(0).standard_t(3, size=(500, 4))
    expected, observed = length_quantiles(z)
    lengths = sorted(sum(value**2 for value in row) / 4 for row in z)
    assert observed[49] == pytest.approx(np.median(lengths))
    assert stats.chi2(4).cdf(4 * expected) == pytest.approx(LEVELS)
    assert length_spread(expected, observed) > 2  # heavy tails
