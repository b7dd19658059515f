"""The table of pairs that are worth judging: what is drawn, written, and read back."""

import csv

import numpy as np
import pytest
from scipy.stats import rankdata, spearmanr

import bertflow
from bertflow.advise.asking import COLUMNS, FEWEST_ASKED, SPELLED, choose_pairs, drawn, read_asked, write_asked
from bertflow.advise.evidence import ASKED, load_evidence
from bertflow.advise.rules import PROVEN
from bertflow.data.pairs import Pairs
from bertflow.encoder.abstract import AbstractEncoder
from bertflow.errors import DataError, UsageError
from bertflow.text_keys import text_key

from ..texts import COLORED as WORDS


def lines(n):
    return [f"{' '.join(map(str, np.random.default_rng(k).choice(WORDS, 6)))} {k}" for k in range(n)]


class Scattered(AbstractEncoder):
    """Random rows by sentence: two of them disagree about all pairs."""

    def __init__(self, seed, dim=8):
        self.seed, self.dim = seed, dim

    def _encode(self, sentences, role, progress, batch_size):
        rows = [np.random.default_rng([self.seed, int(one.split()[-1])]).normal(size=self.dim) for one in sentences]
        return np.array(rows, dtype=np.float32).reshape(-1, self.dim)

    def describe(self):
        return {"encoder": "scattered", "weights": str(self.seed), "pooling": "none"}


SYSTEMS = {"raw": Scattered(0), "one": Scattered(1), "two": Scattered(2)}


def test_no_sentence_is_asked_for_twice_and_no_pair_is_a_sentence_with_itself():
    text = [*lines(150), lines(1)[0].upper()]  # the same text in capitals
    pairs = choose_pairs(SYSTEMS, text, 50, seed=0)
    used = [text_key(one) for one in (*pairs.first, *pairs.second)]
    assert len(pairs) == 50
    assert len(set(used)) == 100
    assert pairs.target is None


def test_where_sentences_are_few_all_but_a_few_of_them_are_used():
    pairs = choose_pairs(SYSTEMS, lines(40), 100, seed=0)
    assert 15 <= len(pairs) <= 20


def test_the_same_seed_asks_for_the_same_pairs():
    first, again, other = (choose_pairs(SYSTEMS, lines(150), 30, seed=seed) for seed in (3, 3, 4))
    assert first.digest() == again.digest() != other.digest()


def test_pairs_are_drawn_by_how_much_the_candidates_disagree():
    rng = np.random.default_rng(0)
    agree = rng.normal(size=2000)
    cosines = np.stack([agree, agree, np.where(np.arange(2000) < 200, -agree, agree)])
    sides = np.arange(4000).reshape(2, 2000)
    rows = {power: drawn(cosines, sides, 100, np.random.default_rng(1), power) for power in (0, 3)}
    assert (rows[0] < 200).mean() < 0.25
    assert (rows[3] < 200).mean() > 0.6
    spread = rankdata(cosines, axis=1).std(0)
    assert spread[rows[3]].mean() > 2 * spread[rows[0]].mean()


def asked(folder, scores):
    """A table, filled in: empty where there is no score."""
    pairs = Pairs("asked labels", tuple(lines(len(scores))), tuple(lines(2 * len(scores))[len(scores) :]), kind="texts")
    path = folder / "ask.csv"
    write_asked(path, pairs)
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = list(csv.reader(file))
    for row, score in zip(rows[1:], scores, strict=True):
        row[2] = score
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(rows)
    return path, pairs


def test_the_table_says_the_scale_and_names_no_system(tmp_path):
    path, pairs = asked(tmp_path, [""] * 40)
    header, *rows = list(csv.reader(path.read_text("utf-8-sig").splitlines()))
    assert tuple(header) == COLUMNS
    assert [tuple(row[:2]) for row in rows] == list(zip(pairs.first, pairs.second, strict=True))
    assert {tuple(row[2:]) for row in rows} == {("", SPELLED)}


def test_excel_knows_the_encoding_of_the_table(tmp_path):
    write_asked(tmp_path / "ask.csv", Pairs("asked labels", ("Köln",), ("Straße",), kind="texts"))
    assert (tmp_path / "ask.csv").read_bytes().startswith("\ufeffsentence1".encode())


def test_a_table_that_is_partly_filled_in_is_read(tmp_path):
    path, pairs = asked(tmp_path, [str(k % 6) if k % 2 else " " for k in range(80)])
    found, of = read_asked(path)
    assert (len(found), of) == (40, 80)
    assert found.first == pairs.first[1::2]
    assert found.target.tolist() == [float(k % 6) for k in range(1, 80, 2)]
    evidence = load_evidence(path, seed=0)
    assert (evidence.kind, evidence.asked, len(evidence.judging)) == (ASKED, 80, 40)
    assert evidence.choosing is evidence.judging


def test_a_table_that_excel_in_europe_saved_is_read(tmp_path):
    path, pairs = asked(tmp_path, ["3,5", "4,25", "1"] * 12)
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = list(csv.reader(file))
    rows[1][0] = "Straße: 5 €"
    with path.open("w", newline="", encoding="cp1252") as file:
        csv.writer(file, delimiter=";").writerows(rows)
    found, of = read_asked(path)
    assert of == 36
    assert found.first == ("Straße: 5 €", *pairs.first[1:])
    assert found.target.tolist() == [3.5, 4.25, 1.0] * 12


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        ([""] * 40, "has 0 judged pairs of 40, but 30 or more are wanted. Fill in the column score: 0 (nothing"),
        (["1", "2"] * 20 + ["7"], "line 42: a score should lie between 0 and 5, got 7. Repair the score."),
        (["1", "2"] * 20 + ["good"], "line 42: a score should be a number, got 'good'."),
        (["3"] * 40, "all 40 judged pairs have the score 3, so they rank nothing."),
    ],
    ids=["empty", "outside the scale", "not a number", "all alike"],
)
def test_what_cannot_be_used_is_said(scores, message, tmp_path):
    path, _ = asked(tmp_path, scores)
    with pytest.raises(DataError, match=r"ask\.csv") as error:
        read_asked(path)
    assert message in str(error.value)


def test_other_tables_are_of_another_kind(tmp_path):
    (tmp_path / "labels.tsv").write_text("sentence1\tsentence2\tscore\na dog\ta cat\t1\n")
    assert read_asked(tmp_path / "labels.tsv") is None


def test_asked_labels_decide_in_the_next_run(tiny_bert, tmp_path):
    encoder = bertflow.load(str(tiny_bert), device="cpu")
    text = [line.rsplit(" ", 1)[0] + f" {WORDS[k % 14]}" for k, line in enumerate(lines(400))]
    how = {"candidates": "whitening,whitening(8)", "resamples": 200}
    first = bertflow.fix(encoder, text, ask=FEWEST_ASKED, output=tmp_path / "fixed", **how)
    assert len(first.asked) == FEWEST_ASKED
    assert any(part.startswith("asked ") for part in first.parts() if isinstance(part, str))
    path = tmp_path / "fixed" / "ask.csv"
    header, *rows = list(csv.reader(path.read_text("utf-8-sig").splitlines()))
    # A judge who agrees with whitening.
    system, sides = first.systems["whitening"], ([row[side] for row in rows] for side in (0, 1))
    one, two = (system.encode(side) for side in sides)
    cosines = (one * two).sum(1) / np.linalg.norm(one, axis=1) / np.linalg.norm(two, axis=1)
    for row, score in zip(rows, np.round(np.clip(2.5 + 2.5 * cosines, 0, 5), 3), strict=True):
        row[2] = str(score)
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])
    said = []
    again = bertflow.fix(encoder, text, path, say=said.append, **how)
    assert (again.system, again.standing) == ("whitening", PROVEN)
    (judged,) = again.evidence
    assert (judged.evidence.asked, len(judged.evidence.judging)) == (FEWEST_ASKED, FEWEST_ASKED)
    raw = first.systems["raw"]
    pairs = judged.evidence.judging
    found = [float(raw.encode([a])[0] @ raw.encode([b])[0]) for a, b in zip(pairs.first, pairs.second, strict=True)]
    norms = [np.linalg.norm(raw.encode(list(side)), axis=1) for side in (pairs.first, pairs.second)]
    expected = spearmanr(np.array(found) / norms[0] / norms[1], pairs.target).statistic
    assert judged.judging.values("cosine_spearman")["raw"] == pytest.approx(expected, abs=1e-3)
    assert any("30 of 30 asked labels are filled in and decide" in line for line in said)
    assert "so only the difference counts" in " ".join(again.reasons)
    assert not {text_key(one) for one in (*pairs.first, *pairs.second)} & {text_key(one) for one in again.text.fitted}


def test_what_cannot_be_asked_is_refused(tiny_bert, tmp_path):
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(300, 8)).astype(np.float32))
    with pytest.raises(UsageError, match=r"--ask is about sentences, but vectors alone have none\. Give their text"):
        bertflow.fix(vectors=tmp_path / "x.npy", ask=50)
    with pytest.raises(UsageError, match=r"ask should be from 30 to 500, got 5\."):
        bertflow.fix(str(tiny_bert), lines(300), ask=5)
