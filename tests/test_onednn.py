"""PyTorch's own linear layer is the second voice, float64 the judge."""

import pytest
import torch
from torch import nn

from bertflow import onednn
from bertflow.onednn import Linear, linear, use_onednn

needs_x86 = pytest.mark.skipif(not onednn.HERE, reason="not an x86 processor with oneDNN")


@pytest.fixture
def counted(monkeypatch):
    """How often oneDNN was called."""
    calls = []
    apply = onednn._Linear.apply
    monkeypatch.setattr(onednn._Linear, "apply", lambda *given: (calls.append(1), apply(*given))[1])
    return calls


def tensors(shape, dim_in, dim_out, seed=0):
    generator = torch.Generator().manual_seed(seed)
    made = [torch.randn(size, generator=generator) for size in ((*shape, dim_in), (dim_out, dim_in), (dim_out,))]
    return [tensor.requires_grad_() for tensor in made]


@needs_x86
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(300,), (5, 60), (2, 3, 50)])
def test_values_and_gradients_are_those_of_float64(counted, shape, bias):
    x, weight, shift = tensors(shape, 160, 120)
    given = [x, weight, shift] if bias else [x, weight]
    made = linear(*given)
    assert len(counted) == 1
    exact = [tensor.detach().double().requires_grad_() for tensor in given]
    wanted = nn.functional.linear(*exact)
    torch.testing.assert_close(made.double(), wanted, rtol=1e-6, atol=2e-5)
    above = torch.randn(made.shape, generator=torch.Generator().manual_seed(1))
    found = torch.autograd.grad(made, given, above)
    for one, other in zip(found, torch.autograd.grad(wanted, exact, above.double()), strict=True):
        assert ((one - other).norm() / other.norm()).item() < 1e-6


@needs_x86
def test_gradients_can_be_differentiated_again(counted):
    x, weight, shift = tensors((300,), 128, 128)
    second = []
    for layer in (linear, nn.functional.linear):
        (first,) = torch.autograd.grad(layer(x, weight, shift).pow(3).sum(), x, create_graph=True)
        second.append(torch.autograd.grad(first.pow(2).sum(), weight)[0])
    assert counted
    assert ((second[0] - second[1]).norm() / second[1].norm()).item() < 1e-5


@needs_x86
@pytest.mark.parametrize(
    "turn",
    [lambda x: x.t().contiguous().t(), lambda x: x[:1].expand_as(x), lambda x: torch.cat((x, x), 1)[:, : x.shape[1]]],
)
def test_rows_and_weights_may_lie_as_they_like(counted, turn):
    x, weight, shift = (tensor.detach() for tensor in tensors((256,), 160, 128))
    for rows, matrix in ((turn(x), weight), (x, turn(weight))):
        torch.testing.assert_close(linear(rows, matrix, shift), nn.functional.linear(rows, matrix, shift))
    assert len(counted) == 2


@pytest.mark.parametrize(
    "make",
    [
        lambda: [torch.randn(2, 8), torch.randn(8, 8)],
        lambda: [torch.randn(300, 160, dtype=torch.float64), torch.randn(120, 160, dtype=torch.float64)],
        lambda: [torch.randn(300, 160).bfloat16(), torch.randn(120, 160).bfloat16()],
        lambda: [torch.randn(300, 160, device="meta"), torch.randn(120, 160, device="meta")],
        lambda: [torch.randn(0, 160), torch.randn(120, 160)],
    ],
    ids=["few", "float64", "bfloat16", "meta", "none"],
)
def test_what_it_does_no_better_goes_to_torch(counted, make):
    x, weight = make()
    made = linear(x, weight)
    wanted = nn.functional.linear(x, weight)
    assert not counted
    assert made.device == wanted.device
    assert x.device.type == "meta" or torch.equal(made, wanted)


def test_torchs_own_switch_switches_it_off(counted, monkeypatch):
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    linear(*tensors((300,), 160, 120))
    assert not counted


def test_autocast_keeps_its_word(counted):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert linear(*tensors((300,), 160, 120)).dtype == torch.bfloat16
    assert not counted


def test_a_model_keeps_its_weights_and_their_names(counted):
    model = nn.Sequential(nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 128))
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    x = torch.randn(300, 128)
    wanted = model(x)
    use_onednn(model)
    assert [type(layer) for layer in model] == [Linear, nn.ReLU, Linear]
    torch.testing.assert_close(model(x), wanted)
    assert len(counted) == (2 if onednn.HERE else 0)
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())


def test_a_graph_that_is_exported_has_torchs_operator(counted):
    model = nn.Sequential(Linear(128, 128))
    program = torch.export.export(model, (torch.randn(300, 128),))
    assert "aten.linear.default" in {str(node.target) for node in program.graph.nodes}
    assert not counted
