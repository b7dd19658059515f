"""Static against contextual vectors of words: how alike they are, layer by layer, and whether offsets agree.

Of every two words the cosine and the distance, in a panel for the static vectors and one for each context. Of every
analogy a : b = c : d two numbers: as vectors, the cosine of a - b and c - d; as scalars, the ratio of their lengths,
which is 1 where the two distances are equal. An analogy is a parallelogram, so its other two sides, a - c and b - d,
are compared as well.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertflow.similarity import SIMILARITIES
from bertflow.words.encoder import Place, WordEncoder
from bertflow.words.study import STATIC, Labels, Study

TIE = 1e-6
"""Cosines that differ by less are level: layer 0 of one word in one place is the same row, up to rounding."""


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


@dataclass(frozen=True)
class StudyResult:
    """What a study found.

    Attributes:
        study: The study.
        encoder: What the encoder says of itself.
        places: Where each mention was found, by context and label.
        panels: By pooling, then by ``STATIC`` and context.
    """

    study: Study
    encoder: Mapping[str, Any]
    places: Mapping[str, Mapping[str, Place]]
    panels: Mapping[str, Mapping[str, Panel]]

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

    def to_dict(self) -> dict[str, Any]:
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
        labels: Of the rows.
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
