"""What some fixed work takes, counted and not timed, so a rise is seen however busy the machine is: `make check`.

    python benchmarks/counts.py [--write]

modules      that are loaded: of bertflow, and of others but Python's own
operators    that PyTorch carries out, and the bytes that they read and write; views are left out
calls        of functions, from Python and to it: a loop that came back is seen
peak bytes   of arrays and objects that are there at once, beyond those that were there before

Counts are compared with those kept in counts.json for the same versions of Python and of the libraries. They do not
depend on the processor: all products of matrices go PyTorch's own way. ``--write`` accepts what was found.
"""

import argparse
import contextlib
import gc
import io
import json
import sys
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import Any

Counts = Mapping[str, Mapping[str, int]]
"""What was done -> what was counted -> how many."""
KEPT = Path(__file__).with_name("counts.json")
ALLOWED: Mapping[str, float] = {"calls": 0.02, "peak bytes": 0.02}
"""Share by which a count may rise, as what Python keeps for itself is not the same in each process; others may not."""
VERSIONED = ("torch", "transformers", "numpy", "scipy", "scikit-learn", "nflows", "jsonargparse", "pydantic")
"""Packages whose versions decide the counts."""
DIM = 384
STEPS = {"paper-tf": 32, "default": 256}
"""Preset -> rows of a step."""


def loaded() -> int:
    """Modules that are loaded, without Python's own."""
    names = [name.partition(".")[0] for name in sys.modules]
    return sum(name not in sys.stdlib_module_names and not name.startswith("_") for name in names)


def of_help(command: str) -> int:
    """Modules of ``bertflow COMMAND --help``."""
    from bertflow.cli import main

    with contextlib.redirect_stdout(io.StringIO()):
        main([command, "--help"])
    return loaded()


def modules() -> Iterator[tuple[str, Mapping[str, int]]]:
    """What ``import bertflow`` and the help of each command load, each command in a process of its own."""
    import bertflow
    from bertflow.cli.commands import COMMANDS

    assert bertflow.__version__
    yield "import bertflow", {"modules": loaded()}
    import bertflow.cli.command  # what all commands share is loaded once

    with get_context("fork").Pool(1, maxtasksperchild=1) as pool:
        for command, found in zip(COMMANDS, pool.imap(of_help, COMMANDS), strict=True):
            yield f"bertflow {command} --help", {"modules": found}


def operators() -> Iterator[tuple[str, Mapping[str, int]]]:
    """The operators of encoding, and of a step of training of two flows."""
    import torch
    from bench_flow import moved
    from bench_timing import Operators
    from torch.nn.utils import clip_grad_norm_

    from bertflow.data.docstrings import PLAIN
    from bertflow.encoder.embedded import embedded_encoder
    from bertflow.encoder.transformer import TransformerEncoder
    from bertflow.flow.glow import build_glow
    from bertflow.training.module import OPTIMIZERS
    from bertflow.training.recipe import resolve

    torch.set_num_threads(1)
    torch.backends.mkldnn.enabled = False  # else products would depend on the processor

    def step(preset: str, rows: int) -> Callable[[], None]:
        torch.manual_seed(0)
        recipe = resolve(preset)
        flow, x = moved(build_glow(DIM, recipe.glow)), torch.randn(rows, DIM)
        made = OPTIMIZERS[recipe.optimizer](flow.parameters(), lr=1e-6, weight_decay=recipe.weight_decay)

        def call() -> None:
            made.zero_grad(set_to_none=True)
            (-flow.log_prob(x).mean() / DIM).backward()
            if recipe.clip_norm:
                clip_grad_norm_(flow.parameters(), recipe.clip_norm)
            made.step()

        return call

    encoder = TransformerEncoder(embedded_encoder(), pooling="first-last-avg", device="cpu", max_length=128)
    calls: dict[str, Callable[[], object]] = {f"encode {len(PLAIN)} sentences": partial(encoder.encode, PLAIN)}
    calls |= {f"a step of {preset}, {rows} rows": step(preset, rows) for preset, rows in STEPS.items()}
    for name, call in calls.items():
        call()  # what is set up once is not counted
        with Operators() as counted:
            call()
        yield name, {"operators": counted.count.total(), "bytes": counted.bytes}


def arrays() -> Iterator[tuple[str, Mapping[str, int]]]:
    """Calls and memory of whitening, and of an evaluation with its bootstrap."""
    import numpy as np

    from bertflow.calibration.closed_forms import Whitening
    from bertflow.data.pairs import Pairs
    from bertflow.encoder.abstract import AbstractEncoder
    from bertflow.evaluation.evaluating import score_sets

    generator = np.random.default_rng(0)
    x = generator.standard_normal((8192, DIM), dtype=np.float32)
    fitted = Whitening().fit(x)

    class Known(AbstractEncoder):
        """Embeds numbers."""

        dim = 16

        def _encode(self, sentences: list[str], *_: Any) -> Any:
            return x[[int(sentence) for sentence in sentences], : self.dim]

        def describe(self) -> Mapping[str, Any]:
            return {"encoder": "known", "pooling": "none"}

    rows = [str(row) for row in range(1000)]
    pairs = Pairs("numbers", tuple(rows[:500]), tuple(rows[500:]), generator.random(500))
    calls: dict[str, Callable[[], object]] = {
        f"fit whitening to {len(x):,} rows": lambda: Whitening().fit(x),
        f"whiten {len(x):,} rows": lambda: fitted.transform(x),
        "evaluate 500 pairs, 1,000 resamples": lambda: score_sets({"known": Known()}, [pairs], resamples=1000),
    }
    for name, call in calls.items():
        call()
        yield name, {"calls": count_calls(call), "peak bytes": peak_bytes(call)}


def count_calls(call: Callable[[], object]) -> int:
    """Calls of functions that are written in Python or called from it."""
    count = 0

    def see(_: object, event: str, __: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(see)
    try:
        call()
    finally:
        sys.setprofile(None)
    return count


def peak_bytes(call: Callable[[], object]) -> int:
    """Most bytes that are allocated at once, arrays included."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def versions() -> str:
    """What the counts are kept for."""
    python = f"Python {sys.version_info.major}.{sys.version_info.minor}"
    return ", ".join([python, *(f"{name} {version(name).partition('+')[0]}" for name in VERSIONED)])


def risen(found: Counts, kept: Counts) -> list[str]:
    """What takes more than before, in words."""
    return [
        f"{name}: {count:,} {unit}, {count - before:,} more than the {before:,} that are kept"
        for name, counts in found.items()
        for unit, count in counts.items()
        if (before := kept.get(name, {}).get(unit)) is not None and count > before * (1 + ALLOWED.get(unit, 0))
    ]


def main() -> int:
    """Count, and compare or keep; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="keep what is found")
    options = parser.parse_args()
    gc.disable()  # it would run at any moment, and call what it frees
    found: Counts = dict([*modules(), *operators(), *arrays()])  # modules first: the others load libraries
    here, everything = versions(), json.loads(KEPT.read_text("utf-8")) if KEPT.exists() else {}
    if options.write:
        KEPT.write_text(json.dumps({**everything, here: found}, indent=2) + "\n", "utf-8")
        print(f"counts: {len(found)} rows are kept in {KEPT.name}, for {here}.")
        return 0
    if here not in everything:
        print(f"counts: not compared. None are kept for {here}: python benchmarks/counts.py --write keeps them.")
        return 0
    if more := risen(found, everything[here]):
        print(f"counts: {'; '.join(more)}. Save them, or accept them: python benchmarks/counts.py --write")
        return 1
    print(f"counts: none of {sum(map(len, found.values()))} rose.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
