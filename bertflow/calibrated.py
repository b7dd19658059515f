"""A calibrated encoder: an encoder, then a calibrator, used as one encoder.

    sentences -- encoder --> x (n, dim_in) -- calibrator --> z (n, dim)

As a folder it holds both, so that it works where neither the hub nor the text is at hand:

    bertflow.json   encoder/   calibrator/
"""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import nn

from bertflow.array_types import Float32, Floats, Hashes
from bertflow.calibration.base import AbstractCalibrator
from bertflow.calibration.queries import QueryShift
from bertflow.calibration.same_space import require_alike, require_lengths
from bertflow.calibration.spelling import load_calibrator
from bertflow.data.docstrings import PLAIN
from bertflow.encoder import ENCODER
from bertflow.encoder.abstract import AbstractEncoder, Role, SentenceEncoder, encode_as, is_encoder
from bertflow.encoder.device import BEHIND, gpu_of, in_blocks, sent
from bertflow.encoder.identity import Identity
from bertflow.encoder.seen_text import AbstractLearner
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.errors import DataError, UsageError, logger
from bertflow.maps import RowMap, fitted_map, of_role
from bertflow.moments import all_finite, require_finite
from bertflow.progress import unsaid, working
from bertflow.records import read_record, write_record

RECORD = "bertflow.json"
_COPIES: WeakKeyDictionary[nn.Module, dict[torch.device, nn.Module]] = WeakKeyDictionary()


@dataclass(frozen=True)
class CalibratedRecord:
    """What ``bertflow.json`` holds."""

    format: Literal[1]
    describe: dict[str, Any]
    before: str | None = None
    role: Role = "document"


class CalibratedEncoder(AbstractEncoder):
    """An encoder and a calibrator as one ``SentenceEncoder``.

    Args:
        encoder: Makes the raw embeddings.
        calibrator: Fitted on embeddings of this encoder.
        force: Accept a calibrator that was fitted on embeddings of another encoder of the same width.

    Attributes:
        before: Pooling that the user came with, if ``bertflow.fix`` chose another one of the same weights; else None.
        role: What ``encode`` takes sentences for: queries, where ``bertflow.adapt`` wrote it for an index.

    Raises:
        UsageError: If the arguments are something else.
        DataError: If the calibrator was fitted for another width, or on embeddings of another encoder: one that differs
            in weights, pooling, prompt or ``max_length``. A calibrator that was fitted on bare vectors does not know
            its encoder: then 26 short sentences are embedded once, and refused if their lengths, or their mean, sizes
            and spectrum, clearly differ (``bertflow.calibration.same_space``). Another pooling of the same encoder
            may be too similar for that.
    """

    calibrator: AbstractCalibrator
    before: str | None = None

    def __init__(self, encoder: SentenceEncoder, calibrator: AbstractCalibrator, force: bool = False) -> None:
        _require_order(encoder, calibrator)
        if calibrator.dim_in != encoder.dim:
            raise DataError(
                f"The calibrator expects embeddings of size {calibrator.dim_in}, the encoder makes {encoder.dim}. "
                "Were both made with the same encoder and pooling?"
            )
        if calibrator.provenance is not None:
            Identity.from_record(calibrator.provenance.encoder).require(
                encoder.identity,
                "The calibrator was fitted on embeddings by",
                "Use the encoder that it was fitted on, fit again, or pass force=True in Python.",
                force,
            )
        elif not force:
            _require_alike(encoder, calibrator)
        self.encoder = encoder
        self.calibrator = calibrator

    @classmethod
    @working("fitting the calibrator")
    def fit(
        cls,
        encoder: SentenceEncoder,
        calibrator: AbstractCalibrator,
        sentences: list[str],
        progress: bool | None = None,
        queries: Sequence[str] | None = None,
    ) -> Self:
        """Fit ``calibrator`` to the distinct ``sentences`` as ``encoder`` embeds them, and pair the two.

        With queries, or crops of the documents in their place, each role has its own mean
        (``bertflow.calibration.queries``).

        An encoder without counts whose pooling weights by frequency, such as ``sif``, counts these sentences.
        """
        _require_order(encoder, calibrator)
        if isinstance(encoder, AbstractLearner) and encoder.count_missing(sentences):
            logger.info("Frequencies for the pooling are counted in the sentences to fit on.")
        return cls(encoder, calibrator.fit_sentences(encoder, sentences, progress, queries))

    @property
    def dim(self) -> int:  # type: ignore[override]
        """Width of the calibrated embeddings."""
        return self.calibrator.dim_out

    @property
    def raw(self) -> SentenceEncoder:
        """The encoder before the calibrator."""
        return self.encoder

    @property
    def identity(self) -> Identity:
        """Everything that decides the embeddings; to ask an index with, those of its documents."""
        if isinstance(self.calibrator, QueryShift):
            return self.encoder.identity
        kept, asks = self.calibrator, self.role == "query"
        module = kept.with_gap(fitted_map(kept.map), None) if asks else kept.map
        return self.encoder.identity.calibrated(kept.spelled, module)

    @property
    def has_roles(self) -> bool:
        """Whether a query has another embedding than a document of the same words."""
        return self.calibrator.has_roles or self.encoder.has_roles

    def _encode(self, sentences: list[str], role: Role, progress: bool | None, batch_size: int | None) -> Float32:
        return self.calibrate(encode_as(self.encoder, role, sentences, progress, batch_size=batch_size), role)

    def calibrate(self, x: Float32, role: Role = "document") -> Float32:
        """Calibrate embeddings (n, dim_in) that the encoder made already, on the encoder's GPU if it has one."""
        if not len(x):
            return np.empty((0, self.dim), dtype=np.float32)
        gpu = gpu_of(self.encoder)
        suits = x.dtype == np.float32 and x.shape[1:] == (self.encoder.dim,)
        if gpu and gpu.type != "mps" and suits:  # maps are float64, which MPS does not have
            require_lengths(x, self.calibrator.moments_)
            z = mapped_on(gpu, self.calibrator.map, x, role)
            if all_finite(z):  # else below, in more digits, or with what is wrong
                return z
        with np.errstate(over="ignore"):
            z = self.calibrator.transform(x, role).astype(np.float32, copy=False)
        require_finite(z)
        return z

    def describe(self) -> dict[str, Any]:
        """The encoder's description, and which calibrator follows it."""
        fitted = self.calibrator
        return self.encoder.describe() | {"calibrator": fitted.spelled, "fitted_rows": fitted.moments_.n}

    def fitted_hashes(self) -> Hashes | None:
        """Hashes of all text that encoder and calibrator were fitted on; None where some of it is unknown."""
        provenance = self.calibrator.provenance
        encoder_text, text = self.encoder.fitted_hashes(), provenance.text_hashes if provenance else None
        return None if encoder_text is None or text is None else np.union1d(encoder_text, text)

    def forget_text(self) -> Self:
        """Forget the hashes of all text that encoder and calibrator were fitted on."""
        self.encoder.forget_text()
        self.calibrator.forget_text()
        return self

    def __repr__(self) -> str:
        return f"CalibratedEncoder({self.encoder!r}, {self.calibrator.spelled}, dim={self.dim})"

    def write(self, folder: Path) -> None:
        """Write encoder and calibrator into an existing folder."""
        (folder / ENCODER).mkdir()
        self.encoder.write(folder / ENCODER)
        self.write_calibrator(folder)

    def write_calibrator(self, folder: Path) -> None:
        """Write what stands beside the folder of the encoder."""
        (folder / "calibrator").mkdir()
        self.calibrator.write(folder / "calibrator")
        before = {} if self.before is None else {"before": self.before}
        role = {} if self.role == "document" else {"role": self.role}
        write_record(folder / RECORD, {"format": 1, "describe": self.describe(), **before, **role})

    @classmethod
    def load(cls, folder: str | Path, device: str = "auto", force: bool = False, **options: Any) -> Self:
        """Read a folder that ``save`` wrote; its embeddings are bit-identical on the same machine.

        Args:
            folder: What ``save`` wrote.
            device: Where the encoder runs.
            force: Accept options that change the embeddings that the calibrator was fitted on.
            options: Options of ``TransformerEncoder``, such as ``dtype``; by default as saved.

        Raises:
            DataError: If the folder is missing, incomplete or damaged, or an option makes other embeddings.
        """
        folder = Path(folder)
        record = read_record(folder / RECORD, CalibratedRecord, "calibrated encoder", "Save the encoder again.")
        encoder = TransformerEncoder(folder / ENCODER, device=device, **options)
        calibrator = load_calibrator(folder / "calibrator")
        known = calibrator.provenance is not None or bool(options)  # what was saved together was compared then
        calibrated = cls(encoder, calibrator, force or not known)
        calibrated.before, calibrated.role = record.before, record.role
        calibrated.recipe = {"model": str(folder), "device": device, **options}
        return calibrated


def over(raw: SentenceEncoder, system: SentenceEncoder) -> SentenceEncoder:
    """What ``system`` is over another form of its raw encoder: all that follows the raw one stays."""
    if system.calibrator is None:
        return raw
    made = CalibratedEncoder(raw, system.calibrator, force=True)
    made.before, made.role = getattr(system, "before", None), system.role
    return made


def mapped_on(device: torch.device, fitted: RowMap, x: Float32, role: Role = "document") -> Floats:
    """What a map makes of rows (n, dim_in) on a device: (n, dim_out), float32, perhaps not finite.

    The map is copied there once.
    """
    copies = _COPIES.setdefault(fitted, {})
    if device not in copies:
        copies[device] = copy.deepcopy(fitted).to(device)
    there = of_role(copies[device], role == "query")  # type: ignore[arg-type]
    return in_blocks(lambda block: there(sent(block, device)).float(), x, BEHIND)


def encode_systems(
    systems: Mapping[str, SentenceEncoder],
    sentences: Sequence[str],
    progress: bool | None = None,
    role: Role = "document",
) -> dict[str, Float32]:
    """Embed ``sentences`` by every system; systems whose encoders are alike share one pass.

    Returns:
        For each name, embeddings (n, dim) in the order of ``sentences``.
    """
    raw: dict[str, Float32] = {}
    embeddings = {}
    for name, system in systems.items():
        key = system.raw.identity.key
        if key not in raw:
            raw[key] = encode_as(system.raw, role, sentences, progress)
        embeddings[name] = system.calibrate(raw[key], role)
    return embeddings


def _require_alike(encoder: SentenceEncoder, calibrator: AbstractCalibrator) -> None:
    """Refuse an encoder whose embeddings are clearly not of the space of bare vectors that a calibrator was fitted on.

    Raises:
        DataError: With what differs, and by how much.
    """
    with unsaid():  # unknown words need not be reported here
        rows, moments = encoder.encode_document(list(PLAIN), progress=False), calibrator.moments_
    require_lengths(rows, moments)
    require_alike(
        rows,
        moments,
        f"The calibrator is for the encoder that made the {moments.n:,} bare vectors that it was fitted on",
        "Use that encoder and pooling, or pass force=True in Python.",
    )


def _require_order(encoder: object, calibrator: object) -> None:
    if is_encoder(encoder) and isinstance(calibrator, AbstractCalibrator):
        return
    swapped = is_encoder(calibrator) and isinstance(encoder, AbstractCalibrator)
    raise UsageError(
        "CalibratedEncoder takes an encoder, then a calibrator; got "
        f"{type(encoder).__name__}, {type(calibrator).__name__}. "
        + ("Swap them." if swapped else "An encoder of your own derives from bertflow.AbstractEncoder.")
    )
