"""Weights that are packed for one call: products by weights as they lie are the second voice."""

import copy
import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

from bertflow import onednn
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.encoder.words import encode_words
from bertflow.errors import DataError
from bertflow.onednn import FORWARD, Linear, prepacked

WORDS = ("man", "dog", "cat", "bird", "house", "garden")
SENTENCES = [" ".join(WORDS[(row + at) % 6] for at in range(1 + row % 9)) for row in range(60)]
DTYPES = ("float32", "bfloat16")
BITWISE = "amx_bf16" not in onednn.instruction_sets()
"""Where it is known that packed and unpacked products in bfloat16 have the same bits."""


@pytest.fixture(params=DTYPES)
def dtype(request, monkeypatch):
    """Each precision whose weights can be packed here; also of the smallest call."""
    if not torch.backends.mkldnn.is_available():
        pytest.skip("a PyTorch without oneDNN")
    if request.param == "bfloat16" and not onednn.PACKS_BFLOAT16:
        pytest.skip("a processor without products in bfloat16 by oneDNN")
    monkeypatch.setattr(onednn, "THROUGH_ONEDNN", (FORWARD,))
    monkeypatch.setattr(onednn, "ENOUGH", 0)
    monkeypatch.setattr(onednn, "LONG", 100)
    return request.param


@pytest.fixture
def encoder(tiny_bert, dtype):
    return TransformerEncoder(tiny_bert, "mean(1,4)", device="cpu", dtype=dtype)


def layers(dtype, *widths):
    generator = torch.Generator().manual_seed(0)
    made = [Linear(a, b, dtype=getattr(torch, dtype)) for a, b in pairwise(widths)]
    for layer in made:
        layer.weight.data.normal_(generator=generator)
    return nn.Sequential(*made)


def packs_of(encoder):
    """How many weights are packed whenever the encoder's first layer is run."""
    found = []

    def see(*_):
        found.append(None if (packed := onednn._packed.get()) is None else len(packed))

    encoder._stack.model.encoder.layer[0].intermediate.dense.register_forward_hook(see)
    return found


def assert_same(made, wanted):
    if BITWISE or made.dtype == torch.float32:
        assert torch.equal(made, wanted)
    else:
        torch.testing.assert_close(made, wanted)


@torch.no_grad()
@pytest.mark.parametrize("shape", [(1,), (2,), (1, 3), (3, 7), (1000,), (40, 25)], ids=str)
def test_products_are_the_same_and_each_weight_is_packed_once(dtype, shape):
    model = layers(dtype, 96, 160, 96)
    x = torch.randn(*shape, 96, generator=torch.Generator().manual_seed(1)).to(getattr(torch, dtype))
    wanted = model(x)
    with prepacked(100):
        for _ in range(3):
            assert_same(model(x), wanted)
        packed = onednn._packed.get()
        assert list(packed) == ([] if shape == (1,) else list(model))
        assert all(weight.is_mkldnn for weight in packed.values())
    assert onednn._packed.get() is None


@torch.no_grad()
@pytest.mark.parametrize(
    "spoil",
    [
        lambda model, patch: patch.setattr(onednn, "LONG", 101),
        lambda model, patch: patch.setattr(torch.backends.mkldnn, "enabled", False),
        lambda model, patch: (patch.setattr(onednn, "THROUGH_ONEDNN", ()), patch.setattr(onednn, "PACKS_BFLOAT16", 0)),
        lambda model, patch: patch.setattr(onednn, "ENOUGH", 10**9),
        lambda model, patch: setattr(model[0], "weight", nn.Parameter(model[0].weight.t().contiguous().t())),
        lambda model, patch: nn.utils.parametrizations.weight_norm(model[0]),
    ],
    ids=["short", "switched off", "another processor", "few numbers", "laid crosswise", "parametrized"],
)
def test_what_does_not_suit_is_not_packed(dtype, monkeypatch, spoil):
    model, x = layers(dtype, 96, 96), torch.ones(5, 96, dtype=getattr(torch, dtype))
    spoil(model, monkeypatch)
    wanted = model(x)
    with prepacked(100):
        torch.testing.assert_close(model(x), wanted)
        assert not onednn._packed.get()


def test_gradients_are_those_of_the_weights_as_they_are(dtype):
    model, x = layers(dtype, 96, 96), torch.ones(5, 96, dtype=getattr(torch, dtype))
    with prepacked(100):
        model(x).float().sum().backward()
        assert not onednn._packed.get()
    assert torch.equal(model[0].weight.grad.float(), torch.full((96, 96), 5.0))


def test_every_long_call_packs_and_no_other_sees_it(encoder):
    found = packs_of(encoder)
    calls = {
        "encode": lambda: encoder.encode(SENTENCES),
        "encode_poolings": lambda: encoder.encode_poolings(SENTENCES, ["cls", "mean"]),
        "embed": lambda: encoder.embed(SENTENCES, dropout=True),
        "encode_chunks": lambda: encoder.encode_chunks(SENTENCES, "tokens:8:0"),
        "encode_words": lambda: encode_words(encoder, [text.split() for text in SENTENCES], ["mean"]),
    }
    for name, call in calls.items():
        found.clear()
        call()
        assert found, name
        assert min(found) > 0, name
        assert onednn._packed.get() is None
    found.clear()
    encoder.encode(SENTENCES[:3])
    assert found == [None]


def test_vectors_are_those_of_weights_as_they_lie(encoder, monkeypatch):
    packed = encoder.encode(SENTENCES)
    monkeypatch.setattr(onednn, "LONG", 10**9)
    assert_same(torch.from_numpy(packed), torch.from_numpy(encoder.encode(SENTENCES)))


def test_training_in_place_changes_the_next_call(encoder, monkeypatch):
    before = encoder.encode(SENTENCES)
    with torch.no_grad():
        for weight in encoder.model.parameters():
            weight.mul_(1.5)
    after = encoder.encode(SENTENCES)
    assert np.abs(after - before).max() > 0.01
    monkeypatch.setattr(onednn, "LONG", 10**9)
    assert_same(torch.from_numpy(after), torch.from_numpy(encoder.encode(SENTENCES)))


def test_nothing_packed_is_left_on_the_model(encoder):
    def state():
        return {name: sorted(vars(module)) for name, module in model.named_modules()}, list(model.state_dict())

    model = encoder.model
    encoder.embed(SENTENCES[:1])  # transformers leaves its hooks
    before = state()
    encoder.encode(SENTENCES)
    with prepacked(100), torch.no_grad():
        encoder.embed_batch(encoder.padded(encoder.tokenized(SENTENCES), np.arange(60)))
        assert onednn._packed.get()
        assert state() == before
        assert not set(copy.deepcopy(model).modules()) & set(onednn._packed.get())
    assert state() == before
    assert {type(value) for value in model.state_dict().values()} == {torch.Tensor}


def test_nothing_packed_is_left_after_an_error(encoder):
    encoder.model.encoder.layer[3].output.dense.bias.data[0] = torch.nan
    with pytest.raises(DataError, match="must be finite"):
        encoder.encode(SENTENCES)
    assert onednn._packed.get() is None
    found = packs_of(encoder)
    encoder.model.encoder.layer[2].register_forward_hook(lambda *_: [][0])
    with pytest.raises(IndexError):
        encoder.encode(SENTENCES)
    assert found[0] > 0
    assert onednn._packed.get() is None


def test_threads_that_encode_at_once_are_each_right(tiny_bert, encoder):
    texts = [SENTENCES, SENTENCES[::-1], [text + " garden" for text in SENTENCES], SENTENCES[:2]]
    wanted = [encoder.encode(text) for text in texts]
    together = threading.Barrier(3, timeout=60)
    # The three long calls wait for each other in their first batch, with their weights packed.
    waited = threading.local()

    def wait(*_):
        if onednn._packed.get() and not getattr(waited, "done", False):
            waited.done = True
            together.wait()

    encoder.model.encoder.layer[1].register_forward_hook(wait)
    with ThreadPoolExecutor(4) as threads:
        made = list(threads.map(encoder.encode, texts))
    for found, expected in zip(made, wanted, strict=True):
        assert np.array_equal(found, expected)


@torch.no_grad()
def test_another_thread_trains_while_one_has_packed(dtype):
    model, x = layers(dtype, 96, 96), torch.ones(5, 96, dtype=getattr(torch, dtype))
    with prepacked(100), ThreadPoolExecutor(1) as thread:
        before = model(x)
        model[0].weight.mul_(2)
        model[0].bias.mul_(2)
        torch.testing.assert_close(thread.submit(torch.no_grad()(model), x).result(), 2 * before)


@pytest.mark.parametrize("within", [False, True])
def test_a_graph_that_is_exported_has_torchs_operator(dtype, within):
    model, x = layers(dtype, 96, 96), torch.ones(50, 96, dtype=getattr(torch, dtype))
    with torch.no_grad(), prepacked(100 if within else 0):
        program = torch.export.export(model, (x,))
    assert "aten.linear.default" in {str(node.target) for node in program.graph.nodes}
