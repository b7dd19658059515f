"""Words in their sentences: transformers' own hidden states, found by its own word ids, are the second voice."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from transformers import AutoModel, AutoTokenizer

from bertflow.encoder.pooling import pool
from bertflow.encoder.words import encode_words, word_places

SENTENCES = [
    ["the", "big", "dogs", "sings", "."],
    ["a", "cat"],
    ["the", "man", "and", "the", "birds", "in", "the", "red", "houses"],
]
BY_HAND = {"mean": lambda pieces: pieces.mean(0), "max": lambda pieces: pieces.max(0), "cls": lambda pieces: pieces[0],
           "last-token": lambda pieces: pieces[-1]}  # fmt: skip
LAYERS = {"mean(2)": [2], "cls(3)": [3], "last-token(1)": [1], "max(0)": [0], "concat-last-4": [1, 2, 3, 4],
          "first-last-avg": [1, 4]}  # fmt: skip


def by_transformers(folder, sentences, pooling):
    """One word after the other."""
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    found = []
    for words in sentences:
        inputs = tokenizer(words, is_split_into_words=True, return_tensors="pt")
        with torch.no_grad():
            states = model(**inputs, output_hidden_states=True).hidden_states
        ids = np.array([-1 if word is None else word for word in inputs.word_ids()])
        for at in range(len(words)):
            reduce = BY_HAND[pooling.split("(")[0] if "(" in pooling else "mean"]
            vectors = [reduce(states[layer][0].numpy()[ids == at]) for layer in LAYERS[pooling]]
            found.append(np.concatenate(vectors) if pooling.startswith("concat") else np.mean(vectors, 0))
    return np.array(found)


@pytest.mark.parametrize("pooling", LAYERS)
def test_a_word_is_its_pieces_in_transformers_own_hidden_states(pooling, tiny_bert, tiny):
    found = encode_words(tiny(), SENTENCES, list(LAYERS))[pooling]
    assert_allclose(found, by_transformers(tiny_bert, SENTENCES, pooling), atol=2e-5)


def test_where_words_have_no_memory_half_as_many_are_read_at_a_time(tiny, monkeypatch, caplog):
    encoder, calls = tiny(), []
    expected = encode_words(encoder, SENTENCES, ["mean(2)"])["mean(2)"]

    def first_without_memory(*arguments):
        calls.append(arguments)
        if len(calls) == 1:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return pool(*arguments)

    monkeypatch.setattr("bertflow.encoder.words.pool", first_without_memory)
    assert_allclose(encode_words(encoder, SENTENCES, ["mean(2)"])["mean(2)"], expected, atol=1e-5)
    assert "has no memory for 3 sentences" in caplog.text


def test_batches_and_their_order_do_not_matter(tiny, monkeypatch):
    sentences = [SENTENCES[at % 3][: 1 + at % 7] for at in range(40)]
    whole = encode_words(tiny(), sentences, ["mean(4)"])["mean(4)"]
    monkeypatch.setattr("bertflow.encoder.batching.TOKEN_BUDGETS", {"cpu": 12})
    assert_allclose(encode_words(tiny(), sentences, ["mean(4)"])["mean(4)"], whole, atol=1e-5)


def test_a_prompt_stands_before_the_words_and_is_none_of_them(tiny_bert, tiny):
    encoder = tiny(prompt="red cat ")
    behind = by_transformers(tiny_bert, [["red", "cat", "the", "dogs"]], "mean(2)")[2:]
    assert_allclose(encode_words(encoder, [["the", "dogs"]], ["mean(2)"])["mean(2)"], behind, atol=2e-5)


def test_words_behind_the_longest_input_and_words_without_pieces_are_left_out(tiny):
    encoder = tiny(max_length=6)
    text = [["the", "dogs", "\u200b", "sings", "in", "red"], ["a", "\u200b"], ["\u200b"], ["a", "cat", "eats", "and"]]
    places = word_places(encoder, text)
    # [CLS] the dog ##s sings [SEP]
    assert places.read.tolist() == [1, 1, 0, 1, 0, 0, 1, 0, 0, 1, 1, 1, 1]
    assert places.cut == 2
    assert encode_words(encoder, text, ["mean(1)", "cls(1)"])["cls(1)"].shape == (8, 16)
    assert encode_words(tiny(), [["\u200b"]], ["mean(1)"])["mean(1)"].shape == (0, 16)
