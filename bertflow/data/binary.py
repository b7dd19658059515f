"""Binary tasks: pairs of texts that belong together or do not, scored by the area under the ROC curve.

The paper's question is of this kind: does a sentence answer a question (QNLI)? A label is written 0 or 1, or in QNLI's
words. Mind that the *numbers* of QNLI's copies on the hub are the other way round there: 0 is entailment.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bertflow.data.tables import open_table
from bertflow.errors import DataError

BINARY_COLUMNS = (("a", "b", "label"), ("sentence1", "sentence2", "label"), ("question", "sentence", "label"))
"""A row is what the columns of a binary file may be called."""

LABELS: Mapping[str, int] = {"0": 0, "1": 1, "not_entailment": 0, "entailment": 1}
"""A row is how a label may be written."""


@dataclass(frozen=True, eq=False)
class BinaryPairs:
    """Pairs of texts, of one length with their labels."""

    task: str
    a: tuple[str, ...]
    b: tuple[str, ...]
    labels: NDArray[np.int64]
    """1 where a and b belong together, 0 where they do not."""
    source: str
    """Where the pairs came from."""

    def __len__(self) -> int:
        """The number of pairs."""
        return len(self.a)


def load_binary(path: str | Path) -> BinaryPairs:
    """Load a table (tsv, csv, jsonl, parquet) with the columns a, b and label.

    Raises:
        DataError: If the file or a column is missing, a row cannot be read, or only one label occurs.
    """
    table = open_table(path)
    rows: list[tuple[str, str, int]] = []
    for number, (a, b, label) in table.read(table.require(BINARY_COLUMNS)):
        where = table.where(number)
        for text in (a, b):
            if not isinstance(text, str) or not text.strip():
                raise DataError(f"{where}: a pair needs two texts, but one is {text!r}. Leave the pair out.")
        if str(label) not in LABELS:
            raise DataError(f"{where}: a label should be one of {', '.join(LABELS)}, got {label!r}. Repair the label.")
        rows.append((a, b, LABELS[str(label)]))
    labels = np.array([label for _, _, label in rows], dtype=np.int64)
    if len(set(labels.tolist())) < 2:
        raise DataError(
            f"{path} should hold pairs of both labels, but {int(labels.sum())} of its {len(rows)} are labelled 1. "
            "Give pairs of both kinds."
        )
    name = Path(path).name
    return BinaryPairs(name.partition(".")[0], tuple(a for a, _, _ in rows), tuple(b for _, b, _ in rows), labels, name)
