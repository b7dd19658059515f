"""Both sides of pairs go through systems, each distinct text once.

Embeddings that are not finite, and zeros under the cosine, have no similarity, so they are refused.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from bertflow.array_types import Float32, Float64, Intp
from bertflow.calibrated import encode_systems
from bertflow.data.pairs import Pairs, unique_sentences
from bertflow.encoder.abstract import SentenceEncoder, encode_as
from bertflow.errors import DataError
from bertflow.registry import lookup
from bertflow.similarity import COSINE, SIMILARITIES

Systems = Mapping[str, SentenceEncoder]
"""Encoders, raw or calibrated, by their names in tables."""
Sides = Iterator[tuple[str, Float32, Float32]]
"""Systems, each with its name and the embeddings of the first and of the second texts."""
ASKING = ("retrieval", "candidates")
"""Kinds of pairs whose first texts are queries."""
OVERFLOW = "Look for a half-precision overflow, or a calibrator that was fitted on other embeddings."
NO_COSINE = "which has no cosine. Leave the sentence out, or choose another similarity."


def pair_cosines(encoder: SentenceEncoder, pairs: Pairs, progress: bool | None = None) -> Float64:
    """The cosine (n,) of each pair; the first texts of retrieval are queries."""
    sentences = pairs.sentences
    first, second = pairs.rows(row_numbers(sentences))
    asking = pairs.kind in ASKING and encoder.has_roles
    x = encode_as(encoder, "document" if asking else None, sentences, progress)
    asked = encoder.encode_query(sentences, progress=progress) if asking else x
    return COSINE.paired(asked[first], x[second])


def encode_sets(
    systems: Systems, sets: Sequence[Pairs], similarity: str = "cosine", progress: bool | None = None
) -> Iterator[Sides]:
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
    asked = any(pairs.kind in ASKING for pairs in sets)
    asking = {name: one for name, one in systems.items() if one.role == "query" or (asked and one.has_roles)}
    queries = encode_systems(asking, sentences, progress, role="query")
    own = embeddings | {name: x for name, x in queries.items() if systems[name].role == "query"}
    by_asking = {True: (embeddings, queries), False: (own, {})}
    return (checked_sides(pairs, pairs.rows(rows), *by_asking[pairs.kind in ASKING], similarity) for pairs in sets)


def checked_sides(
    pairs: Pairs, rows: Intp, embeddings: Mapping[str, Float32], queries: Mapping[str, Float32], similarity: str
) -> Sides:
    """For each system, both sides of the pairs; refused if they have no such similarity.

    Args:
        pairs: The pairs.
        rows: Rows of both sides (2, n) in the embeddings.
        embeddings: Embeddings by system.
        queries: Embeddings of first texts as queries, for the systems that have a prompt for queries.
        similarity: A row of ``SIMILARITIES``.

    Raises:
        DataError: For the first embedding that is not finite, or has length zero where the cosine is asked for.
    """
    for name, x in embeddings.items():
        first, second = queries.get(name, x)[rows[0]], x[rows[1]]
        for side, texts in ((first, pairs.first), (second, pairs.second)):
            finite, something = np.isfinite(side).all(1), side.any(1)
            if not finite.all():
                what = f"an embedding that is not finite for {texts[int(np.argmin(finite))]!r} (task {pairs.task})"
                raise DataError(f"The system {name} gives {what}. {OVERFLOW}")
            if similarity == "cosine" and not something.all():
                what = f"an embedding of zeros for {texts[int(np.argmin(something))]!r} (task {pairs.task})"
                raise DataError(f"The system {name} gives {what}, {NO_COSINE}")
        yield name, first, second


def row_numbers(sentences: Sequence[str]) -> dict[str, int]:
    """The row of each of some distinct sentences."""
    return {sentence: row for row, sentence in enumerate(sentences)}
