import gzip
import json

import numpy as np
import pytest
from scipy.stats import ks_2samp, kstest, multivariate_normal

from bertflow.calibration.closed_forms import Center, Standardize, Whitening
from bertflow.calibration.flow import FlowCalibrator
from bertflow.data.docstrings import docstring_sentences
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.errors import DataError, UsageError
from bertflow.scoring.domain import DomainCheck, auroc

MIX = np.random.default_rng(5).normal(size=(6, 6))


def text(n, seed=0, shift=0.0):
    return np.random.default_rng(seed).normal(size=(n, 6)) @ MIX + 1 + shift


@pytest.fixture(scope="module")
def check():
    return DomainCheck().fit(text(2000), text(800, seed=1))


def test_the_log_likelihood_is_that_of_scipy_on_rows_of_length_one(check):
    unit = [rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (text(2000), text(50, seed=2))]
    theirs = multivariate_normal(unit[0].mean(0), np.cov(unit[0].T, bias=True)).logpdf(unit[1])
    np.testing.assert_allclose(check.log_likelihood(text(50, seed=2)), theirs, rtol=1e-9)
    np.testing.assert_allclose(check.log_likelihood(7 * text(50, seed=2)), theirs, rtol=1e-9)


def test_without_scaling_it_is_the_density_itself():
    whitening = Whitening().fit(text(500))
    plain = DomainCheck(whitening, unit=False).hold(text(100, seed=1))
    np.testing.assert_array_equal(plain.log_likelihood(text(9, seed=2)), whitening.score_samples(text(9, seed=2)))


def test_percentiles_of_ordinary_text_are_uniform(check):
    percentiles = check.percentile(check.log_likelihood(text(1000, seed=3)))
    assert kstest(percentiles / 100, "uniform").pvalue > 0.001


def test_a_percentile_is_a_count_and_never_0(check):
    held_out = check.held_out_
    for value in (-1e9, held_out[0], held_out[10], 1e9):
        assert check.percentile(value) == pytest.approx(100 * (1 + (held_out <= value).sum()) / (1 + len(held_out)))
    assert check.percentile(-1e9) > 0


def test_the_same_text_does_not_drift(check):
    found = [check.drift(check.log_likelihood(text(200, seed=seed))) for seed in range(10, 30)]
    assert sum(drift.drifted for drift in found) <= 1
    assert np.mean([drift.auroc for drift in found]) == pytest.approx(0.5, abs=0.03)


def test_another_text_drifts(check):
    x = text(200, seed=9, shift=3.0)
    batch = check.log_likelihood(x)
    drift = check.drift(batch, x)
    theirs = ks_2samp(check.held_out_, batch)
    assert (drift.p_value, drift.ks) == pytest.approx((theirs.pvalue, theirs.statistic))
    assert drift.shift == pytest.approx((batch.mean() - check.held_out_.mean()) / check.held_out_.std())
    assert drift.drifted
    assert drift.refit
    assert str(drift).startswith("Refit now? yes, ")


@pytest.mark.parametrize(
    "density", [Whitening(), Standardize(), FlowCalibrator(n_components=4, trainer={"max_steps": 3})], ids=type
)
def test_what_is_loaded_says_the_same(density, tmp_path):
    check = DomainCheck(density).fit(text(300).astype(np.float32), text(100, seed=1).astype(np.float32))
    check.save(tmp_path)
    loaded = DomainCheck.load(tmp_path, None)
    x = text(20, seed=2).astype(np.float32)
    np.testing.assert_array_equal(loaded.log_likelihood(x), check.log_likelihood(x))
    np.testing.assert_array_equal(loaded.held_out_, check.held_out_)
    assert loaded.drift(loaded.log_likelihood(x), x) == check.drift(check.log_likelihood(x), x)


def test_another_encoder_is_refused(tiny_bert, tmp_path):
    words = ["the", "man", "dog", "cat", "runs", "sleeps", "big", "red"]
    rng = np.random.default_rng(0)
    sentences = [" ".join(rng.choice(words, 5)) for _ in range(150)]
    one, other = (TransformerEncoder(tiny_bert, pooling=pooling, device="cpu") for pooling in ("mean(1)", "mean(2)"))
    DomainCheck().fit_sentences(one, sentences[:90], sentences[90:]).save(tmp_path)
    assert len(DomainCheck.load(tmp_path, one).held_out_) == 60
    with pytest.raises(DataError, match=r"with pooling 'mean\(1\)'.* with pooling 'mean\(2\)'"):
        DomainCheck.load(tmp_path, other)


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda _: DomainCheck(Center()), UsageError,
         "A domain check needs a density, which Center does not have. Use Whitening, Standardize or FlowCalibrator."),
        (lambda _: DomainCheck().fit(text(100), text(49)), DataError,
         "A domain check needs at least 50 held-out sentences, got 49. Give more text."),
        (lambda check: check.drift([0.0]), DataError,
         "Drift is a matter of several sentences, got 1. Give at least 2."),
        (lambda _: DomainCheck().percentile([0.0]), UsageError,
         "This DomainCheck is not fitted. Call fit with embeddings of held-out text first."),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_refused(check, call, kind, message, refusal):
    assert refusal(call, check, error=kind) == message


OTHERS = "{}: its coordinates are not those of its density. Fit the domain check again."


@pytest.mark.parametrize(
    ("part", "message"),
    [
        *(({"coordinates": one}, OTHERS) for one in (
            {"mean": [0.0], "variance": [1.0] * 6}, {"mean": [0.0] * 6, "variance": [1.0] * 7},
            {"mean": [0.0] * 6, "variance": [-1.0] * 6})),
        ({"held_out": None}, "{} is not a complete domain check: it has no held_out. Fit the domain check again."),
    ],
)  # fmt: skip
def test_a_record_that_is_damaged_or_of_another_density_is_refused(check, tmp_path, part, message, refusal):
    check.save(tmp_path)
    path = tmp_path / "domain" / "domain.json"
    record = json.loads(path.read_text()) | part
    path.write_text(json.dumps({name: one for name, one in record.items() if one and name != "record_sha256"}))
    assert refusal(DomainCheck.load, tmp_path, None) == message.format(path)


@pytest.fixture(scope="module")
def corpora(minilm, shared_data):
    """Real sentences of three kinds, by inner layers and by the tuned last one."""
    with gzip.open(shared_data / "text" / "commonvoice_en_sentences.txt.gz", "rt", encoding="utf-8") as file:
        spoken = [line.strip() for line in file if line.strip()]
    with gzip.open(shared_data / "text" / "wikisplit_tune.tsv.gz", "rt", encoding="utf-8") as file:
        written = [line.split("\t")[0] for line in file]
    encoder, rng = TransformerEncoder(minilm, pooling="mean(6)", max_length=128, device="cpu"), np.random.default_rng(0)
    sizes = {"spoken": (spoken, 3000), "wiki": (written, 400), "docstrings": (docstring_sentences(), 400)}
    return {
        name: encoder.encode_poolings([sentences[row] for row in rng.permutation(len(sentences))[:n]],
                                      ["mean(1,2)", "mean(6)"])
        for name, (sentences, n) in sizes.items()
    }  # fmt: skip


def separated(corpora, pooling, density, unit):
    """AUROC of spoken sentences against both other kinds."""
    spoken = corpora["spoken"][pooling]
    check = DomainCheck(density, unit).fit(spoken[:2400], spoken[2400:])
    return [auroc(check.held_out_, check.log_likelihood(corpora[name][pooling])) for name in ("wiki", "docstrings")]


@pytest.mark.slow
@pytest.mark.parametrize("density", [Whitening, FlowCalibrator])
@pytest.mark.parametrize("pooling", ["mean(1,2)", "mean(6)"])
def test_two_real_corpora_are_told_apart(density, pooling, corpora):
    assert min(separated(corpora, pooling, density(), unit=True)) > 0.83


@pytest.mark.slow
def test_without_scaling_the_tuned_encoder_takes_wikipedia_for_more_ordinary_than_speech(corpora):
    assert separated(corpora, "mean(6)", Whitening(), unit=False)[0] < 0.4
