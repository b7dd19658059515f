"""What commands write: its mode is that of the umask, and a disk that does not take it is one line."""

import os
import resource
import stat
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest

from bertflow.cli import main

pytestmark = pytest.mark.filterwarnings("ignore::bertflow.errors.NullDirectionWarning")
NOUNS = ["man", "dog", "cat", "bird", "house", "garden"]
SIZES = ("big", "red", "small", "green", "old", "tall")
SENTENCES = [
    f"{a} {size} {noun} sleeps in the {end} ." for a in "az" for size in SIZES for noun in NOUNS for end in NOUNS
]
TRAINING = "--trainer.enable_progress_bar=false --trainer.accelerator=cpu"
WRITERS = {
    "train": f"train --encoder.model=BERT --data.sentences=text.txt --output=out/run --flow.glow.hidden=8 "
    f"--flow.batch_size=16 --flow.epochs=1 {TRAINING}",
    "finetune": f"finetune --encoder.model=BERT --data.pairs=nli.tsv --output=out/run --trainer.max_steps=2 {TRAINING}",
    "embed": "embed text.txt --model BERT --store out/store --device cpu",
    "fit": "fit --vectors x.npy --calibrator abtt(1) --output out/calibrator",
    "transform": "transform --vectors x.npy --calibrator fitted --output out/z.npy",
    "transform to parquet": "transform --vectors x.npy --calibrator fitted --output out/z.parquet",
    "fix": "fix BERT text.txt --labels labels.tsv --candidates center --output out/fixed --device cpu",
    "evaluate": "evaluate BERT --binary labels.tsv --output out/report --device cpu",
    "score": "score BERT labels.tsv --fit_on text.txt --save out/scored --output out/scores.tsv --device cpu",
    "search": "search build out/faq.index --answers answers.tsv --model BERT --device cpu",
    "inspect": "inspect BERT --text text.txt --pairs none --sentences 30 --output out/report --device cpu",
    "export to sentence-transformers": "export BERT --target sentence-transformers --output out/exported",
    "export to onnx": "export BERT --target onnx --output out/exported",
}


@pytest.fixture(params=[0o027, pytest.param(0o022, marks=pytest.mark.slow)])
def umask(request):
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    (folder / "text.txt").write_text("\n".join(SENTENCES))
    rows = [f"{one}\t{other}\t{k % 2}\n" for k, (one, other) in enumerate(pairwise(SENTENCES[:111]))]
    (folder / "labels.tsv").write_text("sentence1\tsentence2\tlabel\n" + "".join(rows))
    classes = [
        f"{one}\t{one}\t{label}\n" for one in SENTENCES[:60] for label in ("entailment", "neutral", "contradiction")
    ]
    (folder / "nli.tsv").write_text("premise\thypothesis\tlabel\n" + "".join(classes))
    (folder / "answers.tsv").write_text("id\ttext\ndogs\tthe dog sleeps .\n")
    np.save(folder / "x.npy", np.random.default_rng(0).normal(size=(300, 8)).astype("float32"))
    os.chdir(folder)
    assert main(["fit", "--vectors", "x.npy", "--calibrator", "center", "--output", "fitted"]) == 0
    return folder


QUICK = ("fit", "transform", "transform to parquet", "search")


def marked(names, slow):
    return [pytest.param(name, marks=pytest.mark.slow if slow(name) else ()) for name in names]


SMALL = 3000
"""Bytes that a file may have in a test of a full disk: records fit, weights do not."""


@pytest.fixture
def place(inputs, tmp_path, monkeypatch):
    """A working directory with the inputs."""
    monkeypatch.chdir(tmp_path)
    for path in inputs.iterdir():
        (tmp_path / path.name).symlink_to(path)
    return tmp_path


def words(writer, tiny_bert):
    return WRITERS[writer].replace("BERT", str(tiny_bert)).split()


@pytest.mark.parametrize("writer", marked(WRITERS, lambda name: "onnx" in name))
def test_what_is_written_has_the_mode_of_the_umask(writer, umask, place, tiny_bert):
    (place / "out").mkdir()
    assert main(words(writer, tiny_bert)) == 0
    written = [place / "out", *(place / "out").rglob("*")]
    assert len(written) > 1
    wrong = {
        str(path.relative_to(place)): oct(stat.S_IMODE(path.stat().st_mode))
        for path in written
        if stat.S_IMODE(path.stat().st_mode) != (0o777 if path.is_dir() else 0o666) & ~umask
    }
    assert not wrong


@pytest.mark.parametrize("writer", marked(WRITERS, lambda name: name not in QUICK))
def test_a_file_in_the_place_of_the_folder_is_one_line(writer, place, tiny_bert, capsys):
    (place / "out").write_text("mine")
    assert main(words(writer, tiny_bert)) == 3
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("error: ")
    assert (place / "out").read_text() == "mine"


@pytest.fixture
def small_files():
    """As a full disk or a quota: no file may grow beyond some bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (SMALL, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize(
    "writer",
    marked(sorted(WRITERS.keys() - {"fit", "evaluate"}), lambda name: name not in QUICK),  # those write little
)
def test_a_disk_that_is_full_is_one_line_and_leaves_nothing_half_written(writer, place, tiny_bert, capsys, small_files):
    (place / "out").mkdir()
    assert main(words(writer, tiny_bert)) == 3
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("error: ")
    assert any(word in last for word in ("too large", "disk I/O error", "could not be written", "written"))
    left = [path for path in (place / "out").rglob("*") if path.is_file() and "tensorboard" not in path.parts]
    assert {path.name for path in left} <= {"run.json", "config.yaml"}, "a run says that it failed"


def test_a_file_that_the_disk_cannot_hold_is_not_begun(place, monkeypatch, capsys):
    (place / "out").mkdir()
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=1000))
    assert main(WRITERS["transform"].split()) == 3
    assert "out/z.npy needs 9.6e-06 GB, but only 1e-06 GB are free there." in capsys.readouterr().err
    assert not list((place / "out").iterdir())
