"""The flow: a step of training and inference against nflows' own parts; operators against a plain port.

The flows are those of the presets, on rows of width 384 in float32. Both sides have the same optimizer, Adam as one
fused kernel, and the same coupling networks, so the same matrix products.
"""

import copy
from collections.abc import Callable, Iterator
from functools import partial

import torch
from bench_stock import PlainAdamW, PlainPort, stock_of
from bench_timing import Product, Result, count_operators, matmuls, ratio, take_turns
from torch import Tensor, nn

from bertflow.flow.glow import Glow, build_glow
from bertflow.onednn import FORWARD, INPUT, WEIGHT
from bertflow.training.module import OPTIMIZERS
from bertflow.training.recipe import PRESETS, resolve

DIM = 384
FLOWS = {"default": 1.25, "paper-tf": 1.8}
"""Presets, and how much longer a step of nflows' parts should take."""
REPEAT = {32: 10, 256: 5, 2048: 1}
"""Calls of one round, by the batch."""
FLOORS = {256: 1.8}
"""A step of the default flow should cost at most this much of its matrix products alone."""
LARGE = 2048
"""A batch that is reported without a target."""


def training_step(flow: nn.Module, x: Tensor, optimizer: torch.optim.Optimizer) -> Callable[[], None]:
    """One step of fitting a density to the same rows."""

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        (-flow.log_prob(x).mean() / DIM).backward()
        optimizer.step()

    return step


def products(flow: nn.Module, rows: int) -> Iterator[Product]:
    """The matrix products of a step: forward, the gradient of the rows, and that of the matrix."""
    for part in flow.modules():
        if isinstance(part, nn.Linear):
            yield rows, part.in_features, part.out_features, FORWARD
            yield rows, part.out_features, part.in_features, INPUT
            yield part.out_features, rows, part.in_features, WEIGHT


def moved(flow: Glow) -> Glow:
    """The flow, a little off its start, so that no network is zero."""
    with torch.no_grad():
        for parameter in flow.parameters():
            parameter.add_(0.02 * torch.randn(parameter.shape) / parameter.shape[-1] ** 0.5)
    return flow


def steps() -> Iterator[Result]:
    """A step of training, against nflows and against nothing but its matrix products."""
    for preset, target in FLOWS.items():
        for batch, repeat in REPEAT.items():
            torch.manual_seed(0)
            glow, x = moved(build_glow(DIM, resolve(preset).glow)), torch.randn(batch, DIM)
            stock = stock_of(copy.deepcopy(glow)).train()
            calls = {
                "nflows": training_step(stock, x, torch.optim.Adam(stock.parameters(), lr=1e-6, fused=True)),
                "ours": training_step(glow, x, OPTIMIZERS["adam"](glow.parameters(), lr=1e-6, weight_decay=0.0)),
                "products": matmuls(list(products(glow, batch)), learns=True),
            }
            times = take_turns(calls, repeat=repeat)
            facts = {f"{name}_ms": found.milliseconds() for name, found in times.items()}
            value, wall = ratio(times["nflows"], times["ours"])
            name = f"flow step, {preset}, batch {batch}"
            yield Result(f"{name}: nflows / ours", value, wall, None if batch == LARGE else target, facts=facts)
            if preset == "default":
                value, wall = ratio(times["ours"], times["products"])
                yield Result(f"{name}: ours / its matrix products", value, wall, FLOORS.get(batch), at_most=True)


def inference() -> Iterator[Result]:
    """Latents alone of the default flow, against nflows."""
    torch.manual_seed(0)
    glow = moved(build_glow(DIM, resolve("default").glow)).eval().requires_grad_(False)
    stock = stock_of(glow).eval().requires_grad_(False)
    for batch, repeat in REPEAT.items():
        x = torch.randn(batch, DIM)
        with torch.no_grad():
            calls = {"nflows": lambda x=x: stock.transform_to_noise(x), "ours": lambda x=x: glow(x)}
            times = take_turns(calls, repeat=2 * repeat)
        facts = {f"{name}_ms": found.milliseconds() for name, found in times.items()}
        value, wall = ratio(times["nflows"], times["ours"])
        yield Result(f"inference, default, batch {batch}: nflows / ours", value, wall, facts=facts)


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
