"""Rows of layer 0 that stand for one piece, side by side: what makes them differ?

In "I found a rock." and "I only listen to rock." the rows of [CLS] and of "i" are equal, since they stand in the same
places; those of "rock" and [SEP] are not, but their word parts are, and with the same position forced on them the rows
are. Between the two halves of a pair the segment has to be forced as well.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from bertflow.words.encoder import WordEncoder
from bertflow.words.inputs import InputSum
from bertflow.words.tokens import TokenBatch, Tokens

EQUAL = 1e-6
"""Rows that differ by less, relative to the largest number in them, are equal: a matrix product may round so."""

Place = tuple[int, int]
"""A text and a token in it, both from 0."""


@dataclass(frozen=True)
class RowPair:
    """One piece in two places, and by how much its rows differ: the largest difference; 0.0 where they are equal.

    Attributes:
        piece: The piece.
        first: Where it stands first.
        second: The other place.
        row: Of the rows of layer 0.
        word: Of their word parts alone.
        same_position: Of the rows, were the second where the first is. None where the model adds no positions.
        same_segment: The same, were it also in the first's segment. None where the model adds no segments.
    """

    piece: str
    first: Place
    second: Place
    row: float
    word: float
    same_position: float | None
    same_segment: float | None


@dataclass(frozen=True)
class InputRows:
    """Some texts as a model takes them in.

    Attributes:
        texts: The texts, or one pair.
        batch: The same, padded.
        positions: The rows of the position matrix; (text, token).
        norms: Length of each token's word, position and segment part, as far as there are, and of its row of layer 0.
        absent: The parts that BERT has and this model has not.
        states: Shape of the hidden states: layers, texts, tokens, dim.
        difference: The largest between the sum put together again and the model's own layer 0.
        pairs: Pieces that stand in the first text and in another, or in both halves of a pair.
    """

    texts: Sequence[Tokens]
    batch: TokenBatch
    positions: Tensor
    norms: Mapping[str, Tensor]
    absent: tuple[str, ...]
    states: tuple[int, int, int, int]
    difference: float
    pairs: tuple[RowPair, ...]


def take_apart(encoder: WordEncoder, texts: Sequence[Tokens]) -> InputRows:
    """Take the input embeddings of some texts apart.

    Raises:
        UsageError: If the model makes them in a way that is not known.
    """
    batch = encoder.batch(texts)
    layers = encoder.layers(batch)
    source = encoder.input_sum
    difference = source.check(batch, layers[0], encoder.family)
    positions = source.positions(batch.ids)
    terms = source.terms(batch.ids, positions, batch.segments)
    norms = {name: term.norm(dim=-1) for name, term in terms.items()} | {"layer 0": layers[0].norm(dim=-1)}
    pairs = tuple(
        _compare(source, texts[first[0]].pieces[first[1]], batch, first, second) for first, second in _repeated(texts)
    )
    shape = (len(layers), *batch.ids.shape, encoder.stack.dim)
    return InputRows(texts, batch, positions, norms, source.absent, shape, difference, pairs)


def _repeated(texts: Sequence[Tokens]) -> Iterator[tuple[Place, Place]]:
    """The n-th of a piece in the first text, and the n-th in another."""
    if len(texts) == 1:
        groups = [[(0, at) for at, part in enumerate(texts[0].part) if part == half] for half in (0, 1)]
    else:
        groups = [[(row, at) for at in range(len(tokens))] for row, tokens in enumerate(texts)]
    for group in groups[1:]:
        there = defaultdict(list)
        for row, at in group:
            there[texts[row].ids[at]].append((row, at))
        for row, at in groups[0]:
            if found := there[texts[row].ids[at]]:
                yield (row, at), found.pop(0)


def _compare(source: InputSum, piece: str, batch: TokenBatch, first: Place, second: Place) -> RowPair:
    positions = source.positions(batch.ids)

    def terms(place: Place, position: Place, segment: Place) -> dict[str, Tensor]:
        """Of the piece in one place, with the position of another, and the segment of a third."""
        at = torch.stack([batch.ids[place], positions[position], batch.segments[segment]])
        return source.terms(*at[:, None])

    own = terms(first, first, first)
    moved = {
        "row": terms(second, second, second),
        "same_position": terms(second, first, second),
        "same_segment": terms(second, first, first),
    }
    row = source.put_together(own)
    found = {name: _difference(row, source.put_together(other)) for name, other in moved.items()}
    return RowPair(
        piece=piece,
        first=first,
        second=second,
        row=found["row"],
        word=_difference(own["word"], moved["row"]["word"]),
        same_position=found["same_position"] if "position" in source.steps else None,
        same_segment=found["same_segment"] if "segment" in source.steps else None,
    )


def _difference(one: Tensor, other: Tensor) -> float:
    largest = float((one - other).abs().max())
    return largest if largest > EQUAL * float(one.abs().max()) else 0.0
