"""The mask of a template, against transformers run by hand."""

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from transformers import AutoModel, AutoTokenizer

import bertflow
from bertflow import TransformerEncoder
from bertflow.encoder.template import DEFAULT
from bertflow.encoder.words import of_words
from bertflow.errors import UsageError

from .conftest import make, require_same

SENTENCES = ["the cat sleeps .", "a dog", "the big red house in the garden . the man sings", "a"]
TEMPLATES = {"mask behind": "the {} in [MASK] .", "mask before": "[MASK] : {} and"}


@pytest.fixture(params=["tiny_bert", "tiny_roberta"])
def folder(request):
    return request.getfixturevalue(request.param)


def by_hand(folder, template, sentence, layer, denoised):
    """The hidden state of the mask, less that of the bare template whose later tokens stand as far back."""
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    before, after = (
        tokenizer(part.replace("[MASK]", tokenizer.mask_token), add_special_tokens=False)["input_ids"]
        for part in template.split("{}")
    )
    inside = tokenizer(sentence, add_special_tokens=False)["input_ids"]
    before, after = [tokenizer.cls_token_id, *before], [*after, tokenizer.sep_token_id]
    first = 2 if "roberta" in str(folder) else 0
    positions = range(first, first + len(before) + len(inside) + len(after))

    def read(ids, places):
        given = {"input_ids": torch.tensor([ids]), "position_ids": torch.tensor([places])}
        with torch.no_grad():
            states = model(**given, output_hidden_states=True).hidden_states[layer][0]
        return states[ids.index(tokenizer.mask_token_id)].numpy()

    found = read([*before, *inside, *after], [*positions])
    bare = [*positions[: len(before)], *positions[len(before) + len(inside) :]]
    return found - read([*before, *after], bare) if denoised else found


@pytest.mark.parametrize("template", TEMPLATES.values(), ids=TEMPLATES)
@pytest.mark.parametrize("pooling", ["mask", "denoised-mask"])
def test_it_is_what_transformers_gives_by_hand(folder, template, pooling):
    encoder = make(folder, f"{pooling}(2)", template=template)
    expected = [by_hand(folder, template, sentence, 2, pooling != "mask") for sentence in SENTENCES]
    assert_allclose(encoder.encode(SENTENCES), expected, atol=1e-5)


def test_a_layer_of_its_own_bias_is_taken_from_each_layer(tiny):
    several = tiny("concat-denoised-mask(1,3)").encode(SENTENCES)
    single = [tiny(f"denoised-mask({k})").encode(SENTENCES) for k in (1, 3)]
    assert_allclose(several, np.hstack(single), atol=1e-5)


def test_a_long_sentence_is_cut_and_the_template_is_not(folder, caplog):
    encoder = make(folder, "mask", max_length=14, template=TEMPLATES["mask behind"])
    text = encoder.tokenized(["dog " * 60])
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert (text.lengths[0], text.truncated) == (14, 1)
    assert text.ids[-3] == tokenizer.mask_token_id
    assert "at max_length=14 tokens" in caplog.text


def test_a_mask_that_the_sentence_names_is_not_the_one_that_is_read(tiny_bert, bert_tokenizer):
    encoder = make(tiny_bert, "mask", template="a {} [MASK]")
    assert np.abs(encoder.encode(["the [MASK] dog"]) - encoder.encode(["the dog dog"])).max() > 1e-3
    expected = AutoModel.from_pretrained(tiny_bert)(
        input_ids=bert_tokenizer("a the [MASK] dog [MASK]", return_tensors="pt")["input_ids"]
    ).last_hidden_state[0, -2]
    assert_allclose(encoder.encode(["the [MASK] dog"])[0], expected.detach().numpy(), atol=1e-5)


@pytest.mark.parametrize("pooling", ["mask", "denoised-mask"])
def test_an_empty_sentence_is_the_template_by_itself(tiny, pooling):
    x = tiny(pooling).encode(["", "the dog"])
    bare = tiny("mask").encode([""])
    assert_allclose(x[:1], bare, atol=1e-5)


def test_the_template_is_not_counted_as_text(tiny):
    encoder = tiny("mask", template="dog {} dog [MASK]")
    sentences = ["the cat sleeps .", "a bird"]
    counts = encoder.count_tokens(sentences).counts.counts
    plain = tiny("sif").count_tokens(sentences).counts.counts
    assert_array_equal(counts, plain)


def test_it_is_saved_opened_and_compared(folder):
    encoder = make(folder, "denoised-mask(2)", template=TEMPLATES["mask before"])
    encoder.save("saved")
    again = bertflow.load("saved", device="cpu")
    assert again.describe() == encoder.describe()
    require_same(again, encoder, SENTENCES)
    require_same(bertflow.load(**encoder.recipe), encoder, SENTENCES)
    other = bertflow.load("saved", template=DEFAULT, device="cpu")
    assert [one.key for one in encoder.identity.differences(other.identity)] == ["template"]
    # Whoever reads the folder by another pooling, or with transformers, finds no template.
    plain = bertflow.load("saved", pooling="mean(2)", device="cpu")
    assert "template" not in plain.describe()
    expected = make(folder, "mean(2)").encode(SENTENCES)
    assert_array_equal(plain.encode(SENTENCES), expected)


def test_chunks_have_the_template_each(tiny):
    encoder = tiny("mask", template="the {} [MASK]", chunks="tokens:2:0")
    whole = tiny("mask", template="the {} [MASK]")
    x, _ = encoder.encode_chunks(["the cat a dog"], "tokens:2:0")
    assert_allclose(x, whole.encode(["the cat", "a dog"]), atol=1e-5)
    assert_allclose(encoder.encode(["the cat a dog"])[0], x.mean(0), atol=1e-5)


def test_the_weights_of_the_moment_are_read(tiny):
    """A bias that was kept would be that of weights which are no more."""
    encoder = tiny("denoised-mask")
    with torch.no_grad():
        before = encoder.encode(["a dog"])
        for weight in encoder.model.parameters():
            weight.mul_(0.5)
        encoder.model.embeddings.LayerNorm.weight.mul_(3)
    bare = tiny("mask")
    bare.model.load_state_dict(encoder.model.state_dict())
    lengths = torch.tensor([2])
    with torch.no_grad():
        expected = bare.encode(["a dog"]) - encoder.spec.template.bias(bare.stack, [4], lengths)[0].numpy()
    assert_allclose(encoder.encode(["a dog"]), expected, atol=1e-5)
    assert np.abs(before - expected).max() > 1e-3


LONG = "The template takes 73 tokens with the special ones, this model reads 64. Shorten it."
ONCE = "A template holds {} and [MASK] once each, as "
NOT_MEAN = "A template is for the poolings mask and denoised-mask, not mean. Leave it "
REFUSED = [
    ("mean", {"template": "the {} [MASK]"}, NOT_MEAN),
    *(("mask", {"template": text}, ONCE) for text in ("the [MASK]", "the {} .", "[MASK] {} [MASK]", "")),
    ("mask", {"template": "the {} [MASK] .", "max_length": 5}, "max_length must be from 6 to 64 tokens for this model"),
    *(("mask", {"template": f"{'big ' * 70}{{}} [MASK]", "max_length": length}, LONG) for length in (None, 64)),
]


@pytest.mark.parametrize(("pooling", "options", "said"), REFUSED)
def test_what_cannot_be_is_refused_in_a_line_before_weights(refusal, tiny_bert, pooling, options, said):
    message = refusal(TransformerEncoder, tiny_bert, pooling, error=UsageError, **options)
    assert message.startswith(said)
    assert "\n" not in message


def test_a_model_without_a_mask_is_refused(tiny_bert, bert_tokenizer, refusal):
    bert_tokenizer.mask_token = None
    bert_tokenizer.save_pretrained("plain")
    AutoModel.from_pretrained(tiny_bert).save_pretrained("plain")
    (Path("plain") / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    assert "has no mask token" in refusal(TransformerEncoder, "plain", error=UsageError, pooling="mask")


def test_another_encoder_has_no_mask_to_read(tiny, refusal):
    with pytest.raises(UsageError, match="Open it with pooling mask"):
        tiny("mean").encode_poolings(["a dog"], ["mask"])
    assert "is for sentences" in refusal(of_words, "mask(1)", error=UsageError)
