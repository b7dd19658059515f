"""A fitted flow as one map: affine start, flow on the first coordinates, Gaussian rest, an embedding of the first k."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load, save
from scipy.stats import multivariate_normal
from torch.func import jacrev, vmap

from bertflow.affine import whitening_map
from bertflow.errors import NullDirectionWarning, UsageError
from bertflow.flow import GlowConfig
from bertflow.flow.actnorm import initialize
from bertflow.flow.glow import FlowMap, build_glow
from bertflow.moments import Moments

EXACT = {"rtol": 1e-9, "atol": 1e-9}


def cloud(n=200, dim=5, seed=0):
    """Rows with a mean and a full covariance."""
    random = np.random.default_rng(seed)
    return random.normal(size=(n, dim)) @ random.normal(size=(dim, dim)) + random.normal(size=dim)


def flow_map(x, k=None, size=0.2, dim_out=None, **changes):
    affine = whitening_map(Moments.of(x))
    flow = FlowMap(
        affine,
        build_glow(k or affine.dim_out, GlowConfig(**{"hidden": 8, "permutation": "lu", **changes}), seed=1),
        dim_out,
    )
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in flow.parameters():
            parameter.add_(size * torch.randn(parameter.shape, generator=generator))
    return flow


@pytest.fixture
def x():
    return cloud()


@pytest.fixture(params=[(2, None), (3, None), (5, None), (5, 2), (3, 1)], ids="flow of {0[0]}, keeps {0[1]}".format)
def fitted(request, x):
    k, dim_out = request.param
    return flow_map(x, k, dim_out=dim_out).double()


def test_an_embedding_is_the_first_coordinates_of_the_latent(fitted, x):
    x = torch.from_numpy(x)
    assert torch.equal(fitted(x), fitted.latent(x)[0][:, : fitted.dim_out])


def test_coordinates_beyond_the_flow_stay_whitened(fitted, x):
    x = torch.from_numpy(x)
    assert torch.equal(fitted.latent(x)[0][:, fitted.glow.dim :], fitted.affine(x)[:, fitted.glow.dim :])


def test_logabsdet_is_that_of_the_jacobian(fitted, x):
    x = torch.from_numpy(x[:3])
    jacobian = vmap(jacrev(lambda row: fitted.latent(row[None])[0][0]))(x)
    torch.testing.assert_close(fitted.latent(x)[1], torch.linalg.slogdet(jacobian).logabsdet, **EXACT)


def test_inverse_of_the_whole_latent_is_exact(fitted, x):
    x = torch.from_numpy(x)
    torch.testing.assert_close(fitted.inverse(fitted.latent(x)[0]), x, **EXACT)


def test_inverse_of_an_embedding_sets_what_is_missing_to_zero(fitted, x):
    z = fitted(torch.from_numpy(x))
    whole = torch.cat((z, torch.zeros(len(z), fitted.rank - fitted.dim_out)), 1)
    torch.testing.assert_close(fitted.inverse(z), fitted.inverse(whole), rtol=0, atol=0)


@pytest.mark.parametrize("k", [2, 3, 5])
def test_it_starts_as_whitening_with_the_density_of_the_gaussian(x, k):
    fitted, rows = flow_map(x, k, size=0.0).double(), torch.from_numpy(x)
    whitened = whitening_map(Moments.of(x), k)(rows)
    torch.testing.assert_close(fitted(rows), whitened, **EXACT)
    expected = multivariate_normal(x.mean(0), np.cov(x.T, bias=True)).logpdf(x)
    np.testing.assert_allclose(fitted.log_prob(rows).detach(), expected, rtol=1e-9)


def test_within_a_plane_the_density_is_that_of_the_plane():
    # Rows in a plane of 3-D: the density is one over the two coordinates of an orthonormal basis.
    flat, basis = cloud(dim=2), np.linalg.qr(np.random.default_rng(5).normal(size=(3, 2)))[0]
    with pytest.warns(NullDirectionWarning):
        fitted = flow_map(flat @ basis.T, size=0.0).double()
    expected = multivariate_normal(flat.mean(0), np.cov(flat.T, bias=True)).logpdf(flat)
    np.testing.assert_allclose(fitted.log_prob(torch.from_numpy(flat @ basis.T)).detach(), expected, rtol=1e-9)


@pytest.mark.parametrize(("dim", "k", "points"), [(2, 2, 301), (3, 2, 61)])
def test_the_density_integrates_to_one_also_after_reduction(dim, k, points):
    x = cloud(dim=dim)
    fitted = flow_map(x, k).double()
    low, high = x.min(0) - x.std(0), x.max(0) + x.std(0)
    axes = [torch.linspace(a, b, points, dtype=torch.float64) for a, b in zip(low, high, strict=True)]
    cell = np.prod((high - low) / (points - 1))
    with torch.no_grad():
        total = fitted.log_prob(torch.cartesian_prod(*axes)).exp().sum().item() * cell
    assert total == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_flow_works_in_float32_whatever_the_rows(x, dtype):
    fitted, rows = flow_map(x, 3), torch.from_numpy(x).to(dtype)
    assert fitted(rows).dtype == torch.float32
    torch.testing.assert_close(fitted(rows), fitted(rows.float()), rtol=1e-5, atol=1e-5)


def test_a_flow_cast_to_half_precision_is_refused(x, refusal):
    assert refusal(lambda: flow_map(x).half()(torch.from_numpy(x)), error=UsageError) == (
        "The flow works in float32 or float64, got torch.float16. Convert the rows with .float()."
    )


def test_inverse_in_single_precision_is_exact_to_float_error(x):
    fitted, rows = flow_map(x, 3), torch.from_numpy(x).float()
    again = fitted.inverse(fitted.latent(rows)[0])
    assert (again - rows).abs().max() <= 1e-5 * rows.abs().max()


@pytest.mark.parametrize(
    "changes", [{}, {"network": "conv-stack", "initialization": "data", "permutation": "lu-rotation"}]
)
def test_spec_and_state_rebuild_the_map_bit_for_bit(x, changes):
    fitted = flow_map(x, 3, **changes)
    initialize(fitted, torch.from_numpy(x))
    again = FlowMap.from_spec(json.loads(json.dumps(fitted.spec())))
    again.load_state_dict(load(save({name: tensor.contiguous() for name, tensor in fitted.state_dict().items()})))
    rows = torch.from_numpy(x).float()
    assert torch.equal(again(rows), fitted(rows))
    assert torch.equal(again.log_prob(rows), fitted.log_prob(rows))


def test_a_flow_wider_than_its_start_is_refused(x, refusal):
    assert refusal(
        lambda: FlowMap(whitening_map(Moments.of(x), 3), build_glow(4, GlowConfig(hidden=4))), error=UsageError
    ) == ("The flow needs 4 coordinates, but its affine start makes 3. Build the flow for at most that many.")


@pytest.mark.parametrize("dim_out", [0, 4])
def test_an_embedding_wider_than_the_flow_is_refused(x, dim_out, refusal):
    assert refusal(flow_map, x, 3, dim_out=dim_out, error=UsageError) == (
        f"The embedding keeps {dim_out} of the flow's 3 coordinates. Keep from 1 to 3."
    )


def test_an_inverse_of_another_width_is_refused(x, refusal):
    assert refusal(lambda: flow_map(x, 3).inverse(torch.zeros(2, 4))) == (
        "The inverse takes the 3 coordinates of an embedding or all 5 of the latent, got 4."
    )


@pytest.mark.filterwarnings("ignore:Guards may run slower on Python 3.13.0")  # no other release says so
def test_a_map_is_one_graph_without_a_break(x):
    explained = torch._dynamo.explain(flow_map(x, 3).log_prob)(torch.from_numpy(x).float())
    assert (explained.graph_count, explained.graph_break_count) == (1, 0)
