"""What we rely on in nflows 0.14. If a new release breaks one of these, read ``bertflow/flow`` before moving to it.

Why so little of it is used is pinned as well: the last tests show what its own parts do.
"""

from importlib.metadata import version

import pytest
import torch
from nflows.distributions.normal import StandardNormal
from nflows.flows import Flow
from nflows.transforms.base import Transform
from nflows.transforms.permutations import Permutation

from bertflow.flow import GlowConfig
from bertflow.flow.glow import build_glow


def rows(n=8, dim=6):
    return torch.randn(n, dim, generator=torch.Generator().manual_seed(0))


def test_the_version_is_the_one_that_was_read():
    assert version("nflows") == "0.14"


def test_a_transform_is_a_module_with_forward_and_inverse():
    assert issubclass(Transform, torch.nn.Module)
    with pytest.raises(NotImplementedError):
        Transform()(rows())


def test_a_permutation_gathers_columns_and_its_inverse_puts_them_back():
    order, x = torch.tensor([2, 0, 1, 5, 4, 3]), rows()
    z, logabsdet = Permutation(order)(x)
    assert torch.equal(z, x[:, order])
    assert torch.equal(logabsdet, torch.zeros(8))
    assert torch.equal(Permutation(order).inverse(z)[0], x)


def test_a_permutation_is_saved_under_the_name_we_know():
    assert list(Permutation(torch.arange(3)).state_dict()) == ["_permutation"]


def test_our_log_prob_is_that_of_an_nflows_flow():
    glow, x = build_glow(6, GlowConfig(hidden=4), seed=1), rows()
    torch.testing.assert_close(Flow(glow, StandardNormal([6])).log_prob(x), glow.log_prob(x))
