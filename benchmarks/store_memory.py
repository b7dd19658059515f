"""What a store costs, in memory and time.

    python benchmarks/store_memory.py [--rows N] [--dim D] [--folder DIR] [--output FILE.json]

Each part runs in a process of its own and is given by its peak of anonymous memory (RssAnon: what cannot be read again
from a file), its own start subtracted, and by its time:
seconds by the clock, which other work on the machine makes longer, and of the processor.

    embed        a stream of N distinct sentences and a tenth of repeats; an encoder that makes vectors at once, so that
                 what is measured is the store
    fit          whitening, one pass over the store; and the same over parquet
    transform    whitening and a flow, store to .npy; beside a plain copy of as many bytes, just before and just after
    checksum     XXH3, by which a shard is compared when it is first read, CRC-32 and SHA-256, in MB of shards a second
                 of the processor, reading included; and what share that is of the processor time of fitting whitening
    read         random batches of 256 from the store, beside the steps of the default flow on them

Linux only.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from bertflow.encoder.abstract import AbstractEncoder

BATCH = 256
COPY = 64 * 2**20
SECONDS = 5.0


def anonymous() -> int:
    """Bytes of anonymous memory of this process."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) * 1024


class Peak:
    """The peak of anonymous memory within the block, above its start; and the seconds it took."""

    def __enter__(self) -> "Peak":
        self._start = self._most = anonymous()
        self._begin, self._cpu, self._going = time.perf_counter(), time.process_time(), True
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while self._going:
            self._most = max(self._most, anonymous())
            time.sleep(0.01)

    def __exit__(self, *_: object) -> None:
        self.seconds, self.cpu = time.perf_counter() - self._begin, time.process_time() - self._cpu
        self._going = False
        self._thread.join()
        self.bytes = self._most - self._start

    def facts(self) -> dict[str, float]:
        """Ready for JSON."""
        return {
            "anonymous_mb": round(self.bytes / 1e6, 1),
            "seconds": round(self.seconds, 1),
            "cpu_seconds": round(self.cpu, 1),
        }


class AtOnce(AbstractEncoder):
    """An encoder whose vectors cost next to nothing."""

    def __init__(self, dim: int) -> None:
        self.dim = dim
        generator = np.random.default_rng(0)
        self._turn = generator.normal(size=(dim, dim)).astype(np.float32) / np.sqrt(dim)
        self._generator = generator

    def _encode(self, sentences: list[str], *_: Any) -> np.ndarray:
        x = self._generator.standard_normal((len(sentences), self.dim), dtype=np.float32)
        return x @ self._turn + 1

    def describe(self) -> dict[str, Any]:
        """Constant."""
        return {"encoder": "at once", "pooling": "mean"}


def sentences(n: int) -> Iterator[str]:
    """``n`` distinct sentences of some 90 letters, each tenth twice."""
    for number in range(n):
        sentence = f"sentence number {number} says what sentences of a corpus say, and is about as long as they are"
        yield sentence
        if number % 10 == 0:
            yield sentence


def embed(folder: Path, n: int, dim: int) -> dict[str, Any]:
    """Memory and time of a store of ``n`` rows."""
    from bertflow.store.store import EmbeddingStore

    encoder = AtOnce(dim)
    with Peak() as peak:
        store = EmbeddingStore.build_streamed(encoder, lambda: sentences(n), folder / "store")
    assert store.n == n
    return peak.facts() | {"rows": n, "dim": dim, "sentences": len(store.row_ids)}


def fit(folder: Path, n: int, dim: int) -> dict[str, Any]:
    """Memory and time of a closed form, from the store and from parquet."""
    import_module("bertflow.runs.rows")  # what it costs to load is not what is measured
    from bertflow import fit as fit_calibrator
    from bertflow.data.vectors import write_parquet
    from bertflow.store.store import EmbeddingStore

    store = EmbeddingStore.open(folder / "store")
    rows = np.concatenate(list(store.blocks(stop=n // 10)))
    write_parquet(folder / "tenth.parquet", rows)
    del rows
    facts: dict[str, Any] = {}
    given = {"store": {"store": folder / "store"}, "parquet_tenth": {"vectors": folder / "tenth.parquet"}}
    for name, source in given.items():
        with Peak() as peak:
            fit_calibrator(calibrator="whitening", output=folder / f"by-{name}", **source)
        facts[name] = peak.facts()
    return facts


def transform(folder: Path, n: int, dim: int) -> dict[str, Any]:
    """Time of calibrating rows, beside that of copying as many bytes."""
    import_module("bertflow.runs.rows")
    from bertflow import transform as calibrate

    source, size = folder / "store", n * dim * 4 / 1e6
    write_flow(folder)
    facts: dict[str, Any] = {"mb": round(size)}
    for name in ("by-store", "by-flow"):
        before, output = copy(folder), folder / "z.npy"
        with Peak() as peak:
            calibrate(calibrator=folder / name, store=source, output=output, bare=True)
        after = copy(folder)
        facts[name.removeprefix("by-")] = peak.facts() | {
            "mb_per_s": round(size / peak.seconds),
            "mb_per_cpu_s": round(size / peak.cpu),
            "copy_mb_per_s": [round(size / before), round(size / after)],
        }
        output.unlink()
    return facts


def write_flow(folder: Path) -> None:
    """A flow of the default shape, hardly trained: its speed does not depend on its weights."""
    from bertflow.calibration.calibrators import FlowCalibrator
    from bertflow.store.store import EmbeddingStore

    x = next(iter(EmbeddingStore.open(folder / "store").blocks()))
    FlowCalibrator(n_components="all", trainer={"max_steps": 5}).fit(x).save(folder / "by-flow")


def copy(folder: Path) -> float:
    """Seconds for reading all shards and writing them into one file, safely on disk."""
    begin = time.perf_counter()
    with (folder / "copy").open("wb") as target:
        for shard in sorted((folder / "store" / "shards").iterdir()):
            with shard.open("rb") as file:
                shutil.copyfileobj(file, target, COPY)
        target.flush()
        os.fsync(target.fileno())
    seconds = time.perf_counter() - begin
    (folder / "copy").unlink()
    return seconds


def checksum(folder: Path, n: int, dim: int) -> dict[str, Any]:
    """Speed of checksums over the shards, and the share of a fit; the shards are in memory."""
    import_module("bertflow.runs.rows")
    from bertflow import fit as fit_calibrator
    from bertflow.files import file_sha256, file_xxh3

    shards = sorted((folder / "store" / "shards").iterdir())
    kinds = {"xxh3": file_xxh3, "crc32": lambda path: zlib.crc32(path.read_bytes()), "sha256": file_sha256}
    seconds = {}
    for name, kind in kinds.items():
        begin = time.process_time()
        for shard in shards:
            kind(shard)
        seconds[name] = time.process_time() - begin
    size = sum(shard.stat().st_size for shard in shards) / 1e6
    begin = time.process_time()
    fit_calibrator(calibrator="whitening", output=folder / "by-checksum", store=folder / "store")
    whole = time.process_time() - begin
    share = {f"{name}_share_of_fit": round(one / whole, 4) for name, one in seconds.items()}
    return {f"{name}_mb_per_cpu_s": round(size / one) for name, one in seconds.items()} | share


def read(folder: Path, n: int, dim: int) -> dict[str, Any]:
    """Rows a second from the store in random batches, and rows a second that the default flow trains on."""
    import torch

    from bertflow.store.store import EmbeddingStore
    from bertflow.training.fitting import FlowFit, threads_for
    from bertflow.training.recipe import resolve
    from bertflow.training.rows import ShuffledBatches

    store = EmbeddingStore.open(folder / "store")
    facts: dict[str, Any] = {"batch": BATCH}
    for name, size in (("random_batches_of_256", BATCH), ("random_batches_of_2048", 2048)):
        batches = cycle(ShuffledBatches(store, np.arange(n), size, seed=0))
        facts[f"{name}_rows_per_s"] = rate(lambda batches=batches: next(batches), size)
    # Read from the disk: what the system remembers of the files is let go first (a virtual disk may remember still).
    forget(folder / "store" / "shards")
    cold = cycle(ShuffledBatches(EmbeddingStore.open(folder / "store"), np.arange(n), BATCH, seed=1))
    facts["cold_random_batches_of_256_rows_per_s"] = rate(lambda: next(cold), BATCH, clock=time.perf_counter)
    fit = FlowFit(np.concatenate(list(store.blocks(stop=20_000))), resolve("default", {}))
    flow = fit.module.flow
    optimizer = torch.optim.Adam(flow.glow.parameters(), lr=1e-4, fused=True)
    batch = torch.from_numpy(store.rows(np.arange(BATCH)))

    def step() -> None:
        optimizer.zero_grad()
        loss = -flow.log_prob(batch).mean()
        loss.backward()
        optimizer.step()

    with threads_for(BATCH * dim):  # as a fit does
        facts["flow_step_rows_per_s"] = rate(step, BATCH)
    ratio = facts["random_batches_of_256_rows_per_s"] / facts["flow_step_rows_per_s"]
    return facts | {"store_over_flow": round(ratio, 1)}


def cycle(batches: Any) -> Iterator[Any]:
    """One epoch after the other."""
    for epoch in count():
        batches.set_epoch(epoch)
        yield from batches


def forget(folder: Path) -> None:
    """Let go of the pages of some files."""
    os.sync()
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def rate(call: Callable[[], object], rows: int, clock: Callable[[], float] = time.process_time) -> int:
    """Rows a second, of the processor unless another clock is given, after a warm-up."""
    for _ in range(5):
        call()
    begin, wall, calls = clock(), time.perf_counter(), 0
    while time.perf_counter() - wall < SECONDS:
        call()
        calls += 1
    return round(calls * rows / (clock() - begin))


PARTS: dict[str, Callable[[Path, int, int], dict[str, Any]]] = {
    "embed": embed,
    "fit": fit,
    "transform": transform,
    "checksum": checksum,
    "read": read,
}


def main() -> None:
    """Run every part in its own process, print and keep what it found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=384)
    parser.add_argument("--folder", type=Path, help="for some 5 x rows x dim x 4 bytes (default: a temporary one)")
    parser.add_argument("--output", type=Path, default=Path(__file__).with_suffix(".json"))
    parser.add_argument("--part", choices=PARTS, help="only this one, in this process (default: all)")
    options = parser.parse_args()
    if options.part:
        options.output.write_text(json.dumps(PARTS[options.part](options.folder, options.rows, options.dim)))
        return
    with tempfile.TemporaryDirectory() as scratch:
        folder, found = options.folder or Path(scratch), {}
        for part in PARTS:
            given = ["--rows", str(options.rows), "--dim", str(options.dim), "--folder", str(folder)]
            result = Path(scratch) / "part.json"
            subprocess.run([sys.executable, __file__, *given, "--part", part, "--output", str(result)], check=True)
            found[part] = json.loads(result.read_text())
            print(json.dumps({part: found[part]}), flush=True)
    options.output.write_text(json.dumps({"threads": os.environ.get("OMP_NUM_THREADS"), **found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
