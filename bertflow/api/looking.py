"""Looking: how text becomes tokens, and what their embeddings are made of."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from bertflow.encoder.embedded import embedded_encoder
from bertflow.errors import UsageError

if TYPE_CHECKING:
    from bertflow.studies.tokens import InputRows
    from bertflow.studies.vocabulary import Vocabulary


def inspect_tokens(
    texts: Sequence[str] | None = None,
    *,
    pair: tuple[str, str] | None = None,
    vocabulary: bool = False,
    segment: int | None = None,
    model: str | Path | None = None,
    revision: str | None = None,
) -> "InputRows | Vocabulary":
    """Show how text becomes tokens, and what their input embeddings are made of.

    For every piece: id, segment, position, attention mask, the shape of the hidden states; and the input embedding,
    taken apart into word + position + segment. Pieces that stand in two texts are compared.

    Args:
        texts: One or several texts; the first is compared with the others.
        pair: Two texts as one input, as for next-sentence prediction.
        vocabulary: Show what is in the vocabulary instead.
        segment: Segment of every token (default: as the model's tokenizer does it).
        model: Hub id or folder (default: the embedded MiniLM).
        revision: Branch, tag or commit, for a hub id.

    Returns:
        The texts taken apart, or the vocabulary.

    Raises:
        UsageError: If not exactly one of texts, pair and vocabulary is given, or the model makes its input embeddings
            in a way that is not known.
        DataError: If the folder is missing, incomplete or damaged.
    """
    given = [bool(texts), pair is not None, vocabulary]
    if sum(given) != 1:
        what = "none of them" if not any(given) else "several"
        raise UsageError(f"One of texts, pair and vocabulary is wanted, got {what}. Give one.")
    if vocabulary and segment is not None:
        raise UsageError("segment is for texts, which vocabulary does without. Leave one out.")
    from bertflow.studies.tokens import take_apart
    from bertflow.studies.vocabulary import read_vocabulary
    from bertflow.words.encoder import WordEncoder

    encoder = WordEncoder(model or embedded_encoder(), revision)
    if vocabulary:
        return read_vocabulary(encoder.tokenizer, encoder.describe())
    alone = [texts] if isinstance(texts, str) else texts or []
    inputs = [(text, None) for text in alone] if pair is None else [pair]
    return take_apart(encoder, [encoder.tokenize(text, second, segment) for text, second in inputs])
