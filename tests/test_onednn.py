"""PyTorch's own linear layer is the second voice, float64 the judge."""

import pytest
import torch
from torch import nn

from bertflow import onednn
from bertflow.onednn import Linear, linear, use_onednn

ALL = (onednn.FORWARD, onednn.INPUT, onednn.WEIGHT)


@pytest.fixture
def all_through(monkeypatch):
    """A processor on which oneDNN makes all products."""
    if not torch.backends.mkldnn.is_available():
        pytest.skip("PyTorch without oneDNN")
    monkeypatch.setattr(onednn, "THROUGH_ONEDNN", ALL)


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


@pytest.mark.usefixtures("all_through")
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


@pytest.mark.usefixtures("all_through")
def test_gradients_can_be_differentiated_again(counted):
    x, weight, shift = tensors((300,), 128, 128)
    second = []
    for layer in (linear, nn.functional.linear):
        (first,) = torch.autograd.grad(layer(x, weight, shift).pow(3).sum(), x, create_graph=True)
        second.append(torch.autograd.grad(first.pow(2).sum(), weight)[0])
    assert counted
    assert ((second[0] - second[1]).norm() / second[1].norm()).item() < 1e-5


@pytest.mark.usefixtures("all_through")
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


@pytest.mark.usefixtures("all_through")
def test_few_rows_that_are_learned_from_go_to_torch(counted):
    for rows in (onednn.ROWS_TO_LEARN - 1, onednn.ROWS_TO_LEARN):
        linear(*tensors((rows,), 256, 256))
    assert len(counted) == 1


def test_torchs_own_switch_switches_it_off(counted, monkeypatch):
    monkeypatch.setattr(torch.backends.mkldnn, "enabled", False)
    linear(*tensors((300,), 160, 120))
    assert not counted


def test_autocast_keeps_its_word(counted):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert linear(*tensors((300,), 160, 120)).dtype == torch.bfloat16
    assert not counted


@pytest.mark.usefixtures("all_through")
def test_a_model_keeps_its_weights_and_their_names(counted):
    model = nn.Sequential(nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 128))
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    x = torch.randn(300, 128)
    wanted = model(x)
    use_onednn(model)
    assert [type(layer) for layer in model] == [Linear, nn.ReLU, Linear]
    torch.testing.assert_close(model(x), wanted)
    assert len(counted) == 2
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())


def test_a_graph_that_is_exported_has_torchs_operator(counted):
    model = nn.Sequential(Linear(128, 128))
    program = torch.export.export(model, (torch.randn(300, 128),))
    assert "aten.linear.default" in {str(node.target) for node in program.graph.nodes}
    assert not counted


AMD = "processor\t: 0\nvendor_id\t: AuthenticAMD\nflags\t\t: sse avx2 "
INTEL = "processor\t: 0\nvendor_id\t: GenuineIntel\nflags\t\t: sse avx2 "
ARM = "processor\t: 0\nFeatures\t: fp asimd asimddp "
ZEN_5 = AMD + "avx512f avx512_bf16 avx512_vp2intersect\n"
PROCESSORS = {
    "Zen 5": (ZEN_5, "AVX512", "AuthenticAMD", ALL, True),
    "two of them": (ZEN_5 + "\n" + ZEN_5, "AVX512", "AuthenticAMD", ALL, True),
    "Zen 5, PyTorch told to use AVX2": (ZEN_5, "AVX2", "AuthenticAMD", (), True),
    "Zen 4": (AMD + "avx512f avx512_bf16\n", "AVX512", "AuthenticAMD", (onednn.ALONE,), True),
    "Zen 3": (AMD + "\n", "AVX2", "AuthenticAMD", (), False),
    "Sapphire Rapids": (INTEL + "avx512f avx512_bf16 amx_bf16\n", "AVX512", "GenuineIntel", (onednn.PACKED,), True),
    "Tiger Lake": (INTEL + "avx512f avx512_vp2intersect\n", "AVX512", "GenuineIntel", (), False),
    "Graviton 3": (ARM + "sve bf16\nCPU implementer\t: 0x41\n", "SVE256", "", (), True),
    "Graviton 2": (ARM + "\nCPU implementer\t: 0x41\n", "DEFAULT", "", (), False),
    "a Mac": (None, "DEFAULT", "", (), False),
    "nothing told": ("", "DEFAULT", "", (), False),
}


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """Makes another processor of this one: what Linux says of it, PyTorch's instruction set, what PyTorch knows."""

    def make(cpuinfo, level, known=(), named=""):
        monkeypatch.setattr(onednn.platform, "processor", lambda: named)
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: level)
        monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: dict.fromkeys(known, True), raising=False)
        if cpuinfo is not None:
            (tmp_path / "cpuinfo").write_text(cpuinfo)
        monkeypatch.setattr(onednn, "CPUINFO", tmp_path / "cpuinfo")

    return make


@pytest.mark.parametrize(("cpuinfo", "level", "vendor", "products", "half"), PROCESSORS.values(), ids=PROCESSORS)
def test_the_processor_alone_decides(machine, caplog, cpuinfo, level, vendor, products, half):
    machine(cpuinfo, level)
    assert onednn.processor() == (vendor, level)
    assert onednn.through_onednn() == products
    made = onednn.computed_in(torch.bfloat16, "cpu")
    assert made == (torch.bfloat16 if half else torch.float32)
    assert ("This processor has no products in bfloat16" in caplog.text) == (not half)


def test_where_linux_says_nothing_pytorch_does(machine):
    machine(None, "AVX512", ["avx512_bf16", "avx512_vp2intersect"], "AMD64 Family 26 Model 68, AuthenticAMD")
    assert onednn.through_onednn() == ALL
    assert onednn.computed_in(torch.bfloat16, "cpu") == torch.bfloat16


@pytest.mark.parametrize("library", ["mkldnn", "mkl"])
def test_none_where_pytorch_lacks_a_library(machine, monkeypatch, library):
    machine(ZEN_5, "AVX512")
    monkeypatch.setattr(getattr(torch.backends, library), "is_available", lambda: False)
    assert onednn.through_onednn() == ()


@pytest.mark.parametrize(
    ("dtype", "device"), [(torch.float32, "cpu"), (torch.float16, "cpu"), (torch.bfloat16, "cuda")]
)
def test_other_precisions_and_devices_stay_as_they_are(machine, caplog, dtype, device):
    machine(AMD, "AVX2")
    assert onednn.computed_in(dtype, device) == dtype
    assert not caplog.text


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


def test_a_product_can_be_chosen_where_no_gradient_is_wanted(monkeypatch, counted):
    made = []
    monkeypatch.setattr(onednn, "THROUGH_ONEDNN", (onednn.ALONE,))
    product_of = onednn._product
    monkeypatch.setattr(onednn, "_product", lambda *given: (made.append(1), product_of(*given))[1])
    x, weight, shift = tensors((300,), 160, 120)
    step = linear(x, weight, shift)
    step.sum().backward()
    assert torch.equal(step, nn.functional.linear(x, weight, shift))
    assert not made
    with torch.no_grad():
        torch.testing.assert_close(linear(x, weight, shift), step)
    assert made == [1]
    assert not counted
