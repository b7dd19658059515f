"""The cheap competitors of a flow, as rows: a name, and a function of the moments."""

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from bertflow.affine import AffineMap, all_but_the_top_map, center_map, identity_map, whitening_map
from bertflow.calibration.closed_forms import AbstractClosedForm
from bertflow.calibration.spelling import parse_calibrator
from bertflow.moments import Moments


def whitening_at_most(moments: Moments, dim_out: int) -> AffineMap:
    """Whitening to ``dim_out`` directions, or to all that there are."""
    rank = whitening_map(moments).dim_out
    return whitening_map(moments, min(dim_out, rank))


def spelled(spelling: str, moments: Moments) -> torch.nn.Module:
    """A closed form of the package."""
    calibrator = parse_calibrator(spelling)
    assert isinstance(calibrator, AbstractClosedForm)
    return calibrator.fit_moments(moments).map


CLOSED_FORMS: Mapping[str, Callable[[Moments], AffineMap]] = {
    "raw": lambda moments: identity_map(moments.dim),
    "center": center_map,
    **{f"abtt({k})": partial(all_but_the_top_map, k=k) for k in (1, 3, 7, 10)},
    "whitening": whitening_map,
    **{f"whitening({k})": partial(whitening_at_most, dim_out=k) for k in (256, 192, 128, 96, 64)},
}
"""What a recipe is compared with."""
ALSO_TRIED: Mapping[str, Callable[[Moments], torch.nn.Module]] = {
    **{name: partial(spelled, name) for name in ("ridge(0.25)", "ridge(1)", "ridge(4)")},
    **{name: partial(spelled, name) for name in ("two-band(0.5)", "two-band(1)", "two-band(2)")},
}
"""The same of the bands and the ridge."""


def applied(fitted: torch.nn.Module, x: NDArray[np.floating]) -> NDArray[np.float32]:
    """The rows of ``x`` through a map."""
    with torch.inference_mode():
        z: NDArray[np.float32] = fitted(torch.from_numpy(np.array(x))).numpy()
    return z
