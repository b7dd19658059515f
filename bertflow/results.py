"""What a public function returns: a frozen record that a person can read, a program can use, and a folder can keep.

answer()   what a person reads first, on one screen
parts()    what a person reads, in order: tables and lines       to_markdown()   the same as a document
as_dict()  every number, ready for JSON                          to_json()       the same as text
    save()     both, in a folder

A command prints the answer of what its function returns, or with ``--details`` all parts.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

from bertflow.files import to_json, write_text
from bertflow.tables import Section, Table

Parts: TypeAlias = Iterable[Table | Section | str]
"""What a person reads, in order; a string is one or several lines."""
LABEL = re.compile(r"\w+ {2,}|[a-z]{3,9} +(?<=^.{10})(?=\S)")
"""A label that a line begins with, padded to ten characters."""
NUMBER = re.compile(r"\d+\. ")
"""A number that a line begins with."""


@dataclass(frozen=True, repr=False, eq=False)
class AbstractResult(ABC):
    """The result of a public function. A subclass is a ``@dataclass(frozen=True, repr=False)``."""

    name: ClassVar[str] = ""
    """Name of the files that ``save`` writes; made of the class's name where it is empty."""
    title: ClassVar[str] = ""
    """Heading of the document, if it has one."""
    format: ClassVar[int | None] = None
    """Version of the JSON, written beside the fields; None for a result that has none."""
    not_in_json: ClassVar[tuple[str, ...]] = ()
    """Fields that ``as_dict`` leaves out."""

    @abstractmethod
    def parts(self) -> Parts:
        """What a person reads."""

    def answer(self) -> Parts:
        """What a command prints of it, all of which is seen at once; the rest is for ``--details``, and for files."""
        return self.parts()

    def as_dict(self) -> dict[str, Any]:
        """Every field but ``not_in_json``, ready for JSON."""
        kept = {field.name: getattr(self, field.name) for field in fields(self) if field.name not in self.not_in_json}
        return ready_for_json(kept if self.format is None else {"format": self.format, **kept})

    def missed(self) -> str:
        """What the user required and did not get, in one sentence; a command then ends with exit code 4."""
        return ""

    def run_facts(self) -> dict[str, Any]:
        """What depends on the time or the machine; a command writes it to run.json, beside arguments and seconds."""
        return {}

    def to_json(self) -> str:
        """Every number; equal results are equal text."""
        return to_json(self.as_dict())

    def to_markdown(self) -> str:
        """The parts as a document: tables as they are, lines as a list."""
        text = f"# {self.title}\n" if self.title else ""
        in_list = False
        for part in self.parts():
            is_line = isinstance(part, str)
            text += "\n" if text and not (is_line and in_list) else ""
            text += (
                "".join(_item(line) + "\n" for line in part.splitlines() if line)
                if isinstance(part, str)
                else part.to_markdown()
            )
            in_list = is_line
        return text

    def save(self, folder: str | Path) -> Path:
        """Write ``<name>.json`` and ``<name>.md``, each whole or not at all.

        Args:
            folder: Made if it is missing.

        Returns:
            The folder.
        """
        folder = Path(folder)
        name = self.name or re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(self).__name__).lower()
        write_text(folder / f"{name}.json", self.to_json())
        write_text(folder / f"{name}.md", self.to_markdown())
        return folder

    def headline(self) -> str:
        """The result in one line: the first line that a person reads."""
        return next((part.splitlines()[0] for part in self.parts() if isinstance(part, str) and part), "")

    def __str__(self) -> str:
        return self.to_markdown()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.headline()}>"

    def _repr_markdown_(self) -> str:
        return self.to_markdown()


def _item(line: str) -> str:
    """A line as an item of a list; numbered ones are, and a label is bold."""
    if label := LABEL.match(line):
        line = f"**{label[0].strip()}** {line[label.end() :]}"
    return line if NUMBER.match(line) else f"* {line}"


def ready_for_json(value: Any) -> Any:
    """A value in the types of JSON: records and mappings as objects, arrays and tuples as lists, paths as text.

    A record that has ``as_dict`` says itself what is written of it.
    """
    if hasattr(value, "as_dict"):
        return value.as_dict()
    if is_dataclass(value):
        return {field.name: ready_for_json(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): ready_for_json(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [ready_for_json(one) for one in value]
    if hasattr(value, "tolist"):
        return value.tolist()  # an array, a tensor, or a number of NumPy
    return str(value) if isinstance(value, Path) else value
