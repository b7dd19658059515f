"""Broad and narrow text, by rows that are made to be so."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest

import bertflow
from bertflow.advise.reading import read_documents
from bertflow.advise.split import split_text
from bertflow.advise.vetoes import Vetoes
from bertflow.breadth import FEWEST, FOREIGN, NARROW, RICH, are_titles, breadth_of, richness
from bertflow.calibration.spelling import RAW


def cloud(n, dim=16, seed=0):
    return np.random.default_rng(seed).normal(size=(n, dim)) + 1


def templates(n, dim=16, kinds=12, seed=0):
    """Few kinds, each at a place of its own, and hardly any spread within a kind."""
    rng = np.random.default_rng(seed)
    places = rng.normal(size=(kinds, dim))
    return places[rng.integers(kinds, size=n)] + 0.01 * rng.normal(size=(n, dim)) + 1


def test_a_cloud_is_broad_and_templates_are_narrow():
    assert breadth_of(cloud(1000)).novelty == pytest.approx(1, abs=0.4)
    assert not breadth_of(cloud(1000)).narrow
    assert breadth_of(templates(1000)).novelty > 3 * NARROW
    assert breadth_of(templates(1000)).narrow


def test_a_large_novelty_is_not_said_to_the_digit():
    few = replace(breadth_of(templates(1000)), novelty=2771.9)
    assert "a topic left out of a fit lies more than 100 times as far off as random lines" in str(few)
    assert "a topic left out of a fit lies 1.2 times as far off" in str(replace(few, novelty=1.2))


def test_the_distance_of_rows_left_out_at_random_is_one_where_there_are_many():
    assert breadth_of(cloud(3000)).at_random == pytest.approx(1, abs=0.1)


def test_other_rows_of_the_same_kind_are_as_near_and_those_of_another_are_far():
    broad, narrow = breadth_of(cloud(1000)), breadth_of(templates(1000))
    assert broad.strangeness(cloud(200, seed=1)) == pytest.approx(1, abs=0.2)
    assert narrow.strangeness(cloud(200, seed=1)) > FOREIGN


def test_the_length_of_rows_does_not_count():
    x, lengths = cloud(500), np.random.default_rng(1).uniform(0.1, 10, size=(500, 1))
    assert breadth_of(x * lengths).novelty == pytest.approx(breadth_of(x).novelty, rel=1e-6)


def test_one_line_says_which():
    assert str(breadth_of(templates(1000))).startswith("The text is narrow (a topic left out of a fit lies ")
    assert str(breadth_of(cloud(1000))).startswith("The text is broad (")


def test_of_few_rows_nothing_is_said():
    assert breadth_of(cloud(FEWEST - 1)) is None
    assert breadth_of(cloud(FEWEST)) is not None


def words(different, texts=1000, seed=0):
    """Texts of ten words, of so many different ones."""
    rng = np.random.default_rng(seed)
    names = ["".join(chr(97 + int(digit)) for digit in f"{number:05d}") for number in range(different)]
    return [" ".join(names[at] for at in rng.integers(different, size=10)) for _ in range(texts)]


def test_few_different_words_are_a_sign():
    x = cloud(1000)
    assert richness(words(300)) == pytest.approx(300)
    assert richness(words(300, texts=300)) > richness(words(300, texts=1000))
    narrow = breadth_of(x, words(300))
    assert narrow.signs() == ("it has 300 different words per 5,000",)
    assert richness(words(5000)) > 2 * RICH
    assert not breadth_of(x, words(5000)).narrow


@pytest.mark.parametrize(
    ("texts", "titles"),
    [
        (["oat drink", "smoked paprika sweet", "Bearing 6204-2RS"], True),
        (["oat drink", "renew the car insurance", "a slightly longer text"], False),
        (["私は学校に行きます。", "วันนี้อากาศดี", "他在读一本书。"], False),  # no spaces between their words
    ],
)
def test_titles_are_a_sign(texts, titles):
    assert are_titles(texts) == titles
    many = [f"{text}{'x' * at}" for at in range(300) for text in texts]
    signs = breadth_of(cloud(len(many)), many).signs()
    assert ("most of its texts have at most 3 words" in signs) == titles


def test_a_fit_of_narrow_rows_warns_once_where_it_divides(tmp_path, caplog):
    np.save(tmp_path / "narrow.npy", templates(400).astype(np.float32))
    np.save(tmp_path / "broad.npy", cloud(400).astype(np.float32))
    for name, calibrator, warned in (("narrow", "whitening", 1), ("narrow", "abtt(1)", 0), ("broad", "whitening", 0)):
        caplog.clear()
        bertflow.fit(calibrator=calibrator, vectors=tmp_path / f"{name}.npy", output=tmp_path / f"{name}-{calibrator}")
        assert caplog.text.count("The text is narrow") == warned, (name, calibrator)


def narrow_lines():
    """360 different lines of 19 words."""
    who, does = ["man", "dog", "cat", "bird", "girl"], ["runs", "sleeps", "eats"]
    where = ["big house", "red garden", "green park", "old town"]
    parts = product(["A", "The", "One"], ["big", "red"], who, does, where)
    return [f"{article} {how} {one} {act} in the {place}." for article, how, one, act, place in parts]


def test_a_training_on_narrow_text_warns_by_the_figures_of_fix(tiny_bert, tmp_path, caplog):
    lines = narrow_lines()
    split = split_text(read_documents([*lines[::-1], *lines]), "lines", [], 8000, 1000, 0)
    said = Vetoes({RAW: bertflow.load(tiny_bert)}, split, [], ())(RAW)[0]
    assert said.startswith("The text is narrow (it has ")
    options = {"max_epochs": 1, "enable_progress_bar": False}
    run = bertflow.train(tiny_bert, lines, trainer=options, output=tmp_path / "run", report=False, save_encoder=False)
    assert sum(said in message for message in caplog.messages) == 1
    assert next(iter(run.answer())).startswith(f"WARNING: {said}")


def test_neither_order_nor_copies_of_texts_count():
    lines, x = narrow_lines(), cloud(360)
    mixed = np.random.default_rng(1).permutation(np.repeat(np.arange(360), 2))
    again = breadth_of(x[mixed], [lines[at] for at in mixed])
    assert replace(again, density=None) == replace(breadth_of(x, lines), density=None)


def test_rows_that_repeat_count_once():
    assert breadth_of(np.repeat(cloud(8), 50, axis=0)) is None
    assert breadth_of(np.repeat(cloud(FEWEST), 2, axis=0)).n == FEWEST


def test_a_name_in_code_is_not_one_word():
    assert richness([f"{does}UserName{number}" for number in range(2000) for does in ("get", "set")]) == 4
    assert richness(["getUserName HTTPServer_2 Ärger"] * 2) == pytest.approx(6 * (5000 / 6) ** 0.5)


def test_a_text_is_as_rich_in_one_script_as_in_another():
    rng = np.random.default_rng(0)
    hindi = ["".join(f"{chr(letter)}ी" for letter in rng.integers(0x915, 0x939, 3)) for _ in range(300)]
    thai = ["".join(chr(letter) for letter in rng.integers(0xE01, 0xE2E, 2)) for _ in range(300)]
    for words, space in ((hindi, " "), (thai, "")):
        assert richness([space.join(rng.choice(words, 9)) for _ in range(900)]) == len(set(words))
