import numpy as np
import pytest
import torch
from transformers import AutoModelForMaskedLM, AutoTokenizer, BertConfig, BertForMaskedLM

from bertflow.errors import DataError
from bertflow.geometry.masked_words import MaskedWords, dot_product_parts, read_masked_words

SENTENCES = ["the dog sings .", "a big red cat sleeps", "the bird eats in the house"]


@pytest.fixture(scope="module")
def masked_bert(tiny_bert, tmp_path_factory):
    """The tiny BERT with a head whose bias is not zero."""
    folder = tmp_path_factory.mktemp("models") / "tiny-mlm"
    torch.manual_seed(0)
    model = BertForMaskedLM(BertConfig.from_pretrained(tiny_bert))
    torch.nn.init.normal_(model.get_output_embeddings().bias)
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(tiny_bert).save_pretrained(folder)
    return folder


def slow_parts(masked):
    """The shares, one context and one word at a time."""
    products = masked.contexts @ masked.vectors.T
    given = np.exp(products + masked.bias)
    given /= given.sum(1, keepdims=True)
    frequency = np.log(given.mean(0))
    total, shares = 0.0, np.zeros(3)
    for product, probabilities in zip(products, given, strict=True):
        pmi = np.log(probabilities) - frequency
        parts = [pmi - pmi.mean(), frequency - frequency.mean(), masked.bias.mean() - masked.bias]
        centered = product - product.mean()
        np.testing.assert_allclose(sum(parts), centered, atol=1e-9)  # the identity of the theory
        total += centered @ centered
        shares += [centered @ part for part in parts]
    return shares / total


def random_words(contexts=70, words=12):
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(words, 6))
    names = tuple(f"w{at}" for at in range(words))
    return MaskedWords(rng.normal(size=(contexts, 6)) + 1, vectors, rng.normal(size=words), names)


def test_the_parts_are_what_the_slow_twin_says_and_sum_to_one():
    found = dot_product_parts(random_words())
    np.testing.assert_allclose([found.pmi, found.log_frequency, found.bias], slow_parts(random_words()), atol=1e-10)
    assert found.pmi + found.log_frequency + found.bias == pytest.approx(1)
    assert (found.contexts, found.words, found.corpus) == (70, 12, None)


def test_contexts_that_are_all_alike_hold_no_pmi():
    masked = random_words()
    alike = MaskedWords(np.repeat(masked.contexts[:1], 9, axis=0), masked.vectors, 0 * masked.bias, masked.words)
    found = dot_product_parts(alike)
    assert (found.pmi, found.log_frequency) == (pytest.approx(0, abs=1e-12), pytest.approx(1))


def test_the_model_s_frequencies_are_compared_with_the_counts():
    masked = random_words()
    products = masked.contexts @ masked.vectors.T + masked.bias
    probabilities = np.exp(products) / np.exp(products).sum(1, keepdims=True)
    counts = {word: round(1e6 * p) for word, p in zip(masked.words, probabilities.mean(0), strict=True)}
    assert dot_product_parts(masked, counts).corpus == pytest.approx(1, abs=1e-4)


def test_contexts_and_words_give_the_head_s_own_logits(masked_bert):
    found = read_masked_words(masked_bert, SENTENCES)
    model, tokenizer = AutoModelForMaskedLM.from_pretrained(masked_bert), AutoTokenizer.from_pretrained(masked_bert)
    columns = tokenizer.convert_tokens_to_ids(list(found.words))
    ours = found.contexts @ found.vectors.T + found.bias
    theirs = []
    for sentence in SENTENCES:
        ids = tokenizer(sentence, return_tensors="pt")["input_ids"]
        for place in range(1, ids.shape[1] - 1):
            masked = ids.clone()
            masked[0, place] = tokenizer.mask_token_id
            theirs.append(model(masked).logits[0, place, columns].detach().numpy())
    # One token of each sentence was masked, whichever it was.
    nearest = [min(np.abs(row - other).max() for other in theirs) for row in ours]
    assert len(ours) == len(SENTENCES)
    assert max(nearest) < 1e-5


def test_an_encoder_without_a_head_is_refused(tiny_bert):
    with pytest.raises(DataError) as refused:
        read_masked_words(tiny_bert, SENTENCES)
    assert str(refused.value) == (
        "tiny-bert has no masked-language-model head (it is a BertModel). Give the folder of a ...ForMaskedLM."
    )


@pytest.mark.slow
def test_a_masked_language_model_holds_log_frequency(shared_data):
    from bertflow.data.corpus import read_frequencies
    from bertflow.data.sts import load_sts

    sentences = list(dict.fromkeys(load_sts("stsb-dev", shared_data / "sts").first))[:200]
    masked = read_masked_words(shared_data / "encoders/mlm-4x256", sentences)
    found = dot_product_parts(masked, read_frequencies(shared_data / "text/en_50k.txt.gz"))
    assert found.log_frequency > 0.5  # the theory: not meaning alone
    assert found.corpus > 0.5
