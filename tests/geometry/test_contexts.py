import numpy as np
import pytest
import torch
from sklearn.decomposition import TruncatedSVD
from transformers import AutoModel, AutoModelForMaskedLM, AutoTokenizer, BertConfig, BertForMaskedLM

from bertflow.geometry.contexts import contextuality, explained_by_first, read_token_states
from bertflow.geometry.masked import MaskedWords, dot_product_parts, read_masked_words

SENTENCES = ["the dog sings .", "a big red cat sleeps", "the bird eats in the house"]


def states(layers):
    """Six sentences of three words; word 0 stands in all of them, the others in one."""
    tokens = np.array([[0, 2 * at + 1, 2 * at + 2] for at in range(6)]).ravel()
    return tokens, np.repeat(np.arange(6), 3), layers


def cosine(a, b):
    return a @ b / np.linalg.norm(a) / np.linalg.norm(b)


def test_a_word_is_compared_with_itself_and_with_the_mean_of_its_sentence():
    x = np.random.default_rng(0).normal(size=(18, 5))
    found, beside = contextuality(*states([x, x + 10]))
    own = x[::3]
    occurrences = [cosine(own[i], own[j]) for i in range(6) for j in range(6) if i != j]
    assert found.self_similarity == pytest.approx(np.mean(occurrences))
    slow = [np.mean([cosine(row, x[at : at + 3].mean(0)) for row in x[at : at + 3]]) for at in range(0, 18, 3)]
    assert found.intra_sentence == pytest.approx(np.mean(slow))
    assert (found.layer, beside.layer, found.words, found.sentences) == (0, 1, 1, 6)
    assert beside.baseline > 0.9 > found.baseline


def test_the_baseline_is_of_different_words():
    # Word 0 points one way, all others are orthogonal to it and to each other.
    x = np.zeros((18, 13))
    x[np.arange(18), states([])[0]] = 1
    (found,) = contextuality(*states([x]))
    assert (found.self_similarity, found.baseline) == (pytest.approx(1), pytest.approx(0))
    assert found.mev == pytest.approx(1)


def test_mev_is_the_share_of_the_first_singular_value():
    x = np.random.default_rng(0).normal(size=(7, 12)) + 1
    first = TruncatedSVD(1, algorithm="arpack", random_state=0).fit(x)
    assert explained_by_first(x) == pytest.approx(first.singular_values_[0] ** 2 / np.square(x).sum())


def test_mev_stands_beside_random_groups_of_the_same_size():
    x = np.random.default_rng(0).normal(size=(18, 400))
    (found,) = contextuality(*states([x]))
    assert found.mev == pytest.approx(found.mev_baseline, abs=0.03)  # no word is special here
    assert found.mev > 1 / 7  # six random vectors always share a sixth


def test_words_that_never_recur_are_refused(refusal):
    assert refusal(lambda: contextuality(np.arange(6), np.repeat(np.arange(3), 2), [np.ones((6, 2))])) == (
        "No word stands in 5 of the sentences, so none can be compared with itself. Give more."
    )


def test_token_states_are_the_hidden_states_of_the_content_tokens(tiny_bert):
    sentences = ["the dog sings .", "a big red cat sleeps in the garden", "the bird eats"]
    tokens, rows, layers = read_token_states(tiny_bert, sentences, device="cpu")
    model, tokenizer = AutoModel.from_pretrained(tiny_bert), AutoTokenizer.from_pretrained(tiny_bert)
    for row, sentence in enumerate(sentences):
        inputs = tokenizer(sentence, return_tensors="pt")
        hidden = model(**inputs, output_hidden_states=True).hidden_states
        mine = rows == row
        assert tokens[mine].tolist() == inputs["input_ids"][0, 1:-1].tolist()
        assert len(layers) == len(hidden)
        for layer, theirs in zip(layers, hidden, strict=True):
            np.testing.assert_allclose(layer[mine], theirs[0, 1:-1].detach().numpy(), atol=1e-5)


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
    found = dot_product_parts(random_words(), {})
    np.testing.assert_allclose([found.pmi, found.log_frequency, found.bias], slow_parts(random_words()), atol=1e-10)
    assert found.pmi + found.log_frequency + found.bias == pytest.approx(1)
    assert (found.contexts, found.words, found.corpus) == (70, 12, None)


def test_contexts_that_are_all_alike_hold_no_pmi():
    masked = random_words()
    alike = MaskedWords(np.repeat(masked.contexts[:1], 9, axis=0), masked.vectors, 0 * masked.bias, masked.words)
    found = dot_product_parts(alike, {})
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


def test_an_encoder_without_a_head_is_refused(tiny_bert, refusal):
    assert refusal(read_masked_words, tiny_bert, SENTENCES) == (
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
