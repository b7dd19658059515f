"""Answers become phrases and their raw embeddings.

    its own text      as a document, whole or in chunks
    a past question   as a query, since it is compared with new questions

An encoder may have a prompt for each (``bertflow.encoder.folders``), a calibrator a mean; others embed both alike.
"""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import get_args

import numpy as np

from bertflow.array_types import Bools, Float32
from bertflow.data.corpus import Answer
from bertflow.encoder.abstract import Role, SentenceEncoder, encode_as
from bertflow.encoder.chunks import require_unpooled
from bertflow.encoder.reading import AbstractTokenEncoder
from bertflow.errors import UsageError
from bertflow.retrieval.storage import Phrase


def embed_phrases(
    answers: Sequence[Answer],
    raw: SentenceEncoder,
    kept: Mapping[tuple[str, Role], Float32],
    chunks: str | None,
    progress: bool | None,
) -> tuple[Float32, Bools, dict[str, list[Phrase]]]:
    """The embeddings of all phrases (n, dim), which of them are queries (n,), and the phrases of each answer by its id.

    Each distinct text is embedded once a role; the own text of an answer is its first phrase.

    Args:
        answers: The answers.
        raw: A raw encoder.
        kept: Embeddings that there are already.
        chunks: How own texts are split; None if they are not.
        progress: Whether to show a bar.
    """
    roles: dict[str, list[tuple[str, Role]]] = {
        answer.id: [(answer.text, "document"), *((text, "query") for text in answer.phrases[1:])] for answer in answers
    }
    whole = list(dict.fromkeys(chain.from_iterable(one[chunks is not None :] for one in roles.values())))
    rows = dict(kept)
    for role in get_args(Role):
        new = [key for key in whole if key[1] == role and key not in rows]
        rows |= zip(new, encode_as(raw, role, [text for text, _ in new], progress), strict=True)
    x = np.array([rows[key] for key in whole], np.float32).reshape(len(whole), raw.dim)
    phrases: dict[tuple[str, Role], list[Phrase]] = {key: [(key[0], row, None)] for row, key in enumerate(whole)}
    if chunks is not None:
        y, split = _split(list(dict.fromkeys(answer.text for answer in answers)), raw, chunks, len(x), progress)
        x = np.concatenate([x, y])
        phrases |= {(text, "document"): parts for text, parts in split.items()}
    asked = np.array([role == "query" for _, role in whole] + [False] * (len(x) - len(whole)), bool)
    return x, asked, {name: [phrase for key in keys for phrase in phrases[key]] for name, keys in roles.items()}


def calibrate_by_role(encoder: SentenceEncoder, x: Float32, asked: Bools) -> Float32:
    """Calibrate raw embeddings (n, dim): queries, where ``asked`` says so, and documents."""
    z = encoder.calibrate(x)
    if encoder.has_roles and asked.any():
        z[asked] = encoder.calibrate(x[asked], "query")
    return z


def _split(
    texts: list[str], raw: SentenceEncoder, chunks: str, above: int, progress: bool | None
) -> tuple[Float32, dict[str, list[Phrase]]]:
    """The raw embeddings of the chunks of some texts, and the chunks of each, ``above`` their rows."""
    assert isinstance(raw, AbstractTokenEncoder), "as was checked when the index was made"
    x, found = raw.encode_chunks(texts, chunks, progress)
    parts: dict[str, list[Phrase]] = {text: [] for text in texts}
    for row, (owner, (start, stop)) in enumerate(zip(found.owners, found.spans.tolist(), strict=True)):
        text, own = texts[owner], parts[texts[owner]]
        own.append((text[start:stop], above + row, (len(own), start, stop, None if own else text)))
    return x, parts


def index_chunks(raw: SentenceEncoder, chunks: str) -> str:
    """Chunks for an index by this encoder, their size said."""
    if not isinstance(raw, AbstractTokenEncoder) or "chunks" in raw.describe():
        what = "has chunks itself, which it pools" if "chunks" in raw.describe() else "cannot split text"
        raise UsageError(f"An index with chunks needs an encoder of tokens, but this one {what}. Give another encoder.")
    require_unpooled(chunks)
    return str(raw.spec.fitted_chunks(chunks))
