"""Whitening beside scikit-learn's PCA(whiten=True): fit, transform, memory; and from a store on disk.

Both get the same random rows, one thread, and take turns. We compute moments in float64, whatever the rows are;
scikit-learn computes in the precision of the rows, so the same ratio is given for rows in float64 as well. Its solver
is the one that it chooses by itself. Memory is the peak of anonymous memory above what was there before, over the size
of the rows. A store is read from a disk, or from what the system remembers of it. 1.5 GB. Linux only.
"""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from bench_timing import Result, ratio, take_turns
from growth import AtOnce, Peak, random_rows, sentences, trim
from numpy.typing import NDArray
from sklearn.decomposition import PCA

from bertflow import Whitening
from bertflow import fit as fit_calibrator
from bertflow import transform as calibrate
from bertflow.store.store import EmbeddingStore

ROWS, WIDTH = 100_000, 768
FIT, TRANSFORM = 2.0, 1.2
"""At most this many times as long as scikit-learn."""
Calls = dict[str, Callable[[], object]]


def memory(call: Callable[[], object], x: NDArray[np.floating]) -> float:
    """The peak of a call, over the size of the rows."""
    trim()  # what earlier calls have left would hide what this one takes
    with Peak() as peak:
        kept = call()
    del kept
    return round(peak.bytes / x.nbytes, 2)


def against(what: str, x: NDArray[np.floating], calls: Calls, target: float | None) -> Iterator[Result]:
    """Time and memory of whitening and of scikit-learn."""
    times = take_turns(calls)
    facts = {f"{name}_s": round(found.milliseconds() / 1e3, 3) for name, found in times.items()}
    value, wall = ratio(times["whitening"], times["scikit-learn"])
    yield Result(f"{what}: whitening / scikit-learn", value, wall, target, at_most=True, facts=facts)
    for name, call in calls.items():
        yield Result(f"{what}: memory of {name} / size of the rows", memory(call, x))


def whitening() -> Iterator[Result]:
    """Rows that are an array, and as many in a store."""
    with tempfile.TemporaryDirectory() as folder:
        x = np.load(random_rows(Path(folder), ROWS, WIDTH))
        ours, theirs = Whitening().fit(x), PCA(whiten=True).fit(x)
        for y, target in ((x, FIT), (x[: len(x) // 2].astype(np.float64), None)):
            what = f"fit, {y.dtype}, {len(y):,} x {WIDTH} ({theirs._fit_svd_solver})"
            calls: Calls = {
                "whitening": lambda y=y: Whitening().fit(y),
                "scikit-learn": lambda y=y: PCA(whiten=True).fit(y),
            }  # type: ignore[misc]
            yield from against(what, y, calls, target)
        calls = {"whitening": lambda: ours.transform(x), "scikit-learn": lambda: theirs.transform(x)}
        yield from against(f"transform, float32, {len(x):,} x {WIDTH}", x, calls, TRANSFORM)
        yield from on_disk(x, Path(folder))


def on_disk(x: NDArray[np.float32], folder: Path) -> Iterator[Result]:
    """Rows in a store, against an array of them."""
    EmbeddingStore.build_streamed(AtOnce(WIDTH), lambda: sentences(len(x)), folder / "store")
    fitted, numbers, store = Whitening().fit(x), iter(range(1_000_000)), folder / "store"

    def fit() -> None:
        fit_calibrator(calibrator="whitening", store=store, output=folder / f"calibrator-{next(numbers)}")

    def transform() -> None:
        calibrate(calibrator=folder / "calibrator-0", store=store, output=folder / f"calibrated-{next(numbers)}")

    both: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "fit from a store / fit of an array": (fit, lambda: Whitening().fit(x)),
        "transform from store to store / transform of an array": (transform, lambda: fitted.transform(x)),
    }
    for what, (stored, array) in both.items():
        times = take_turns({"stored": stored, "array": array}, 2)
        yield Result(what, *ratio(times["stored"], times["array"]))
        yield Result(f"{what.split(' /')[0]}: memory / size of the rows", memory(stored, x))
