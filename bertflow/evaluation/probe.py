"""A linear probe: how well a linear classifier tells labels apart, layer by layer and pooling by pooling.

    embeddings -> StandardScaler -> LogisticRegression,   accuracy over stratified folds

The scaler is fitted inside each fold, on its training part. A probe sees labels: it says what is in an embedding, not
what its cosine shows.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from bertflow.data.labels import LabelledText
from bertflow.encoder.pooling import parse_pooling
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.errors import DataError, UsageError
from bertflow.evaluation.encoding import embed_poolings
from bertflow.evaluation.sweep_table import Cell, Grid, layer_grid, to_csv
from bertflow.files import to_json
from bertflow.tables import Table

ITERATIONS = 1000
"""Of the optimizer; scaled embeddings need some tens."""


@dataclass(frozen=True)
class ProbeRow:
    """One pooling.

    Attributes:
        pooling: Its spelling.
        tokens: How the tokens of a layer are reduced.
        layers: From 0.
        width: Of its embeddings.
        accuracy: Mean over the folds, in [0, 1].
        deviation: Standard deviation over the folds.
    """

    pooling: str
    tokens: str
    layers: tuple[int, ...]
    width: int
    accuracy: float
    deviation: float


@dataclass(frozen=True)
class Probe:
    """All rows, and how they were made.

    Attributes:
        rows: By pooling.
        encoder: The encoder's description, without a pooling.
        n: Labelled texts.
        labels: How many different labels.
        majority: Share of the most frequent one: what guessing gets.
        folds: Of the cross-validation.
        seed: Of the folds.
        source: Where the labels came from.
        scratch_bytes: What the embeddings of all poolings took on disk.
    """

    rows: tuple[ProbeRow, ...]
    encoder: Mapping[str, Any]
    n: int
    labels: int
    majority: float
    folds: int
    seed: int
    source: str
    scratch_bytes: int

    def best(self) -> ProbeRow:
        """The most accurate pooling."""
        return max(self.rows, key=lambda row: row.accuracy)

    def table(self) -> Table:
        """A line a pooling, x 100."""
        lines = tuple((row.pooling, f"{100 * row.accuracy:.2f}", f"{100 * row.deviation:.2f}") for row in self.rows)
        return Table(("pooling", "accuracy", "+-"), lines)

    def grid(self) -> Grid:
        """The poolings of one layer, accuracy x 100."""
        return layer_grid(Cell("probe", row.layers, row.tokens, 100 * row.accuracy) for row in self.rows)

    def summary(self) -> list[str]:
        """What was best, and how the numbers were made."""
        best = self.best()
        return [
            f"Best: {best.pooling}, {100 * best.accuracy:.2f} +- {100 * best.deviation:.2f}.",
            f"Accuracy x 100 of a logistic regression, mean and standard deviation over {self.folds} stratified folds "
            f"(seed {self.seed}); {self.n} texts of {self.source}, {self.labels} labels, the most frequent "
            f"{100 * self.majority:.2f}; {self.encoder['encoder']}.",
        ]

    def to_markdown(self) -> str:
        """The table, and how it was made."""
        lines = "".join(f"* {line}\n" for line in self.summary())
        return f"# A linear probe of layers and poolings\n\n{self.table().to_markdown()}\n{lines}"

    def to_json(self) -> str:
        """Everything; accuracies in [0, 1]."""
        own = asdict(self)
        own.pop("scratch_bytes")
        return to_json({"format": 1, **own, "rows": self._records()})

    def to_csv(self) -> str:
        """One line a pooling."""
        return to_csv(self._records())

    def _records(self) -> list[dict[str, Any]]:
        return [{**asdict(row), "layers": " ".join(map(str, row.layers))} for row in self.rows]


def probe(
    encoder: TransformerEncoder,
    labelled: LabelledText,
    poolings: Sequence[str],
    folds: int = 5,
    seed: int = 0,
    progress: bool = False,
) -> Probe:
    """Cross-validate a linear probe on every pooling.

    Args:
        encoder: Its own pooling does not matter, but all blocks that are read should be loaded. Its token counts, which
            ``sif`` reads, are counted anew, on these texts.
        labelled: What is told apart.
        poolings: Spellings.
        folds: Two or more.
        seed: Of the folds.
        progress: Show a bar on stderr.

    Raises:
        UsageError: For fewer than two folds.
        DataError: If a label has fewer texts than there are folds.
    """
    counts = Counter(labelled.labels)
    _require_folds(counts, folds)
    encoder.count_tokens(labelled.texts)
    description = encoder.describe()
    with embed_poolings(encoder, labelled.texts, poolings, progress) as scratch:
        rows = []
        for spelling in poolings:
            pooling, x = parse_pooling(spelling), scratch.read(spelling)
            accuracies = accuracy_of_folds(x, labelled.labels, folds, seed)
            layers = pooling.resolve(description["blocks"])
            spread = float(accuracies.std(ddof=1))
            rows.append(ProbeRow(spelling, pooling.tokens, layers, x.shape[1], float(accuracies.mean()), spread))
        nbytes = scratch.nbytes
    recipe = {key: value for key, value in description.items() if key not in ("pooling", "layers", "token_counts")}
    n, most = len(labelled.labels), max(counts.values())
    return Probe(tuple(rows), recipe, n, len(counts), most / n, folds, seed, labelled.source, nbytes)


def accuracy_of_folds(x: NDArray[np.float32], labels: Sequence[str], folds: int, seed: int) -> NDArray[np.float64]:
    """Accuracy (folds,) of a logistic regression on embeddings (n, width), each fold left out in turn."""
    pipeline = make_pipeline(StandardScaler(), LogisticRegression(max_iter=ITERATIONS))
    splits = StratifiedKFold(folds, shuffle=True, random_state=seed)
    return np.asarray(cross_val_score(pipeline, x.astype(np.float64), np.asarray(labels), cv=splits))


def _require_folds(counts: Counter[str], folds: int) -> None:
    if folds < 2:
        raise UsageError(f"A cross-validation needs two folds or more, got {folds}.")
    label, fewest = counts.most_common()[-1]
    if fewest < folds:
        raise DataError(
            f"Every label needs a text in each of {folds} folds, but {label!r} has {fewest}. "
            "Give more text, or fewer folds."
        )
