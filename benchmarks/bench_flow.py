"""The flow: a step of training and inference against nflows' own parts; operators against a plain port.

D = 384, 2 levels of 3 steps, learned linear maps, coupling networks 64 wide, float32: what nflows' parts can do as
well. Optimizers are those of the training, and PyTorch's default for nflows.
"""

import copy
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import torch
from bench_stock import PlainAdamW, PlainPort, stock_of
from bench_timing import Result, count_operators, matmuls, ratio, take_turns
from folding import fold
from torch import Tensor, nn

from bertflow.affine import AffineMap
from bertflow.flow import GlowConfig
from bertflow.flow.glow import FlowMap, Glow, build_glow
from bertflow.flow.transforms import LULinear
from bertflow.training.module import OPTIMIZERS
from bertflow.training.recipe import PRESETS

DIM = 384
CONFIG = GlowConfig(levels=2, depth=3, hidden=64, permutation="lu")
REPEAT = {32: 10, 256: 5, 2048: 1}
"""Calls of one round, by the batch."""
STEP_TARGETS = {32: 2.0, 256: 1.3, 2048: None}
FLOOR = 1.2
"""At batch 2048, a step should cost at most this much of its matrix products alone."""
INFERENCE_TARGETS = {32: (3.0, None), 256: (None, None), 2048: (None, 1.2)}
"""Against nflows without its cache, and with it."""


def training_step(flow: nn.Module, x: Tensor, optimizer: torch.optim.Optimizer) -> Callable[[], None]:
    """One step of fitting a density to the same rows."""

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        (-flow.log_prob(x).mean() / DIM).backward()
        optimizer.step()

    return step


def products(flow: nn.Module, rows: int) -> Iterator[tuple[int, int, int]]:
    """The matrix products of one forward pass."""
    for part in flow.modules():
        if isinstance(part, LULinear):
            dim = len(part.factors)
            yield from [(rows, dim, dim)] * 2
        elif isinstance(part, nn.Linear):
            yield rows, part.in_features, part.out_features


def of_a_step(forward: Iterator[tuple[int, int, int]]) -> Iterator[tuple[int, int, int]]:
    """A product, the gradient of its rows, and that of its matrix."""
    for rows, inner, columns in forward:
        yield from ((rows, inner, columns), (rows, columns, inner), (inner, rows, columns))


def moved(flow: Glow) -> Glow:
    """The flow, a little off its start, so that no network is zero."""
    with torch.no_grad():
        for parameter in flow.parameters():
            parameter.add_(0.02 * torch.randn(parameter.shape) / parameter.shape[-1] ** 0.5)
    return flow


def steps() -> Iterator[Result]:
    """A step of training against nflows."""
    for batch, target in STEP_TARGETS.items():
        torch.manual_seed(0)
        glow, x = moved(build_glow(DIM, CONFIG)), torch.randn(batch, DIM)
        stock = stock_of(copy.deepcopy(glow)).train()
        calls = {
            "nflows": training_step(stock, x, torch.optim.Adam(stock.parameters(), lr=1e-6)),
            "ours": training_step(glow, x, OPTIMIZERS["adam"](glow.parameters(), lr=1e-6, weight_decay=0.0)),
            "products": matmuls(of_a_step(products(glow, batch)), nn.functional.linear),
            "onednn": matmuls(of_a_step(products(glow, batch))),
        }
        times = take_turns(calls, repeat=REPEAT[batch])
        facts = {f"{name}_ms": found.milliseconds() for name, found in times.items()}
        value, wall = ratio(times["nflows"], times["ours"])
        yield Result(f"flow step, batch {batch}: nflows / ours", value, wall, target, facts=facts)
        if batch == max(STEP_TARGETS):
            name = f"flow step, batch {batch}: ours / its matrix products"
            value, wall = ratio(times["ours"], times["products"])
            yield Result(f"{name}, by PyTorch", value, wall, FLOOR, at_most=True)
            value, wall = ratio(times["ours"], times["onednn"])
            yield Result(f"{name}, by oneDNN", value, wall)


def inference() -> Iterator[Result]:
    """Latents alone, with folded weights, against nflows."""
    torch.manual_seed(0)
    glow = moved(build_glow(DIM, CONFIG)).eval().requires_grad_(False)
    flow = FlowMap(AffineMap(np.zeros(DIM), np.eye(DIM), np.eye(DIM)), glow).eval()
    folded = fold(flow)
    without, cached = (stock_of(glow, cached).eval().requires_grad_(False) for cached in (False, True))
    for batch, targets in INFERENCE_TARGETS.items():
        x = torch.randn(batch, DIM)
        with torch.no_grad():
            calls = {
                "no_cache": lambda x=x: without.transform_to_noise(x),
                "cache": lambda x=x: cached.transform_to_noise(x),
                "eager": lambda x=x: flow(x),
                "folded": lambda x=x: folded(x),
            }
            times = take_turns(calls, repeat=2 * REPEAT[batch])
        facts = {f"{name}_ms": found.milliseconds() for name, found in times.items()}
        for name, target in zip(("no_cache", "cache"), targets, strict=True):
            value, wall = ratio(times[name], times["folded"])
            label = "nflows" if name == "cache" else "nflows without cache"
            yield Result(f"inference, batch {batch}: {label} / folded", value, wall, target, facts=facts)


def operators() -> Iterator[Result]:
    """Operators of one step of the paper's flow (3 levels of 3, 32 wide), clipping and optimizer included."""
    torch.manual_seed(0)
    recipe, x = PRESETS["paper-tf"], torch.randn(32, DIM)
    port, ours = PlainPort(DIM), build_glow(DIM, recipe.glow)
    plain = PlainAdamW(list(port.parameters()))
    optimizer = OPTIMIZERS[recipe.optimizer](ours.parameters(), lr=recipe.learning_rate, weight_decay=0.01)

    def plain_step() -> None:
        (-port.log_prob(x).mean()).backward()
        plain.step()

    def our_step() -> None:
        optimizer.zero_grad(set_to_none=True)
        (-ours.log_prob(x).mean()).backward()
        nn.utils.clip_grad_norm_(ours.parameters(), recipe.clip_norm)
        optimizer.step()

    calls = {"plain": plain_step, "ours": our_step}
    counts = {name: count_operators(call) for name, call in calls.items()}
    times = take_turns(calls, repeat=5)
    both = ratio(times["plain"], times["ours"])
    facts = {f"{name}_operators": n for name, (n, _) in counts.items()}
    facts |= {f"{name}_views": n for name, (_, n) in counts.items()}
    flows = {"plain": port, "ours": ours}
    facts |= {f"{name}_forward": count_operators(partial(flow.log_prob, x))[0] for name, flow in flows.items()}
    facts |= {f"{name}_ms": found.milliseconds() for name, found in times.items()}
    yield Result(
        "the paper's flow: operators of a step, plain port / ours",
        counts["plain"][0] / counts["ours"][0],
        target=3.0,
        facts=facts,
    )
    yield Result("the paper's flow: a step, plain port / ours", *both)
