"""Trainings that are killed at random moments, with SIGKILL, and continued until they are done.

A run is killed again and again, from its first file on: while it goes on, trains and ends. It must come to the end of a
run that was left alone: equal weights, the same figures in metrics.csv, and no unfinished file. More kills, and where
they struck: ``pytest --slow --kills 50 -s -k finetune tests/cli/test_killed.py``.
"""

import multiprocessing
import os
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from bertflow.cli import main as bertflow
from bertflow.records import read_record

from .conftest import NOUNS, write_table

ROWS = [(f"the {a} {one} sleeps in the {other} .", f"a {one} in the {other}", label) for one in NOUNS for other in NOUNS
        for a, label in (("big", "entailment"), ("small", "neutral"), ("red", "contradiction"))]  # fmt: skip
SHARED = ["--encoder.pooling=mean(2)", "--encoder.device=cpu", "--trainer.accelerator=cpu", "--resume=auto",
          "--trainer.enable_progress_bar=false", "--trainer.log_every_n_steps=1"]  # fmt: skip
BRIEF = ["--finetune.batch_size=8", "--trainer.max_steps=30", "--finetune.checkpoint_every=4"]
COMMANDS = {
    "train": ["train", "--data.sentences={}.txt", "--flow.batch_size=8", "--flow.epochs=3", "--flow.glow.hidden=8",
              "--report=false"],
    "finetune": ["finetune", "--data.pairs={}.tsv", *BRIEF],
    "simcse": ["finetune", "{}.txt", "--objective=simcse", "--finetune.held_out=0.2", *BRIEF],
}  # fmt: skip
PRELOADED = ["bertflow.runs.training", "bertflow.finetuning.fitting", "bertflow.runs.folder", "tensorboard"]


def start(arguments):
    """The command line in a process that a server forks: importing PyTorch takes longer than these trainings."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    process = context.Process(target=run, args=(arguments,))
    process.start()
    return process


def run(arguments):
    torch.set_num_threads(1)
    with Path(os.devnull).open("w") as sys.stdout:
        sys.exit(bertflow(arguments))


def stage(folder):
    """How far a run had come."""
    if not (folder / "run.json").exists():
        return "before run.json"
    if not (folder / "checkpoints/last.ckpt").exists():
        return "before a checkpoint"
    steps = torch.load(folder / "checkpoints/last.ckpt", weights_only=True)["global_step"]
    return f"{read_record(folder / 'run.json', dict)['status']}, {steps // 10 * 10} steps or more"


def require_equal(folder, whole):
    """Weights bit by bit, no row of metrics that is another's, and nothing unfinished."""
    logged, expected = ((each / "metrics.csv").read_text().splitlines() for each in (folder, whole))
    assert all(row in expected for row in logged)
    paths = [path.relative_to(whole) for path in whole.rglob("*.safetensors")]
    for path in paths:
        tensors = load_file(folder / path)
        for name, tensor in load_file(whole / path).items():
            assert torch.equal(tensor, tensors[name]), (path, name)
    states = [torch.load(each / "checkpoints/last.ckpt", weights_only=True) for each in (folder, whole)]
    assert states[0]["global_step"] == states[1]["global_step"]
    assert not [path for path in folder.rglob(".*") if path.name != ".gitignore"]


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_a_run_that_is_killed_at_random_moments_comes_to_the_same_end(command, tiny_bert, tmp_path, killer):
    write_table(tmp_path / "rows.tsv", "premise hypothesis label", ROWS)
    (tmp_path / "rows.txt").write_text("".join(f"{row[0]}\n" for row in ROWS))
    given = [word.format(tmp_path / "rows") for word in COMMANDS[command]]
    arguments = [*given, f"--encoder.model={tiny_bert}", *SHARED]
    whole, found, runs = tmp_path / "whole", Counter(), 0
    longest = finish(killer, [*arguments, f"--output={whole}"], whole)
    while found.total() < killer.kills:
        attempt = tmp_path / f"run-{runs}"
        process = start([*arguments, f"--output={attempt}"])
        if killer.kill(process, attempt, longest):
            assert process.exitcode == -9, "it should have been killed, or be done"
            found[stage(attempt)] += 1
        else:
            runs += 1
    finish(killer, [*arguments, f"--output={tmp_path / f'run-{runs}'}"], tmp_path / f"run-{runs}")
    for number in range(runs + 1):
        require_equal(tmp_path / f"run-{number}", whole)
    print(f"{command}: {killer.kills} kills of {runs + 1} runs: {dict(sorted(found.items()))}")  # noqa: T201


def finish(killer, arguments, folder):
    """Wait for its end; returns the seconds for which it wrote."""
    process = start(arguments)
    seconds = killer.seconds(process, folder)
    assert process.exitcode == 0
    return seconds
