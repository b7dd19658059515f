"""The table of docs/results/speed.md: a row for each figure of results.json, a column for each processor."""

import platform
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from textwrap import fill
from typing import Any

from bertflow.files import write_text
from bertflow.onednn import CPUINFO, cpu_facts

PAGE = Path(__file__).parents[1] / "docs" / "results" / "speed.md"
BEGIN, END = "<!-- begin: python benchmarks/{} -->\n", "<!-- end -->\n"
"""Between such lines the page is written by a benchmark."""
FLAGS: Mapping[str, tuple[str, ...]] = {
    "AVX-512": ("avx512f",),
    "AMX": ("amx_tile",),
    "bfloat16": ("avx512_bf16", "amx_bf16"),
}
"""What decides how fast matrices are multiplied, by the flags of Linux."""
NOISE = re.compile(r"\((?:R|TM)\)|\b(?:CPU|Processor)\b|@.*")
SHARED = "6"
"""The family of nearly all of Intel's processors, of which the model says more."""

Kept = Mapping[str, Mapping[str, Any]]


def processor_name(cpuinfo: Path = CPUINFO) -> str:
    """Name, family, instruction sets: "AMD EPYC family 26 (AVX-512, bfloat16)". Elsewhere than on Linux only a name."""
    if not (facts := cpu_facts(cpuinfo)):
        return platform.processor() or platform.machine()
    name = " ".join(NOISE.sub(" ", facts.get("model name", platform.machine())).split())
    if family := facts.get("cpu family"):
        name += f" family {family}" + (f" model {facts.get('model')}" if family == SHARED else "")
    flags = {*facts.get("flags", "").split()}
    sets = [known for known, names in FLAGS.items() if flags.intersection(names)]
    return f"{name} ({', '.join(sets)})" if sets else name


def rows_of(parts: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The rows of one processor by name, in the order of the parts."""
    return {row["name"]: row for part in parts.values() for row in part["rows"]}


def table(kept: Kept) -> str:
    """What was kept of time, as Markdown: ratios, and whether they met the target; memory is in results.json."""
    columns = {processor: rows_of(parts) for processor, parts in kept.items()}
    names = {name: row for rows in columns.values() for name, row in rows.items()}
    lines = [f"| what | target | {' | '.join(columns)} |", "| --- | ---: |" + " --- |" * len(columns)]
    for name, row in names.items():
        if "memory" in name:
            continue
        cells = [cell(rows[name]) if name in rows else "" for rows in columns.values()]
        lines.append(f"| {name} | {target(row)} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _unit(row: Mapping[str, Any]) -> str:
    return "" if row["unit"] == "x" else " " + row["unit"]


def cell(row: Mapping[str, Any]) -> str:
    """The figure of a row, and whether it met its target."""
    return f"{row['value']:g}{_unit(row)}" + {True: ", met", False: ", **missed**", None: ""}[row["met"]]


def target(row: Mapping[str, Any]) -> str:
    """What it should be; nothing where there is no target."""
    return "" if row["target"] is None else f"{'≤' if row['at_most'] else '≥'} {row['target']:.3g}{_unit(row)}"


def said(kept: Kept) -> Iterator[str]:
    """The conditions of each processor, one line each."""
    for processor, parts in kept.items():
        found = [part["conditions"] for part in parts.values()]
        days, loads = sorted({one["date"] for one in found}), [one["load"] for one in found]
        through = ", ".join(found[-1]["through oneDNN"]) or "none"
        yield fill(
            f"* {processor}: {' and '.join(days)}, one thread of {found[-1]['cores']} cores, load {min(loads):g} to "
            f"{max(loads):g}, PyTorch {found[-1]['torch']}, Python {found[-1]['python']}; {found[-1]['sentences']}. "
            f"Products through oneDNN: {through}.",
            width=118,
            subsequent_indent="  ",
        )


def section(kept: Kept) -> str:
    """The table and the conditions."""
    return f"{table(kept)}\n\n" + "\n".join(said(kept))


def write_section(page: Path, benchmark: str, text: str) -> None:
    """Put what a benchmark says between its two lines of the page."""
    begin = BEGIN.format(benchmark)
    before, _, rest = page.read_text("utf-8").partition(begin)
    _, end, after = rest.partition(END)
    if not end:
        raise SystemExit(f"{page} should have the lines {begin.strip()} and {END.strip()}. Put them back.")
    write_text(page, f"{before}{begin}\n{text}\n\n{end}{after}")
