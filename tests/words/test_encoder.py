"""Vectors of words; the second voice is the transformers model itself, and plain means over its hidden states."""

import numpy as np
import pytest
import torch
from transformers import AutoModel, AutoTokenizer, DistilBertConfig, DistilBertModel

from bertflow.encoder.transformer import TransformerEncoder
from bertflow.errors import DataError, UnknownNameError, UsageError
from bertflow.words.encoder import WordEncoder, read_static_words
from bertflow.words.study import Mention

SENTENCE = "the big dogs and the red dogs"  # dogs: two pieces, twice


@pytest.fixture(scope="module")
def encoder(tiny_bert):
    return WordEncoder(tiny_bert)


@pytest.fixture(scope="module")
def states(tiny_bert):
    """All layers of the sentence, each (token, dim), for each segment."""
    model, tokenizer = AutoModel.from_pretrained(tiny_bert).eval(), AutoTokenizer.from_pretrained(tiny_bert)
    encoded = tokenizer(SENTENCE, return_tensors="pt")
    assert tokenizer.convert_ids_to_tokens(encoded["input_ids"][0, 3:5].tolist()) == ["dog", "##s"]
    found = {}
    for segment in (0, 1):
        encoded["token_type_ids"] = torch.full_like(encoded["input_ids"], segment)
        with torch.no_grad():
            found[segment] = [layer[0] for layer in model(**encoded, output_hidden_states=True).hidden_states]
    return found


@pytest.mark.parametrize(
    ("mention", "pooling", "kind", "message"),
    [
        *((Mention("dogs", SENTENCE), f"{tokens}{layers}", UsageError,
           f"The pooling {tokens}{layers} is for sentences: {tokens} has no meaning for the pieces of one word. Use "
           "mean, max, cls (the first piece) or last-token, as in mean(3).")
          for tokens, layers in (("sif", "(3)"), ("soft-sif", ""), ("pooler", ""))),
        (Mention("dogs", SENTENCE), "mean(9)", UsageError, "reads layer 9, but the encoder has 4 blocks"),
        (Mention("dogs", SENTENCE), "median", UnknownNameError, "Unknown pooling 'median'"),
        (Mention("dogs", SENTENCE, segment=2), "mean", UsageError,
         "Segment 2 was asked for, but this is a bert, and it knows segments 0 to 1. Leave it out."),
        (Mention("dog", "dog " * 70), "mean", DataError, "has 72 tokens, and this model reads 64"),
    ],
)  # fmt: skip
def test_what_a_word_cannot_have_is_refused(encoder, mention, pooling, kind, message, refusal):
    assert message in refusal(encoder.contextual, [mention], [pooling], error=kind)


@pytest.mark.parametrize("segment", [0, 1])
def test_the_segment_is_as_the_user_wants(encoder, states, segment):
    x = encoder.contextual([Mention("red", SENTENCE, segment=segment)], ["mean(2)"])["mean(2)"]
    torch.testing.assert_close(torch.from_numpy(x[0]), states[segment][2][7])


def test_mentions_do_not_see_each_other(encoder):
    mentions = [Mention("red", SENTENCE), Mention("cat", "a cat"), Mention("dogs", SENTENCE)]
    together = encoder.contextual(mentions, ["mean(3)"])["mean(3)"]
    alone = [encoder.contextual([mention], ["mean(3)"])["mean(3)"][0] for mention in mentions]
    np.testing.assert_array_equal(together, alone)


def test_a_sentence_of_one_word_agrees_with_the_sentence_encoder(tiny_bert, encoder):
    pooled = TransformerEncoder(tiny_bert, pooling="content(1,3)", device="cpu").encode(["dogs"])
    x = encoder.contextual([Mention("dogs", "dogs")], ["mean(1,3)"])["mean(1,3)"]
    np.testing.assert_allclose(x, pooled, rtol=1e-5, atol=1e-6)


def test_a_static_vector_is_rows_of_the_embedding_matrix(tiny_bert, encoder):
    matrix = AutoModel.from_pretrained(tiny_bert).embeddings.word_embeddings.weight.detach()
    dog, more = AutoTokenizer.from_pretrained(tiny_bert).convert_tokens_to_ids(["dog", "##s"])
    x = encoder.static(["dog", "DOGS"])
    torch.testing.assert_close(torch.from_numpy(x), torch.stack([matrix[dog], (matrix[dog] + matrix[more]) / 2]))
    torch.testing.assert_close(torch.from_numpy(encoder.static(["dogs"], "last-token(3)")[0]), matrix[more])


def test_a_model_without_segments_reads_pairs_and_refuses_segments(tiny_bert, tmp_path):
    config = DistilBertConfig(vocab_size=25, dim=16, n_layers=2, n_heads=2, hidden_dim=32, max_position_embeddings=64)
    DistilBertModel(config).save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(tiny_bert).save_pretrained(tmp_path)
    encoder = WordEncoder(tmp_path)
    assert set(encoder.tokenize("the dog", "a cat").segments) == {0}
    with pytest.raises(UsageError, match="Segment 0 was asked for, but this is a distilbert, and it has no segments"):
        encoder.tokenize("the dog", segment=0)
    assert encoder.contextual([Mention("dog", "the dog")], ["mean(2)"])["mean(2)"].shape == (1, 16)


def test_a_saved_encoder_knows_the_layers_it_keeps(tiny_bert, tmp_path, states):
    TransformerEncoder(tiny_bert, pooling="mean(2)", device="cpu").save(tmp_path / "saved")
    saved = WordEncoder(tmp_path / "saved")
    assert saved.blocks == 2
    x = saved.contextual([Mention("red", SENTENCE)], ["mean(2)"])["mean(2)"]
    torch.testing.assert_close(torch.from_numpy(x[0]), states[0][2][7])
    with pytest.raises(UsageError, match="keeps blocks 1 to 2 of 4, but layer 4 is asked for"):
        saved.contextual([Mention("red", SENTENCE)], ["mean(-1)"])


def test_static_words_are_rows_of_the_embedding_matrix(tiny_bert):
    words, vectors = read_static_words(tiny_bert)
    row = AutoTokenizer.from_pretrained(tiny_bert).convert_tokens_to_ids("dog")
    matrix = AutoModel.from_pretrained(tiny_bert).get_input_embeddings().weight.detach().numpy()
    np.testing.assert_array_equal(vectors[words.index("dog")], matrix[row])
