"""Truncated equals full, for every family; the second voice is the whole model's own ``hidden_states``."""

import json
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers
from numpy.testing import assert_allclose
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModel, AutoModelForTextEncoding, AutoTokenizer, PreTrainedTokenizerFast

from bertflow.encoder.architecture import FAMILIES
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.errors import DataError, UsageError

from .conftest import make, require_near, require_same, states_of

BLOCKS = 4
SIZE = {
    "hidden_size": 16, "num_hidden_layers": BLOCKS, "num_attention_heads": 2, "intermediate_size": 32, "vocab_size": 30,
    "max_position_embeddings": 40, "pad_token_id": 0,
}  # fmt: skip
DISTILBERT = {"dim": 16, "n_layers": BLOCKS, "n_heads": 2, "hidden_dim": 32, "vocab_size": 30}
SPECIAL = {"bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3}
T5 = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": BLOCKS, "num_heads": 2, "vocab_size": 30, "pad_token_id": 0}
CONFIGS = {
    "albert": ("AlbertConfig", {**SIZE, "embedding_size": 8}),
    "albert-groups": ("AlbertConfig", {**SIZE, "embedding_size": 8, "num_hidden_groups": 2}),  # runs whole
    "bert": ("BertConfig", SIZE),
    "distilbert": ("DistilBertConfig", {**DISTILBERT, "max_position_embeddings": 40}),
    "electra": ("ElectraConfig", {**SIZE, "embedding_size": 8}),
    "gpt2": ("GPT2Config", {"n_embd": 16, "n_layer": BLOCKS, "n_head": 2, "vocab_size": 30, "n_positions": 40}),
    "modernbert": ("ModernBertConfig", {**SIZE, "local_attention": 4, **SPECIAL}),
    "mpnet": ("MPNetConfig", SIZE),
    "roberta": ("RobertaConfig", SIZE),
    "mt5": ("MT5Config", T5),
    "roformer": ("RoFormerConfig", {**SIZE, "embedding_size": 16}),  # no family of ours: runs whole
    "t5": ("T5Config", T5),
    "umt5": ("UMT5Config", T5),
    "xlm-roberta": ("XLMRobertaConfig", SIZE),
}
SENTENCES = ["the dog sings", "a", "", "the big red bird eats in the green garden and sleeps .", "a cat"]


def word_tokenizer(vocabulary):
    """A tokenizer as GPT-2's: no special tokens around a text, none for padding."""
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(tokenizer_object=words, unk_token="[UNK]", eos_token="[SEP]")


@pytest.fixture(scope="module", params=CONFIGS)
def family(request, tiny_bert, tmp_path_factory):
    """Folder of a random model of the family, and that model whole."""
    folder = tmp_path_factory.mktemp(request.param)
    name, size = CONFIGS[request.param]
    torch.manual_seed(0)
    config = getattr(transformers, name)(**size)
    model = (AutoModelForTextEncoding if size is T5 else AutoModel).from_config(config).eval()
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    model.save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(tiny_bert)
    if request.param == "gpt2":
        tokenizer = word_tokenizer(tokenizer.get_vocab())
    tokenizer.save_pretrained(folder)
    sentences = [sentence for sentence in SENTENCES if sentence or request.param != "gpt2"]
    return SimpleNamespace(name=request.param, folder=folder, model=model, sentences=sentences)


@pytest.mark.parametrize("layer", range(BLOCKS + 1))
def test_a_layer_of_the_truncated_model_is_that_of_the_whole(family, layer):
    found = make(family.folder, f"mean({layer})").encode(family.sentences)
    states = [states_of(family.folder, sentence, family.model) for sentence in family.sentences]
    assert {len(layers) for layers in states} == {BLOCKS + 1}
    expected = [layers[layer].mean(0) for layers in states]
    assert_allclose(found, expected, rtol=1e-5, atol=2e-6)


def test_a_saved_encoder_of_every_family_is_bit_identical(family, tmp_path):
    encoder = make(family.folder, "mean(2,-2)")
    encoder.save(tmp_path / "saved")
    require_same(make(tmp_path / "saved"), encoder, family.sentences)


def test_the_longest_sentence_a_model_can_read_is_known(family):
    # Positions up to the padding index are never used; MPNet's is 1 whatever its config says.
    reserved = {"roberta": 1, "xlm-roberta": 1, "mpnet": 2}.get(family.name, 0)
    encoder = make(family.folder, "mean(1)")
    longest = 64 if family.name in ("t5", "mt5", "umt5") else 40 - reserved  # T5 counts none: what the tokenizer says
    assert encoder.describe()["max_length"] == longest
    assert np.isfinite(encoder.encode(["dog " * 60])).all()


@pytest.mark.parametrize(("pooling", "blocks"), [("mean(0)", 0), ("mean(2)", 2), ("mean(1,-2)", 3), ("mean", 4)])
def test_only_the_blocks_needed_are_loaded(tiny_bert, pooling, blocks, tmp_path):
    TransformerEncoder(tiny_bert, pooling).save(tmp_path / "saved")
    assert json.loads((tmp_path / "saved/config.json").read_text())["num_hidden_layers"] == blocks


def test_the_families_listed_are_the_families_tested():
    assert set(FAMILIES) <= set(CONFIGS)


@pytest.mark.parametrize("family", ["gpt2"], indirect=True)
def test_a_model_without_padding_and_special_tokens_reads_each_sentence_as_if_alone(refusal, family):
    encoder = make(family.folder, "last-token")
    alone = np.concatenate([encoder.encode([sentence]) for sentence in family.sentences])
    require_near(encoder.encode(family.sentences), alone)
    assert refusal(encoder.encode, ["a dog", ""]) == "Sentence 1 ('') has no tokens for this model. Leave it out."


def test_weights_that_are_missing_are_not_made_up(refusal, tiny_bert, tmp_path):
    shutil.copytree(tiny_bert, tmp_path, dirs_exist_ok=True)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["encoder.layer.1.output.dense.bias"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert refusal(lambda: TransformerEncoder(tmp_path).encode(["a dog"])) == (
        f"The weights in {tmp_path} lack 1 tensors, encoder.layer.1.output.dense.bias the first, which would be "
        "random. Give the complete model, or a pooling that does not need them."
    )


def test_a_damaged_weight_file_is_named(tiny_bert, tmp_path):
    shutil.copytree(tiny_bert, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(DataError, match=f"^The weights in {tmp_path} cannot be loaded: .*incomplete"):
        TransformerEncoder(tmp_path).encode(["a dog"])


def test_the_pooler_is_the_models_own(tiny_bert, bert_tokenizer):
    inputs = bert_tokenizer("the dog sings", return_tensors="pt")
    with torch.no_grad():
        expected = AutoModel.from_pretrained(tiny_bert)(**inputs).pooler_output
    encoder = make(tiny_bert, "pooler")
    require_near(encoder.encode(["the dog sings"]), expected)


@pytest.mark.parametrize("family", ["distilbert", "electra", "gpt2", "modernbert"], indirect=True)
def test_a_model_without_a_pooler_is_refused(refusal, family):
    said = refusal(TransformerEncoder, family.folder, "pooler", error=UsageError)
    assert said == f"The pooling pooler needs BERT's pooling layer, and {family.name} has none. Use cls."


NO_STACK = {
    "BartConfig": "it is an encoder with a decoder; only those of T5, mT5 and UMT5 can be read without",
    "CLIPConfig": "it has several (text_config, vision_config)",
    "ViTConfig": "it reads no text",
}


@pytest.mark.parametrize(("config", "why"), NO_STACK.items())
def test_a_model_that_is_no_stack_of_blocks_is_refused(refusal, tmp_path, config, why):
    config = getattr(transformers, config)()
    config.save_pretrained(tmp_path)
    assert refusal(TransformerEncoder, tmp_path, error=UsageError) == (
        f"{tmp_path} is a model of type {config.model_type}, but sentences need one stack of blocks that reads text: "
        f"{why}. Choose another model, such as BERT, RoBERTa, MPNet, T5 or GPT-2."
    )
