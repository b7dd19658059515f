"""Edit distance against the recursion that defines it, and the table against SciPy."""

import functools

import numpy as np
import pytest
from scipy.stats import spearmanr

from bertflow.calibrated import encode_systems
from bertflow.data.pairs import Pairs
from bertflow.data.sts import load_sts
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.evaluation.edits import LEVELS, edit_distance
from bertflow.evaluation.evaluating import score_sets
from bertflow.similarity import SIMILARITIES
from bertflow.studies.sections import GOLD, NEAR, LexicalStudy, lexical_rows, lexical_section

from .conftest import ToyEncoder, toy_pairs


def slow_distance(first, second):
    @functools.cache
    def of(i, j):
        if not i or not j:
            return i + j
        replaced = of(i - 1, j - 1) + (first[i - 1] != second[j - 1])
        return min(of(i - 1, j) + 1, of(i, j - 1) + 1, replaced)

    return of(len(first), len(second))


def test_the_edit_distance_is_that_of_the_recursion():
    rng = np.random.default_rng(0)
    for _ in range(200):
        first, second = ("".join(rng.choice(list("abc"), rng.integers(0, 12))) for _ in range(2))
        assert edit_distance(first, second) == slow_distance(first, second)


@pytest.fixture(scope="module")
def found():
    pairs, systems = toy_pairs(), {"raw": ToyEncoder(), "other": ToyEncoder(seed=1)}
    return pairs, systems, list(lexical_rows(systems, pairs, "cosine", None))


@pytest.mark.parametrize("level", LEVELS)
def test_each_row_is_what_scipy_says(found, level):
    pairs, systems, rows = found
    cut = LEVELS[level]
    distances = np.array([slow_distance(cut(a), cut(b)) for a, b in zip(pairs.first, pairs.second, strict=True)])
    row = next(row for row in rows if (row.system, row.level) == ("other", level))
    sides = [encode_systems(systems, side)["other"] for side in (pairs.first, pairs.second)]
    cosines = SIMILARITIES["cosine"].paired(*sides)
    near = distances <= NEAR
    assert row.near == near.sum()
    assert row.distance == pytest.approx(spearmanr(cosines, distances)[0])
    assert row.gold == pytest.approx(spearmanr(cosines, pairs.target)[0])
    if near.sum() > 2:
        assert row.near_gold == pytest.approx(spearmanr(cosines[near], pairs.target[near])[0])


def test_case_is_no_edit():
    assert all(cut("The DOG") == cut("the dog") for cut in LEVELS.values())


def test_the_gold_scores_are_the_first_line(found):
    table = lexical_section("toy", found[2]).table
    assert [line[0] for line in table.lines] == [GOLD, "raw", "other"]
    assert table.lines[0][1] == "-"
    assert table.header[:4] == ("lexical, toy", "gold", "edits of characters", "edits of words")


def test_too_few_near_pairs_have_no_correlation():
    far = tuple(" ".join(["dog cat bird"] * (at + 1)) for at in range(4))
    pairs = Pairs("far", far, ("man",) * 4, np.arange(4.0))
    assert {row.near_gold for row in lexical_rows({"raw": ToyEncoder()}, pairs, "cosine", None)} == {None}


@pytest.mark.slow
def test_the_gold_scores_of_the_paper_s_pairs_go_with_words_rather_than_characters(shared_data, tiny_bert):
    pairs, systems = load_sts("stsb-dev", shared_data / "sts"), {"raw": TransformerEncoder(tiny_bert, device="cpu")}
    rows = {row.level: row for row in lexical_rows(systems, pairs, "cosine", None) if row.system == GOLD}
    assert 100 * rows["words"].distance == pytest.approx(-23.92, abs=0.01)  # the paper: -24.61
    assert 100 * rows["characters"].distance == pytest.approx(-20.50, abs=0.01)
    assert (rows["words"].near, rows["characters"].near) == (383, 16)


def test_a_system_trained_on_the_labels_is_left_out_and_said():
    pairs = toy_pairs()
    systems = {"raw": ToyEncoder(), "ceiling": ToyEncoder(labels=["toy"])}
    assert {row.system for row in lexical_rows(systems, pairs, "cosine", None)} == {GOLD, "raw"}
    report = LexicalStudy(pairs).add_to(score_sets(systems, [pairs], resamples=0, force=True), systems, None)
    assert report.sections[0].lines[-1] == "ceiling is left out: it was trained on labels of these pairs."
