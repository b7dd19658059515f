"""The sum that BERT calls an input embedding, taken apart, and its rows for one piece in two places.

    word[id] + position[place] + segment[0 or 1]   --LayerNorm-->   layer 0

Two rows of layer 0 for one word differ by its place and by the side of a pair, not by its neighbors: those come in with
block 1. In "I found a rock." and "I only listen to rock." the rows of [CLS] and of "i" are equal, since they have the
same places; those of "rock" and [SEP] are not, but their word parts are, and with equal positions the rows are equal.
Between the two halves of a pair the segment has to be made equal as well.

Not every family has all terms: DistilBERT and MPNet have no segments, GPT-2 no LayerNorm, ModernBERT turns positions
into rotations of later layers, ELECTRA and ALBERT project the narrow sum to the width of their blocks. The terms are
found by the names of modules, and accepted only if the sum put together again is the model's layer 0.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from bertflow.errors import UsageError, first_line
from bertflow.results import AbstractResult
from bertflow.tables import MISSING, Section, Table
from bertflow.words.tokens import TokenBatch, Tokens

if TYPE_CHECKING:
    from bertflow.words.encoder import WordEncoder

NAMES: Mapping[str, tuple[str, ...]] = {
    "word": ("embeddings.word_embeddings", "embeddings.tok_embeddings", "wte"),
    "position": ("embeddings.position_embeddings", "wpe"),
    "segment": ("embeddings.token_type_embeddings",),
    "norm": ("embeddings.LayerNorm", "embeddings.norm"),
    "projection": ("embeddings_project", "encoder.embedding_hidden_mapping_in"),
}
"""Where transformers keeps each step; the first name that a model has."""
TERMS = ("word", "position", "segment")
"""The steps that are added up; the others act on the sum, in the order of ``NAMES``."""
TOLERANCE = 1e-5
"""Of the check against the model's layer 0, relative to the largest number there; the model is float32."""
EQUAL = 1e-6
"""Rows that differ by less, relative to the largest number in them, are equal: a matrix product may round so."""

Spot = tuple[int, int]
"""A text and a token in it, both from 0."""
COMPARED: Mapping[str, str] = {
    "row": "row of layer 0",
    "word": "word part",
    "same_position": "same position",
    "same_segment": "and same segment",
}
"""What is compared of a piece in two places, and the column titles."""


def count_segments(model: PreTrainedModel) -> int:
    """How many segments a model tells apart; 0 where it is not told."""
    modules: Mapping[str, Any] = dict(model.named_modules())
    return next((int(modules[name].num_embeddings) for name in NAMES["segment"] if name in modules), 0)


@dataclass(frozen=True)
class InputSum:
    """The steps of a model's input embedding, by the names of ``NAMES``; what it has not is absent."""

    steps: Mapping[str, Any]

    @classmethod
    def find(cls, model: PreTrainedModel) -> "InputSum":
        """Look for the steps; whether they are all, ``check`` says.

        Raises:
            UsageError: If the model has no matrix of word embeddings under a known name.
        """
        modules = dict(model.named_modules())
        steps = {
            step: next(modules[name] for name in names if name in modules)
            for step, names in NAMES.items()
            if not modules.keys().isdisjoint(names)
        }
        if "word" not in steps:
            raise UsageError(
                f"The input embedding of a model of type {model.config.model_type} cannot be taken apart: it has none "
                f"of {', '.join(NAMES['word'])}. Choose a model such as BERT, RoBERTa, MPNet, DistilBERT or ELECTRA."
            )
        return cls(steps)

    @property
    def absent(self) -> tuple[str, ...]:
        """What BERT's sum has and this model has not: terms, or the norm."""
        return tuple(step for step in (*TERMS, "norm") if step not in self.steps)

    def positions(self, ids: Tensor) -> Tensor:
        """The row of the position matrix that the model gives each token; (text, token).

        RoBERTa and its kin count from behind the padding index, and give padding that index itself.
        """
        padding = getattr(self.steps.get("position"), "padding_idx", None)
        if padding is None:
            return torch.arange(ids.shape[1]).expand(ids.shape)
        counted = ids.ne(padding)
        return counted.cumsum(1) * counted + padding

    def terms(self, ids: Tensor, positions: Tensor, segments: Tensor) -> dict[str, Tensor]:
        """What is added up, by its name; each (text, token, dim)."""
        rows = dict(zip(TERMS, (ids, positions, segments), strict=True))
        with torch.no_grad():
            return {term: self.steps[term](row) for term, row in rows.items() if term in self.steps}

    def put_together(self, terms: Mapping[str, Tensor]) -> Tensor:
        """Layer 0 of some terms: their sum, normalized and projected where the model does that."""
        total = torch.stack(list(terms.values())).sum(0)
        with torch.no_grad():
            for step in ("norm", "projection"):
                total = self.steps[step](total) if step in self.steps else total
        return total

    def check(self, batch: TokenBatch, layer_0: Tensor, family: str) -> float:
        """Whether the steps are all there is.

        Args:
            batch: Some text.
            layer_0: What the model made of it; (text, token, dim).
            family: The model's type, for the message.

        Returns:
            The largest difference, padding left out.

        Raises:
            UsageError: If the sum is not the model's layer 0.
        """
        try:
            made = self.put_together(self.terms(batch.ids, self.positions(batch.ids), batch.segments))
        except RuntimeError as error:
            raise UsageError(_other_sum(family, self.steps, f"they do not fit ({first_line(error)})")) from error
        if made.shape != layer_0.shape:
            raise UsageError(_other_sum(family, self.steps, f"it is {made.shape[-1]} wide, not {layer_0.shape[-1]}"))
        difference = float((made - layer_0)[batch.mask].abs().max())
        if difference > TOLERANCE * float(layer_0[batch.mask].abs().max()):
            raise UsageError(_other_sum(family, self.steps, f"they differ by up to {difference:.2g}"))
        return difference


def _other_sum(family: str, steps: Iterable[str], how: str) -> str:
    return (
        f"The input embedding of a model of type {family} cannot be taken apart: {' + '.join(steps)} put together "
        f"again should be its layer 0, but {how}. It is made in another way; `bertflow words` works all the same."
    )


@dataclass(frozen=True)
class RowPair:
    """One piece in two places, and by how much its rows differ: the largest difference; 0.0 where they are equal.

    Attributes:
        piece: The piece.
        first: Where it stands first.
        second: The other place.
        row: Difference of the rows of layer 0.
        word: Of their word parts alone.
        same_position: Of the rows, were the second where the first is. None where the model adds no positions.
        same_segment: The same, were it also in the first's segment. None where the model adds no segments.
    """

    piece: str
    first: Spot
    second: Spot
    row: float
    word: float
    same_position: float | None
    same_segment: float | None


@dataclass(frozen=True, repr=False)
class InputRows(AbstractResult):
    """Some texts as a model takes them in.

    Attributes:
        encoder: What the model says of itself.
        texts: The texts, or one pair.
        batch: The same, padded.
        positions: The rows of the position matrix; (text, token).
        norms: Length of each token's word, position and segment part, as far as there are, and of its row of layer 0.
        absent: The parts that BERT has and this model has not.
        states: Shape of the hidden states: layers, texts, tokens, dim.
        difference: The largest between the sum put together again and the model's own layer 0.
        pairs: Pieces that stand in the first text and in another, or in both halves of a pair.
    """

    encoder: Mapping[str, Any]
    texts: Sequence[Tokens]
    batch: TokenBatch
    positions: Tensor
    norms: Mapping[str, Tensor]
    absent: tuple[str, ...]
    states: tuple[int, int, int, int]
    difference: float
    pairs: tuple[RowPair, ...]

    def parts(self) -> Iterator[Section | str]:
        """The tokens of each text, what their embeddings are made of, and the pieces in two places."""
        header = ("token", "piece", "id", "segment", "position", "mask", *(f"|{name}|" for name in self.norms))
        for row, tokens in enumerate(self.texts):
            lines = [self._line(row, at, len(header)) for at in range(self.states[2])]
            yield Section(f"{row + 1}: {' | '.join(tokens.texts)}", Table(header, tuple(lines)))
        layers, texts, length, dim = self.states
        lacks = f" BERT's sum also has {' and '.join(self.absent)}, this one has not." if self.absent else ""
        yield (
            f"Hidden states: {layers} layers x {texts} text{'s' if texts > 1 else ''} x {length} tokens x {dim} "
            "(layer 0 is the embedding layer)."
        )
        yield (
            f"Input embedding: {' + '.join(self._terms)}{'' if 'norm' in self.absent else ', through LayerNorm'}."
            f"{lacks} Put together again it differs from the model's layer 0 by at most {self.difference:.1g}."
        )
        if self.pairs:
            columns = {name: title for name, title in COMPARED.items() if getattr(self.pairs[0], name) is not None}
            lines = [
                (
                    pair.piece,
                    *(f"{row + 1}:{at}" for row, at in (pair.first, pair.second)),
                    *(f"{value:.3f}" if (value := getattr(pair, name)) else "equal" for name in columns),
                )
                for pair in self.pairs
            ]
            yield ""
            table = Table(("piece", "first", "second", *columns.values()), tuple(lines))
            yield Section("The same piece in two places: the largest difference of", table)

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "encoder": dict(self.encoder),
            "hidden_states": dict(zip(("layers", "texts", "tokens", "dim"), self.states, strict=True)),
            "parts": self._terms,
            "absent": list(self.absent),
            "difference_from_layer_0": self.difference,
            "texts": [
                {"text": list(tokens.texts), "tokens": [self._token(row, at) for at in range(self.states[2])]}
                for row, tokens in enumerate(self.texts)
            ],
            "compared": [
                {"piece": pair.piece, "places": [list(pair.first), list(pair.second)]}
                | {name: getattr(pair, name) for name in COMPARED}
                for pair in self.pairs
            ],
        }

    @property
    def _terms(self) -> list[str]:
        return [name for name in self.norms if name != "layer 0"]

    def _token(self, row: int, at: int) -> dict[str, Any]:
        """One token; for padding, what the model sees. None is what the model is not told."""
        if at >= len(self.texts[row]):
            return {"piece": None, "id": int(self.batch.ids[row, at]), "mask": 0}
        return {
            "piece": self.texts[row].pieces[at],
            "id": int(self.batch.ids[row, at]),
            "segment": None if "segment" in self.absent else int(self.batch.segments[row, at]),
            "position": None if "position" in self.absent else int(self.positions[row, at]),
            "mask": 1,
            "norms": {name: float(norm[row, at]) for name, norm in self.norms.items()},
        }

    def _line(self, row: int, at: int, width: int) -> tuple[str, ...]:
        token = self._token(row, at)
        if not token["mask"]:
            cells = (str(at), "(padding)", str(token["id"]), MISSING, MISSING, "0")
            return (*cells, *(MISSING,) * (width - len(cells)))
        numbers = (MISSING if token[key] is None else str(token[key]) for key in ("id", "segment", "position", "mask"))
        return (str(at), token["piece"], *numbers, *(f"{norm:.3f}" for norm in token["norms"].values()))


def take_apart(encoder: "WordEncoder", texts: Sequence[Tokens]) -> InputRows:
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
    return InputRows(encoder.describe(), texts, batch, positions, norms, source.absent, shape, difference, pairs)


def _repeated(texts: Sequence[Tokens]) -> Iterator[tuple[Spot, Spot]]:
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


def _compare(source: InputSum, piece: str, batch: TokenBatch, first: Spot, second: Spot) -> RowPair:
    positions = source.positions(batch.ids)

    def terms(place: Spot, position: Spot, segment: Spot) -> dict[str, Tensor]:
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
