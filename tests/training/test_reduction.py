import numpy as np
import pytest
from scipy import stats

from bertflow.encoder.transformer import TransformerEncoder
from bertflow.errors import UsageError
from bertflow.moments import Moments
from bertflow.training.recipe import PRESETS, resolve
from bertflow.training.rows import (
    CALIBRATED,
    effective_rank,
    is_spread,
    kept_directions,
    participation_ratio,
    plain_moments,
    reason_to_leave,
)


def cloud(*deviations):
    """Rows whose covariance is exactly that of these deviations."""
    return Moments.of(np.concatenate([np.diag(deviations), -np.diag(deviations)]))


SPREAD, STEEP_ONE = cloud(*[1] * 80), cloud(*np.geomspace(1, 1e-3, 80))


@pytest.mark.parametrize(("rank", "kept"), [(2, 1), (64, 16), (383, 95), (768, 192)])
def test_of_a_spectrum_that_is_spread_similarity_keeps_a_quarter(rank, kept):
    assert kept_directions(PRESETS["similarity-2"], rank, True) == kept
    assert kept_directions(PRESETS["search-2"], rank, True) == rank


@pytest.mark.parametrize("name", ["similarity-2", "search-2", "both-2", "paper-tf", "paper-text"])
def test_of_a_steep_spectrum_all_is_kept(name):
    assert kept_directions(PRESETS[name], 384, False) == 384


@pytest.mark.parametrize("name", ["similarity-2", "search-2", "both-2"])
def test_the_plain_mean_says_whether_a_spectrum_is_spread(name):
    assert is_spread(PRESETS[name], SPREAD)
    assert not is_spread(PRESETS[name], STEEP_ONE)
    assert not is_spread(resolve(name, {"n_components": "all"}), SPREAD)


@pytest.mark.parametrize("name", ["paper-tf", "paper-text"])
def test_the_paper_keeps_all(name):
    assert not is_spread(PRESETS[name], SPREAD)


@pytest.mark.parametrize("spread", [False, True])
@pytest.mark.parametrize(("wanted", "kept"), [(7, 7), (np.int64(7), 7)])
def test_what_is_asked_for_is_kept(wanted, kept, spread):
    assert kept_directions(resolve("default", {"n_components": wanted}), 4096, spread) == kept


@pytest.mark.parametrize(("name", "left"), [("similarity-2", True), ("search-2", False)])
def test_what_looks_calibrated_is_left_alone_for_similarity_only(name, left):
    assert bool(reason_to_leave(PRESETS[name], CALIBRATED + 1)) == left
    assert reason_to_leave(PRESETS[name], CALIBRATED) is None


def test_the_effective_rank_is_that_of_the_entropy_of_the_spectrum():
    x = np.random.default_rng(0).normal(size=(300, 5)) * [5, 3, 1, 1, 0]
    variances = np.linalg.eigvalsh(np.cov(x.T, bias=True))
    assert effective_rank(Moments.of(x)) == pytest.approx(np.exp(stats.entropy(variances[1:])))


def test_another_word_is_refused():
    with pytest.raises(UsageError) as error:
        resolve("default", {"n_components": "most"})
    assert str(error.value) == "flow.n_components should be a valid integer or 'auto' or 'all', got 'most'."


def test_the_participation_ratio_is_that_of_the_eigenvalues():
    x = np.random.default_rng(0).normal(size=(300, 5)) * [5, 3, 1, 1, 0.1]
    variances = np.linalg.eigvalsh(np.cov(x.T, bias=True))
    assert participation_ratio(Moments.of(x)) == pytest.approx(variances.sum() ** 2 / (variances**2).sum())


def test_an_isotropic_cloud_takes_part_in_all_directions():
    x = np.concatenate([np.eye(6), -np.eye(6)])
    assert participation_ratio(Moments.of(x)) == pytest.approx(6)


def test_a_pooling_by_frequency_is_judged_by_the_plain_mean_of_its_layers(tiny_bert):
    text = ["the dog runs", "a cat sleeps in the house", "birds sing", "the man eats", "a red bird"]
    counted = TransformerEncoder(tiny_bert, pooling="soft-sif(1,2)").count_tokens(text)
    plain = TransformerEncoder(tiny_bert, pooling="mean(1,2)")
    np.testing.assert_allclose(plain_moments(counted, text).scatter, Moments.of(plain.encode(text)).scatter, rtol=1e-4)


def test_another_pooling_is_judged_by_itself(tiny_bert):
    assert plain_moments(TransformerEncoder(tiny_bert, pooling="mean(1,2)"), ["the dog"]) is None
    assert plain_moments(None, None) is None
