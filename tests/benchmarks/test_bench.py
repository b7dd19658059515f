"""What the benchmarks compare is the same mathematics; how fast it is, is not for a test to say."""

from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from bertflow.flow import GlowConfig
from bertflow.flow.glow import build_glow
from bertflow.onednn import Linear
from bertflow.training.recipe import RELEASED_GLOW, resolve

from .conftest import imported, read_json

stock, timing, page = (imported(f"bench_{name}") for name in ("stock", "timing", "page"))


def pushed(flow, scale=0.05):
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in flow.parameters():
            parameter.add_(scale * torch.randn(parameter.shape, generator=generator) / parameter.shape[-1] ** 0.5)
    return flow


def rows(n, dim):
    return torch.randn(n, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


SIZES = ((16, 1), (64, 3), (384, 2))
OWN = {(dim, levels): GlowConfig(levels=levels, hidden=8, permutation="lu") for dim, levels in SIZES}
OWN |= {(48, preset): resolve(preset).glow for preset in ("default", "paper-tf")}


@pytest.mark.parametrize("case", OWN)
def test_nflows_own_parts_give_the_same_log_likelihood(case, stock):
    glow = pushed(build_glow(case[0], OWN[case])).double()
    theirs, x = stock.stock_of(glow).double(), rows(9, case[0])
    assert_close(theirs.log_prob(x), glow.log_prob(x), rtol=0, atol=1e-10)


def test_the_plain_port_is_the_released_flow(stock):
    ours = build_glow(32, RELEASED_GLOW)
    port = stock.PlainPort(32)
    with torch.no_grad():
        for level in range(3):
            for step in range(3):
                part = ours.get_submodule(f"flow.{'deeper.inner.' * level}step{step}")
                take(port.norms[level][step], part.actnorm)
                network, stack = part.coupling.network, port.stacks[level][step]
                for norm, layer in zip(stack.norms, (network.first, network.second), strict=True):
                    take(norm, layer.actnorm)
                stack.first.copy_(network.first.linear.weight.T)
                stack.second.copy_(network.second.linear.weight.T)
                network.last.linear.weight.copy_(torch.randn(network.last.linear.weight.shape) / 8)
                stack.last.copy_(network.last.linear.weight.T)
    x = rows(7, 32).float()
    assert_close(port.log_prob(x), ours.log_prob(x), rtol=1e-5, atol=1e-4)


def take(norm, actnorm):
    norm.b.copy_(actnorm.shift)
    norm.logs.copy_(actnorm.log_scale)


def test_an_operator_over_a_list_counts_once_for_each_tensor_and_views_apart(timing):
    x = [torch.ones(2), torch.ones(3)]
    assert timing.count_operators(lambda: torch._foreach_add(x, 1.0)) == (2, 0)
    assert timing.count_operators(lambda: x[0].view(2, 1) + 1) == (1, 1)


def test_a_ratio_is_the_median_of_the_rounds(timing):
    above, below = timing.Times([2.0, 9.0, 4.0], [1.0, 1.0, 1.0]), timing.Times([1.0, 1.0, 2.0], [2.0, 2.0, 2.0])
    assert timing.ratio(above, below) == (2.0, 0.5)


@pytest.mark.parametrize(("value", "at_most", "met"), [(2.1, False, True), (1.9, False, False), (2.1, True, False)])
def test_a_target_is_met_from_the_side_it_says(value, at_most, met, timing):
    assert timing.Result("row", value, target=2.0, at_most=at_most).met is met


def test_the_products_of_a_step_are_those_of_autograd(monkeypatch, timing, benchmark):
    flow, taken = torch.nn.Sequential(Linear(6, 4), torch.nn.ReLU(), Linear(4, 2)), []
    spied = lambda x, weight, bias, kind: taken.append((*x.shape, len(weight), kind))  # noqa: E731
    monkeypatch.setattr(timing, "linear", spied)
    timing.matmuls(list(benchmark("bench_flow").products(flow, 3)), learns=True)()
    steps = [("forward", 3, 6, 4), ("input gradient", 3, 4, 6), ("weight gradient", 4, 3, 6)]
    steps += [("forward", 3, 4, 2), ("input gradient", 3, 2, 4), ("weight gradient", 2, 3, 4)]
    assert taken == [(*shape, kind) for kind, *shape in steps]


def test_the_plain_loop_fits_its_flow(tiny_bert, stock):
    sentences = ["a cat sat", "a dog ran", "the cat ran", "the dog sat"] * 8
    flow = stock.plain_loop(str(tiny_bert), sentences, batch=8)
    assert torch.isfinite(flow.log_prob(torch.randn(5, 16))).all()
    assert any(parameter.abs().max() > 0 for parameter in (flow.stacks[0][0].last, flow.norms[0][0].b))


def test_the_page_quotes_the_results_that_are_kept(page):
    results = read_json(Path(page.__file__).parent / "results.json")
    assert page.section(results) in page.PAGE.read_text("utf-8")
