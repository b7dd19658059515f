"""What the commands of `search` do with what a user names: the file of an index, or a collection in a database.

Only a file is changed by the commands. A collection is changed by its database's own client, and calibrated into a new
one by ``bertflow reindex``.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import numpy as np

from bertflow.data.corpus import Answer, load_answers
from bertflow.encoder.chunks import require_unpooled
from bertflow.encoder.folders import recorded_prompts
from bertflow.encoder.options import EncoderOptions
from bertflow.encoder.pooling import uncalibrated
from bertflow.errors import DataError, UsageError, how_many
from bertflow.opening import load, takes_options
from bertflow.places import require_place
from bertflow.registry import lookup
from bertflow.results import AbstractResult
from bertflow.retrieval import Answers, Index, IndexOptions, Place
from bertflow.retrieval.calibrating import COUNTS, parse_own
from bertflow.retrieval.collection_index import CollectionIndex
from bertflow.retrieval.index import AnswerIndex, require_new_index
from bertflow.retrieval.origin import Origin, fact_lines, is_collection
from bertflow.retrieval.storage import Storage

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

    def parts(self) -> Iterator[str]:
        """A line a fact."""
        return fact_lines(self.as_dict())

    def answer(self) -> Iterator[str]:
        """One line."""
        how = uncalibrated(self.recipe.get("pooling"))
        if self.digest:
            how = f"calibrated by {self.calibrator} ({self.digest[:8]})"
        split = f" split by {self.chunks}" if self.chunks else ""
        yield f"{self.path}: {how_many(self.answers, 'answers')}{split}, {how_many(self.phrases, 'phrases')}, {how}"

    @classmethod
    def of(cls, path: Path) -> "IndexInfo":
        """Read the file; needs no encoder.

        Raises:
            DataError: If there is no index, or it is damaged.
        """
        with closing(Storage(path)) as storage:
            counts, facts = (storage.count("answers"), storage.count("phrases")), storage.facts()
        kept: dict[str, Any] = {key: facts[key] for key in ("dim", "recipe", "calibrator", "digest", "source")}
        return cls(path, *counts, **kept, chunks=facts.get("chunks"))


def require_file(place: object, action: str) -> None:
    """Refuse to change a collection as if it were the file of an index.

    Raises:
        UsageError: If it is one; the message says what changes it.
    """
    if is_collection(place):
        raise UsageError(Origin.find(str(place)).how_to(action))


def source_of(index: str | Path, options: IndexOptions) -> dict[str, Any]:
    """How the encoder of the file of an index is opened."""
    with closing(Storage(Path(index))) as storage:
        held, counts = storage.facts(), storage.kept(COUNTS)
    given, source = {name: value for name, value in options.items() if value is not None}, held["source"]
    if (model := options.get("model")) and not takes_options(model, saved=False):  # it keeps its own options
        return {**{name: value for name, value in source.items() if name == "chunks"}, **given}
    source = {**source, **given}
    if "model" not in source:
        raise UsageError(f"{index} does not say where its encoder is. Give it with --model.")
    if (place := Path(source["model"])).is_absolute() and not place.exists():
        raise DataError(f"{place}, the encoder of {index}, is not there. Give the place that it has now with --model.")
    if "prompt" in held["recipe"]:
        source.setdefault("prompt", recorded_prompts(held["recipe"]))
    return {**source, "token_counts": np.frombuffer(counts[COUNTS], "<i8")} if counts else source


def opener(
    index: Place, options: IndexOptions, engine: str | None = None, text: str | None = None
) -> Callable[[], AbstractContextManager[Any]]:
    """What opens an index or a collection, once it and its encoder are known to be there; no weights are read.

    An index that is open already stays open.
    """
    if engine is not None:
        lookup("engine", ENGINES, engine)
    if not isinstance(index, str | Path):
        return partial(nullcontext, index)
    if is_collection(index):
        if engine not in (None, "exact"):
            raise UsageError(f"{index} is searched by its database, or with --engine exact, got --engine {engine}.")
        load(Origin.find(index).encoder_name(options.get("model")), device=options.get("device"))
        return partial(CollectionIndex.open, index, **options, text=text, exact=engine == "exact")
    if text is not None:
        raise UsageError(f"{index} is the file of an index, which has one text an answer. Leave --text out.")
    encoder, search = load(**source_of(index, options)), resolve_name(ENGINES[engine or "exact"])()
    return partial(AnswerIndex.open, index, encoder, search=search)


def build(
    index: str | Path,
    answers: Answers,
    columns: str | None,
    model: str | Path,
    calibrate: str | None,
    progress: bool | None,
    options: EncoderOptions,
) -> IndexInfo:
    """Embed answers into a new index."""
    require_file(index, "build")
    require_new_index(index)
    if chunks := options.get("chunks"):
        require_unpooled(chunks)
    asked = load(model, **options)
    if calibrate:
        parse_own(calibrate, asked.calibrator)
    given = _read(answers, columns, numbered=True)
    source = _source(model, **options)
    if chunks:
        source["chunks"] = ""  # the index splits, the encoder does not
    encoder = load(**{**source, "device": options.get("device")})
    with AnswerIndex.create(
        index, encoder, given, source, progress=progress, chunks=chunks, calibrate=calibrate
    ) as new:
        return IndexInfo.of(new.path)


def recalibrate(index: str | Path, model: str | Path | None, calibrate: str | None, device: str) -> IndexInfo:
    """Send the raw embeddings through the calibrator of a model, or through one that is fitted to them."""
    require_file(index, "recalibrate")
    require_place(index)
    if calibrate:
        parse_own(calibrate)
    held = IndexInfo.of(Path(index)).source
    source = held if model is None else _source(model)
    same = source.get("model") == held.get("model")  # another model is opened as it is
    encoder = load(**{**(source_of(index, {}) if same else source), "device": device})
    with AnswerIndex.open(index, encoder, recalibrate=model is not None) as opened:
        if calibrate:
            opened.fit(calibrate)
            if encoder.calibrator:  # it is fitted for the raw one
                opened.remember(_source(**(encoder.raw.recipe or {})))
        elif not same:
            opened.remember(source)
        return IndexInfo.of(opened.path)


def _source(model: str | Path, **options: Any) -> dict[str, Any]:
    """How an encoder is opened; a folder by its absolute path, so that the index can be asked from anywhere."""
    name = str(Path(model).resolve()) if Path(model).exists() else str(model)
    return {"model": name, **{key: value for key, value in options.items() if value is not None and key != "device"}}


def put_answers(
    action: str, index: Index, given: Answers, columns: str | None, options: IndexOptions, progress: bool | None
) -> IndexInfo:
    """Add or (action "update") replace answers, once it is known that the index and its encoder can be opened."""
    require_file(index, action)
    opening = opener(index, options)
    answers = _read(given, columns)
    with opening() as opened:
        (opened.add if action == "add" else opened.update)(answers, progress=progress)
        return IndexInfo.of(opened.path)


def _read(given: Answers, columns: str | None, numbered: bool = False) -> list[Answer]:
    return load_answers(given, columns, numbered) if isinstance(given, str | Path) else list(given)


def take_out(index: Index, ids: Sequence[str], options: IndexOptions) -> IndexInfo:
    """Remove answers; ids that are unknown are refused before the encoder is opened."""
    require_file(index, "remove")
    opening = opener(index, options)
    if isinstance(index, str | Path):
        with closing(Storage(Path(index))) as storage:
            storage.require_known(ids)
    with opening() as opened:
        opened.remove(ids)
        return IndexInfo.of(opened.path)
