"""embed, fit, transform and export, killed at random moments with SIGKILL; an index: tests/retrieval/test_kill.py.

A moment is one between the first file that a command writes and its end. After each kill, what is there is whole: rows
that are marked as done, and no output or all of it. The same command again comes to
the end of one that was left alone, byte by byte, with nothing unfinished beside it; a ``fit`` that was killed after its
last write says that its output is there already.

More kills, and where they struck: ``pytest --slow --kills 50 -s -k embed tests/runs/test_killed.py``.
"""

import multiprocessing
import os
import shutil
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from bertflow.calibration.closed_forms import Whitening
from bertflow.calibration.saving import Provenance
from bertflow.cli import main as bertflow
from bertflow.store.store import EmbeddingStore

WORDS = ["man", "dog", "cat", "bird", "house", "garden", "runs", "sleeps", "eats", "sings"]
SENTENCES = [f"the {a} {b} {c} in a {d} ." for a in WORDS for b in WORDS for c in WORDS for d in ("red", "big")]
COMMANDS = {
    "embed": "embed {inputs}/text.txt --model {bert} --device cpu --shards 12 --store out/store",
    "fit": "fit --vectors {inputs}/x.npy --calibrator whitening(4) --output out/c",
    "export": "export {bert} --target sentence-transformers --output out/exported",
    "transform to npy": "transform --vectors {inputs}/x.npy --calibrator {inputs}/c --output out/z.npy",
    "transform to parquet": "transform --vectors {inputs}/x.parquet --calibrator {inputs}/c --output out/z.parquet",
    "transform a store": "transform --store {inputs}/store --calibrator {inputs}/c --bare --output out/store",
}
PRELOADED = ["bertflow.runs.sources", "bertflow.encoder.transformer",
             "sentence_transformers", "transformers.models.bert.modeling_bert", "bertflow.export.targets"]  # fmt: skip
FOLDERS = ("c", "exported")
"""Outputs that are there whole, or not at all."""


def start(command, folder, bert):
    """The command in a process that a server forks: importing PyTorch takes longer than these commands."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    words = [word.format(inputs="inputs", bert=bert) for word in command.split()]
    process = context.Process(target=run, args=(words, folder))
    process.start()
    return process


def run(words, folder):
    torch.set_num_threads(1)
    os.chdir(folder)
    with Path(os.devnull).open("w") as sys.stdout, Path("said").open("w") as sys.stderr:
        sys.exit(bertflow(words))


def finish(killer, command, folder, bert):
    """Wait for its end; returns the seconds for which it wrote."""
    process = start(command, folder, bert)
    seconds = killer.seconds(process, folder / "out")
    said = (folder / "said").read_text()
    assert process.exitcode == 0 or "error: Output folder out/c is not empty." in said, (command, said)
    return seconds


@pytest.fixture(scope="module")
def folder(tiny_bert, tmp_path_factory):
    """Everything that the commands read."""
    folder = tmp_path_factory.mktemp("killed")
    inputs = folder / "inputs"
    inputs.mkdir()
    (inputs / "text.txt").write_text("\n".join([*SENTENCES, *SENTENCES[:100]]))
    x = np.random.default_rng(0).normal(size=(250_000, 16)).astype(np.float32)
    np.save(inputs / "x.npy", x)
    pq.write_table(pa.table({"id": range(len(x)), "v": pa.FixedSizeListArray.from_arrays(x.ravel(), 16)}),
                   inputs / "x.parquet")  # fmt: skip
    fitted = Whitening(8).fit(x)
    fitted.provenance_ = Provenance({"encoder": "rows"}, None)
    fitted.save(inputs / "c")
    place = new_place(folder, "prepared")
    process = start(COMMANDS["embed"].replace("out/", "inputs/"), place, tiny_bert)
    process.join()
    assert process.exitcode == 0
    return folder


def new_place(folder, name):
    place = folder / name
    (place / "out").mkdir(parents=True)
    (place / "inputs").symlink_to(folder / "inputs")
    return place


def state(out):
    """What a user finds: rows that are marked as done, and complete files; nothing is damaged."""
    found = {}
    if (out / "store/store.json").exists():
        job = EmbeddingStore(out / "store").shards.job
        for part in job.marks():
            assert job.is_whole(part)
            found |= {name: path.read_bytes() for name, path in job.paths(part).items()}
    for path in out.glob("z.*"):
        found[path.name] = path.read_bytes()
    for name in FOLDERS:
        if (out / name).exists():
            found[name] = {path: (out / path).read_bytes() for path in names(out) if (out / path).is_file()}
    return found


def names(out):
    return sorted(path.relative_to(out) for path in out.rglob("*"))


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_what_is_there_after_a_kill_is_whole_and_the_command_comes_to_the_same_end(name, tiny_bert, folder, killer):
    found, command = Counter(), COMMANDS[name]
    whole, before = new_place(folder, f"{name} whole"), state(new_place(folder, f"{name} before") / "out")
    places = (new_place(folder, f"{name} first"), whole)
    seconds = min([finish(killer, command, place, tiny_bert) for place in places])
    expected = state(whole / "out")
    assert expected != before
    for number in range(killer.kills):
        place = new_place(folder, f"{name} {number}")
        at_work = killer.kill(start(command, place, tiny_bert), place / "out", seconds)
        left = state(place / "out")
        assert all(part in (expected[key], before.get(key)) for key, part in left.items())
        new = sum(part != before.get(key) for key, part in left.items())
        parts = f"{new} of {sum(expected[key] != before.get(key) for key in expected)} parts"
        found[parts if at_work else "at its end"] += 1
        if at_work:
            finish(killer, command, place, tiny_bert)
        assert state(place / "out") == expected
        assert names(place / "out") == names(whole / "out"), "nothing unfinished is left"
        shutil.rmtree(place)
    print(f"{name}: {killer.kills} kills in {seconds:.2f} s of writing: {dict(sorted(found.items()))}")  # noqa: T201
