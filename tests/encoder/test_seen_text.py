import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from bertflow.encoder import seen_text
from bertflow.encoder.seen_text import TokenCounts, vocabulary_size
from bertflow.errors import BertflowError
from bertflow.text_keys import hash_texts


@pytest.fixture
def tokenizer(bert_tokenizer):
    return bert_tokenizer


def counted(counts, tokenizer):
    words = {index: word for word, index in tokenizer.get_vocab().items()}
    return {words[index]: int(counts[index]) for index in np.flatnonzero(counts)}


def test_a_corpus_is_counted_without_special_tokens(tiny, tokenizer):
    encoder = tiny("sif").count_tokens(["the dog", "the dogs", "", "the xyz"])
    found = counted(encoder.counts.counts, tokenizer)
    assert found == {"the": 3, "dog": 2, "##s": 1, "[UNK]": 1}


def test_a_word_gives_its_count_to_each_of_its_pieces(tokenizer):
    assert counted(TokenCounts.given({"dogs": 5, "dog": 2, "cat": 1}, tokenizer).counts, tokenizer) == {
        "dog": 7,
        "##s": 5,
        "cat": 1,
    }


def test_counts_by_token_id_are_taken_as_they_are(tokenizer):
    counts = np.arange(vocabulary_size(tokenizer), dtype=np.int32)
    assert_array_equal(TokenCounts.given(counts, tokenizer).counts, counts)


@pytest.mark.parametrize(("name", "a"), [("sif", 1e-3), ("soft-sif", 1e-2)])
def test_a_frequent_token_weighs_little_and_an_unseen_one_weighs_one(name, a):
    weights = TokenCounts(np.array([0, 1, 99])).weights[name]
    assert_allclose(weights, [1, a / (a + 0.01), a / (a + 0.99)], rtol=1e-6)


def test_a_token_that_a_text_of_few_words_does_not_hold_weighs_as_its_tokens_do_in_the_mean():
    weights = TokenCounts(np.array([0, 25, 75])).weights["faint-sif"]
    seen = [0.1 / (0.1 + 0.25), 0.1 / (0.1 + 0.75)]
    assert_allclose(weights, [0.25 * seen[0] + 0.75 * seen[1], *seen], rtol=1e-6)


WORDS = "Word counts need words with counts above zero, got none, or a negative one. Count again."
IDS = (
    "Token counts by id need whole numbers of zero or more, shape (25,), not all zero; got {0.dtype} of shape "
    "{0.shape}. Count them with this encoder's own tokenizer."
)
SHAPES = [np.ones(3, int), np.ones(25), np.zeros(25, int), -np.ones(25, int), np.ones((25, 1), int)]
NO_COUNTS = [
    *((words, WORDS) for words in ({}, {"dog": 0}, {"dog": 3, "cat": -1})),
    *((x, IDS.format(x)) for x in SHAPES),
]


@pytest.mark.parametrize(("counts", "message"), NO_COUNTS)
def test_counts_of_nothing_and_those_that_do_not_fit_are_refused(refusal, tokenizer, counts, message):
    assert vocabulary_size(tokenizer) == 25
    assert refusal(TokenCounts.given, counts, tokenizer) == message


NO_CORPUS = [
    (["", " "], "Token counts need text, but 2 sentences hold no tokens. Give a corpus."),
    ("the dog", "Sentences must be a list of texts, got a single text. Put it in a list: [sentence]."),
    (iter(["the dog", 7]), "Sentence 1 must be text, got int. Leave it out, or read it as text."),
]


@pytest.mark.parametrize(("text", "message"), NO_CORPUS)
def test_what_is_no_corpus_is_refused(refusal, tiny, text, message):
    assert refusal(tiny("sif").count_tokens, text, error=BertflowError) == message


def test_a_stream_is_counted_as_a_list_is(tiny, monkeypatch):
    monkeypatch.setattr(seen_text, "CHUNK", 2)
    text = ["the dog", "the dogs", "", "the xyz", "a cat"]
    streamed = tiny("sif").count_tokens(iter(text))
    assert streamed.describe() == tiny("sif").count_tokens(text).describe()
    assert_array_equal(streamed.fitted_hashes(), hash_texts(text))
