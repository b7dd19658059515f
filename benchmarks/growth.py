"""How cost grows with the number of rows and with their width: embed, fit, transform, evaluate, search.

    python benchmarks/growth.py [--only fit,search] [--limit SECONDS] [--folder DIR]

Each step runs in a process of its own, on 1,000 to 1,000,000 rows, then at widths 128 to 1,024, from small to large,
and stops before a size that would take more than the limit, or 2.5 GB. Rows are random vectors; ``embed`` runs a
small random BERT, ``store`` an encoder that costs nothing. Given are seconds of the processor (one thread), and the
peak of anonymous memory above that of the process before it began.

The exponent is the slope of the largest sizes, a factor of 30, on logarithmic axes. A step that grows faster in the
rows than n log n is marked, and so is memory that grows where the guides say that it does not. growth.json and
growth.md are beside this file; table and picture go into docs/speed.md as well. Each step is kept when it is done. Five
minutes on a quiet machine. Linux only.
"""

import argparse
import ctypes
import gc
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import numpy as np
from bench_page import PAGE, processor_name, write_section
from store_memory import AtOnce, Peak, sentences

from bertflow.files import write_json, write_text

HERE = Path(__file__)
ROWS = (1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000)
WIDTHS = (128, 256, 512, 1_024)
LIMIT = 20.0
"""Seconds of the processor that one size may take, as the one before it tells."""
SPAN = 30
"""The exponent is that of sizes from the largest down to one in so many."""
TOLERANCE = 0.15
"""By how much an exponent may exceed that of n log n: measurements have noise."""
FLAT, SETTLED = 0.1, 100_000
"""Memory that grows with a smaller exponent is flat, from so many rows on: what is worked on at a time is then full."""
SOME = 2**26
"""Bytes that are used before each size, besides what it is expected to take."""
MOST = 2.5e9
"""Bytes that one size may take, as the one before it tells."""
QUESTIONS = 100
Call = Callable[[], object]
Maker = Callable[[Path, int, int], Call]
"""(An empty folder, rows, width) -> what is measured."""


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

    from bertflow.encoder.embedded import embedded_encoder
    from bertflow.encoder.foreign import quiet_transformers
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
    """One system on ``n`` graded pairs, with 100 resamples."""
    from bertflow.data.pairs import Pairs
    from bertflow.evaluation.report import score_sets

    text = [f"sentence {number}" for number in range(2 * n)]
    gold = np.random.default_rng(0).uniform(0, 5, n)
    pairs = Pairs("random", tuple(text[:n]), tuple(text[n:]), gold)
    return lambda: score_sets({"random": AtOnce(dim)}, [pairs], resamples=100, progress=False)


def index(folder: Path, n: int, dim: int) -> Call:
    """Make an index of ``n`` answers."""
    from bertflow.data.corpus import Answer
    from bertflow.retrieval.index import AnswerIndex

    def call() -> None:
        answers = [Answer(str(number), f"answer {number}") for number in range(n)]
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
    "store": Step(store, "the same with an encoder that costs nothing", 384, 30_000, flat=True),
    "fit": Step(fit, "whitening, from a file of vectors", 128, 30_000, flat=True),
    "fit-flow": Step(fit_flow, "the default flow, at most 375 steps", 128, 3_000),
    "transform": Step(transform, "whitening, from file to file", 128, 30_000, flat=True),
    "transform-flow": Step(transform_flow, "the default flow, from file to file", 128, 3_000, flat=True),
    "evaluate": Step(evaluate, "graded pairs, one system, 100 resamples", 128, 30_000),
    "index": Step(index, "make an index of answers", 128, 10_000),
    "search": Step(search, f"open it, {QUESTIONS} questions, exactly", 128, 10_000),
}
DRAWN = ("embed", "fit", "fit-flow", "transform", "transform-flow", "evaluate", "search")
AXES = ("rows", "width")


def measure(step: Step, axis: str, limit: float) -> Iterator[dict[str, Any]]:
    """Seconds and memory at each size, from small to large."""
    sizes = ROWS if axis == "rows" else WIDTHS
    shapes = [(size, step.width) if axis == "rows" else (step.rows, size) for size in sizes]
    with tempfile.TemporaryDirectory() as scratch:
        _once(step, Path(scratch), *(shapes[0] if axis == "rows" else (1_000, sizes[0])))  # imports are left out
    last = expected = 0.0
    for at, (n, dim) in enumerate(shapes):
        more = sizes[at] / sizes[at - 1] if at else 1.0
        if last * more > limit or expected * more > MOST:
            return
        with tempfile.TemporaryDirectory() as scratch:
            peak = _once(step, Path(scratch), n, dim, int(expected * more))
        last, expected = peak.cpu, peak.bytes
        yield {"rows": n, "width": dim, "seconds": round(peak.cpu, 4), "mb": round(peak.bytes / 1e6, 1)}


def _once(step: Step, folder: Path, n: int, dim: int, expected: int = 0) -> Peak:
    call = step.make(folder, n, dim)
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)  # what smaller sizes have left would hide what this one takes
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


def judged(name: str, found: Mapping[str, Any]) -> tuple[str, ...]:
    """A row of the table."""
    rows, settled = found["rows"], [point for point in found["rows"] if point["rows"] >= SETTLED]
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


HEAD = ("step", "up to", "1,000 rows", "all rows", "exponent, rows", "exponent, width", "memory", "exponent, rows")


def table(found: Mapping[str, Mapping[str, Any]]) -> str:
    """The results as Markdown."""
    lines = [f"| {' | '.join(HEAD)} |", "| --- | ---: " + "| ---: " * (len(HEAD) - 2) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(judged(name, found[name]))} |" for name in STEPS if name in found)])


def draw(found: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """Seconds against rows."""
    from bertflow.plots import curves, save_figure

    lines = {
        name: ([point["rows"] for point in found[name]["rows"]], [point["seconds"] for point in found[name]["rows"]])
        for name in DRAWN
        if name in found
    }
    save_figure(curves(lines, "rows", "seconds of the processor", log="xy"), path)


def write(kept: Mapping[str, Any]) -> None:
    """Write growth.md, and table and picture of the page."""
    said = table(kept["steps"])
    processor = f"{kept['processor']}, one thread, load {kept['load'][0]:g} to {kept['load'][1]:g}."
    write_text(HERE.with_suffix(".md"), f"# How cost grows\n\n{said}\n\n{processor}\n\n```\n{__doc__}```\n")
    draw(kept["steps"], PAGE.with_name("growth.svg"))
    write_section(PAGE, HERE.name, f"{said}\n\n{processor}")


def run(names: Sequence[str], limit: float, folder: Path | None, kept: dict[str, Any], output: Path) -> None:
    """Run steps, each axis in a process of its own, and keep what was found."""
    kept |= {"processor": processor_name(), "load": [round(os.getloadavg()[0], 1)] * 2}
    begin = time.perf_counter()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    environment |= {"TMPDIR": str(folder)} if folder else {}
    for name in names:
        found: dict[str, list[dict[str, Any]]] = {}
        for axis in AXES:
            print(f"{time.perf_counter() - begin:4.0f} s  {name} against {axis}: {STEPS[name].what}", flush=True)
            command = [sys.executable, str(HERE), "--part", name, axis, "--limit", str(limit)]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
                for line in filter(lambda line: line.startswith("{"), process.stdout or ()):
                    found.setdefault(axis, []).append(json.loads(line))
                    print("        ", line.strip(), flush=True)
            if process.returncode:
                raise SystemExit(f"{name} failed.")
        kept["steps"][name] = found
        load = round(os.getloadavg()[0], 1)
        kept["load"] = [min(kept["load"][0], load), max(kept["load"][1], load)]
        write_json(output, kept)
        write(kept)


def main() -> None:
    """Run every step and axis in its own process, keep and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(STEPS), help="steps, with commas")
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds of the processor that one size may take")
    parser.add_argument("--folder", type=Path, help="for some 4 GB while it runs (default: the temporary one)")
    parser.add_argument("--print", action="store_true", help="run nothing: print what is kept, and write the page")
    parser.add_argument("--part", nargs=2, metavar=("STEP", "AXIS"), help="only this one, in this process, as JSON")
    options = parser.parse_args()
    if options.part:
        for point in measure(STEPS[options.part[0]], options.part[1], options.limit):
            print(json.dumps(point), flush=True)
        return
    if unknown := [name for name in options.only.split(",") if name not in STEPS]:
        parser.error(f"unknown step {unknown[0]!r}; known: {', '.join(STEPS)}")
    output = HERE.with_suffix(".json")
    kept = json.loads(output.read_text()) if output.exists() else {"steps": {}}
    if not options.print:
        run(options.only.split(","), options.limit, options.folder, kept, output)
    write(kept)
    print("\n" + table(kept["steps"]))


if __name__ == "__main__":
    main()
