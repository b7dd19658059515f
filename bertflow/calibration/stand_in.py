"""A calibrator that is not fitted, but made to do what another one does."""

from bertflow.affine import AffineMap
from bertflow.calibration.calibrators import AbstractLinearCalibrator
from bertflow.errors import UsageError


class LinearStandIn(AbstractLinearCalibrator):
    """An affine map that replaces another calibrator; made by ``linearize``.

    Args:
        of: The calibrator that it replaces.
        r2: Share of the variance of z, over all directions, that it explains on held-out text.
    """

    def __init__(self, of: str = "", r2: float = 0.0) -> None:
        self.of = of
        self.r2 = r2

    def _affine(self) -> AffineMap:
        raise UsageError("A stand-in is made from a flow with linearize(system), and is not fitted to rows.")
