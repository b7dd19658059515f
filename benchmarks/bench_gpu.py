"""How fast it is on a GPU: sentences, memory and GPU-hours, the tokenizer beside it, and the step of a flow.

    python benchmarks/bench_gpu.py [--dtypes bfloat16,tf32] [--only encode,flow-step] [--output FILE.json]
    python benchmarks/bench_gpu.py --print
    python benchmarks/bench_gpu.py --device cpu --tiny

Models have random weights, tokenizers are made up from the docstrings of installed packages: no network and no data are
needed. What is found is kept as JSON beside this file, by device, row by row, and written into docs/results/speed.md.
Some five minutes. ``--device cpu --tiny`` runs the same code on models of two small blocks, which shows that it runs
and no more: it is kept only where --output says.
"""

import argparse
import datetime
import json
import logging
import os
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from bench_gpu_material import TINY, Bench, Sizes
from bench_gpu_parts import encoding, flow_steps, together, tokenizing
from bench_page import PAGE, Kept, cell, target, write_section
from bench_timing import Result

from bertflow.encoder.device import PRECISIONS
from bertflow.files import write_text
from bertflow.progress import at_level
from bertflow.tables import Table

RESULTS = Path(__file__).with_suffix(".json")
NOTHING = "Nothing yet: `python benchmarks/bench_gpu.py` on a machine with a GPU writes its tables here."


class Part(NamedTuple):
    """A part of the benchmark: what it runs and says, what its ratio is, and about how many seconds it takes."""

    run: Callable[[Bench], Iterator[Result]]
    says: str
    value: str
    seconds: int


PARTS: Mapping[str, Part] = {
    "encode": Part(encoding, "the encoder, lengths from half of the most to the most", "of the peak", 130),
    "tokenize": Part(tokenizing, "the tokenizer by its cores, on docstrings", "tokenizer / GPU", 80),
    "together": Part(together, "encode, from text to embeddings", "encode / GPU alone", 30),
    "flow-step": Part(flow_steps, "a step of a fit, against its kernels", "step / kernels", 60),
}
"""In the order of the page; the tokenizer is compared with what the encoder did in the same run."""


def conditions(bench: Bench) -> dict[str, Any]:
    """What a figure depends on."""
    found = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cores": os.cpu_count(),
    }
    for dtype in bench.dtypes:
        found[f"TFLOP/s in {dtype}"] = f"{bench.peak(dtype):.4g} (a product reaches {bench.products(dtype):.4g})"
    return found


def as_kept(result: Result) -> dict[str, Any]:
    """A row as it is kept."""
    facts = {name: float(f"{fact:.4g}") if isinstance(fact, float) else fact for name, fact in result.facts.items()}
    return {**vars(result), "value": float(f"{result.value:.3g}"), "met": result.met, "facts": facts}


def measure(chosen: Sequence[str], bench: Bench) -> Iterator[tuple[str, dict[str, Any]]]:
    """Run some parts, and say which; each is given anew after each of its rows."""
    left = sum(PARTS[name].seconds for name in chosen)
    for number, name in enumerate(chosen, 1):
        part, before, rows = PARTS[name], conditions(bench), list[dict[str, Any]]()
        about = f"; about {left / 60:.0f} min left" if bench.on_gpu else ""
        print(f"[{number}/{len(chosen)}] {name}: {part.says}{about}", flush=True)
        begin, left = time.perf_counter(), left - part.seconds
        for result in part.run(bench):
            rows.append(as_kept(result if bench.on_gpu else replace(result, target=None)))
            print(f"  {result.name}: {cell(rows[-1])} {part.value}, {described(rows[-1]['facts'])}", flush=True)
            yield name, {"conditions": before, "seconds": round(time.perf_counter() - begin), "rows": rows}


def described(facts: Mapping[str, Any]) -> str:
    """What else was found, in one line."""
    return ", ".join(f"{name} {shown(fact)}" for name, fact in facts.items())


def shown(fact: Any) -> str:
    """A number with as many digits as it is worth."""
    if isinstance(fact, float):
        return f"{fact:,.0f}" if fact >= 100 else f"{fact:.3g}"
    return "" if fact is None else str(fact)


def section(kept: Kept) -> str:
    """The tables of all devices."""
    return "\n\n".join(text for device, parts in kept.items() for text in (f"#### {device}", *tables(parts))) or NOTHING


def tables(parts: Mapping[str, Any]) -> Iterator[str]:
    """Those of one device, and what they depend on."""
    for name, part in parts.items():
        facts = list(dict.fromkeys(fact for row in part["rows"] for fact in row["facts"]))
        lines = [
            (row["name"], *(shown(row["facts"].get(fact)) for fact in facts), cell(row), target(row))
            for row in part["rows"]
        ]
        yield Table((PARTS[name].says, *facts, PARTS[name].value, "target"), tuple(lines)).to_markdown().rstrip()
    yield from dict.fromkeys(f"Measured with: {described(part['conditions'])}." for part in parts.values())


def main(given: Sequence[str] | None = None) -> None:
    """Run the parts asked for, keep what they find, and bring the page up to date."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", type=lambda text: text.split(","), default=list(PARTS), help=", ".join(PARTS))
    parser.add_argument("--dtypes", type=lambda text: text.split(","), default=["bfloat16"], help=", ".join(PRECISIONS))
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small models, which show that the benchmark runs")
    parser.add_argument("--output", type=Path, help="another file leaves docs/results/speed.md as it is")
    parser.add_argument("--print", action="store_true", help="run nothing: print what is kept, and write the page")
    options = parser.parse_args(given)
    for name, known in [(each, PARTS) for each in options.only] + [(each, PRECISIONS) for each in options.dtypes]:
        if name not in known:
            parser.error(f"unknown {name!r}; known: {', '.join(known)}")
    if not options.print and options.device == "cuda" and not torch.cuda.is_available():
        parser.exit(2, "bench_gpu.py: there is no CUDA GPU. Show that it runs by --device cpu --tiny.\n")
    if options.device == "cpu" and not options.tiny:
        parser.error("on a CPU the sizes of a GPU take hours. Add --tiny.")
    if "tokenize" in options.only and "encode" not in options.only:
        parser.error("the tokenizer is compared with the encoder in the same run: --only encode,tokenize")
    output = options.output or (None if options.tiny else RESULTS)
    kept = json.loads(output.read_text("utf-8")) if output and output.exists() else {}
    if not options.print:
        quiet = at_level(logging.ERROR, "bertflow")
        with tempfile.TemporaryDirectory() as folder, quiet, warnings.catch_warnings(action="ignore"):
            bench = Bench(options.device, TINY if options.tiny else Sizes(), options.dtypes, Path(folder))
            for name, found in measure(options.only, bench):
                here = {**kept.get(bench.name, {}), name: found}
                kept[bench.name] = {part: here[part] for part in PARTS if part in here}
                if output:
                    write_text(output, json.dumps(kept, indent=2) + "\n")
    if output == RESULTS:
        write_section(PAGE, "bench_gpu.py", section(kept))
    print("\n" + section(kept))


if __name__ == "__main__":
    main()
