"""The best affine stand-in for a flow: what loads everywhere, and what it costs.

    z = flow(x)  ~  (x - shift) @ weight          least squares on text, judged on other text

A flow is a module of ours, for which sentence-transformers asks for a flag and which many servers do not run. Where its
linear part does most of the work, a built-in ``Dense`` does almost as well; R^2 on held-out text says how much is lost.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertflow.affine import AffineMap, whitening_map
from bertflow.calibrated import CalibratedEncoder
from bertflow.calibration.linear import AbstractLinearCalibrator
from bertflow.errors import DataError, UsageError
from bertflow.moments import Moments

HELD_OUT = 0.2
"""Share of the text that R^2 is measured on."""
LEAST_ROWS = 10
"""Sentences below which a held-out R^2 says nothing."""


class LinearStandIn(AbstractLinearCalibrator):
    """An affine map in the place of another calibrator; ``linearize`` makes it.

    Args:
        of: What it stands in for.
        r2: Share of the variance of z, over all directions, that it explains on held-out text.
    """

    def __init__(self, of: str = "", r2: float = 0.0) -> None:
        self.of = of
        self.r2 = r2

    def _affine(self) -> AffineMap:
        raise UsageError("A stand-in is made from a flow with linearize(system, sentences), and is not fitted to rows.")


def linearize(
    system: CalibratedEncoder, sentences: list[str], seed: int = 0, progress: bool = False
) -> CalibratedEncoder:
    """The same encoder with an affine map in the place of its calibrator.

    Args:
        system: An encoder and its flow.
        sentences: Text to fit on; a fifth of it is held out.
        seed: Of the split.
        progress: Show a bar on stderr.

    Returns:
        Its calibrator's ``r2`` is the held-out R^2; its moments and provenance are the flow's.

    Raises:
        UsageError: If the calibrator is affine already.
        DataError: If there are too few sentences.
    """
    calibrator = system.calibrator
    if isinstance(calibrator.map, AffineMap):
        raise UsageError(f"--linearize is for a flow, but {type(calibrator).__name__} is affine already. Leave it out.")
    distinct = list(dict.fromkeys(sentences))
    if len(distinct) < LEAST_ROWS:
        raise DataError(f"A stand-in needs at least {LEAST_ROWS} sentences, got {len(distinct)}. Give more text.")
    x = system.encoder.encode(distinct, progress=progress)
    z = system.calibrate(x).astype(np.float64)
    order = np.random.default_rng(seed).permutation(len(x))
    held, fitted = np.split(order, [max(1, int(HELD_OUT * len(x)))])
    affine = least_squares(x[fitted].astype(np.float64), z[fitted])
    described = str(system.describe()["calibrator"])
    stand_in = LinearStandIn(described, r2(z[held], _apply(affine, x[held])))
    stand_in.map_, stand_in.moments_, stand_in.provenance_ = affine, calibrator.moments_, calibrator.provenance
    stand_in.n_features_in_, stand_in.facts_ = calibrator.dim_in, {"held_out": len(held), "rows": len(fitted)}
    return CalibratedEncoder(system.encoder, stand_in)


def least_squares(x: NDArray[np.float64], z: NDArray[np.float64]) -> AffineMap:
    """The affine map with the least squared error from rows x (n, dim_in) to rows z (n, dim_out).

    Directions without variance are left out, as in whitening: regression on whitened x is one product.
    """
    moments = Moments.of(x)
    white = whitening_map(moments)
    whitened: NDArray[np.float64] = (x - moments.mean) @ white.weight.numpy()
    mean = z.mean(0)
    weight = white.weight.numpy() @ (whitened.T @ (z - mean) / (whitened * whitened).sum(0)[:, None])
    inverse = np.linalg.pinv(weight)
    # z = mean + (x - moments.mean) @ weight; the mean goes into the shift as far as the weight reaches it.
    return AffineMap(moments.mean - mean @ inverse, weight, inverse)


def r2(wanted: NDArray[np.float64], got: NDArray[Any]) -> float:
    """Share of the variance of the wanted rows that the other rows explain, over all directions."""
    left = np.square(wanted - got).sum()
    return float(1 - left / np.square(wanted - wanted.mean(0)).sum())


def _apply(affine: AffineMap, x: NDArray[np.float32]) -> NDArray[np.float64]:
    shift, weight = affine.shift.numpy(), affine.weight.numpy()
    found: NDArray[np.float64] = (x - shift) @ weight
    return found
