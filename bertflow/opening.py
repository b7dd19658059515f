"""``bertflow.load``: whatever a user names, opened as one encoder.

``KINDS`` has a row for each kind of thing: how it is known, and how it is opened. A hub id becomes a folder first (the
hub's cache), and is then known by the same signs. Every command and every adapter opens encoders here, so that one name
means the same embeddings everywhere.
"""

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NotRequired

from typing_extensions import TypedDict, Unpack

from bertflow.errors import UsageError, require_between
from bertflow.files import restore
from bertflow.progress import working
from bertflow.registry import lookup

if TYPE_CHECKING:
    from bertflow.calibration.base import AbstractCalibrator
    from bertflow.encoder.abstract import Role, SentenceEncoder
    from bertflow.encoder.folders import ModelFolder

logger = logging.getLogger("bertflow")

STATIC = "static"
"""Begins the poolings that average a transformer's word embeddings: static, static-mean, static-sif, static-max."""
WORD_VECTORS = (".vec", ".txt", ".gz")
"""How the name of a file of word vectors ends."""
WORD_VECTOR_FILE = "file of word vectors"
"""What such a file is called."""
CALIBRATOR = "calibrator"
"""Where a calibrated encoder and a run keep their calibrator."""


class LoadOptions(TypedDict, total=False):
    """How an encoder is opened; None, or leaving an option out, is the encoder's own choice.

    Attributes:
        pooling: How tokens become a vector, such as mean(1,2); static or static-sif for the word embeddings of a
            transformer (default: the encoder's own, else mean).
        max_length: Longest sentence, in tokens; longer ones are cut (default: the encoder's own, else 128).
        dtype: float32, float16, bfloat16, or tf32 on a GPU (default: the encoder's own, else float32).
        device: cpu, cuda, mps (default: the first of cuda, mps and cpu that is there).
        revision: Branch, tag or commit, for a hub id.
        prompt: Text in front of every sentence, or the name of a prompt of a sentence-transformers folder; from Python
            also one for each role (default: the encoder's own). An empty text switches prompts off.
        chunks: Split longer texts into chunks instead of cutting them, and pool the chunks: tokens or sentences,
            followed by :SIZE, :OVERLAP and :mean or :max if you want, such as tokens:128:32:mean (default: the
            encoder's own). An empty text switches chunks off. An index (search build) keeps the chunks, and takes no
            :mean or :max.
        template: For the poolings mask and denoised-mask: the text around every sentence, with {} and [MASK] (default:
            the encoder's own, else 'This sentence of "{}" means [MASK] .').
    """

    pooling: str | None
    max_length: int | None
    dtype: str | None
    device: str | None
    revision: str | None
    prompt: "str | Mapping[Role, str] | None"
    chunks: str | None
    template: str | None


class RunEncoder(TypedDict):
    """How the encoder of a run is opened."""

    model: str
    pooling: NotRequired[str | None]
    max_length: NotRequired[int | None]
    dtype: NotRequired[str | None]
    device: NotRequired[str | None]
    revision: NotRequired[str | None]
    prompt: NotRequired[str | dict[str, str] | None]
    chunks: NotRequired[str | None]


class FittedRun(TypedDict):
    """What the record of a run tells of its encoder."""

    encoder: RunEncoder


@dataclass(frozen=True)
class Kind:
    """A kind of thing: how it is called and known, how it is opened, and whether a calibrator is in it.

    ``open`` takes the name that was given, where the thing lies, ``force``, and the options that were given.
    """

    called: str
    known: Callable[[Path], bool]
    open: "Callable[[str, Path, bool, dict[str, Any]], SentenceEncoder]"
    calibrated: bool = False


@working("opening the encoder")
def load(model: str | Path | None = None, *, force: bool = False, **options: Unpack[LoadOptions]) -> "SentenceEncoder":
    """Open an encoder, raw or calibrated.

    Args:
        model: A hub id, also of a calibrated encoder; the folder of a transformers model, a
            sentence-transformers model, a saved or calibrated encoder, or a run; or a file of word vectors. None is the
            encoder that comes as a package (``bertflow.encoder.embedded``), with its inner layers.
        force: Accept a calibrator with an encoder that it was not fitted on, as one with another ``max_length``.
        options: ``LoadOptions``.

    Returns:
        The encoder; ``load(**encoder.recipe)`` opens it again.

    Raises:
        UsageError: If the hub does not give it, an option cannot be used, or it is a calibrator alone.
        DataError: If it is missing, incomplete or damaged.
    """
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    if model is None:
        from bertflow.encoder.embedded import RAW_POOLING, embedded_encoder

        model, given = embedded_encoder(), {"pooling": RAW_POOLING, **given}
    place, kind = find(str(model), given.get("revision"))
    encoder = kind.open(str(model), place, force, given)
    if kind.calibrated:
        encoder.recipe = {"model": str(model), **given}
    return encoder


def require_openable(model: Any = None, **options: Unpack[LoadOptions]) -> None:
    """Refuse a name and options that ``load`` would refuse, before text is read and weights are loaded.

    Args:
        model: As for ``load``; an encoder that is open is left alone.
        **options: ``LoadOptions``.

    Raises:
        UsageError: If a pooling, dtype, device, length, template or chunks cannot be used, or the model has no such
            layer.
        DataError: If a model is missing.
    """
    from bertflow.encoder.chunks import Chunks
    from bertflow.encoder.device import PRECISIONS, resolve_device
    from bertflow.encoder.embedded import embedded_encoder
    from bertflow.encoder.folders import open_model
    from bertflow.encoder.length import require_length, without_weights
    from bertflow.encoder.pooling import DENOISED, parse_pooling
    from bertflow.encoder.template import Template, require_positions

    require_between(1, max_length=options.get("max_length"))
    if dtype := options.get("dtype"):
        lookup("dtype", PRECISIONS, dtype)
    resolve_device(options.get("device") or "auto")
    if chunks := options.get("chunks"):
        Chunks.parse(chunks)
    spelling = options.get("pooling") or ""
    static = spelling.split("-")[0] == STATIC
    pooling = parse_pooling(spelling) if spelling and not static else None
    name = embedded_encoder() if model is None else model
    if not isinstance(name, str | Path):
        return
    place, kind = find(str(name), options.get("revision"))
    if kind.open is _no_encoder:
        _no_encoder(str(name), place, False, {})
    if kind.open is _run:
        _require_calibrator(str(name), place)
    length, template = options.get("max_length"), options.get("template")
    if kind.open is _transformer and not static and (pooling or length or chunks or template):
        folder = open_model(place)
        if pooling:
            folder.needed([pooling])
        around = Template.around(folder, pooling or parse_pooling(folder.own_pooling()), template)
        if length or chunks or around:
            require_length(folder, length, chunks, options.get("prompt"))
        if pooling and pooling.tokens == DENOISED:
            require_positions(without_weights(folder))


def require_transformer(model: str | Path, revision: str | None = None) -> "ModelFolder":
    """The folder of a raw transformer, of which no weights are read.

    Raises:
        UsageError: If it is something else.
        DataError: If it is missing.
    """
    from bertflow.encoder.folders import open_model

    place, kind = find(str(model), revision)
    if kind.open is not _transformer:
        raise UsageError(f"The layers of a raw transformer are needed, but {model} is not one. Give its folder.")
    return open_model(place)


def calibrator_of(model: "str | Path | SentenceEncoder", revision: str | None = None) -> "AbstractCalibrator | None":
    """The calibrator of what a user names, None for a raw encoder; no weights of an encoder are read.

    Raises:
        UsageError: As ``find``.
        DataError: If it is missing or damaged.
    """
    from bertflow.calibration.spelling import load_calibrator

    if not isinstance(model, str | Path):
        return model.calibrator
    place, kind = find(str(model), revision)
    return load_calibrator(place / CALIBRATOR) if kind.calibrated else None


def find(name: str, revision: str | None = None) -> tuple[Path, Kind]:
    """Where a thing lies, and of which kind it is; what is on the hub only is downloaded.

    Raises:
        UsageError: If the hub does not give it.
        DataError: If it is missing, or nothing that is known.
    """
    from bertflow.encoder.locating import locate

    place = Path(name).expanduser()
    restore(place)
    if place.suffix not in WORD_VECTORS or place.is_dir():
        place = locate(name, revision)
    return place, next(kind for kind in KINDS if kind.known(place))


def _word_vectors(name: str, place: Path, force: bool, options: dict[str, Any]) -> "SentenceEncoder":
    from bertflow.encoder.static import WordVectorEncoder

    if unused := sorted(options.keys() - {"pooling", "device"}):
        raise UsageError(f"{name} is a file of word vectors, which has no {unused[0]}. Leave that option out.")
    return WordVectorEncoder(place, options.get("pooling", "mean"))


def _no_encoder(name: str, place: Path, force: bool, options: dict[str, Any]) -> "SentenceEncoder":
    raise UsageError(f"{name} is a calibrator without an encoder. Give the folder that holds both.")


def _transformer(name: str, place: Path, force: bool, options: dict[str, Any]) -> "SentenceEncoder":
    from bertflow.encoder.static import StaticEncoder
    from bertflow.encoder.transformer import TransformerEncoder

    pooling = options.get("pooling", "")
    if pooling.split("-")[0] != STATIC:
        return TransformerEncoder(name, **options)
    if unused := [option for option in ("dtype", "prompt", "chunks", "template") if options.get(option)]:
        raise UsageError(f"The word embeddings of {name} have no {unused[0]}. Leave that option out.")
    kept = {option: options[option] for option in ("max_length", "revision") if option in options}
    return StaticEncoder(name, pooling.removeprefix(STATIC)[1:] or "content", **kept)


def _calibrated(name: str, place: Path, force: bool, options: dict[str, Any]) -> "SentenceEncoder":
    from bertflow.calibrated import CalibratedEncoder

    return CalibratedEncoder.load(place, force=force, **{**options, "revision": None})


def _run(name: str, place: Path, force: bool, options: dict[str, Any]) -> "SentenceEncoder":
    """A run whose encoder lies elsewhere: opened as the run says, else as the calibrator has recorded."""
    from bertflow.calibrated import CalibratedEncoder
    from bertflow.calibration.spelling import load_calibrator
    from bertflow.encoder.folders import open_model, recorded_prompts, shown_prompts
    from bertflow.encoder.transformer import TransformerEncoder
    from bertflow.records import check_record, read_record

    _require_calibrator(name, place)
    run = read_record(place / "run.json", FittedRun, "training run", "Train again.")["encoder"]
    calibrator = load_calibrator(place / CALIBRATOR)
    known = calibrator.provenance.encoder if calibrator.provenance else {}
    recipe: dict[str, Any] = {key: known[key] for key in ("pooling", "max_length", "dtype", "template") if key in known}
    if "prompt" in known:
        recipe["prompt"] = recorded_prompts(known)
    kept = {key: value for key, value in run.items() if key in RunEncoder.__annotations__}
    given = {key: value for key, value in {**kept, "device": None, **options}.items() if value is not None}
    recipe |= given
    check_record(recipe, RunEncoder, str(place / CALIBRATOR), "training run", "Train again.")
    if "prompt" in known and "prompt" not in given:
        own = open_model(recipe["model"], recipe.get("revision")).prompts()
        if own != recipe["prompt"]:
            logger.warning(
                "%s uses the prompts that its calibrator was fitted with, %s; those of the model are %s.",
                name, shown_prompts(recipe["prompt"]), shown_prompts(own),
            )  # fmt: skip
    return CalibratedEncoder(TransformerEncoder(**recipe), calibrator, force)


def _require_calibrator(name: str, run: Path) -> None:
    if not (run / CALIBRATOR).is_dir():
        raise UsageError(f"The run {name} has no calibrator yet. Finish it with --resume auto.")


def _holds(*files: str) -> Callable[[Path], bool]:
    return lambda place: all(os.path.lexists(place / file) for file in files)


KINDS = (
    Kind(WORD_VECTOR_FILE, lambda place: place.suffix in WORD_VECTORS and not place.is_dir(), _word_vectors),
    Kind("calibrator alone", _holds("calibrator.json"), _no_encoder, calibrated=True),
    Kind("calibrated encoder", _holds("bertflow.json", "encoder"), _calibrated, calibrated=True),
    Kind("run", _holds("run.json"), _run, calibrated=True),
    Kind("saved encoder", _holds("bertflow_encoder.json"), _transformer),
    Kind("sentence-transformers folder", _holds("modules.json"), _transformer),
    Kind("transformers folder", lambda place: True, _transformer),
)
"""What a user may name, in the order in which it is looked for."""
