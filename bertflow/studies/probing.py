"""A linear probe of poolings on labels of texts: what a logistic regression reads from them, cross-validated.

A probe says what an embedding holds, not what its cosine shows: how well does a linear classifier tell labels apart?
Embeddings are scaled inside each fold, on its training part.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from bertflow import TransformerEncoder
from bertflow.data.corpus import LabelledText
from bertflow.errors import DataError
from bertflow.evaluation.poolings import embed_poolings, recipe_of
from bertflow.evaluation.rows import number
from bertflow.evaluation.sweeping import WEIGHTED, AbstractSweep, Candidate
from bertflow.tables import Table

ITERATIONS = 1000  # of the optimizer; scaled embeddings need some tens


@dataclass(frozen=True)
class ProbeRow(Candidate):
    """The accuracy of a linear probe of a pooling.

    Attributes:
        accuracy: Mean over the folds, in [0, 1].
        deviation: Standard deviation over the folds.
    """

    accuracy: float
    deviation: float


@dataclass(frozen=True, repr=False)
class Probe(AbstractSweep):
    """Accuracies of a linear probe.

    Attributes:
        rows: By pooling.
        n: Number of labelled texts.
        labels: Number of different labels.
        majority: Share of the most frequent label, the accuracy of guessing.
        folds: Folds of the cross-validation.
        seed: Random seed for the folds.
        source: Where the labels came from.
    """

    rows: tuple[ProbeRow, ...]
    n: int
    labels: int
    majority: float
    folds: int
    seed: int
    source: str

    title: ClassVar[str] = "A linear probe of layers and poolings"
    quantity: ClassVar[str] = "accuracy of a linear probe x 100"

    def table(self) -> Table:
        """A line a pooling, x 100."""
        lines = [(row.pooling, number(row.accuracy), number(row.deviation)) for row in self.rows]
        return Table(("pooling", "accuracy", "+-"), tuple(lines))

    def cells(self) -> list[tuple[str, Candidate, float]]:
        """One panel."""
        return [("probe", row, 100 * row.accuracy) for row in self.rows]

    def summary(self) -> list[str]:
        """What was best, and how the numbers were made."""
        best = max(self.rows, key=lambda row: row.accuracy)
        return [
            f"Best: {best.pooling}, {number(best.accuracy)} +- {number(best.deviation)}.",
            f"Accuracy x 100 of a logistic regression, mean and standard deviation over {self.folds} stratified folds "
            f"(seed {self.seed}); {self.n} texts of {self.source}, {self.labels} labels, the most frequent "
            f"{number(self.majority)}; {self.encoder['encoder']}.",
        ]


def probe_texts(
    encoder: TransformerEncoder,
    labelled: LabelledText,
    poolings: Sequence[str],
    folds: int = 5,
    seed: int = 0,
    progress: bool | None = None,
) -> Probe:
    """Cross-validate a linear probe on every pooling.

    Args:
        encoder: As for ``sweep_poolings``.
        labelled: Texts and their labels.
        poolings: Spellings.
        folds: Two or more.
        seed: Random seed for the folds.
        progress: Whether to show a progress bar (default: in a terminal or a notebook).

    Raises:
        DataError: If a label has fewer texts than there are folds.
    """
    counts, n = Counter(labelled.labels), len(labelled.labels)
    label, fewest = counts.most_common()[-1]
    if fewest < folds:
        raise DataError(
            f"Every label needs a text in each of {folds} folds, but {label!r} has {fewest}. "
            "Give more text, or fewer folds."
        )
    encoder.count_tokens(labelled.texts)
    rows, scratch = [], 0
    for candidate, x in embed_poolings(encoder, labelled.texts, poolings, progress):
        if candidate.pooling != WEIGHTED:
            found = accuracy_of_folds(x, labelled.labels, folds, seed)
            rows.append(ProbeRow(**vars(candidate), accuracy=float(found.mean()), deviation=float(found.std(ddof=1))))
            scratch += x.nbytes
    majority = max(counts.values()) / n
    return Probe(tuple(rows), recipe_of(encoder), scratch, n, len(counts), majority, folds, seed, labelled.source)


def accuracy_of_folds(x: NDArray[np.float32], labels: Sequence[str], folds: int, seed: int) -> NDArray[np.float64]:
    """Accuracy (folds,) of a logistic regression on embeddings (n, width), each fold left out in turn."""
    pipeline = make_pipeline(StandardScaler(), LogisticRegression(max_iter=ITERATIONS))
    splits = StratifiedKFold(folds, shuffle=True, random_state=seed)
    return np.asarray(cross_val_score(pipeline, x.astype(np.float64), np.asarray(labels), cv=splits))
