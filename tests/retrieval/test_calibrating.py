"""An index that fits a calibrator on its own texts; NumPy, and calibrators fitted by hand, are the second voice."""

import shutil

import numpy as np
import pytest
from numpy.testing import assert_allclose

import bertflow
from bertflow.calibrated import CalibratedEncoder
from bertflow.calibration.closed_forms import AllButTheTop, Whitening
from bertflow.data.corpus import Answer
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.errors import UsageError
from bertflow.retrieval.index import AnswerIndex

FEW = [Answer("cost", "It is free.", ("What does it cost?",)), Answer("where", "Here.", ("Where is the dog?",))]
MANY = [*FEW, *(Answer(f"a-{k}", f"text {k}", ("Where is the dog?", f"question {k}")) for k in range(20))]
TEXTS = list(dict.fromkeys(text for answer in MANY for text in answer.phrases))
QUESTIONS = ["question 3", "Is it there?", "text 7"]


@pytest.fixture
def own(tmp_path, encoder):
    with AnswerIndex.create(tmp_path / "own.index", encoder, MANY, calibrate="whitening(4)") as index:
        yield index


def fitted(encoder, texts=TEXTS, made=None):
    return (made or Whitening(4)).fit(np.array([encoder.row(text) for text in texts], np.float32))


def test_it_is_fitted_on_each_distinct_text_once_and_each_is_encoded_once(own, encoder):
    assert sorted(encoder.asked) == sorted(TEXTS)  # answers first, then questions
    expected = fitted(encoder)
    numbers = own._storage.numbers().tolist()
    z, texts = own._storage.vectors(numbers), [row[2] for row in own._storage.phrases(numbers).values()]
    assert_allclose(z, expected.transform(np.array([encoder.row(text) for text in texts], np.float32)), atol=1e-4)
    distinct = [texts.index(text) for text in TEXTS]
    assert_allclose(np.cov(z[distinct], rowvar=False, bias=True), np.eye(4), atol=1e-4)
    assert own.encoder.calibrator.moments_.n == len(TEXTS)
    assert len(own.encoder.fitted_hashes()) == len(TEXTS)


def test_the_file_alone_has_the_calibrator_for_what_is_asked_and_added_later(own, encoder, tmp_path):
    hits = own.search_many(QUESTIONS)
    own.close()
    (tmp_path / "elsewhere").mkdir()
    path = shutil.move(own.path, tmp_path / "elsewhere" / "moved.index")
    with AnswerIndex.open(path, type(encoder)()) as index:
        assert index.search_many(QUESTIONS) == hits
        index.add([Answer("new", "a new text")])
        index.update([Answer("cost", "It costs a lot.")])
        for name, text in {"new": "a new text", "cost": "It costs a lot."}.items():
            hit = index.search(text, 1)[0]
            assert (hit.id, round(hit.score, 5)) == (name, 1)
        number = int(index._storage.numbers()[-1])
        row = encoder.row("It costs a lot.").astype(np.float32)
        assert_allclose(index._storage.vectors([number])[0], fitted(encoder).transform(row[None])[0], atol=1e-4)


def test_it_is_fitted_again_on_what_is_there_now_and_left_out_again(own, encoder):
    own.add([Answer("new", "a new text")])
    own.fit("abtt(2)")
    again = fitted(encoder, [*TEXTS, "a new text"], AllButTheTop(2))
    row = encoder.row("text 7").astype(np.float32)
    with AnswerIndex.open(own.path, type(encoder)()) as index:
        assert_allclose(index.encoder.calibrate(row[None]), again.transform(row[None]), atol=1e-4)
        index.recalibrate(None)
    with AnswerIndex.open(own.path, type(encoder)()) as index:
        assert index.encoder.calibrator is None
        assert index._storage.kept("calibrator") == {}


def test_another_calibrator_takes_its_place(own, encoder, refusal):
    with AnswerIndex.open(own.path, CalibratedEncoder(encoder, fitted(encoder, made=Whitening(2))), recalibrate=True):
        pass
    assert "holds embeddings by" in refusal(AnswerIndex.open, own.path, encoder)


def test_too_few_texts_are_refused_before_they_are_encoded(tmp_path, encoder, refusal):
    path = tmp_path / "own.index"
    assert refusal(AnswerIndex.create, path, encoder, FEW, calibrate="whitening") == (
        "Fitting whitening takes 3 texts for each of 8 directions, 24 in all, but there are 4. Index more, take center "
        "or abtt(3), or a --model that was calibrated on other text."
    )
    assert encoder.asked == []
    assert not list(tmp_path.iterdir())
    AnswerIndex.create(path, encoder, FEW, calibrate="center").close()


@pytest.mark.parametrize(("spelling", "said"), [("flow", "An index fits closed forms"), ("nonsense", "Unknown calib")])
def test_what_no_index_can_fit_is_refused(spelling, said, tmp_path, encoder, own):
    with pytest.raises(UsageError, match=said):
        AnswerIndex.create(tmp_path / "new.index", encoder, MANY, calibrate=spelling)
    with pytest.raises(UsageError, match=r"for a raw encoder, but this one has Whitening already"):
        AnswerIndex.create(tmp_path / "new.index", own.encoder, MANY, calibrate="center")


def test_token_counts_are_those_of_the_texts(tmp_path, tiny_bert):
    nouns = ("garden", "house", "cat")
    sentences = [f"the {a} {b} in the {c} ." for a in ("man", "dog") for b in ("runs", "eats") for c in nouns]
    answers, path = [Answer(str(k), text) for k, text in enumerate(sentences)], tmp_path / "own.index"
    info = bertflow.build_index(path, answers, tiny_bert, pooling="sif(2)", calibrate="whitening(4)", device="cpu")
    raw = TransformerEncoder(tiny_bert, pooling="sif(2)", device="cpu").count_tokens(sentences)
    assert info.recipe["token_counts"] == raw.describe()["token_counts"]
    expected = CalibratedEncoder.fit(raw, Whitening(4), sentences)
    question = "the dog eats"
    cosines = expected.similarity(expected.encode([question]), expected.encode(sentences))[0]
    found = bertflow.search(path, question, k=12, device="cpu").hits
    assert_allclose([hit.score for hit in found], np.sort(cosines)[::-1], atol=1e-4)
    assert bertflow.add_answers(path, [Answer("new", "a bird sings")], device="cpu").answers == 13
    assert bertflow.recalibrate_index(path, calibrate="center", device="cpu").calibrator == "Center()"
    with pytest.raises(UsageError, match="One of model and calibrate is wanted, got none"):
        bertflow.recalibrate_index(path)


def test_a_name_that_leads_elsewhere_is_refused(own, encoder, refusal):
    with own._storage.transaction():
        own._storage.keep("calibrator", {"../x": b""})
    assert "what it keeps has no plain names" in refusal(AnswerIndex.open, own.path, encoder)
