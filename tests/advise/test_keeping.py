"""Vectors that exist: kept, with the best map for them, beside the best overall."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import bertflow
from bertflow.advise.bare_vectors import VectorEncoder
from bertflow.advise.keeping import AGAIN, KEEP
from bertflow.advise.likely import WIDEST
from bertflow.advise.rules import FOR_SEARCH
from bertflow.advise.vetoes import UNKNOWN as NOT_SHOWN
from bertflow.calibration.spelling import load_calibrator, parse_calibrator, parse_system
from bertflow.data.corpus import load_sentences
from bertflow.errors import UsageError
from bertflow.store.store import EmbeddingStore
from bertflow.tables import Section

from .test_fixing import lines_of, neighbors


def cone(n, dim=64, spread=8, seed=0):
    """Rows with one direction that all have, and a few that hold the variance."""
    rng = np.random.default_rng(seed)
    scales = np.where(np.arange(dim) < spread, 1.0, 0.05)
    return (rng.normal(size=(n, dim)) * scales + 2.0).astype(np.float32)


@pytest.fixture(scope="module")
def kept(encoder):
    how = {"candidates": "whitening(8),sif+whitening,sif+whitening(8)", "resamples": 200}
    return bertflow.fix(encoder, lines_of(neighbors(600)), keep_vectors=True, **how)


def test_only_maps_of_the_own_pooling_are_advised_and_the_best_overall_stands_beside(kept, encoder):
    assert parse_system(kept.system).pooling is None
    assert kept.encoder.raw is encoder
    first, *others = kept.choices
    assert (first.what, first.decision.system, first.encoding_seconds) == (KEEP, kept.system, None)
    assert first.decision.standing == FOR_SEARCH
    assert first.map_seconds > 0
    for one in others:  # whether another pooling is better is up to a random BERT
        assert (one.what, parse_system(one.decision.system).pooling) == (AGAIN, "sif")
        assert one.encoding_seconds > 0


def test_the_gain_of_both_is_measured_by_the_same_pairs(kept):
    for one in kept.choices:
        scores = kept.evidence[0].judging.values("mrr")
        assert one.decision.gain.difference == pytest.approx(scores[one.decision.system] - scores["raw"])
    table = next(part for part in kept.parts() if isinstance(part, Section) and "Keep" in part.title)
    assert table.table.lines[0][:3] == (KEEP, kept.system, str(kept.encoder.dim))
    assert json.loads(kept.to_json())["choices"][0]["map_seconds_per_1000"] > 0


@pytest.mark.parametrize("kind", ["npy", "parquet", "store"])
def test_vectors_alone_get_the_likely_map_beside_and_what_would_prove_it(kind, tmp_path):
    x = cone(900)
    path = tmp_path / {"npy": "x.npy", "parquet": "x.parquet", "store": "store"}[kind]
    if kind == "npy":
        np.save(path, x)
    elif kind == "parquet":
        pq.write_table(pa.table({"vector": list(x), "old": list(x - 1)}), path)
    else:
        names = [f"row {k}" for k in range(900)]
        np.save(tmp_path / "x.npy", x)
        bertflow.EmbeddingStore.build(VectorEncoder(tmp_path / "x.npy", names, 900, 0), names, path)
    advice = bertflow.fix(vectors=path, column="vector" if kind == "parquet" else None, resamples=100)
    assert (advice.verdict, advice.system, advice.beside) == ("rescale the scores", "raw", "ridge(1)")
    assert NOT_SHOWN in advice.reasons
    assert any("needs the encoder" in part.to_markdown() for part in advice.parts() if isinstance(part, Section))
    fitted = parse_calibrator("ridge(1)").fit(x[[int(name.split()[1]) for name in advice.text.fitted]])
    np.testing.assert_allclose(advice.beside_encoder.calibrator.transform(x), fitted.transform(x), atol=1e-4)
    if kind == "parquet":
        return
    written = load_calibrator(advice.save(tmp_path / "fixed") / "vetoed")
    assert (written.dim_in, written.dim_out) == (64, 64)
    assert (written.provenance is None) == (kind == "npy")


def test_crops_of_vectors_alone_cannot_be_embedded(tmp_path):
    np.save(tmp_path / "x.npy", cone(900))
    advice = bertflow.fix(vectors=tmp_path / "x.npy", purpose="search", candidates="ridge(16)+crops,ridge(16)")
    assert advice.not_tried == {"ridge(16)+crops": "its crops need an encoder"}


def test_of_a_large_file_a_random_sample_is_read(tmp_path):
    x = cone(30_000, dim=4)
    np.save(tmp_path / "x.npy", x)
    rows = VectorEncoder(tmp_path / "x.npy", None, most=500, seed=1)
    numbers = [int(name.split()[1]) for name in rows.sentences]
    assert (len(numbers), numbers) == (500, sorted(set(numbers)))
    assert 13_000 < np.median(numbers) < 17_000
    np.testing.assert_array_equal(rows.encode(rows.sentences), x[numbers])


def test_vectors_that_are_too_wide_for_an_index_say_so(tmp_path, monkeypatch):
    monkeypatch.setattr("bertflow.advise.keeping.WIDEST", 10)
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(400, 16)).astype(np.float32))
    advice = bertflow.fix(vectors=tmp_path / "x.npy", resamples=100)
    shown = "".join(part.to_markdown() for part in advice.parts() if isinstance(part, Section))
    assert "The vectors stay 16 wide, but the HNSW index of pgvector takes 10 dimensions" in shown
    assert WIDEST == 2000


def test_a_column_of_vectors_is_no_column_of_text(tiny_bert, refusal):
    assert refusal(lambda: bertflow.fix(str(tiny_bert), ["a cat"], column="text"), error=UsageError) == (
        "--column belongs to --vectors, but an encoder was given. Give --columns instead."
    )


def test_vectors_and_an_encoder_point_to_keep_vectors(tiny_bert, tmp_path):
    np.save(tmp_path / "x.npy", cone(300))
    with pytest.raises(
        UsageError, match=r"got an encoder\. Leave it out, or give --keep_vectors instead of --vectors\."
    ):
        bertflow.fix(str(tiny_bert), lines_of(neighbors(200)), vectors=tmp_path / "x.npy")


@pytest.mark.parametrize("as_file", [True, False])
def test_a_store_refuses_its_text_in_another_order(as_file, encoder, tmp_path, refusal):
    lines = lines_of(neighbors(300))
    text, other = tmp_path / "text.txt", tmp_path / "other.txt"
    text.write_text("\n".join(lines))
    other.write_text("\n".join(reversed(lines)))
    if not as_file:  # whose white space is kept
        text, other = [f"{line} \t" if line else "" for line in lines], lines[::-1]
    sentences = load_sentences(text) if as_file else [*filter(None, text)]
    EmbeddingStore.build(encoder, sentences, tmp_path / "store")
    how = {"vectors": tmp_path / "store", "candidates": "center", "resamples": 100}
    assert bertflow.fix(text=text, **how).text.rows["used"]
    assert refusal(lambda: bertflow.fix(text=other, **how)) == (
        f"{tmp_path / 'store'} is of another text, or has it in another order. Give the text of its vectors."
    )
