"""Known answers for a question: build an index of them and change it by its file, as ``bertflow search`` does.

A change opens the index with the encoder that it was built with, which the file remembers; from Python an open
``AnswerIndex`` can be given as well.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from typing_extensions import Unpack

from bertflow.data.corpus import Answer, load_answers
from bertflow.errors import UsageError
from bertflow.files import require_files, require_place
from bertflow.opening import LoadOptions, calibrator_of, load, require_openable
from bertflow.retrieval.places import (
    Index,
    IndexInfo,
    IndexOptions,
    Place,
    kind_of,
    open_file,
    require_file,
    require_index,
)

if TYPE_CHECKING:
    from bertflow.retrieval.index import AnswerIndex
    from bertflow.retrieval.origin import CollectionInfo

Answers: TypeAlias = "str | Path | Iterable[Answer]"
"""A table of answers; from Python also the answers."""


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
        calibrate: For a raw encoder: fit this calibrator, such as whitening, on all texts that are indexed. The index
            keeps it for questions and later answers.
        progress: Whether to show a progress bar (default: in a terminal or a notebook).
        options: ``LoadOptions``. With ``chunks`` each chunk of an answer is kept, not pooled: a hit says which it is.

    Raises:
        UsageError: If there is a file at ``index``, or the encoder cannot split text so, or is calibrated already.
        DataError: If the answers cannot be used, or are too few to calibrate on.
    """
    from bertflow.retrieval.storage import require_new_index

    require_file(index, "build")
    require_new_index(index)
    require_files(answers)
    from bertflow.encoder.chunks import require_unpooled  # slow: after what needs no library
    from bertflow.retrieval.calibrating import require_own
    from bertflow.retrieval.index import AnswerIndex

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
        return IndexInfo.of(made.path)


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
    given = _answers_for(index, answers, options, "add")
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
    given = _answers_for(index, answers, options, "update")
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

    require_file(index, "remove")
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
        calibrate: Instead of model: fit this calibrator, such as whitening, on all texts that are in the index now.
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
    require_file(index, "recalibrate")
    require_place(index)
    if model is None:
        assert calibrate is not None, "one of both is given"
        parse_own(calibrate)
        with open_file(index, {"device": device}) as opened:
            opened.fit(calibrate)
            return IndexInfo.of(opened.path)
    with closing(Storage(Path(index))) as storage:
        held = storage.facts()["source"]
    options = {} if (Path(model) / "calibrator").is_dir() else {key: held.get(key) for key in held if key != "model"}
    source = _source(model, **options)
    encoder = load(**{**source, "device": device})
    with AnswerIndex.open(index, encoder, recalibrate=True) as opened:
        opened.remember(source)
        return IndexInfo.of(opened.path)


def describe_index(index: Place) -> "IndexInfo | CollectionInfo":
    """Say what is in an index or a collection; needs no encoder.

    Args:
        index: File that `search build` wrote, folder that `reindex` wrote, or address of a collection.

    Raises:
        DataError: If there is no such thing, or it is damaged.
    """
    place = str(index if isinstance(index, str | Path) else index.path)
    return kind_of(place).describe(place)


def _answers_for(index: Index, given: Answers, options: IndexOptions, action: str) -> list[Answer]:
    """The answers to put into an index, once it is known that it and its encoder can be opened."""
    require_file(index, action)
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
    with open_file(index, options) as opened:
        change(opened)
        return IndexInfo.of(opened.path)
