"""The language of these tests has a few words, which would be a sign of a narrow text in each of them."""

import pytest

import bertflow


@pytest.fixture(scope="module")
def encoder(tiny_bert):
    return bertflow.TransformerEncoder(tiny_bert, device="cpu")


@pytest.fixture(autouse=True, scope="module")
def few_words_are_no_sign():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bertflow.breadth.RICH", 0)
        yield
