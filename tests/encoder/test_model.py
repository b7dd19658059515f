import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from bertflow.encoder.model import LOCAL_RANKS, resolve_device, tokenize

SENTENCES = ["the dog " * n + "sings" for n in (3, 1, 9, 1, 2, 0, 4)] + [""]


@pytest.fixture
def text(tiny_bert):
    return tokenize(SENTENCES, AutoTokenizer.from_pretrained(tiny_bert), max_length=64)


def test_every_sentence_is_in_one_batch(text):
    rows = np.concatenate([batch.rows for batch in text.batches(24, pad_id=0)])
    assert sorted(rows) == list(range(len(SENTENCES)))


def test_a_batch_keeps_to_the_budget_unless_it_is_one_sentence(text):
    batches = list(text.batches(16, pad_id=0))
    assert all(batch.ids.numel() <= 16 or len(batch.rows) == 1 for batch in batches)
    assert batches[0].ids.shape == (1, 21), "the longest sentence alone is over the budget"


def test_long_sentences_come_first(text):
    widths = [batch.ids.shape[1] for batch in text.batches(24, pad_id=0)]
    assert widths == sorted(widths, reverse=True)


def test_a_batch_holds_what_the_tokenizer_pads(text, tiny_bert):
    expected = AutoTokenizer.from_pretrained(tiny_bert)(SENTENCES, padding=True, return_tensors="pt")
    batch = text.batch(np.arange(len(SENTENCES)), pad_id=0)
    assert batch.ids.tolist() == expected["input_ids"].tolist()
    assert batch.mask.long().tolist() == expected["attention_mask"].tolist()


def test_content_is_what_is_no_special_token(text):
    batch = text.batch(np.array([1, 7]), pad_id=0)
    assert batch.content.tolist() == [[False, True, True, True, False], [True, True, False, False, False]]


def test_a_batch_ends_where_sentences_are_much_shorter(tiny_bert):
    lengths = [9] * 5 + [8] * 3 + [2] * 20
    text = tokenize(["dog " * n for n in lengths], AutoTokenizer.from_pretrained(tiny_bert), max_length=64)
    first = next(text.batches(200, pad_id=0))
    assert (text.lengths[first.rows] >= 0.875 * text.lengths.max()).all()


def test_a_batch_is_worth_its_overhead(tiny_bert):
    text = tokenize(["dog " * n for n in range(40, 0, -1)], AutoTokenizer.from_pretrained(tiny_bert), max_length=64)
    *batches, _ = text.batches(400, pad_id=0)
    assert all(batch.ids.numel() > 400 / 4 - batch.ids.shape[1] for batch in batches)


@pytest.mark.parametrize(
    ("environment", "gpus", "expected"),
    [
        ({}, 4, "cuda"),
        ({"LOCAL_RANK": "3"}, 4, "cuda:3"),  # torchrun
        ({"SLURM_LOCALID": "2"}, 4, "cuda:2"),
        ({"SLURM_LOCALID": "2"}, 1, "cuda:0"),  # each process is shown its own GPU alone
        ({"LOCAL_RANK": "1", "SLURM_LOCALID": "0"}, 4, "cuda:1"),  # torchrun in a SLURM job
    ],
)
def test_processes_that_share_a_machine_take_a_gpu_each(environment, gpus, expected, monkeypatch):
    for name in LOCAL_RANKS:
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch, "empty", lambda *_, **__: None)
    assert resolve_device("auto") == torch.device(expected)
