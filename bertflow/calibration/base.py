"""What every calibrator has in common.

A calibrator is a scikit-learn transformer: how it is fitted. Its ``map`` is a torch module: what it does, row by row.

    fit:        raw embeddings (n, dim_in) -> moments_ and map_
    transform:  (n, dim_in) -> (n, dim_out), by the map

If all rows of the fit had unit length, the map brings every row to unit length first (``bertflow.maps.UnitMap``).
The map is of documents alone. Fitted with queries, it moves them by the gap between the two means first. It keeps the
moments of the fit, so that each closed form can be refitted later, exactly, without the text; and, where known, its
provenance.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from textwrap import shorten
from typing import Any, ClassVar, Self
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import Tags
from sklearn.utils.validation import check_array, check_is_fitted, validate_data
from torch import Tensor

from bertflow.array_types import Float64, Floats
from bertflow.calibration.same_space import require_lengths
from bertflow.calibration.saving import Provenance, write_calibrator
from bertflow.encoder.abstract import Role, SentenceEncoder, is_encoder
from bertflow.encoder.device import in_blocks
from bertflow.errors import BadRowsError, DataError, UsageError, require_between
from bertflow.files import atomic_folder
from bertflow.maps import BandMap, FittedMap, RoleMap, RowMap, UnitMap, fitted_map, gap_of, of_role, unit
from bertflow.moments import Moments, odd_rows, require_finite
from bertflow.registry import as_texts, lookup
from bertflow.text_keys import hash_texts

IS_QUERY: Mapping[str, bool] = {"document": False, "query": True}
"""Each role of a row, and whether queries have it."""
FLOATS: Mapping[str, Any] = {"dtype": [np.float64, np.float32], "ensure_all_finite": False}
"""Arrays that scikit-learn lets through: what is not finite is refused here, by its row."""
_DENSITIES: "WeakKeyDictionary[AbstractDensity, tuple[tuple[Any, Any], Any]]" = WeakKeyDictionary()
"""What each was fitted to, and its density: the eigenvectors behind it take longer than a text."""


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
    n_features_in_: int

    @abstractmethod
    def _fit_map(self, x: Floats, encoder: SentenceEncoder | None, sentences: Sequence[str]) -> FittedMap:
        """The map for rows, whose moments are in ``moments_``; where known, by which encoder and text."""

    def recorded(self) -> dict[str, Any]:
        """The parameters as they are recorded."""
        return dict(self.get_params())

    @property
    def spelled(self) -> str:
        """Class and parameters, as descriptions name it."""
        parameters = ", ".join(f"{key}={value!r}" for key, value in self.recorded().items())
        return f"{type(self).__name__}({parameters})"

    def _parameters(self) -> list[Any]:
        """The parameters of a fit, of the right types and in range; those that are not are refused."""
        return []

    def require_encoder(self, description: Mapping[str, Any] | None) -> None:
        """Refuse an encoder that it is not for, by its ``describe()`` (None: bare embeddings); by default none is."""

    def fit(self, X: ArrayLike, y: None = None, queries: ArrayLike | None = None) -> Self:
        """Fit to raw embeddings (n, dim_in), n >= 2, of documents if ``queries`` are given; ``y`` is ignored.

        Raises:
            DataError: For a NaN, an infinity, fewer than two rows, rows that are all equal, or a largest number outside
                of ``bertflow.moments.SCALE``.
            UsageError: For a parameter of a wrong type or out of range.
        """
        self.require_encoder(None)
        self._fit(X, queries)
        return self

    def fit_sentences(
        self,
        encoder: SentenceEncoder,
        sentences: list[str],
        progress: bool | None = None,
        queries: Sequence[str] | None = None,
    ) -> Self:
        """Fit to the distinct ``sentences`` as ``encoder`` embeds them, and remember both; perhaps also to queries."""
        if not is_encoder(encoder):
            raise UsageError(
                f"fit_sentences takes an encoder, then sentences; got {type(encoder).__name__}, "
                f"{type(sentences).__name__}. For embeddings use fit(x)."
            )
        self.require_encoder(encoder.describe())
        require_between(1, encoder.dim, n_components=getattr(self, "n_components", None))
        distinct = list(dict.fromkeys(as_texts(sentences)))
        asked = None if queries is None else encoder.encode_query(queries, progress=progress)
        self._fit(encoder.encode(distinct, progress=progress), asked, encoder, distinct)
        return self

    def _fit(
        self,
        X: ArrayLike,
        queries: ArrayLike | None,
        encoder: SentenceEncoder | None = None,
        sentences: Sequence[str] = (),
    ) -> None:
        x = self._validated(X, reset=True, ensure_min_samples=2)
        asked = None if queries is None else self._validated(queries, reset=False)
        self.moments_, self.provenance_, self.facts_ = moments_of_roles(x, asked), None, {}
        if encoder is not None:
            self.provenance_ = Provenance.of(encoder.describe(), hash_texts(sentences))
        self._keep(self._fit_map(x, encoder, sentences))

    def _keep(self, fitted: FittedMap) -> None:
        """Take the map that was fitted."""
        self.map_ = self.with_gap(fitted, self.moments_.gap)

    def with_gap(self, fitted: FittedMap, gap: Float64 | None) -> RowMap:
        """A map of rows that are treated as those of the fit: unit length, then for queries the gap."""
        by_role = fitted if gap is None else RoleMap(fitted, gap)
        return UnitMap(by_role).eval() if self.moments_.unit else by_role.eval()

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
    def has_roles(self) -> bool:
        """Whether queries are moved by a mean of their own."""
        return gap_of(self.map) is not None

    @property
    def provenance(self) -> Provenance | None:
        """What it was fitted on, or None when that is unknown."""
        check_is_fitted(self, "map_")
        return self.provenance_

    def forget_text(self) -> Self:
        """Forget the hashes of the text it was fitted on, so no saved file holds them; ``seen`` becomes unknown."""
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

    def transform(self, X: ArrayLike, role: Role = "document") -> Floats:
        """Calibrate rows (n, dim_in) -> (n, dim_out); float32 stays float32, float64 stays float64.

        The role, document or query, matters where it was fitted on both. Rows of unit length are a ``DataError``
        where those of the fit were far from it.
        """
        forward = of_role(self.map, lookup("role", IS_QUERY, role))
        x = self._validated(X, reset=False)
        require_lengths(x, self.moments_)
        return self._mapped(forward, x)

    def inverse_transform(self, X: ArrayLike) -> Floats:
        """Back to raw embeddings (n, dim_out) -> (n, dim_in); directions that were left out come back as their mean.

        With roles rows are of documents. Where those of the fit had unit length, those that come back have it, too.

        Raises:
            DataError: If the width is not ``dim_out``.
            UsageError: If there is no inverse, since lengths are lost.
        """
        with _in_one_line():
            z = check_array(X, **FLOATS, allow_nd=True, ensure_2d=False)
        if z.ndim != 2 or z.shape[1] != self.dim_out:
            raise DataError(f"Calibrated embeddings of shape (n, {self.dim_out}) were expected, got {z.shape}.")
        return self._mapped(self.map.inverse, z)

    def _mapped(self, function: Callable[[Tensor], Tensor], x: Floats) -> Floats:
        require_finite(x)
        mapped = in_blocks(function, x)  # a flow is float32; what comes in as float64 goes out as float64
        if not len(odd := odd_rows(mapped)):
            return mapped
        with np.errstate(over="ignore"):  # float32 may not hold a number on the way
            mapped[odd] = in_blocks(function, x[odd].astype(np.float64))
        far = (
            f"in {mapped.dtype}: it is too far from the {self.moments_.n:,} rows that {type(self).__name__} was "
            f"fitted on. Leave it out, or fit on such rows{', or give float64' if x.dtype == np.float32 else ''}."
        )
        found = {row: np.atleast_1d(mapped[row]) for row in odd[odd_rows(mapped[odd])].tolist()}
        if bad := {row: f"comes out as {one[~np.isfinite(one)][0]} {far}" for row, one in found.items()}:
            raise BadRowsError(bad, "Row {} {}".format(*min(bad.items())))
        return mapped

    def _validated(self, X: ArrayLike, reset: bool, **options: Any) -> Floats:
        if reset:
            self._parameters()
        with _in_one_line():
            return np.asarray(validate_data(self, X, reset=reset, **FLOATS, **options))

    def save(self, folder: str | Path) -> None:
        """Write the calibrator as a folder: ``calibrator.json`` and safetensors, whole or not at all."""
        with atomic_folder(folder) as aside:
            self.write(aside)

    def write(self, folder: Path) -> None:
        """Do what ``save`` does, in an existing folder."""
        write_calibrator(self, folder)

    @property
    def _n_features_out(self) -> int:
        return self.dim_out

    def __sklearn_tags__(self) -> Tags:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


class AbstractDensity(AbstractCalibrator):
    """A calibrator that is a density: it can say how likely a row is."""

    def _density(self) -> Any:
        """The map that turns the density into a standard normal one: by default the fitted map, without its bands."""
        module = fitted_map(self.map)
        return module.inner if isinstance(module, BandMap) else module

    def score_samples(self, X: ArrayLike) -> Floats:
        """Log density of each row (n,), in nats, within the span of the directions that are not null.

        Where the rows of the fit had unit length, it is that of the space around the sphere, not one on the sphere.
        """
        x = self._validated(X, reset=False)
        fitted = self.map, self.moments_  # not fitted is said here
        kept = _DENSITIES.get(self)
        if kept is None or any(one is not other for one, other in zip(kept[0], fitted, strict=True)):
            kept = _DENSITIES[self] = fitted, self._density()
        return self._mapped(lambda rows: kept[1].log_prob(unit(rows) if self.moments_.unit else rows), x)

    def score(self, X: ArrayLike, y: None = None) -> float:
        """Mean log density of the rows, in nats."""
        densities = self.score_samples(X).astype(np.float64)
        return float((densities / len(densities)).sum())  # a sum of huge ones may overflow


def moments_of_roles(x: Floats, queries: Floats | None) -> Moments:
    """The moments of documents and, role by role, of queries: brought to unit length where all documents have it."""
    moments = Moments.of(x)
    return moments if queries is None else moments.with_queries(Moments.of(scaled_as(moments, queries)))


def scaled_as(moments: Moments, rows: Floats) -> Floats:
    """Other rows (n, dim), brought to unit length where all rows of the moments have it."""
    return unit(torch.from_numpy(np.array(rows))).numpy() if moments.unit else rows


@contextmanager
def _in_one_line() -> Iterator[None]:
    """What scikit-learn says of an array, without its line breaks."""
    try:
        yield
    except ValueError as error:
        raise DataError(shorten(str(error), 400)) from None
