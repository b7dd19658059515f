"""Similarities and offsets of words; the second voices are loops, SciPy, and arithmetic by hand."""

import json

import numpy as np
import pytest
from scipy.spatial.distance import cdist

from bertflow.errors import UnknownNameError
from bertflow.words.encoder import WordEncoder
from bertflow.words.panels import compare_offsets, placed, run_study
from bertflow.words.study import SHIPPED, STATIC, Mention, Study, load_study, word_study

SENTENCES = ["the man sleeps and the dog eats", "a red dog and a man and the cat"]


@pytest.fixture(scope="module")
def encoder(tiny_bert):
    return WordEncoder(tiny_bert)


@pytest.fixture(scope="module")
def study():
    mentions = tuple(
        Mention(word, sentence, context=name)
        for name, sentence in zip(("one", "two"), SENTENCES, strict=True)
        for word in ("man", "dog", "and", "the")
    )
    return Study(mentions, "men and dogs", closer=(("man", "dog", "and"),), offsets=(("man", "dog", "and", "the"),))


@pytest.fixture(scope="module")
def result(encoder, study):
    return run_study(encoder, study)


def test_every_layer_is_measured_by_default_static_and_in_each_context(result):
    assert list(result.panels) == [f"mean({layer})" for layer in range(5)]
    assert all(list(panels) == [STATIC, "one", "two"] for panels in result.panels.values())


def test_poolings_are_the_users(encoder, study):
    assert list(run_study(encoder, study, ["mean(1,2)", "cls(3)", "cls(3)"]).panels) == ["mean(1,2)", "cls(3)"]


@pytest.mark.parametrize("context", [STATIC, "one", "two"])
def test_similarities_are_those_of_every_two_vectors(encoder, study, result, context):
    if context == STATIC:
        x = encoder.static(["man", "dog", "and", "the"])
    else:
        x = encoder.contextual(study.of(context), ["mean(2)"])["mean(2)"]
    panel = result.panels["mean(2)"][context]
    np.testing.assert_allclose(panel.cosine, 1 - cdist(x, x, "cosine"), atol=1e-6)
    np.testing.assert_allclose(panel.euclidean, cdist(x, x), atol=1e-5)
    assert panel.of("cosine", ("dog", "the")) == panel.cosine[1, 3]
    assert [offset.of for offset in panel.offsets] == [("man - dog", "and - the"), ("man - and", "dog - the")]


@pytest.mark.parametrize(
    ("x", "cosine", "lengths", "ratio"),
    [
        ([[3, 4], [0, 0], [1, 2], [1, 0]], 0.8, (5, 2), 0.4),  # (3, 4) and (0, 2)
        ([[1, 7], [1, 2], [4, 6], [4, 1]], 1, (5, 5), 1),  # a parallelogram
        ([[1, 0], [1, 0], [0, 1], [0, 1]], None, (0, 0), None),  # a word with itself has no direction
    ],
)
def test_offsets_as_vectors_and_as_scalars_by_hand(x, cosine, lengths, ratio):
    labels = ("king", "man", "queen", "woman")
    offset = compare_offsets(np.array(x, float), labels, labels)
    assert (offset.cosine, offset.lengths, offset.ratio) == (pytest.approx(cosine), lengths, pytest.approx(ratio))


@pytest.mark.parametrize(
    ("one", "other", "verdict"), [(0.9, 0.5, "above"), (0.5, 0.9, "below"), (0.5, 0.5 + 1e-8, "level")]
)
def test_cosines_are_level_up_to_rounding(one, other, verdict):
    assert placed(one, other) == verdict


def test_a_pair_is_compared_with_another_and_in_two_contexts(result):
    alone = result.nearer(("man", "dog"), "one", ("man", "and"), "one")
    moved = result.nearer(("man", "dog"), "two", ("man", "dog"), "one")
    for pooling, panels in result.panels.items():
        here, there = panels["one"].cosine[0], panels["two"].cosine[0]
        assert (alone[pooling], moved[pooling]) == (placed(here[1], here[2]), placed(there[1], here[1]))


def test_everything_is_in_the_json(result):
    record = json.loads(json.dumps(result.as_dict(), allow_nan=False))
    assert record["labels"] == ["man", "dog", "and", "the"]
    assert record["mentions"][1] == {
        "context": "one", "label": "dog", "sentence": SENTENCES[0], "pieces": ["dog"], "tokens": [6], "segment": 0,
    }  # fmt: skip
    panel = result.panels["mean(3)"]["two"]
    assert record["panels"]["mean(3)"]["two"]["cosine"] == panel.cosine.tolist()
    assert record["panels"]["mean(3)"]["two"]["offsets"][0]["of"] == ["man - dog", "and - the"]
    assert record["closer"][0]["by_pooling"].keys() == result.panels.keys()


@pytest.mark.parametrize("name", SHIPPED)
def test_the_shipped_studies_are_whole(name):
    study = load_study(name)
    for context in study.contexts:
        for mention in study.of(context):
            assert mention.sentence.lower().count(mention.word.lower()) >= mention.occurrence


def test_words_and_sentences_are_a_study(refusal):
    study = word_study(["dog", "bank#2"], SENTENCES, segment=1)
    assert study.labels == ("dog", "bank#2")
    assert study.contexts["context 2"]["bank#2"] == Mention("bank", SENTENCES[1], 2, 1, "context 2", "bank#2")
    assert study.followed() == (("dog", "bank#2"),)
    assert "'dog' is named twice" in refusal(word_study, ["dog", "dog"], SENTENCES)


ROW = {"context": "one", "word": "man", "sentence": "the man and the dog"}
ROWS = [ROW, {**ROW, "word": "dog"}]


def test_one_word_in_two_sentences_is_compared_with_itself(encoder):
    found = run_study(encoder, word_study(["dog"], ["the dog sleeps", "a big dog"]), ["mean(2)"])
    assert found.study.labels == ("dog (1)", "dog (2)")
    x = encoder.contextual([Mention("dog", "the dog sleeps"), Mention("dog", "a big dog")], ["mean(2)"])["mean(2)"]
    assert found.panels["mean(2)"]["their sentences"].of("euclidean", found.study.labels) == pytest.approx(
        cdist(x[:1], x[1:])[0, 0]
    )
    assert found.static.of("cosine", found.study.labels) == pytest.approx(1)
    told = found.panels["mean(2)"]["their sentences"].of("cosine", found.study.labels)
    assert [*found.verdicts()] == [
        f"dog (1) ~ dog (2): one static vector; in context the cosine is {told:.3f} at mean(2)."
    ]


def test_words_of_sentences_of_their_own_are_compared(encoder):
    study = word_study(["dog", "cat", "bird#2"], ["the dog sleeps", "a cat", "a Dog eats", "bird and bird"])
    assert {label: (one.sentence, one.occurrence) for label, one in study.contexts["their sentences"].items()} == {
        "dog (1)": ("the dog sleeps", 1),
        "cat": ("a cat", 1),
        "dog (2)": ("a Dog eats", 1),
        "bird#2": ("bird and bird", 2),
    }
    assert run_study(encoder, study, ["mean(1)"]).mentions[3]["tokens"] == [3]


def test_two_mentions_in_one_sentence_and_words_in_all_sentences_are_as_they_were():
    assert list(word_study(["dog#1", "dog#2"], ["dog and dog"]).contexts) == ["context 1"]
    assert list(word_study(["dog", "cat"], ["dog cat", "cat, DOG"]).contexts) == ["context 1", "context 2"]


def test_the_nearest_words_of_a_sum_are_those_of_a_loop(encoder):
    mentions = tuple(Mention(word, "man dog cat bird", context="one") for word in ("man", "dog", "cat", "bird"))
    found = run_study(encoder, Study(mentions, offsets=(("man", "dog", "cat", "bird"),)), ["mean(0)"])
    words = [word for word in encoder.tokenizer.get_vocab() if word.isalpha()]
    vectors = {word: encoder.static([word])[0].astype(float) for word in words}
    wanted = vectors["man"] - vectors["dog"] + vectors["bird"]
    cosine = {
        word: float(x @ wanted / np.linalg.norm(x) / np.linalg.norm(wanted))
        for word, x in vectors.items()
        if word not in ("man", "dog", "bird")
    }
    expected = sorted(cosine, key=cosine.get, reverse=True)[:10]
    assert list(found.nearest["man - dog + bird"]) == expected
    assert found.nearest["man - dog + bird"][expected[0]] == pytest.approx(cosine[expected[0]], abs=1e-3)
    (said,) = (part for part in found.answer() if str(part).startswith("man - dog + bird: "))
    assert [word in said for word in expected[:5]] == [True, True, False, False, False]


@pytest.fixture
def written(tmp_path):
    def write(content):
        path = tmp_path / "study.json"
        path.write_text(json.dumps(content))
        return path

    return write


def test_a_file_of_yours_has_the_same_form(written):
    rows = [{**row, "context": context} for context in ("one", "two") for row in ROWS]
    rows[0] |= {"label": "first man", "occurrence": 1, "segment": 1}
    rows[3] |= {"segment": 0}
    rows[2] |= {"label": "first man", "word": "Man"}
    study = load_study(written({"mentions": rows, "pairs": [["first man", "dog"]]}), segment=1)
    assert study.pairs == (("first man", "dog"),)
    assert [mention.segment for mention in study.of("two")] == [1, 0]
    assert [mention.word for mention in study.of("one")] == ["man", "dog"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"mentions": []}, "A study compares at least two words in a context. Add mentions."),
        ({"mentions": [*ROWS, {"word": "cat", "sentence": "a cat"}]}, "Mention 3, 'cat', has no context. Name one."),
        ({"mentions": [ROW, {**ROW, "occurrence": 0}]}, "Occurrences count from 1, got 0 for the word 'man'."),
        ({"mentions": [ROW, ROW]}, "Mention 2 is a second 'man' in 'one'. Give it another label."),
        ({"mentions": [*ROWS, {**ROW, "context": "two"}]},
         "Every context has the same labels, but dog stands in one of 'two' and 'one' alone. Add a mention, or drop "
         "that label everywhere."),
        ({"mentions": [{**row, "context": "static"} for row in ROWS]},
         "No context can be called 'static', since the static vectors are. Rename it."),
        ({"mentions": ROWS, "pairs": [["man", "cat"]]},
         "pairs names cat, but the labels are man, dog. Use those, or add mentions."),
        ({"mentions": ROWS, "closer": [["man", "dog"]]},
         "closer should be a list of lists of 3 labels each, but is (('man', 'dog'),)."),
        ({"mentions": [*ROWS, {**ROW, "context": "two", "label": "dog"}, {**ROW, "context": "two"}]},
         "A label has one static vector, but 'dog' stands for dog and man. Give each word a label of its own."),
    ],
)  # fmt: skip
def test_a_study_of_another_form_is_refused_in_words(written, content, message, refusal):
    path = written(content)
    assert refusal(load_study, path) == (f"{path}: {message}")


def test_an_unknown_study_lists_the_known(refusal):
    assert refusal(load_study, "kings", error=UnknownNameError) == (
        "Unknown study 'kings'. Known: king-queen, bank, bank-separate; or a JSON file of yours."
    )


@pytest.fixture(scope="module")
def minilm_encoder(minilm):
    return WordEncoder(minilm)


def nearer(result, context):
    robber, vault, river = result.study.closer[0]
    return result.nearer((robber, vault), context, (robber, river), context)


def test_robber_and_vault_are_closer_than_robber_and_river(minilm_encoder):
    later = {f"mean({layer})": "above" for layer in range(1, 7)}
    assert nearer(run_study(minilm_encoder, load_study("bank")), "one sentence") == {"mean(0)": "above"} | later
    result = run_study(minilm_encoder, load_study("bank-separate"))
    # By layer 0 "bank" is its position: apart, the robber's is not near the vault's; in the same place all are one row.
    assert nearer(result, "apart") == {"mean(0)": "below"} | later
    assert nearer(result, "same place") == {"mean(0)": "level"} | later


def test_king_and_queen_in_the_two_contexts(minilm_encoder):
    study = load_study("king-queen")
    moved = run_study(minilm_encoder, study).nearer(("king", "queen"), "band", ("king", "queen"), "court")
    # The five words have the same places in both sentences, so what differs above layer 0 is the context alone.
    assert moved == {"mean(0)": "level"} | {f"mean({layer})": "below" for layer in range(1, 7)}
