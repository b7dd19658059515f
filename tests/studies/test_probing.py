"""A probe of texts: what an embedding holds is found, and what it does not hold is not."""

from dataclasses import replace

import numpy as np
import pytest

from bertflow.data.labeled import LabeledText
from bertflow.studies.probing import accuracy_of_folds, probe_texts

from ..evaluation.test_sweep import open_encoder, sentences


@pytest.fixture(scope="module")
def labeled():
    text = sentences(60, 7)
    return LabeledText(text, tuple("dog" if "dog" in s.split() else "other" for s in text), "labels.tsv")


def test_a_probe_finds_what_an_embedding_holds(labeled):
    x = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
    x[:, 0] = [10 * (label == "dog") for label in labeled.labels]
    assert accuracy_of_folds(x, labeled.labels, 5, 0).mean() == 1.0


def test_a_probe_does_not_find_what_it_does_not_hold(labeled):
    x = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
    shuffled = np.random.default_rng(1).permutation(labeled.labels)
    majority = max(np.mean(shuffled == label) for label in set(shuffled))
    assert accuracy_of_folds(x, list(shuffled), 5, 0).mean() <= majority + 0.05


def test_every_pooling_is_probed(labeled, tiny_bert):
    result = probe_texts(open_encoder(tiny_bert), labeled, ["mean(1)", "sif(4)", "concat-last-4"], folds=3)
    alone = accuracy_of_folds(open_encoder(tiny_bert, "mean(1)").encode(labeled.texts), labeled.labels, 3, 0)
    assert [row.pooling for row in result.rows] == ["mean(1)", "sif(4)", "concat-last-4"]
    assert result.rows[0].value == pytest.approx(alone.mean(), abs=0.02)
    assert result.rows[0].facts["deviation"] == pytest.approx(alone.std(ddof=1), abs=0.02)
    assert result.facts["majority"] == pytest.approx(max(map(labeled.labels.count, ("dog", "other"))) / 60)


def test_a_probe_that_is_no_better_than_a_guess_says_so(labeled, tiny_bert):
    shuffled = replace(labeled, labels=tuple(np.random.default_rng(1).permutation(labeled.labels)))
    for given, guessed in ((labeled, False), (shuffled, True)):
        (*_, last) = probe_texts(open_encoder(tiny_bert), given, ["mean(1)"], folds=3).answer()
        assert ("hardly better than to guess the most frequent label" in last) == guessed


def test_a_label_needs_a_text_in_each_fold(tiny_bert, refusal):
    few = LabeledText(("a dog", "a cat", "the man"), ("x", "x", "y"), "few.tsv")
    assert refusal(probe_texts, open_encoder(tiny_bert), few, ["mean"], folds=2) == (
        "Every label needs a text in each of 2 folds, but 'y' has 1. Give more text, or fewer folds."
    )
