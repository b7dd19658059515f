"""What a row of ``bertflow.onednn.FASTER`` rests on: times by MKL over times by oneDNN on this processor.

    python benchmarks/products.py [--threads 1] [--output FILE.json]

Products alone, of the layers of encoders and flows: forward, the gradient of the rows, that of the weight. Then whole
steps of training a flow, and encoding. Calls take turns; the medians of ratios of processor time are printed, and by
the clock. Above 1 oneDNN is faster. A product belongs into the table where none of its ratios is below 1 from the
sizes on that ``ENOUGH``, ``ENOUGH_TO_LEARN`` and ``ROWS_TO_LEARN`` name. A minute or two on a quiet core.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import argparse
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from bench_encode import transformer, without_onednn
from bench_flow import DIM, moved, training_step
from bench_material import MINILM, Material
from bench_page import processor_name
from bench_timing import ratio, take_turns
from torch import Tensor, nn

from bertflow import onednn
from bertflow.files import write_json
from bertflow.flow.glow import build_glow
from bertflow.onednn import FORWARD, INPUT, WEIGHT
from bertflow.training.optimizer import OPTIMIZERS
from bertflow.training.recipe import resolve

SHAPES = ((32, 384, 384), (256, 384, 64), (256, 384, 384), (1024, 384, 384), (1024, 384, 1536), (1024, 1536, 384))
SHAPES += ((2048, 384, 384), (1024, 768, 3072))
"""Rows, width of a row, and of what is made of it."""
BATCHES = {32: 20, 256: 5, 2048: 1}
"""Rows of a step, and how many steps a round has."""
LU = "default, with LU mixing"
SENTENCES = 256
WORK = 2e9
"""Floating point operations of a round of one product, about."""


def products() -> Iterator[tuple[str, tuple[float, float]]]:
    """Each product alone."""
    for rows, inner, columns in SHAPES:
        x, weight, above = torch.randn(rows, inner), torch.randn(columns, inner), torch.randn(rows, columns)
        pairs = {FORWARD: (x, weight), INPUT: (above, weight.t()), WEIGHT: (above.t(), x.t())}
        for kind, (left, right) in pairs.items():
            calls = {"mkl": _by(nn.functional.linear, left, right), "onednn": _by(onednn._product, left, right, None)}
            times = take_turns(calls, repeat=max(3, int(WORK / (2 * rows * inner * columns))))
            yield f"{kind}, {rows} x {inner} -> {columns}", ratio(times["mkl"], times["onednn"])


def _by(product: Callable[..., Tensor], *given: Tensor | None) -> Callable[[], Tensor]:
    return lambda: product(*given)


def steps() -> Iterator[tuple[str, tuple[float, float]]]:
    """Training a flow."""
    default = resolve("default").glow
    for name, config in {"default": default, LU: replace(default, permutation="lu")}.items():
        for batch, repeat in BATCHES.items():
            torch.manual_seed(0)
            glow, x = moved(build_glow(DIM, config)), torch.randn(batch, DIM)
            step = training_step(glow, x, OPTIMIZERS["adam"](glow.parameters(), lr=1e-6, weight_decay=0.0))
            yield f"flow step, {name}, batch {batch}", _both(step, repeat)


def encoding() -> Iterator[tuple[str, tuple[float, float]]]:
    """Embedding sentences."""
    material = Material()
    encoder, sentences = transformer(material.encoders[MINILM][0]), material.draw(SENTENCES)
    yield f"encode, {MINILM}", _both(lambda: encoder.encode(sentences), 1)


def _both(call: Callable[[], Any], repeat: int) -> tuple[float, float]:
    times = take_turns({"mkl": lambda: without_onednn(call), "onednn": call}, repeat=repeat)
    return ratio(times["mkl"], times["onednn"])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--output", type=Path, help="file for the same as JSON")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    logging.getLogger("bertflow").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    onednn.THROUGH_ONEDNN = (FORWARD, INPUT, WEIGHT)  # whatever the table says of this processor
    found: dict[str, Mapping[str, float]] = {}
    print(f"{processor_name()}, threads: {options.threads}, load {os.getloadavg()[0]:.1f}\n")
    print("| MKL / oneDNN | processor time | clock |\n| --- | ---: | ---: |")
    for part in (steps, encoding, products):
        for name, (value, clock) in part():
            found[name] = {"processor time": round(value, 3), "clock": round(clock, 3)}
            print(f"| {name} | {value:.2f} | {clock:.2f} |", flush=True)
    if options.output:
        write_json(options.output, {"processor": processor_name(), "threads": options.threads, "ratios": found})


if __name__ == "__main__":
    main()
