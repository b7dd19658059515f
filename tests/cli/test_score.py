import csv
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose

import bertflow
from bertflow.calibrated import CalibratedEncoder
from bertflow.calibration.closed_forms import Whitening
from bertflow.cli import main
from bertflow.scoring.domain import UNCHECKED
from bertflow.scoring.scores import ScoreCalibrator
from bertflow.similarity import unit_rows

from ..encoder.conftest import make
from ..texts import WITH_THE, drawn
from .conftest import read_json, write_table


def sentences(n, seed):
    return drawn(WITH_THE, n, seed, 4, 10)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Text, pairs and labels."""
    folder = tmp_path_factory.mktemp("score")
    (folder / "text.txt").write_text("\n".join(sentences(400, 0)))
    (folder / "new.txt").write_text("\n".join(sentences(60, 1)))
    pairs = list(zip(sentences(30, 2), sentences(30, 3), strict=True))
    write_table(folder / "pairs.tsv", "sentence1 sentence2", [*pairs, 2 * pairs[0][:1]])
    labeled = [(a, b, 0) for a, b in pairs] + [(a, f"{a} in", 1) for a, _ in pairs]
    write_table(folder / "labels.tsv", "a b label", labeled)
    return folder


@pytest.fixture(scope="module")
def saved(tiny_bert, files):
    """A calibrated encoder with its scores, by the command itself."""
    fitted = CalibratedEncoder.fit(make(tiny_bert), Whitening(), sentences(200, 5))
    fitted.save(files / "whitened")
    argv = [files / "whitened", "--fit_on", files / "text.txt", "--labels", files / "labels.tsv"]
    assert main(["score", *map(str, argv), "--save", str(files / "scored"), "--device", "cpu"]) == 0
    return files / "scored"


@pytest.fixture
def score(told):
    """Runs the command, which must succeed; gives what it printed."""
    return lambda *words: told("score", *words, "--device", "cpu")


@pytest.fixture
def scored(score, saved, files):
    """The lines of the table that is written of the pairs, in the format of a name."""

    def lines(name):
        score(saved, files / "pairs.tsv", "--output", files / name, "--false_match_rate", "0.02")
        return (files / name).read_text().splitlines()

    return lines


def test_what_is_written_is_what_the_calibrator_says(saved, scored):
    rows = list(csv.DictReader(scored("out.csv")))
    system = CalibratedEncoder.load(saved, device="cpu")
    scores = ScoreCalibrator.load(saved, system)
    a, b = (system.encode([row[side] for row in rows]).astype(np.float64) for side in ("sentence1", "sentence2"))
    cosines = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    assert_allclose([float(row["cosine"]) for row in rows], cosines, atol=2e-6)
    assert_allclose([float(row["percentile"]) for row in rows], scores.percentile(cosines), atol=0.02)
    assert_allclose([float(row["probability"]) for row in rows], scores.probability(cosines), atol=1e-4)
    threshold = scores.threshold(0.02).value
    assert [row["match"] for row in rows] == ["yes" if cosine >= threshold else "no" for cosine in cosines]
    assert rows[-1]["match"] == "yes"


def test_all_formats_say_the_same(scored):
    by_csv = list(csv.DictReader(scored("o.csv")))
    by_json = [json.loads(line) for line in scored("o.jsonl")]
    by_tsv = [line.split("\t") for line in scored("o.tsv")]
    assert [{name: str(value) for name, value in row.items()} for row in by_json] == by_csv
    assert [dict(zip(by_tsv[0], row, strict=True)) for row in by_tsv[1:]] == by_csv


STRANGE = [(" ".join(["man"] * n), " ".join(["eats"] * n)) for n in range(2, 10)]
OUT = (
    "16 of 16 texts are out of domain of the text that the percentiles were made of (other topics, or another length): "
    "the threshold does not hold for them. Fit it on text of this kind: --fit_on FILE."
)


def test_pairs_out_of_domain_of_the_fitted_text_are_said(saved, files, tiny_bert, score):
    strange = write_table("strange.tsv", "a b", STRANGE)
    rate = ["--false_match_rate", "0.1"]
    for encoder, more in ((saved, rate), (tiny_bert, [*rate, "--fit_on", files / "text.txt"])):
        assert score(encoder, strange, *more).count(OUT + "\n") == 1
        assert "out of domain" not in score(encoder, files / "pairs.tsv", *more)
    shutil.copytree(saved, "unchecked", ignore=shutil.ignore_patterns("domain"))
    printed = score("unchecked", strange, *rate)
    assert "out of domain" not in printed, "there is nothing to tell it by"
    assert printed.count(f"{UNCHECKED}\n") == 1


def test_what_counts_stands_below_the_pairs(saved):
    table, threshold, matches, *_ = bertflow.score(saved, STRANGE * 2, false_match_rate=0.1, device="cpu").parts()
    assert (len(table.lines), threshold[:13]) == (10, "Match: cosine")
    assert re.fullmatch(r"Matches: \d+ of 16 pairs\. The table shows the first 10\. --output FILE gets all\.", matches)
    _, _, alone, *_ = bertflow.score(saved, STRANGE[:1], false_match_rate=0.1, device="cpu").parts()
    assert alone == "Matches: 1 of 1 pair."


def test_the_share_out_of_domain_is_in_json(saved):
    mixed = [*STRANGE[:2], *zip(sentences(18, 2), sentences(18, 3), strict=True)]
    shares = [
        json.loads(bertflow.score(saved, pairs, false_match_rate=0.1, device="cpu").to_json())["out_of_domain"]
        for pairs in (STRANGE, mixed)
    ]
    texts = list(dict.fromkeys(text for pair in mixed for text in pair))
    asked = bertflow.score(saved, domain=texts, device="cpu").domain
    assert shares == [1, np.mean([row[-1] == "no" for row in asked.rows()])]
    assert 4 / 40 <= shares[1] < 0.5
    assert not bertflow.score(saved, STRANGE[:2], false_match_rate=0.1, device="cpu").outside.clear, (
        "four say too little"
    )


def test_percentiles_can_be_those_of_queries_and_texts(tiny_bert, files, score):
    queries, text = sentences(80, 11), list(dict.fromkeys(sentences(400, 0)))
    Path("queries.txt").write_text("\n".join(queries))
    pairs = [(strange, text) for (strange, _), text in zip(STRANGE, sentences(8, 4), strict=True)]
    encoder = make(tiny_bert, prompt={"query": "the red ", "document": ""})
    encoder.save("prompted")
    given = [write_table("pairs.tsv", "query text", pairs), "--false_match_rate", "0.1"]
    fit = ["--fit_on", files / "text.txt", "--queries", "queries.txt", "--save", "kept"]
    printed = score("prompted", *given, *fit, "--output", "o.csv")
    assert f"{80 * len(text):,} random query-text pairs of 80 queries and {len(text)} sentences." in printed
    assert "out of domain" not in printed, "queries are not of the text"
    record = read_json("kept/scores.json")
    assert (record["kind"], record["queries"]) == ("query-text", 80)
    random = cosines_of(encoder.encode_query(queries), encoder.encode(text))
    rows = list(csv.DictReader(Path("o.csv").read_text().splitlines()))
    expected = np.diag(cosines_of(encoder.encode_query([a for a, _ in pairs]), encoder.encode([b for _, b in pairs])))
    assert_allclose([float(row["cosine"]) for row in rows], expected, atol=2e-6)
    percentiles = [100 * (random < cosine).mean() for cosine in expected]
    assert_allclose([float(row["percentile"]) for row in rows], percentiles, atol=0.2)
    score("kept", *given, "--output", "again.csv")
    assert Path("again.csv").read_text() == Path("o.csv").read_text()


def test_few_queries_are_refused(tiny_bert, files, refused):
    Path("queries.txt").write_text("\n".join(sentences(49, 11)))
    argv = [tiny_bert, files / "pairs.tsv", "--queries", "queries.txt", "--fit_on", files / "text.txt"]
    assert refused(3, "score", *argv, "--device", "cpu") == (
        "error: queries.txt should hold at least 50 queries that the encoder was not fitted on, but "
        "holds 49 (of 49). Give more such queries, or leave --queries out."
    )


def cosines_of(a, b):
    return unit_rows(a) @ unit_rows(b).T


def test_text_of_the_same_kind_is_in_domain_and_does_not_drift(saved, files, score):
    argv = [saved, "--domain", files / "new.txt", "--fit_on", files / "text.txt"]
    assert "Refit now? no, " in score(*argv, "--output", files / "domain.tsv")
    lines = (files / "domain.tsv").read_text().splitlines()
    assert lines[0] == "sentence\tlog_likelihood\tpercentile\tin_domain"
    assert sum(line.endswith("\tyes") for line in lines[1:]) > 50


def test_the_density_can_be_a_flow(saved, files, score):
    argv = [saved, "--domain", files / "new.txt", "--fit_on", files / "text.txt", "--density", "flow"]
    assert "Refit now? no, " in score(*argv)


def test_other_text_drifts(saved, files, capsys, score):
    other = ["green sings . " * (1 + n % 5) + one for n, one in enumerate(sentences(60, 1))]
    Path("other.txt").write_text("\n".join(other))
    argv = [str(saved), "--domain", "other.txt", "--fit_on", str(files / "text.txt")]
    assert "Refit now? yes, " in score(*argv)
    assert main(["score", *argv, "--device", "cpu", "--fail_on_drift", "--output", "o.tsv"]) == 4
    printed = capsys.readouterr()
    assert "Refit now? yes, " in printed.out
    assert printed.err.startswith("error: This is other text than the one that was fitted on. Refit now? yes, ")
    assert printed.err.count("\n") == 1
    assert Path("o.tsv").exists(), "the table is there to look at"


def test_what_is_saved_can_tell_drift_without_the_text(saved, files, score):
    assert (saved / "domain/domain.json").exists()
    assert "Refit now? no, " in score(saved, "--domain", files / "new.txt", "--fail_on_drift")


def test_too_little_text_saves_no_domain_check_and_says_so(tiny_bert, caplog, score):
    Path("few.txt").write_text("\n".join(sentences(100, 0)))
    argv = [tiny_bert, "--fit_on", "few.txt", "--save", "out", "--false_match_rate", "0.1"]
    score(*argv, "--max_sentences", "60")
    assert Path("out/scores.json").exists()
    assert not Path("out/domain").exists()
    assert "No domain check is saved: A density is fitted on at least 2 sentences for each of 16 dim" in caplog.text
    assert (
        "64 sentences in all, got 60. Give more text with --fit_on. Of the 100 given, those that the encoder was"
        in caplog.text
    )


def test_text_that_the_calibrator_was_fitted_on_is_refused(files, refused):
    Path("seen.txt").write_text("\n".join(sentences(200, 5)))
    argv = [files / "whitened", files / "pairs.tsv", "--fit_on", "seen.txt"]
    line = refused(3, "score", *argv, "--device", "cpu")
    assert "sentences that the encoder was not fitted on, but holds 0" in line
