"""How a model cuts text, what is in its vocabulary, and ``bertflow.inspect_tokens``.

    "I found a rock."  ->  [CLS] i found a rock . [SEP]

A sentence encoder needs only the ids of a text (``encoder.model``); questions about single words need to know which
piece came from which place in the text.

Tokenizers mark either the pieces that go on with a word (WordPiece: ##ing) or those that begin one (byte-level BPE: Ġ,
SentencePiece: a low line); the mark does not count for a token's length. Every token is of one kind, so the counts add
up.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertflow.errors import DataError, UsageError
from bertflow.results import AbstractResult
from bertflow.tables import Table

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase

    from bertflow.words.encoder import WordEncoder
    from bertflow.words.inputs import InputRows

EXAMPLES = 8
"""Tokens of each kind that are shown."""


@dataclass(frozen=True)
class Tokens:
    """One text, or a pair of them, as a model reads it; every tuple but ``texts`` has one entry a token.

    Attributes:
        texts: The text, or the two of a pair.
        pieces: As the vocabulary spells them.
        ids: Their rows in the vocabulary.
        segments: Which text of a pair each belongs to, for models that are told; else 0.
        part: The same for all models: 0 or 1, and None for special tokens.
        words: Which word of its text a piece is of, as the tokenizer splits words; None for special tokens.
        spans: The characters of its text that a piece stands for, from and to; (0, 0) for special tokens.
    """

    texts: tuple[str, ...]
    pieces: tuple[str, ...]
    ids: tuple[int, ...]
    segments: tuple[int, ...]
    part: tuple[int | None, ...]
    words: tuple[int | None, ...]
    spans: tuple[tuple[int, int], ...]

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(frozen=True)
class TokenBatch:
    """Several texts side by side, padded on the right; each tensor (text, token).

    Attributes:
        ids: Token ids.
        segments: 0 or 1.
        mask: True at tokens, False at padding.
    """

    ids: "Tensor"
    segments: "Tensor"
    mask: "Tensor"


def read_tokens(
    tokenizer: "PreTrainedTokenizerBase", text: str, second: str | None = None, segment: int | None = None
) -> Tokens:
    """Cut one text, or a pair; nothing is truncated.

    Args:
        tokenizer: The model's own.
        text: The text, or the first of a pair.
        second: The second of a pair.
        segment: Given to every token instead of what the tokenizer says.

    Raises:
        UsageError: If the tokenizer cannot say where its pieces stand.
        DataError: If there is no token at all.
    """
    from bertflow.encoder.abstract import check_sentences  # loads torch

    texts = (text,) if second is None else (text, second)
    check_sentences(texts)
    if not tokenizer.is_fast:
        raise UsageError(
            f"The tokenizer {type(tokenizer).__name__} cannot say where in a text its pieces stand. "
            "Choose a model with a tokenizer.json."
        )
    encoded = tokenizer(*texts, return_offsets_mapping=True, return_token_type_ids=True, verbose=False)
    ids = encoded["input_ids"]
    if not ids:
        raise DataError(f"The text {text!r} has no tokens for this model. Leave it out.")
    return Tokens(
        texts=texts,
        pieces=tuple(tokenizer.convert_ids_to_tokens(ids)),
        ids=tuple(ids),
        segments=tuple(encoded["token_type_ids"]) if segment is None else (segment,) * len(ids),
        part=tuple(encoded.sequence_ids()),
        words=tuple(encoded.word_ids()),
        spans=tuple((int(start), int(end)) for start, end in encoded["offset_mapping"]),
    )


def stack_tokens(rows: Sequence[Tokens], pad_id: int) -> TokenBatch:
    """Several texts as one batch."""
    import torch

    shape = len(rows), max(map(len, rows))
    ids = torch.full(shape, pad_id, dtype=torch.long)
    segments = torch.zeros(shape, dtype=torch.long)
    mask = torch.zeros(shape, dtype=torch.bool)
    for row, tokens in enumerate(rows):
        ids[row, : len(tokens)] = torch.tensor(tokens.ids)
        segments[row, : len(tokens)] = torch.tensor(tokens.segments)
        mask[row, : len(tokens)] = True
    return TokenBatch(ids, segments, mask)


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


@dataclass(frozen=True, repr=False)
class Vocabulary(AbstractResult):
    """The tokens of a tokenizer.

    Attributes:
        size: How many there are.
        mark: How pieces are marked; None where the vocabulary holds words only.
        special: The special tokens by their role, as ``cls_token``.
        tokens: Those of each kind of ``KINDS``, by id.
        lengths: For words and for pieces, single characters with them, how many are how many characters long.
        encoder: The model that has it, if it is known.
    """

    size: int
    mark: Mark | None
    special: Mapping[str, str]
    tokens: Mapping[str, Sequence[str]]
    lengths: Mapping[str, Mapping[int, int]]
    encoder: "WordEncoder | None" = None

    def examples(self, kind: str, n: int) -> list[str]:
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
                yield f"{what}: {'  '.join(self.examples(kind, EXAMPLES))}"
        yield "special tokens: " + ", ".join(f"{role} {token}" for role, token in self.special.items())
        yield ""
        role = "goes on with" if self.mark and self.mark.goes_on else "begins"
        mark = f" without the {self.mark.sign} of a piece that {role} a word" if self.mark else ""
        yield f"How many are how long, in characters{mark}:"
        words, pieces = self.lengths["words"], self.lengths["pieces"]
        by_length = [
            (str(length), f"{words.get(length, 0):,}", f"{pieces.get(length, 0):,}")
            for length in sorted({*words, *pieces})
        ]
        yield Table(("length", "begin a word", "go on with one"), tuple(by_length))

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "encoder": self.encoder.describe() if self.encoder else {},
            "size": self.size,
            "mark": self.mark and vars(self.mark),
            "special": dict(self.special),
            "kinds": {
                kind: {"what": KINDS[kind], "count": len(tokens), "examples": self.examples(kind, EXAMPLES)}
                for kind, tokens in self.tokens.items()
            },
            "lengths": {
                group: {str(length): count for length, count in counts.items()}
                for group, counts in self.lengths.items()
            },
        }


def read_vocabulary(tokenizer: "PreTrainedTokenizerBase") -> Vocabulary:
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


def whole_words(tokenizer: "PreTrainedTokenizerBase") -> dict[str, int]:
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
    from bertflow.encoder.embedded import embedded_encoder
    from bertflow.words.encoder import WordEncoder
    from bertflow.words.inputs import take_apart

    encoder = WordEncoder(model or embedded_encoder(), revision)
    if vocabulary:
        return replace(read_vocabulary(encoder.tokenizer), encoder=encoder)
    alone = [texts] if isinstance(texts, str) else texts or []
    inputs = [(text, None) for text in alone] if pair is None else [pair]
    return take_apart(encoder, [encoder.tokenize(text, second, segment) for text, second in inputs])
