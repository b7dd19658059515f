"""PyTorch's attention in float64 is the judge, its kernel in bfloat16 the second voice."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from bertflow import onednn
from bertflow.encoder import attention, model
from bertflow.encoder.attention import LANES, LONG, SHORT, short_attention
from bertflow.onednn import Linear, PackedLinear

from .conftest import make, require_same

HALF = torch.bfloat16
SENTENCES = ["a dog", "the dog and a cat", "cat", "", "the cat and the dog and the cat", "a cat " * 40]


def three(tokens, n=5, heads=3, dim=16, dtype=HALF):
    generator = torch.Generator().manual_seed(tokens)
    return [torch.randn(n, tokens, heads, dim, generator=generator).to(dtype).transpose(1, 2) for _ in range(3)]


def masks(tokens, n=5):
    padded = torch.arange(tokens) < torch.tensor([[max(1, tokens - k)] for k in range(n)])
    return {
        "none": None,
        "keys": padded[:, None, None],
        "each token's": padded[:, None, None].expand(-1, 1, tokens, -1),
        "causal": torch.ones(tokens, tokens).tril().bool()[None, None],
    }


@torch.no_grad()
@pytest.mark.parametrize("kind", masks(1))
@pytest.mark.parametrize("tokens", [1, 2, 5, 14, 31, LANES])
@pytest.mark.parametrize("scaling", [None, 0.5])
def test_it_is_attention(tokens, kind, scaling, monkeypatch):
    monkeypatch.setattr(attention, "sdpa_attention_forward", None)
    given, mask = three(tokens), masks(tokens)[kind]
    found, weights = short_attention(None, *given, mask, scaling=scaling)
    exact = scaled_dot_product_attention(*(one.double() for one in given), mask, scale=scaling).transpose(1, 2)
    assert weights is None
    assert (found.dtype, found.shape) == (HALF, exact.shape)
    assert ((found.double() - exact).norm() / exact.norm()).item() < 0.01


class Block:
    """What transformers' attention reads of a block."""

    is_causal = False


NOT_OURS = {
    "long": (three(LANES + 1), {}),
    "float32": (three(5, dtype=torch.float32), {}),
    "dropout": (three(5), {"dropout": 0.5}),
    "learns": (three(5), {"learns": True}),
    "without oneDNN": (three(5), {"enabled": False}),
    "a mask of numbers": (three(5), {"mask": torch.zeros(1, 1, 5, 5, dtype=HALF)}),
}


@pytest.mark.parametrize(("given", "how"), NOT_OURS.values(), ids=NOT_OURS)
def test_all_else_goes_to_pytorchs_kernel(given, how, monkeypatch):
    monkeypatch.setattr(attention, "_padded", None)
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", how.get("enabled", True))
    found = []
    for call in (short_attention, sdpa_attention_forward):
        torch.manual_seed(0)
        with torch.set_grad_enabled("learns" in how):
            found.append(call(Block(), *given, how.get("mask"), dropout=how.get("dropout", 0.0))[0])
    assert torch.equal(*found)


@pytest.fixture
def amx(monkeypatch):
    """A processor with AMX; the products are made by whatever this one has."""
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        pytest.skip("This processor has no products in bfloat16 for oneDNN")
    monkeypatch.setattr(onednn, "THROUGH_ONEDNN", (onednn.PACKED,))
    monkeypatch.setattr(model, "computed_in", lambda dtype, device: dtype)


def open_in_half(folder, pooling="mean(1,2)"):
    return make(folder, pooling, dtype="bfloat16")


def kinds(of):
    return {type(module) for module in of.modules() if isinstance(module, torch.nn.Linear)}


@pytest.mark.usefixtures("amx")
def test_an_encoder_in_bfloat16_is_fast_until_others_get_its_model(tiny_bert):
    encoder = open_in_half(tiny_bert)
    blocks = encoder.stack.model
    assert (kinds(blocks), blocks.config._attn_implementation) == ({PackedLinear}, SHORT)
    found, exact = encoder.encode(SENTENCES), make(tiny_bert, "mean(1,2)").encode(SENTENCES)
    lent = encoder.model
    assert lent is blocks
    assert (kinds(lent), lent.config._attn_implementation) == ({Linear}, LONG)
    assert pickle.loads(pickle.dumps(lent)).config._attn_implementation == LONG
    plain = encoder.encode(SENTENCES)
    errors = [np.linalg.norm(one - exact) / np.linalg.norm(exact) for one in (found, plain)]
    assert 0 < errors[0] < 1.5 * errors[1] < 0.02
    with torch.no_grad():
        lent.encoder.layer[0].output.dense.weight.mul_(2)
    assert np.abs(encoder.encode(SENTENCES) - plain).max() > 0.05


@pytest.mark.usefixtures("amx")
def test_what_is_saved_knows_nothing_of_it(tiny_bert):
    open_in_half(tiny_bert).save("fast")
    fast = open_in_half("fast")
    assert SHORT not in Path("fast/config.json").read_text()
    require_same(fast, open_in_half(tiny_bert), SENTENCES)


@pytest.mark.usefixtures("amx")
def test_float32_stays_as_it_is(tiny):
    blocks = tiny().stack.model
    assert (kinds(blocks), blocks.config._attn_implementation) == ({Linear}, LONG)
