import numpy as np
import pytest
from transformers import AutoTokenizer

from bertflow.encoder.model import tokenize

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
