"""Natural language inference: does a premise entail a hypothesis, contradict it, or neither?

Read are the files as SNLI and MNLI were given out (tsv, also under the ending .txt, and jsonl), their copies in GLUE,
and any table with two texts and a label:

    gold_label + sentence1 + sentence2      SNLI, MNLI, GLUE's copies
    premise + hypothesis + label            most others

A label is a name. "-" is SNLI's mark for a pair on which its annotators did not agree: it is dropped and counted.
Anything else that is no known label is refused: numbers too, since copies number the classes differently.
"""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bertflow.data.pairs import TrainingPairs, listed, names_of, spelled, text_of
from bertflow.data.tables import FORMATS, TextTable, open_table
from bertflow.errors import DataError

logger = logging.getLogger("bertflow")

NLI_CLASSES = ("contradiction", "entailment", "neutral")
"""The classes in the order of the released BERT-flow."""
NO_GOLD = "-"
NLI_COLUMNS = (
    ("sentence1", "sentence2", "gold_label"),
    ("premise", "hypothesis", "label"),
    ("premise", "hypothesis", "gold_label"),
    ("sentence1", "sentence2", "label"),
    ("sentence_A", "sentence_B", "entailment_judgment"),
)
"""A row is what the columns of two texts and their label may be called."""


def load_nli(paths: str | Path | Sequence[str | Path], classes: Sequence[str] = NLI_CLASSES) -> TrainingPairs:
    """Labelled pairs of one or several files.

    Args:
        paths: tsv (also .txt), csv, jsonl (each also .gz) or parquet.
        classes: The labels that are wanted, in the order of the classes; case does not matter.

    Raises:
        DataError: If a file or a column is missing, a line has other cells than its header, a text is empty, a label is
            unknown, or only one class occurs; with file and line.
    """
    known = {name.casefold(): index for index, name in enumerate(classes)}
    first: list[str] = []
    second: list[str] = []
    targets: list[int] = []
    dropped = 0
    for path in listed(paths):
        table = _open(path)
        columns = table.require(NLI_COLUMNS)
        for number, (premise, hypothesis, label) in table.read(columns):
            where = table.where(number)
            if label == NO_GOLD:
                dropped += 1
                continue
            targets.append(_class_of(label, known, where, classes))
            first.append(text_of(premise, columns[0], where))
            second.append(text_of(hypothesis, columns[1], where))
    if dropped:
        logger.info("%d pairs have no gold label (%s) and are left out; %d are kept.", dropped, NO_GOLD, len(first))
    if len(set(targets)) < 2:
        only = f"only {classes[targets[0]]}" if targets else "none"
        raise DataError(
            f"{spelled(paths)} should hold two classes or more of {', '.join(classes)}, but holds {only}. "
            "Give pairs of the others."
        )
    labels = np.array(targets, dtype=np.int64)
    return TrainingPairs(tuple(first), tuple(second), labels, tuple(classes), names_of(paths), dropped)


def _open(path: Path) -> TextTable:
    """SNLI and MNLI call their tab-separated files .txt."""
    if path.name.lower().removesuffix(".gz").endswith(".txt"):
        return FORMATS[".tsv"](path, True)
    return open_table(path)


def _class_of(label: Any, known: dict[str, int], where: str, classes: Sequence[str]) -> int:
    found = known.get(label.strip().casefold()) if isinstance(label, str) else None
    if found is None:
        raise DataError(
            f"{where}: a label should be one of {', '.join(classes)}, or {NO_GOLD} for none, got {label!r}. "
            "Name the labels with data.classes, or leave the pair out."
        )
    return found
