"""The tokens of a tokenizer, sorted by kind: every token is of one; the mark does not count for its length."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from transformers import PreTrainedTokenizerBase

from bertflow.results import AbstractResult
from bertflow.tables import Table
from bertflow.words.encoder import WordEncoder
from bertflow.words.vocabulary import MARKS, mark_of, read_token

EXAMPLES = 8
"""Tokens of each kind that are shown."""
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


@dataclass(frozen=True, repr=False)
class Vocabulary(AbstractResult):
    """The tokens of a tokenizer.

    Attributes:
        size: How many there are.
        mark: How pieces are marked, a key of ``MARKS``; empty where the vocabulary holds words only.
        special: The special tokens by their role, as ``cls_token``.
        tokens: Those of each kind of ``KINDS``, by id.
        lengths: For words and for pieces, single characters with them, how many are how many characters long.
        encoder: The model that has it, if it is known; it may have no weights.
    """

    not_in_json: ClassVar[tuple[str, ...]] = ("tokens",)

    size: int
    mark: str
    special: Mapping[str, str]
    tokens: Mapping[str, Sequence[str]]
    lengths: Mapping[str, Mapping[int, int]]
    encoder: WordEncoder | None

    def examples(self, kind: str, n: int = EXAMPLES) -> list[str]:
        """Some of a kind, evenly spaced: vocabularies are sorted by frequency or by alphabet."""
        tokens = self.tokens[kind]
        shown = min(n, len(tokens))
        return [tokens[index * len(tokens) // shown] for index in range(shown)]

    def parts(self) -> Iterator[Table | str]:
        """Counts, examples and lengths."""
        lines = [
            (KINDS[kind], f"{len(tokens):,}", f"{100 * len(tokens) / self.size:.1f} %")
            for kind, tokens in self.tokens.items()
        ]
        yield Table(("tokens", "count", "share"), (*lines, ("all", f"{self.size:,}", "")))
        for kind, what in KINDS.items():
            if kind != "special" and self.tokens[kind]:
                yield f"{what}: {'  '.join(self.examples(kind))}"
        yield "special tokens: " + ", ".join(f"{role} {token}" for role, token in self.special.items())
        yield ""
        role = "goes on with" if MARKS.get(self.mark) else "begins"
        mark = f" without the {self.mark} of a piece that {role} a word" if self.mark else ""
        yield f"How many are how long, in characters{mark}:"
        columns = (self.lengths["words"], self.lengths["pieces"])
        by_length = [
            (str(length), *(f"{column.get(length, 0):,}" for column in columns))
            for length in sorted(columns[0].keys() | columns[1].keys())
        ]
        yield Table(("length", "begin a word", "go on with one"), tuple(by_length))

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON; of the tokens themselves only counts and examples."""
        return super().as_dict() | {
            "encoder": self.encoder.describe() if self.encoder else {},
            "mark": {"sign": self.mark, "goes_on": MARKS[self.mark]} if self.mark else None,
            "kinds": {
                kind: {"what": KINDS[kind], "count": len(tokens), "examples": self.examples(kind)}
                for kind, tokens in self.tokens.items()
            },
        }


def read_vocabulary(tokenizer: PreTrainedTokenizerBase, encoder: WordEncoder | None = None) -> Vocabulary:
    """Sort the tokens of a vocabulary by kind."""
    tokens = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().__getitem__)
    special = set(tokenizer.all_special_tokens)
    mark = mark_of(tokens)
    kinds: dict[str, list[str]] = {kind: [] for kind in KINDS}
    lengths: dict[str, Counter[int]] = {"words": Counter(), "pieces": Counter()}
    for token in tokens:
        bare, goes_on = read_token(token, mark)
        kind = "pieces" if goes_on else "words"
        if token in special or UNUSED.fullmatch(token):
            kind = "special" if token in special else "unused"
        else:
            lengths[kind][len(bare)] += 1
            kind = kind if len(bare) != 1 else "character pieces" if goes_on else "characters"
        kinds[kind].append(token)
    roles = {role: str(token) for role, token in tokenizer.special_tokens_map.items() if isinstance(token, str)}
    return Vocabulary(len(tokens), mark, roles, kinds, lengths, encoder)
