import numpy as np
import pytest
from transformers import AutoTokenizer

from bertflow.encoder import learned
from bertflow.encoder.learned import TokenCounts, vocabulary_size
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.errors import DataError, UsageError
from bertflow.text_keys import hash_texts


@pytest.fixture
def tokenizer(tiny_bert):
    return AutoTokenizer.from_pretrained(tiny_bert)


def counted(counts, tokenizer):
    words = {index: word for word, index in tokenizer.get_vocab().items()}
    return {words[index]: int(counts[index]) for index in np.flatnonzero(counts)}


def test_a_corpus_is_counted_without_special_tokens(tiny_bert, tokenizer):
    encoder = TransformerEncoder(tiny_bert, "sif").count_tokens(["the dog", "the dogs", "", "the xyz"])
    found = counted(encoder._counts.counts, tokenizer)
    assert found == {"the": 3, "dog": 2, "##s": 1, "[UNK]": 1}


def test_a_word_gives_its_count_to_each_of_its_pieces(tokenizer):
    assert counted(TokenCounts.given({"dogs": 5, "dog": 2, "cat": 1}, tokenizer).counts, tokenizer) == {
        "dog": 7,
        "##s": 5,
        "cat": 1,
    }


def test_counts_by_token_id_are_taken_as_they_are(tokenizer):
    counts = np.arange(vocabulary_size(tokenizer), dtype=np.int32)
    np.testing.assert_array_equal(TokenCounts.given(counts, tokenizer).counts, counts)


def test_a_frequent_token_weighs_little_and_an_unseen_one_weighs_one():
    weights = TokenCounts(np.array([0, 1, 999])).weights["sif"]
    np.testing.assert_allclose(weights, [1, 0.5, 1e-3 / (1e-3 + 0.999)], rtol=1e-6)


def test_the_soft_weight_still_hears_a_frequent_token():
    weights = TokenCounts(np.array([0, 1, 99])).weights["soft-sif"]
    np.testing.assert_allclose(weights, [1, 0.5, 1e-2 / (1e-2 + 0.99)], rtol=1e-6)


@pytest.mark.parametrize("words", [{}, {"dog": 0}, {"dog": 3, "cat": -1}])
def test_words_without_counts_are_refused(tokenizer, words):
    with pytest.raises(DataError) as caught:
        TokenCounts.given(words, tokenizer)
    assert str(caught.value) == (
        "Word counts need words with counts above zero, got none, or a negative one. Count again."
    )


@pytest.mark.parametrize(
    "counts",
    [np.ones(3, dtype=int), np.ones(25), np.zeros(25, dtype=int), -np.ones(25, dtype=int), np.ones((25, 1), dtype=int)],
)
def test_counts_that_do_not_fit_are_refused(tokenizer, counts):
    assert vocabulary_size(tokenizer) == 25
    with pytest.raises(DataError) as caught:
        TokenCounts.given(counts, tokenizer)
    assert str(caught.value) == (
        "Token counts by id need whole numbers of zero or more, shape (25,), not all zero; "
        f"got {counts.dtype} of shape {counts.shape}. Count them with this encoder's own tokenizer."
    )


def test_a_corpus_without_tokens_is_refused(tiny_bert):
    with pytest.raises(DataError) as caught:
        TransformerEncoder(tiny_bert, "sif").count_tokens(["", " "])
    assert str(caught.value) == "Token counts need text, but 2 sentences hold no tokens. Give a corpus."


def test_a_stream_is_counted_as_a_list_is(tiny_bert, monkeypatch):
    monkeypatch.setattr(learned, "CHUNK", 2)
    text = ["the dog", "the dogs", "", "the xyz", "a cat"]
    streamed = TransformerEncoder(tiny_bert, "sif").count_tokens(iter(text))
    assert streamed.describe() == TransformerEncoder(tiny_bert, "sif").count_tokens(text).describe()
    np.testing.assert_array_equal(streamed.fitted_hashes(), hash_texts(text))


def test_a_single_text_is_no_corpus(tiny_bert):
    with pytest.raises(UsageError, match=r"got a single text"):
        TransformerEncoder(tiny_bert, "sif").count_tokens("the dog")


def test_what_is_no_text_is_named_in_a_stream_too(tiny_bert):
    with pytest.raises(DataError, match=r"Sentence 1 must be text, got int"):
        TransformerEncoder(tiny_bert, "sif").count_tokens(iter(["the dog", 7]))
