"""Find a word among the tokens of a sentence.

Compared is text, as the tokenizer's own normalizer sees it: an uncased model finds "king" in "King" and "cafe" in
"café", a cased one does not. A match is whole tokens, begins and ends where a word does ("rock" is not in "rocking",
but is in "rock." and "rock-solid"), and may be several words ("New York").
"""

from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from bertflow.errors import DataError, UsageError
from bertflow.words.tokens import Tokens

SPACE = "\u2581"
"""What SentencePiece writes for a space."""


@dataclass(frozen=True)
class Mention:
    """A word in its sentence.

    Attributes:
        word: Whole, as the tokenizer's case has it; may be several words.
        sentence: Where it stands.
        occurrence: Which one, from 1, where it stands there several times.
        segment: Of all tokens of the sentence; 0 by default, and for models that are not told.
    """

    word: str
    sentence: str
    occurrence: int = 1
    segment: int | None = None

    def __post_init__(self) -> None:
        if self.occurrence < 1:
            raise UsageError(f"Occurrences count from 1, got {self.occurrence} for the word {self.word!r}.")


def find_word(tokens: Tokens, mention: Mention, tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Indices of the tokens that are the word.

    Raises:
        DataError: If it is not there, or not that often; the message names word, sentence and pieces.
    """
    target = normalize(tokenizer, mention.word)
    if not target:
        raise DataError(f"A word is wanted, got {mention.word!r}. Name one that stands in {mention.sentence!r}.")
    places: list[tuple[int, ...]] = []
    start = 0
    while start < len(tokens):
        end = _match(tokens, start, target, tokenizer)
        if end is not None:
            places.append(tuple(range(start, end)))
        start = start + 1 if end is None else end
    if len(places) >= mention.occurrence:
        return places[mention.occurrence - 1]
    there = f"stands {len(places)} times in" if places else "is not in"
    asked = f", and occurrence {mention.occurrence} was asked for" if places else ""
    raise DataError(
        f"The word {mention.word!r} {there} the sentence {mention.sentence!r}{asked}. Its pieces are "
        f"{' '.join(tokens.pieces)}. Name a whole word, in the case that the tokenizer has it."
    )


def normalize(tokenizer: PreTrainedTokenizerBase, text: str) -> str:
    """Text as the tokenizer sees it: lower-cased, stripped of accents, or as it is."""
    normalizer = tokenizer.backend_tokenizer.normalizer
    return str(text if normalizer is None else normalizer.normalize_str(text)).replace(SPACE, " ").strip()


def spelled_alike(tokenizer: PreTrainedTokenizerBase, word: str) -> list[int]:
    """Token ids of a word by itself, spelled as inside a sentence: byte-level BPE marks the space before a word.

    Raises:
        DataError: If there are none.
    """
    ids: list[int] = tokenizer(f" {word.strip()}", add_special_tokens=False, verbose=False)["input_ids"]
    if not ids:
        raise DataError(f"The word {word!r} has no tokens for this model. Leave it out.")
    return ids


def _match(tokens: Tokens, start: int, target: str, tokenizer: PreTrainedTokenizerBase) -> int | None:
    """Behind the last of the tokens that, from ``start``, spell the target; None if none do."""
    part = tokens.part[start]
    if part is None:
        return None
    text = tokens.texts[part]
    first = tokens.spans[start][0]
    for end in range(start + 1, len(tokens) + 1):
        if tokens.part[end - 1] != part:
            return None
        last = tokens.spans[end - 1][1]
        spelled = normalize(tokenizer, text[first:last])
        if len(spelled) > len(target):
            return None
        if spelled == target and not _cuts(tokens, start, text) and not _cuts(tokens, end, text):
            return end
    return None


def _cuts(tokens: Tokens, index: int, text: str) -> bool:
    """Whether a word goes on across the border in front of token ``index``."""
    if index in (0, len(tokens)) or tokens.words[index] is None or tokens.words[index] != tokens.words[index - 1]:
        return False
    place = tokens.spans[index][0]
    return text[place - 1 : place].isalnum() and text[place : place + 1].isalnum()
