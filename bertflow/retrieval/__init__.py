"""Known answers for a question: what an index or a collection is called, and how its encoder is opened."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from typing_extensions import TypedDict

if TYPE_CHECKING:
    from bertflow.data.corpus import Answer
    from bertflow.retrieval.collection_index import CollectionIndex
    from bertflow.retrieval.index import AnswerIndex

Answers: TypeAlias = "str | Path | Iterable[Answer]"
"""A table of answers; from Python also the answers."""
Index: TypeAlias = "str | Path | AnswerIndex"
"""The file of an index; from Python also one that is open."""
Place: TypeAlias = "str | Path | AnswerIndex | CollectionIndex"
"""What can be asked, by its name; from Python also one that is open."""


class IndexOptions(TypedDict, total=False):
    """How the encoder of an index is opened.

    Attributes:
        model: Where the encoder of the index is now (default: where it was). For the address of a collection, the
            encoder whose embeddings it holds.
        device: cpu, cuda, ... (default: the first of cuda, mps and cpu that is there).
    """

    model: str | Path | None
    device: str | None
