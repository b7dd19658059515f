"""The ceiling on data whose right answer is known, and what it must not be scored on."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import pearsonr

from bertflow.calibrated import CalibratedEncoder
from bertflow.data.pairs import Pairs
from bertflow.data.sts import load_sts
from bertflow.encoder.abstract import AbstractEncoder
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.errors import DataError, UsageError
from bertflow.evaluation.analyses import LabelledLinear, ceiling_system
from bertflow.evaluation.evaluating import gap_section
from bertflow.evaluation.report import score_sets
from bertflow.evaluation.rows import SystemFacts
from bertflow.text_keys import hash_texts

DIM = 12
FAST = {"learning_rate": 0.02, "steps": 1000, "pull": 0.0}


class Noisy(AbstractEncoder):
    """Sentence "k" has a meaning, 3 numbers, under louder noise: what labels can undo, raw cosines do not see."""

    dim = DIM

    def __init__(self):
        rng = np.random.default_rng(0)
        self.meaning = rng.normal(size=(400, 3))
        noise = rng.normal(size=(400, DIM - 3)) * 2
        self.rows = np.concatenate([self.meaning, noise], axis=1) @ np.linalg.qr(rng.normal(size=(DIM, DIM)))[0] + 3

    def _encode(self, sentences, *_):
        return np.array([self.rows[int(s)] for s in sentences], dtype=np.float32).reshape(-1, DIM)

    def describe(self):
        return {"encoder": "noisy"}

    def fitted_hashes(self):
        return np.empty(0, dtype=np.uint64)


def pairs(task, start, subsets=("all",)):
    encoder, rng = Noisy(), np.random.default_rng(start)
    first, second = (rng.integers(start, start + 200, 300) for _ in range(2))
    a, b = (encoder.meaning[rows] for rows in (first, second))
    gold = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    of = np.array([subsets[k % len(subsets)] for k in range(300)])
    gold = gold * (1 + 4 * (of == "other")) + 10 * (of == "other")  # another scale
    return Pairs(task, tuple(map(str, first)), tuple(map(str, second)), gold, subsets=tuple(of))


@pytest.fixture(scope="module")
def report():
    encoder, scored = Noisy(), pairs("scored", 200)
    ceiling = CalibratedEncoder(encoder, LabelledLinear(**FAST).fit_pairs(encoder, pairs("labelled", 0)))
    systems = {"raw": encoder, "ceiling": ceiling}
    return score_sets({**systems, "same as raw": encoder}, [scored], resamples=0)


def test_labels_find_what_raw_cosines_do_not_show(report):
    assert report.value("raw", "scored") < 0.6
    assert report.value("ceiling", "scored") > 0.85


def test_the_fit_says_how_well_it_did_on_pairs_held_out():
    fitted = LabelledLinear(**FAST).fit_pairs(Noisy(), pairs("labelled", 0))
    assert fitted.facts_["held_out_pearson"] > 0.85
    assert fitted.facts_["pairs"] == 300


def test_the_map_is_the_one_that_was_measured():
    encoder, labelled = Noisy(), pairs("labelled", 0)
    fitted = LabelledLinear(held_out=0.5).fit_pairs(encoder, labelled)
    a, b = (fitted.transform(encoder.encode(side)).astype(float) for side in (labelled.first, labelled.second))
    cosines = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    assert pearsonr(cosines, labelled.target).statistic >= fitted.facts_["held_out_pearson"] - 0.02


def test_without_steps_it_is_half_way_to_whitening():
    encoder, labelled = Noisy(), pairs("labelled", 0)
    fitted = LabelledLinear(rank=DIM, steps=0).fit_pairs(encoder, labelled)
    x = encoder.encode(sorted({*labelled.first, *labelled.second})).astype(float)
    z, centered = fitted.transform(x), x - x.mean(0)
    u, s, _ = np.linalg.svd(centered, full_matrices=False)
    half = (u * np.sqrt(s)) @ (u * np.sqrt(s)).T
    np.testing.assert_allclose(z @ z.T * half.trace() / (z @ z.T).trace(), half, atol=1e-3)


def test_sub_sets_may_have_different_scales():
    fitted = LabelledLinear(**FAST).fit_pairs(Noisy(), pairs("labelled", 0, ("one", "other")))
    assert fitted.facts_["held_out_pearson"] > 0.85


def test_the_same_seed_gives_the_same_map():
    maps = [LabelledLinear(random_state=seed).fit_pairs(Noisy(), pairs("labelled", 0)).map.weight for seed in (0, 0, 1)]
    assert (maps[0] == maps[1]).all()
    assert (maps[0] != maps[2]).any()


def test_pairs_that_will_be_scored_are_left_out():
    labelled = pairs("labelled", 0)
    first, second, gold = (values[:50] for values in (labelled.second, labelled.first, labelled.target))
    scored = Pairs("s", first, second, gold)
    fitted = LabelledLinear(steps=5).fit_pairs(Noisy(), labelled, [scored])
    assert fitted.facts_["pairs"] <= 250


def test_it_says_which_labels_and_which_text_it_saw():
    labelled = pairs("labelled", 0)
    facts = SystemFacts.of("ceiling", ceiling_system(Noisy(), labelled))
    assert facts.labels == ("labelled",)
    np.testing.assert_array_equal(facts.hashes, hash_texts({*labelled.first, *labelled.second}))


def test_a_score_on_its_own_labels_is_refused():
    labelled = pairs("labelled", 0)
    with pytest.raises(DataError, match=r"^The system ceiling was trained on the labels of labelled"):
        score_sets({"ceiling": ceiling_system(Noisy(), labelled)}, [labelled], resamples=0)


def test_it_is_not_fitted_without_labels():
    with pytest.raises(UsageError) as error:
        LabelledLinear().fit(np.eye(5))
    assert str(error.value) == "LabelledLinear is fitted to labelled pairs, got embeddings alone. Call fit_pairs."


def test_too_few_labelled_pairs_are_refused():
    with pytest.raises(DataError) as error:
        LabelledLinear().fit_pairs(Noisy(), pairs("labelled", 0), [pairs("labelled", 0)])
    assert str(error.value) == (
        "The ceiling needs at least 20 pairs of different scores in the sub-set all of labelled, got 0 that are not "
        "scored themselves. Give more labelled pairs."
    )


@pytest.mark.parametrize(
    ("value", "ceiling", "share"),
    [(0.5, 0.9, "0 %"), (0.9, 0.9, "100 %"), (0.6, 0.9, "25 %"), (0.3, 0.9, "-50 %"), (0.6, 0.5, "-")],
)
def test_the_share_of_the_gap(value, ceiling, share, report):
    values = {"raw": 0.5, "ceiling": ceiling, "same as raw": value}
    rows = tuple(replace(row, value=values[row.system]) for row in report.rows)
    assert gap_section(replace(report, rows=rows), "raw", "ceiling").table.lines == (("same as raw", share),)


def test_the_gap_table_has_the_others_as_lines(report):
    table = gap_section(report, "raw", "ceiling").table
    assert table.header == ("raw to ceiling", "scored")
    assert table.lines == (("same as raw", "0 %"),)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::bertflow.errors.NullDirectionWarning")
def test_on_real_data_the_ceiling_lies_above_raw_on_tasks_it_never_saw(minilm, shared_data):
    encoder = TransformerEncoder(minilm, pooling="mean(1,2)", device="cpu")
    sets = [load_sts(task, shared_data / "sts") for task in ("sts13", "sickr")]
    ceiling = ceiling_system(encoder, load_sts("tuning", shared_data / "sts"), sets)
    assert isinstance(ceiling, CalibratedEncoder)
    report = score_sets({"raw": encoder, "ceiling": ceiling}, sets, resamples=0)
    assert report.value("ceiling", "sickr") > report.value("raw", "sickr") + 0.1
    assert report.value("ceiling", "sts13") > report.value("raw", "sts13") + 0.02
