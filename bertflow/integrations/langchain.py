"""Any ``SentenceEncoder``, raw or calibrated, as LangChain's ``Embeddings``.

    embeddings = BertflowEmbeddings(CalibratedEncoder.load("folder"))
    store = InMemoryVectorStore.from_texts(texts, embeddings)

Queries are embedded with the encoder's prompt for queries, if it has one. LangChain's asynchronous methods run these
methods in a thread.
"""

from collections.abc import Sequence
from typing import cast

from bertflow.encoder.abstract import SentenceEncoder
from bertflow.errors import needs
from bertflow.opening import load

with needs("langchain-core", "langchain"):
    from langchain_core.embeddings import Embeddings


class BertflowEmbeddings(Embeddings):
    """An encoder that LangChain can use.

    Args:
        encoder: An encoder, or what ``bertflow.load`` opens: a hub id or a folder.
    """

    def __init__(self, encoder: SentenceEncoder | str) -> None:
        self.encoder = load(encoder) if isinstance(encoder, str) else encoder

    def embed_documents(self, texts: Sequence[str]) -> list[list[float]]:
        """One embedding a text, in the order given."""
        return cast(list[list[float]], self.encoder.encode_document(list(texts)).tolist())

    def embed_query(self, text: str) -> list[float]:
        """The embedding of a query."""
        return cast(list[float], self.encoder.encode_query([text])[0].tolist())
