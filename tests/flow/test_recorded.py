"""A step of training goes back through the flow by the parts' own gradients; PyTorch's autograd is the second voice."""

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn.utils.parametrize import register_parametrization

from bertflow.flow.actnorm import ActNorm
from bertflow.flow.glow import build_glow, normal_log_prob
from bertflow.training.recipe import resolve

FLOWS = {
    "default": ("default", {}),
    "factored first": ("default", {"factored_first": True, "levels": 3}),
    "no order": ("default", {"restore_order": False}),
    "paper-tf": ("paper-tf", {}),
    "paper-text": ("paper-text", {}),
    "learned maps": ("paper-tf", {"permutation": "lu-rotation"}),
    "affine": ("default", {"coupling": "affine"}),
    "affine, learned": ("paper-tf", {"coupling": "affine", "permutation": "lu"}),
    "gate": ("paper-tf", {"activation": "gatu"}),
}


def flow_and_rows(name, dim=11, n=5):
    """A flow off its start, in float64, and rows."""
    preset, changes = FLOWS[name]
    glow = build_glow(dim, resolve(preset, {"glow": {"hidden": 6, **changes}}).glow, seed=1).double()
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in glow.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return glow, torch.randn(n, dim, generator=generator, dtype=torch.float64, requires_grad=True)


def by_autograd(glow, x):
    z, logabsdet = glow(x)
    return normal_log_prob(z) + logabsdet


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("name", FLOWS)
def test_values_and_gradients_are_those_of_autograd(name, dtype):
    glow, x = flow_and_rows(name)
    glow, x = glow.to(dtype), x.detach().to(dtype).requires_grad_()
    above = torch.randn(len(x), generator=torch.Generator().manual_seed(3)).to(dtype)
    made, wanted = glow.log_prob(x), by_autograd(glow, x)
    assert torch.equal(made, wanted)
    leaves = [x, *glow.parameters()]
    found, exact = (torch.autograd.grad(each, leaves, above) for each in (made, wanted))
    for one, other in zip(found, exact, strict=True):
        assert (one - other).norm() <= 100 * torch.finfo(dtype).eps * other.norm()


class Doubled(nn.Module):
    def forward(self, x):
        return 2 * x


@pytest.mark.parametrize("name", ["default", "paper-tf", "learned maps"])
def test_what_is_frozen_or_computed_by_a_parametrization_learns_as_by_autograd(name):
    glow, x = flow_and_rows(name)
    for frozen in list(glow.parameters())[::3]:
        frozen.requires_grad_(False)
    for parametrized in (False, True):
        if parametrized:
            part = next(module for module in glow.modules() if isinstance(module, ActNorm))
            register_parametrization(part, "shift", Doubled())
        leaves = [each for each in glow.parameters() if each.requires_grad]
        found, wanted = (
            torch.autograd.grad(made(x).sum(), leaves) for made in (glow.log_prob, lambda x: by_autograd(glow, x))
        )
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, other)


@pytest.mark.parametrize("name", ["default", "paper-tf"])
def test_gradients_are_those_of_differences(name):
    glow, x = flow_and_rows(name, dim=4, n=2)
    names = [name for name, _ in glow.named_parameters()]

    def log_prob(x, *parameters):
        return functional_call(Density(glow), {f"glow.{n}": p for n, p in zip(names, parameters, strict=True)}, (x,))

    leaves = (x, *(parameter.detach().clone().requires_grad_() for parameter in glow.parameters()))
    assert torch.autograd.gradcheck(log_prob, leaves, fast_mode=True)


class Density(torch.nn.Module):
    """Calls ``log_prob``."""

    def __init__(self, glow):
        super().__init__()
        self.glow = glow

    def forward(self, x):
        return self.glow.log_prob(x)


def test_gradients_can_be_differentiated_again():
    glow, x = flow_and_rows("default")
    second = []
    for density in (glow.log_prob, lambda x: by_autograd(glow, x)):
        (score,) = torch.autograd.grad(density(x).sum(), x, create_graph=True)
        second.append(torch.autograd.grad(score.square().sum(), glow.flow.step0.coupling.network.first.weight)[0])
    assert second[0].norm() > 0
    torch.testing.assert_close(*second)


def test_a_graph_that_is_kept_gives_the_same_gradients_again():
    glow, x = flow_and_rows("paper-tf")
    loss, leaves = glow.log_prob(x).sum(), list(glow.parameters())
    first = torch.autograd.grad(loss, leaves, retain_graph=True)
    assert all(map(torch.equal, first, torch.autograd.grad(loss, leaves)))
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def test_weights_that_changed_in_between_are_refused():
    glow, x = flow_and_rows("default")
    loss = glow.log_prob(x).sum()
    with torch.no_grad():
        glow.flow.step0.coupling.network.first.weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_weights_that_stay_get_no_gradient():
    glow, x = flow_and_rows("default")
    glow.requires_grad_(False).flow.step0.actnorm.shift.requires_grad_(True)
    glow.log_prob(x.detach()).sum().backward()
    assert [name for name, one in glow.named_parameters() if one.grad is not None] == ["flow.step0.actnorm.shift"]


def test_functional_transforms_reach_the_density():
    glow, x = flow_and_rows("default")
    score = vmap(grad(lambda row: glow.log_prob(row[None])[0]))(x.detach())
    torch.testing.assert_close(score, torch.autograd.grad(glow.log_prob(x).sum(), x)[0])


def test_an_order_that_is_loaded_is_undone():
    glow, x = flow_and_rows("default")
    other = build_glow(11, glow.config, seed=2).double()
    other.load_state_dict(glow.state_dict())
    torch.testing.assert_close(other.inverse(other(x)[0])[0], x)
    assert not [name for name in glow.state_dict() if name.endswith("_back")]
