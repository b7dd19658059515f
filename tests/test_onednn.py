"""PyTorch's own linear layer is the second voice, float64 the judge."""

import pytest
import torch
from torch import nn

from bertflow import onednn
from bertflow.onednn import Linear, linear, use_onednn

needs_onednn = pytest.mark.skipif(not onednn.THROUGH_ONEDNN, reason="a processor on which oneDNN is no faster")


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


@needs_onednn
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


@needs_onednn
def test_gradients_can_be_differentiated_again(counted):
    x, weight, shift = tensors((300,), 128, 128)
    second = []
    for layer in (linear, nn.functional.linear):
        (first,) = torch.autograd.grad(layer(x, weight, shift).pow(3).sum(), x, create_graph=True)
        second.append(torch.autograd.grad(first.pow(2).sum(), weight)[0])
    assert counted
    assert ((second[0] - second[1]).norm() / second[1].norm()).item() < 1e-5


@needs_onednn
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
    assert len(counted) == (2 if onednn.THROUGH_ONEDNN else 0)
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())


def test_a_graph_that_is_exported_has_torchs_operator(counted):
    model = nn.Sequential(Linear(128, 128))
    program = torch.export.export(model, (torch.randn(300, 128),))
    assert "aten.linear.default" in {str(node.target) for node in program.graph.nodes}
    assert not counted


@pytest.mark.parametrize(
    ("cpuinfo", "vendor"),
    [
        ("processor : 0\nvendor_id\t: AuthenticAMD\nflags : avx2\n", "AuthenticAMD"),
        ("vendor_id\t: GenuineIntel\n", "GenuineIntel"),
        ("CPU implementer : 0x41\n", ""),
        (None, ""),
    ],
    ids=["AMD", "Intel", "ARM", "no such file"],
)
def test_the_vendor_is_the_one_that_the_processor_names(tmp_path, monkeypatch, cpuinfo, vendor):
    monkeypatch.setattr(onednn.platform, "processor", str)
    if cpuinfo is not None:
        (tmp_path / "cpuinfo").write_text(cpuinfo)
    assert onednn.processor(tmp_path / "cpuinfo") == (vendor, torch.backends.cpu.get_cpu_capability())
    monkeypatch.setattr(onednn.platform, "processor", lambda: "AMD64 Family 25 Model 33 Stepping 0, AuthenticAMD")
    assert onednn.processor(tmp_path / "none")[0] == "AuthenticAMD"


@pytest.mark.parametrize("product", [onednn.FORWARD, onednn.INPUT, onednn.WEIGHT])
def test_each_product_is_chosen_by_itself(monkeypatch, product):
    made = []
    monkeypatch.setattr(onednn, "THROUGH_ONEDNN", (onednn.FORWARD, product))
    product_of = onednn._product
    monkeypatch.setattr(onednn, "_product", lambda *given: (made.append(given[0].shape), product_of(*given))[1])
    x, weight, shift = tensors((300,), 160, 120)
    linear(x, weight, shift).sum().backward()
    shapes = {onednn.FORWARD: (300, 160), onednn.INPUT: (300, 120), onednn.WEIGHT: (120, 300)}
    assert made == list(dict.fromkeys([(300, 160), shapes[product]]))


def test_none_of_them_on_another_processor(monkeypatch, counted):
    monkeypatch.setattr(onednn, "THROUGH_ONEDNN", onednn.FASTER.get(("GenuineIntel", "AVX512"), ()))
    x, weight, shift = tensors((300,), 160, 120)
    assert torch.equal(linear(x, weight, shift), nn.functional.linear(x, weight, shift))
    assert not counted
