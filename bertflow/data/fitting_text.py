"""The text that a training is fitted on, by its options: a run folder keeps them, so the text can be read again."""

from dataclasses import dataclass

from bertflow.data.corpus import TextSource, drawn_rows, load_sentences, require_corpus
from bertflow.data.docstrings import docstring_sentences
from bertflow.data.pairs import texts_of
from bertflow.data.sts import StsSource
from bertflow.data.tables import is_hub, is_plain_text, table_suffix
from bertflow.errors import UsageError, require_between
from bertflow.places import expand, require_place
from bertflow.registry import several


@dataclass(frozen=True)
class TextOptions:
    """The text to fit on; docstrings of the installed packages where none is given.

    A run keeps them, and is opened where its text is gone: what they name is looked for by ``check``.
    """

    sentences: list[str] | str | None = None
    """File or [FILE,FILE] of sentences: txt, tables, hub:owner/name."""
    columns: list[str] | None = None
    """Columns of a table that hold text; by default found by their names."""
    tasks: str | None = None
    """STS tasks to read instead of files, without their labels, such as stsb or sts12,sts13 or sts7. With the
    paper's presets they are read pair by pair, repeats included."""
    data_dir: str | None = None
    """Folder of the STS tasks."""
    max_sentences: int | None = None
    """Number of sentences in a random sample; by default all are used."""
    store: str | None = None
    """Folder for the embeddings: made if it is new, continued if it was begun, read if it is complete. Several
    processes (torchrun, srun) share one. By default embeddings stay in memory."""

    def check(self) -> None:
        """Refuse options that name no text, before any is read.

        Raises:
            UsageError: If both files and tasks are named, or tasks without their folder.
            DataError: If a file, or the folder of the tasks, is missing.
        """
        if self.sentences and self.tasks:
            raise UsageError("Text comes from data.sentences or from data.tasks, but both were given. Leave one out.")
        require_between(2, max_sentences=self.max_sentences)
        first, *others = several(self.sentences) or [""]
        is_text = is_hub(first) or is_plain_text(first) or table_suffix(first) or expand(first).is_file()
        if first and not is_text:
            raise UsageError(
                f"{first} is not a file of text. If it is your encoder, write: "
                f"bertflow train --encoder.model {first} --data.sentences {' '.join(others) or 'FILE'}"
            )
        TextSource(several(self.sentences), self.columns)
        if self.tasks:
            StsSource(self.tasks, self.data_dir)
        require_place(self.store, folder=True)


def training_text(options: TextOptions, seed: int = 0) -> list[str]:
    """The sentences to fit on: those of files, the pairs of STS tasks, or docstrings.

    Raises:
        UsageError: If both files and tasks are named, or tasks without their folder.
        DataError: If a file cannot be read, or holds fewer than two sentences.
    """
    options.check()
    if options.tasks:
        sentences = list(texts_of(StsSource(options.tasks, options.data_dir)))
    elif options.sentences:
        sentences = load_sentences(options.sentences, options.columns)
    else:
        sentences = docstring_sentences()
    require_corpus(sentences)
    if options.max_sentences is None or options.max_sentences >= len(sentences):
        return sentences
    unit = 2 if options.tasks else 1  # pairs stay pairs
    units = drawn_rows(len(sentences) // unit, max(1, options.max_sentences // unit), seed)
    return [sentences[row] for at in units for row in range(at * unit, at * unit + unit)]
