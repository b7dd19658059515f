"""Known answers, and questions whose right answers are known.

    answers   a table with the columns id, text and, if there are past questions, questions
    labels    a table with the columns question, id: one row for each right answer of a question

In jsonl and parquet the past questions of an answer are a list; in tsv and csv one cell, with ``||`` between them.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertflow.data.columns import COLUMNS
from bertflow.data.tables import TextTable, open_table
from bertflow.errors import DataError

SEPARATOR = "||"
"""Between the past questions in one cell."""


@dataclass(frozen=True)
class Answer:
    """Something that is known, under a name.

    Attributes:
        id: Its name; unique in an index.
        text: The answer.
        questions: Past questions that it answered.
    """

    id: str
    text: str
    questions: tuple[str, ...] = ()

    @property
    def phrases(self) -> tuple[str, ...]:
        """All by which it can be found, each once: its own text, then its past questions."""
        return tuple(dict.fromkeys((self.text, *self.questions)))


def load_answers(path: str | Path) -> list[Answer]:
    """Read a table (tsv, csv, jsonl, parquet) of answers, in the order of the file.

    Raises:
        DataError: If the file or a column is missing, a cell is empty, or an id occurs twice.
    """
    table = open_table(path)
    columns = table.require(COLUMNS["answers"])
    lines: dict[str, int] = {}
    answers = []
    for number, (name, text, *past) in table.read(columns):
        answer = Answer(
            _cell(table, number, "id", name), _cell(table, number, "text", text), _past(table, number, past)
        )
        if answer.id in lines:
            raise DataError(
                f"{table.where(number)}: the id {answer.id!r} is already in {table.unit} {lines[answer.id]}. "
                "Give each answer an id of its own, and its past questions in one cell."
            )
        lines[answer.id] = number
        answers.append(answer)
    return answers


def load_answer_labels(path: str | Path) -> dict[str, frozenset[str]]:
    """Read a table of questions: the ids of the right answers of each, in the order of the file.

    Raises:
        DataError: If the file or a column is missing, a cell is empty, or there is no question.
    """
    table = open_table(path)
    labels: dict[str, set[str]] = {}
    for number, (question, name) in table.read(table.require(COLUMNS["answered"])):
        labels.setdefault(_cell(table, number, "question", question), set()).add(_cell(table, number, "id", name))
    if not labels:
        raise DataError(f"{path} holds no questions. Give lines with a question and the id of its right answer.")
    return {question: frozenset(names) for question, names in labels.items()}


def _cell(table: TextTable, number: int, what: str, cell: Any) -> str:
    text = str(cell).strip() if isinstance(cell, str | int) and not isinstance(cell, bool) else ""
    if not text:
        raise DataError(
            f"{table.where(number)}: a cell with the {what} is wanted, got {cell!r}. Fill it in, or leave the line out."
        )
    return text


def _past(table: TextTable, number: int, cells: list[Any]) -> tuple[str, ...]:
    """The past questions of a row; a cell may be empty."""
    given = cells[0] if cells else None
    listed = given.split(SEPARATOR) if isinstance(given, str) else [] if given is None else given
    if not isinstance(listed, list | tuple) or not all(isinstance(question, str) for question in listed):
        raise DataError(f"{table.where(number)}: past questions should be a list of texts, got {given!r}. Repair it.")
    return tuple(stripped for question in listed if (stripped := question.strip()))
