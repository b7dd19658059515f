import re
import shutil
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import bertflow
from bertflow.calibrated import CalibratedEncoder
from bertflow.calibration.closed_forms import Whitening
from bertflow.cli import main
from bertflow.data.pairs import load_pairs
from bertflow.evaluation.bm25 import bm25_scores

from ..encoder.conftest import make
from ..texts import NOUNS, drawn
from ..texts import TWELVE as WORDS
from .conftest import SCORED, read_json, write_table

FILES = ["lexical.json", "predictions.csv", "results.json", "results.md"]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Tables of two tasks that a user brings, of retrieval pairs and of binary pairs."""
    folder, rng = tmp_path_factory.mktemp("data"), np.random.default_rng(0)

    def text(n):
        return " ".join(rng.choice(WORDS, n))

    for task in ("news", "chat"):
        rows = [(text(4), text(4), rng.integers(0, 6), f"part{at % 2}") for at in range(40)]
        write_table(folder / f"{task}.tsv", f"{SCORED} subset", rows)
    texts = [text(4) for _ in range(60)]  # as many pairs as STS-B has, of few sentences
    rows = [(one, other, rng.integers(0, 6)) for one, other in rng.choice(texts, (1379, 2))]
    write_table(folder / "stsb.tsv", SCORED, rows)
    write_table(folder / "faq.tsv", "query text", dict.fromkeys((text(3), text(5)) for _ in range(20)))
    write_table(folder / "qnli.tsv", "a b label", [(text(3), text(5), at % 2) for at in range(20)])
    return folder


@pytest.fixture(scope="module")
def fitted(tiny_bert, tmp_path_factory):
    folder = tmp_path_factory.mktemp("fitted") / "mine"
    encoder = make(tiny_bert, pooling="mean(1,2)")
    CalibratedEncoder.fit(encoder, Whitening(n_components=4), drawn(WORDS, 30, 0, 4, 5)).save(folder)
    return folder


@pytest.fixture
def evaluate(data, capsys):
    """Runs the command; gives exit code, stdout, and stderr without the columns that are read."""

    def call(*arguments):
        code = main(["evaluate", *map(str, arguments), "--data_dir", str(data), "--device", "cpu"])
        out, err = capsys.readouterr()
        return code, out, "".join(line for line in err.splitlines(keepends=True) if "using column" not in line)

    return call


def test_it_is_called_from_python_with_names_or_encoders(tiny_bert, fitted, data):
    options = {"tasks": "news", "data_dir": data, "compare": "raw,whitening", "resamples": 20}
    by_name = bertflow.evaluate(str(fitted), device="cpu", **options)
    by_encoder = bertflow.evaluate(CalibratedEncoder.load(fitted, device="cpu"), **options)
    assert {row.system for row in by_name.rows} == {"raw", "whitening", "mine"}
    assert [row.value for row in by_encoder.rows] == [row.value for row in by_name.rows]
    assert repr(by_name).startswith("<Report: news: ")


def test_results_are_written_and_equal_byte_for_byte(evaluate, fitted):
    arguments = ["--tasks", "news", "--compare", "raw,whitening", "--lexical", "chat", "--resamples", "50", "--output"]
    for name in ("one", "two"):
        assert evaluate(fitted, *arguments, name)[0] == 0
    for name in FILES:
        assert (Path("one") / name).read_bytes() == (Path("two") / name).read_bytes()
    rows = read_json("one/results.json")["rows"]
    assert {row["system"] for row in rows} == {"raw", "whitening", "mine"}
    assert read_json("one/run.json")["arguments"][0] == str(fitted)


def test_a_named_encoder_has_its_name_and_another_pooling_is_said(evaluate, tiny_bert, fitted):
    code, out, err = evaluate(f"base={tiny_bert}", "--tasks", "news", "--fail_below", "news=100")
    assert (code, "\nPooling mean. " in out) == (4, True)
    assert err.startswith("error: base scores ")
    _, out, _ = evaluate(f"base={tiny_bert}", fitted, "--tasks", "news")
    assert [line.split()[0] for line in out.splitlines()[4:6]] == ["base", "mine"]
    assert "Poolings differ (mean, mean(1,2)), so a difference may come from the pooling." in out


def test_words_in_common_are_a_row_where_queries_are_ranked(evaluate, fitted, data):
    faq = load_pairs(data / "faq.tsv", "retrieval")
    _, out, _ = evaluate(fitted, "--tasks", "news", "--retrieval", data / "faq.tsv", "--output", "scores")
    values = read_json("scores/results.json")["bm25"]
    ranks = [(row >= row[at] - 1e-12).sum() for at, row in enumerate(bm25_scores(faq.second, faq.first))]
    assert values == pytest.approx({"hit@1": np.mean(np.equal(ranks, 1)), "mrr": np.mean(1 / np.array(ranks))})
    cells = ["-", f"{100 * values['hit@1']:.2f}", f"{100 * values['mrr']:.2f}", "-", "-"]
    assert next(line.split()[1:] for line in out.splitlines() if line.startswith(" bm25 ")) == cells
    assert ". bm25: words in common. How each number was made: --details, or in scores" in out
    assert "bm25" not in evaluate(fitted, "--tasks", "news")[1]


@pytest.mark.usefixtures("few_docstrings")
def test_without_data_of_their_own_users_rank_docstrings(evaluate, fitted):
    code, out, _ = evaluate(fitted, "--retrieval", "docstrings", "--compare", "raw,whitening")
    table = out.splitlines()[4:8]
    assert (code, [line.split()[0] for line in table]) == (0, ["raw", "whitening", "mine", "bm25"])
    values = [float(line.split()[1]) for line in table]
    higher = f" bm25, without an encoder, scores higher still ({values[-1]:.2f})."
    assert values[-1] > max(values[:-1])  # a summary and its paragraph share the names of things
    assert higher in out


def test_scores_below_zero_are_compared_with_nothing_that_was_not_run(evaluate, fitted):
    same = [(noun, noun, k) for k, noun in enumerate(NOUNS)]
    other = [(noun, f"the big {other}", 9 + k) for k, (noun, other) in enumerate(pairwise(NOUNS))]
    distances = write_table("distances.tsv", SCORED, same + other)
    code, out, _ = evaluate(fitted, "--tasks", distances, "--compare", "raw")
    assert code == 0
    assert "is best (-" in out
    assert "bm25" not in out


def test_pairs_that_repeat_others_are_told(evaluate, fitted, data):
    head, *rows = (data / "news.tsv").read_text().splitlines()
    for times in (1, 3):
        Path("mine.tsv").write_text("\n".join([head, *rows * times]))
        _, _, err = evaluate(fitted, "--tasks", "mine.tsv")
        told = f"note: mine: {2 * len(rows)} of {3 * len(rows)} pairs repeat others, so intervals are too narrow."
        assert (told in err) == (times == 3)


@pytest.mark.parametrize(("limit", "code"), [("-100", 0), ("100", 4)])
def test_a_missed_threshold_is_exit_code_4(evaluate, fitted, limit, code):
    found, _, err = evaluate(fitted, "--tasks", "news", "--compare", "raw", "--fail_below", f"news={limit}")
    assert found == code
    assert err.startswith("error: mine scores ") == (code == 4)
    assert "raw" not in err


def test_a_bad_line_is_named_and_no_other_task_is_scored(evaluate, tiny_bert, data):
    message = "line 5: a score should be a number, got 'many'. Repair the score or leave the pair out."
    write_table(data / "bad.tsv", SCORED, [("man", "dog", score) for score in (0, 1, 2, "many")])
    leave = "With --skip_bad FILE such rows are left out and listed."
    assert evaluate(tiny_bert, "--tasks", "news,bad") == (3, "", f"error: {data / 'bad.tsv'}, {message} {leave}\n")


def test_a_pooling_for_what_is_calibrated_is_refused(evaluate, fitted):
    code, _, err = evaluate(fitted, "--tasks", "news", "--pooling", "cls")
    assert code == 2
    assert err == (
        "error: --pooling is for a transformer without a calibrator, but none was given: a calibrated encoder keeps "
        "its own, and word vectors have none. Leave it out.\n"
    )


def test_the_ceiling_says_what_share_of_the_gap_is_closed_or_why_none(evaluate, fitted, data, tmp_path):
    noise = np.random.default_rng(0).integers(0, 6, 60)
    rows = [(f"{WORDS[at // 12]} {WORDS[at % 12]}", f"the {at} {WORDS[at % 12]}", noise[at]) for at in range(60)]
    write_table(data / "split.tsv", SCORED, rows)
    options = ("--ceiling", "--compare", "whitening", "--resamples", "50", "--output", tmp_path)
    code, out, _ = evaluate(fitted, "--tasks", "split", *options)
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()[4:8]] == ["raw", "whitening", "mine", "ceiling"]
    gap = out[out.index("raw to ceiling") :].splitlines()
    assert [line.split() for line in gap[2:4]] == [["whitening", "-"], ["mine", "-"]]
    reason = "split: no share, since ceiling ("
    assert reason in out
    document = Path("results.md").read_text()
    assert "## What share of the gap between raw and ceiling is closed" in document
    assert reason in document
    written = read_json("results.json")
    assert any(row["system"] == "ceiling" and row["metric"] == "cosine_spearman" for row in written["rows"])
    assert written["sections"][0]["lines"][1].startswith(reason)


def test_lexical_similarity_is_a_table_of_its_own(evaluate, fitted, tmp_path):
    code, out, _ = evaluate(fitted, "--tasks", "news", "--compare", "raw", "--lexical", "chat", "--output", tmp_path)
    assert code == 0
    table = out[out.index("lexical, chat") :].splitlines()
    assert [line.split()[0] for line in table[2:5]] == ["gold", "raw", "mine"]
    assert read_json("lexical.json")["task"] == "chat"
    assert "## Lexical similarity" in Path("results.md").read_text()


@pytest.fixture
def namesakes(tiny_bert):
    """Two folders of one name, of encoders that differ in their length."""
    folders = [Path(run) / "encoder" for run in ("a", "b")]
    for folder, length in zip(folders, (16, 32), strict=True):
        make(tiny_bert, max_length=length).save(folder)
    return folders


def test_folders_of_one_name_are_told_apart_by_their_paths(evaluate, namesakes, tiny_bert):
    code, out, _ = evaluate(*namesakes, tiny_bert, "--tasks", "news", "--details", "--output", "out")
    assert code == 0
    found = re.findall("^(.*): encoder", out, re.MULTILINE)
    assert found == ["a/encoder", "b/encoder", "raw of tiny-bert (mean)"]


def test_a_system_has_the_name_that_is_given(evaluate, fitted, namesakes, tmp_path, monkeypatch):
    shutil.copytree(fitted, "lr=0.1")  # a path, since it is there
    options = ("--tasks", "news", "--resamples", 0, "--details", "--output", Path("out"))
    code, out, _ = evaluate(f"short={namesakes[0]}", namesakes[1], f"best={fitted}", "lr=0.1", *options)
    assert code == 0
    assert re.findall("^(.*): encoder", out, re.MULTILINE) == ["short", "b/encoder", "best", "lr=0.1"]
    assert out.splitlines()[-1] == f"next: bertflow inspect {namesakes[1]}"  # as good as short, and first by its name


def test_a_folder_that_bertflow_wrote_keeps_its_options_where_another_takes_them(evaluate, namesakes, tiny_bert):
    pooled = ("--pooling", "cls", "--resamples", 0)
    _, out, err = evaluate(tiny_bert, namesakes[0], "--tasks", "news", *pooled)
    assert [line.split("  ")[0].strip() for line in out.splitlines()[4:6]] == ["raw of tiny-bert (cls)", "a/encoder"]
    assert err == "note: pooling: used for tiny-bert. These keep their own: a/encoder.\n"
    assert "Poolings differ (cls, mean)" in out
    _, out, err = evaluate(namesakes[0], "--tasks", "news", *pooled)
    assert ("\nPooling cls. " in out, err) == (True, "")


@pytest.mark.parametrize(("option", "file", "names"), [
    ("--tasks", "news", "one,other,score"), ("--retrieval", "faq", "one,other"), ("--binary", "qnli", "one,other,same")
])  # fmt: skip
def test_the_columns_of_a_table_can_be_named(option, file, names, evaluate, tiny_bert, data, tmp_path):
    rows = [line.split("\t") for line in (data / f"{file}.tsv").read_text().splitlines()[1:]]
    wanted = names.split(",")
    write_table(f"{file}.tsv", " ".join(wanted), [row[: len(wanted)] for row in rows])
    found = [
        evaluate(tiny_bert, option, folder / f"{file}.tsv", "--resamples", 0, *more)[1].splitlines()[4]
        for folder, more in ((data, ()), (tmp_path, ("--columns", names)))
    ]
    assert found[0] == found[1]
    code, _, err = evaluate(tiny_bert, option, f"{file}.tsv", "--columns", "one")
    assert (code, "--columns takes two columns of text" in err) == (2, True)


def test_scores_that_look_like_labels_are_told_where_labels_go(evaluate, tiny_bert, data):
    said = "Pairs with labels 0 and 1, in a column label, are for `bertflow evaluate --binary`."
    code, _, err = evaluate(tiny_bert, "--tasks", data / "qnli.tsv")
    assert (code, err.endswith(f" {said}\n")) == (3, True)
    Path("same.tsv").write_text((data / "qnli.tsv").read_text().replace("a\tb\tlabel", "sentence1\tsentence2\tscore"))
    code, _, err = evaluate(tiny_bert, "--tasks", "same.tsv")
    assert (code, f"same.tsv: all scores are 0 or 1. {said}\n" in err) == (0, True)
    assert said not in evaluate(tiny_bert, "--tasks", data / "news.tsv")[2]


def test_systems_that_are_the_same_are_not_merged(evaluate, namesakes, tiny_bert):
    _, out, _ = evaluate(tiny_bert, namesakes[0], "--tasks", "news", "--max_length", 16, "--resamples", 0)
    assert [line.split()[0] for line in out.splitlines()[4:6]] == ["tiny-bert", "a/encoder"]
    code, _, err = evaluate(tiny_bert, tiny_bert, "--tasks", "news")
    assert (code, err) == (
        2, "error: Two systems would be called 'tiny-bert'. Name one as NAME=path, or leave one out.\n"
    )  # fmt: skip


def test_the_first_line_counts_the_pairs_and_queries_of_each_task(evaluate, fitted, data):
    _, out, _ = evaluate(fitted, "--tasks", "news", "--retrieval", data / "faq.tsv", "--resamples", 0)
    assert out.startswith("cosine_spearman, hit@1, MRR x 100 of news (40 pairs), faq (20 queries); ")
