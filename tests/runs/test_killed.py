"""embed, transform, and changes of an index, killed at random moments with SIGKILL.

After each kill, what is there is whole: rows that are marked as done, the index of before or of after, and no output
or all of it. The same command again comes to the end of one that was left alone, byte by byte, with nothing unfinished
beside it; a ``transform`` that was killed after its end says that the file is there already.

More kills: ``test_killed.py BERT FOLDER 50 [COMMAND ...]``.
"""

import json
import multiprocessing
import os
import random
import shutil
import sqlite3
import sys
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from bertflow.calibration.base import Provenance
from bertflow.calibration.calibrators import Whitening
from bertflow.cli import main as bertflow
from bertflow.runs import matrix
from bertflow.store.store import EmbeddingStore

WORDS = ["man", "dog", "cat", "bird", "house", "garden", "runs", "sleeps", "eats", "sings"]
SENTENCES = [f"the {a} {b} {c} in a {d} ." for a in WORDS for b in WORDS for c in WORDS for d in ("red", "big")]
COMMANDS = {
    "embed": "embed {inputs}/text.txt --model {bert} --device cpu --shards 12 --store out/store",
    "transform to npy": "transform --vectors {inputs}/x.npy --calibrator {inputs}/c --output out/z.npy",
    "transform to parquet": "transform --vectors {inputs}/x.parquet --calibrator {inputs}/c --output out/z.parquet",
    "transform a store": "transform --store {inputs}/store --calibrator {inputs}/c --bare --output out/store",
    "search add": "search add out/faq.index --answers {inputs}/new.jsonl",
    "search update": "search update out/faq.index --answers {inputs}/changed.jsonl",
}
PRELOADED = ["bertflow.runs.rows", "bertflow.encoder.transformer", "bertflow.retrieval.index",
             "transformers.models.bert.modeling_bert", "bertflow.calibration.spelling"]  # fmt: skip
TIMEOUT = 200


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
    matrix.EVERY = 2**18
    with Path(os.devnull).open("w") as sys.stdout, Path("said").open("w") as sys.stderr:
        sys.exit(bertflow(words))


def finish(command, folder, bert):
    """Wait for its end; returns the seconds that it took."""
    begun, process = time.monotonic(), start(command, folder, bert)
    process.join(TIMEOUT)
    said = (folder / "said").read_text()
    assert process.exitcode == 0 or ("error: out/z." in said and " is there already." in said), (command, said)
    return time.monotonic() - begun


def answers(kind, numbers, text):
    return "".join(json.dumps({"id": f"{kind}-{k}", "text": text.format(SENTENCES[k])}) + "\n" for k in numbers)


def prepare(folder, bert):
    """Everything that the commands read, and the index that they change."""
    inputs = folder / "inputs"
    inputs.mkdir()
    (inputs / "text.txt").write_text("\n".join([*SENTENCES, *SENTENCES[:100]]))
    (inputs / "old.jsonl").write_text(answers("old", range(200), "{}"))
    (inputs / "new.jsonl").write_text(answers("new", range(200, 600), "{}"))
    (inputs / "changed.jsonl").write_text(answers("old", range(50, 200), "not {}"))
    x = np.random.default_rng(0).normal(size=(250_000, 16)).astype(np.float32)
    np.save(inputs / "x.npy", x)
    pq.write_table(pa.table({"id": range(len(x)), "v": pa.FixedSizeListArray.from_arrays(x.ravel(), 16)}),
                   inputs / "x.parquet")  # fmt: skip
    fitted = Whitening(8).fit(x)
    fitted.provenance_ = Provenance({"encoder": "rows"}, None)
    fitted.save(inputs / "c")
    place = new_place(folder, "prepared")
    finish(COMMANDS["embed"].replace("out/", "inputs/"), place, bert)
    finish("search build inputs/old.index --answers inputs/old.jsonl --model {bert} --device cpu", place, bert)


def new_place(folder, name):
    place = folder / name
    (place / "out").mkdir(parents=True)
    (place / "inputs").symlink_to(folder / "inputs")
    if (folder / "inputs/old.index").exists():
        shutil.copy(folder / "inputs/old.index", place / "out/faq.index")
    return place


def state(out):
    """What a user finds: rows that are marked as done, complete files, the content of an index; nothing is damaged."""
    found = {}
    if (out / "store/store.json").exists():
        for shard in EmbeddingStore(out / "store")._shards:
            if shard.is_done():
                assert shard.is_whole()
                found[shard.path.name] = shard.path.read_bytes()
    for path in out.glob("z.*"):
        found[path.name] = path.read_bytes()
    with closing(sqlite3.connect(out / "faq.index")) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        query = "SELECT id, text, raw FROM phrases JOIN answers ON answer = answers.number ORDER BY id, text"
        found["faq.index"] = connection.execute(query).fetchall()
    return found


def names(out):
    return sorted(path.relative_to(out) for path in out.rglob("*"))


def kill(name, bert, folder, kills, seed=0):
    """Kill a command so many times, and let it finish after each; returns what was there at the kills."""
    chance, found, command = random.Random(seed), Counter(), COMMANDS[name]
    whole, before = new_place(folder, f"{name} whole"), state(new_place(folder, f"{name} before") / "out")
    longest = max(finish(command, new_place(folder, f"{name} first"), bert), finish(command, whole, bert))
    expected = state(whole / "out")
    assert expected != before
    while found.total() < kills:
        place = new_place(folder, f"{name} {time.monotonic_ns()}")
        process = start(command, place, bert)
        process.join(chance.uniform(0, longest))
        process.kill()
        process.join(TIMEOUT)
        if process.exitcode != 0:  # else it was done in time
            assert process.exitcode == -9, (place / "said").read_text()
            left = state(place / "out")
            assert all(part in (expected[key], before.get(key)) for key, part in left.items())
            new = sum(part != before.get(key) for key, part in left.items())
            rows = ", some rows" if any((place / "out").glob(".z*.journal")) else ""
            found[f"{new} of {sum(expected[key] != before.get(key) for key in expected)} parts{rows}"] += 1
            finish(command, place, bert)
            assert state(place / "out") == expected
            assert names(place / "out") == names(whole / "out"), "nothing unfinished is left"
        shutil.rmtree(place)
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_what_is_there_after_a_kill_is_whole_and_the_command_comes_to_the_same_end(name, tiny_bert, tmp_path):
    prepare(tmp_path, tiny_bert)
    kill(name, tiny_bert, tmp_path, kills=4)


if __name__ == "__main__":
    place = Path(sys.argv[2]).absolute()
    place.mkdir(parents=True)
    prepare(place, sys.argv[1])
    for name in sys.argv[4:] or COMMANDS:
        found = kill(name, sys.argv[1], place, int(sys.argv[3]))
        sys.stdout.write(f"{name}: {found.total()} kills, {dict(sorted(found.items()))}\n")
        sys.stdout.flush()
