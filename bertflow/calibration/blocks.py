"""Joined layers, each calibrated alone: for poolings that are a concatenation, as concat(0,3).

    x = [x_1, x_2]      z = [calibrate_1(x_1), calibrate_2(x_2)],   optionally whitened once more and cut

The layers of an encoder know different things. Calibrated together, the one of large variance decides; alone, each
keeps its own. The moments of a layer are a block of those of the joined rows, so nothing is read twice.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from bertflow.affine import AffineMap, whitening_map
from bertflow.calibration.closed_forms import CLOSED_FORMS, AbstractClosedForm
from bertflow.calibration.parameters import read_kind, whole_number
from bertflow.encoder.pooling import parse_pooling
from bertflow.errors import DataError, UnknownNameError, UsageError, logger
from bertflow.maps import BandMap, side_by_side
from bertflow.moments import Moments


class Blocks(AbstractClosedForm):
    """Calibrates each layer of a ``concat`` pooling alone, and joins the results.

    An embedding is as wide as all layers together: two layers are twice the width of one, in memory and in an index.
    ``n_components`` brings the width down again. What is affine stays so, and is exported as one linear layer.

    Args:
        calibrator: Spelling of a closed form: whitening, whitening(64), ridge(1), two-band(0.5), ...
        n_components: Directions to keep of the joined layers, by a whitening of them; all, not whitened, by default.
            Only where ``calibrator`` is affine.
        blocks: Number of layers, all of one width. By default that of the encoder's pooling, which is known from
            ``fit_sentences``, or from the provenance of moments; bare embeddings need it.

    Source: our own measurements, benchmarks/EXPLORED.md.
    """

    def __init__(
        self, calibrator: str = "whitening", n_components: int | None = None, blocks: int | None = None
    ) -> None:
        self.calibrator = calibrator
        self.n_components = n_components
        self.blocks = blocks

    def _parameters(self) -> list[Any]:
        one = self._one()
        if self.n_components is not None and not one.row.affine:
            raise UsageError(
                f"{self.calibrator} is not affine, so the moments do not tell which {self.n_components} directions to "
                "keep. Leave n_components out, or use whitening or ridge."
            )
        named = (("n_components", self.n_components, "directions"), ("blocks", self.blocks, "layers"))
        return [value is None or whole_number(f"Blocks({name}=...)", value, 1, of) for name, value, of in named]

    def require_encoder(self, description: Mapping[str, Any] | None) -> None:
        """Refuse a pooling that is not a concatenation."""
        self._parameters()
        self._count(description)

    def _one(self) -> AbstractClosedForm:
        """The calibrator of one layer."""
        if not isinstance(self.calibrator, str):
            raise UsageError(f"Blocks(calibrator=...) takes a spelling, as 'whitening', got {self.calibrator!r}.")
        name, value, named = read_kind(self.calibrator, CLOSED_FORMS, "calibrator of blocks")
        return CLOSED_FORMS[name].make(**CLOSED_FORMS[name].parameters(value), **dict(named))

    def _count(self, description: Mapping[str, Any] | None) -> int:
        """How many layers there are, by ``describe()`` of the encoder."""
        if self.blocks is not None:
            return self.blocks
        if description is None:
            raise UsageError(
                "Blocks needs the number of joined layers, which bare embeddings do not tell. Fit it with an encoder "
                "or a store whose pooling is a concatenation, or give it as Blocks(blocks=2)."
            )
        spelling = str(description.get("pooling"))
        try:
            pooling = parse_pooling(spelling)
        except UnknownNameError:
            pooling = None
        if pooling is None or pooling.join != "concat":
            raise UsageError(
                f"Blocks calibrates each layer of a concatenation alone, but the pooling is {spelling}. Use a pooling "
                f"as concat(1,-1), or {self.calibrator} without blocks."
            )
        return len(pooling.layers)

    def closed_form(self, moments: Moments) -> AffineMap | BandMap:
        """The maps of all layers, side by side."""
        count = self._count(self.provenance_.encoder if self.provenance_ else None)
        width, rest = divmod(moments.dim, count)
        if rest:
            raise DataError(f"{count} layers of one width cannot be {moments.dim} wide. Correct blocks={count}.")
        parts = [moments.part(start, start + width) for start in range(0, moments.dim, width)]
        joined = side_by_side([self._one().closed_form(part) for part in parts])
        if self.n_components is not None and isinstance(joined, AffineMap):
            return _reduced(joined, moments, self.n_components)
        said = "%d layers are joined: embeddings are %d wide, those of one layer %d."
        logger.info(said, count, joined.dim_out, width)
        return joined


def _reduced(joined: AffineMap, moments: Moments, n_components: int) -> AffineMap:
    """The joined layers, whitened and cut: still one affine map."""
    weight, inverse = joined.weight.numpy(), joined.inverse_weight.numpy()
    mean = (moments.mean - joined.shift.numpy()) @ weight
    scatter = weight.T @ moments.scatter @ weight
    np.fill_diagonal(scatter, scatter.diagonal().clip(0))  # rounding can leave a variance just below
    cut = whitening_map(Moments(moments.n, mean, scatter), n_components)
    return AffineMap(moments.mean, weight @ cut.weight.numpy(), cut.inverse_weight.numpy() @ inverse)
