"""Types of arrays, by what their numbers are; one name for each in all rooms."""

import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]
Floats = NDArray[np.floating]
"""Numbers of either precision."""
Int64 = NDArray[np.int64]
Intp = NDArray[np.intp]
"""Places in another array."""
Bools = NDArray[np.bool_]
Hashes = NDArray[np.uint64]
"""Hashes of texts (``bertflow.text_keys``)."""
