"""How cost grows with the number of rows and with their width: embed, fit, transform, evaluate, search.

    python benchmarks/growth.py [--only fit search] [--limit SECONDS]
    python benchmarks/growth.py --once store 10000000 8           one size alone: step, rows, width

Each step runs on 1,000 to 1,000,000 rows, then at widths 128 to 1,024, from small to large, each size in a process of
its own, and stops before a size that would take more than the limit, or 6 GB. Rows are random vectors; ``embed``
runs a small BERT, ``store`` an encoder that costs nothing. Given are seconds of the processor (one thread), and the
peak of anonymous memory above that of the process before it began.

The exponent is the slope of the largest sizes, a factor of 30, on logarithmic axes. A step that grows faster in the
rows than n log n is marked, and so is memory that grows where the guides say that it does not. growth.json
is beside this file; table and picture go into docs/results/speed.md. Some 15 minutes on a quiet
machine. Linux only.
"""

import ctypes
import gc
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import numpy as np
from bench_page import PAGE, processor_name, write_section
from study import Case, Row, Study, table

from bertflow.encoder.abstract import AbstractEncoder
from bertflow.plots import curves, save_figure

ONCE = "--once"
ROWS = (1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000)
WIDTHS = (128, 256, 512, 1_024)
LIMIT = 60.0
"""Seconds of the processor that one size may take, as the one before it tells."""
SPAN = 30
"""The exponent is that of sizes from the largest down to one in this many."""
TOLERANCE = 0.15
"""By how much an exponent may exceed that of n log n: measurements have noise."""
FLAT, SETTLED = 0.1, 100_000
"""Memory with a smaller exponent is flat, from this many rows on: what is worked on at a time is then full."""
SOME = 2**26
"""Bytes that are used before each size, besides what it is expected to take."""
MOST = 6e9
"""Bytes that one size may take, as the one before it tells."""
QUESTIONS = 100
Call = Callable[[], object]
Maker = Callable[[Path, int, int], Call]
"""(An empty folder, rows, width) -> what is measured."""


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


class AtOnce(AbstractEncoder):
    """An encoder whose vectors cost next to nothing."""

    def __init__(self, dim: int) -> None:
        self.dim = dim
        self._generator = np.random.default_rng(0)
        self._turn = self._generator.normal(size=(dim, dim)).astype(np.float32) / np.sqrt(dim)

    def _encode(self, sentences: list[str], *_: Any) -> np.ndarray:
        return self._generator.standard_normal((len(sentences), self.dim), dtype=np.float32) @ self._turn

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


def random_rows(folder: Path, n: int, dim: int, name: str = "x.npy") -> Path:
    """A file of random vectors, written in blocks; their spectrum is steep, else a flow would leave them alone."""
    path, generator = folder / name, np.random.default_rng(0)
    scale = np.arange(1, dim + 1, dtype=np.float32) ** -0.5
    x = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(n, dim))
    for start in range(0, n, 8192):
        x[start : start + 8192] = scale * generator.standard_normal((min(8192, n - start), dim), dtype=np.float32)
    del x
    return path


def embed(folder: Path, n: int, dim: int) -> Call:
    """Tokenize, encode and store ``n`` sentences by a random BERT of one block."""
    import torch
    from transformers import AutoTokenizer, BertConfig, BertModel

    from bertflow.encoder.architecture import quiet_transformers
    from bertflow.encoder.embedded import embedded_encoder
    from bertflow.encoder.transformer import TransformerEncoder

    tokenizer = AutoTokenizer.from_pretrained(embedded_encoder())
    torch.manual_seed(0)
    shape = {"hidden_size": dim, "num_attention_heads": dim // 64, "intermediate_size": 4 * dim}
    model = BertModel(BertConfig(vocab_size=len(tokenizer), num_hidden_layers=1, **shape))
    with quiet_transformers():
        model.save_pretrained(folder / "model")
    tokenizer.save_pretrained(folder / "model")
    return _stored(TransformerEncoder(str(folder / "model"), pooling="mean", device="cpu"), folder, n)


def store(folder: Path, n: int, dim: int) -> Call:
    """The same by an encoder that costs nothing."""
    return _stored(AtOnce(dim), folder, n)


def _stored(encoder: Any, folder: Path, n: int) -> Call:
    from bertflow.store.store import EmbeddingStore

    return lambda: EmbeddingStore.build_streamed(encoder, lambda: sentences(n), folder / "store")


def fit(folder: Path, n: int, dim: int) -> Call:
    """Whitening, from a file of vectors."""
    from bertflow import fit as fit_calibrator

    x = random_rows(folder, n, dim)
    return lambda: fit_calibrator(calibrator="whitening", vectors=x, output=folder / "calibrator")


def fit_flow(folder: Path, n: int, dim: int) -> Call:
    """The default flow, from a file of vectors: 375 steps at most."""
    from bertflow import fit as fit_calibrator

    x = random_rows(folder, n, dim)
    return lambda: fit_calibrator(calibrator="flow", vectors=x, output=folder / "calibrator")


def transform(folder: Path, n: int, dim: int) -> Call:
    """Whitening, from a file of vectors to another."""
    from bertflow import Whitening

    return _mapped(Whitening(), folder, n, dim)


def transform_flow(folder: Path, n: int, dim: int) -> Call:
    """The default flow, hardly trained: its speed does not depend on its weights."""
    from bertflow import FlowCalibrator

    return _mapped(FlowCalibrator(n_components="all", trainer={"max_steps": 5}), folder, n, dim)


def _mapped(calibrator: Any, folder: Path, n: int, dim: int) -> Call:
    from bertflow import transform as calibrate

    x = random_rows(folder, n, dim)
    sample = random_rows(folder, 4 * dim, dim, "sample.npy")
    calibrator.fit(np.load(sample)).save(folder / "calibrator")
    return lambda: calibrate(calibrator=folder / "calibrator", vectors=x, output=folder / "z.npy", bare=True)


def evaluate(folder: Path, n: int, dim: int) -> Call:
    """One system on ``n`` graded pairs, with 400 resamples, the fewest there are."""
    from bertflow.data.pairs import Pairs
    from bertflow.evaluation.evaluating import score_sets

    text = [f"sentence {number}" for number in range(2 * n)]
    gold = np.random.default_rng(0).uniform(0, 5, n)
    pairs = Pairs("random", tuple(text[:n]), tuple(text[n:]), gold)
    return lambda: score_sets({"random": AtOnce(dim)}, [pairs], resamples=400, progress=False)


def index(folder: Path, n: int, dim: int) -> Call:
    """Make an index of ``n`` answers."""
    from bertflow.data.corpus import Answer
    from bertflow.retrieval.index import AnswerIndex

    def call() -> None:
        # Numbers written backwards: ids that do not lie in the file in their order.
        answers = [Answer(str(number)[::-1], f"answer {number}") for number in range(n)]
        AnswerIndex.create(folder / "faq.index", AtOnce(dim), answers, progress=False).close()

    return call


def search(folder: Path, n: int, dim: int) -> Call:
    """Open an index of ``n`` answers, and answer 100 questions exactly."""
    from bertflow.retrieval.index import AnswerIndex

    index(folder, n, dim)()

    def call() -> None:
        with AnswerIndex.open(folder / "faq.index", AtOnce(dim)) as opened:
            opened.search_many([f"question {number}" for number in range(QUESTIONS)])

    return call


class Step(NamedTuple):
    """A step: what it does, the width for all numbers of rows, and the rows for all widths."""

    make: Maker
    what: str
    width: int
    rows: int
    flat: bool = False
    """Whether the guides say that its memory does not grow with the rows."""


STEPS: Mapping[str, Step] = {
    "embed": Step(embed, "tokenize, encode (a random BERT of one block), store", 128, 3_000, flat=True),
    "store": Step(store, "sentences into a store, with an encoder that costs nothing", 384, 30_000, flat=True),
    "fit": Step(fit, "whitening, from a file of vectors", 128, 30_000, flat=True),
    "fit-flow": Step(fit_flow, "the default flow, at most 375 steps", 128, 3_000),
    "transform": Step(transform, "whitening, from file to file", 128, 30_000, flat=True),
    "transform-flow": Step(transform_flow, "the default flow, from file to file", 128, 3_000, flat=True),
    "evaluate": Step(evaluate, "graded pairs, one system, 400 resamples", 128, 30_000),
    "index": Step(index, "make an index of answers", 128, 10_000),
    "search": Step(search, f"open it, {QUESTIONS} questions, exactly", 128, 10_000),
}
DRAWN = ("embed", "fit", "fit-flow", "transform", "transform-flow", "evaluate", "search")
AXES = ("rows", "width")


def measure(name: str, axis: str, limit: float) -> list[dict[str, Any]]:
    """Seconds and memory at each size, from small to large, each in a process of its own."""
    step, points = STEPS[name], list[dict[str, Any]]()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    for size in ROWS if axis == "rows" else WIDTHS:
        n, dim = (size, step.width) if axis == "rows" else (step.rows, size)
        last = points[-1] if points else {axis: size, "seconds": 0.0, "mb": 0.0}
        more = size / last[axis]
        if last["seconds"] * more > limit or last["mb"] * more * 1e6 > MOST:
            break
        command = [sys.executable, __file__, ONCE, name, str(n), str(dim), str(int(last["mb"] * more * 1e6))]
        told = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
        points.append({"rows": n, "width": dim, **json.loads(told.splitlines()[-1])})
    return points


def once(name: str, n: int, dim: int, expected: int = 0) -> dict[str, float]:
    """Seconds and memory at one size; imports are left out, since a small size comes before."""
    for size, bytes_expected in ((1_000, 0), (n, expected)):
        with tempfile.TemporaryDirectory() as scratch:
            peak = _once(STEPS[name], Path(scratch), size, dim, bytes_expected)
    return {"seconds": round(peak.cpu, 4), "mb": round(peak.bytes / 1e6, 1)}


def trim() -> None:
    """Give back memory that is not used: what earlier calls have left would hide what the next one takes."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)


def _once(step: Step, folder: Path, n: int, dim: int, expected: int = 0) -> Peak:
    call = step.make(folder, n, dim)
    trim()
    # A virtual machine asks its host for memory that was not used before, 2 s for a GB: that is not what is measured.
    np.ones(expected + SOME, dtype=np.uint8)
    with Peak() as peak:
        call()
    return peak


def slope(points: Sequence[Mapping[str, Any]], axis: str, of: str) -> float:
    """The exponent of the largest sizes, by least squares of the logarithms; NaN for fewer than two."""
    used = [point for point in points if point[axis] * SPAN >= points[-1][axis] and point[of] > 0]
    if len(used) < 2:
        return math.nan
    x, y = ([math.log(point[name]) for point in used] for name in (axis, of))
    return statistics.linear_regression(x, y).slope


def most(points: Sequence[Mapping[str, Any]]) -> float:
    """The largest exponent that n log n has at the same sizes, with the tolerance."""
    made = [{"rows": point["rows"], "seconds": point["rows"] * math.log(point["rows"])} for point in points]
    return slope(made, "rows", "seconds") + TOLERANCE


def judged(found: Row) -> tuple[str, ...]:
    """A row of the table."""
    rows, name = found["rows"], found["step"]
    settled = [point for point in rows if point["rows"] >= SETTLED]
    time_slope, memory = slope(rows, "rows", "seconds"), slope(settled, "rows", "mb")
    too_fast = ", **faster than n log n**" if time_slope > most(rows) else ""
    flat = ", flat" if memory <= FLAT else ", **should be flat**" if STEPS[name].flat and memory > FLAT else ""
    return (
        f"{name}: {STEPS[name].what}",
        f"{rows[-1]['rows']:,} x {rows[-1]['width']}",
        f"{rows[0]['seconds']:.2g} s",
        f"{rows[-1]['seconds']:.3g} s",
        _shown(time_slope) + too_fast,
        _shown(slope(found["width"], "width", "seconds")),
        f"{rows[-1]['mb']:,.0f} MB",
        _shown(memory) + flat,
    )


def _shown(exponent: float) -> str:
    return "not measured" if math.isnan(exponent) else f"{exponent:.2f}"


SIZES = (10_000, 100_000, 1_000_000)
"""Rows of the table of docs/results/speed.md."""
HEAD = ("step", "up to", "1,000 rows", "all rows", "exponent, rows", "exponent, width", "memory", "exponent, rows")


def page(rows: Sequence[Row]) -> str:
    """The table, and where it was measured."""
    loads = [load for row in rows for load in row["load"]]
    said = f"{rows[0]['processor']}, one thread, load {min(loads):g} to {max(loads):g}."
    return table(HEAD, map(judged, sorted(rows, key=lambda row: list(STEPS).index(row["step"])))) + said


def by_size(rows: Sequence[Row]) -> str:
    """Time and memory of each step but ``embed``, whose encoder is a toy, at the sizes that users ask for."""
    found = {row["step"]: {point["rows"]: point for point in row["rows"]} for row in rows}
    shown = [
        (
            f"{name}: {what.what}",
            *(f"{one['seconds']:.2g} s, {one['mb']:,.0f} MB" if (one := at.get(n)) else "-" for n in SIZES),
        )
        for name, what in STEPS.items()
        if name != "embed" and (at := found.get(name))
    ]
    return table(("step", *(f"{n:,} rows" for n in SIZES)), shown) + page(rows).splitlines()[-1]


def draw(rows: Sequence[Row]) -> None:
    """The table of docs/results/speed.md, and its picture: seconds against rows."""
    write_section(PAGE, Path(__file__).name, by_size(rows))
    drawn = {row["step"]: row["rows"] for row in rows if row["step"] in DRAWN}
    lines = {name: tuple([point[key] for point in drawn[name]] for key in ("rows", "seconds")) for name in DRAWN}
    save_figure(curves(lines, "rows", "seconds of the processor", log="xy"), PAGE.parents[1] / "growth.svg")


def cases(options: Namespace) -> Iterator[Case]:
    """Each step, along both axes."""

    def measured(name: str) -> dict[str, Any]:
        before = round(os.getloadavg()[0], 1)
        found = {axis: measure(name, axis, options.limit) for axis in AXES}
        return {**found, "processor": processor_name(), "load": [before, round(os.getloadavg()[0], 1)]}

    for name in options.only:
        yield {"step": name}, partial(measured, name)


STUDY = Study(
    __file__,
    __doc__,
    cases,
    page,
    "",
    {"only": (list(STEPS), "steps"), "limit": (LIMIT, "seconds of the processor that one size may take")},
    draw,
)
if __name__ == "__main__":
    if sys.argv[1:2] == [ONCE]:
        print(json.dumps(once(sys.argv[2], *map(int, sys.argv[3:]))))
    else:
        STUDY.main()
