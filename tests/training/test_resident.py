"""A flow in training on a GPU, proven without one: what is replayed, and that no step asks the device for a number."""

import copy
import logging
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from bertflow.store.store import EmbeddingStore
from bertflow.training.fitting import FlowFit, trainer_options
from bertflow.training.module import BertFlow
from bertflow.training.recipe import resolve
from bertflow.training.resident import MeanNll, ReplayedNll, on_device, rows_placed
from bertflow.training.rows import moments_of_rows
from bertflow.training.trainer import quiet_trainer

RECIPE = {"glow": {"hidden": 8}, "batch_size": 32, "epochs": 4}


@pytest.fixture
def fit(embeddings):
    return FlowFit(embeddings, resolve("default", RECIPE))


class Recorder:
    """Stands for ``torch.cuda.make_graphed_callables``: remembers what it was given, and replays by running it."""

    def __init__(self):
        self.samples, self.replays = [], 0
        self.out = torch.zeros(())

    def __call__(self, function, sample):
        self.samples.append(sample)

        def replay(*given):
            self.replays += 1
            return function(*given)

        return replay


@pytest.fixture
def replayed(monkeypatch):
    """Every batch is taken for one on a single GPU."""
    recorder = Recorder()

    def mean_nll(self, x):
        self._replayed._capture = recorder
        return self._replayed(self.flow, x)

    monkeypatch.setattr(BertFlow, "_mean_nll", mean_nll)
    return recorder


def weights_after(fit):
    fit.run(quiet_trainer(trainer_options(fit.recipe, len(fit.x)), {"accelerator": "cpu"}))
    return fit.module.flow.state_dict()


def test_replayed_steps_end_with_the_same_flow(embeddings, fit, replayed, monkeypatch):
    found = weights_after(fit)
    assert len(replayed.samples) == 1, "recorded once"
    assert replayed.samples[0][0].shape == (32, embeddings.shape[1])
    assert not fit.module._replayed._weights, "and given back in the end, with the memory that it holds"
    assert replayed.replays == fit.steps > 10, "and replayed in each step"
    monkeypatch.undo()
    expected = weights_after(FlowFit(embeddings, resolve("default", RECIPE)))
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=0)


def leaves(node):
    """The tensors that autograd's graph of a tensor begins with."""
    own = [node.variable] if hasattr(node, "variable") else []
    return own + [leaf for below, _ in node.next_functions if below is not None for leaf in leaves(below)]


def test_what_is_recorded_holds_no_node_of_the_weights(fit):
    flow, x, recorded = fit.module.flow, torch.as_tensor(fit.x[:8]), []

    def capture(function, sample):
        recorded.append(function(*sample))  # it is kept, as that of a CUDA graph is
        return lambda *given: function(*given)

    ReplayedNll(capture)(flow, x).backward()
    kept, weights = leaves(recorded[0].grad_fn), list(flow.parameters())
    assert len(kept) == len(weights) > 10
    assert not {id(each) for each in kept} & {id(each) for each in weights}
    assert {each.data_ptr() for each in kept} == {each.data_ptr() for each in weights}, "in the same memory"
    assert all(each.grad is None for each in kept)
    assert all(each.grad is not None for each in weights)


def test_each_fit_records_its_own_steps(fit, replayed):
    weights_after(fit)
    weights_after(fit)  # in the meantime the weights were elsewhere: Lightning takes them off a GPU
    assert len(replayed.samples) == 2


def test_only_batches_of_the_recorded_shape_are_replayed(fit):
    recorder = Recorder()
    nll, flow = ReplayedNll(recorder), fit.module.flow
    x = torch.as_tensor(fit.x[:32])
    losses = [nll(flow, rows) for rows in (x, x[:7], x)]
    assert recorder.replays == 2
    assert losses[1] == MeanNll(flow)(x[:7])
    with torch.no_grad():
        nll(flow, x)
    nll(copy.deepcopy(flow), x)  # the average of the weights is another flow
    assert recorder.replays == 2


def test_the_loss_is_not_overwritten_by_the_next_step(fit):
    out = torch.zeros(())
    nll = ReplayedNll(lambda function, sample: lambda *given: out.copy_(function(*given).detach()))
    first = nll(fit.module.flow, torch.as_tensor(fit.x[:8]))
    before = float(first)
    assert float(nll(fit.module.flow, torch.as_tensor(fit.x[8:16]))) != before == float(first)


def test_a_step_that_cannot_be_recorded_is_said_once_and_taken(fit, caplog):
    def refused(function, sample):
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing")

    nll, x = ReplayedNll(refused), torch.as_tensor(fit.x[:8])
    assert nll(fit.module.flow, x) == nll(fit.module.flow, x) == MeanNll(fit.module.flow)(x)
    assert caplog.messages == [
        "The step is not replayed as CUDA graphs, which is slower: CUDA error: operation not permitted when stream is "
        "capturing."
    ]


@pytest.fixture
def no_gpu(monkeypatch):
    """PyTorch's own recording, but for the GPU: what is recorded is carried out, and a replay leaves it as it is."""
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: SimpleNamespace(replay=lambda: None))
    monkeypatch.setattr(torch.cuda, "graph", lambda graph, pool: nullcontext())
    monkeypatch.setattr(torch.cuda.graphs, "graph_pool_handle", lambda: None)
    for name in ("synchronize", "Stream", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, lambda *_: None)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch, "empty_like", torch.ones_like)  # the gradient of the loss, which is 1


@pytest.mark.usefixtures("no_gpu")
@pytest.mark.parametrize(
    ("preset", "changes"),
    [
        ("default", {}),
        ("paper-tf", {"dropout": False}),
        ("paper-text", {"dropout": False}),
        ("default", {"glow": {"permutation": "lu-rotation", "coupling": "affine", "activation": "gatu"}}),
    ],
    ids=["default", "paper-tf", "paper-text", "by autograd"],
)
def test_pytorch_records_what_it_is_given(embeddings, preset, changes):
    flow, x = FlowFit(embeddings, resolve(preset, changes)).module.flow, torch.from_numpy(embeddings[:16])
    expected = MeanNll(flow)(x)
    gradients = torch.autograd.grad(expected, list(flow.parameters()))
    loss = ReplayedNll()(flow, x)
    loss.backward()
    torch.testing.assert_close(loss, expected)
    for parameter, gradient in zip(flow.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=0, atol=1e-6)


def test_after_a_failure_steps_run_on_the_stream_from_before(fit, monkeypatch):
    current = ["usual"]

    @contextmanager
    def stream(wanted):
        before, current[0] = current[0], wanted
        try:
            yield
        finally:
            current[0] = before

    def refused(function, samples):
        current[0] = "capturing"  # where PyTorch leaves it
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(torch.cuda, "stream", stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: current[0])
    monkeypatch.setattr(torch.cuda, "make_graphed_callables", refused)
    assert ReplayedNll()(fit.module.flow, torch.as_tensor(fit.x[:8])).requires_grad
    assert current == ["usual"]


@pytest.mark.parametrize(("world", "accumulated"), [(2, 1), (1, 3)])
def test_what_must_not_be_replayed_is_not(fit, world, accumulated, monkeypatch):
    fit.module._replayed._capture = pytest.fail
    trainer = SimpleNamespace(world_size=world, accumulate_grad_batches=accumulated)
    monkeypatch.setattr(BertFlow, "trainer", trainer)
    fit.module.flow.to("meta")
    assert fit.module._mean_nll(torch.empty(4, fit.x.shape[1], device="meta")).shape == ()


@pytest.mark.parametrize("preset", ["default", "paper-tf", "paper-text"])
def test_a_step_makes_no_copy_and_asks_for_no_number(embeddings, preset):
    flow = FlowFit(embeddings, resolve(preset, {"dropout": False})).module.flow.to("meta")
    loss = MeanNll(flow)(torch.empty(32, embeddings.shape[1], device="meta"))  # which has no numbers to give
    loss.backward()
    torch.nn.utils.clip_grad_norm_(flow.parameters(), 1.0)
    assert all(parameter.grad.device.type == "meta" for parameter in flow.parameters())


class Asked(TorchDispatchMode):
    """Counts the numbers that Python asks tensors for: on a GPU each would be waited for."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func.overloadpacket.__name__ == "_local_scalar_dense"
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("preset", "ema"), [("default", 0.0), ("default", 0.9), pytest.param("paper-tf", 0.0, marks=pytest.mark.slow)]
)
def test_more_steps_ask_for_no_more_numbers(embeddings, preset, ema):
    def asked(steps):
        recipe = resolve(preset, {"batch_size": 32, "dropout": False, "held_out": 0.0, "ema": ema})
        fit = FlowFit(embeddings, recipe)
        options = {"accelerator": "cpu", "max_steps": steps, "max_epochs": 99, "log_every_n_steps": 1000}
        trainer = quiet_trainer(trainer_options(recipe, len(fit.x)), options)
        with Asked() as mode:
            fit.run(trainer)
        assert trainer.global_step == steps
        return mode.count

    assert asked(2) == asked(6)


@pytest.mark.parametrize("kind", ["array", "tensor", "store"])
def test_rows_on_the_device_are_the_rows(kind, embeddings, tmp_path, monkeypatch, tiny_bert):
    from bertflow.encoder.transformer import TransformerEncoder

    monkeypatch.setattr("bertflow.training.resident.BLOCK", 7)
    rows = {"array": lambda: embeddings, "tensor": lambda: torch.from_numpy(embeddings)}.get(kind)
    if rows is None:
        encoder = TransformerEncoder(tiny_bert, device="cpu")
        store = EmbeddingStore.build(encoder, ["the dog", "a cat", "the man"] * 3, tmp_path / "store")
        found, expected = on_device(store, torch.device("cpu")), store.rows(range(len(store)))
    else:
        found, expected = on_device(rows(), torch.device("cpu")), embeddings
    np.testing.assert_array_equal(found.numpy(), expected)


def test_rows_go_to_a_gpu_that_has_room_for_them(embeddings, monkeypatch, caplog):
    gpu, there = torch.device("cuda"), object()
    monkeypatch.setattr("bertflow.training.resident.on_device", lambda rows, device: there)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (2 * embeddings.nbytes, 10**12))
    assert rows_placed(embeddings, gpu) is there
    assert rows_placed(embeddings, torch.device("cpu")) is embeddings
    text = ["sentences stay"]
    assert rows_placed(text, gpu) is text
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (2 * embeddings.nbytes - 2, 10**12))
    with caplog.at_level(logging.INFO):
        assert rows_placed(embeddings, gpu) is embeddings
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (2 * embeddings.nbytes, 10**12))

    def taken(rows, device):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr("bertflow.training.resident.on_device", taken)  # by another process, in the meantime
    with caplog.at_level(logging.INFO):
        assert rows_placed(embeddings, gpu) is embeddings
    assert caplog.messages == 2 * [f"The {len(embeddings)} rows are read batch by batch: they have no room on cuda."]


def test_rows_that_are_there_are_not_copied_again(monkeypatch):
    with FakeTensorMode():  # of a GPU that nobody has
        rows = torch.empty(9, 3, device="cuda:0")
    monkeypatch.setattr("bertflow.training.resident.on_device", pytest.fail)
    assert rows_placed(rows, torch.device("cuda:0")) is rows


def test_numbers_of_pairs_stay_where_they_are_looked_up(monkeypatch):
    monkeypatch.setattr("bertflow.training.resident.on_device", pytest.fail)
    numbers = torch.arange(9)
    assert rows_placed(numbers, torch.device("cuda")) is numbers


class Elsewhere(torch.Tensor):
    """Rows of a GPU, as far as NumPy is told."""

    def numpy(self):
        raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first.")

    def cpu(self):
        return self.as_subclass(torch.Tensor)


def test_moments_of_rows_on_a_gpu_are_taken_on_the_processor(embeddings):
    found = moments_of_rows(torch.from_numpy(embeddings).as_subclass(Elsewhere), np.arange(40))
    np.testing.assert_array_equal(found.mean, moments_of_rows(embeddings, np.arange(40)).mean)
