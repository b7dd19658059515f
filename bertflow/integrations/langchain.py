"""Any ``SentenceEncoder``, raw or calibrated, as LangChain's ``Embeddings``.

    embeddings = BertflowEmbeddings(CalibratedEncoder.load("folder"))
    store = InMemoryVectorStore.from_texts(texts, embeddings)

Questions and documents are embedded alike; LangChain's asynchronous methods run these in a thread.
"""

from collections.abc import Sequence

from bertflow.encoder.abstract import SentenceEncoder
from bertflow.errors import MissingExtraError

try:
    from langchain_core.embeddings import Embeddings
except ImportError:
    raise MissingExtraError("langchain-core", "langchain") from None


class BertflowEmbeddings(Embeddings):
    """An encoder that LangChain can use.

    Args:
        encoder: What embeds; or the name of one, as ``open_encoder`` takes it.
    """

    def __init__(self, encoder: SentenceEncoder | str) -> None:
        if isinstance(encoder, str):
            from bertflow.opening import open_encoder

            encoder = open_encoder(encoder)
        self.encoder = encoder

    def embed_documents(self, texts: Sequence[str]) -> list[list[float]]:
        """One embedding a text, in the order given."""
        rows: list[list[float]] = self.encoder.encode(list(texts)).tolist()
        return rows

    def embed_query(self, text: str) -> list[float]:
        """The embedding of a question."""
        return self.embed_documents([text])[0]
