"""Known answers for a question: build an index of them and change it by its file, as ``bertflow search`` does.

A change opens the index with the encoder that it was built with, which the file remembers; from Python an open
``AnswerIndex`` can be given as well.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from typing_extensions import TypedDict, Unpack

from bertflow.data.corpus import Answer, load_answers
from bertflow.errors import UsageError
from bertflow.files import require_files, require_place
from bertflow.opening import LoadOptions, calibrator_of, load, require_openable
from bertflow.results import AbstractResult

if TYPE_CHECKING:
    from bertflow.retrieval.index import AnswerIndex
    from bertflow.retrieval.ranking import Search

Index: TypeAlias = "str | Path | AnswerIndex"
"""The file of an index; from Python also one that is open."""
Answers: TypeAlias = "str | Path | Iterable[Answer]"
"""A table of answers; from Python also the answers."""


class IndexOptions(TypedDict, total=False):
    """How the encoder of an index is opened.

    Attributes:
        model: Where the encoder of the index is now (default: where it was).
        device: cpu, cuda, ... (default: the first of cuda, mps and cpu that is there).
    """

    model: str | Path | None
    device: str | None


@dataclass(frozen=True, repr=False)
class IndexInfo(AbstractResult):
    """What is in an index.

    Attributes:
        path: The file.
        answers: Number of answers.
        phrases: Number of phrases: answers and their past questions.
        dim: Width of an embedding.
        recipe: Description of the raw encoder.
        calibrator: The calibrator with its parameters; empty for raw embeddings.
        digest: Fingerprint of the calibrator; empty for raw embeddings.
        source: How the encoder is opened.
        chunks: How the texts of answers are split; None if they are not.
        brief: Whether a person reads one line of it, or all.
    """

    path: Path
    answers: int
    phrases: int
    dim: int
    recipe: Mapping[str, Any]
    calibrator: str
    digest: str
    source: Mapping[str, Any]
    chunks: str | None = None
    brief: bool = True

    not_in_json: ClassVar[tuple[str, ...]] = ("brief",)

    def parts(self) -> Iterator[str]:
        """One line, or a line a fact."""
        if self.brief:
            how = f"calibrated by {self.calibrator} ({self.digest[:8]})" if self.digest else "as the encoder makes them"
            split = f" split by {self.chunks}" if self.chunks else ""
            yield f"{self.path}: {self.answers} answers{split}, {self.phrases} phrases, {how}"
        else:
            yield from (f"{key}: {value}" for key, value in self.as_dict().items())


def build_index(
    index: str | Path,
    answers: Answers,
    model: str | Path,
    *,
    calibrate: str | None = None,
    progress: bool | None = None,
    **options: Unpack[LoadOptions],
) -> IndexInfo:
    """Embed answers into a new index.

    Args:
        index: File to write.
        answers: A table (tsv, csv, jsonl, parquet) with id, text and, if there are past questions, questions.
        model: An encoder (hub id or folder), raw or calibrated.
        calibrate: For a raw encoder: fit this calibrator on all texts that are indexed, as whitening; the index keeps
            it, for what is asked and added later.
        progress: Whether to show a progress bar (default: in a terminal or a notebook).
        options: ``LoadOptions``. With ``chunks`` each chunk of an answer is kept, not pooled: a hit says which it is.

    Raises:
        UsageError: If there is a file at ``index``, or the encoder cannot split text so, or is calibrated already.
        DataError: If the answers cannot be used, or are too few to calibrate on.
    """
    from bertflow.encoder.chunks import require_unpooled
    from bertflow.retrieval.calibrating import require_own
    from bertflow.retrieval.index import AnswerIndex
    from bertflow.retrieval.storage import require_new_index

    require_new_index(index)
    require_files(answers)
    if chunks := options.get("chunks"):
        require_unpooled(chunks)
    require_openable(model, **options)
    if calibrate:
        require_own(calibrate, calibrator_of(model, options.get("revision")))
    given, source = _answers(answers), _source(model, **options)
    if chunks:
        source["chunks"] = ""  # the index splits, the encoder does not
    encoder = load(**{**source, "device": options.get("device")})
    with AnswerIndex.create(
        index, encoder, given, source, progress=progress, chunks=chunks, calibrate=calibrate
    ) as made:
        return _info(made.path)


def add_answers(
    index: Index, answers: Answers, *, progress: bool | None = None, **options: Unpack[IndexOptions]
) -> IndexInfo:
    """Add answers under new ids; all of them or none.

    Args:
        index: File that `search build` wrote.
        answers: A table (tsv, csv, jsonl, parquet) with id, text and, if there are past questions, questions.
        progress: Whether to show a progress bar (default: in a terminal or a notebook).
        options: ``IndexOptions``.

    Raises:
        DataError: If an id is there already, or the answers or the index cannot be used.
    """
    given = _answers_for(index, answers, options)
    return _changed(index, options, lambda opened: opened.add(given, progress=progress))


def update_answers(
    index: Index, answers: Answers, *, progress: bool | None = None, **options: Unpack[IndexOptions]
) -> IndexInfo:
    """Replace answers by id; all of them or none.

    Args:
        index: File that `search build` wrote.
        answers: A table (tsv, csv, jsonl, parquet) with id, text and, if there are past questions, questions.
        progress: Whether to show a progress bar (default: in a terminal or a notebook).
        options: ``IndexOptions``.

    Raises:
        DataError: If an id is unknown, or the answers or the index cannot be used.
    """
    given = _answers_for(index, answers, options)
    return _changed(index, options, lambda opened: opened.update(given, progress=progress))


def remove_answers(index: Index, ids: Sequence[str], **options: Unpack[IndexOptions]) -> IndexInfo:
    """Remove answers by id; all of them or none.

    Args:
        index: File that `search build` wrote.
        ids: Ids of the answers.
        options: ``IndexOptions``.

    Raises:
        DataError: If an id is unknown, or the index cannot be used.
    """
    from bertflow.retrieval.storage import Storage

    require_index(index, options)
    if isinstance(index, str | Path):
        with closing(Storage(Path(index))) as storage:
            storage.require_known(ids)
    return _changed(index, options, lambda opened: opened.remove(ids))


def recalibrate_index(
    index: str | Path, model: str | Path | None = None, *, calibrate: str | None = None, device: str = "auto"
) -> IndexInfo:
    """Send the raw embeddings through another calibrator; nothing is encoded again.

    Args:
        index: File that `search build` wrote.
        model: The same encoder with another calibrator, or with none.
        calibrate: Instead: fit this calibrator on all texts that are in the index now, as whitening.
        device: cpu, cuda, ... or auto.

    Raises:
        UsageError: If not one of model and calibrate is given.
        DataError: If the raw encoder is another one, the index cannot be used, or holds too few texts.
    """
    from bertflow.retrieval.calibrating import parse_own
    from bertflow.retrieval.index import AnswerIndex
    from bertflow.retrieval.storage import Storage

    if (model is None) == (calibrate is None):
        raise UsageError(f"One of model and calibrate is wanted, got {'both' if model else 'neither'}. Give one.")
    require_place(index)
    if model is None:
        assert calibrate is not None, "one of both is given"
        parse_own(calibrate)
        with open_index(index, {"device": device}) as opened:
            opened.fit(calibrate)
            return _info(opened.path)
    with closing(Storage(Path(index))) as storage:
        held = storage.facts()["source"]
    options = {} if (Path(model) / "calibrator").is_dir() else {key: held.get(key) for key in held if key != "model"}
    source = _source(model, **options)
    encoder = load(**{**source, "device": device})
    with AnswerIndex.open(index, encoder, recalibrate=True) as opened:
        opened.remember(source)
        return _info(opened.path)


def describe_index(index: Index) -> IndexInfo:
    """Say what is in an index; needs no encoder.

    Args:
        index: File that `search build` wrote.

    Raises:
        DataError: If there is no index, or it is damaged.
    """
    return _info(Path(index) if isinstance(index, str | Path) else index.path, brief=False)


def _info(path: Path, brief: bool = True) -> IndexInfo:
    from bertflow.retrieval.storage import Storage

    with closing(Storage(path)) as storage:
        if not brief:
            storage.say_unsummed()
        counts, facts = (storage.count("answers"), storage.count("phrases")), storage.facts()
    kept: dict[str, Any] = {key: facts[key] for key in ("dim", "recipe", "calibrator", "digest", "source")}
    return IndexInfo(path, *counts, **kept, chunks=facts.get("chunks"), brief=brief)


def _answers_for(index: Index, given: Answers, options: IndexOptions) -> list[Answer]:
    """The answers to put into an index, once it is known that it and its encoder can be opened."""
    require_files(given)
    require_index(index, options)
    return _answers(given)


def _answers(given: Answers) -> list[Answer]:
    return load_answers(given) if isinstance(given, str | Path) else list(given)


def _source(model: str | Path, **options: Any) -> dict[str, Any]:
    """How an encoder is opened; a folder by its absolute path, so that the index can be asked from anywhere."""
    name = str(Path(model).resolve()) if Path(model).exists() else str(model)
    return {"model": name, **{key: value for key, value in options.items() if value is not None and key != "device"}}


def _changed(index: Index, options: IndexOptions, change: "Callable[[AnswerIndex], None]") -> IndexInfo:
    with open_index(index, options) as opened:
        change(opened)
        return _info(opened.path)


def require_index(index: Index, options: IndexOptions) -> None:
    """Refuse an index whose encoder cannot be opened, before anything else is read."""
    if isinstance(index, str | Path):
        require_openable(**_source_of(index, options))


def _source_of(index: str | Path, options: IndexOptions) -> dict[str, Any]:
    """How the encoder of an index is opened."""
    from bertflow.encoder.folders import recorded_prompts
    from bertflow.retrieval.calibrating import kept_counts
    from bertflow.retrieval.storage import Storage

    with closing(Storage(Path(index))) as storage:
        held, counts = storage.facts(), kept_counts(storage)
    source = {**held["source"], **{name: value for name, value in options.items() if value is not None}}
    if "model" not in source:
        raise UsageError(f"{index} does not say where its encoder is. Give it with --model.")
    if "prompt" in held["recipe"]:
        source.setdefault("prompt", recorded_prompts(held["recipe"]))
    return source if counts is None else {**source, "token_counts": counts}


@contextmanager
def open_index(index: Index, options: IndexOptions, search: "Search | None" = None) -> "Iterator[AnswerIndex]":
    """An index with its encoder; one that is open already stays open."""
    from bertflow.retrieval.index import AnswerIndex

    if isinstance(index, AnswerIndex):
        yield index
        return
    with AnswerIndex.open(index, load(**_source_of(index, options)), search=search) as opened:
        yield opened
