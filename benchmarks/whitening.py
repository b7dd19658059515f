"""Whitening beside scikit-learn's PCA(whiten=True): fit, transform, memory; and from a store on disk.

    python benchmarks/whitening.py [--rows 100000] [--width 768] [--rounds 5] [--folder DIR]

Both get the same random rows in float32, one thread, and take turns; the medians of ratios of processor time are
printed. We compute moments in float64, whatever the rows are; scikit-learn computes in the precision of the rows, so
the same ratio is given for rows in float64 as well. Its solver is the one that it chooses by itself (printed). Memory
is the peak of anonymous memory above what was there before, over the size of the rows. A store is read from a disk, or
from what the system remembers of it. What was found is kept in whitening.json by processor, and in docs/speed.md. Two
minutes on a quiet core, and 1.5 GB. Linux only.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import ctypes
import datetime
import json
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import sklearn
import torch
from bench import as_json
from bench_page import PAGE, processor_name, table, write_section
from bench_timing import Result, ratio, take_turns
from growth import random_rows
from numpy.typing import NDArray
from sklearn.decomposition import PCA
from store_memory import AtOnce, Peak, sentences

from bertflow import Whitening
from bertflow import fit as fit_calibrator
from bertflow import transform as calibrate
from bertflow.errors import NullDirectionWarning
from bertflow.files import write_json
from bertflow.store.store import EmbeddingStore

HERE = Path(__file__)
FIT, TRANSFORM = 2.0, 1.2
"""At most so many times as long as scikit-learn."""
Calls = dict[str, Callable[[], object]]


def trim() -> None:
    """Give back memory that is not used."""
    ctypes.CDLL(None).malloc_trim(0)


def against(what: str, x: NDArray[np.floating], calls: Calls, rounds: int, target: float | None) -> Iterator[Result]:
    """Time and memory of "ours" over those of "theirs"."""
    times, facts = take_turns(calls, rounds), {}
    for name, call in calls.items():
        trim()  # what earlier calls have left would hide what this one takes
        with Peak() as peak:
            kept = call()
        del kept
        facts |= {
            f"{name}_s": round(times[name].milliseconds() / 1e3, 3),
            f"{name}_memory": round(peak.bytes / x.nbytes, 2),
        }
    yield Result(f"{what}: whitening / scikit-learn", *ratio(times["ours"], times["theirs"]), target, True, facts=facts)
    for name, who in {"ours": "whitening", "theirs": "scikit-learn"}.items():
        yield Result(f"{what}: memory of {who} / size of the rows", facts[f"{name}_memory"])


def in_memory(x: NDArray[np.float32], rounds: int) -> Iterator[Result]:
    """Rows that are an array."""
    ours, theirs = Whitening().fit(x), PCA(whiten=True).fit(x)
    shape, solver = f"{len(x):,} x {x.shape[1]}", theirs._fit_svd_solver
    calls: Calls = {"ours": lambda: Whitening().fit(x), "theirs": lambda: PCA(whiten=True).fit(x)}
    yield from against(f"fit, float32, {shape} ({solver})", x, calls, rounds, FIT)
    calls = {"ours": lambda: ours.transform(x), "theirs": lambda: theirs.transform(x)}
    yield from against(f"transform, float32, {shape}", x, calls, rounds, TRANSFORM)
    y = x[: len(x) // 2].astype(np.float64)
    calls = {"ours": lambda: Whitening().fit(y), "theirs": lambda: PCA(whiten=True).fit(y)}
    yield from against(f"fit, float64, {len(y):,} x {y.shape[1]} ({solver})", y, calls, rounds, None)


def on_disk(x: NDArray[np.float32], folder: Path, rounds: int) -> Iterator[Result]:
    """The same number of rows in a store."""
    EmbeddingStore.build_streamed(AtOnce(x.shape[1]), lambda: sentences(len(x)), folder / "store")
    fitted, numbers = Whitening().fit(x), iter(range(1_000_000))
    calls: Calls = {
        "fit": lambda: Whitening().fit(x),
        "fit a store": lambda: fit_calibrator(
            calibrator="whitening", store=folder / "store", output=folder / f"calibrator-{next(numbers)}"
        ),
        "transform": lambda: fitted.transform(x),
        "transform a store": lambda: calibrate(
            calibrator=folder / "calibrator-0", store=folder / "store", output=folder / f"calibrated-{next(numbers)}"
        ),
    }
    times = take_turns(calls, rounds)
    for what, then in {"fit": "from a store", "transform": "from store to store"}.items():
        trim()
        with Peak() as peak:
            calls[f"{what} a store"]()
        facts = {"seconds": round(times[f"{what} a store"].milliseconds() / 1e3, 3), "mb": round(peak.bytes / 1e6)}
        yield Result(f"{what} {then} / {what} of an array", *ratio(times[f"{what} a store"], times[what]), facts=facts)
        yield Result(f"{what} {then}: memory / size of the rows", peak.bytes / x.nbytes, facts=facts)


def main() -> None:
    """Measure, keep, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="for some 8 x rows x width x 4 bytes (default: a temporary one)")
    parser.add_argument("--print", action="store_true", help="run nothing: print what is kept, and write the page")
    options = parser.parse_args()
    path = HERE.with_suffix(".json")
    kept: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    if not options.print:
        torch.set_num_threads(1)
        warnings.simplefilter("ignore", NullDirectionWarning)
        begin = {
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "load": f"load {os.getloadavg()[0]:.1f}",
            "versions": f"NumPy {np.__version__}, scikit-learn {sklearn.__version__}, PyTorch {torch.__version__}",
        }
        with tempfile.TemporaryDirectory(dir=options.folder) as scratch:
            x = np.load(random_rows(Path(scratch), options.rows, options.width))
            rows: list[dict[str, Any]] = []
            for found in (in_memory(x, options.rounds), on_disk(x, Path(scratch), min(2, options.rounds))):
                for result in found:
                    rows.append(as_json(result))
                    print(f"{result.name}: {result.value:.3g}", dict(result.facts), flush=True)
                    kept[processor_name()] = {"whitening": {"conditions": begin, "rows": rows}}
                    write_json(path, kept)
    told = [
        f"{name}, one thread: {', '.join(str(value) for value in one['whitening']['conditions'].values())}"
        for name, one in kept.items()
    ]
    said = "\n".join([table(kept), "", *(f"* {line}" for line in told)])
    write_section(PAGE, HERE.name, said)
    print("\n" + said)


if __name__ == "__main__":
    main()
