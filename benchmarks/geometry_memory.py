"""How much memory and time do the measures of geometry take on a million embeddings?

    python benchmarks/geometry_memory.py [--rows 1000000] [--dim 768]

The rows are generated block by block whenever they are asked for, as a store would read them, so what is measured is
the memory of the measures alone. Cosines and spectra are of all rows; uniformity and hubs of a sample of 10,000.
"""

import argparse
import resource
import sys
import time

import numpy as np
from numpy.typing import NDArray

from bertflow.geometry.cloud import ROWS, Cloud
from bertflow.geometry.measures import MEASURES
from bertflow.store.store import EmbeddingStore


class GeneratedRows(EmbeddingStore):
    """A store of n rows (n, dim) of a narrow, stretched cloud, none of which is kept."""

    def __init__(self, n: int, dim: int) -> None:
        self.n, self.dim = n, dim
        self.scale = np.geomspace(1.0, 0.05, dim, dtype=np.float32)

    def __len__(self) -> int:
        return self.n

    def rows(self, indices: NDArray[np.int64]) -> NDArray[np.float32]:
        """Some rows, in the order asked for; a row is the same every time."""
        found = np.empty((len(indices), self.dim), np.float32)
        blocks = indices // ROWS
        for block in np.unique(blocks):
            drawn = np.random.default_rng(block).standard_normal((ROWS, self.dim), dtype=np.float32)
            mine = blocks == block
            found[mine] = drawn[indices[mine] % ROWS] * self.scale + 2 * self.scale
        return found


def main() -> None:
    """Measure, and print a line for each measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=768)
    options = parser.parse_args()
    before = peak_mib()
    cloud = Cloud(GeneratedRows(options.rows, options.dim))
    begin = time.perf_counter()
    for name, measure in MEASURES.items():
        start = time.perf_counter()
        value = measure.of(cloud)
        print(f"{name:<22} {value:12.4f} {time.perf_counter() - start:8.1f} s   peak {peak_mib():6.0f} MiB", flush=True)
    print(
        f"{options.rows:,} x {options.dim}: {time.perf_counter() - begin:.0f} s, peak {peak_mib():.0f} MiB of memory, "
        f"{before:.0f} of it before the first row"
    )


def peak_mib() -> float:
    """The most memory this process has held, in MiB."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10


if __name__ == "__main__":
    main()
