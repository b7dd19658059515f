"""How fast it is, as ratios within one run: `make bench`.

    python benchmarks/bench.py [--data_dir STS] [--only flow-step,encode] [--output FILE.json]
    python benchmarks/bench.py --print

Each part is a row below and gives rows of the table: what was compared, the median ratio of processor time, the same by
the clock, the target. They are kept as JSON beside this file, by processor, each part with the conditions it ran under,
and with everything else it found; a run of some leaves the others as they were. The table of docs/results/speed.md,
which has a column for each processor, is written anew from what is kept. Some ten minutes on two quiet cores; without
--data_dir, sentences are docstrings.
"""

import os

# Before torch is loaded: threads that wait should not use up the processor, on a busy machine least of all.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # NumPy's, beside PyTorch's one: they spin

import argparse
import datetime
import json
import logging
import platform
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from bench_encode import encoding, hardware, layers
from bench_fit import calibration, fixing, job, lightning, whole
from bench_flow import inference, operators, steps
from bench_material import BASE, MINILM, Material
from bench_page import PAGE, processor_name, section, table, write_section
from bench_timing import Result
from bench_whitening import whitening

from bertflow.files import write_text
from bertflow.onednn import THROUGH_ONEDNN
from bertflow.progress import never_silent, unsaid, working

RESULTS = Path(__file__).with_name("results.json")


class Part(NamedTuple):
    """A part of the benchmark: what it runs and says, and about how many seconds it takes."""

    run: Callable[[Material], Iterator[Result]]
    says: str
    seconds: int


PARTS: Mapping[str, Part] = {
    "encode": Part(partial(encoding, name=MINILM), "MiniLM, ours and sentence-transformers, float32 and bfloat16", 95),
    "encode-base": Part(partial(encoding, name=BASE), "the same, random weights of the size of BERT-base", 105),
    "layers": Part(layers, "up to an inner layer", 15),
    "hardware": Part(hardware, "arithmetic on real tokens, against matrix products alone", 40),
    "flow-step": Part(lambda material: steps(), "a step of training, against nflows", 20),
    "inference": Part(lambda material: inference(), "latents, against nflows", 5),
    "operators": Part(lambda material: operators(), "operators of a step, against a plain port", 2),
    "job": Part(job, "the encoder, and the paper's flow fitted to 26,173 rows", 85),
    "whole": Part(whole, "train on 1,500 sentences, against a plain port's loop", 70),
    "fix": Part(fixing, "fix on 600 lines, in processes of its own", 45),
    "calibration": Part(calibration, "what calibrating adds to encoding", 10),
    "lightning": Part(lightning, "Lightning, against a bare loop", 35),
    "whitening": Part(lambda material: whitening(), "whitening, against scikit-learn, in memory and on disk", 120),
}
"""In the order of the table."""


def conditions(material: Material) -> dict[str, Any]:
    """What a figure depends on, and whether others were using the machine."""
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "through oneDNN": list(THROUGH_ONEDNN),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "sentences": material.source(),
    }


def as_json(result: Result) -> dict[str, Any]:
    """A row as it is kept."""
    wall = None if result.wall is None else float(f"{result.wall:.3g}")
    return {**vars(result), "value": float(f"{result.value:.3g}"), "wall": wall, "met": result.met}


def measure(chosen: list[str], material: Material) -> Iterator[tuple[str, dict[str, Any]]]:
    """Run some parts, one after the other, and say which, and how long the rest will take."""
    begin, expected = time.perf_counter(), sum(PARTS[name].seconds for name in chosen)
    done = 0
    for number, name in enumerate(chosen, 1):
        part, before, start = PARTS[name], conditions(material), time.perf_counter()
        pace = (start - begin) / done if done else 1.0
        left = pace * (expected - done)
        time_left = f"{left:.0f} s" if left < 100 else f"{left / 60:.0f} min"
        print(f"[{number}/{len(chosen)}] {name}: {part.says}; about {time_left} left", flush=True)
        with working(name):
            rows = [as_json(result) for result in part.run(material)]
        done += part.seconds
        yield name, {"conditions": before, "seconds": round(time.perf_counter() - start), "rows": rows}


def main() -> None:
    """Run the parts asked for, print the table, keep what they found, and bring the page up to date."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data_dir", type=Path, help="folder of the STS data (default: docstrings are encoded)")
    parser.add_argument("--only", type=lambda text: text.split(","), help=f"some of {', '.join(PARTS)}")
    parser.add_argument(
        "--output", type=Path, default=RESULTS, help="another file leaves docs/results/speed.md as it is"
    )
    parser.add_argument("--print", action="store_true", help="run nothing: print what is kept, and write the page")
    options = parser.parse_args()
    chosen = options.only or list(PARTS)
    if unknown := [name for name in chosen if name not in PARTS]:
        parser.error(f"unknown part {unknown[0]!r}; known: {', '.join(PARTS)}")
    kept = json.loads(options.output.read_text()) if options.output.exists() else {}
    if not options.print:
        torch.set_num_threads(1)  # ratios of work, not of how two threads wait for each other
        processor = processor_name()
        logging.basicConfig(format="note: %(message)s")
        with unsaid(), never_silent("bench"):
            warnings.simplefilter("ignore")
            for name, found in measure(chosen, Material(options.data_dir)):
                here = {**kept.get(processor, {}), name: found}
                kept[processor] = {part: here[part] for part in PARTS if part in here}
                write_text(options.output, json.dumps(kept, indent=2) + "\n")  # in the order of the parts
                print(table({processor: {name: found}}), flush=True)
    if options.output == RESULTS:
        write_section(PAGE, "bench.py", section(kept))
    print("\n" + table(kept))


if __name__ == "__main__":
    main()
