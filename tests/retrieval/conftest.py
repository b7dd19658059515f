"""An encoder of made-up embeddings that are the same for the same text, and an index made with it."""

import hashlib

import numpy as np
import pytest

from bertflow.data.corpus import Answer
from bertflow.encoder.abstract import AbstractEncoder
from bertflow.retrieval.index import AnswerIndex

DIM = 8


class FakeEncoder(AbstractEncoder):
    """Random embeddings, seeded by the text; remembers what it was asked for."""

    dim = DIM

    def __init__(self, pooling="mean"):
        self.pooling, self.asked = pooling, []

    def _encode(self, sentences, *_):
        self.asked += sentences
        return np.array([self.row(text) for text in sentences], np.float32).reshape(-1, DIM)

    def row(self, text):
        seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")
        return np.random.default_rng(seed).standard_normal(DIM) + 2

    def describe(self):
        return {"encoder": "fake", "pooling": self.pooling, "layers": [1]}


ANSWERS = [
    Answer("delete", "Press the red button.", ("How do I delete it?", "Can I remove it?")),
    Answer("cost", "It is free."),
    Answer("where", "In the garden.", ("Where is the dog?",)),
]


@pytest.fixture
def encoder():
    return FakeEncoder()


@pytest.fixture
def index(tmp_path, encoder):
    with AnswerIndex.create(tmp_path / "faq.index", encoder, ANSWERS) as index:
        yield index
