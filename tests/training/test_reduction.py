import numpy as np
import pytest
from scipy import stats

from bertflow.encoder.transformer import TransformerEncoder
from bertflow.errors import UsageError
from bertflow.moments import Moments
from bertflow.training.recipe import PRESETS, resolve
from bertflow.training.rows import (
    KEPT,
    STEEP,
    effective_rank,
    kept_directions,
    participation_ratio,
    plain_spread,
)


@pytest.mark.parametrize(("rank", "kept"), [(2, 2), (KEPT, KEPT), (KEPT + 1, KEPT), (4096, KEPT)])
def test_of_a_spectrum_that_is_spread_the_default_keeps_one_number_of_directions(rank, kept):
    assert kept_directions(PRESETS["default"], rank, STEEP + 1) == kept


def test_of_a_steep_spectrum_the_default_keeps_all():
    assert kept_directions(PRESETS["default"], 384, STEEP) == 384


@pytest.mark.parametrize("spectrum", [1, 384])
@pytest.mark.parametrize("name", ["paper-tf", "paper-text"])
def test_the_paper_keeps_all(name, spectrum):
    assert kept_directions(PRESETS[name], 768, spectrum) == 768


@pytest.mark.parametrize("spectrum", [1, 384])
@pytest.mark.parametrize(("wanted", "kept"), [(7, 7), (np.int64(7), 7), ("all", 4096)])
def test_what_is_asked_for_is_kept(wanted, kept, spectrum):
    assert kept_directions(resolve("default", {"n_components": wanted}), 4096, spectrum) == kept


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
    assert plain_spread(counted, text) == pytest.approx(participation_ratio(Moments.of(plain.encode(text))))


def test_another_pooling_is_judged_by_itself(tiny_bert):
    assert plain_spread(TransformerEncoder(tiny_bert, pooling="mean(1,2)"), ["the dog"]) is None
    assert plain_spread(None, None) is None
