from itertools import chain

import numpy as np
import pytest
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer

from bertflow.encoder.batching import tokenize
from bertflow.errors import DataError

SENTENCES = ["the dog " * n + "sings" for n in (3, 1, 9, 1, 2, 0, 4)] + [""]


@pytest.fixture
def text(bert_tokenizer):
    return tokenize(SENTENCES, bert_tokenizer, max_length=64)


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


def test_a_batch_holds_what_the_tokenizer_pads(text, bert_tokenizer):
    expected = bert_tokenizer(SENTENCES, padding=True, return_tensors="pt")
    batch = text.batch(np.arange(len(SENTENCES)), pad_id=0)
    assert batch.ids.tolist() == expected["input_ids"].tolist()
    assert batch.mask.long().tolist() == expected["attention_mask"].tolist()


def test_content_is_what_is_no_special_token(text):
    batch = text.batch(np.array([1, 7]), pad_id=0)
    assert batch.content.tolist() == [[False, True, True, True, False], [True, True, False, False, False]]


def test_a_batch_ends_where_sentences_are_much_shorter(bert_tokenizer):
    lengths = [9] * 5 + [8] * 3 + [2] * 20
    text = tokenize(["dog " * n for n in lengths], bert_tokenizer, max_length=64)
    first = next(text.batches(200, pad_id=0))
    assert (text.lengths[first.rows] >= 0.875 * text.lengths.max()).all()


def test_a_batch_is_worth_its_overhead(bert_tokenizer):
    text = tokenize(["dog " * n for n in range(40, 0, -1)], bert_tokenizer, max_length=64)
    *batches, _ = text.batches(400, pad_id=0)
    assert all(batch.ids.numel() > 400 / 4 - batch.ids.shape[1] for batch in batches)


def test_a_batch_knows_its_tokens_without_asking_the_mask(text):
    assert all(batch.tokens == batch.mask.sum() for batch in text.batches(24, pad_id=0))


def test_batches_go_on_where_others_ended(text):
    first, *others = text.batches(24, pad_id=0)
    rows = [batch.rows.tolist() for batch in text.batches(24, pad_id=0, start=len(first.rows))]
    assert rows == [batch.rows.tolist() for batch in others]


@pytest.mark.parametrize("max_length", [None, 3, 8])
def test_tokens_are_those_of_transformers(tiny_bert, tiny_roberta, max_length):
    for folder in (tiny_bert, tiny_roberta):
        tokenizer = AutoTokenizer.from_pretrained(folder)
        sentences = [*SENTENCES, "[MASK] <mask> <pad> é\u0301 \u4e2d"]
        text = tokenize(sentences, tokenizer, max_length)
        cut = {"truncation": max_length is not None, "max_length": max_length, "verbose": False}
        theirs = tokenizer(sentences, return_special_tokens_mask=True, **cut)
        assert text.ids.tolist() == list(chain(*theirs["input_ids"]))
        assert text.special.astype(int).tolist() == list(chain(*theirs["special_tokens_mask"]))
        assert text.lengths.tolist() == list(map(len, theirs["input_ids"]))
        whole = tokenizer(sentences, verbose=False)["input_ids"]
        assert text.truncated == sum(len(ids) > (max_length or 99) for ids in whole)


def test_a_tokenizer_of_another_kind_is_run_as_transformers_runs_it(text, bert_tokenizer):

    class Shouting(type(bert_tokenizer)):
        """One that changes the text, as some models' own do."""

        def __call__(self, sentences, **options):
            return super().__call__([f"{sentence} dog" for sentence in sentences], **options)

    bert_tokenizer.__class__ = Shouting
    found = tokenize(SENTENCES, bert_tokenizer, 64)
    assert (found.lengths == text.lengths + 1).all()


def test_sentences_are_counted_from_the_first_of_the_whole_text(bert_tokenizer):
    bert_tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single="$A", special_tokens=[])
    with pytest.raises(DataError, match=r"^Sentence 107 \(''\) has no tokens for this model. Leave it out.$"):
        tokenize(SENTENCES, bert_tokenizer, 64, first=100)
