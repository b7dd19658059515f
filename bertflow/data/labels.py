"""Sentences, or single words, with a label each: what a probe learns to tell apart.

A table with the columns text (or sentence, word) and label; or lines ``sentence<TAB>label`` without a header, when
neither cell of the first line is such a name.
"""

from dataclasses import dataclass
from pathlib import Path

from bertflow.data.tables import open_table, table_suffix
from bertflow.errors import DataError

COLUMNS = (("text", "label"), ("sentence", "label"), ("word", "label"))


@dataclass(frozen=True)
class LabelledText:
    """Some texts and the label of each, in the order of the file.

    Attributes:
        texts: Sentences, or words.
        labels: As long as ``texts``.
        source: The file.
    """

    texts: tuple[str, ...]
    labels: tuple[str, ...]
    source: str


def load_labels(path: str | Path) -> LabelledText:
    """Read a file of labelled text.

    Raises:
        DataError: If the file is missing or damaged, a cell is empty, or there is only one label.
    """
    table = open_table(path)
    columns = next((names for choice in COLUMNS if (names := table.find(choice))), None)
    if columns is None and len(table.columns) == 2 and table_suffix(path) == ".tsv":
        table = open_table(path, header=False)
        columns = table.columns
    columns = columns or table.require(COLUMNS)
    texts, labels = [], []
    for number, (text, label) in table.read(columns):
        if not isinstance(text, str) or not text.strip() or label is None or not str(label).strip():
            raise DataError(f"{table.where(number)}: a text and its label are wanted, got {text!r} and {label!r}.")
        texts.append(" ".join(text.split()))
        labels.append(str(label).strip())
    if len(set(labels)) < 2:
        raise DataError(f"{table.name} should hold two labels or more, but holds {len(set(labels))}. Give more text.")
    return LabelledText(tuple(texts), tuple(labels), Path(path).name)
