import numpy as np
import pytest

from bertflow.calibration.spelling import parse_systems
from bertflow.encoder.transformer import StaticEncoder
from bertflow.encoder.word_vectors import WordVectorEncoder
from bertflow.errors import UsageError
from bertflow.evaluation.systems import build_systems, open_system

WORDS = ["the", "dog", "cat", "runs", "sleeps", "man", "house", "big"]
SENTENCES = ["the dog runs", "the cat sleeps", "the man", "a big house", "the big dog sleeps"]
EQUAL = 1e-6


@pytest.fixture
def vectors(tmp_path):
    rng = np.random.default_rng(0)
    path = tmp_path / "glove.txt"
    path.write_text("".join(f"{word} {' '.join(map(str, rng.normal(size=4).round(3)))}\n" for word in WORDS))
    return path


def built(opened, compare="", corpus=None, **options):
    return build_systems(opened, parse_systems(compare), corpus, **options)


def test_a_file_of_word_vectors_is_a_system(vectors):
    systems = built([open_system(str(vectors))])
    assert list(systems) == ["raw"]
    np.testing.assert_array_equal(systems["raw"].encode(SENTENCES), WordVectorEncoder(vectors).encode(SENTENCES))


def test_sif_and_calibrators_stand_beside_word_vectors(vectors):
    systems = built([open_system(str(vectors))], "sif,sif+center", SENTENCES)
    expected = WordVectorEncoder(vectors, "sif").count_words(SENTENCES).encode(SENTENCES)
    np.testing.assert_array_equal(systems["sif"].encode(SENTENCES), expected)
    np.testing.assert_allclose(systems["sif+center"].encode(SENTENCES), expected - expected.mean(0), atol=EQUAL)


@pytest.mark.parametrize(("spelling", "pooling"), [("static", "content"), ("static-sif", "sif")])
def test_static_averages_the_word_embeddings_of_the_transformer(tiny_bert, spelling, pooling):
    opened = open_system(str(tiny_bert), device="cpu", pooling="cls", max_length=32)
    systems = built([opened], spelling, SENTENCES)
    expected = StaticEncoder(tiny_bert, pooling, max_length=32).count_tokens(SENTENCES)
    assert list(systems) == ["raw", spelling]
    assert systems[spelling].describe() == expected.describe()
    np.testing.assert_array_equal(systems[spelling].encode(SENTENCES), expected.encode(SENTENCES))


def test_word_vectors_have_no_static_row_beside_a_transformer(tiny_bert, vectors):
    systems = built([open_system(str(tiny_bert), device="cpu"), open_system(str(vectors))], "static")
    assert list(systems) == ["raw of tiny-bert (mean)", "static of tiny-bert", "raw of glove.txt (mean)"]


@pytest.mark.parametrize(
    ("compare", "said"),
    [
        ("sif", "sif needs text to be fitted on. Give fit_on: a file, or eval for the scored sentences."),
        ("mean(0)", "Unknown pooling of words 'mean(0)'. Known: mean, sif. Did you mean mean?"),
        ("static", "static averages the word embeddings of a transformer, but none is given. Leave it out."),
    ],
)
def test_what_cannot_be_built_is_refused(vectors, compare, said, refusal):
    assert refusal(built, [open_system(str(vectors))], compare, error=UsageError) == said
