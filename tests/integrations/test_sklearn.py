"""scikit-learn itself is the second voice: clone, pipeline, grid search, feature names."""

import copy
import pickle

import joblib
import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline

from bertflow.calibrated import CalibratedEncoder
from bertflow.calibration.closed_forms import Center, Whitening
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.errors import DataError
from bertflow.integrations.sklearn import SentenceVectorizer

from ..texts import NOUNS

TEXTS = [f"the {size} {noun} {verb}" for noun in NOUNS for size in ("big", "small") for verb in ("runs", "sings")]
LABELS = ["big" in text for text in TEXTS]


@pytest.fixture
def vectorizer(tiny_bert):
    return SentenceVectorizer(str(tiny_bert), pooling="mean(2)", device="cpu")


def test_its_calibrator_is_fitted_on_the_training_text(vectorizer):
    x = vectorizer.fit_transform(TEXTS)
    whitened = clone(vectorizer).set_params(calibrator=Whitening(n_components=3)).fit(TEXTS[:16])
    expected = Whitening(n_components=3).fit(x[:16]).transform(x)
    np.testing.assert_allclose(whitened.transform(TEXTS), expected, atol=1e-4)
    assert not hasattr(whitened.calibrator, "map_"), "the parameter itself stays unfitted"


def test_a_calibrated_folder_is_used_as_it_is(tiny_bert, tmp_path):
    raw = TransformerEncoder(tiny_bert, device="cpu")
    calibrated = CalibratedEncoder.fit(raw, Whitening(n_components=4), TEXTS)
    calibrated.save(tmp_path / "calibrated")
    found = SentenceVectorizer(str(tmp_path / "calibrated"), device="cpu").fit_transform(TEXTS)
    np.testing.assert_allclose(found, calibrated.encode(TEXTS), atol=1e-5)
    with pytest.raises(DataError, match="fitted on embeddings by tiny-bert with pooling 'mean'"):
        SentenceVectorizer(str(tmp_path / "calibrated"), pooling="cls", device="cpu").fit(TEXTS)


@pytest.mark.parametrize(
    "copied",
    [
        lambda one: clone(one).fit(TEXTS),
        lambda one: pickle.loads(pickle.dumps(one)),
        copy.deepcopy,
        lambda one: joblib.load(joblib.dump(one, "vectorizer.joblib")[0]),
    ],
    ids=["clone", "pickle", "deepcopy", "joblib"],
)
def test_a_copy_embeds_the_same(vectorizer, copied, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fitted = vectorizer.set_params(calibrator=Center()).fit(TEXTS)
    np.testing.assert_array_equal(copied(fitted).transform(TEXTS), fitted.transform(TEXTS))


def test_a_pickle_holds_no_weights(vectorizer):
    assert len(pickle.dumps(vectorizer.fit(TEXTS))) < 2000


def test_it_names_its_features(vectorizer):
    names = vectorizer.fit(TEXTS).get_feature_names_out()
    assert list(names[:2]) == ["sentencevectorizer0", "sentencevectorizer1"]
    assert len(names) == vectorizer.transform(TEXTS).shape[1]


def test_it_works_in_a_pipeline_and_a_grid_search(vectorizer):
    pipeline = make_pipeline(vectorizer, LogisticRegression())
    grid = {"sentencevectorizer__pooling": ["cls(1)", "mean(1)"], "sentencevectorizer__calibrator": [None, Center()]}
    search = GridSearchCV(pipeline, grid, cv=3).fit(TEXTS, LABELS)
    assert search.best_score_ > 0.9
    assert search.predict(np.array(TEXTS)).tolist() == LABELS


def test_before_the_fit_it_refuses(vectorizer):
    with pytest.raises(NotFittedError):
        vectorizer.transform(TEXTS)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("one text", "Texts should be a list, got a single text. Put it in a list."),
        (["text", 3], "Sentence 1 must be text, got int. Leave it out, or read it as text."),
        (pd.DataFrame({"text": TEXTS}), "Sentences must be a list of texts, got a DataFrame. Give one column of it."),
        ({"text": TEXTS}, "Sentences must be a list of texts, got a dict. Give one column of it."),
    ],
)
def test_what_is_no_list_of_texts_is_refused(vectorizer, text, message, refusal):
    assert refusal(vectorizer.fit, text) == (message)
