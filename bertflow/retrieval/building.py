"""A new index of answers, and another calibrator for one that is there."""

from contextlib import closing
from pathlib import Path
from typing import Any

from bertflow.data.corpus import load_answers
from bertflow.encoder.chunks import require_unpooled
from bertflow.opening import LoadOptions, calibrator_of, load, require_openable
from bertflow.retrieval import Answers
from bertflow.retrieval.calibrating import parse_own, require_own
from bertflow.retrieval.index import AnswerIndex
from bertflow.retrieval.places import IndexInfo, open_file
from bertflow.retrieval.storage import Storage


def build(
    index: str | Path,
    answers: Answers,
    model: str | Path,
    calibrate: str | None,
    progress: bool | None,
    options: LoadOptions,
) -> IndexInfo:
    """Embed answers into a new index."""
    if chunks := options.get("chunks"):
        require_unpooled(chunks)
    require_openable(model, **options)
    if calibrate:
        require_own(calibrate, calibrator_of(model, options.get("revision")))
    given = load_answers(answers) if isinstance(answers, str | Path) else list(answers)
    source = _source(model, **options)
    if chunks:
        source["chunks"] = ""  # the index splits, the encoder does not
    encoder = load(**{**source, "device": options.get("device")})
    with AnswerIndex.create(
        index, encoder, given, source, progress=progress, chunks=chunks, calibrate=calibrate
    ) as made:
        return IndexInfo.of(made.path)


def recalibrate(index: Path, model: str | Path | None, calibrate: str | None, device: str) -> IndexInfo:
    """Send the raw embeddings through the calibrator of a model, or through one that is fitted to them."""
    if model is None:
        assert calibrate is not None, "one of both is given"
        parse_own(calibrate)
        with open_file(index, {"device": device}) as opened:
            opened.fit(calibrate)
            return IndexInfo.of(opened.path)
    with closing(Storage(index)) as storage:
        held = storage.facts()["source"]
    options = {} if (Path(model) / "calibrator").is_dir() else {key: held.get(key) for key in held if key != "model"}
    source = _source(model, **options)
    encoder = load(**{**source, "device": device})
    with AnswerIndex.open(index, encoder, recalibrate=True) as opened:
        opened.remember(source)
        return IndexInfo.of(opened.path)


def _source(model: str | Path, **options: Any) -> dict[str, Any]:
    """How an encoder is opened; a folder by its absolute path, so that the index can be asked from anywhere."""
    name = str(Path(model).resolve()) if Path(model).exists() else str(model)
    return {"model": name, **{key: value for key, value in options.items() if value is not None and key != "device"}}
