"""A RoBERTa with byte-level BPE, through all that reads it: it tells cases, marks spaces, counts positions from 2."""

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from transformers import AutoModel, AutoTokenizer

import bertflow
from bertflow import inspect_tokens
from bertflow.encoder.words import encode_words
from bertflow.export.onnx_encoder import OnnxEncoder
from bertflow.export.st_folder import load_sentence_transformer
from bertflow.export.targets import write_export
from bertflow.geometry.masked import read_masked_words
from bertflow.studies.tokens import read_vocabulary
from bertflow.words.tokens import whole_words

from .conftest import make, require_same

SENTENCES = ["The café is small .", "a dog", "", "The man and a dog in the big red house . " * 4, "Dog dog, DOG!"]


@pytest.fixture(scope="module")
def tokenizer(tiny_roberta):
    return AutoTokenizer.from_pretrained(tiny_roberta)


@pytest.fixture(scope="module")
def model(tiny_roberta):
    return AutoModel.from_pretrained(tiny_roberta).eval()


def states(model, tokenizer, sentence, layer):
    """One sentence alone, cut as the encoder cuts it."""
    given = tokenizer(sentence, return_tensors="pt", truncation=True, max_length=62)
    with torch.no_grad():
        return given["input_ids"][0].tolist(), model(**given, output_hidden_states=True).hidden_states[layer][0]


def test_content_leaves_the_special_tokens_out_and_nothing_else(tiny_roberta, model, tokenizer):
    sentence = "Dog <mask> é , the"  # a mask that is written is text; é is two tokens
    ids, hidden = states(model, tokenizer, sentence, 2)
    assert len(ids) > 8
    found = make(tiny_roberta, "content(2)").encode([sentence])[0]
    assert_allclose(found, hidden[1:-1].mean(0).numpy(), atol=1e-5)


def test_sif_weighs_a_word_in_the_middle_by_its_own_token(tiny_roberta, model, tokenizer):
    corpus = ["Dog the dog", "the cat", "the"]
    encoder = make(tiny_roberta, "sif(2)").count_tokens(corpus)
    counts = {}
    for text in corpus:
        for one in tokenizer(text, add_special_tokens=False)["input_ids"]:
            counts[one] = counts.get(one, 0) + 1
    (inside,), (begins,) = (tokenizer(text, add_special_tokens=False)["input_ids"] for text in (" the", "the"))
    assert (counts[inside], counts[begins]) == (1, 2)  # the space before a word is a part of its token
    sentence = "the dog the"
    ids, hidden = states(model, tokenizer, sentence, 2)
    weights = torch.tensor([1e-3 / (1e-3 + counts.get(one, 0) / sum(counts.values())) for one in ids[1:-1]])
    expected = (hidden[1:-1] * weights[:, None]).sum(0) / weights.sum()
    assert_allclose(encoder.encode([sentence])[0], expected.numpy(), atol=1e-5)


def test_counts_by_word_are_those_of_a_word_inside_a_sentence_and_cases_are_named(tiny_roberta, tokenizer, caplog):
    encoder = make(tiny_roberta, "sif", token_counts={"the": 90, "dog": 10})
    counts = encoder.counts.counts
    assert counts[tokenizer(" the", add_special_tokens=False)["input_ids"][0]] == 90
    assert "tells cases" in caplog.text


def test_words_are_found_by_their_places_in_the_text(tiny_roberta, model, tokenizer):
    words = ["Dog", "naïve", "café", "€", "and", "the", "red-green"]
    ids, hidden = states(model, tokenizer, " ".join(words), 2)
    # What stands before a word has as many tokens as it has without the word: byte-level BPE cuts at spaces.
    ends = [len(tokenizer(" ".join(words[: k + 1]), add_special_tokens=False)["input_ids"]) for k in range(len(words))]
    spans = list(zip([0, *ends], ends, strict=False))
    assert (ends[-1], spans[1][1] - spans[1][0] > 1) == (len(ids) - 2, True)
    found = encode_words(make(tiny_roberta), [words], ["mean(2)"])["mean(2)"]
    space = tokenizer.convert_tokens_to_ids("\u0120")  # one that is a token of its own is no piece of a word
    assert ids.count(space) == 2
    pieces = [[1 + at for at in range(*span) if ids[1 + at] != space] for span in spans]
    expected = [hidden[at].mean(0).numpy() for at in pieces]
    assert_allclose(found, expected, atol=1e-5)


def test_words_are_compared_and_tokens_taken_apart(tiny_roberta):
    rows = inspect_tokens(["The café is small .", "a dog"], model=tiny_roberta)
    assert rows.difference_from_layer_0 < 1e-5
    assert rows.texts[0]["tokens"][0]["position"] == 2
    study = bertflow.compare_words(["dog", "cat"], ["the dog and the cat", "A cat , a dog"], model=tiny_roberta)
    assert "dog" in str(study)


def test_the_vocabulary_is_read_as_the_bytes_spell(tokenizer):
    ids = tokenizer.get_vocab()
    words = whole_words(tokenizer)
    assert {"the", "dog"} <= words.keys()
    assert all(tokenizer.decode([index]).strip() == word for word, index in words.items())
    assert all(word.isalpha() for word in words)
    assert "caf\u00e9" in words or "\u0120caf\u00c3\u00a9" not in ids
    vocabulary = read_vocabulary(tokenizer)
    assert (vocabulary.mark, len(vocabulary.tokens["special"])) == ("\u0120", 5)
    # Each of the 256 bytes is a token; most are no character by themselves.
    assert "\u00c3" in vocabulary.tokens["character pieces"] + vocabulary.tokens["characters"]


def test_masked_words_are_read_where_a_sentence_is_longer_than_the_model(tiny_roberta):
    found = read_masked_words(tiny_roberta, ["The man and a dog . " * 30, "a cat"])
    assert found.contexts.shape == (2, 16)
    assert np.isfinite(found.contexts).all()


def test_word_frequencies_reach_its_words(tiny_roberta):
    from bertflow.geometry.frequency import log_frequencies, words_by_rank
    from bertflow.words.encoder import read_static_words

    words, vectors = read_static_words(tiny_roberta)
    counts = {word: 1000 - 10 * rank for rank, word in enumerate(sorted(words)) if word.islower()}
    bins = words_by_rank(words, vectors, counts)
    assert sum(one.n for one in bins) == len(counts)
    a, b = log_frequencies(["The dog", "the dog"], counts)
    assert a == b


@pytest.mark.parametrize("pooling", ["first-last-avg", "content(2)", "sif(2)", "denoised-mask"])
def test_sentence_transformers_gives_the_same(tiny_roberta, pooling):
    encoder = make(tiny_roberta, pooling)
    encoder.count_missing(SENTENCES)
    folder = write_export(encoder, Path("out"), "sentence-transformers").folder
    model = load_sentence_transformer(folder, device="cpu")
    assert_allclose(model.encode(SENTENCES), encoder.encode(SENTENCES), atol=1e-5)
    encoder.save("saved")
    again = bertflow.load("saved", device="cpu")
    require_same(again, encoder, SENTENCES)


@pytest.mark.slow
@pytest.mark.parametrize("pooling", ["first-last-avg", "sif(2)", "denoised-mask"])
def test_onnx_gives_the_same(tiny_roberta, pooling):
    encoder = make(tiny_roberta, pooling)
    encoder.count_missing(SENTENCES)
    found = OnnxEncoder(write_export(encoder, Path("out"), "onnx").folder).encode(SENTENCES)
    assert_allclose(found, encoder.encode(SENTENCES), atol=1e-5)
