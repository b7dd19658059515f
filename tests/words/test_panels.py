"""Similarities and offsets of words; the second voices are loops, SciPy, and arithmetic by hand."""

import json

import numpy as np
import pytest
from scipy.spatial.distance import cosine, euclidean

from bertflow.errors import DataError, UnknownNameError
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
    for row in range(4):
        for column in range(4):
            assert panel.cosine[row, column] == pytest.approx(1 - cosine(x[row], x[column]), abs=1e-6)
            assert panel.euclidean[row, column] == pytest.approx(euclidean(x[row], x[column]), abs=1e-5)
    assert panel.of("cosine", ("dog", "the")) == panel.cosine[1, 3]


def test_both_pairs_of_sides_of_an_offset_are_compared(result):
    panel = result.panels["mean(0)"]["one"]
    assert [offset.of for offset in panel.offsets] == [("man - dog", "and - the"), ("man - and", "dog - the")]


def test_offsets_as_vectors_and_as_scalars_by_hand():
    labels = ("king", "man", "queen", "woman")
    x = np.array([[3.0, 4.0], [0.0, 0.0], [1.0, 2.0], [1.0, 0.0]])
    offset = compare_offsets(x, labels, labels)
    assert offset.cosine == pytest.approx(0.8)  # of (3, 4) and (0, 2)
    assert offset.lengths == (5, 2)
    assert offset.ratio == pytest.approx(0.4)


def test_a_parallelogram_is_exact_as_vectors_and_as_scalars():
    labels = ("king", "man", "queen", "woman")
    man, woman, royal = np.random.default_rng(0).normal(size=(3, 8))
    offset = compare_offsets(np.stack([man + royal, man, woman + royal, woman]), labels, labels)
    assert offset.cosine == pytest.approx(1)
    assert offset.ratio == pytest.approx(1)


def test_offsets_of_one_word_with_itself_have_no_direction():
    offset = compare_offsets(np.eye(2), ("a", "b"), ("a", "a", "b", "b"))
    assert offset.cosine is None
    assert offset.ratio is None


@pytest.mark.parametrize(
    ("one", "other", "verdict"), [(0.9, 0.5, "above"), (0.5, 0.9, "below"), (0.5, 0.5 + 1e-8, "level")]
)
def test_cosines_are_level_up_to_rounding(one, other, verdict):
    assert placed(one, other) == verdict


def test_pairs_of_one_context_are_compared_at_each_pooling(result):
    for pooling, verdict in result.nearer(("man", "dog"), "one", ("man", "and"), "one").items():
        row = result.panels[pooling]["one"].cosine[0]
        assert verdict == ("above" if row[1] > row[2] else "below")


def test_a_pair_is_compared_in_two_contexts(result):
    for pooling, verdict in result.nearer(("man", "dog"), "two", ("man", "dog"), "one").items():
        panels = result.panels[pooling]
        assert verdict == placed(panels["two"].cosine[0, 1], panels["one"].cosine[0, 1])


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


def test_words_and_sentences_are_a_study():
    study = word_study(["dog", "bank#2"], SENTENCES, segment=1)
    assert study.labels == ("dog", "bank#2")
    assert study.contexts["context 2"]["bank#2"] == Mention("bank", SENTENCES[1], 2, 1, "context 2", "bank#2")
    assert study.followed() == (("dog", "bank#2"),)


def test_a_word_named_twice_is_refused():
    with pytest.raises(DataError, match="'dog' is named twice"):
        word_study(["dog", "dog"], SENTENCES)


ROW = {"context": "one", "word": "man", "sentence": "the man and the dog"}
ROWS = [ROW, {**ROW, "word": "dog"}]


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
        ({"mentions": [ROW]}, "A study compares at least two words in a context. Add mentions."),
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
def test_a_study_of_another_form_is_refused_in_words(written, content, message):
    path = written(content)
    with pytest.raises(DataError) as refused:
        load_study(path)
    assert str(refused.value) == f"{path}: {message}"


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ([], "is not a complete study: it should be an object, got []"),
        ({"pairs": []}, "is not a complete study: it has no mentions"),
        ({"mentions": ROWS, "pears": []}, "is not a study: pears is not one of its keys"),
        ({"mentions": [ROW, {"word": "cat"}]}, "is not a complete study: it has no mentions.1.sentence"),
        ({"mentions": [ROW, {**ROW, "words": 2}]}, "is not a study: mentions.1.words is not one of its keys"),
        ({"mentions": [ROW, {**ROW, "occurrence": "2"}]},
         "is not a complete study: mentions.1.occurrence should be a valid integer, got '2'"),
        ({"mentions": [ROW, {**ROW, "word": 2}]},
         "is not a complete study: mentions.1.word should be a valid string, got 2"),
        ({"mentions": ROWS, "pairs": "man"},
         "is not a complete study: pairs should be a valid array, got 'man'"),
    ],
)  # fmt: skip
def test_a_study_whose_fields_are_of_another_type_is_refused_with_the_field(written, content, what):
    path = written(content)
    with pytest.raises(DataError) as refused:
        load_study(path)
    assert str(refused.value) == f"{path} {what}. Repair the file."


def test_an_unknown_study_lists_the_known():
    with pytest.raises(UnknownNameError) as refused:
        load_study("kings")
    assert str(refused.value) == (
        "Unknown study 'kings'. Known: king-queen, bank, bank-separate; or a JSON file of yours."
    )


@pytest.fixture(scope="module")
def minilm_encoder(minilm):
    return WordEncoder(minilm)


def nearer(result, context):
    robber, vault, river = result.study.closer[0]
    return result.nearer((robber, vault), context, (robber, river), context)


def test_in_one_sentence_robber_and_vault_are_closer_than_robber_and_river_at_every_layer(minilm_encoder):
    study = load_study("bank")
    found = nearer(run_study(minilm_encoder, study), "one sentence")
    assert found == {f"mean({layer})": "above" for layer in range(7)}


def test_in_separate_sentences_they_are_from_block_1_on(minilm_encoder):
    study = load_study("bank-separate")
    result = run_study(minilm_encoder, study)
    later = {f"mean({layer})": "above" for layer in range(1, 7)}
    # By layer 0 "bank" is its position: apart, the robber's is not near the vault's; in the same place all are one row.
    assert nearer(result, "apart") == {"mean(0)": "below"} | later
    assert nearer(result, "same place") == {"mean(0)": "level"} | later


def test_king_and_queen_in_the_two_contexts(minilm_encoder):
    study = load_study("king-queen")
    moved = run_study(minilm_encoder, study).nearer(("king", "queen"), "band", ("king", "queen"), "court")
    # The five words have the same places in both sentences, so what differs above layer 0 is the context alone.
    assert moved == {"mean(0)": "level"} | {f"mean({layer})": "below" for layer in range(1, 7)}
