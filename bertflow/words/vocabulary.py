"""What is in a vocabulary: special tokens, whole words, pieces of words, single characters; and how long they are.

Tokenizers mark either the pieces that go on with a word (WordPiece: ##ing) or those that begin one (byte-level BPE: Ġ,
SentencePiece: a low line); the mark is no part of a token's length. Every token is of one kind, so the counts add up.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Mark:
    """How a tokenizer marks pieces: in front of those that go on with a word, or of those that begin one."""

    sign: str
    goes_on: bool


MARKS = (Mark("##", True), Mark("Ġ", False), Mark("\u2581", False))
"""The one that most tokens bear is the tokenizer's."""
UNUSED = re.compile(r"\[unused\d+\]|<unused\d+>|madeupword\d+")
"""Places that a vocabulary keeps free."""
KINDS: Mapping[str, str] = {
    "special": "special tokens",
    "unused": "unused places",
    "characters": "single characters that begin a word",
    "character pieces": "single characters that go on with one",
    "words": "whole words, or beginnings of one",
    "pieces": "pieces that go on with a word",
}
"""The kinds of a token, and what they are."""


@dataclass(frozen=True)
class Vocabulary:
    """The tokens of a tokenizer.

    Attributes:
        size: How many there are.
        mark: How pieces are marked; None where the vocabulary holds words only.
        special: The special tokens by their role, as ``cls_token``.
        tokens: Those of each kind of ``KINDS``, by id.
        lengths: For words and for pieces, single characters with them, how many are how many characters long.
    """

    size: int
    mark: Mark | None
    special: Mapping[str, str]
    tokens: Mapping[str, Sequence[str]]
    lengths: Mapping[str, Mapping[int, int]]

    def examples(self, kind: str, n: int) -> list[str]:
        """Some of a kind, evenly spaced: vocabularies are sorted by frequency or by alphabet."""
        tokens = self.tokens[kind]
        shown = min(n, len(tokens))
        return [tokens[index * len(tokens) // shown] for index in range(shown)]


def read_vocabulary(tokenizer: PreTrainedTokenizerBase) -> Vocabulary:
    """Sort the tokens of a vocabulary by kind."""
    tokens = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().__getitem__)
    special = set(tokenizer.all_special_tokens)
    mark = _mark_of(tokens)
    kinds: dict[str, list[str]] = {kind: [] for kind in KINDS}
    lengths: dict[str, Counter[int]] = {"words": Counter(), "pieces": Counter()}
    for token in tokens:
        goes_on, length = _read(token, mark)
        if token in special:
            kind = "special"
        elif UNUSED.fullmatch(token):
            kind = "unused"
        else:
            group = "pieces" if goes_on else "words"
            lengths[group][length] += 1
            kind = group if length != 1 else "character pieces" if goes_on else "characters"
        kinds[kind].append(token)
    roles = {role: str(token) for role, token in tokenizer.special_tokens_map.items() if isinstance(token, str)}
    sorted_lengths = {group: dict(sorted(counts.items())) for group, counts in lengths.items()}
    return Vocabulary(len(tokens), mark, roles, kinds, sorted_lengths)


def whole_words(tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
    """Words of letters alone and their token ids: no pieces, numbers, signs or special tokens."""
    ids = tokenizer.get_vocab()
    mark = _mark_of(list(ids))
    if mark is not None and not mark.goes_on:
        ids = {token.removeprefix(mark.sign): index for token, index in ids.items() if token.startswith(mark.sign)}
    return {word: index for word, index in sorted(ids.items(), key=lambda item: item[1]) if word.isalpha()}


def _mark_of(tokens: Sequence[str]) -> Mark | None:
    # "##" by itself is a token like any other.
    counts = {mark: sum(token.startswith(mark.sign) and token != mark.sign for token in tokens) for mark in MARKS}
    best = max(counts, key=counts.__getitem__)
    return best if counts[best] else None


def _read(token: str, mark: Mark | None) -> tuple[bool, int]:
    """Whether a token goes on with a word, and its length in characters without the mark."""
    if mark is None:
        return False, len(token)
    bare = token.removeprefix(mark.sign)
    marked = len(bare) < len(token) and bool(bare)
    return marked == mark.goes_on, len(bare or token)
