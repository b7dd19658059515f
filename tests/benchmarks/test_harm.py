"""The harm suite: what its figures mean, in small, and that what it looks at was fixed."""

import re

import numpy as np
import pytest

from bertflow.advise.likely import CHANGED
from bertflow.advise.rules import GENTLE
from bertflow.breadth import NARROW, RICH

from .conftest import FOLDER, read_json

OUTSIDE = ("faint-sif` alone -2.5 (half-width over kinds 2.8) to +2.9", "faint-sif` alone -0.3 to +6.5 (")
"""Search by `mean(1,2)` on texts outside the suite, as EXPLORED.md writes it."""
ALL = ("inner", "inner cls", "plain")
"""Encoders of the last part."""


@pytest.fixture
def harm(benchmark, monkeypatch):
    """The suite; few docstrings stand in for pairs, since what is asked here is said by the text."""
    monkeypatch.setattr("bertflow.advise.evidence.STAND_INS", 150)
    return benchmark("harm")


def test_what_is_looked_at_is_what_was_fixed(harm):
    assert harm.digest_of_cells() == harm.FROZEN


def test_the_page_says_what_is_kept(harm):
    page = harm.page(read_json(FOLDER / "harm.json"))
    assert page == (FOLDER / "harm.md").read_text("utf-8")


CELLS = {
    "search": [("fix search", "search", ("inner", "plain")), ("fix search", "search", ("inner cls",))],
    "topic": [("fix topic", "topic", ALL)],
    "similarity": [("fix similarity", "pairs", ALL)],
    "all": [("fix", "search", ALL), ("fix", "topic", ALL)],
}


@pytest.mark.parametrize(("purpose", "cells"), CELLS.items())
def test_what_a_substitute_changed_is_what_was_measured(purpose, cells):
    explored = " ".join((FOLDER / "EXPLORED.md").read_text("utf-8").split())
    assert all(one in explored for one in OUTSIDE)
    kept = [one for one in read_json(FOLDER / "harm.json") if one["half"] == "final"]
    narrow = [one for one in kept if 0 < one["words"] < RICH or one["novelty"] > NARROW]
    said = re.findall(r"([-+]?\d+) to ([-+]\d+)", CHANGED[purpose])
    for ends, (method, use, encoders) in zip(said, cells, strict=True):
        some = [one for one in narrow if one["use"] == use and one["encoder"] in encoders and method in one["scores"]]
        gains = [one["scores"][method]["gain"] for one in some]
        outside = use == "search" and "inner" in encoders
        gains += [float(one) for one in re.findall(r"[-+]\d\.\d", " ".join(OUTSIDE)) if outside]
        assert [*map(int, ends)] == pytest.approx([min(gains), max(gains)], abs=0.5)


def test_precision_counts_the_right_ones_among_the_best(harm):
    scores = np.array([[0.9, 0.8, 0.1, 0.0], [0.0, 0.1, 0.2, 0.3]])
    right = np.array([[True, False, True, False], [False, False, True, True]])
    assert harm.precision(scores, right, 2).tolist() == [50, 100]
    assert harm.precision(scores, right, 1).tolist() == [100, 100]


def test_a_gain_is_paired(harm):
    raw = np.random.default_rng(0).normal(size=400)
    found = harm.compared(raw + 1, raw)
    assert (found["gain"], found["low"]) == (1, 1)
    assert harm.compared(raw[::-1] + 1, raw)["low"] < 1


def test_words_in_common_find_a_text(harm):
    texts = ("a dog runs", "a cat sleeps", "the bird sings")
    assert harm.bm25().matrix(["cat"], texts, "query").argmax() == 1


def test_a_system_is_scored_by_use(harm):
    text = harm.Text(
        documents=("a dog runs", "a dog sleeps", "a cat runs", "a cat eats") * 5,
        kinds=("dog", "dog", "cat", "cat") * 5,
        queries=("dog", "cat"),
        right=("dog", "cat"),
        pairs=tuple(
            (f"a {one}", f"a {other}", float(one == other)) for one in ("dog", "cat") for other in ("dog", "cat")
        ),
    )
    values = harm.values_of(harm.bm25(), text)
    assert values["search"].tolist() == [100, 100]
    assert len(values["topic"]) == 20
    assert values["topic"].max() == 90  # nine others are of its kind
    assert "pairs" not in values


def test_a_catalogue_is_not_whitened(harm, minilm):
    text = harm.TEXTS["catalogue"]("reporting", 0)
    few = harm.Text(documents=text.documents[:600], kinds=text.kinds[:600])
    systems, broad = harm.fitted_systems(str(minilm), "mean(1,2)", few, ["whitening(96)", "fix"])
    topic = {name: harm.values_of(system, few)["topic"].mean() for name, system in systems.items()}
    assert topic["fix"] > topic["raw"]
    assert topic["fix"] != topic["whitening(96)"]
    assert broad["words"] < 600


@pytest.mark.parametrize(
    ("steep", "pooling", "system"),
    [
        (60, "cls(3)", "soft-sif+background(0.25)+crops"),
        (1000, "mean(1,2)", "soft-sif+background(0.25)"),
        (1000, "cls(3)", "background(0.5)+crops"),
    ],
)
def test_a_mean_takes_the_place_of_one_token_for_search_if_the_encoder_spreads_other_text(
    harm, minilm, monkeypatch, steep, pooling, system
):
    monkeypatch.setattr("bertflow.advise.likely.STEEP", steep)
    few = harm.Text(harm.TEXTS["headlines"]("choosing", 0).documents[:600])
    advice = harm.written(str(minilm), pooling, few, "search")
    assert (advice.shape.steep, advice.system) == (True, system)


GENTLY = [
    ("mean(1,2)", None, "soft-sif+background(0.25)"),
    ("mean(1,2)", "topic", "soft-sif+background(0.25)"),
    ("cls(3)", None, "background(0.5)+crops"),
]


@pytest.mark.parametrize(("pooling", "purpose", "system"), GENTLY)
def test_narrow_text_has_a_gentle_map_if_few_directions_hold_the_variance(
    harm, minilm, monkeypatch, pooling, purpose, system
):
    monkeypatch.setattr("bertflow.advise.likely.STEEP", 1000)
    text = harm.Text(harm.TEXTS["captions"]("choosing", 0).documents[:1300])
    advice = harm.written(str(minilm), pooling, text, purpose)
    assert (advice.system, advice.standing) == (system, GENTLE)
    assert "The text is narrow" in " ".join(advice.reasons)


@pytest.mark.parametrize("purpose", ["search", "similarity"])
def test_titles_keep_their_encoder(harm, minilm, purpose):
    words = harm.Text(harm.TEXTS["words"]("choosing", 0).documents[:300])
    advice = harm.written(str(minilm), "mean(1,2)", words, purpose)
    assert advice.system == "raw"
    assert any("most of its texts have at most 3 words" in reason for reason in advice.reasons)
