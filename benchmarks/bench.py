"""How fast it is, as ratios within one run: `make bench`.

    python benchmarks/bench.py [--data_dir STS] [--only flow-step,encode] [--output FILE.json]

Each benchmark is a row below and gives rows of the table: what was compared, the median ratio of processor time, the
same by the clock, the target. They are kept as JSON beside this file, each benchmark with the conditions it ran under,
and with everything else it found; a run of some leaves the others as they were. Some minutes on two quiet cores;
without --data_dir, sentences are docstrings.
"""

import os

# Before torch is loaded: threads that wait should not use up the processor, on a busy machine least of all.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import argparse
import json
import logging
import platform
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from bench_compile import compiled
from bench_encode import encoding, hardware, layers
from bench_fit import calibration, job, lightning
from bench_flow import inference, operators, steps
from bench_material import Material
from bench_timing import Result

from bertflow.files import write_json
from bertflow.onednn import THROUGH_ONEDNN, processor

BENCHMARKS: Mapping[str, Callable[[Material], Iterator[Result]]] = {
    "encode": encoding,
    "layers": layers,
    "hardware": hardware,
    "flow-step": lambda material: steps(),
    "inference": lambda material: inference(),
    "operators": lambda material: operators(),
    "job": job,
    "calibration": calibration,
    "lightning": lightning,
    "compile": lambda material: compiled(),
}
ON_REQUEST = ("compile",)
"""Run only when named: minutes of compiling."""


def conditions(material: Material) -> dict[str, Any]:
    """What a figure depends on, and whether others were using the machine."""
    return {
        "processor": " ".join(processor()),
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


def table(kept: Mapping[str, Any]) -> str:
    """What was kept, as Markdown, in the order of the benchmarks."""
    lines = ["| what | processor time | clock | target | |", "| --- | ---: | ---: | ---: | --- |"]
    lines += [_line(row) for name in BENCHMARKS if name in kept for row in kept[name]["rows"]]
    return "\n".join(lines)


def _line(row: Mapping[str, Any]) -> str:
    unit = "" if row["unit"] == "x" else " " + row["unit"]
    wall = "" if row["wall"] is None else f"{row['wall']:g}{unit}"
    bound = "≤" if row["at_most"] else "≥"
    target = "" if row["target"] is None else f"{bound} {row['target']:.3g}{unit}"
    met = {True: "met", False: "**missed**", None: ""}[row["met"]]
    return f"| {row['name']} | {row['value']:g}{unit} | {wall} | {target} | {met} |"


def main() -> None:
    """Run the benchmarks asked for, print the table and keep what they found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data_dir", type=Path, help="folder of the STS data (default: docstrings are encoded)")
    parser.add_argument("--only", type=lambda text: text.split(","), help=f"some of {', '.join(BENCHMARKS)}")
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("results.json"))
    options = parser.parse_args()
    chosen = options.only or [name for name in BENCHMARKS if name not in ON_REQUEST]
    if unknown := [name for name in chosen if name not in BENCHMARKS]:
        parser.error(f"unknown benchmark {unknown[0]!r}; known: {', '.join(BENCHMARKS)}")
    torch.set_num_threads(1)  # ratios of work, not of how two threads wait for each other
    logging.getLogger("bertflow").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    material = Material(options.data_dir)
    kept = json.loads(options.output.read_text()) if options.output.exists() else {}
    for name in chosen:
        before, begin = conditions(material), time.perf_counter()
        rows = [as_json(result) for result in BENCHMARKS[name](material)]
        kept[name] = {"conditions": before, "seconds": round(time.perf_counter() - begin), "rows": rows}
        write_json(options.output, kept)
        print(table({name: kept[name]}), flush=True)
    print("\n" + table(kept))


if __name__ == "__main__":
    main()
