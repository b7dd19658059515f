"""An index that keeps the chunks of long answers; the second voice compares every chunk by a loop."""

import sqlite3
from contextlib import closing

import numpy as np
import pytest

import bertflow
from bertflow.calibrated import CalibratedEncoder
from bertflow.calibration.closed_forms import Whitening
from bertflow.data.corpus import Answer
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.errors import DataError, UsageError
from bertflow.retrieval.index import AnswerIndex

WORDS = ["the", "a", "man", "dog", "cat", "bird", "house", "garden", "runs", "sleeps", "eats", "big", "red", "in"]
QUESTIONS = ["the red bird", "a big dog runs", "man", "the cat sleeps in the garden"]
CHUNKS = "tokens:6:2"


def long_answers(n=30):
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(WORDS, rng.integers(1, 40))) for _ in range(n)]
    return [Answer(f"{row:02d}", text, ("What now? " + text[:9],) * (row % 2)) for row, text in enumerate(texts)]


@pytest.fixture(scope="module")
def raw(tiny_bert):
    return TransformerEncoder(tiny_bert, max_length=10, device="cpu")


@pytest.fixture
def index(tmp_path, raw):
    with AnswerIndex.create(tmp_path / "long.index", raw, long_answers(), raw.recipe, chunks=CHUNKS) as index:
        yield index


def by_loop(encoder, answers, question):
    """For each answer the cosines of its chunks and past questions, each on its own, and where each chunk stands."""
    q = encoder.encode_query([question])[0]
    for answer in answers:
        x, text = encoder.raw.encode_chunks([answer.text], CHUNKS)
        rows = [*encoder.calibrate(x), *encoder.encode(list(answer.questions))]
        spans = [(answer.text, chunk, *span) for chunk, span in enumerate(text.spans.tolist())]
        scores = [row @ q / np.linalg.norm(row) / np.linalg.norm(q) for row in rows]
        yield answer.id, scores, spans + [(answer.text, None, None, None) for _ in answer.questions]


@pytest.mark.parametrize("calibrated", [False, True])
def test_a_hit_names_its_chunk_once_an_answer(tmp_path, raw, calibrated):
    encoder = CalibratedEncoder.fit(raw, Whitening(4), [one.text for one in long_answers()]) if calibrated else raw
    with AnswerIndex.create(tmp_path / "mine.index", encoder, long_answers(), chunks=CHUNKS) as index:
        for question in QUESTIONS:
            hits = index.search(question, 7)
            expected = {name: rest for name, *rest in by_loop(encoder, long_answers(), question)}
            best = sorted((max(scores) for scores, _ in expected.values()), reverse=True)[:7]
            np.testing.assert_allclose([hit.score for hit in hits], best, atol=1e-5)
            assert len({hit.id for hit in hits}) == 7
            for hit in hits:
                scores, places = expected[hit.id]
                at = places.index((hit.text, hit.chunk, hit.start, hit.stop))
                assert abs(scores[at] - hit.score) < 1e-5
                if hit.chunk is None:
                    assert hit.matched.startswith("What now?")
                else:
                    assert hit.matched == hit.text[hit.start : hit.stop]
        assert any(hit.chunk for hit in index.search(QUESTIONS[0], 30)), "some are found by a later chunk"


def test_answers_are_whole_and_come_back_as_they_were(index):
    assert index.answers() == long_answers()
    assert len(index) == 30
    assert index._storage.count("phrases") > 100


def test_changes_keep_the_chunks_of_the_index(index, raw, tmp_path):
    changed = [Answer("00", " ".join(WORDS * 3)), *long_answers()[1:29], Answer("new", "the bird " * 9 + "eats")]
    index.update(changed[:1])
    index.remove(["29"])
    index.add(changed[29:])
    with AnswerIndex.create(tmp_path / "anew.index", raw, changed, chunks=CHUNKS) as anew:
        assert sorted(index.answers(), key=lambda one: one.id) == anew.answers() == changed
        assert index.search_many(QUESTIONS, 8) == anew.search_many(QUESTIONS, 8)
    with closing(sqlite3.connect(index.path)) as connection:
        rows = connection.execute("SELECT count(*) FROM chunks").fetchone()
    assert rows[0] == len(raw.encode_chunks([one.text for one in changed], CHUNKS)[0]), "no chunk is left behind"


def test_the_index_says_how_it_splits(index):
    info = bertflow.describe_index(index)
    assert info.chunks == CHUNKS
    assert f"chunks: {CHUNKS}" in str(info)
    assert bertflow.search(index.path, QUESTIONS[0], k=1, device="cpu").hits == index.search(QUESTIONS[0], 1)


def test_an_encoder_that_pools_chunks_belongs_to_another_index(index, raw, tiny_bert, tmp_path):
    pooling = TransformerEncoder(tiny_bert, max_length=10, device="cpu", chunks=CHUNKS)
    with pytest.raises(
        DataError, match=r"chunks 'none'; this is tiny-bert with pooling 'mean', chunks 'tokens:6:2:mean'"
    ):
        AnswerIndex.open(index.path, pooling)
    with AnswerIndex.create(tmp_path / "pooled.index", pooling, long_answers()) as pooled:
        assert pooled.search(QUESTIONS[0], 1)[0].chunk is None
        np.testing.assert_allclose(pooled.phrases().unit.shape, (45, 16))
    with pytest.raises(DataError, match=r"chunks 'tokens:6:2:mean'; this is .* chunks 'none'"):
        AnswerIndex.open(tmp_path / "pooled.index", raw)


def test_what_cannot_be_split_is_refused(encoder, raw, tiny_bert, tmp_path, refusal):
    pooling = TransformerEncoder(tiny_bert, max_length=10, device="cpu", chunks=CHUNKS)
    for given, chunks, message in (
        (encoder, "tokens", "needs an encoder of tokens, but this one cannot split text. Give another encoder."),
        (pooling, "tokens", "needs an encoder of tokens, but this one has chunks itself, which it pools. Give another"),
        (raw, "tokens:6:2:mean", "keeps each chunk and pools none, got 'tokens:6:2:mean'. Leave its last part out."),
        (raw, "words", "Chunks are spelled"),
    ):
        assert message in refusal(
            AnswerIndex.create, tmp_path / "no.index", given, long_answers(), chunks=chunks, error=UsageError
        )
    assert not list(tmp_path.iterdir())
