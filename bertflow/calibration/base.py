"""What every calibrator has in common.

A calibrator is a scikit-learn transformer: how it is fitted. Its ``map`` is a torch module: what it does, row by row.

    fit:        raw embeddings (n, dim_in) -> moments_ and map_
    transform:  (n, dim_in) -> (n, dim_out), by the map

If all rows of the fit had unit length, as in a cosine collection of a vector database, the map brings every row to unit
length first (``bertflow.bands.UnitMap``): rows of the database and embeddings by the encoder then give the same.

Every calibrator keeps the moments of what it was fitted on, so that each closed form can be refitted later, exactly,
without the text; and, where the text is known, its provenance. As a folder it is JSON and safetensors, never pickle:

    calibrator.json           class and parameters, dimensions, encoder, text digest, n, versions, facts of the fit,
                              and a checksum of every other file
    calibrator.safetensors    the tensors of the fitted map
    moments.safetensors       what it was fitted from: every closed form can be refitted exactly
    text_hashes.safetensors   which text that was, as hashes; absent when unknown
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from textwrap import shorten
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from safetensors.numpy import save_file
from safetensors.torch import save_file as save_tensors
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import Tags
from sklearn.utils.validation import check_array, check_is_fitted, validate_data
from torch import Tensor
from typing_extensions import TypedDict

from bertflow.bands import UnitMap
from bertflow.calibration.likeness import require_lengths
from bertflow.calibration.maps import SAVE, FittedMap, MapSpec, RowMap, filled_map, in_blocks
from bertflow.encoder.abstract import SentenceEncoder, is_encoder
from bertflow.errors import BadRowsError, DataError, UsageError, reason_of, require_directions
from bertflow.files import atomic_folder
from bertflow.moments import Moments, odd_rows, require_finite
from bertflow.records import Checksums, Size, checksums, read_arrays, read_record, require_whole, write_record
from bertflow.registry import lookup
from bertflow.text_keys import digest, hash_texts

RECORD = "calibrator.json"
TENSORS, MOMENTS, TEXT = "calibrator.safetensors", "moments.safetensors", "text_hashes.safetensors"
VERSIONED = ("bertflow", "torch", "nflows", "numpy", "scikit-learn", "transformers")
CalibratorRecord = TypedDict(
    "CalibratorRecord",
    {
        "format": Literal[1],
        "class": str,
        "parameters": dict[str, Any],
        "map": MapSpec,
        "dim_in": Size,
        "encoder": dict[str, Any] | None,
        "labels": list[str],
        "text_keys": str | None,
        "facts": dict[str, Any],
        "sha256": Checksums,
    },
)
"""What ``calibrator.json`` cannot be read without."""


@dataclass(frozen=True)
class Provenance:
    """What a calibrator was fitted on: by which encoder, and which text.

    Attributes:
        encoder: The encoder's ``describe()``.
        text_hashes: Sorted hashes of the fitting text (``bertflow.text_keys``); None where it is unknown or forgotten.
        labels: Names of labelled data that the encoder or the calibrator was trained on.
    """

    encoder: Mapping[str, Any]
    text_hashes: NDArray[np.uint64] | None
    labels: tuple[str, ...] = ()

    @classmethod
    def of(cls, description: Mapping[str, Any], text_hashes: NDArray[np.uint64] | None, *labels: str) -> "Provenance":
        """The provenance by the ``describe()`` of an encoder; ``labels`` are those that the calibrator learned from."""
        return cls(description, text_hashes, (*description.get("labels", ()), *labels))


class AbstractCalibrator(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator, ABC):
    """A row-wise map from raw to calibrated embeddings, fitted without labels.

    Attributes:
        moments_: Moments of the rows it was fitted on.
        map_: The fitted torch module; read it as ``map``.
        provenance_: ``Provenance``, or None when it was fitted on bare arrays.
        facts_: What the fit has to say about itself, ready for JSON.
        divides: Whether directions are divided by their deviations, which a narrow text does not show.
    """

    divides: ClassVar[bool] = True
    moments_: Moments
    map_: RowMap
    provenance_: Provenance | None
    facts_: dict[str, Any]

    @abstractmethod
    def _fit_map(self, x: NDArray[np.floating], *made_by: Any) -> FittedMap:
        """The map for rows ``x``, whose moments are in ``moments_``; where known, their encoder and its sentences."""

    def recorded(self) -> dict[str, Any]:
        """The parameters as they are recorded."""
        return dict(self.get_params())

    @property
    def spelled(self) -> str:
        """Class and parameters, as descriptions name it."""
        parameters = ", ".join(f"{key}={value!r}" for key, value in self.recorded().items())
        return f"{type(self).__name__}({parameters})"

    def _require_parameters(self) -> None:
        """Refuse parameters of a wrong type or out of range, before anything is fitted."""

    def require_encoder(self, description: Mapping[str, Any] | None) -> None:
        """Refuse an encoder that it is not for, by its ``describe()``; None for bare embeddings. Here, none is."""

    def fit(self, X: ArrayLike, y: None = None) -> Self:
        """Fit to raw embeddings (n, dim_in), n >= 2; ``y`` is ignored.

        Raises:
            DataError: For a NaN, an infinity, fewer than two rows, rows that are all equal, or a largest number outside
                of ``bertflow.moments.SCALE``.
            UsageError: For a parameter of a wrong type or out of range.
        """
        self.require_encoder(None)
        self._fit(X)
        return self

    def fit_sentences(self, encoder: SentenceEncoder, sentences: list[str], progress: bool | None = None) -> Self:
        """Fit to the distinct ``sentences`` as ``encoder`` embeds them, and remember both."""
        if not is_encoder(encoder):
            raise UsageError(
                f"fit_sentences takes an encoder, then sentences; got {type(encoder).__name__}, "
                f"{type(sentences).__name__}. For embeddings use fit(x)."
            )
        self.require_encoder(encoder.describe())
        require_directions(getattr(self, "n_components", None), encoder.dim)
        distinct = list(dict.fromkeys(sentences))
        self._fit(encoder.encode(distinct, progress=progress), encoder, distinct)
        return self

    def _fit(self, X: ArrayLike, *made_by: Any) -> None:
        x = self._validated(X, reset=True, ensure_min_samples=2)
        self.moments_, self.provenance_, self.facts_ = Moments.of(x), None, {}
        if made_by:
            encoder, sentences = made_by
            self.provenance_ = Provenance.of(encoder.describe(), hash_texts(sentences))
        self._keep(self._fit_map(x, *made_by))

    def _keep(self, fitted: FittedMap) -> None:
        """Take the map that was fitted; if its rows had unit length, it brings all rows to unit length first."""
        self.map_ = UnitMap(fitted).eval() if self.moments_.unit else fitted

    def __repr__(self, N_CHAR_MAX: int = 700) -> str:
        """The parameters; of a fitted calibrator also the sizes, and what it was fitted on."""
        shown = super().__repr__(N_CHAR_MAX)
        if not hasattr(self, "moments_"):
            return shown
        known = self.provenance_.encoder if self.provenance_ else {}
        by = f" by {known.get('encoder')}, {known.get('pooling')}" if known else ""
        rows = f"{self.moments_.n:,} embeddings{by}{' of unit length' if self.moments_.unit else ''}"
        return f"<{shown}: {self.dim_in} -> {self.dim_out}, fitted on {rows}>"

    @property
    def map(self) -> RowMap:
        """The fitted row-wise torch module, (n, dim_in) -> (n, dim_out)."""
        check_is_fitted(self, "map_")
        return self.map_

    @property
    def provenance(self) -> Provenance | None:
        """What it was fitted on, or None when that is unknown."""
        check_is_fitted(self, "map_")
        return self.provenance_

    def forget_text(self) -> Self:
        """Forget the hashes of the text it was fitted on, which then no saved file holds; ``seen`` becomes unknown."""
        if self.provenance is not None:
            self.provenance_ = replace(self.provenance, text_hashes=None)
        return self

    @property
    def dim_in(self) -> int:
        """Width of the raw embeddings."""
        return self.map.dim_in

    @property
    def dim_out(self) -> int:
        """Width of the calibrated embeddings."""
        return self.map.dim_out

    def transform(self, X: ArrayLike) -> NDArray[np.floating]:
        """Calibrate rows (n, dim_in) -> (n, dim_out); float32 stays float32, float64 stays float64.

        Rows that all have unit length are refused where those of the fit were far from it (``DataError``).
        """
        forward, x = self.map.forward, self._validated(X, reset=False)
        require_lengths(x, self.moments_)
        return self._mapped(forward, x)

    def inverse_transform(self, X: ArrayLike) -> NDArray[np.floating]:
        """Back to raw embeddings (n, dim_out) -> (n, dim_in); directions that were left out come back as their mean.

        Where the rows of the fit had unit length, those that come back have it, too: other lengths are not kept.

        Raises:
            DataError: If the width is not ``dim_out``.
            UsageError: If there is no inverse, since lengths are lost.
        """
        with _in_one_line():
            z = check_array(X, dtype=[np.float64, np.float32], ensure_all_finite=False, allow_nd=True, ensure_2d=False)
        if z.ndim != 2 or z.shape[1] != self.dim_out:
            raise DataError(f"Calibrated embeddings of shape (n, {self.dim_out}) were expected, got {z.shape}.")
        return self._mapped(self.map.inverse, z)

    def _mapped(self, function: Callable[[Tensor], Tensor], x: NDArray[np.floating]) -> NDArray[np.floating]:
        require_finite(x)
        mapped = in_blocks(function, x)  # a flow is float32; what comes in as float64 goes out as float64
        if len(odd := odd_rows(mapped)):  # float32 may not hold a number on the way
            with np.errstate(over="ignore"):
                mapped[odd] = in_blocks(function, x[odd].astype(np.float64))
            self._require_finite(mapped, odd)
        return mapped

    def _require_finite(self, mapped: NDArray[np.floating], rows: NDArray[np.int64]) -> None:
        if len(odd := odd_rows(mapped[rows])):
            far = (
                f"in {mapped.dtype}: it is too far from the {self.moments_.n:,} rows that {type(self).__name__} was "
                f"fitted on. Leave it out, or fit on such rows"
                f"{', or give float64' if mapped.dtype == np.float32 else ''}."
            )
            found = {int(row): np.atleast_1d(mapped[row]) for row in rows[odd]}
            bad = {row: f"comes out as {x[~np.isfinite(x)][0]} {far}" for row, x in found.items()}
            raise BadRowsError(bad, "Row {} {}".format(*min(bad.items())))

    def _validated(self, X: ArrayLike, reset: bool, **options: Any) -> NDArray[np.floating]:
        if reset:
            self._require_parameters()
        with _in_one_line():
            dtypes = [np.float64, np.float32]
            x: NDArray[np.floating] = validate_data(
                self, X, reset=reset, dtype=dtypes, ensure_all_finite=False, **options
            )
            return x

    def save(self, folder: str | Path) -> None:
        """Write the calibrator as a folder: ``calibrator.json`` and safetensors, whole or not at all."""
        with atomic_folder(folder) as aside:
            self.write(aside)

    def write(self, folder: Path) -> None:
        """As ``save``, into an existing folder."""
        module, provenance = self.map, self.provenance
        save_tensors({name: tensor.contiguous() for name, tensor in module.state_dict().items()}, folder / TENSORS)
        save_file(self.moments_.arrays(), folder / MOMENTS)
        hashes = provenance.text_hashes if provenance else None
        if hashes is not None:
            save_file({"hashes": hashes}, folder / TEXT)
        record = {
            "format": 1,
            "class": type(self).__name__,
            "parameters": self.recorded(),
            "map": {"class": type(module).__name__, **module.spec()},
            "dim_in": self.dim_in,
            "dim_out": self.dim_out,
            "n": self.moments_.n,
            "encoder": dict(provenance.encoder) if provenance else None,
            "labels": list(provenance.labels) if provenance else [],
            "text_keys": None if hashes is None else digest(hashes),
            "facts": self.facts_,
            "versions": {name: version(name) for name in VERSIONED},
            "sha256": checksums(folder, "*.safetensors"),
        }
        write_record(folder / RECORD, record)

    @property
    def _n_features_out(self) -> int:
        return self.dim_out

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


@contextmanager
def _in_one_line() -> Iterator[None]:
    """What scikit-learn says of an array, without its line breaks."""
    try:
        yield
    except ValueError as error:
        raise DataError(shorten(str(error), 400)) from None


def load_calibrator(folder: str | Path) -> AbstractCalibrator:
    """Read a calibrator folder.

    Raises:
        DataError: If the folder is missing, incomplete, damaged, or of a later format; the message names the file.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError(
            f"A calibrator folder was expected at {folder}, but there is none. Give the folder that save() wrote."
        )
    record = read_record(folder / RECORD, CalibratorRecord, "calibrator", SAVE)
    belong = {TENSORS, MOMENTS, *([TEXT] if record["text_keys"] else [])}
    require_whole(folder / RECORD, record["sha256"], belong, "calibrator")
    from bertflow.calibration.spelling import CALIBRATORS
    from bertflow.calibration.stand_in import LinearStandIn

    kinds: list[type[AbstractCalibrator]] = [LinearStandIn, *(kind.make for kind in CALIBRATORS.values())]
    by_class = {kind.__name__: kind for kind in kinds}
    hashes = read_arrays(folder / TEXT, {"hashes": ("uint64", 1)}, do=SAVE)["hashes"] if TEXT in belong else None
    try:
        calibrator = lookup("calibrator class", by_class, record["class"])(**record["parameters"])
        calibrator.map_ = filled_map(record["map"], read_arrays(folder / TENSORS, do=SAVE))
        calibrator.moments_ = Moments.from_arrays(read_arrays(folder / MOMENTS, Moments.ARRAYS, Moments.OPTIONAL, SAVE))
    except (TypeError, RuntimeError, UsageError) as error:
        raise DataError(f"The calibrator folder {folder} is damaged ({reason_of(error)}). {SAVE}") from None
    widths = record["dim_in"], calibrator.map_.dim_in, calibrator.moments_.dim
    if len(set(widths)) > 1 or (hashes is not None and digest(hashes) != record["text_keys"]):
        raise DataError(f"The calibrator folder {folder} is damaged (its files do not belong together). {SAVE}")
    calibrator.n_features_in_, calibrator.facts_ = record["dim_in"], record["facts"]
    made_by, labels = record["encoder"], tuple(record["labels"])
    calibrator.provenance_ = None if made_by is None else Provenance(made_by, hashes, labels)
    return calibrator
