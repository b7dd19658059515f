"""Looking: how text becomes tokens, what their embeddings are made of, and words in their sentences."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from bertflow.encoder.embedded import embedded_encoder
from bertflow.errors import UsageError
from bertflow.files import require_place
from bertflow.opening import require_openable

if TYPE_CHECKING:
    from bertflow.studies.tokens import InputRows
    from bertflow.studies.vocabulary import Vocabulary
    from bertflow.words.panels import StudyResult


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
        return read_vocabulary(encoder.tokenizer, encoder)
    alone = [texts] if isinstance(texts, str) else texts or []
    inputs = [(text, None) for text in alone] if pair is None else [pair]
    return take_apart(encoder, [encoder.tokenize(text, second, segment) for text, second in inputs])


def compare_words(
    words: Sequence[str] | None = None,
    sentences: Sequence[str] | None = None,
    *,
    study: str | Path | None = None,
    pooling: Sequence[str] | None = None,
    segment: int | None = None,
    model: str | Path | None = None,
    revision: str | None = None,
    output: str | Path | None = None,
    format: Literal["png", "svg"] | None = None,  # noqa: A002 - the command's word
) -> "StudyResult":
    """Compare static and contextual vectors of words.

    How alike are words by their static vectors (the embedding matrix), and in their contexts, layer by layer? Cosine
    and Euclidean distance, and whether offsets such as king - man and queen - woman agree, as vectors and in length.

    Args:
        words: Whole words that are in every sentence; bank#2 is the second bank of a sentence.
        sentences: The contexts.
        study: A study instead of words and sentences: king-queen, bank (three banks in one sentence), bank-separate (in
            three), or a JSON file.
        pooling: Poolings of the pieces of a word, as mean(3) or mean(1,2) (default: the mean at every layer).
        segment: Segment of every token (default: 0).
        model: Hub id or folder (default: the embedded MiniLM).
        revision: Branch, tag or commit, for a hub id.
        output: Folder to write words.json and heatmaps to; needs matplotlib.
        format: File format of the heatmaps: png or svg (default: png).

    Raises:
        UsageError: If options do not go together, or the model has no such pooling or segment.
        DataError: If a word is not in its sentence, or a study is not complete.
    """
    from bertflow.words.encoder import WordEncoder
    from bertflow.words.panels import run_study
    from bertflow.words.study import load_study, word_study

    by_hand = bool(words or sentences)
    if by_hand == (study is not None):
        got = "both" if by_hand else "neither"
        raise UsageError(f"Words with sentences (--in), or a study, are wanted; got {got}. Give one of them.")
    if by_hand and not (words and sentences):
        missing = "the words to look for are" if not words else "a sentence (--in) is"
        raise UsageError(f"Words and sentences belong together, but {missing} missing. Give both.")
    if format and output is None:
        raise UsageError("format is for the pictures, which need output. Give both or neither.")
    require_place(output, folder=True)
    chosen = word_study(words or (), sentences or (), segment) if study is None else load_study(study, segment)
    if output is not None:
        import bertflow.plots  # noqa: F401 - refuses before the work is done, not after
    for one in pooling or (None,):
        require_openable(model, revision=revision, pooling=one)
    result = run_study(WordEncoder(model or embedded_encoder(), revision), chosen, pooling or ())
    if output is None:
        return result
    record = result.save(output, format or "png") / "words.json"
    return replace(result, written=f"Written: {record} and {len(result.panels) + 2} pictures beside it.")
