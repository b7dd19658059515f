"""What the tests of encoders share: encoders on the CPU, and transformers run by hand."""

from functools import partial

import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from transformers import AutoModel, AutoTokenizer

from bertflow.encoder.transformer import TransformerEncoder


def make(folder, *args, **options):
    """An encoder on the CPU."""
    return TransformerEncoder(folder, *args, device="cpu", **options)


@pytest.fixture
def bert_tokenizer(tiny_bert):
    """The tokenizer of the tiny BERT, which a test may change."""
    return AutoTokenizer.from_pretrained(tiny_bert)


@pytest.fixture
def tiny(tiny_bert):
    """Opens the tiny BERT on the CPU."""
    return partial(make, tiny_bert)


def states_of(folder, sentence, model=None):
    """The hidden states of one sentence alone, by layer: arrays (token, dim)."""
    given = AutoTokenizer.from_pretrained(folder)(sentence, return_tensors="pt")
    model = model or AutoModel.from_pretrained(folder)
    with torch.no_grad():
        states = model.eval()(
            input_ids=given["input_ids"], attention_mask=given["attention_mask"], output_hidden_states=True
        ).hidden_states
    return [state[0].numpy() for state in states]


def require_near(found, expected):
    """Equal but for the rounding of float32."""
    assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def require_same(one, other, sentences):
    """Two encoders give sentences the same embeddings, bit by bit."""
    assert_array_equal(one.encode(sentences), other.encode(sentences))


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    """Each test runs in a folder of its own."""
    monkeypatch.chdir(tmp_path)
