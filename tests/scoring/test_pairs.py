"""``bertflow.score`` from Python: an open encoder, pairs and text as lists."""

import json

import numpy as np
import pytest

import bertflow
from bertflow.errors import UsageError
from bertflow.similarity import unit_rows

from ..texts import WITH_THE, drawn

PAIRS = [("the dog runs", "the dog runs"), ("a cat", "the big house"), ("the man eats", "the bird")]


def sentences(n, seed):
    return list(dict.fromkeys(drawn(WITH_THE, n, seed, 4, 10)))


@pytest.fixture(scope="module")
def encoder(tiny_bert):
    return bertflow.TransformerEncoder(tiny_bert, device="cpu")


@pytest.fixture(scope="module")
def found(encoder):
    return bertflow.score(encoder, PAIRS, fit_on=sentences(300, 0), false_match_rate=0.1)


def test_the_numbers_are_attributes(found, encoder):
    x, y = (encoder.encode(list(side)).astype(np.float64) for side in zip(*PAIRS, strict=True))
    cosines = (x * y).sum(1) / np.linalg.norm(x, axis=1) / np.linalg.norm(y, axis=1)
    np.testing.assert_allclose(found.cosines, cosines, atol=1e-6)
    np.testing.assert_allclose(found.percentiles, found.scores.percentile(found.cosines))
    assert found.matches.tolist() == (found.cosines >= found.threshold.value).tolist()
    assert found.probabilities is None


def test_it_is_shown_and_saved(found, tmp_path):
    assert repr(found).startswith("<ScoredPairs: Match: cosine ")
    assert "| the dog runs" in found.to_markdown()
    record = json.loads((found.save(tmp_path) / "scores.json").read_text())
    assert [row["sentence1"] for row in record["pairs"]] == [first for first, _ in PAIRS]
    assert record["threshold"]["rate"] == 0.1


def test_text_can_be_a_list(encoder):
    report = bertflow.score(encoder, domain=sentences(60, 3), fit_on=sentences(400, 0)).domain
    assert (len(report.percentiles), report.drift.n) == (len(report.sentences), len(report.sentences))


def test_an_open_encoder_has_no_scores_of_its_own(encoder, refusal):
    assert refusal(bertflow.score, encoder, PAIRS, error=UsageError) == (
        "The encoder holds no scores.json. Fit the scores to your text: add --fit_on TEXT."
    )  # fmt: skip


def alike(n):
    """Texts that resemble each other."""
    return [f"the {' '.join(('red', 'big')[int(bit)] for bit in f'{at:07b}')} dog" for at in range(n)]


def test_a_threshold_that_random_pairs_of_the_scored_texts_pass_is_said_not_to_hold(encoder):
    pairs = [(text, text) for text in alike(120)]
    scored = bertflow.score(encoder, pairs, fit_on=sentences(300, 0), false_match_rate=0.01)
    x, y = (unit_rows(encoder.encode(list(side))) for side in zip(*pairs, strict=True))
    of_others = (x @ y.T)[~np.eye(len(pairs), dtype=bool)]
    share = (of_others >= scored.threshold.value).mean()
    assert 0.5 < share < 0.99
    assert scored.at_random.share == pytest.approx(share, abs=0.15)
    assert scored.as_dict()["passing_at_random"] == scored.at_random.share
    said = "The threshold does not hold for these texts: paired at random, "
    (line,) = [line for line in map(str, scored.parts()) if line.startswith(said)]
    assert line.endswith(" of 120 pairs pass, and not 1 %. Fit it on such texts: --fit_on FILE.")
    of_queries = bertflow.score(
        encoder, pairs, fit_on=sentences(300, 0), queries=sentences(100, 5), false_match_rate=0.01
    )
    assert any(str(line).endswith("Fit it on such texts: --fit_on FILE --queries FILE.") for line in of_queries.parts())


def test_texts_like_those_of_the_threshold_pass_it_as_often_as_they_should(encoder):
    pairs = list(zip(sentences(150, 1), sentences(150, 2), strict=False))
    scored = bertflow.score(encoder, pairs, fit_on=sentences(300, 0), false_match_rate=0.1)
    assert scored.at_random.n > 100
    assert 0.02 < scored.at_random.share < 0.3
    assert not scored.at_random.clear


FEW_OR_OF_ONE = {"few": zip(alike(40), alike(40)[1:], strict=False), "of one": (("a dog", text) for text in alike(120))}


@pytest.mark.parametrize("pairs", FEW_OR_OF_ONE.values(), ids=FEW_OR_OF_ONE)
def test_few_pairs_or_one_text_against_many_make_no_random_pairs(encoder, pairs):
    assert bertflow.score(encoder, list(pairs), fit_on=sentences(300, 0), false_match_rate=0.1).at_random is None
