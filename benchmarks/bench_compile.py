"""torch.compile on a step of the flow: what it saves, and after how many steps it has paid for itself."""

import copy
import time
from collections.abc import Iterator

import torch
from bench_flow import DIM, training_step
from bench_timing import Result, ratio, take_turns

from bertflow.flow.glow import build_glow
from bertflow.training.recipe import resolve

CASES = {"paper-tf": 64, "default": 256}
"""Presets and their batches."""


def compiled() -> Iterator[Result]:
    """A step as it is over a compiled one; compiling is timed apart."""
    for preset, batch in CASES.items():
        torch.manual_seed(0)
        x, eager = torch.randn(batch, DIM), build_glow(DIM, resolve(preset).glow)
        faster = copy.deepcopy(eager)
        faster.log_prob = torch.compile(faster.log_prob)  # type: ignore[method-assign]
        calls = {
            name: training_step(flow, x, torch.optim.AdamW(flow.parameters(), lr=1e-6, fused=True))
            for name, flow in (("eager", eager), ("compiled", faster))
        }
        begin, cpu = time.perf_counter(), time.process_time()
        calls["compiled"]()
        facts = {
            "compile_wall_s": round(time.perf_counter() - begin, 1),
            "compile_cpu_s": round(time.process_time() - cpu, 1),
        }
        times = take_turns(calls, repeat=5)
        facts |= {f"{name}_ms": found.milliseconds() for name, found in times.items()}
        name = f"step of {preset}, batch {batch}: eager / torch.compile"
        yield Result(name, *ratio(times["eager"], times["compiled"]), facts=facts)
