"""Every cell of a sweep is what encoding with that pooling alone, sklearn-style whitening and SciPy give."""

import csv
import io
import json
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import spearmanr

from bertflow.calibration.closed_forms import Whitening
from bertflow.data.pairs import Pairs
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.evaluation.poolings import AVERAGE, WEIGHTED, candidates, readable, sweep_poolings, try_poolings

from ..texts import WITH_AND, drawn

BLOCKS = 4


def sentences(n, seed):
    return tuple(drawn(WITH_AND, n, seed, 2, 9))


def pairs(task, seed):
    gold = np.random.default_rng(seed).random(50)
    return Pairs(task, sentences(50, seed), sentences(50, seed + 100), gold)


SETS = [pairs("one", 0), pairs("two", 1)]


def open_encoder(folder, pooling="sif"):
    return TransformerEncoder(folder, pooling, device="cpu")


@pytest.fixture(scope="module")
def found(tiny_bert):
    return sweep_poolings(open_encoder(tiny_bert), SETS, candidates(BLOCKS, None))


def value(result, pooling, calibrator, task="one"):
    rows = [row for row in result.rows if row.pooling == pooling and row.column == calibrator]
    return next(row.value for row in rows if row.facts["task"] == task)


def scored_alone(encoder, calibrate, task):
    text = list(dict.fromkeys(s for set_ in SETS for pair in zip(set_.first, set_.second, strict=True) for s in pair))
    calibrator = Whitening().fit(encoder.encode(text)) if calibrate else None
    sides = [encoder.encode(side).astype(np.float64) for side in (task.first, task.second)]
    if calibrator:
        sides = [calibrator.transform(x.astype(np.float32)).astype(np.float64) for x in sides]
    cosines = [a @ b / np.sqrt((a @ a) * (b @ b)) for a, b in zip(*sides, strict=True)]
    return spearmanr(cosines, task.target).statistic


@pytest.mark.parametrize("calibrator", ["raw", "whitening"])
@pytest.mark.parametrize("pooling", ["mean(2)", "max(0)", "content(4)", "last-token(1)", "sum-last-4", "concat-last-4"])
def test_a_cell_is_what_the_pooling_alone_gives(pooling, calibrator, found, tiny_bert):
    alone = scored_alone(open_encoder(tiny_bert, pooling), calibrator == "whitening", SETS[0])
    assert value(found, pooling, calibrator) == pytest.approx(alone, abs=1e-4)


def test_sif_counts_the_scored_sentences(found, tiny_bert):
    text = [s for set_ in SETS for side in (set_.first, set_.second) for s in side]
    encoder = open_encoder(tiny_bert, "sif(3)").count_tokens(list(dict.fromkeys(text)))
    assert value(found, "sif(3)", "raw") == pytest.approx(scored_alone(encoder, False, SETS[0]), abs=1e-4)


def test_the_weighted_mean_gives_every_layer_the_same_norm(found, tiny_bert):
    text = list(dict.fromkeys(s for set_ in SETS for side in (set_.first, set_.second) for s in side))
    layers = [open_encoder(tiny_bert, f"mean({layer})").encode(text) for layer in range(BLOCKS + 1)]
    mixed = sum(x / np.sqrt((x**2).sum(1).mean()) for x in layers)
    row = dict(zip(text, mixed, strict=True))
    a, b = (np.stack([row[s] for s in side]) for side in (SETS[0].first, SETS[0].second))
    cosines = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    assert value(found, WEIGHTED, "raw") == pytest.approx(spearmanr(cosines, SETS[0].target).statistic, abs=1e-4)


def test_the_text_is_read_once(tiny_bert, monkeypatch):
    encoder, read = open_encoder(tiny_bert), []
    run = encoder.encode_poolings
    monkeypatch.setattr(encoder, "encode_poolings", lambda text, *a, **k: read.extend(text) or run(text, *a, **k))
    sweep_poolings(encoder, SETS, candidates(BLOCKS, layers=[0, 4]))
    assert len(read) == len({s for set_ in SETS for side in (set_.first, set_.second) for s in side})


def test_chunks_do_not_change_the_embeddings(tiny_bert, monkeypatch):
    encoder, text = open_encoder(tiny_bert, "mean"), sentences(20, 5)
    monkeypatch.setattr("bertflow.evaluation.poolings.CHUNK_BYTES", 3 * 4 * 16)
    mean, joined = try_poolings(encoder, text, ["mean", "concat(0,3)"], lambda candidate, x: [x])[0]
    np.testing.assert_allclose(mean, encoder.encode(text), atol=1e-5)
    assert joined.shape == (20, 32)


def test_candidates_are_every_layer_by_every_reduction_and_the_rows_of_several():
    found = candidates(BLOCKS, None)
    assert len(found) == 8 * (BLOCKS + 1) + 6
    several = "last-2-avg first-last-avg emb-last-avg sum-last-4 concat-last-4 mean(0,1,2,3,4)"
    assert found[-6:] == several.split()


def test_a_row_of_several_layers_needs_as_many_blocks():
    assert readable(["mean(3)", "sum-last-4", "cls(2)"], blocks=2) == ["cls(2)"]


def test_layer_zero_of_cls_is_one_vector_and_has_no_score(found):
    assert found.facts["constant"] == ["cls(0)"]
    assert "cls(0) gives every sentence the same vector, so it has no score." in found.how


def test_with_several_tasks_tables_show_their_average(found):
    values = [value(found, "mean(2)", "raw", task) for task in ("one", "two")]
    assert value(found, "mean(2)", "raw", AVERAGE) == pytest.approx(np.mean(values))
    assert {line[0]: line[1] for line in found.table().lines}["mean(2)"] == f"{100 * np.mean(values):.2f}"


def test_fewer_directions_than_asked_for_is_a_dash(found):
    assert {line[3] for line in found.table().lines if line[0] == "mean(2)"} == {"-"}


@pytest.mark.parametrize(
    ("pooling", "calibrator", "fit_on", "setting"),
    [
        ("mean(2)", "raw", None, "inductive"),
        ("sif(2)", "raw", None, "transductive"),
        ("mean(2)", "whitening", None, "transductive"),
        ("mean(2)", "whitening", "other", "inductive"),
    ],
)
def test_a_row_says_what_was_seen(pooling, calibrator, fit_on, setting, tiny_bert):
    text = ["the green garden sings", "a bird", "red red dog", "a big house"] if fit_on else None
    result = sweep_poolings(open_encoder(tiny_bert), SETS[:1], ["mean(2)", "sif(2)"], text)
    rows = [row.as_dict() for row in result.rows]
    assert {row["setting"] for row in rows if (row["pooling"], row["calibrator"]) == (pooling, calibrator)} == {setting}


def test_the_grid_is_layers_by_reductions(found):
    layers, tokens, panels = found.grid()
    assert layers == list(range(BLOCKS + 1))
    assert tokens == ["mean", "content", "sif", "soft-sif", "faint-sif", "max", "cls", "last-token"]
    assert panels["raw"][2, 0] == pytest.approx(100 * value(found, "mean(2)", "raw", AVERAGE))
    assert np.isnan(panels["raw"][0, 6])


def test_the_best_row_has_the_largest_value(found):
    for best in found.best():
        own = [row.value for row in found.shown if row.column == best.column]
        assert best.value == max(own)


def test_of_values_that_are_printed_alike_the_deepest_is_best(found):
    alike = [replace(row, value=0.5 + 1e-9 * at) for at, row in enumerate(found.rows)]
    tied = replace(found, rows=alike)
    assert {row.pooling for row in tied.best()} == {"mean(4)"}
    assert next(iter(tied.answer())).lines[0][0] == "mean(4)"


def test_json_and_csv_hold_every_value(found):
    rows = list(csv.DictReader(io.StringIO(found.to_csv())))
    record = json.loads(found.to_json())
    assert len(rows) == len(record["rows"]) == len(found.rows)
    assert [float(row["value"]) for row in rows] == [row["value"] for row in record["rows"]]
