"""A probe of words: planted tags, counts by hand, scikit-learn's own F1 and pipeline as second voices."""

import json

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score

from bertflow.calibration.closed_forms import Standardize, Whitening
from bertflow.data.labeled import TaggedText
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.encoder.words import encode_words
from bertflow.errors import DataError
from bertflow.evaluation.poolings import WEIGHTED
from bertflow.studies.probing import C, Gold, f1_of, gold_of, guess_tags, interval_of, probe_words

from ..texts import WITH_AND as WORDS


def sentences(n, seed=0):
    rng = np.random.default_rng(seed)
    return tuple(tuple(rng.choice(WORDS, rng.integers(2, 9)).tolist()) for _ in range(n))


def tagged(text, tag):
    """Tags by a function of a sentence and a place in it."""
    return TaggedText(text, tuple(tuple(tag(words, at) for at in range(len(words))) for words in text), "planted")


def noun_before(words, at):
    """A noun is a noun; every other word has the tag of the sentence's noun, which the word alone cannot know."""
    return "NOUN" if at == 0 else words[0].upper()


def open_encoder(folder, **options):
    return TransformerEncoder(folder, pooling="sif", device="cpu", **options)


def of(result, pooling, calibrator="raw"):
    return next(row for row in result.rows if (row.pooling, row.column) == (pooling, calibrator))


@pytest.fixture(scope="module")
def planted():
    others, rng = ["runs", "sleeps", "eats", "big", "red", "in"], np.random.default_rng(0)
    nouns = rng.choice(["dog", "cat"], 200).tolist()
    return tagged(tuple((noun, *rng.choice(others, 3).tolist()) for noun in nouns), noun_before)


@pytest.fixture(scope="module")
def found(tiny_bert, planted):
    poolings = ["mean(0)", "mean(1)", "mean(2)", "mean(3)", "mean(4)", "concat-last-4"]
    return probe_words(open_encoder(tiny_bert), planted, poolings, ["raw", "whitening"], folds=3)


def test_a_tag_that_the_context_decides_is_found_behind_the_embedding_layer(found):
    # A random model: its attention mixes the words of a sentence, and nothing is learned but the probe.
    assert of(found, "mean(0)").value < 0.75  # all nouns, and half of the others
    assert of(found, "mean(0)", "whitening").value < 0.75
    assert of(found, "concat-last-4", "whitening").value > 0.95


def test_a_tag_that_the_word_decides_is_in_the_embedding_layer(tiny_bert):
    text = tagged(sentences(60), lambda words, at: "N" if words[at] in ("man", "dog", "cat") else "X")
    result = probe_words(open_encoder(tiny_bert), text, ["mean(0)"], ["whitening"], folds=3)
    assert result.rows[0].value == result.rows[0].facts["accuracy"] == 1.0


def test_a_cell_is_what_a_pipeline_of_scikit_learn_gives(found, planted, tiny_bert):
    x = encode_words(open_encoder(tiny_bert), planted.sentences, ["mean(2)"])["mean(2)"].astype(np.float64)
    tags = np.array([tag for row in planted.tags for tag in row])
    read = np.ones(len(tags), dtype=bool)
    for name, calibrator in (("raw", None), ("whitening", Whitening())):
        guessed = np.empty_like(tags)
        for train, held_out in gold_of(planted, read).splits(3, seed=0):
            parts = (x[train], x[held_out])
            if calibrator:
                fitted = calibrator.fit(parts[0].astype(np.float32))
                parts = tuple(fitted.transform(part.astype(np.float32)) for part in parts)
            # The penalty of x / s is that of x by C / s^2.
            model = LogisticRegression(C=C / parts[0].var(0).sum(), max_iter=5000, tol=1e-6)
            guessed[held_out] = model.fit(parts[0], tags[train]).predict(parts[1])
        expected = f1_score(tags, guessed, average="macro")
        assert of(found, "mean(2)", name).value == pytest.approx(expected, abs=0.01)
        assert of(found, "mean(2)", name).facts["accuracy"] == pytest.approx(np.mean(guessed == tags), abs=0.005)


def test_the_weighted_mean_is_probed_where_every_layer_is(found):
    assert of(found, WEIGHTED).candidate.layers == (0, 1, 2, 3, 4)


def test_f1_of_tags_is_scikit_learns(planted):
    gold = gold_of(planted, np.ones(sum(map(len, planted.sentences)), dtype=bool))
    guessed = np.random.default_rng(0).integers(0, 3, len(gold.tags))
    expected = f1_score(gold.tags, guessed, average="macro")
    assert f1_of(gold.counts(guessed).sum(0)) == pytest.approx(expected)


def test_f1_of_entities_by_hand():
    text = TaggedText((("a",) * 5, ("b",) * 3), (("B-x", "I-x", "O", "B-y", "O"), ("O", "B-x", "O")), "")
    gold = gold_of(text, np.ones(8, dtype=bool))
    guesses = ["B-x", "I-x", "O", "B-x", "O", "O", "B-x", "I-x"]  # one whole, one of another type, one too long
    counts = gold.counts(np.array([gold.names.index(tag) for tag in guesses]))
    assert counts.tolist() == [[[1, 2, 2]], [[0, 1, 1]]]
    assert f1_of(counts.sum(0)) == pytest.approx(2 * 1 / (3 + 3))


def test_an_entity_ends_with_its_sentence():
    text = TaggedText((("a",), ("b",)), (("B-x",), ("I-x",)), "")
    gold = gold_of(text, np.ones(2, dtype=bool))
    assert gold.counts(gold.tags).tolist() == [[[1, 1, 1]], [[1, 1, 1]]]


def test_a_tag_that_is_neither_there_nor_guessed_does_not_count():
    assert f1_of(np.array([[1.0, 1, 1], [0, 0, 0]])) == 1.0
    assert f1_of(np.zeros((1, 3))) == 0.0


def test_equal_sentences_are_in_one_fold():
    text = tagged((("The", "dog"), ("a", "cat"), ("the", "dog", "."), ("a", "man"), ("the", "cat")) * 4, noun_before)
    gold = gold_of(text, np.ones(sum(map(len, text.sentences)), dtype=bool))
    words = [" ".join(words).lower().removesuffix(" .") for words in text.sentences for _ in words]
    for train, held_out in gold.splits(3, seed=1):
        assert not {words[at] for at in train} & {words[at] for at in held_out}
        assert len(train) + len(held_out) == len(words)


def test_a_calibrator_sees_the_training_folds_alone(monkeypatch):
    rng, seen = np.random.default_rng(0), []
    x, tags = rng.normal(size=(60, 4)).astype(np.float32), np.arange(60) % 2
    gold = Gold(tags, ["a", "b"], np.arange(60) // 2, np.arange(60) // 2, spelled=False)
    fit = Standardize.fit
    monkeypatch.setattr(Standardize, "fit", lambda self, rows, *rest: seen.append(rows) or fit(self, rows, *rest))
    splits = gold.splits(3, seed=0)
    guess_tags(x, tags, splits, "sn")
    for (train, _), rows in zip(splits, seen, strict=True):
        np.testing.assert_array_equal(rows, x[train])


def test_the_unit_of_the_vectors_does_not_matter():
    rng = np.random.default_rng(0)
    tags = rng.integers(0, 3, 200)
    x = (rng.normal(size=(200, 5)) + tags[:, None]).astype(np.float32)
    splits = Gold(tags, ["a", "b", "c"], np.arange(200), np.arange(200), spelled=False).splits(4, seed=0)
    np.testing.assert_array_equal(guess_tags(x, tags, splits), guess_tags(1000 * x + 50, tags, splits))


def test_the_interval_holds_the_figure_and_shrinks_with_text():
    rng = np.random.default_rng(0)
    true = rng.integers(1, 4, (2000, 1))
    counts = np.stack([rng.binomial(true, 0.6), true, true], axis=-1).astype(float)
    few, many = interval_of(counts[:100], 0), interval_of(counts, 0)
    assert many[0] < f1_of(counts.sum(0)) < many[1]
    # The standard error of a share p of n is sqrt(p (1 - p) / n), here some 0.6 of about 4,000.
    assert many[1] - many[0] == pytest.approx(2 * 1.96 * np.sqrt(0.24 / true.sum()), rel=0.2)
    assert 3 < (few[1] - few[0]) / (many[1] - many[0]) < 6.5


def test_words_that_are_not_read_are_counted_and_said(tiny_bert):
    text = tagged((*sentences(20), tuple(["the", "dog"] * 10), ("the", "\u200b")), noun_before)
    result = probe_words(open_encoder(tiny_bert, max_length=12), text, ["mean(1)"], ["raw"], folds=2)
    assert (result.facts["cut"], result.facts["without_pieces"]) == (10, 1)
    assert result.facts["words"] == sum(map(len, text.sentences)) - 11
    assert "10 words behind max_length=12 tokens were left out." in result.how
    assert "1 words that the tokenizer makes nothing of were left out." in result.how


def test_entities_are_counted(tiny_bert):
    text = tagged(sentences(40), lambda words, at: "B-x" if words[at] == "dog" else "O")
    result = probe_words(open_encoder(tiny_bert), text, ["cls(1)"], ["raw"], folds=2)
    assert result.facts["entities"] == sum(words.count("dog") for words in text.sentences)
    assert result.facts["measure"] == "Entity F1"
    assert f"{result.facts['entities']} entities, 2 tags" in "\n".join(result.how)


def test_json_csv_table_and_grid_hold_every_value(found):
    record = json.loads(found.to_json())
    assert [row["f1"] for row in record["rows"]] == [row.value for row in found.rows]
    assert found.to_csv().count("\n") == len(found.rows) + 1
    line = next(line for line in found.table().lines if line[0] == "mean(2)")
    row = of(found, "mean(2)", "whitening")
    low, high = row.facts["low"], row.facts["high"]
    assert line[3:] == (f"{100 * row.value:.2f}", f"{100 * low:.2f} to {100 * high:.2f}")
    layers, tokens, panels = found.grid()
    assert (layers, tokens, set(panels)) == ([0, 1, 2, 3, 4], ["mean"], {"raw", "whitening"})


def test_what_cannot_be_probed_is_refused(tiny_bert):
    encoder = open_encoder(tiny_bert)
    with pytest.raises(DataError, match=r"^9 folds need as many different sentences, got 5\. Give more text\.$"):
        probe_words(encoder, tagged(sentences(5), noun_before), ["mean"], folds=9)
    one = TaggedText((("the", "dog"), ("cat",)), (("a", "a"), ("b",)), "")
    with pytest.raises(DataError, match=r"^Without the sentences of one fold only one tag is left\."):
        probe_words(encoder, one, ["mean"], folds=2)
    nothing = TaggedText((("\u200b",), ("\u200b", "\u200b")), (("a",), ("a", "b")), "empty")
    with pytest.raises(DataError, match=r"^empty has no word with a token for this model\. Give other text\.$"):
        probe_words(encoder, nothing, ["mean"])
