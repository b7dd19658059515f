"""Both sides of pairs through encoders, each distinct text once.

Embeddings that are not finite, and zeros under the cosine, have no similarity, so they are refused.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from bertflow.calibrated import encode_systems
from bertflow.data.pairs import Pairs, unique_sentences
from bertflow.encoder.abstract import SentenceEncoder
from bertflow.errors import DataError
from bertflow.registry import lookup
from bertflow.similarity import SIMILARITIES

Embeddings = NDArray[np.float32]


def encode_pairs(encoder: SentenceEncoder, pairs: Pairs, progress: bool | None = None) -> tuple[Embeddings, Embeddings]:
    """Embeddings of the first and of the second texts, each (n, dim); the first texts of retrieval are queries."""
    sentences = pairs.sentences
    first, second = pairs.rows(row_numbers(sentences))
    x = encoder.encode(sentences, progress=progress)
    asked = encoder.encode_query(sentences, progress=progress) if _has_queries(encoder, pairs) else x
    return asked[first], x[second]


def _has_queries(system: SentenceEncoder, pairs: Pairs) -> bool:
    """Whether the first texts have another prompt than the second ones."""
    return pairs.kind == "retrieval" and "query_prompt" in system.identity.facts


def pair_cosines(encoder: SentenceEncoder, pairs: Pairs, progress: bool | None = None) -> NDArray[np.float64]:
    """The cosine (n,) of each pair."""
    return SIMILARITIES["cosine"].paired(*encode_pairs(encoder, pairs, progress))


def encode_sets(
    systems: Mapping[str, SentenceEncoder],
    sets: Sequence[Pairs],
    similarity: str = "cosine",
    progress: bool | None = None,
) -> Iterator[Iterator[tuple[str, Embeddings, Embeddings]]]:
    """Embeddings of the pairs of several tasks by several systems; systems that are alike share one pass.

    Yields:
        For each task, for each system: its name and the embeddings of the first and the second texts, each (n, dim).

    Raises:
        UnknownNameError: For an unknown similarity.
        DataError: For an embedding that has no such similarity.
    """
    lookup("similarity", SIMILARITIES, similarity)
    sentences = unique_sentences(sets)
    rows = row_numbers(sentences)
    embeddings = encode_systems(systems, sentences, progress=progress)
    asking = {name: one for name, one in systems.items() if any(_has_queries(one, pairs) for pairs in sets)}
    queries = encode_systems(asking, sentences, progress, role="query")
    return (
        checked_sides(pairs, pairs.rows(rows), embeddings, queries if pairs.kind == "retrieval" else {}, similarity)
        for pairs in sets
    )


def checked_sides(
    pairs: Pairs,
    rows: NDArray[np.intp],
    embeddings: Mapping[str, Embeddings],
    queries: Mapping[str, Embeddings],
    similarity: str = "cosine",
) -> Iterator[tuple[str, Embeddings, Embeddings]]:
    """For each system, both sides of the pairs; refused if they have no such similarity.

    Args:
        pairs: The pairs.
        rows: Of both sides (2, n) in the embeddings.
        embeddings: By system.
        queries: The embeddings of first texts that are queries, of the systems that have a prompt for them.
        similarity: A row of ``SIMILARITIES``.
    """
    for name, x in embeddings.items():
        first, second = queries.get(name, x)[rows[0]], x[rows[1]]
        require_usable(name, first, pairs.first, similarity, f"task {pairs.task}")
        require_usable(name, second, pairs.second, similarity, f"task {pairs.task}")
        yield name, first, second


def row_numbers(sentences: Sequence[str]) -> dict[str, int]:
    """The row of each of some distinct sentences."""
    return {sentence: row for row, sentence in enumerate(sentences)}


def require_usable(system: str, x: Embeddings, sentences: Sequence[str], similarity: str, where: str) -> None:
    """Refuse embeddings that have no similarity.

    Raises:
        DataError: For the first one that is not finite, or has length zero where the cosine is asked for.
    """
    finite = np.isfinite(x).all(1)
    if not finite.all():
        sentence = sentences[int(np.argmin(finite))]
        raise DataError(
            f"The system {system} gives an embedding that is not finite for {sentence!r} ({where}). "
            "Look for a half-precision overflow, or a calibrator that was fitted on other embeddings."
        )
    something = x.any(1)
    if similarity == "cosine" and not something.all():
        sentence = sentences[int(np.argmin(something))]
        raise DataError(
            f"The system {system} gives an embedding of zeros for {sentence!r} ({where}), and "
            "cosine says nothing about it. Leave the sentence out, or choose another similarity."
        )
