"""Where the encoder runs. What only a GPU can do is in ``test_cuda.py``; here it is done without one."""

import threading

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from torch._subclasses.fake_tensor import FakeTensorMode

from bertflow.data.lines import skip_bad, skipping
from bertflow.encoder import batching, device
from bertflow.encoder.device import LOCAL_RANKS, Landing, ahead, parts, resolve_device
from bertflow.errors import DataError

from ..texts import NOUNS as WORDS

SENTENCES = [" ".join(WORDS[(row + at) % 6] for at in range(row % 9)) for row in range(50)]


@pytest.fixture
def encoder(tiny):
    return tiny("mean(1,4)")


@pytest.fixture
def in_parts(monkeypatch):
    """Text is tokenized in parts ahead of the device, as on a GPU."""
    monkeypatch.setattr("bertflow.encoder.reading.parts", lambda _, n: parts(torch.device("meta"), n))
    monkeypatch.setattr(device, "PARTS", (4, 20))


SHARED = [
    ({}, 4, "cuda:0"),
    ({"LOCAL_RANK": "3"}, 4, "cuda:3"),  # torchrun
    ({"SLURM_LOCALID": "2"}, 4, "cuda:2"),
    ({"SLURM_LOCALID": "2"}, 1, "cuda:0"),  # each process is shown its own GPU alone
    ({"LOCAL_RANK": "1", "SLURM_LOCALID": "0"}, 4, "cuda:1"),  # torchrun in a SLURM job
]


@pytest.mark.parametrize(("environment", "gpus", "expected"), SHARED)
def test_processes_that_share_a_machine_take_a_gpu_each(environment, gpus, expected, monkeypatch):
    for name in LOCAL_RANKS:
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    with FakeTensorMode():  # of GPUs that nobody has
        assert resolve_device("auto") == torch.device(expected)
        assert resolve_device(expected) == torch.device(expected)


def test_a_cpu_gets_all_text_at_once_and_a_gpu_begins_with_little():
    assert parts(torch.device("cpu"), 10**6) == [slice(0, 10**6)]
    of_gpu = parts(torch.device("cuda"), 40_000)
    assert [(part.start, part.stop) for part in of_gpu] == [(0, 2048), (2048, 18432), (18432, 34816), (34816, 40000)]
    assert parts(torch.device("cuda"), 7) == [slice(0, 7)]
    assert parts(torch.device("cuda"), 0) == [slice(0, 0)]


def test_items_are_made_ahead_in_a_thread_and_one_at_a_time():
    made, asked = [], threading.Event()

    def items():
        for number in range(4):
            made.append((number, threading.current_thread().name))
            if number == 1:
                asked.set()
            yield number

    given = ahead(items())
    assert next(given) == 0
    assert asked.wait(10), "the second is made while the caller has the first"
    assert len(made) == 2, "and no more than that"
    assert list(given) == [1, 2, 3]
    assert {name for _, name in made} == {"bertflow-ahead_0"}


def test_what_goes_wrong_ahead_reaches_the_caller(refusal):
    def items():
        yield 1
        raise DataError("The second cannot be made.")

    given = ahead(items())
    assert next(given) == 1
    assert "The second cannot be made" in refusal(next, given)


def test_what_is_made_ahead_knows_that_bad_rows_are_skipped(tmp_path):
    with skip_bad(tmp_path / "bad.tsv") as skipped:
        assert list(ahead(skipping() for _ in range(2))) == [skipped, skipped]


def test_rows_land_where_they_belong_and_all_of_them():
    x, landing = np.zeros((12, 2), np.float32), Landing()
    for start in range(0, 12, 2):
        landing.put(x, np.array([start + 1, start]), torch.full((2, 2), float(start)))
        assert not x[max(0, start - 2 * device.BEHIND + 2) :].any(), "the last batches are still on their way"
    landing.finish()
    assert x[:, 0].tolist() == [0, 0, 2, 2, 4, 4, 6, 6, 8, 8, 10, 10]


@pytest.mark.usefixtures("in_parts")
def test_text_in_parts_has_the_same_embeddings(tiny_bert, encoder, monkeypatch):
    found = encoder.encode(SENTENCES)
    monkeypatch.undo()
    assert_allclose(found, encoder.encode(SENTENCES), rtol=0, atol=1e-5)


@pytest.mark.usefixtures("in_parts")
def test_what_is_said_of_text_in_parts_is_said_once(tiny, caplog):
    tiny(max_length=6).encode(SENTENCES)
    assert caplog.messages == [
        "Cut: 20 of 50 sentences, at max_length=6 tokens. To read whole sentences, use chunks or a larger max_length.",
        "Empty, and embedded by special tokens alone: 6 of 50 sentences.",
    ]


@pytest.fixture
def small_memory(monkeypatch):
    """Blocks that have no memory for more than so many tokens, as a GPU says it; and the batches that they got."""
    budgets, most, seen = {"cpu": 400}, 60, []
    monkeypatch.setattr(batching, "TOKEN_BUDGETS", budgets)

    def limited(stack):
        forward = stack.model.forward

        def run(input_ids, **options):
            seen.append(tuple(input_ids.shape))
            if input_ids.numel() > most:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
            return forward(input_ids=input_ids, **options)

        monkeypatch.setattr(stack.model, "forward", run)
        return seen

    return limited


def test_out_of_memory_the_budget_is_halved_said_and_kept(encoder, small_memory, caplog):
    expected = encoder.encode(SENTENCES)
    del encoder.budget
    seen = small_memory(encoder.stack)
    found = encoder.encode(SENTENCES)
    assert_allclose(found, expected, rtol=0, atol=1e-5)
    assert [message for message in caplog.messages if "Empty" not in message] == [
        "cpu has no memory for 10 sentences of up to 10 tokens at a time: from now on it is given 50 tokens."
    ]
    failed = [shape for shape in seen if shape[0] * shape[1] > 60]
    assert failed == [(10, 10)]
    seen.clear()
    encoder.encode(SENTENCES)
    assert all(rows * tokens <= 50 for rows, tokens in seen), "the smaller budget is kept"


@pytest.mark.usefixtures("in_parts")
def test_wherever_memory_ends_no_sentence_is_lost_or_doubled(encoder, monkeypatch, caplog):
    expected = encoder.encode(SENTENCES)
    del encoder.budget
    monkeypatch.setattr(batching, "TOKEN_BUDGETS", {"cpu": 100})
    forward, put, calls, landed = encoder.stack.model.forward, Landing.put, [], []

    def run(input_ids, **options):
        calls.append(input_ids.shape)
        if len(calls) % 2 == 0 and input_ids.numel() > 10:  # which is the longest sentence
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return forward(input_ids=input_ids, **options)

    monkeypatch.setattr(encoder.stack.model, "forward", run)
    monkeypatch.setattr(Landing, "put", lambda self, x, rows, made: (landed.extend(rows), put(self, x, rows, made))[1])
    assert_allclose(encoder.encode(SENTENCES), expected, rtol=0, atol=1e-5)
    assert sorted(landed) == list(range(len(SENTENCES)))
    said = [message for message in caplog.messages if "has no memory" in message]
    assert len(said) == 2


def test_one_sentence_that_has_no_room_is_an_error(refusal, encoder, small_memory, monkeypatch):
    small_memory(encoder.stack)
    forward = encoder.stack.model.forward
    monkeypatch.setattr(encoder.stack.model, "forward", lambda input_ids, **o: forward(input_ids.repeat(101, 1), **o))
    assert refusal(encoder.encode, SENTENCES) == (
        "One sentence of 10 tokens does not fit into the memory of cpu. Give a smaller max_length, chunks, dtype "
        "bfloat16, or another device."
    )


def test_tf32_is_on_in_the_model_alone(tiny):
    encoder = tiny(dtype="tf32")
    seen, products = [], torch.backends.cuda.matmul
    before = products.fp32_precision
    encoder.stack.model.register_forward_pre_hook(lambda *_: seen.append(products.fp32_precision))
    x = encoder.encode(SENTENCES)
    assert set(seen) == {"tf32"}
    assert products.fp32_precision == before == "none"
    assert encoder.describe()["dtype"] == "tf32"
    assert_array_equal(x, tiny().encode(SENTENCES))
