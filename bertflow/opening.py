"""``bertflow.load``: whatever a user names, opened as one encoder.

``KINDS`` has a row for each kind of thing: how it is known, and how it is opened. A hub id becomes a folder first (the
hub's cache), and is then known by the same signs. Every command and every adapter opens encoders here, so that one name
means the same embeddings everywhere.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from typing_extensions import TypedDict, Unpack

from bertflow.calibrated import CalibratedEncoder
from bertflow.calibration.spelling import load_calibrator
from bertflow.encoder.abstract import SentenceEncoder
from bertflow.encoder.embedded import RAW_POOLING, embedded_encoder
from bertflow.encoder.locating import locate
from bertflow.encoder.options import EncoderOptions, EncoderRecipe, given_options
from bertflow.encoder.transformer import StaticEncoder, TransformerEncoder
from bertflow.encoder.word_vectors import WordVectorEncoder
from bertflow.errors import UsageError, logger, require_between
from bertflow.files import restore
from bertflow.places import expand
from bertflow.progress import working
from bertflow.records import read_record

STATIC = "static"
"""Prefix of the poolings that average a transformer's word embeddings: static, static-mean, static-sif, static-max."""
WORD_VECTORS = (".vec", ".txt", ".gz")
"""Endings of the name of a file of word vectors."""
WORD_VECTOR_FILE = "file of word vectors"
"""What such a file is called."""
SAVED = "saved encoder"
"""Name of a kind: a folder that ``TransformerEncoder.save`` wrote."""
CALIBRATOR = "calibrator"
"""Folder in which a calibrated encoder and a run keep their calibrator."""
Openable: TypeAlias = str | Path | SentenceEncoder
"""What a user may name, and an encoder that is open."""


class FittedRun(TypedDict):
    """What the record of a run tells of its encoder."""

    encoder: EncoderRecipe


@dataclass(frozen=True)
class Kind:
    """A kind of thing: how it is called and known, how it is opened, and whether a calibrator is in it.

    ``open`` takes the name that was given, where the thing lies, ``force``, and the options that were given.
    """

    called: str
    known: Callable[[Path], bool]
    open: Callable[[str, Path, bool, dict[str, Any]], SentenceEncoder]
    calibrated: bool = False


@working("opening the encoder")
def load(
    model: str | Path | SentenceEncoder | None = None, *, force: bool = False, **options: Unpack[EncoderOptions]
) -> SentenceEncoder:
    """Open an encoder, raw or calibrated. What cannot be opened is refused here; weights are read when it encodes.

    Args:
        model: A hub id, also of a calibrated encoder; the folder of a transformers model, a
            sentence-transformers model, a saved or calibrated encoder, or a run; or a file of word vectors. None is the
            encoder that comes as a package (``bertflow.encoder.embedded``), with its inner layers. An encoder that is
            open is taken as it is.
        force: Accept a calibrator with an encoder that it was not fitted on, as one with another ``max_length``.
        options: ``EncoderOptions``.

    Returns:
        The encoder; ``load(**encoder.recipe)`` opens it again.

    Raises:
        UsageError: If the hub does not give it, an option cannot be used, or it is a calibrator alone.
        DataError: If it is missing, incomplete or damaged.
    """
    if not (model is None or isinstance(model, str | Path)):
        return model
    require_between(1, max_length=options.get("max_length"))
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    if model is None:
        model, given = embedded_encoder(), {"pooling": RAW_POOLING, **given}
    place, kind = find(str(model), given.get("revision"))
    encoder = kind.open(str(model), place, force, given)
    if kind.calibrated:
        encoder.recipe = {"model": str(model), **given}
    return encoder


def load_transformer(model: Openable | None, **options: Unpack[EncoderOptions]) -> TransformerEncoder:
    """Open a raw transformer, whose layers can be read and whose weights can be trained.

    Raises:
        UsageError: If it is something else; also as ``load``.
        DataError: As ``load``.
    """
    encoder = load_plainly(model, **options)
    if not isinstance(encoder, TransformerEncoder):
        raise UsageError(
            f"A raw transformer is needed, got a {type(encoder).__name__}. Give the encoder before the calibrator, "
            "or the name of one."
        )
    return encoder


def takes_options(model: Openable | None, revision: str | None = None, saved: bool = True) -> bool:
    """Whether options open it, also a ``saved`` encoder: what is calibrated and word vectors take the device."""
    if not (model is None or isinstance(model, str | Path)):
        return model.calibrator is None and isinstance(model.raw, TransformerEncoder)
    kind = find(str(model), revision)[1] if model else None
    return kind is None or not (kind.calibrated or kind.called in (WORD_VECTOR_FILE, *([] if saved else [SAVED])))


def load_plainly(model: Openable | None, **options: Unpack[EncoderOptions]) -> SentenceEncoder:
    """Do what ``load`` does, for one of several encoders with the same options: some take the device alone."""
    takes = takes_options(model, options.get("revision"))
    return load(model, **options if takes else EncoderOptions(device=options.get("device")))


def load_each(models: Sequence[tuple[str, Openable]], options: EncoderOptions) -> list[SentenceEncoder]:
    """Open several, by their names; a folder that bertflow wrote keeps its options if another one takes them.

    Raises:
        UsageError: If none takes the options; also as ``load``.
        DataError: As ``load``.
    """
    given, revision = given_options(options), options.get("revision")
    plain = {name for name, model in models if given and takes_options(model, revision, saved=False)}
    takes = plain or {name for name, model in models if takes_options(model, revision)}
    if given and not takes:
        raise UsageError(
            f"{given[0]} is for a transformer without a calibrator, but none was given: a calibrated encoder keeps "
            "its own, and word vectors have none. Leave it out."
        )
    if plain and (keep := [name for name, _ in models if name not in takes]):
        logger.info("%s: used for %s. These keep their own: %s.", *map(", ".join, (given, sorted(takes), keep)))
    own: EncoderOptions = {"device": options.get("device")}
    return [load_plainly(model, **(options if name in takes else own)) for name, model in models]


def find(name: str, revision: str | None = None) -> tuple[Path, Kind]:
    """Where a thing lies, and of which kind it is; what is on the hub only is downloaded.

    Raises:
        UsageError: If the hub does not give it.
        DataError: If it is missing, or of no known kind.
    """
    place = expand(name)
    restore(place)
    if place.suffix not in WORD_VECTORS or place.is_dir():
        place = locate(name, revision)
    return place, next(kind for kind in KINDS if kind.known(place))


def _word_vectors(name: str, place: Path, force: bool, options: dict[str, Any]) -> SentenceEncoder:
    if unused := sorted(options.keys() - {"pooling", "device"}):
        raise UsageError(f"{name} is a file of word vectors, which has no {unused[0]}. Leave that option out.")
    return WordVectorEncoder(place, options.get("pooling", "mean"))


def _no_encoder(name: str, place: Path, force: bool, options: dict[str, Any]) -> SentenceEncoder:
    raise UsageError(f"{name} is a calibrator without an encoder. Give the folder that holds both.")


def _transformer(name: str, place: Path, force: bool, options: dict[str, Any]) -> SentenceEncoder:
    pooling = options.get("pooling", "")
    if pooling.split("-")[0] != STATIC:
        return TransformerEncoder(name, **options)
    if unused := [option for option in ("dtype", "prompt", "chunks", "template") if options.get(option)]:
        raise UsageError(f"The word embeddings of {name} have no {unused[0]}. Leave that option out.")
    kept = {option: options[option] for option in ("max_length", "revision") if option in options}
    return StaticEncoder(name, pooling.removeprefix(STATIC)[1:] or "content", **kept)


def _calibrated(name: str, place: Path, force: bool, options: dict[str, Any]) -> SentenceEncoder:
    return CalibratedEncoder.load(place, force=force, **{**options, "revision": None})


def _run(name: str, place: Path, force: bool, options: dict[str, Any]) -> SentenceEncoder:
    """A run whose encoder lies elsewhere: opened as the run says."""
    if not (place / CALIBRATOR).is_dir():
        raise UsageError(f"The run {name} has no calibrator yet. Finish it with --resume auto.")
    run = read_record(place / "run.json", FittedRun, "training run", "Train again.")["encoder"]
    kept = {key: value for key, value in run.items() if key in EncoderRecipe.__annotations__ and value is not None}
    encoder = TransformerEncoder(**{**kept, "device": "auto", **options})
    return CalibratedEncoder(encoder, load_calibrator(place / CALIBRATOR), force)


def _holds(*files: str) -> Callable[[Path], bool]:
    return lambda place: all(os.path.lexists(place / file) for file in files)


KINDS = (
    Kind(WORD_VECTOR_FILE, lambda place: place.suffix in WORD_VECTORS and not place.is_dir(), _word_vectors),
    Kind("calibrator alone", _holds("calibrator.json"), _no_encoder, calibrated=True),
    Kind("calibrated encoder", _holds("bertflow.json", "encoder"), _calibrated, calibrated=True),
    Kind("run", _holds("run.json"), _run, calibrated=True),
    Kind(SAVED, _holds("bertflow_encoder.json"), _transformer),
    Kind("sentence-transformers folder", _holds("modules.json"), _transformer),
    Kind("transformers folder", lambda place: True, _transformer),
)
"""What a user may name, in the order in which it is looked for."""
