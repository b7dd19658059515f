"""How a model cuts text, and what its input embeddings are made of, for ``bertflow.inspect_tokens``.

    "I found a rock."  ->  [CLS] i found a rock . [SEP]  ->  word[id] + position[place] + segment  ->  layer 0

Two rows of layer 0 for one word differ by its place and by the side of a pair, not by its neighbors: those come in with
block 1. In "I found a rock." and "I only listen to rock." the rows of [CLS] and of "i" are equal, since they have the
same places; those of "rock" and [SEP] are not, but their word parts are, and with equal positions the rows are equal
(between the two halves of a pair, with equal segments as well).

And what there is to cut text into: the tokens of a vocabulary by kind; the mark of a piece does not count for its
length.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from transformers import PreTrainedTokenizerBase

from bertflow.results import AbstractResult, Parts
from bertflow.tables import REST, Section, Table, cell
from bertflow.words.encoder import WordEncoder
from bertflow.words.tokens import MARKS, Tokens, mark_of, read_token

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
EQUAL = 1e-6
"""Rows that differ by less, relative to the largest number in them, are equal: a matrix product may round so."""
COMPARED: Mapping[str, str] = {
    "row": "layer 0",
    "word": "word part",
    "same_position": "same position",
    "same_segment": "and segment",
}
"""What is compared of a piece in two places, and the column titles."""
Spot = tuple[int, int]
"""A text and a token in it, both from 0."""


@dataclass(frozen=True, repr=False)
class InputRows(AbstractResult):
    """Some texts as a model takes them in; every field is ready for JSON.

    Attributes:
        encoder: What the model says of itself.
        hidden_states: Number of layers, texts and tokens, and their width ``dim``.
        terms: The parts of the input embedding: word, and position and segment where the model adds them.
        absent: The parts that BERT has and this model does not.
        difference_from_layer_0: The largest between the sum put together again and the model's own layer 0.
        texts: Each with its tokens: ``piece``, ``id``, ``segment`` and ``position`` (None where the model has none),
            ``mask``, and ``norms``: lengths of its parts and of its row of layer 0. Padding has ``id`` and ``mask``.
        compared: Pieces that stand in the first text and in another, or in both halves of a pair, with their places,
            and the largest differences of ``COMPARED``: 0.0 if equal, None where the model has no such part.
    """

    encoder: Mapping[str, Any]
    hidden_states: Mapping[str, int]
    terms: Sequence[str]
    absent: Sequence[str]
    difference_from_layer_0: float
    texts: Sequence[Mapping[str, Any]]
    compared: Sequence[Mapping[str, Any]]

    def parts(self) -> Parts:
        """The tokens of each text, what their embeddings are made of, and the pieces in two places."""
        names = [*self.terms, "layer 0"]
        header = ("token", "piece", "id", "segment", "position", "mask", *(f"|{name}|" for name in names))
        for number, text in enumerate(self.texts, start=1):
            lines = []
            for at, token in enumerate(text["tokens"]):
                cells = (token.get(key) for key in header[2:6])
                norms = token.get("norms", dict.fromkeys(names))
                lines.append((str(at), token["piece"] or "(padding)", *map(cell, cells), *map(cell, norms.values())))
            yield Section(f"{number}: {' | '.join(text['text'])}", Table(header, tuple(lines)))
        yield from self._made_of()

    def answer(self) -> Parts:
        """The pieces of each text alone, and the rest of the parts."""
        for number, text in enumerate(self.texts, start=1):
            yield f"{number}: {' '.join(token['piece'] for token in text['tokens'] if token['piece'])}"
        yield from self._made_of()
        yield f"Ids, positions and lengths: {REST.split(',')[0]}."

    def _made_of(self) -> Parts:
        """What the embeddings are made of, and the pieces in two places."""
        layers, texts, length, dim = (self.hidden_states[name] for name in ("layers", "texts", "tokens", "dim"))
        lacks = f" BERT's sum also has {' and '.join(self.absent)}, this one has not." if self.absent else ""
        yield (
            f"Hidden states: {layers} layers x {texts} text{'s' if texts > 1 else ''} x {length} tokens x {dim} "
            "(layer 0 is the embedding layer)."
        )
        yield (
            f"Input embedding: {' + '.join(self.terms)}{'' if 'norm' in self.absent else ', through LayerNorm'}."
            f"{lacks} Put together again it differs from the model's layer 0 by at most "
            f"{self.difference_from_layer_0:.1g}."
        )
        if self.compared:
            columns = [name for name in COMPARED if self.compared[0][name] is not None]
            lines = []
            for pair in self.compared:
                places = (f"{text + 1}:{at}" for text, at in pair["places"])
                lines.append((pair["piece"], *places, *(cell(pair[name] or "equal") for name in columns)))
            yield ""
            titles = ("piece", "first", "second", *(COMPARED[name] for name in columns))
            yield Section("Largest difference of a piece in two places (text:token)", Table(titles, tuple(lines)))

    def as_dict(self) -> dict[str, Any]:
        """Every field, ready for JSON."""
        fields = super().as_dict()
        return {"parts": fields.pop("terms"), **fields}


def take_apart(encoder: WordEncoder, texts: Sequence[Tokens]) -> InputRows:
    """Take the input embeddings of some texts apart.

    Raises:
        UsageError: If the model makes them in a way that is not known.
    """
    inputs, layers = encoder.layers(texts)
    source = encoder.input_sum
    difference = source.check(inputs, layers[0])
    rows = source.rows(inputs)
    terms = source.terms(rows)
    norms = {name: vectors.norm(dim=-1) for name, vectors in {**terms, "layer 0": layers[0]}.items()}
    ids, shape = inputs["input_ids"], inputs["input_ids"].shape

    def token(spot: Spot) -> dict[str, Any]:
        if not inputs["attention_mask"][spot]:
            return {"piece": None, "id": int(ids[spot]), "mask": 0}
        piece = texts[spot[0]].encoding.tokens[spot[1]]
        told = {name: int(rows[name][spot]) if name in terms else None for name in ("segment", "position")}
        lengths = {name: float(norm[spot]) for name, norm in norms.items()}
        return {"piece": piece, "id": int(ids[spot]), "mask": 1, **told, "norms": lengths}

    def compare(first: Spot, second: Spot) -> dict[str, Any]:
        def made(*spots: Spot) -> dict[str, Tensor]:
            """Word, position and segment of one token each."""
            return source.terms({name: row[spot][None] for (name, row), spot in zip(rows.items(), spots, strict=True)})

        own, other = made(first, first, first), made(second, second, second)
        moved = {"row": other, "same_position": made(second, first, second), "same_segment": made(second, first, first)}
        found = {name: _difference(*map(source.put_together, (own, row))) for name, row in moved.items()}
        return {
            "piece": texts[first[0]].encoding.tokens[first[1]],
            "places": [first, second],
            "word": _difference(own["word"], other["word"]),
            **{name: None if name.removeprefix("same_") in source.absent else value for name, value in found.items()},
        }

    sizes = dict(zip(("layers", "texts", "tokens", "dim"), (len(layers), *shape, encoder.stack.dim), strict=True))
    tokens = [[token((text, at)) for at in range(shape[1])] for text in range(len(texts))]
    listed = [{"text": text.texts, "tokens": own} for text, own in zip(texts, tokens, strict=True)]
    compared = [compare(*places) for places in _repeated(texts)]
    return InputRows(encoder.describe(), sizes, list(terms), source.absent, difference, listed, compared)


def _repeated(texts: Sequence[Tokens]) -> Iterator[tuple[Spot, Spot]]:
    """The n-th of a piece in the first text, and the n-th in another."""
    ids = {(row, at): index for row, tokens in enumerate(texts) for at, index in enumerate(tokens.encoding.ids)}
    if len(texts) == 1:
        parts = list(enumerate(texts[0].encoding.sequence_ids))
        groups = [[(0, at) for at, part in parts if part == half] for half in (0, 1)]
    else:
        groups = [[spot for spot in ids if spot[0] == row] for row in range(len(texts))]
    for group in groups[1:]:
        there = defaultdict(list)
        for spot in group:
            there[ids[spot]].append(spot)
        for spot in groups[0]:
            if found := there[ids[spot]]:
                yield spot, found.pop(0)


def _difference(one: Tensor, other: Tensor) -> float:
    """The largest between two rows; 0 where they are equal."""
    largest = float((one - other).abs().max())
    return largest if largest > EQUAL * float(one.abs().max()) else 0.0


@dataclass(frozen=True, repr=False)
class Vocabulary(AbstractResult):
    """The tokens of a tokenizer.

    Attributes:
        size: How many there are.
        mark: How pieces are marked, a key of ``MARKS``; empty where the vocabulary holds words only.
        special: The special tokens by their role, as ``cls_token``.
        tokens: Tokens of each kind of ``KINDS``, by id.
        lengths: Words or pieces, with single characters -> length in characters -> how many have it.
        encoder: The model that has it, if it is known; it may have no weights.
    """

    not_in_json = ("tokens",)

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

    def parts(self) -> Parts:
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
