"""[CLS] and "I" are equal in two sentences, "rock" and [SEP] are not; their word parts are; the position did it."""

import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from bertflow.studies.tokens import take_apart
from bertflow.tables import Section
from bertflow.words.encoder import WordEncoder

ROCKS = ("I found a rock.", "I only listen to rock.")


@pytest.fixture(scope="module")
def encoder(minilm):
    return WordEncoder(minilm)


@pytest.fixture(scope="module")
def rows(encoder):
    return take_apart(encoder, [encoder.tokenize(text) for text in ROCKS])


@pytest.fixture(scope="module")
def by_piece(rows):
    return {pair["piece"]: pair for pair in rows.compared}


@pytest.fixture(scope="module")
def paired(encoder):
    return {pair["piece"]: pair for pair in take_apart(encoder, [encoder.tokenize(*ROCKS)]).compared}


def model_layer_0(folder, text, **more):
    """Layer 0 by transformers alone, by piece."""
    model, tokenizer = AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    encoded = tokenizer(text, return_tensors="pt")
    with torch.no_grad():
        layer = model(**encoded, **more, output_hidden_states=True).hidden_states[0][0]
    return dict(zip(tokenizer.convert_ids_to_tokens(encoded["input_ids"][0]), layer, strict=True))


def test_the_answer_has_the_pieces_and_no_row_a_token(rows):
    first, second, *_ = rows.answer()
    assert first == "1: [CLS] i found a rock . [SEP]"
    assert second == "2: [CLS] i only listen to rock . [SEP]"
    assert [part.title for part in rows.answer() if isinstance(part, Section)] == [
        "Largest difference of a piece in two places (text:token)"
    ]


def test_the_pieces_that_both_have_are_compared(rows):
    assert [pair["piece"] for pair in rows.compared] == ["[CLS]", "i", "rock", ".", "[SEP]"]
    assert rows.compared[2]["places"] == [(0, 4), (1, 5)]


@pytest.mark.parametrize("piece", ["[CLS]", "i"])
def test_rows_in_the_same_place_are_equal(by_piece, minilm, piece):
    assert by_piece[piece]["row"] == 0
    one, other = (model_layer_0(minilm, text)[piece] for text in ROCKS)
    torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.parametrize("piece", ["rock", "[SEP]"])
def test_rows_in_other_places_are_not(by_piece, minilm, piece):
    one, other = (model_layer_0(minilm, text)[piece] for text in ROCKS)
    assert by_piece[piece]["row"] == pytest.approx(float((one - other).abs().max()), abs=1e-5)
    assert by_piece[piece]["row"] > 0.2


@pytest.mark.parametrize("piece", ["rock", "[SEP]", "."])
def test_their_word_parts_are_equal(by_piece, piece):
    assert by_piece[piece]["word"] == 0


@pytest.mark.parametrize("piece", ["rock", "[SEP]"])
def test_with_the_same_position_forced_they_are_equal_again(by_piece, minilm, piece):
    assert by_piece[piece]["same_position"] == 0
    first = model_layer_0(minilm, ROCKS[0])
    # The model itself, told that the second sentence begins one place to the left: "rock" is at 4, as in the first.
    moved = model_layer_0(minilm, ROCKS[1], position_ids=torch.tensor([[0, 0, 1, 2, 3, 4, 5, 6]]))
    torch.testing.assert_close(first[piece], moved[piece], rtol=0, atol=0)


def test_in_a_pair_the_segment_has_to_be_forced_as_well(paired):
    assert list(paired) == ["i", "rock", "."]
    assert all(pair["same_position"] > 0.1 for pair in paired.values())
    assert all(pair["same_segment"] == pair["word"] == 0 for pair in paired.values())


def test_the_shape_is_layers_texts_tokens_dim(rows):
    assert rows.hidden_states == {"layers": 7, "texts": 2, "tokens": 8, "dim": 384}
    assert [sum(token["mask"] for token in text["tokens"]) for text in rows.texts] == [7, 8]


def test_the_norms_are_those_of_the_matrices(rows, minilm):
    parts = AutoModel.from_pretrained(minilm).embeddings
    row = {
        "word": parts.word_embeddings.weight[2600],
        "position": parts.position_embeddings.weight[4],
        "segment": parts.token_type_embeddings.weight[0],
        "layer 0": model_layer_0(minilm, ROCKS[0])["rock"],
    }
    for name, vector in row.items():
        norm = rows.texts[0]["tokens"][4]["norms"][name]
        assert norm == pytest.approx(float(vector.detach().norm()), rel=1e-5)
    assert rows.difference_from_layer_0 < 1e-5
    assert rows.absent == []


def test_one_text_has_nothing_to_compare_with(tiny_bert):
    encoder = WordEncoder(tiny_bert)
    assert take_apart(encoder, [encoder.tokenize("the dog and the cat")]).compared == []


def test_the_nth_of_a_piece_is_compared_with_the_nth(tiny_bert):
    encoder = WordEncoder(tiny_bert)
    rows = take_apart(encoder, [encoder.tokenize("the dog and the cat"), encoder.tokenize("a the the")])
    places = [pair["places"] for pair in rows.compared if pair["piece"] == "the"]
    assert places == [[(0, 1), (1, 2)], [(0, 4), (1, 3)]]
