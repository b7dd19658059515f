import numpy as np
import pytest
from sklearn.decomposition import TruncatedSVD
from transformers import AutoModel, AutoTokenizer

from bertflow.errors import DataError
from bertflow.geometry.layers import TokenStates, contextuality, explained_by_first, read_token_states


def states(layers):
    """Six sentences of three words; word 0 stands in all of them, the others in one."""
    tokens = np.array([[0, 2 * at + 1, 2 * at + 2] for at in range(6)]).ravel()
    return TokenStates(tokens, np.repeat(np.arange(6), 3), tuple(layers))


def cosine(a, b):
    return a @ b / np.linalg.norm(a) / np.linalg.norm(b)


def test_self_similarity_is_the_mean_cosine_of_the_occurrences():
    x = np.random.default_rng(0).normal(size=(18, 5))
    (found,) = contextuality(states([x]))
    own = x[::3]
    assert found.self_similarity == pytest.approx(
        np.mean([cosine(own[i], own[j]) for i in range(6) for j in range(6) if i != j])
    )
    assert (found.words, found.sentences) == (1, 6)


def test_intra_sentence_similarity_is_with_the_mean_of_the_sentence():
    x = np.random.default_rng(0).normal(size=(18, 5))
    (found,) = contextuality(states([x]))
    slow = [np.mean([cosine(row, x[at : at + 3].mean(0)) for row in x[at : at + 3]]) for at in range(0, 18, 3)]
    assert found.intra_sentence == pytest.approx(np.mean(slow))


def test_the_baseline_is_of_different_words():
    # Word 0 points one way, all others are orthogonal to it and to each other.
    x = np.zeros((18, 13))
    x[np.arange(18), states([]).tokens] = 1
    (found,) = contextuality(states([x]))
    assert (found.self_similarity, found.baseline) == (pytest.approx(1), pytest.approx(0))
    assert found.mev == pytest.approx(1)


def test_mev_is_the_share_of_the_first_singular_value():
    x = np.random.default_rng(0).normal(size=(7, 12)) + 1
    first = TruncatedSVD(1, algorithm="arpack", random_state=0).fit(x)
    assert explained_by_first(x) == pytest.approx(first.singular_values_[0] ** 2 / np.square(x).sum())


def test_mev_stands_beside_random_groups_of_the_same_size():
    x = np.random.default_rng(0).normal(size=(18, 400))
    (found,) = contextuality(states([x]))
    assert found.mev == pytest.approx(found.mev_baseline, abs=0.03)  # no word is special here
    assert found.mev > 1 / 7  # six random vectors always share a sixth


def test_each_layer_has_its_own_row():
    x = np.random.default_rng(0).normal(size=(18, 5))
    found = contextuality(states([x, x + 10]))
    assert [row.layer for row in found] == [0, 1]
    assert found[1].baseline > 0.9 > found[0].baseline


def test_words_that_never_recur_are_refused():
    tokens = TokenStates(np.arange(6), np.repeat(np.arange(3), 2), (np.ones((6, 2)),))
    with pytest.raises(DataError) as refused:
        contextuality(tokens)
    assert str(refused.value) == (
        "No word stands in 5 of the sentences, so none can be compared with itself. Give more."
    )


def test_token_states_are_the_hidden_states_of_the_content_tokens(tiny_bert):
    sentences = ["the dog sings .", "a big red cat sleeps in the garden", "the bird eats"]
    found = read_token_states(tiny_bert, sentences, device="cpu")
    model, tokenizer = AutoModel.from_pretrained(tiny_bert), AutoTokenizer.from_pretrained(tiny_bert)
    for row, sentence in enumerate(sentences):
        inputs = tokenizer(sentence, return_tensors="pt")
        hidden = model(**inputs, output_hidden_states=True).hidden_states
        mine = found.sentences == row
        assert found.tokens[mine].tolist() == inputs["input_ids"][0, 1:-1].tolist()
        assert len(found.layers) == len(hidden)
        for layer, theirs in zip(found.layers, hidden, strict=True):
            np.testing.assert_allclose(layer[mine], theirs[0, 1:-1].detach().numpy(), atol=1e-5)
