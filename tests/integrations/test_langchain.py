"""LangChain's own vector store is the second voice."""

import asyncio

import numpy as np
import pytest

from bertflow.calibrated import CalibratedEncoder
from bertflow.calibration.closed_forms import Whitening
from bertflow.encoder.transformer import TransformerEncoder

pytest.importorskip("langchain_core", reason="the langchain extra is not installed")

from langchain_core.vectorstores import InMemoryVectorStore

from bertflow.integrations.langchain import BertflowEmbeddings

TEXTS = ["the dog runs", "a cat sleeps", "the bird sings in the garden", "a man eats and the dog sleeps"]


@pytest.fixture(scope="module")
def encoder(tiny_bert):
    raw = TransformerEncoder(tiny_bert, device="cpu")
    text = [
        f"{article} {noun} {verb}" for article in ("the", "a") for noun in ("dog", "cat") for verb in ("runs", "eats")
    ]
    return CalibratedEncoder.fit(raw, Whitening(n_components=4), text)


@pytest.fixture
def embeddings(encoder):
    return BertflowEmbeddings(encoder)


def test_it_embeds_as_the_encoder_does(embeddings, encoder):
    np.testing.assert_array_equal(np.float32(embeddings.embed_documents(TEXTS)), encoder.encode(TEXTS))
    np.testing.assert_allclose(embeddings.embed_query(TEXTS[0]), encoder.encode(TEXTS[:1])[0], atol=1e-5)


def test_numbers_are_plain_floats(embeddings):
    assert {type(x) for row in embeddings.embed_documents(TEXTS) for x in row} == {float}
    assert embeddings.embed_documents([]) == []


def test_the_asynchronous_methods_give_the_same(embeddings):
    assert asyncio.run(embeddings.aembed_documents(TEXTS)) == embeddings.embed_documents(TEXTS)
    assert asyncio.run(embeddings.aembed_query(TEXTS[1])) == embeddings.embed_query(TEXTS[1])


def test_langchains_own_store_finds_with_it_what_cosines_find(embeddings, encoder):
    store = InMemoryVectorStore.from_texts(TEXTS, embeddings)
    x, (question,) = encoder.encode(TEXTS), encoder.encode(["the cat eats"])
    cosines = x @ question / np.linalg.norm(x, axis=1) / np.linalg.norm(question)
    found = store.similarity_search("the cat eats", k=4)
    assert [document.page_content for document in found] == [TEXTS[row] for row in np.argsort(-cosines)]
