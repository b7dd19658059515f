"""Static against contextual vectors of words: how alike they are, layer by layer, and whether offsets agree.

Every two words have a cosine and a distance, in a panel for the static vectors and one for each context. Every
analogy a : b = c : d has two numbers: as vectors, the cosine of a - b and c - d; as scalars, the ratio of their
lengths, which is 1 where both distances are equal. An analogy is a parallelogram, so a - c and b - d are compared too.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import methodcaller
from pathlib import Path
from typing import Any

import numpy as np

from bertflow.array_types import Float32, Float64, Floats
from bertflow.files import write_text
from bertflow.progress import working
from bertflow.results import AbstractResult, Parts, ready_for_json
from bertflow.similarity import COSINE, SIMILARITIES
from bertflow.tables import REST, Section, Table, cell
from bertflow.words.encoder import WordEncoder
from bertflow.words.study import STATIC, Labels, Study

MEASURES: Mapping[str, str] = {"euclidean": "Euclidean distance", "cosine": "Cosine"}
"""Measures of every two words; a section and a row of pictures each, the most important one last."""
OFFSETS = ("cosine of the two", "length of the first", "length of the second", "shorter / longer")
"""What is printed of two offsets: the first as vectors, the others as scalars."""
TIE = 1e-6
"""Cosines that differ by less are level: layer 0 of one word in one place is the same row, up to rounding."""
LINES, VERDICTS, NEAREST = 6, 2, 2
"""Lines of the table, sentences below it, and nearest words, in an answer of 24 lines."""
NAMED = 3
"""Most poolings that a sentence names."""


@dataclass(frozen=True)
class Offset:
    """How alike two offsets are.

    Attributes:
        of: The two in words: "a - b" and "c - d".
        cosine: Cosine of the two; 1 is one direction. None if one of their ``lengths`` is zero.
        ratio: The shorter over the longer: 1 if the lengths are equal, None if both are zero.
    """

    of: tuple[str, str]
    cosine: float | None
    lengths: tuple[float, float]
    ratio: float | None


@dataclass(frozen=True)
class Panel:
    """The vectors of all labels in one context, by one pooling.

    Attributes:
        labels: Labels of rows and columns.
        cosine: Cosine of every two; (n, n).
        euclidean: Their distances; (n, n).
        offsets: One for each of the study, and one for the other two sides of each: a - c and b - d.
    """

    labels: Labels
    cosine: Float64
    euclidean: Float64
    offsets: tuple[Offset, ...]

    def of(self, measure: str, pair: Labels) -> float:
        """One entry of ``cosine`` or ``euclidean``."""
        first, second = map(self.labels.index, pair)
        return float(getattr(self, measure)[first, second])

    def offset(self, at: int, number: int) -> float | None:
        """One number of one of ``offsets``, in the order of ``OFFSETS``."""
        found = self.offsets[at]
        return (found.cosine, *found.lengths, found.ratio)[number]

    def as_dict(self) -> dict[str, Any]:
        """Ready for JSON, without the labels: they are those of the study."""
        return ready_for_json({"cosine": self.cosine, "euclidean": self.euclidean, "offsets": self.offsets})


@dataclass(frozen=True, repr=False)
class StudyResult(AbstractResult):
    """What a study found.

    Attributes:
        study: The study.
        encoder: What the encoder says of itself.
        mentions: Where each mention was found: ``context``, ``label``, ``pieces``, ``tokens`` (the places of the
            pieces), ``segment`` and ``sentence``.
        panels: Panels by pooling, then by ``STATIC`` and context.
        nearest: a - b + d for each of the study's ``offsets`` a, b, c, d -> words of the vocabulary whose static
            vectors are most like it, and their cosines.
        written: What was written where, in one line; empty if nothing was.
    """

    name = "words"
    not_in_json = ("study", "written")

    study: Study
    encoder: Mapping[str, Any]
    mentions: Sequence[Mapping[str, Any]]
    panels: Mapping[str, Mapping[str, Panel]]
    nearest: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    written: str = ""

    @property
    def static(self) -> Panel:
        """The static vectors, by the first pooling."""
        return next(iter(self.panels.values()))[STATIC]

    def nearer(self, pair: Labels, context: str, other: Labels, elsewhere: str) -> dict[str, str]:
        """Whether a pair in a context is nearer by cosine than another one elsewhere: "above", "level" or "below"."""
        return {
            pooling: placed(panels[context].of("cosine", pair), panels[elsewhere].of("cosine", other))
            for pooling, panels in self.panels.items()
        }

    def as_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        return super().as_dict() | {
            "title": self.study.title,
            "labels": list(self.study.labels),
            "closer": [
                {"labels": [a, b, c], "context": context, "by_pooling": self.nearer((a, b), context, (a, c), context)}
                for a, b, c in self.study.closer
                for context in self.study.contexts
            ],
        }

    def parts(self) -> Parts:
        """Where the words are, how alike they are, and what that says."""
        yield self.study.title
        places = (
            {**mention, "pieces": " ".join(mention["pieces"]), "tokens": ",".join(map(str, mention["tokens"]))}
            for mention in self.mentions
        )
        header = ("context", "label", "pieces", "token", "segment", "sentence")
        yield Table(header, tuple(tuple(map(str, place.values())) for place in places))
        pairs = self.study.followed()
        for measure, title in MEASURES.items():
            yield self._section(title, {" ~ ".join(pair): methodcaller("of", measure, pair) for pair in pairs})
        for at, offset in enumerate(self.static.offsets):
            title = f"Offsets: {' and '.join(offset.of)}, as vectors and as scalars"
            yield self._section(
                title, {name: methodcaller("offset", at, number) for number, name in enumerate(OFFSETS)}
            )
        yield from self._neighbors()
        yield from self.verdicts()
        if self.written:
            yield self.written

    def answer(self) -> Parts:
        """How alike the words are at the middle and the last pooling, and what that says: as much as a screen shows."""
        asked = [*enumerate(self.static.offsets)][::2]
        cells = {" ~ ".join(one.of): methodcaller("offset", at, 0) for at, one in asked}
        cells |= {" ~ ".join(pair): methodcaller("of", "cosine", pair) for pair in self.study.followed()}
        names = [*self.panels]
        yield self.study.title
        shown = dict.fromkeys([names[len(names) // 2], names[-1]])
        title = f"Cosine, {len(shown)} of {len(names)} poolings" if names[len(shown) :] else "Cosine"
        section = self._section(title, cells, shown)
        yield replace(section, table=replace(section.table, lines=section.table.lines[:LINES]))
        yield from itertools.islice(self._neighbors(NEAREST), 1)
        yield from itertools.islice(self.verdicts(), VERDICTS)
        yield f"All layers and distances: {REST.split(',')[0] if self.written else REST}. {self.written}".rstrip()

    def _section(
        self, title: str, cells: Mapping[str, Callable[[Panel], float | None]], poolings: Iterable[str] = ()
    ) -> Section:
        """A line for each cell and context; a column for the static vectors and for each pooling."""
        lines, poolings = [], list(poolings or self.panels)
        for (name, value), context in itertools.product(cells.items(), self.study.contexts):
            values = map(value, [self.static, *(self.panels[one][context] for one in poolings)])
            lines.append((name, context, *map(cell, values)))
        return Section(title, Table(("", "context", STATIC, *poolings), tuple(lines)))

    def _neighbors(self, most: int | None = None) -> Iterator[str]:
        """The words whose static vectors are nearest to each sum of words."""
        for sum_, found in self.nearest.items():
            listed = ", ".join(f"{word} {cosine:.3f}" for word, cosine in [*found.items()][:most])
            yield f"{sum_}: the nearest static vectors are {listed}."

    def verdicts(self) -> Iterator[str]:
        """What the study says, in sentences, with the numbers behind them."""
        first, *others = self.study.contexts
        for a, b, c in self.study.closer:
            for context in self.study.contexts:
                found = self.nearer((a, b), context, (a, c), context)
                yield f"{context}: the cosine {a} ~ {b} is above {a} ~ {c} {_count(found)}."
        pooling, panels = list(self.panels.items())[-1]
        for pair in self.study.followed():
            name, alone = " ~ ".join(pair), self.static.of("cosine", pair)
            if placed(alone, 1.0) == "below":  # there is nothing to say of one word with itself
                against = {context: self.nearer(pair, context, pair, STATIC) for context in self.study.contexts}
                told = [f"in {context!r} {_count(found)}" for context, found in against.items()]
                yield f"{name}: closer than static ({alone:.3f}) {'; '.join(told)}."
            elif not others:
                here = panels[first].of("cosine", pair)
                yield f"{name}: one static vector; in context the cosine is {here:.3f} at {pooling}."
            for other in others:
                there, here = (panels[context].of("cosine", pair) for context in (other, first))
                yield (
                    f"{name}: closer in {other!r} than in {first!r} {_count(self.nearer(pair, other, pair, first))}; "
                    f"{there:.3f} against {here:.3f} at {pooling}."
                )

    @working("drawing the figure")
    def save(self, folder: str | Path, kind: str = "png") -> Path:
        """Write ``words.json`` and the heatmaps; needs matplotlib.

        Args:
            folder: Created if it is missing.
            kind: Format of the heatmaps: ``png`` or ``svg``.
        """
        from bertflow.words.drawing import write_heatmaps

        folder = Path(folder)
        write_text(folder / "words.json", self.to_json())
        write_heatmaps(self, folder, kind)
        return folder


def run_study(encoder: WordEncoder, study: Study, poolings: Sequence[str] = ()) -> StudyResult:
    """Measure a study.

    Args:
        encoder: Encoder of the vectors.
        study: Words and contexts.
        poolings: Names or rows written out; by default every layer, the pieces of a word averaged.

    Raises:
        UsageError: For a pooling or segment that this encoder does not have.
        DataError: If a word is not in its sentence, or a vector is zero.
    """
    chosen = list(dict.fromkeys(poolings)) or [f"mean({layer})" for layer in range(encoder.blocks + 1)]
    contextual = {context: encoder.contextual(study.of(context), chosen) for context in study.contexts}
    words = [mention.word for mention in study.of(next(iter(study.contexts)))]
    panels = {
        pooling: {STATIC: _panel(encoder.static(words, pooling), study)}
        | {context: _panel(found[pooling], study) for context, found in contextual.items()}
        for pooling in chosen
    }
    mentions = [
        {"context": context, "label": mention.label, **encoder.find(mention), "sentence": mention.sentence}
        for context in study.contexts
        for mention in study.of(context)
    ]
    nearest = {}
    for names in study.offsets:
        a, b, _, d = (words[study.labels.index(name)] for name in names)
        x = encoder.static([a, b, d])
        nearest[f"{a} - {b} + {d}"] = encoder.nearest(x[0] - x[1] + x[2], [a, b, d])
    return StudyResult(study, encoder.describe(), mentions, panels, nearest)


def placed(one: float, other: float) -> str:
    """Whether one cosine is above, level with or below another."""
    if abs(one - other) < TIE:
        return "level"
    return "above" if one > other else "below"


def compare_offsets(x: Floats, labels: Labels, names: Labels) -> Offset:
    """Compare a - b with c - d, by their ``names`` among the ``labels`` of the rows of x (n, dim)."""
    a, b, c, d = (np.asarray(x[labels.index(name)], np.float64) for name in names)
    first, second = a - b, c - d
    lengths = float(np.linalg.norm(first)), float(np.linalg.norm(second))
    cosine = float(COSINE.paired(first[None], second[None])[0]) if all(lengths) else None
    ratio = min(lengths) / max(lengths) if any(lengths) else None
    return Offset((" - ".join(names[:2]), " - ".join(names[2:])), cosine, lengths, ratio)


def _panel(x: Float32, study: Study) -> Panel:
    labels, distances = study.labels, -SIMILARITIES["euclidean"].matrix(x, x)
    sides = [names for a, b, c, d in study.offsets for names in ((a, b, c, d), (a, c, b, d))]
    offsets = tuple(compare_offsets(x, labels, names) for names in sides)
    return Panel(labels, COSINE.matrix(x, x), distances, offsets)


def _count(found: Mapping[str, str]) -> str:
    """At how many poolings something is so; and where it is not, while those are few."""
    counts = Counter(found.values())
    parts = [f"at {counts['above']} of {len(found)} poolings"]
    for verdict in ("level", "below"):
        where = [pooling for pooling, is_so in found.items() if is_so == verdict]
        if where:
            names = f" ({' '.join(where)})" if len(where) <= NAMED else ""
            parts.append(f"{verdict} at {len(where)}{names}")
    return ", ".join(parts)
