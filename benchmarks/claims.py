"""What the papers and tutorials of this field claim, and whether it is so on the encoders at hand.

    python benchmarks/claims.py                         prints the ledger
    python benchmarks/claims.py --run --data_dir DATA   measures what is not measured yet; --again for all of it

Encoders: a built-in MiniLM, whose inner layers stand in for a raw BERT and whose last layers are tuned; and MLM4, a
small plain BERT. A verdict follows from the numbers by the rule of ``claims_rules``. What was measured is kept in
claims.json after every claim, with its conditions, so that a run can be stopped and taken up again; a claim is measured
anew where the conditions are others. DATA holds ``sts``, ``text``, ``nli`` and ``encoders``. Writes claims.md beside.
"""

import argparse
import importlib
import logging
import platform
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from claims_print import to_markdown
from claims_rules import SUBJECTS, result_from, verdict
from claims_table import CLAIMS

from bertflow.errors import BertflowError, NullDirectionWarning
from bertflow.files import write_json, write_text
from bertflow.records import read_record

if TYPE_CHECKING:
    from claims_bench import Bench

LEDGER = Path(__file__).with_name("claims.json")
PACKAGES = ("bertflow", "numpy", "torch", "transformers")
Ledger = dict[str, Any]


def conditions(bench: "Bench") -> dict[str, Any]:
    """Everything that decides the numbers, but the text."""
    from bertflow.encoder.locating import open_model

    encoders = {name: open_model(folder).weights_hash for name, folder in bench.folders.items()}
    versions = {name: version(name) for name in PACKAGES} | {"python": platform.python_version()}
    return {"encoders": encoders, "seed": bench.seed, "resamples": bench.resamples, "versions": versions}


def measured(bench: "Bench", name: str) -> dict[str, Any]:
    """One claim on all encoders, with verdicts."""
    module, function = CLAIMS[name].measure.split(":")
    if module == "compare":
        results = {part: bench.compare(part, *function.split(" - ")) for part in SUBJECTS}
    else:
        measure = getattr(importlib.import_module(module), function)
        results = {part: measure(bench, part) for part in SUBJECTS}
    return {part: {**result.to_dict(), "verdict": verdict(CLAIMS[name], result)} for part, result in results.items()}


def run(bench: "Bench", ledger: Ledger, names: Sequence[str], path: Path) -> Ledger:
    """Measure claims that the ledger does not hold under these conditions; it is written after each."""
    now = conditions(bench)
    wanted = [name for name in names if ledger.get(name, {}).get("conditions") != now]
    logging.info("%d of %d claims are measured already", len(names) - len(wanted), len(names))
    for at, name in enumerate(wanted, start=1):
        begin, used = time.perf_counter(), time.process_time()
        found = measured(bench, name)
        seconds = round(time.process_time() - used, 1)
        ledger[name] = {"conditions": now, "cpu_seconds": seconds, "results": found}
        write_json(path, ledger)
        said = ", ".join(f"{part} {one['verdict']}" for part, one in found.items())
        logging.info("[%d/%d] %s: %s (%.0f s)", at, len(wanted), name, said, time.perf_counter() - begin)
    return ledger


def read_ledger(path: Path) -> Ledger:
    """What was measured, of the claims that there are; verdicts are made anew, since a rule may have changed."""
    if not path.exists():
        return {}
    found: Mapping[str, Any] = read_record(path, dict[str, Any])
    return {name: _judged(name, found[name]) for name in CLAIMS if name in found}


def _judged(name: str, kept: Mapping[str, Any]) -> dict[str, Any]:
    results = {
        part: {**one, "verdict": verdict(CLAIMS[name], result_from(one))} for part, one in kept["results"].items()
    }
    return {**kept, "results": results}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print, or measure and print; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--run", action="store_true", help="measure what is not measured yet")
    parser.add_argument("--again", action="store_true", help="measure also what is")
    parser.add_argument("--data_dir", type=Path, help="holds sts, text, nli and encoders; needed to measure")
    parser.add_argument("--cache", type=Path, default=Path("embeddings"), help="where embeddings are kept")
    parser.add_argument("--only", nargs="+", metavar="CLAIM", help="names of claims; all by default")
    parser.add_argument("--seed", type=int, default=0, help="of samples, resamples and fits (default: 0)")
    parser.add_argument("--resamples", type=int, default=200, help="of every bootstrap (default: 200)")
    parser.add_argument("--ledger", type=Path, default=LEDGER, help="a JSON file; the same with .md is written beside")
    options = parser.parse_args(arguments)
    names = list(CLAIMS) if options.only is None else options.only
    if unknown := [name for name in names if name not in CLAIMS]:
        parser.error(f"unknown claim {unknown[0]!r}. Known: {', '.join(CLAIMS)}.")
    if options.run and options.data_dir is None:
        parser.error("to measure, text and encoders are wanted, but no --data_dir was given. Give --data_dir DATA.")
    try:
        ledger = read_ledger(options.ledger)
        if options.run:
            ledger = _run(options, ledger, names)
        if not ledger:
            parser.error(f"{options.ledger} holds no claim yet. Measure them: --run --data_dir DATA.")
    except BertflowError as error:
        print(f"claims: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("claims: interrupted; what was measured is kept. Run it again to go on.", file=sys.stderr)
        return 1
    print(to_markdown({name: ledger[name] for name in names if name in ledger}), end="")
    return 0


def _run(options: argparse.Namespace, ledger: Ledger, names: Sequence[str]) -> Ledger:
    from claims_bench import Bench

    logging.basicConfig(level=logging.INFO, format="%(message)s")
    warnings.simplefilter("ignore", NullDirectionWarning)
    kept = {name: one for name, one in ledger.items() if not (options.again and name in names)}
    bench = Bench(options.data_dir, options.cache, options.seed, options.resamples)
    try:
        return run(bench, kept, names, options.ledger)
    finally:
        if kept := read_ledger(options.ledger):
            write_text(options.ledger.with_suffix(".md"), to_markdown(kept))


if __name__ == "__main__":
    sys.exit(main())
