"""Answers, labels and text to try a search on, from the docstrings of installed packages."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bertflow.data.docstrings import docstring_corpus
from bertflow.errors import require_between, require_seed
from bertflow.files import require_place, write_text
from bertflow.results import AbstractResult
from bertflow.tables import write_rows


@dataclass(frozen=True, repr=False)
class SearchExample(AbstractResult):
    """Files to try a search on.

    Attributes:
        folder: Where they were written.
        answers: Number of answers, and of questions.
        sentences: Number of other sentences.
        source: Where they are from.
    """

    folder: Path
    answers: int
    sentences: int
    source: str

    def parts(self) -> Iterator[str]:
        """A line a file."""
        yield f"{self.folder / 'answers.jsonl'}: {self.answers} answers, paragraphs of the {self.source}"
        yield f"{self.folder / 'labels.jsonl'}: {self.answers} questions, the line before each paragraph"
        yield f"{self.folder / 'text.txt'}: {self.sentences} other sentences, to fit a calibrator on"


def write_search_example(
    folder: str | Path, *, answers: int = 1000, sentences: int = 6000, seed: int = 0
) -> SearchExample:
    """Write answers, labels and text to try a search on, from the docstrings of installed packages.

    The first line of a docstring should find the paragraph after it.

    Args:
        folder: Where to write answers.jsonl, labels.jsonl and text.txt.
        answers: How many answers.
        sentences: How many sentences of other text.
        seed: Random seed for the sample.
    """
    require_between(1, answers=answers, sentences=sentences)
    require_seed(seed)
    require_place(folder, folder=True)
    folder = Path(folder)
    text, pairs = docstring_corpus(answers, sentences, seed)
    names = [f"docstrings-{row:05d}" for row in range(len(pairs))]
    write_rows(folder / "answers.jsonl", ("id", "text"), zip(names, pairs.second, strict=True))
    write_rows(folder / "labels.jsonl", ("question", "id"), zip(pairs.first, names, strict=True))
    write_text(folder / "text.txt", "".join(f"{sentence}\n" for sentence in text))
    return SearchExample(folder, len(pairs), len(text), pairs.source)
