"""Chunks; the second voices are the tokenizer's own windows, a transformers model run chunk by chunk, and NumPy."""

import copy
import pickle
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModel, PreTrainedTokenizerFast

import bertflow
from bertflow.affine import AffineMap
from bertflow.calibrated import CalibratedEncoder
from bertflow.calibration.closed_forms import Whitening
from bertflow.data.corpus import sentence_spans
from bertflow.encoder.chunks import Chunks, split, windows
from bertflow.encoder.transformer import StaticEncoder, TransformerEncoder
from bertflow.errors import UsageError
from bertflow.runs.training import trainable_encoder

from ..texts import drawn
from .conftest import require_near

SHORT = ["the dog", "", "  a big cat .", "dogs", "a man eats in the garden"]
LONG = "The big dog sleeps in the garden . A cat eats . The red bird sings in a house and the man runs and dogs eats ."
SENTENCES = [LONG[:34], LONG[35:47], LONG[48:]]
WORDS = ["the", "a", "man", "dogs", "cats", "runs", "big", "red", "naïve", "犬", ".", "bird"]
TEXTS = drawn(WORDS, 60, 0, 1, 40)
MAX_LENGTH = 10  # with two special tokens, room for eight


def make(folder, chunks="tokens", pooling="mean", **options):
    return TransformerEncoder(folder, pooling, max_length=MAX_LENGTH, device="cpu", chunks=chunks, **options)


@pytest.fixture(scope="module")
def byte_level():
    """A tokenizer whose tokens begin with the space before them, and may be parts of a character."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=290, initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    made.train_from_iterator(TEXTS, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token="</s>")


SPELLINGS = {
    "tokens": "tokens",
    "tokens:max": "tokens:max",
    "tokens:128": "tokens:128:0",
    "tokens:128:32:mean": "tokens:128:32:mean",
    " sentences:3:1 ": "sentences:3:1",
}


@pytest.mark.parametrize(("spelling", "shown"), SPELLINGS.items())
def test_a_spelling_is_read_back(spelling, shown):
    assert str(Chunks.parse(spelling)) == shown
    assert Chunks.parse(shown) == Chunks.parse(spelling)


@pytest.mark.parametrize(
    "spelling", ["", "words", "tokens:0", "tokens:4:4", "tokens:mean:4", "tokens:", "tokens:4:1:sum"]
)
def test_another_spelling_is_refused(spelling):
    with pytest.raises(UsageError, match=r"Chunks are spelled tokens or sentences, .* as tokens:128:32:mean; got "):
        Chunks.parse(spelling)


def test_windows_cover_everything_and_overlap_exactly():
    for n in range(40):
        for size in range(1, 9):
            for overlap in range(size):
                found = list(windows(n, size, overlap))
                assert found[0][0] == 0
                assert found[-1][1] == n
                assert all(last - first == size for first, last in found[:-1])
                assert all(a[1] - b[0] == overlap for a, b in pairwise(found))
                assert len(found) == 1 or found[-1][1] - found[-1][0] > overlap, "the last one says something new"


@pytest.mark.parametrize(("size", "overlap"), [(8, 0), (8, 3), (5, 4), (1, 0)])
def test_windows_of_tokens_are_those_of_the_tokenizer(bert_tokenizer, size, overlap):
    found = split(["", " ", *TEXTS], "", bert_tokenizer, MAX_LENGTH, Chunks("tokens", size, overlap))
    theirs = bert_tokenizer(
        ["", " ", *TEXTS],
        truncation=True,
        max_length=size + 2,
        stride=overlap,
        return_overflowing_tokens=True,
        verbose=False,
    )
    ours = [found.tokens.ids[a:b].tolist() for a, b in zip(found.tokens.starts, found.tokens.starts[1:], strict=False)]
    assert ours == theirs["input_ids"]
    assert found.owners.tolist() == theirs["overflow_to_sample_mapping"]
    assert found.tokens.truncated == 0


@pytest.fixture(params=["word pieces", "bytes"])
def tokenizer(request, bert_tokenizer, byte_level):
    return byte_level if request.param == "bytes" else bert_tokenizer


@pytest.mark.parametrize("how", [Chunks("tokens", 5, 2), Chunks("sentences", 2, 1), Chunks("sentences", 1, 0)])
@pytest.mark.parametrize("prompt", ["", "the man: "])
def test_chunks_fit_and_cover_the_text(tokenizer, how, prompt):
    given = [*TEXTS, *(text.replace(" . ", ". The ") for text in TEXTS), LONG]
    found = split(given, prompt, tokenizer, 20, how)
    assert found.tokens.lengths.max() <= 20
    assert np.diff(found.starts).max() > 3
    covered = [np.zeros(len(text), dtype=bool) for text in given]
    for owner, (start, stop) in zip(found.owners, found.spans, strict=True):
        covered[owner][start:stop] = True
    for text, marks in zip(given, covered, strict=True):
        assert not [letter for letter, mark in zip(text, marks, strict=True) if letter.strip() and not mark]


def test_a_chunk_is_where_the_tokenizer_says(tokenizer):
    given, ends = TEXTS, tokenizer.num_special_tokens_to_add() // 2
    found = split(given, "", tokenizer, 20, Chunks("tokens", 5, 2))
    for row, text in enumerate(given):
        whole = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
        ids, places = whole["input_ids"], whole["offset_mapping"]
        firsts = [0] if len(ids) <= 5 else range(0, len(ids) - 2, 3)
        own = range(found.starts[row], found.starts[row + 1])
        for chunk, first in zip(own, firsts, strict=True):
            held = found.tokens.ids[found.tokens.starts[chunk] + ends : found.tokens.starts[chunk + 1] - ends]
            assert held.tolist() == ids[first : first + 5]
            last = min(first + 5, len(ids)) - 1
            assert found.spans[chunk].tolist() == (
                [0, len(text)] if len(own) == 1 else [places[first][0], places[last][1]]
            )


def test_sentences_are_those_of_the_splitter_of_docstrings():
    assert [LONG[a:b] for a, b in sentence_spans(LONG)] == SENTENCES
    text = " Dr. A. Smith eats.  He sings.\n\nA heading\n \nThe end "
    found = [text[a:b] for a, b in sentence_spans(text)]
    assert found == ["Dr. A. Smith eats.", "He sings.", "A heading", "The end"]
    assert list(sentence_spans("")) == [(0, 0)]


@pytest.mark.parametrize("pooling", ["mean", "cls", "max", "mean(1,2)", "sif"])
@pytest.mark.parametrize("chunks", ["tokens", "tokens:max", "sentences:mean", "tokens:8:3"])
def test_text_that_fits_in_one_chunk_is_embedded_as_without_chunks(tiny_bert, pooling, chunks):
    counts = {"dog": 5, "the": 50}
    whole = make(tiny_bert, "", pooling, token_counts=counts).encode(SHORT)
    assert_array_equal(make(tiny_bert, chunks, pooling, token_counts=counts).encode(SHORT), whole)


def chunk_by_chunk(folder, pieces, prompt=()):
    """The mean of the last layer over all tokens of each chunk of token ids."""
    model = AutoModel.from_pretrained(folder)
    with torch.no_grad():
        ids = [torch.tensor([[2, *prompt, *piece, 3]]) for piece in pieces]
        return np.array([model(row).last_hidden_state[0].mean(0).numpy() for row in ids], dtype=np.float64)


@pytest.mark.parametrize("pool", ["mean", "max"])
@pytest.mark.parametrize("prompt", ["", "the man "])
def test_tokens_with_overlap_are_pooled_as_by_hand(tiny_bert, bert_tokenizer, pool, prompt):
    ids, before = (bert_tokenizer(text, add_special_tokens=False)["input_ids"] for text in (LONG, prompt))
    pieces, at = [ids[:5]], 5
    while at < len(ids):
        pieces.append(ids[at - 2 : at + 3])
        at += 3
    x = chunk_by_chunk(tiny_bert, pieces, before)
    expected = x.max(0) if pool == "max" else (x.T @ [len(piece) for piece in pieces]) / sum(map(len, pieces))
    found = make(tiny_bert, f"tokens:5:2:{pool}", prompt=prompt).encode(["dogs", LONG])[1]
    require_near(found, expected)


@pytest.mark.parametrize("pool", ["mean", "max"])
def test_sentences_are_pooled_as_by_hand(tiny_bert, bert_tokenizer, pool):
    pieces = []
    for sentence in SENTENCES:  # the last one has no room as a whole
        ids = bert_tokenizer(sentence, add_special_tokens=False)["input_ids"]
        pieces += [ids[at : at + 8] for at in range(0, len(ids), 8)]
    assert len(pieces) > len(SENTENCES)
    x, sizes = chunk_by_chunk(tiny_bert, pieces), [len(piece) for piece in pieces]
    expected = x.max(0) if pool == "max" else np.average(x, 0, sizes)
    require_near(make(tiny_bert, f"sentences:{pool}").encode(LONG), expected)


def test_all_tokens_count_alike_in_mean_pooling_of_word_vectors(tiny_bert):
    # Without blocks there is no context: the mean over chunks is that over all tokens, wherever the text is split.
    x, text = StaticEncoder(tiny_bert, max_length=10).encode_chunks([LONG], "tokens:3")
    whole = StaticEncoder(tiny_bert, max_length=100).encode([LONG])
    require_near(text.pooled(x, "mean"), whole)


def test_chunks_one_by_one(tiny_bert):
    encoder = make(tiny_bert, "")
    x, text = encoder.encode_chunks([LONG, "dogs"], "sentences:1:0")
    assert text.starts.tolist() == [0, len(x) - 1, len(x)]
    start, stop = text.spans[1]
    require_near(x[1], encoder.encode([LONG[start:stop]])[0])
    assert LONG[start:stop] == "A cat eats ."


def test_a_text_has_one_embedding_by_each_pooling_and_in_each_role(tiny_bert):
    encoder = make(tiny_bert, prompt={"query": "the ", "document": "a man "})
    found = encoder.encode_poolings([LONG, ""], ["mean", "cls(2)"])
    assert_array_equal(found["mean"], encoder.encode([LONG, ""]))
    assert str(encoder.describe()["chunks"]) == "tokens:6:0:mean", "the longer prompt decides"
    assert not np.array_equal(encoder.encode_query([LONG]), encoder.encode([LONG]))
    assert encoder.encode([]).shape == (0, 16)


def test_token_counts_are_of_the_whole_text(tiny_bert):
    whole = TransformerEncoder(tiny_bert, "sif", max_length=60, device="cpu").count_tokens([LONG])
    assert make(tiny_bert, "tokens:3:2", "sif").count_tokens([LONG]).counts.digest() == whole.counts.digest()


def test_recipes_copies_and_saved_encoders_have_the_same_chunks(tiny_bert, caplog):
    encoder = make(tiny_bert, "tokens:5:2")
    assert encoder.describe()["chunks"] == encoder.recipe["chunks"] == "tokens:5:2:mean"
    assert "chunks='tokens:5:2:mean'" in repr(encoder)
    encoder.save("saved")
    x = encoder.encode([LONG])
    assert not caplog.messages, "nothing is cut"
    for again in (
        bertflow.load(**encoder.recipe),
        bertflow.load("saved", device="cpu"),
        pickle.loads(pickle.dumps(encoder)),
        copy.deepcopy(encoder),
    ):
        assert_array_equal(again.encode([LONG]), x)
        assert again.identity == encoder.identity
    whole = bertflow.load("saved", chunks="", device="cpu")
    bare = make(tiny_bert, None)
    assert not [said for said in (whole.describe(), bare.describe(), bare.recipe, repr(bare)) if "chunks" in said]
    assert bertflow.load(**whole.recipe).identity == whole.identity != encoder.identity


def test_chunks_are_pooled_before_the_calibrator(tiny_bert):
    encoder = make(tiny_bert, "tokens:5:2:max")
    calibrated = CalibratedEncoder.fit(encoder, Whitening(4), TEXTS)
    x, text = make(tiny_bert, "").encode_chunks([LONG], "tokens:5:2")
    assert_allclose(calibrated.encode([LONG]), calibrated.calibrate(text.pooled(x, "max")), rtol=1e-4, atol=1e-5)
    # By an affine map and the mean it is all the same whether they are pooled before or after.
    assert isinstance(calibrated.calibrator.map, AffineMap)
    after = text.pooled(calibrated.calibrate(x), "mean")
    assert_allclose(calibrated.calibrate(text.pooled(x, "mean")), after, rtol=1e-4, atol=1e-4)
    assert not np.allclose(text.pooled(calibrated.calibrate(x), "max"), calibrated.calibrate(text.pooled(x, "max")))


@pytest.mark.parametrize(
    ("chunks", "prompt", "room"),
    [
        ("tokens:9", "", "9 tokens is wanted, but max_length=10 has room for 8 beside the prompt and the "),
        ("sentences", "the man runs in a house and a dog", "1 tokens is wanted, but max_length=10 has room for 0"),
    ],
)
def test_chunks_without_room_are_refused(refusal, tiny_bert, chunks, prompt, room):
    assert refusal(make, tiny_bert, chunks, error=UsageError, prompt=prompt).startswith(f"A chunk of {room}")


def test_what_cannot_split_text_says_so(tiny_bert, monkeypatch, refusal):
    with pytest.raises(UsageError, match=r"have no chunks\. Leave that option out"):
        bertflow.load(tiny_bert, pooling="static", chunks="tokens")
    Path("words.txt").write_text("dog 1 2\ncat 2 1\n")
    with pytest.raises(UsageError, match=r"which has no chunks\. Leave that option out"):
        bertflow.load("words.txt", chunks="tokens")
    for refuse in (trainable_encoder, lambda encoder: encoder.embed(["a dog"])):
        assert "whole" in refusal(refuse, make(tiny_bert), error=UsageError)
    monkeypatch.setattr(PreTrainedTokenizerFast, "is_fast", property(lambda self: False))
    with pytest.raises(UsageError, match=r"cannot say where in a text its pieces stand. .* leave chunks out"):
        make(tiny_bert)
