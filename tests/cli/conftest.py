"""What the tests of all commands share: command lines that work, and the small files that they read."""

import json
import os
import shutil
import socket
import subprocess
import sys
import warnings
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path

import lancedb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bertflow.cli import main
from bertflow.data import docstrings, lines
from bertflow.data.sts_tasks import TASKS
from bertflow.encoder.abstract import AbstractEncoder
from bertflow.encoder.model import BlockStack

from ..texts import NOUNS

ROOT = Path(__file__).resolve().parents[2]
"""The folder of the repository."""
SIZES = ("big", "red", "small", "green", "old", "tall")
SENTENCES = [
    f"{a} {size} {noun} sleeps in the {end} ." for a in "az" for size in SIZES for noun in NOUNS for end in NOUNS
]

SLEEPING = [f"the {a} {b} sleeps in the {c} ." for a in ("big", "small", "red", "green") for b in NOUNS for c in NOUNS]
TRAINING = ["--trainer.enable_progress_bar=false", "--trainer.accelerator=cpu", "--report=false",
            "--flow.glow.hidden=8", "--encoder.pooling=mean(1,2)"]  # fmt: skip
"""Options of a flow that is trained in seconds."""
X = np.random.default_rng(0).normal(size=(300, 8)) @ np.random.default_rng(1).normal(size=(8, 8)) + 3
X = X.astype("float32")
"""Embeddings of ``fit`` and ``transform``."""


def read_json(path):
    return json.loads(Path(path).read_text("utf-8"))


def write_table(path, header, rows):
    """Rows of cells below the names of their columns, with tabs between them."""
    lines = ["\t".join(map(str, cells)) + "\n" for cells in (header.split(), *rows)]
    Path(path).write_text("".join(lines), "utf-8")
    return path


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def run_python(*arguments, **options):
    """Run Python in a process of its own, which must succeed."""
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, **options)
    assert done.returncode == 0, done.stderr


SCORED = "sentence1 sentence2 score"


class RowEncoder(AbstractEncoder):
    """The embedding of the sentence "k" is row k of X."""

    dim = 8

    def __init__(self, described):
        self.described = described

    def _encode(self, sentences, *_):
        return X[[int(sentence) for sentence in sentences]]

    def describe(self):
        return self.described


THINGS = ("river", "table", "letter", "window", "engine", "market", "garden", "hammer", "ticket", "island", "bottle")
ACTS = ("opened", "counted", "painted", "weighed", "folded", "measured", "moved", "sorted", "washed", "sold", "bent")
DOCSTRING = "Return whether the {0} was {1} by the {2}.\n\nA {0} that was {1} too late is put beside the {2}."


@pytest.fixture(scope="session")
def inputs(tmp_path_factory, tiny_bert):
    """Text, tables, vectors, and what the first commands make of them."""
    folder = tmp_path_factory.mktemp("inputs")
    (folder / "text.txt").write_text("\n".join(SENTENCES))
    (folder / "many_words.txt").write_text("\n".join(docstrings.PLAIN))
    # Those that match differ in the last word. No two classes have cosines so close that rounding could swap them.
    rows = [(SENTENCES[k], SENTENCES[k + (1 if k % 2 else 109)], k % 2) for k in range(110)]
    write_table(folder / "labels.tsv", "sentence1 sentence2 label", rows)
    classes = [(one, one, label) for one in SENTENCES[:60] for label in ("entailment", "neutral", "contradiction")]
    write_table(folder / "nli.tsv", "premise hypothesis label", classes)
    write_table(folder / "answers.tsv", "id text", [("dogs", "the dog sleeps .")])
    write_table(folder / "more.tsv", "id text", [("cats", "the cat sleeps .")])
    write_table(folder / "right.tsv", "question id", [("the dog runs .", "dogs")])
    (folder / "data").mkdir()
    graded = [(one, other, k % 6) for k, (one, other) in enumerate(pairwise(SENTENCES[:40]))]
    write_table(folder / "data/mine.tsv", SCORED, graded)
    np.save(folder / "x.npy", np.random.default_rng(0).normal(size=(300, 8)).astype("float32"))
    lists = pa.array(np.load(folder / "x.npy").tolist(), pa.list_(pa.float32(), 8))
    lancedb.connect(folder / "db").create_table("docs", pa.table({"id": range(300), "vector": lists}))
    shutil.copytree(tiny_bert, folder / "BERT")
    before = Path.cwd()
    os.chdir(folder)
    for line in MADE:
        assert main(line.split()) == 0
    os.chdir(before)
    return folder


MADE = (
    "fit --vectors x.npy --calibrator center --output fitted",
    "search build faq.index --answers answers.tsv --model BERT --device cpu",
    "export BERT --target sentence-transformers --output exported",
)
"""The command lines that make inputs of other command lines."""


@pytest.fixture
def place(inputs, tmp_path):
    """The working directory, with the inputs, and ``out`` to write in."""
    for path in inputs.iterdir():
        (tmp_path / path.name).symlink_to(path)
    (tmp_path / "faq.index").unlink()
    shutil.copy(inputs / "faq.index", tmp_path / "faq.index")  # it is changed
    (tmp_path / "out").mkdir()
    return tmp_path


@pytest.fixture
def sts(place, monkeypatch):
    """Random pairs in place of every task of the papers."""
    (place / "sts").mkdir()
    rng = np.random.default_rng(0)
    for name in TASKS:
        texts = [[" ".join(rng.choice(NOUNS, rng.integers(1, 9))) for _ in range(40)] for _ in range(2)]
        scores = rng.integers(10, 51, 40) / 10
        write_table(place / "sts" / f"{name}.tsv", SCORED, zip(*texts, scores, strict=True))
        monkeypatch.setitem(TASKS, name, replace(TASKS[name], pairs={"all": 40}))


@pytest.fixture
def few_docstrings(tmp_path_factory, monkeypatch):
    """Docstrings of one file: those of all that is installed take seconds to read, and change with it."""
    path = tmp_path_factory.mktemp("docstrings") / "module.py"
    named = [(one, act, THINGS[(k + j) % len(THINGS)]) for k, one in enumerate(THINGS, 1) for j, act in enumerate(ACTS)]
    path.write_text("\n".join(f'def f():\n    """{DOCSTRING.format(*names)}"""' for names in named))
    monkeypatch.setattr(docstrings, "_source_files", lambda: [path])
    monkeypatch.setattr(docstrings, "_read_prose", cache(docstrings._read_prose.__wrapped__))  # kept for these alone


@pytest.fixture
def nothing_is_read(monkeypatch):
    """Weights, text and docstrings are out of reach: whoever touches them before an error makes another one."""

    def refuse(*args, **kwargs):
        raise AssertionError("read too early")

    for owner, name in ((BlockStack, "load"), (docstrings, "_read_prose"), (lines, "read_raw_lines")):
        monkeypatch.setattr(owner, name, refuse)


@pytest.fixture
def error_line(capsys):
    """Of an exit code and the one that is expected, the one line that says what is wrong."""

    def read(code, expected):
        lines = capsys.readouterr().err.splitlines()
        assert code == expected, lines
        assert [line.startswith("error: ") for line in lines].count(True) == 1
        assert lines[-1].startswith("error: ")
        return lines[-1]

    return read


@pytest.fixture
def refused(error_line):
    """Runs a command that must end with an exit code; gives the one line that says what is wrong."""
    return lambda expected, *words: error_line(main([*map(str, words)]), expected)


@pytest.fixture
def trained(arguments, told):
    """Trains with these options as well; gives what run.json says."""

    def call(*options):
        told(*arguments, *options)
        return read_json("run/run.json")

    return call


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    """Each test runs in a folder of its own."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def _keep_warnings(monkeypatch):
    """A command shows warnings in one line each, which it sets for all that follows."""
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)


@pytest.fixture
def npy(tmp_path):
    np.save(tmp_path / "x.npy", X)
    return tmp_path / "x.npy"


@pytest.fixture
def parquet(tmp_path):
    pq.write_table(pa.table({"id": list(range(len(X))), "v": list(X)}), tmp_path / "x.parquet", row_group_size=70)
    return tmp_path / "x.parquet"
