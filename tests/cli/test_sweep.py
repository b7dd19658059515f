import re
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest

from bertflow.cli import main

from ..texts import WITH_AND, drawn
from .conftest import SCORED, read_json, write_table


@pytest.fixture
def task():
    gold, sides = np.random.default_rng(0).random(30), (drawn(WITH_AND, 30, seed, 2, 9) for seed in (0, 1))
    return write_table(Path("mine.tsv"), SCORED, zip(*sides, gold.round(3), strict=True))


@pytest.fixture
def sweep(tiny_bert, told):
    """Runs the command on the tiny BERT; gives what it printed."""
    return lambda *words: told("sweep", tiny_bert, "--device", "cpu", *words)


def test_its_files_are_written_and_repeat_byte_for_byte(sweep, task):
    for name in ("a", "b"):
        sweep("--tasks", task, "--layers", "0,2", "--tokens", "mean,cls", "--output", name)
    for file in ("sweep.json", "sweep.md", "sweep.csv"):
        assert (Path("a") / file).read_bytes() == (Path("b") / file).read_bytes()
    record = read_json("a/run.json")
    assert set(record) == {"arguments", "seconds", "peak_memory_bytes", "scratch_bytes"}


def test_the_answer_fits_on_a_screen_and_ends_with_the_best_of_how_many(sweep, task):
    out = sweep("--tasks", task, "--output", "out").splitlines()
    answer = out[next(at for at, line in enumerate(out) if line.startswith(" pooling")) :]
    assert len(answer) <= 20
    rows = read_json("out/sweep.json")["rows"]
    values = {row["pooling"]: row["value"] for row in rows if row["calibrator"] == "raw"}
    best = max(values, key=values.get)
    said = f"Best raw: {best}, {100 * values[best]:.2f}; mean(4) has {100 * values['mean(4)']:.2f}."
    assert answer[-6:-4] == ["", said]
    assert answer[-4].startswith("Best whitening: ")
    tried = f"The best of {len(values)} on this data: expect less on other data, and test your choice there."
    assert answer[-3] == tried
    assert answer[-1].startswith("next: bertflow inspect ")
    assert "--details, or in out." in "\n".join(answer)


def test_the_best_comes_first_and_the_next_command_reads_the_text_that_was_given(sweep, tiny_bert, task):
    text = Path("own.txt")
    text.write_text("\n".join(drawn(WITH_AND, 40, 3, 2, 9)))
    out = sweep("--tasks", task, "--max_length", 16, "--fit_on", text, "--layers", "0,2,4", "--tokens", "mean,cls")
    rows = re.findall(r"^ (\S+) +(-?\d.*\d)", out, re.MULTILINE)
    values = [max(map(float, re.findall(r"-?\d+\.\d+", row))) for _, row in rows]
    assert len(values) == 6
    assert values == sorted(values, reverse=True)
    best = shlex.quote(rows[0][0])
    assert out.endswith(f"\nnext: bertflow inspect {tiny_bert} --pooling {best} --max_length 16 --text {text}\n")


def test_the_layers_that_were_asked_for_are_in_the_answer(sweep, task):
    for layers in ("0,1", "2,4"):
        out = sweep("--tasks", task, "--layers", layers)
        shown = re.findall(r"^ \S+\((\d)\) ", out, re.MULTILINE)
        assert {*layers.split(",")} <= {*shown}
        assert "The best of the layers asked for, and the best of all: 6 of " in out


@pytest.mark.filterwarnings("always:no heatmap")
def test_without_matplotlib_the_rest_is_written_and_that_is_said(tiny_bert, task, capsys, monkeypatch):
    monkeypatch.delitem(sys.modules, "bertflow.plots", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    argv = [str(tiny_bert), "--tasks", str(task), "--device", "cpu", "--layers", "1", "--tokens", "mean"]
    assert main(["sweep", *argv, "--output", "out"]) == 0
    assert capsys.readouterr().err == (
        f"note: {task}: using columns sentence1, sentence2, score\n"
        "note: no heatmap was drawn. This needs the package matplotlib. "
        "Install it with: pip install 'bertflow[plots]'\n"
    )
    assert not Path("out/sweep.png").exists()


def test_the_columns_of_a_task_can_be_named(sweep, task):
    odd = Path("odd.tsv")
    odd.write_text(task.read_text().replace("sentence1\tsentence2\tscore", "one\tother\talike"))
    argv = ["--layers", "1", "--tokens", "mean", "--tasks"]
    found = sweep(*argv, task).replace(task.stem, "odd")
    again = sweep(*argv, odd, "--columns", "one,other,alike")
    assert again.splitlines()[1:-1] == found.splitlines()[1:-1]  # between seconds and next step


def test_the_columns_of_labels_can_be_named(sweep, tiny_bert, refused):
    table, lines = Path("odd.csv"), [f"{one},{'dog' in one}" for one in drawn(WITH_AND, 40, 2, 2, 9)]
    table.write_text("\n".join(["what it says,kind", *lines]))
    argv = ["--labels", table, "--layers", "1", "--tokens", "mean"]
    assert "name those of text and label with --columns." in refused(3, "sweep", tiny_bert, *argv)
    said = sweep(*argv, "--columns", "what it says,kind", "--folds", "3")
    assert "3 stratified folds (seed 0); 40 texts of odd.csv, 2 labels" in said


@pytest.fixture
def conll():
    path = Path("train.txt")
    lines = [[f"{word}\tx\t{'B-animal' if word in ('dog', 'cat') else 'O'}" for word in one.split()]
             for one in drawn(WITH_AND, 40, 2, 2, 9)]  # fmt: skip
    path.write_text("\n\n".join("\n".join(one) for one in lines) + "\n")
    return path


def test_words_in_their_sentences_are_probed_by_their_tags(sweep, conll):
    argv = ["--labels", conll, "--folds", "3", "--layers", "0,2", "--tokens", "mean"]
    printed = sweep(*argv, "--output", "out")
    assert "Entity F1 x 100 of a logistic regression" in printed
    assert "3 folds of whole sentences (seed 0)" in printed
    rows = read_json("out/sweep.json")["rows"]
    assert [row["pooling"] for row in rows if row["calibrator"] == "raw"] == [
        "mean(0)", "mean(2)", "last-2-avg", "first-last-avg", "emb-last-avg", "sum-last-4", "concat-last-4",
        "mean(0,1,2,3,4)",
    ]  # fmt: skip
    assert {row["calibrator"] for row in rows} == {"raw", "whitening"}
    assert rows[0]["f1"] > 0.9  # the word says it
    assert Path("out/sweep.csv").read_text().startswith("pooling,tokens,layers,width,calibrator,f1,low,high,")


NOT_PROBED = {
    "--columns 2": "--columns takes those of word and tag, as 1,2 or 1,-1; got '2'.",
    "--compare whitenin": "Unknown calibrator 'whitenin'. Known: center, standardize, abtt, whitening, ridge, "
    "two-band, background, blocks, flow. Did you mean whitening?",
    "--tokens sif": "The pooling sif(0) is for sentences: sif has no meaning for the pieces of one word. Use mean, "
    "max, cls (the first piece) or last-token, as in mean(3).",
    "--folds 1": "--folds should be 2 or more, got 1.",
}


@pytest.mark.parametrize(("arguments", "message"), NOT_PROBED.items())
def test_what_words_cannot_be_probed_with_is_one_line(arguments, message, tiny_bert, conll, refused):
    line = refused(2, "sweep", tiny_bert, "--device", "cpu", "--labels", conll, *arguments.split())
    assert line == f"error: {message}"
