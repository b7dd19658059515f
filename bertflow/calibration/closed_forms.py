"""The closed forms: calibrators that are functions of the first two moments.

    moments -> map

A row names the function (``bertflow.affine``); a class has its parameter, as in scikit-learn. Each can also be fitted
batch by batch, merged over machines, and refitted without the text.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn, Self

from numpy.typing import ArrayLike

from bertflow.affine import AffineMap, all_but_the_top_map, center_map, ridge_map, standardize_map, whitening_map
from bertflow.calibration.base import AbstractCalibrator, AbstractDensity, moments_of_roles
from bertflow.calibration.parameters import FRACTION, CalibratorKind, real_number, whole_number
from bertflow.calibration.saving import Provenance
from bertflow.errors import UsageError
from bertflow.maps import BandMap, RowMap, two_bands
from bertflow.moments import Moments


@dataclass(frozen=True)
class ClosedForm:
    """How a map is read off the moments.

    Attributes:
        read: The moments, then the parameters of the calibrator if it has any -> the map.
        parameter: Name of that parameter.
        least: Smallest number of directions that the parameter may be; None for a parameter that is not a count.
        optional: Whether the parameter may be None.
        affine: Whether the map is affine.
        share: Name of a second parameter, a number from 0 to 1; empty where there is none.
    """

    read: Callable[..., AffineMap | BandMap]
    parameter: str = ""
    least: int | None = None
    optional: bool = False
    affine: bool = True
    share: str = ""


class AbstractClosedForm(AbstractCalibrator):
    """A calibrator that is a function of the first two moments alone: of its row, and its parameter if it has one."""

    row: ClassVar[ClosedForm]

    def _parameters(self) -> list[Any]:
        row, own, value = self.row, type(self).__name__, vars(self).get(self.row.parameter)
        if row.parameter and not (value is None and row.optional):
            where = f"{own}({row.parameter}=...)"
            value = real_number(where, value) if row.least is None else whole_number(where, value, row.least)
        share = [real_number(f"{own}({row.share}=...)", vars(self)[row.share], 1)] if row.share else []
        return [value, *share] if row.parameter else share

    def closed_form(self, moments: Moments) -> AffineMap | BandMap:
        """The map, read off moments."""
        return self.row.read(moments, *self._parameters())

    def _fit_map(self, *_: object) -> AffineMap | BandMap:
        return self.closed_form(self.moments_)

    def fit_moments(self, moments: Moments, provenance: Provenance | None = None) -> Self:
        """Fit to moments that were gathered elsewhere: streamed, merged over machines, or those of a calibrator."""
        if not isinstance(moments, Moments):
            raise UsageError(f"fit_moments takes Moments, got {type(moments).__name__}. For embeddings use fit(x).")
        self._parameters()
        self.moments_, self.provenance_, self.facts_ = moments, provenance, {}
        self.n_features_in_ = moments.dim
        self._keep(self.closed_form(self.moments_))
        return self

    def partial_fit(self, X: ArrayLike, y: None = None, queries: ArrayLike | None = None) -> Self:
        """Add rows (n, dim_in) to what was seen; the map is read off the moments when it is next used."""
        self.require_encoder(None)
        first = not hasattr(self, "moments_")
        x = self._validated(X, reset=first)
        seen = moments_of_roles(x, None if queries is None else self._validated(queries, reset=False))
        self.moments_ = seen if first else self.moments_.merge(seen)
        self.provenance_, self.facts_ = None, {}
        self.__dict__.pop("map_", None)
        return self

    @property
    def map(self) -> RowMap:
        """The fitted row-wise torch module, (n, dim_in) -> (n, dim_out)."""
        if hasattr(self, "moments_") and not hasattr(self, "map_"):
            self._keep(self.closed_form(self.moments_))
        return super().map


class Center(AbstractClosedForm):
    """Subtract the mean."""

    row = ClosedForm(center_map)
    divides = False


class Standardize(AbstractDensity, AbstractClosedForm):
    """Mean zero and variance one in every coordinate; ``score_samples`` is the Gaussian with diagonal covariance.

    Source: "SN" of Li et al. 2020, arXiv:2011.05864, table 5.
    """

    row = ClosedForm(standardize_map)


class AllButTheTop(AbstractClosedForm):
    """Center, then take out the ``k`` directions of largest variance; they do not come back with the inverse.

    Args:
        k: How many directions to take out.

    Source: Mu & Viswanath 2018, arXiv:1702.01417; "NATSV" of Li et al. 2020, arXiv:2011.05864, table 5.
    """

    row = ClosedForm(all_but_the_top_map, "k", least=0)
    divides = False

    def __init__(self, k: int = 3) -> None:
        self.k = k


class Whitening(AbstractDensity, AbstractClosedForm):
    """Zero mean, identity covariance: directions of largest variance first, null directions left out.

    ``score_samples`` is the Gaussian with full covariance, whatever the parameters: reduction keeps the density.

    Args:
        n_components: How many directions to keep; None keeps the rank.
        power: Directions are divided by their standard deviation to this power: 1 whitens, 0 only rotates, 0.5 leaves
            half of the spectrum in place, on a logarithmic scale.

    Source: Su et al. 2021, arXiv:2103.15316, algorithm 1.
    """

    row = ClosedForm(whitening_map, "n_components", least=1, optional=True, share="power")

    def __init__(self, n_components: int | None = None, power: float = 1.0) -> None:
        self.n_components = n_components
        self.power = power

    def recorded(self) -> dict[str, Any]:
        """The parameters as they are recorded: the power only where it is not that of whitening."""
        return {name: value for name, value in super().recorded().items() if (name, value) != ("power", 1.0)}

    def _density(self) -> AffineMap:
        return whitening_map(self.moments_)


class Ridge(AbstractDensity, AbstractClosedForm):
    """Whitening that lifts directions of small variance less: ``z = (x - m) V (lambda + r median(lambda))^(-1/2)``.

    Here m is the mean; the columns of V are the directions, and lambda their variances. Null directions are left out.
    ``score_samples`` is the Gaussian whose covariance is that of the rows plus r median variances in every kept
    direction, a density of its own, and wider than that of ``Whitening``.

    Args:
        r: The ridge, in medians of the variances: 0 is whitening.

    Source: benchmarks/EXPLORED.md, our own work; the covariance: Friedman 1989, "Regularized discriminant analysis".
    """

    row = ClosedForm(ridge_map, "r")

    def __init__(self, r: float = 1.0) -> None:
        self.r = r


class TwoBand(AbstractClosedForm):
    """Whitening, in two bands of unit length: ``z = [u(y_1..k), sqrt(c) u(y_k+1..)]``, with ``u(y) = y / |y|``.

    Here y are the whitened coordinates by falling variance, and k is a quarter of them, at least 1. The cosine of two
    rows is ``(cos_head + c cos_tail) / (1 + c)``: the many directions of small variance count as much as ``c`` says. It
    is not affine, has no inverse (the lengths are lost) and no density. A band that is zero, as for a row that is the
    mean, stays zero.

    Args:
        c: Weight of the second band; 0 takes it out, 1 makes both equal.

    Source: our own measurements, benchmarks/EXPLORED.md.
    """

    row = ClosedForm(lambda moments, c: two_bands(whitening_map(moments), c), "c", affine=False)

    def __init__(self, c: float = 0.5) -> None:
        self.c = c


class LinearStandIn(AbstractCalibrator):
    """An affine map that replaces another calibrator; made by ``linearize``.

    Args:
        of: The calibrator that it replaces.
        r2: Share of the variance of z, over all directions, that it explains on held-out text.
    """

    def __init__(self, of: str = "", r2: float = 0.0) -> None:
        self.of = of
        self.r2 = r2

    def _fit_map(self, *_: object) -> NoReturn:
        raise UsageError("A stand-in is made from a flow with linearize(system), and is not fitted to rows.")


CLOSED_FORMS: Mapping[str, CalibratorKind[AbstractClosedForm]] = {
    "center": CalibratorKind(Center),
    "standardize": CalibratorKind(Standardize),
    "abtt": CalibratorKind(AllButTheTop, "k"),
    "whitening": CalibratorKind(Whitening, "n_components", keywords=("power",)),
    "ridge": CalibratorKind(Ridge, "r", form=FRACTION),
    "two-band": CalibratorKind(TwoBand, "c", form=FRACTION),
}
"""Every closed form, by the name that command lines and tables use."""
