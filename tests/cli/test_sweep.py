import re
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest

from bertflow.cli import main

from ..texts import WITH_AND, drawn
from .conftest import read_json


@pytest.fixture
def task(tmp_path):
    gold, sides = np.random.default_rng(0).random(30), (drawn(WITH_AND, 30, seed, 2, 9) for seed in (0, 1))
    lines = [f"{a}\t{b}\t{g:.3f}" for a, b, g in zip(*sides, gold, strict=True)]
    path = tmp_path / "mine.tsv"
    path.write_text("\n".join(["sentence1\tsentence2\tscore", *lines]) + "\n")
    return str(path)


@pytest.fixture
def labels(tmp_path):
    text = drawn(WITH_AND, 40, 2, 2, 9)
    path = tmp_path / "labels.tsv"
    path.write_text("".join(f"{one}\t{'dog' in one}\n" for one in text))
    return str(path)


def test_its_files_are_written_and_repeat_byte_for_byte(tiny_bert, task, tmp_path, told):
    for name in ("a", "b"):
        argv = [str(tiny_bert), "--tasks", task, "--device", "cpu", "--layers", "0,2", "--tokens", "mean,cls"]
        told("sweep", *argv, "--output", tmp_path / name)
    for file in ("sweep.json", "sweep.md", "sweep.csv"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    record = read_json(tmp_path / "a/run.json")
    assert set(record) == {"arguments", "seconds", "peak_memory_bytes", "scratch_bytes"}


def test_the_answer_fits_on_a_screen_and_ends_with_the_best_of_how_many(tiny_bert, task, tmp_path, told):
    out = told("sweep", tiny_bert, "--tasks", task, "--device", "cpu", "--output", tmp_path / "out").splitlines()
    answer = out[next(at for at, line in enumerate(out) if line.startswith(" pooling")) :]
    assert len(answer) <= 20
    rows = read_json(tmp_path / "out/sweep.json")["rows"]
    values = {row["pooling"]: row["value"] for row in rows if row["calibrator"] == "raw"}
    best = max(values, key=values.get)
    said = f"Best raw: {best}, {100 * values[best]:.2f}; mean(4) has {100 * values['mean(4)']:.2f}."
    assert answer[-6:-4] == ["", said]
    assert answer[-4].startswith("Best whitening: ")
    tried = f"The best of {len(values)} on this data: expect less on other data, and test your choice there."
    assert answer[-3] == tried
    assert answer[-1].startswith("next: bertflow inspect ")
    assert f"--details, or in {tmp_path / 'out'}." in "\n".join(answer)


def test_the_best_comes_first_and_the_next_command_reads_the_text_that_was_given(tiny_bert, task, tmp_path, told):
    text = tmp_path / "own.txt"
    text.write_text("\n".join(drawn(WITH_AND, 40, 3, 2, 9)))
    argv = [str(tiny_bert), "--tasks", task, "--device", "cpu", "--max_length", "16", "--fit_on", str(text)]
    out = told("sweep", *argv, "--layers", "0,2,4", "--tokens", "mean,cls")
    rows = re.findall(r"^ (\S+) +(-?\d.*\d)", out, re.MULTILINE)
    values = [max(map(float, re.findall(r"-?\d+\.\d+", row))) for _, row in rows]
    assert len(values) == 6
    assert values == sorted(values, reverse=True)
    best = shlex.quote(rows[0][0])
    assert out.endswith(f"\nnext: bertflow inspect {tiny_bert} --pooling {best} --max_length 16 --text {text}\n")


def test_the_layers_that_were_asked_for_are_in_the_answer(tiny_bert, task, told):
    for layers in ("0,1", "2,4"):
        out = told("sweep", tiny_bert, "--tasks", task, "--device", "cpu", "--layers", layers)
        shown = re.findall(r"^ \S+\((\d)\) ", out, re.MULTILINE)
        assert {*layers.split(",")} <= {*shown}
        assert "The best of the layers asked for, and the best of all: 6 of " in out


@pytest.mark.filterwarnings("always:no heatmap")
def test_without_matplotlib_the_rest_is_written_and_that_is_said(tiny_bert, task, tmp_path, capsys, monkeypatch):
    monkeypatch.delitem(sys.modules, "bertflow.plots", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    argv = [str(tiny_bert), "--tasks", task, "--device", "cpu", "--layers", "1", "--tokens", "mean"]
    assert main(["sweep", *argv, "--output", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().err == (
        f"note: {task}: using columns sentence1, sentence2, score\n"
        "note: no heatmap was drawn. This needs the package matplotlib. "
        "Install it with: pip install 'bertflow[plots]'\n"
    )
    assert not (tmp_path / "out/sweep.png").exists()


def test_the_columns_of_a_task_can_be_named(tiny_bert, task, tmp_path, capsys, told):
    odd = tmp_path / "odd.tsv"
    odd.write_text(Path(task).read_text().replace("sentence1\tsentence2\tscore", "one\tother\talike"))
    argv = ["sweep", str(tiny_bert), "--layers", "1", "--tokens", "mean", "--device", "cpu", "--tasks"]
    found = told(*argv, task).replace(Path(task).stem, "odd")
    assert main([*argv, str(odd), "--columns", "one,other,alike"]) == 0
    assert capsys.readouterr().out.splitlines()[1:-1] == found.splitlines()[1:-1]  # between seconds and next step


def test_the_columns_of_labels_can_be_named(tiny_bert, labels, tmp_path, capsys, refused):
    table, lines = tmp_path / "odd.csv", Path(labels).read_text().splitlines()
    table.write_text("\n".join(["what it says,kind", *(line.replace("\t", ",") for line in lines[-40:])]))
    argv = ["sweep", str(tiny_bert), "--labels", str(table), "--layers", "1", "--tokens", "mean", "--device", "cpu"]
    assert "name those of text and label with --columns." in refused(3, *argv)
    assert main([*argv, "--columns", "what it says,kind", "--folds", "3"]) == 0
    assert "3 stratified folds (seed 0); 40 texts of odd.csv, 2 labels" in capsys.readouterr().out


@pytest.fixture
def conll(tmp_path):
    path = tmp_path / "train.txt"
    lines = [[f"{word}\tx\t{'B-animal' if word in ('dog', 'cat') else 'O'}" for word in one.split()]
             for one in drawn(WITH_AND, 40, 2, 2, 9)]  # fmt: skip
    path.write_text("\n\n".join("\n".join(one) for one in lines) + "\n")
    return str(path)


def test_words_in_their_sentences_are_probed_by_their_tags(tiny_bert, conll, tmp_path, told):
    argv = [str(tiny_bert), "--labels", conll, "--folds", "3", "--device", "cpu", "--layers", "0,2", "--tokens", "mean"]
    printed = told("sweep", *argv, "--output", tmp_path / "out")
    assert "Entity F1 x 100 of a logistic regression" in printed
    assert "3 folds of whole sentences (seed 0)" in printed
    rows = read_json(tmp_path / "out/sweep.json")["rows"]
    assert [row["pooling"] for row in rows if row["calibrator"] == "raw"] == [
        "mean(0)", "mean(2)", "last-2-avg", "first-last-avg", "emb-last-avg", "sum-last-4", "concat-last-4",
        "mean(0,1,2,3,4)",
    ]  # fmt: skip
    assert {row["calibrator"] for row in rows} == {"raw", "whitening"}
    assert rows[0]["f1"] > 0.9  # the word says it
    assert (tmp_path / "out/sweep.csv").read_text().startswith("pooling,tokens,layers,width,calibrator,f1,low,high,")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--columns", "2"], "--columns takes those of word and tag, as 1,2 or 1,-1; got '2'."),
        (["--compare", "whitenin"], "Unknown calibrator 'whitenin'. Known: center, standardize, abtt, whitening, "
         "ridge, two-band, blocks, flow. "
         "Did you mean whitening?"),
        (["--tokens", "sif"], "The pooling sif(0) is for sentences: sif has no meaning for the pieces of one word. "
         "Use mean, max, cls (the first piece) or last-token, as in mean(3)."),
        (["--folds", "1"], "--folds should be 2 or more, got 1."),
    ],
)  # fmt: skip
def test_what_words_cannot_be_probed_with_is_one_line(arguments, message, tiny_bert, conll, refused):
    argv = ["sweep", str(tiny_bert), "--device", "cpu", "--labels", str(conll), *arguments]
    assert refused(2, *argv) == f"error: {message}"
