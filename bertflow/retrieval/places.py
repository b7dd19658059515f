"""What can be asked: the file of an index, or a collection in a database; ``PLACES`` has a row for each.

Only a file is changed by the commands. A collection is changed by its database's own client, and calibrated into a new
one by ``bertflow reindex``.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

from bertflow.data.corpus import load_answers
from bertflow.errors import UsageError
from bertflow.opening import load, require_openable
from bertflow.registry import lookup
from bertflow.results import AbstractResult
from bertflow.retrieval import Answers, Index, IndexOptions, Place
from bertflow.retrieval.origin import RECORD, CollectionInfo, Origin
from bertflow.retrieval.ranking import require_questions
from bertflow.retrieval.storage import Storage, require_new_index

if TYPE_CHECKING:
    from bertflow.retrieval.collection_index import CollectionIndex
    from bertflow.retrieval.index import AnswerIndex

Opened: TypeAlias = "AnswerIndex | CollectionIndex"
"""What is open and can be asked."""
ENGINES: Mapping[str, str] = {
    "exact": "bertflow.retrieval.ranking.ExactSearch",
    "usearch": "bertflow.integrations.usearch.UsearchSearch",
}
"""What finds the candidates, by the name that command lines use: the class of a ``Search``."""


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

    @classmethod
    def of(cls, path: Path, brief: bool = True) -> "IndexInfo":
        """Read the file; needs no encoder.

        Raises:
            DataError: If there is no index, or it is damaged.
        """
        with closing(Storage(path)) as storage:
            counts, facts = (storage.count("answers"), storage.count("phrases")), storage.facts()
        kept: dict[str, Any] = {key: facts[key] for key in ("dim", "recipe", "calibrator", "digest", "source")}
        return cls(path, *counts, **kept, chunks=facts.get("chunks"), brief=brief)


@dataclass(frozen=True)
class PlaceKind:
    """A kind of place: how it is known, what is checked before anything is read, how it is opened.

    ``require`` and ``open`` take the place, ``IndexOptions``, the engine or None, and the column of the text or None;
    ``describe`` takes the place, and needs no encoder.
    """

    known: Callable[[str], bool]
    require: Callable[[str, IndexOptions, str | None, str | None], None]
    open: Callable[[str, IndexOptions, str | None, str | None], AbstractContextManager[Opened]]
    describe: Callable[[str], IndexInfo | CollectionInfo]


def is_collection(place: object) -> bool:
    """Whether this names a collection of a database: by its address, or by the folder of the job that made it."""
    if not isinstance(place, str | Path):
        return False
    address = re.match(r"[a-z]{2,}:", str(place)) is not None  # one letter would be a drive
    return (Path(place) / RECORD).exists() or (address and not Path(place).exists())


def require_file(place: object, action: str) -> None:
    """Refuse to change a collection as if it were the file of an index.

    Raises:
        UsageError: If it is one; it says what does it.
    """
    if is_collection(place):
        raise UsageError(Origin.find(str(place)).how_to(action))


def source_of(index: str | Path, options: IndexOptions) -> dict[str, Any]:
    """How the encoder of the file of an index is opened."""
    from bertflow.encoder.folders import recorded_prompts
    from bertflow.retrieval.calibrating import kept_counts

    with closing(Storage(Path(index))) as storage:
        held, counts = storage.facts(), kept_counts(storage)
    source = {**held["source"], **{name: value for name, value in options.items() if value is not None}}
    if "model" not in source:
        raise UsageError(f"{index} does not say where its encoder is. Give it with --model.")
    if "prompt" in held["recipe"]:
        source.setdefault("prompt", recorded_prompts(held["recipe"]))
    return source if counts is None else {**source, "token_counts": counts}


def _require_file(place: str, options: IndexOptions, engine: str | None, text: str | None) -> None:
    if text is not None:
        raise UsageError(f"{place} is the file of an index, which has one text an answer. Leave --text out.")
    require_openable(**source_of(place, options))


@contextmanager
def open_file(index: Index, options: IndexOptions, engine: str | None = None) -> "Iterator[AnswerIndex]":
    """The file of an index with its encoder; an index that is open already stays open."""
    from bertflow.retrieval.index import AnswerIndex

    if not isinstance(index, str | Path):
        yield index
        return
    search = resolve_name(ENGINES[engine or "exact"])()
    with AnswerIndex.open(index, load(**source_of(index, options)), search=search) as opened:
        yield opened


def _require_collection(place: str, options: IndexOptions, engine: str | None, text: str | None) -> None:
    if engine not in (None, "exact"):
        raise UsageError(f"{place} is searched by its database, or with --engine exact, got --engine {engine}.")
    require_openable(Origin.find(place).encoder_name(options.get("model")), device=options.get("device"))


def _open_collection(place: str, options: IndexOptions, engine: str | None, text: str | None) -> "CollectionIndex":
    from bertflow.retrieval.collection_index import CollectionIndex

    return CollectionIndex.open(place, **options, text=text, exact=engine == "exact")


PLACES = (
    PlaceKind(is_collection, _require_collection, _open_collection, CollectionInfo.of),
    PlaceKind(
        lambda place: True,
        _require_file,
        lambda place, options, engine, text: open_file(place, options, engine),
        lambda place: IndexInfo.of(Path(place), brief=False),
    ),
)
"""What a user may name, in the order in which it is looked for."""


def require_index(index: Place, options: IndexOptions, engine: str | None = None, text: str | None = None) -> None:
    """Refuse what cannot be asked, or an encoder that cannot be opened, before anything else is read."""
    if engine is not None:
        lookup("engine", ENGINES, engine)
    if isinstance(index, str | Path):
        kind_of(index).require(str(index), options, engine, text)


@contextmanager
def open_index(
    index: Place, options: IndexOptions, engine: str | None = None, text: str | None = None
) -> Iterator[Opened]:
    """An index or a collection with its encoder; one that is open already stays open."""
    if isinstance(index, str | Path):
        with kind_of(index).open(str(index), options, engine, text) as opened:
            yield opened
    else:
        yield index


def kind_of(index: str | Path) -> PlaceKind:
    """What a name stands for."""
    return next(kind for kind in PLACES if kind.known(str(index)))


def require_new_file(index: str | Path) -> None:
    """Refuse a place where no new index can be, or that is a collection."""
    require_file(index, "build")
    require_new_index(index)


def require_question(question: str, index: Place, options: IndexOptions, engine: str | None, text: str | None) -> None:
    """Refuse a question that is empty, or what cannot be asked."""
    require_questions([question])
    require_index(index, options, engine, text)


def put_answers(
    action: Literal["add", "update"], index: Index, given: Answers, options: IndexOptions, progress: bool | None
) -> IndexInfo:
    """Add or replace answers, once it is known that the index and its encoder can be opened."""
    require_file(index, action)
    require_index(index, options)
    answers = load_answers(given) if isinstance(given, str | Path) else list(given)
    with open_file(index, options) as opened:
        (opened.add if action == "add" else opened.update)(answers, progress=progress)
        return IndexInfo.of(opened.path)


def take_out(index: Index, ids: Sequence[str], options: IndexOptions) -> IndexInfo:
    """Remove answers; ids that are unknown are refused before the encoder is opened."""
    require_file(index, "remove")
    require_index(index, options)
    if isinstance(index, str | Path):
        with closing(Storage(Path(index))) as storage:
            storage.require_known(ids)
    with open_file(index, options) as opened:
        opened.remove(ids)
        return IndexInfo.of(opened.path)
