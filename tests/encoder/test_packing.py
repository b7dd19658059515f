"""Sentences end to end come out as they do padded: the same tokens, the same layers, to 1e-5."""

import importlib.util
import logging
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
import transformers
from torch import nn

from bertflow.data.docstrings import docstring_sentences
from bertflow.encoder.architecture import FAMILIES
from bertflow.encoder.model import BlockStack
from bertflow.encoder.packing import NAME, VARLEN, Packed, may_pack, packed_attention, use_packing, within_sentences
from bertflow.encoder.transformer import TransformerEncoder

SIZES = {
    "vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 32,
    "max_position_embeddings": 40, "initializer_range": 0.2, "embedding_size": 8,
}  # fmt: skip
PLAIN = [name for name, family in FAMILIES.items() if family.plain]
LENGTHS = (9, 1, 4, 9, 2)


def model_of(name):
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(name, **SIZES)
    if name == "distilbert":  # calls them otherwise
        config.update({"dim": 16, "hidden_dim": 32, "n_layers": 3, "n_heads": 2})
    return transformers.AutoModel.from_config(config).eval()


@pytest.fixture
def batch():
    """Ids and mask of sentences of several lengths, in which also the padding token is read."""
    ids = torch.randint(3, 50, (len(LENGTHS), 9), generator=torch.Generator().manual_seed(1))
    mask = torch.arange(9) < torch.tensor(LENGTHS)[:, None]
    ids[0, 4] = 1  # RoBERTa's padding token, as text: it passes over it where it counts positions
    return torch.where(mask, ids, 1), mask


def stack_of(name):
    return BlockStack(model_of(name), 3, pooler=False)


@torch.no_grad()
@pytest.mark.parametrize("name", PLAIN)
def test_packed_is_as_padded(name, batch):
    ids, mask = batch
    stack = stack_of(name)
    padded = stack.read(ids, mask, [0, 1, 3])
    packed = stack.packing(range(3, 20), [0, 1, 3])
    assert packed.packs
    found = packed.read(ids, mask, [0, 1, 3], int(mask.sum()))
    assert found.keys() == padded.keys() == {0, 1, 3}
    for layer, states in padded.items():
        torch.testing.assert_close(found[layer][mask], states[mask], rtol=0, atol=1e-5)
        assert not found[layer][~mask].any()


@torch.no_grad()
@pytest.mark.parametrize("name", PLAIN)
def test_without_padding_in_the_operators(name, batch):
    ids, mask = batch
    stack, seen = stack_of(name).packing(range(3, 20), [3]), []
    for module in stack.model.modules():
        if isinstance(module, nn.Linear):
            module.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].shape[:2]))
    stack.read(ids, mask, [3], int(mask.sum()))
    assert set(seen) - {(1, 16)} == {(1, sum(LENGTHS))}, "the pooling layer, which these have, reads (1, dim)"


@torch.no_grad()
@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in ("t5", "mt5", "umt5", "modernbert")])
def test_where_nothing_is_padded_no_mask_changes_nothing(name):
    ids = torch.randint(3, 50, (3, 7), generator=torch.Generator().manual_seed(1))
    stack, whole, seen = stack_of(name), torch.ones(3, 7, dtype=torch.bool), []
    forward = stack.model.forward
    with_mask = stack.read(ids, whole, [1, 3])
    object.__setattr__(stack, "takes_mask", True)
    stack.model.forward = lambda **options: seen.append("attention_mask" in options) or forward(**options)
    without = stack.read(ids, whole, [1, 3], 21)
    assert seen == [False]
    for layer in (1, 3):
        torch.testing.assert_close(without[layer], with_mask[layer], rtol=0, atol=0)


@torch.no_grad()
@pytest.mark.parametrize("name", PLAIN)
def test_our_mask_is_the_one_that_transformers_makes(name, batch):
    ids, mask = batch
    stack = stack_of(name)
    theirs, ours = stack.read(ids, mask, [3])[3], stack.read(ids, mask, [3], int(mask.sum()))[3]
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_attention_of_variable_length_is_that_of_each_sentence():
    q, k, v = torch.randn(3, 25, 2, 8)
    starts = torch.tensor([0, 9, 10, 14, 23, 25], dtype=torch.int32)
    found = within_sentences(q, k, v, starts=starts, scale=0.3)
    for start, stop in pairwise(starts.tolist()):
        own = (x[start:stop].transpose(0, 1)[None] for x in (q, k, v))
        alone = nn.functional.scaled_dot_product_attention(*own, scale=0.3)[0].transpose(0, 1)
        torch.testing.assert_close(found[start:stop], alone, rtol=0, atol=1e-6)


def test_packing_and_back(batch):
    ids, mask = batch
    packed = Packed.of(mask, int(mask.sum()))
    assert packed.starts.tolist() == [0, 9, 10, 14, 23, 25]
    assert packed.starts.dtype == torch.int32, "as varlen_attn wants it"
    torch.testing.assert_close(packed.pack(ids)[0], ids[mask])
    states = torch.randn(1, 25, 3)
    torch.testing.assert_close(packed.unpack(states)[mask], states[0])


def test_no_number_is_asked_for():
    mask = torch.ones(4, 6, dtype=torch.bool, device="meta")  # which has none
    packed = Packed.of(mask, 20)
    x = torch.randn(20, 2, 8, device="meta")
    assert packed.pack(mask).shape == (1, 20)
    assert packed.unpack(x.flatten(1)[None]).shape == (4, 6, 16)
    assert within_sentences(x, x, x, starts=packed.starts, scale=None).shape == x.shape


@torch.no_grad()
@pytest.mark.skipif(importlib.util.find_spec(VARLEN) is None, reason="this PyTorch has no attention of variable length")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_pytorchs_attention_of_variable_length_takes_what_it_is_given(monkeypatch, dtype):
    monkeypatch.setattr("bertflow.encoder.packing.within_sentences", pytest.fail)
    stack = replace(stack_of("bert"), packs=True)
    use_packing(stack.model.to("meta", dtype))  # a device with shapes alone, of which PyTorch's own check is asked
    ids = torch.ones(len(LENGTHS), 9, dtype=torch.int64, device="meta")
    found = stack.read(ids, ids.bool(), [1, 3], sum(LENGTHS))
    assert {layer: (x.shape, x.dtype) for layer, x in found.items()} == dict.fromkeys((1, 3), ((5, 9, 16), dtype))


@torch.no_grad()
@pytest.mark.skipif(importlib.util.find_spec(VARLEN) is None, reason="this PyTorch has no attention of variable length")
def test_the_attention_of_pytorch_2_10_has_no_scale(monkeypatch):
    def of_2_10(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, is_causal=False, return_aux=None):
        return torch.empty_like(query)

    monkeypatch.setattr(importlib.import_module(VARLEN), "varlen_attn", of_2_10)
    q, starts = torch.empty(1, 2, 5, 8, device="meta", dtype=torch.bfloat16), torch.empty(3, device="meta")
    packed = Packed(torch.empty(5, device="meta"), starts, 3, (2, 3))
    given = (nn.Identity(), q, q, q, None)
    for scaling in (None, 8**-0.5):  # by which it divides anyway
        assert packed_attention(*given, scaling=scaling, packed=packed)[0].shape == (1, 5, 2, 8)
    with pytest.raises(TypeError, match="scale"):
        packed_attention(*given, scaling=0.3, packed=packed)


def test_a_model_that_packs_is_padded_where_it_must_be(tiny_bert, batch):
    ids, mask = batch
    stack = stack_of("bert").packing(range(3, 20), [3])
    stack.model.train()  # varlen_attn has no dropout
    seen = []
    stack.model.embeddings.register_forward_pre_hook(lambda _, args, kwargs: seen.append(kwargs), with_kwargs=True)
    stack.read(ids, mask, [3], int(mask.sum()))
    assert seen[0]["input_ids"].shape == ids.shape


@pytest.mark.parametrize(("name", "pooler"), [("mpnet", False), ("gpt2", False), ("bert", True)])
def test_what_cannot_be_packed_is_padded(name, pooler):
    stack = replace(stack_of(name), pooler=pooler)
    assert stack.packing(range(3, 20), [3]) is stack
    assert stack.model.config._attn_implementation != NAME


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("FlashAttention only supports Ampere GPUs or newer."),
        TypeError("varlen_attn() got an unexpected keyword argument 'scale'"),
    ],
    ids=["an old GPU", "an old PyTorch"],
)
def test_an_attention_that_cannot_is_said(monkeypatch, caplog, error):
    def cannot(*args, **options):
        raise error

    monkeypatch.setattr("bertflow.encoder.packing.within_sentences", cannot)
    stack = stack_of("bert")
    with caplog.at_level(logging.INFO):
        assert stack.packing(range(3, 20), [3]) is stack
    assert caplog.messages == [f"Sentences are padded, not packed: {str(error).rstrip('.')}."]


def test_another_answer_is_not_taken(monkeypatch, caplog):
    monkeypatch.setattr("bertflow.encoder.packing.within_sentences", lambda q, k, v, **_: v.roll(1, 0))
    stack = stack_of("bert")
    with caplog.at_level(logging.INFO):
        assert stack.packing(range(3, 20), [3]) is stack
    assert caplog.messages == ["Sentences are padded, not packed: packed, they come out otherwise."]


def test_on_a_cpu_nothing_is_packed(tiny_bert):
    encoder = TransformerEncoder(tiny_bert, device="cpu", dtype="bfloat16")
    assert not may_pack(encoder.model)
    assert not encoder._stack.packs
    assert encoder.model.config._attn_implementation == "sdpa"


def test_a_packing_encoder_is_saved_as_any_other(tiny_bert, tmp_path):
    encoder = TransformerEncoder(tiny_bert, device="cpu")
    use_packing(encoder._stack.model)
    encoder.save(tmp_path / "saved")
    assert NAME not in (tmp_path / "saved" / "config.json").read_text()
    sentences = ["the dog sings", "a cat"]
    np.testing.assert_array_equal(
        TransformerEncoder(tmp_path / "saved", device="cpu").encode(sentences),
        TransformerEncoder(tiny_bert, device="cpu").encode(sentences),
    )


@pytest.mark.slow
def test_a_real_encoder_is_the_same_packed(minilm):
    sentences = docstring_sentences()[::500]
    encoder = TransformerEncoder(minilm, "mean(1,6)", device="cpu")
    padded = encoder.encode(sentences)
    encoder._stack = encoder._stack.packing(range(2000, 2100), [1, 6])
    assert encoder._stack.packs
    np.testing.assert_allclose(encoder.encode(sentences), padded, rtol=0, atol=1e-5)
