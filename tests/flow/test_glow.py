"""The whole flow: its size, its levels, its density, its start, and what it never does."""

import itertools
import logging
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bertflow.errors import UsageError
from bertflow.flow import GlowConfig
from bertflow.flow.actnorm import STARTS, initialize
from bertflow.flow.coupling import ACTIVATIONS, COUPLINGS, NETWORKS
from bertflow.flow.glow import bits_per_dim, build_glow
from bertflow.flow.transforms import MIXINGS

from .test_transforms import seeded

RELEASED = {
    "network": "conv-stack",
    "permutation": "reversal",
    "actnorm_factor": 3.0,
    "initialization": "glorot",
    "restore_order": False,
    "factored_first": True,
}


def pushed(flow, size=0.3):
    """The flow with every parameter moved."""
    generator = seeded(3)
    with torch.no_grad():
        for parameter in flow.parameters():
            parameter.add_(size * torch.randn(parameter.shape, generator=generator))
    return flow


@pytest.mark.parametrize(
    ("dim", "levels", "depth", "trainable"),
    [
        (768, 3, 3, 151_488),
        (768, 2, 3, 127_872),
        (768, 3, 2, 100_992),
        (1024, 3, 3, 198_528),
    ],
)
def test_the_released_configs_have_the_released_number_of_parameters(dim, levels, depth, trainable):
    flow = build_glow(dim, GlowConfig(levels=levels, depth=depth, hidden=32, **RELEASED))
    assert sum(parameter.numel() for parameter in flow.parameters()) == trainable


def test_the_released_order_of_z_is_factored_parts_then_top():
    flow = build_glow(8, GlowConfig(levels=3, depth=1, hidden=4, factored_first=True))
    x = torch.arange(8.0)[None]
    assert flow(x)[0][0].tolist() == [4, 5, 6, 7, 2, 3, 0, 1]


@pytest.mark.parametrize(("dim", "levels"), [(2, 1), (3, 2), (4, 2), (5, 3), (6, 3), (4096, 3)])
def test_levels_are_capped_where_one_coordinate_would_go_on(dim, levels, caplog):
    flow = build_glow(dim, GlowConfig(levels=3, depth=1, hidden=2, permutation="random"))
    deepest = max(name.count("deeper") for name in flow.state_dict())
    assert deepest + 1 == levels
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert said == ([] if levels == 3 else [f"A flow of {dim} dimensions has room for {levels} levels, not 3."])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_4096_dimensions_work(dtype):
    flow = pushed(build_glow(4096, GlowConfig(levels=2, depth=1, hidden=8)), 1e-3).to(dtype)
    x = torch.randn(3, 4096, generator=seeded(), dtype=dtype)
    with torch.no_grad():
        z, logabsdet = flow(x)
        torch.testing.assert_close(flow.inverse(z)[0], x, rtol=0, atol=5e-5 if dtype == torch.float32 else 1e-10)
    assert logabsdet.isfinite().all()


def test_one_dimension_is_refused(refusal):
    assert refusal(lambda: build_glow(1, GlowConfig()), error=UsageError) == (
        "A flow needs at least 2 dimensions, got 1. Keep more directions."
    )


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("levels", 0, "glow.levels must be at least 1, got 0."),
        ("depth", 0, "glow.depth must be at least 1, got 0."),
        ("hidden", -3, "glow.hidden must be at least 1, got -3."),
        ("actnorm_factor", 0.0, "glow.actnorm_factor must be above 0, got 0.0."),
    ],
)
def test_a_config_that_cannot_be_is_refused(field, value, message, refusal):
    assert refusal(GlowConfig, **{field: value}, error=UsageError) == (message)


@pytest.mark.parametrize("permutation", ["random", "lu", "lu-rotation"])
def test_the_same_seed_builds_the_same_flow(permutation):
    config = GlowConfig(hidden=4, permutation=permutation)
    first, again, other = (build_glow(9, config, seed).state_dict() for seed in (5, 5, 6))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert any(not torch.equal(first[name], other[name]) for name in first)


@pytest.mark.parametrize("changes", [{}, RELEASED, {"permutation": "lu-rotation", "coupling": "affine"}])
def test_building_leaves_the_global_random_state_alone(changes):
    before = torch.get_rng_state()
    build_glow(8, GlowConfig(**{"hidden": 4, **changes}), seed=1)
    assert torch.equal(torch.get_rng_state(), before)


def test_bits_of_a_standard_normal_are_its_entropy():
    z = torch.randn(20_000, 3, generator=seeded())
    log_prob = torch.distributions.Normal(0.0, 1.0).log_prob(z).sum(1)
    assert bits_per_dim(log_prob, 3).mean().item() == pytest.approx(0.5 * math.log2(2 * math.pi * math.e), abs=0.01)


def grid(half_width, points, dim=2):
    """Points (points^dim, dim) of a cube, and the volume of a cell."""
    axis = torch.linspace(-half_width, half_width, points, dtype=torch.float64)
    return torch.cartesian_prod(*[axis] * dim), (2 * half_width / (points - 1)) ** dim


DENSITIES = [
    {},
    {"coupling": "affine"},
    {**RELEASED, "initialization": "identity"},
    {"permutation": "lu-rotation", "activation": "gatu"},
]


def wild(changes):
    return pushed(build_glow(2, GlowConfig(**{"hidden": 8, "levels": 1, **changes}), seed=1), 0.2).double()


@pytest.mark.parametrize("changes", DENSITIES)
def test_the_density_integrates_to_one(changes):
    x, cell = grid(half_width=15, points=801)
    with torch.no_grad():
        assert (wild(changes).log_prob(x).exp().sum() * cell).item() == pytest.approx(1.0, abs=1e-3)


@pytest.mark.parametrize("changes", DENSITIES)
def test_samples_are_where_the_density_says(changes):
    flow, (x, cell) = wild(changes), grid(half_width=15, points=801)
    with torch.no_grad():
        z = torch.randn(20_000, x.shape[1], generator=seeded(4), dtype=x.dtype)
        samples, density = flow.inverse(z)[0], flow.log_prob(x).exp()
    middle = samples.median(0).values
    for first, second in itertools.product((False, True), repeat=2):
        side = torch.tensor([first, second])
        share = ((samples > middle) == side).all(1).double().mean()
        expected = (density * ((x > middle) == side).all(1)).sum() * cell
        assert share.item() == pytest.approx(expected.item(), abs=0.015)


def test_a_flow_exports_with_any_number_of_rows():
    flow = pushed(build_glow(9, GlowConfig(hidden=4)))
    exported = torch.export.export(flow, (torch.randn(4, 9),), dynamic_shapes=({0: torch.export.Dim("n")},))
    x = torch.randn(7, 9)
    torch.testing.assert_close(exported.module()(x), flow(x))


CONFIGS = st.builds(
    GlowConfig,
    levels=st.integers(1, 3),
    depth=st.integers(1, 3),
    hidden=st.just(8),
    coupling=st.sampled_from(sorted(COUPLINGS)),
    activation=st.sampled_from(ACTIVATIONS),
    permutation=st.sampled_from(sorted(MIXINGS)),
    network=st.sampled_from(sorted(NETWORKS)),
    actnorm_factor=st.sampled_from([1.0, 3.0]),
    initialization=st.sampled_from(sorted(STARTS)),
    restore_order=st.booleans(),
    factored_first=st.booleans(),
)


def started(config, x, seed):
    """A flow that starts from the rows, moved as by a few hundred steps of Adam."""
    flow = build_glow(x.shape[1], config, seed)
    initialize(flow, x)
    generator = seeded(3)
    with torch.no_grad():
        for parameter in flow.parameters():
            parameter.add_(0.1 / parameter.shape[-1] ** 0.5 * torch.randn(parameter.shape, generator=generator))
    return flow


@settings(max_examples=max(25, settings.default.max_examples // 5))
@given(CONFIGS, st.integers(2, 9), st.sampled_from([2, 3, 64]), st.sampled_from([1, 100, 1e4]), st.integers(0, 999))
def test_any_flow_of_any_rows_is_finite_both_ways(config, dim, n, far, seed):
    x = torch.randn(n, dim, generator=seeded(seed))
    flow = started(config, x, seed)
    with torch.no_grad():
        z, logabsdet = flow(far * x)
        assert z.isfinite().all()
        assert logabsdet.isfinite().all()
        assert flow.inverse(z)[0].isfinite().all()


def test_a_hidden_unit_that_hardly_varies_is_not_blown_up():
    # A weight of the first layer is drawn near zero. At variance one of its unit, the inverse was off by 1.5 %.
    config = GlowConfig(depth=3, hidden=8, network="conv-stack", initialization="data", permutation="lu")
    x = torch.randn(64, 3, generator=seeded(10))
    flow = started(config, x, 10)
    with torch.no_grad():
        again = flow.inverse(flow(x)[0])[0]
    assert (again - x).abs().max() <= 6e-6 * x.abs().max()


def test_an_affine_coupling_can_be_inverted_far_from_the_rows():
    flow = started(GlowConfig(hidden=8, levels=1, depth=1, coupling="affine"), torch.zeros(2, 4), 0)
    x = 1e4 * torch.randn(50, 4, generator=seeded())
    with torch.no_grad():
        z, logabsdet = flow(x)
        again = flow.inverse(z)[0]
    assert logabsdet.min() < -19.9  # both scales of a row are the least
    assert (again - x).abs().max() <= 1e-5 * x.abs().max()
