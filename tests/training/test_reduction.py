import numpy as np
import pytest
from scipy import stats

from bertflow.encoder.transformer import TransformerEncoder
from bertflow.moments import Moments
from bertflow.training.auto import Directions, effective_rank, kept_directions, participation_ratio, plain_moments
from bertflow.training.recipe import PRESETS, resolve


def cloud(*deviations):
    """Rows whose covariance is exactly that of these deviations."""
    return Moments.of(np.concatenate([np.diag(deviations), -np.diag(deviations)]))


ISOTROPIC, SPREAD, STEEP_ONE = cloud(*[1] * 80), cloud(*np.linspace(1, 0.5, 80)), cloud(*np.geomspace(1, 1e-3, 80))


@pytest.mark.parametrize(
    ("name", "changes", "plain", "kept"),
    [
        ("similarity-2", {}, SPREAD, Directions(20)),  # a quarter
        ("search-2", {}, SPREAD, Directions(80, banded=True)),
        ("both-2", {}, SPREAD, Directions(80, banded=True)),
        *((name, {}, STEEP_ONE, Directions(80)) for name in PRESETS),
        *((name, {"n_components": "all"}, SPREAD, Directions(80)) for name in PRESETS),
        ("paper-tf", {}, SPREAD, Directions(80)),
        ("paper-text", {}, SPREAD, Directions(80)),
        *(("default", {"n_components": wanted}, SPREAD, Directions(7)) for wanted in (7, np.int64(7))),
        ("search-2", {}, ISOTROPIC, Directions(80, banded=True)),
        ("default", {"n_components": "all"}, ISOTROPIC, Directions(80)),
    ],
)
def test_what_a_recipe_keeps(name, changes, plain, kept):
    assert kept_directions(resolve(name, changes), 80, plain) == kept


def test_the_effective_rank_is_that_of_the_entropy_of_the_spectrum():
    x = np.random.default_rng(0).normal(size=(300, 5)) * [5, 3, 1, 1, 0]
    variances = np.linalg.eigvalsh(np.cov(x.T, bias=True))
    assert effective_rank(Moments.of(x)) == pytest.approx(np.exp(stats.entropy(variances[1:])))


def test_the_participation_ratio_is_that_of_the_eigenvalues():
    x = np.random.default_rng(0).normal(size=(300, 5)) * [5, 3, 1, 1, 0.1]
    variances = np.linalg.eigvalsh(np.cov(x.T, bias=True))
    assert participation_ratio(Moments.of(x)) == pytest.approx(variances.sum() ** 2 / (variances**2).sum())


def test_a_pooling_by_frequency_is_judged_by_the_plain_mean_of_its_layers(tiny_bert):
    text = ["the dog runs", "a cat sleeps in the house", "birds sing", "the man eats", "a red bird"]
    counted = TransformerEncoder(tiny_bert, pooling="soft-sif(1,2)").count_tokens(text)
    plain = TransformerEncoder(tiny_bert, pooling="mean(1,2)")
    np.testing.assert_allclose(plain_moments(counted, text).scatter, Moments.of(plain.encode(text)).scatter, rtol=1e-4)


def test_another_pooling_is_judged_by_itself(tiny_bert):
    assert plain_moments(TransformerEncoder(tiny_bert, pooling="mean(1,2)"), ["the dog"]) is None
    assert plain_moments(None, None) is None
