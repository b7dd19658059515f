"""A calibrator of an index's own: fitted on the texts that it holds, and kept in its file.

    texts -- encoder --> raw embeddings, in the file -- fit --> calibrator, in the file --> calibrated embeddings

The encoder reads each text once. For search this finds more than a calibrator that was fitted on as many sentences of
other text (docs/results/search.md). Token counts, for poolings by frequency of an encoder that has none, are
those of the same texts. Texts that are added later go through the same calibrator, until it is fitted again.
"""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from bertflow.array_types import Int64
from bertflow.breadth import narrowness
from bertflow.calibrated import CalibratedEncoder
from bertflow.calibration.base import AbstractCalibrator
from bertflow.calibration.closed_forms import AbstractClosedForm
from bertflow.calibration.same_space import require_alike
from bertflow.calibration.saving import Provenance
from bertflow.calibration.spelling import load_calibrator, parse_calibrator
from bertflow.data.corpus import chunks
from bertflow.encoder.abstract import SentenceEncoder
from bertflow.encoder.reading import AbstractTokenEncoder
from bertflow.errors import DataError, UsageError, logger
from bertflow.moments import Moments
from bertflow.progress import working
from bertflow.retrieval.storage import ROWS, Storage
from bertflow.text_keys import hash_texts

LEAST = 3
"""Texts a direction. With twice the width whitening did not always find more than raw embeddings, with three times it
did; with as many texts as directions it finds next to nothing (docs/results/search.md)."""
CALIBRATOR, COUNTS = "calibrator", "counts"
"""What an index keeps, besides its answers."""


def parse_own(
    spelling: str, calibrator: AbstractCalibrator | None = None, n: int | None = None, width: int = 0
) -> AbstractClosedForm:
    """Read the spelling of a calibrator that an index can fit.

    Args:
        spelling: Such as ``whitening`` or ``abtt(3)``.
        calibrator: What the encoder of the index has already.
        n: Number of distinct texts to fit on, once it is known.
        width: Width of their embeddings.

    Raises:
        UsageError: If it is misspelled or not a closed form, or the encoder is calibrated already.
        DataError: If there are too few texts.
    """
    made = parse_calibrator(spelling)
    if not isinstance(made, AbstractClosedForm):
        raise UsageError(
            f"An index fits closed forms, as whitening or abtt(3), got {spelling}. Fit a flow with `bertflow train`, "
            "and build the index with its folder as --model."
        )
    if calibrator is not None:
        raise UsageError(
            f"An index fits {spelling} for a raw encoder, but this one has {type(calibrator).__name__} already. Give "
            "the raw one, or leave --calibrate out."
        )
    directions = getattr(made, "n_components", None) or width
    if n is not None and n < (LEAST * directions if made.divides else 2):
        raise DataError(
            f"Fitting {spelling} takes {LEAST} texts for each of {directions} directions, {LEAST * directions:,} in "
            f"all, but there are {n:,}. Index more, take center or abtt(3), or a --model that was calibrated on other "
            "text."
        )
    return made


def count_texts(encoder: SentenceEncoder, texts: Sequence[str]) -> Int64 | None:
    """Token counts of the texts, by token id, if the encoder's pooling needs some and has none."""
    raw = encoder.raw
    if isinstance(raw, AbstractTokenEncoder) and raw.count_missing(texts):
        assert raw.counts is not None, "they were just counted"
        return raw.counts.counts
    return None


@working("fitting the calibrator")
def fit_own(storage: Storage, encoder: SentenceEncoder, spelling: str) -> CalibratedEncoder:
    """The encoder with a calibrator that is fitted on all distinct texts of an index, each once.

    Raises:
        UsageError: As ``parse_own``.
        DataError: If there are too few texts.
    """
    raw, first = encoder.raw, dict[str, int]()
    for part in storage.parts():
        found = storage.phrases(part)
        for number in part:
            first.setdefault(found[number][2], number)
    made = parse_own(spelling, n=len(first), width=raw.dim)
    blocks = (storage.vectors(part, raw=True).astype(np.float64) for part in chunks(first.values(), ROWS))
    moments = Moments.merged(map(Moments.of, blocks))
    if made.divides:
        numbers = np.array(list(first.values()))
        if said := narrowness(list(first), lambda places: storage.vectors(numbers[places].tolist(), raw=True)):
            logger.warning(said)
    made.fit_moments(moments, Provenance.of(raw.describe(), hash_texts(list(first))))
    return CalibratedEncoder(raw, made)


def files_of(encoder: SentenceEncoder) -> dict[str, bytes]:
    """The files of a calibrator."""
    assert encoder.calibrator is not None, "it was just fitted"
    with TemporaryDirectory() as folder:
        encoder.calibrator.write(Path(folder))
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def with_own(storage: Storage, encoder: SentenceEncoder) -> SentenceEncoder:
    """A raw encoder with the calibrator that an index keeps, if it keeps one; another encoder as it is.

    Raises:
        DataError: If it is damaged, or was fitted on embeddings by another encoder.
    """
    files = {} if encoder.calibrator else storage.kept(CALIBRATOR)
    if not files:
        return encoder
    with TemporaryDirectory() as folder:
        for name, content in files.items():
            (Path(folder) / name).write_bytes(content)
        return CalibratedEncoder(encoder, load_calibrator(folder))


def with_another(storage: Storage, encoder: SentenceEncoder, calibrator: AbstractCalibrator) -> CalibratedEncoder:
    """A raw encoder with a calibrator; of one that was fitted on bare vectors the embeddings of an index are compared.

    Raises:
        DataError: If it was fitted for another width or encoder, or on vectors of clearly other lengths.
    """
    if calibrator.provenance is not None:
        return CalibratedEncoder(encoder, calibrator)
    made, numbers = CalibratedEncoder(encoder, calibrator, force=True), storage.numbers()[:ROWS].tolist()
    if numbers:
        require_alike(
            storage.vectors(numbers, raw=True),
            calibrator.moments_,
            f"The calibrator is for vectors by one encoder, and those in {storage.path} should be by the same",
            "Fit it again, on embeddings by the encoder of the index.",
            any_text=True,
        )
    return made
