"""Every command: what it writes, and one line and an exit code where one thing is wrong.

an input    missing, empty, of other bytes, a folder in place of a file or a file in place of a folder
an output   where nothing can be written, or on a disk that becomes full
the user    stops it
"""

import os
import re
import resource
import shutil
import stat
import sys
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import pytest

from bertflow.cli import main
from bertflow.cli.commands import COMMANDS
from bertflow.encoder.model import BlockStack
from bertflow.export import golden
from bertflow.retrieval.storage import Storage
from bertflow.training.trainer import METRICS

pytestmark = pytest.mark.usefixtures("few_docstrings")
TRAINING = "--trainer.enable_progress_bar=false --trainer.accelerator=cpu"
LINES = {
    "demo": "demo --sentences 60 --pairs 30 --output out/new",
    "fix": "fix BERT text.txt --labels labels.tsv --candidates center --output out/new --device cpu",
    "train": "train --encoder.model=BERT --data.sentences=text.txt --output=out/new --flow.glow.hidden=8 "
    f"--flow.batch_size=16 --flow.epochs=1 {TRAINING}",
    "finetune": f"finetune --encoder.model=BERT --data.pairs=nli.tsv --output=out/new --trainer.max_steps=2 {TRAINING}",
    "embed": "embed text.txt --model BERT --store out/new --device cpu",
    "fit": "fit --vectors x.npy --calibrator abtt(1) --output out/new",
    "transform": "transform --vectors x.npy --calibrator fitted --output out/new.npy",
    "transform to parquet": "transform --vectors x.npy --calibrator fitted --output out/new.parquet",
    "reindex": "reindex lancedb:db/docs lancedb:out/db/docs --calibrator fitted --output out/new",
    "adapt": "adapt BERT many_words.txt --output out/new --device cpu",
    "evaluate": "evaluate BERT --tasks mine --data_dir data --binary labels.tsv --output out/new --device cpu",
    "sweep": "sweep BERT --tasks mine --data_dir data --layers 0 --tokens mean --output out/new --device cpu",
    "verify-paper": "verify-paper BERT --data_dir data --output out/new --device cpu",
    "paper-tables": "paper-tables BERT --data_dir data --output out/new --device cpu",
    "inspect": "inspect BERT --text text.txt --pairs none --sentences 30 --output out/new --device cpu",
    "tokens": "tokens dog --model BERT",
    "words": "words dog cat --in the_dog_eats_a_cat --pooling mean(1) --model BERT --output out/new",
    "compare": "compare BERT BERT text.txt --queries text.txt --output out/new --device cpu",
    "export": "export BERT --target sentence-transformers --output out/new",
    "export to onnx": "export BERT --target onnx --output out/new",
    "score": "score BERT labels.tsv --fit_on text.txt --save out/new --output out/new.tsv --device cpu",
    "search build": "search build out/new --answers answers.tsv --model BERT --device cpu",
    "search add": "search add faq.index --answers more.tsv --model BERT --device cpu",
    "search update": "search update faq.index --answers answers.tsv --model BERT --device cpu",
    "search remove": "search remove faq.index dogs --model BERT --device cpu",
    "search recalibrate": "search recalibrate faq.index --model BERT --device cpu",
    "search ask": "search ask faq.index dog --model BERT --device cpu",
    "search evaluate": "search evaluate faq.index --labels right.tsv --model BERT --device cpu",
    "search info": "search info faq.index",
    "search example": "search example out/new --answers 5 --sentences 5",
    "serve": "serve BERT --port 0 --device cpu",
    "doctor": "doctor --golden exported --model exported",
}
"""A command -> a command line that works; ``out`` is where it writes."""
TABLES = ("labels.tsv", "nli.tsv", "answers.tsv", "more.tsv", "right.tsv")
INPUTS = ("BERT", "data", "exported", "fitted", "faq.index", *TABLES, "text.txt", "x.npy")
"""What command lines read."""
PUBLISHED = ("verify-paper", "paper-tables")
"""Those that need the real tasks."""
WRITERS = [name for name, line in LINES.items() if "out/" in line and name not in PUBLISHED]
"""Those that write in ``out``, and have here what they need."""
CHANGING = ("search add", "search update", "search remove")
"""Those that change the index."""
PARSED_SLOWLY = ("train", "finetune")
"""Their parsers know all options of Lightning's Trainer."""
QUICK = ("fit", "transform", "transform to parquet", "search build", "search example", "score", "embed", "words")
FILES_KEPT = {"run.json", "config.yaml", "words.json"}
"""What is whole and stays: a run that could not be finished says so, and numbers stay without their pictures."""


NEXT = re.compile(r"((to|once) [^:]+: )?bertflow ")
"""A next line: a command, behind words where it takes a FILE of the user's."""


def marked(rows, slow):
    return [pytest.param(*row, id="-".join(row), marks=pytest.mark.slow if slow(*row) else ()) for row in rows]


def words(line, place="out", **instead):
    """The words of a command line, with other inputs and another place to write in."""
    found = []
    for word in line.split():
        name = word.split("=")[-1]
        found.append(word.removesuffix(name) + str(instead.get(name, name).replace("out/", f"{place}/")))
    return [word.replace("the_dog_eats_a_cat", "the dog eats a cat .") for word in found]


def missing(place, name):
    return place / "missing" / name


def empty(place, name):
    path = place / "wrong" / name
    if (place / name).is_dir():
        path.mkdir(parents=True)
    else:
        path.parent.mkdir()
        path.touch()
    return path


def other_bytes(place, name):
    """Bytes that are neither text nor JSON nor of a known format; in a folder, in each of its files."""
    path = empty(place, name)
    if path.is_dir():
        shutil.copytree(place / name, path, dirs_exist_ok=True)
    noise = np.random.default_rng(0).bytes(300)
    for file in (path, *path.rglob("*")):
        if file.is_file():
            file.write_bytes(noise)
    return path


def other_kind(place, name):
    path = place / "wrong" / name
    path.parent.mkdir()
    if (place / name).is_dir():
        path.write_text("dog")
    else:
        path.mkdir()
    return path


WRONG = {"missing": missing, "empty": empty, "of other bytes": other_bytes, "of the other kind": other_kind}
UNSAID = {
    ("fix", "text.txt", "empty"),
    *((name, "data", how) for name in PUBLISHED for how in ("empty", "of other bytes")),
}
"""Errors that do not name the input, but what is wanted."""


def reads(line):
    """The inputs that a command line names, each once."""
    return list(dict.fromkeys(name for word in line.split() if (name := word.split("=")[-1]) in INPUTS))


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_in_the_table(command):
    assert any(name.split()[0] == command for name in LINES)


@pytest.mark.parametrize(
    ("command", "name", "wrong"),
    marked(
        [(command, name, wrong) for command, line in LINES.items() for name in reads(line) for wrong in WRONG],
        lambda command, name, wrong: command in PARSED_SLOWLY and wrong != "missing",
    ),
)
def test_an_input_that_cannot_be_used_is_one_line(command, name, wrong, place, refused):
    instead = str(WRONG[wrong](place, name))
    # A task that is in no table of the folder is an unknown name.
    expected = 2 if (name, wrong) == ("data", "empty") and command not in PUBLISHED else 3
    line = refused(expected, *words(LINES[command], **{name: instead}))
    assert (command, name, wrong) in UNSAID or instead in line or name in line
    assert not [path for path in (place / "out").rglob("*") if path.is_file()]


PLACES = {
    "below a file": "text.txt/new",
    "with a long name": f"out/{'n' * 300}",
    "where nothing can be made": "/proc/bertflow",
    "read-only": "closed",
}


@pytest.mark.parametrize(
    ("command", "where"),
    marked(
        [(command, where) for command in [*WRITERS, *PUBLISHED] for where in PLACES],
        lambda command, where: command in PARSED_SLOWLY and where != "below a file",
    ),
)
def test_an_output_that_cannot_be_written_is_refused_before_anything_is_read(
    command, where, place, nothing_is_read, refused
):
    if where == "where nothing can be made" and sys.platform != "linux":
        pytest.skip("it is a folder of Linux")
    if where == "read-only" and os.geteuid() == 0:
        pytest.skip("the superuser may write everywhere")
    (place / "closed").mkdir(mode=0o555)
    assert PLACES[where] in refused(3, *words(LINES[command], PLACES[where]))
    assert not list((place / "out").rglob("*"))


@contextmanager
def full_disk(size):
    """As a full disk or a quota: no file may grow beyond some bytes. Ends before pytest writes to its own log."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


LITTLE = ("fit", "evaluate", "sweep", "search example")
"""Commands that write less than that."""


@pytest.mark.parametrize(
    "command", marked([(name,) for name in (*WRITERS, *CHANGING)], lambda name: name not in (*QUICK, *CHANGING))
)
@pytest.mark.parametrize("size", [0, pytest.param(3000, marks=pytest.mark.slow)])  # with 3,000 bytes records fit
def test_a_disk_that_is_full_is_one_line_and_leaves_nothing_half_written(command, size, place, error_line, told):
    if size and command in LITTLE:
        pytest.skip("it writes less")
    held = (place / "faq.index").read_bytes()
    with full_disk(size):
        code = main(words(LINES[command]))
    line = error_line(code, 3)
    assert any(part in line for part in ("too large", "disk I/O error", "disk is full", "written"))
    if command == "reindex" and size:  # the table is begun, and filled when there is room
        told(*words(LINES[command]))
        return
    left = [path for path in (place / "out").rglob("*") if path.is_file() and "tensorboard" not in path.parts]
    if size and command == "finetune":  # its steps are logged before the checkpoint that does not fit
        logged = next(path for path in left if path.name == METRICS)
        left.remove(logged)
        text = logged.read_text()
        assert text.endswith("\n")
        assert len({line.count(",") for line in text.splitlines()}) == 1
    assert {path.name for path in left} <= FILES_KEPT
    assert (place / "faq.index").read_bytes() == held


def test_a_file_that_the_disk_cannot_hold_is_not_begun(place, monkeypatch, refused):
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=1000))
    line = refused(3, *words(LINES["transform"]))
    assert "out/new.npy needs 9.6e-06 GB, but only 1e-06 GB are free there." in line
    assert not list((place / "out").iterdir())


@pytest.mark.parametrize(
    "command", marked([(name,) for name in LINES if name not in PUBLISHED], lambda name: name in ("demo", "train"))
)
def test_a_command_that_is_stopped_says_so_and_leaves_nothing_half_written(command, place, capsys, monkeypatch):
    """At the first thing that takes long: weights, docstrings, an index, or what is written reaching the disk."""

    def stop(*args, **kwargs):
        raise KeyboardInterrupt

    for owner, name in ((BlockStack, "load"), (os, "fsync"), (Storage, "facts"), (golden, "embed_locally")):
        monkeypatch.setattr(owner, name, stop)
    assert main(words(LINES[command])) == 1
    assert capsys.readouterr().err.splitlines()[-1] == "interrupted"
    left = [path.name for path in (place / "out").rglob("*") if path.is_file()]
    assert all(name.startswith(".") for name in left), "what is done of a long work is kept, to go on from"


@pytest.fixture(params=[0o027, pytest.param(0o022, marks=pytest.mark.slow)])
def umask(request):
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@pytest.mark.parametrize("command", marked([(name,) for name in WRITERS], lambda name: name not in (*QUICK, "sweep")))
def test_what_is_written_has_the_mode_of_the_umask_and_ends_with_what_to_do_next(command, umask, place, told):
    shutil.rmtree(place / "out")
    _, found, then = told(*words(LINES[command])).rpartition("\nnext: ")
    assert bool(found) != command.startswith("transform"), "what is mapped is for the user's own search"
    assert not found or all(NEXT.match(line.strip()) for line in then.splitlines())
    assert then.endswith("\n"), "it is the last thing that is printed"
    written = [place / "out", *(place / "out").rglob("*")]
    assert len(written) > 1
    wrong = {
        str(path.relative_to(place)): oct(stat.S_IMODE(path.stat().st_mode))
        for path in written
        if stat.S_IMODE(path.stat().st_mode) != (0o777 if path.is_dir() else 0o666) & ~umask
    }
    assert not wrong
