"""Static against contextual vectors of words: how alike they are, layer by layer, and whether offsets agree.

Of every two words the cosine and the distance, in a panel for the static vectors and one for each context. Of every
analogy a : b = c : d two numbers: as vectors, the cosine of a - b and c - d; as scalars, the ratio of their lengths,
which is 1 where the two distances are equal. An analogy is a parallelogram, so its other two sides, a - c and b - d,
are compared as well.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from bertflow.files import write_text
from bertflow.results import AbstractResult
from bertflow.similarity import SIMILARITIES
from bertflow.tables import MISSING, Section, Table
from bertflow.words.encoder import Place, WordEncoder
from bertflow.words.study import STATIC, Labels, Study

TIE = 1e-6
"""Cosines that differ by less are level: layer 0 of one word in one place is the same row, up to rounding."""
NAMED = 3
"""Most poolings that a sentence names."""


@dataclass(frozen=True)
class Offset:
    """How alike two offsets are.

    Attributes:
        labels: (a, b, c, d), for a - b and c - d.
        cosine: Of the two; 1 is one direction. None where one of them is nothing.
        first: Length of a - b.
        second: Length of c - d.
    """

    labels: Labels
    cosine: float | None
    first: float
    second: float

    @property
    def ratio(self) -> float | None:
        """Of the shorter to the longer: 1 where the distances are equal; None where both are nothing."""
        longer = max(self.first, self.second)
        return min(self.first, self.second) / longer if longer else None


@dataclass(frozen=True)
class Panel:
    """The vectors of all labels in one context, by one pooling.

    Attributes:
        labels: Of rows and columns.
        cosine: Of every two; (n, n).
        euclidean: Their distances; (n, n).
        offsets: One for each of the study, and one for the other two sides of each: a - c and b - d.
    """

    labels: Labels
    cosine: NDArray[np.float64]
    euclidean: NDArray[np.float64]
    offsets: tuple[Offset, ...]

    def of(self, measure: str, pair: Labels) -> float:
        """One entry of ``cosine`` or ``euclidean``."""
        first, second = map(self.labels.index, pair)
        return float(getattr(self, measure)[first, second])


@dataclass(frozen=True, repr=False)
class StudyResult(AbstractResult):
    """What a study found.

    Attributes:
        study: The study.
        encoder: What the encoder says of itself.
        places: Where each mention was found, by context and label.
        panels: By pooling, then by ``STATIC`` and context.
        written: What was written where, in one line; empty if nothing was.
    """

    name: ClassVar[str] = "words"

    study: Study
    encoder: Mapping[str, Any]
    places: Mapping[str, Mapping[str, Place]]
    panels: Mapping[str, Mapping[str, Panel]]
    written: str = ""

    def closer(self, labels: Labels, context: str) -> dict[str, str]:
        """Whether a is nearer to b than to c by cosine: "above", "level" or "below", by pooling."""
        a, b, c = labels
        return {
            pooling: placed(panels[context].of("cosine", (a, b)), panels[context].of("cosine", (a, c)))
            for pooling, panels in self.panels.items()
        }

    def moved(self, pair: Labels, first: str, second: str) -> dict[str, str]:
        """Whether two words are nearer in the second context than in the first: as for ``closer``."""
        return {
            pooling: placed(panels[second].of("cosine", pair), panels[first].of("cosine", pair))
            for pooling, panels in self.panels.items()
        }

    def as_dict(self) -> dict[str, Any]:
        """Everything, ready for JSON."""
        return {
            "title": self.study.title,
            "encoder": dict(self.encoder),
            "labels": list(self.study.labels),
            "mentions": [
                {
                    "context": context,
                    "label": label,
                    "sentence": place.tokens.texts[0],
                    "pieces": list(place.pieces),
                    "tokens": list(place.at),
                    "segment": place.tokens.segments[0],
                }
                for context, places in self.places.items()
                for label, place in places.items()
            ],
            "panels": {
                pooling: {context: _to_dict(panel) for context, panel in panels.items()}
                for pooling, panels in self.panels.items()
            },
            "closer": [
                {"labels": list(labels), "context": context, "by_pooling": self.closer(labels, context)}
                for labels in self.study.closer
                for context in self.study.contexts
            ],
        }

    def parts(self) -> Iterator[Table | Section | str]:
        """Where the words are, how alike they are, and what that says."""
        yield self.study.title
        yield Table(
            ("context", "label", "pieces", "token", "segment", "sentence"),
            tuple(
                (
                    context,
                    label,
                    " ".join(place.pieces),
                    ",".join(map(str, place.at)),
                    str(place.tokens.segments[0]),
                    place.tokens.texts[0],
                )
                for context, places in self.places.items()
                for label, place in places.items()
            ),
        )
        pairs = self.study.followed()
        for measure, title in (("cosine", "Cosine"), ("euclidean", "Euclidean distance")):
            yield Section(title, self._by_row({" ~ ".join(pair): _entry(measure, pair) for pair in pairs}))
        for at, offset in enumerate(next(iter(self.panels.values()))[STATIC].offsets):
            names = " and ".join(" - ".join(half) for half in (offset.labels[:2], offset.labels[2:]))
            cells = {name: _offset(at, read) for name, read in OFFSET_LINES.items()}
            yield Section(f"Offsets: {names}, as vectors and as scalars", self._by_row(cells))
        yield from self.verdicts()
        if self.written:
            yield self.written

    def verdicts(self) -> Iterator[str]:
        """What the study says, in sentences, with the numbers behind them."""
        first, *others = self.study.contexts
        for a, b, c in self.study.closer:
            for context in self.study.contexts:
                found = self.closer((a, b, c), context)
                yield f"{context}: the cosine {a} ~ {b} is above {a} ~ {c} {_count(found)}."
        pooling, panels = list(self.panels.items())[-1]
        static = next(iter(self.panels.values()))[STATIC]
        for pair in self.study.followed():
            name, alone = " ~ ".join(pair), static.of("cosine", pair)
            if placed(alone, 1.0) == "below":  # there is nothing to say of one word with itself
                told = [
                    f"in {context!r} {_count(self.moved(pair, STATIC, context))}" for context in self.study.contexts
                ]
                yield f"{name}: closer than static ({alone:.3f}) {'; '.join(told)}."
            for other in others:
                there, here = (panels[context].of("cosine", pair) for context in (other, first))
                yield (
                    f"{name}: closer in {other!r} than in {first!r} {_count(self.moved(pair, first, other))}; "
                    f"{there:.3f} against {here:.3f} at {pooling}."
                )

    def save(self, folder: str | Path) -> Path:
        """Write ``words.json`` and the heatmaps, as PNG.

        Args:
            folder: Created if it is missing.

        Returns:
            The folder.
        """
        self.written_to(Path(folder))
        return Path(folder)

    def written_to(self, folder: Path, kind: str = "png") -> "StudyResult":
        """Write ``words.json`` and the heatmaps as ``png`` or ``svg``; the result then says so."""
        from bertflow.words.plots import write_heatmaps  # needs matplotlib

        write_text(folder / "words.json", self.to_json())
        pictures = write_heatmaps(self, folder, kind)
        written = f"Written: {folder / 'words.json'} and {len(pictures)} pictures beside it."
        return replace(self, written=written)

    def _by_row(self, cells: Mapping[str, Callable[[Panel], str]]) -> Table:
        """A line for each cell and context; a column for the static vectors, by the first pooling, and for each."""
        static = next(iter(self.panels.values()))[STATIC]
        lines = [
            (name, context, cell(static), *(cell(panels[context]) for panels in self.panels.values()))
            for name, cell in cells.items()
            for context in self.study.contexts
        ]
        return Table(("", "context", STATIC, *self.panels), tuple(lines))


def run_study(encoder: WordEncoder, study: Study, poolings: Sequence[str] = ()) -> StudyResult:
    """Measure a study.

    Args:
        encoder: Whose vectors.
        study: Words and contexts.
        poolings: Names or rows written out; by default every layer, the pieces of a word averaged.

    Raises:
        UsageError: For a pooling or segment that this encoder has not.
        DataError: If a word is not in its sentence, or a vector is zero.
    """
    chosen = list(dict.fromkeys(poolings)) or [f"mean({layer})" for layer in range(encoder.blocks + 1)]
    contextual = {context: encoder.contextual(study.mentions(context), chosen) for context in study.contexts}
    panels = {
        pooling: {STATIC: _panel(encoder.static(study.words, pooling), study)}
        | {context: _panel(found[pooling], study) for context, found in contextual.items()}
        for pooling in chosen
    }
    places = {
        context: {label: encoder.find(mentions[label]) for label in study.labels}
        for context, mentions in study.contexts.items()
    }
    return StudyResult(study, encoder.describe(), places, panels)


def placed(one: float, other: float) -> str:
    """Whether one cosine is above, level with or below another."""
    if abs(one - other) < TIE:
        return "level"
    return "above" if one > other else "below"


def compare_offsets(x: NDArray[np.floating[Any]], labels: Labels, names: Labels) -> Offset:
    """Compare a - b with c - d.

    Args:
        x: A vector a label; (n, dim).
        labels: Labels of the rows.
        names: (a, b, c, d).
    """
    a, b, c, d = (np.asarray(x[labels.index(name)], np.float64) for name in names)
    first, second = a - b, c - d
    lengths = float(np.linalg.norm(first)), float(np.linalg.norm(second))
    cosine = float(SIMILARITIES["cosine"].paired(first[None], second[None])[0]) if all(lengths) else None
    return Offset(names, cosine, *lengths)


def _panel(x: NDArray[np.float32], study: Study) -> Panel:
    labels = study.labels
    offsets = [names for a, b, c, d in study.offsets for names in ((a, b, c, d), (a, c, b, d))]
    return Panel(
        labels,
        SIMILARITIES["cosine"].matrix(x, x),
        -SIMILARITIES["euclidean"].matrix(x, x),
        tuple(compare_offsets(x, labels, names) for names in offsets),
    )


def _to_dict(panel: Panel) -> dict[str, Any]:
    return {
        "cosine": panel.cosine.tolist(),
        "euclidean": panel.euclidean.tolist(),
        "offsets": [
            {
                "of": [" - ".join(offset.labels[:2]), " - ".join(offset.labels[2:])],
                "cosine": offset.cosine,
                "lengths": [offset.first, offset.second],
                "ratio": offset.ratio,
            }
            for offset in panel.offsets
        ],
    }


def _entry(measure: str, pair: Labels) -> Callable[[Panel], str]:
    return lambda panel: f"{panel.of(measure, pair):.3f}"


def _offset(at: int, read: Callable[[Offset], float | None]) -> Callable[[Panel], str]:
    def cell(panel: Panel) -> str:
        value = read(panel.offsets[at])
        return MISSING if value is None else f"{value:.3f}"

    return cell


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


OFFSET_LINES: Mapping[str, Callable[[Offset], float | None]] = {
    "cosine of the two": lambda offset: offset.cosine,
    "length of the first": lambda offset: offset.first,
    "length of the second": lambda offset: offset.second,
    "shorter / longer": lambda offset: offset.ratio,
}
"""What is printed of an offset: the first as vectors, the others as scalars."""
