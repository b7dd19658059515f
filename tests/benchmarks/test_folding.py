import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch

from bertflow.affine import whitening_map
from bertflow.flow import GlowConfig
from bertflow.flow.glow import FlowMap, build_glow
from bertflow.moments import Moments
from bertflow.training.recipe import RELEASED_GLOW

SPEC = importlib.util.spec_from_file_location("folding", Path(__file__).parents[2] / "benchmarks" / "folding.py")
folding = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(folding)
fold = folding.fold

CONFIGS = {
    "default": GlowConfig(hidden=16),
    "released": RELEASED_GLOW,
    "lu": GlowConfig(hidden=16, permutation="lu"),
    "lu-rotation": GlowConfig(hidden=16, permutation="lu-rotation", network="conv-stack", initialization="glorot"),
    "affine": GlowConfig(hidden=16, coupling="affine", network="conv-stack", initialization="glorot"),
    "gatu": GlowConfig(hidden=16, activation="gatu", permutation="reversal"),
    "one level": GlowConfig(hidden=16, levels=1, depth=1),
    "deep": GlowConfig(hidden=8, levels=4, depth=2, permutation="lu", factored_first=True),
}


def flow_map(config, dim=25, kept=None):
    """A flow that does something everywhere."""
    x = np.random.default_rng(0).normal(size=(200, dim)) @ np.random.default_rng(1).normal(size=(dim, dim)) + 3
    glow = build_glow(dim, config)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in glow.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
    return FlowMap(whitening_map(Moments.of(x)), glow, kept), torch.from_numpy(x)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("kept", [None, 7])
def test_a_folded_flow_makes_the_same_embeddings(config, kept):
    flow, x = flow_map(config, kept=kept)
    flow = flow.double().requires_grad_(False)
    np.testing.assert_allclose(fold(flow)(x), flow(x), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_a_folded_flow_is_as_exact_in_float32(config):
    flow, x = flow_map(config)
    exact = flow_map(config)[0].double().requires_grad_(False)(x)
    flow.requires_grad_(False)
    eager, folded = (float((f(x.float()).double() - exact).abs().max()) for f in (flow, fold(flow)))
    assert folded < max(3 * eager, 1e-5)


def test_a_narrow_cone_costs_no_precision():
    flow, x = flow_map(CONFIGS["default"])
    flow.requires_grad_(False).affine.shift.add_(1e4)
    rows = (x + 1e4).float()
    eager, folded = flow(rows), fold(flow)(rows)
    exact = flow.double()(rows.double())
    assert float((folded - exact).abs().max()) < 2 * float((eager - exact).abs().max())


def test_no_actnorm_is_left_and_the_flow_is_untouched():
    flow, x = flow_map(RELEASED_GLOW)
    before = {name: value.clone() for name, value in flow.state_dict().items()}
    folded = fold(flow)
    assert not [name for name, _ in folded.named_parameters() if "log_scale" in name]
    assert all(torch.equal(value, before[name]) for name, value in flow.state_dict().items())
    assert folded(x.float()).dtype == torch.float32


def test_a_folded_flow_exports_as_one_graph():
    flow, x = flow_map(CONFIGS["default"])
    rows = torch.export.Dim("rows", min=1)
    program = torch.export.export(fold(flow), (x.float(),), dynamic_shapes=({0: rows},))
    np.testing.assert_allclose(program.module()(x[:3].float()), fold(flow)(x[:3].float()), rtol=1e-5, atol=1e-6)
