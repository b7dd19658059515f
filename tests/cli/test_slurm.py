"""SLURM without SLURM: the scripts with an ``srun`` and an ``scontrol`` of our own, and the real signals."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from bertflow.cli.train import command as train_command
from bertflow.records import read_record
from bertflow.store.store import EmbeddingStore

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = {path.stem: path for path in sorted((ROOT / "configs" / "slurm").glob("*.sbatch"))}
NOUNS = ["man", "dog", "cat", "bird", "house", "garden"]
SENTENCES = [f"the {a} {b} sleeps in the {c} ." for a in ("big", "small", "red", "green") for b in NOUNS for c in NOUNS]
OPTIONS = [
    "--trainer.enable_progress_bar=false",
    "--trainer.accelerator=cpu",
    "--report=false",
    "--trainer.log_every_n_steps=4",
    "--flow.glow.hidden=8",
    "--flow.batch_size=16",
    "--flow.epochs=60",
    "--flow.keep=last",
]
TIMEOUT = 200


def read(script):
    """The ``#SBATCH`` options of a script, and what it runs."""
    text = SCRIPTS[script].read_text()
    options = dict(re.findall(r"^#SBATCH --([\w-]+)(?:=(\S+))?", text, re.MULTILINE))
    return options, text[text.index("\nsrun ") :].replace("\\\n", " ")


@pytest.mark.parametrize("script", ["embed", "train"])
def test_a_script_starts_one_process_for_each_gpu_and_may_run_again(script):
    options, command = read(script)
    assert options["ntasks-per-node"] == options["gpus-per-node"]
    assert "ntasks" not in options, "Lightning refuses it"
    assert {"requeue", "time", "cpus-per-task"} <= set(options)
    assert options["open-mode"] == "append"
    assert command.startswith(f"\nsrun --kill-on-bad-exit=1 python -m bertflow {script} ")


def test_the_notice_goes_to_the_tasks_and_the_run_resumes():
    options, command = read("train")
    assert re.fullmatch(r"SIGUSR1@\d+", options["signal"])
    assert "--resume auto" in command


def test_the_options_of_the_training_script_exist():
    _, command = read("train")
    given = re.sub(r"\$\{\w+:\+(.*?)\}", r"\1", command).replace('"$@"', "").replace('"', "").split()[6:]
    options = train_command.parse(given)
    assert (options["resume"], options["output"], options["text"].store, options["encoder"].pooling) == (
        "auto",
        "$RUN",
        "$STORE",
        "$POOLING",
    )


@pytest.fixture(scope="module")
def cluster(tiny_bert, tmp_path_factory):
    """A folder with a corpus and with commands that stand for SLURM's; and the environment of a job in it."""
    folder = tmp_path_factory.mktemp("slurm")
    (folder / "text.txt").write_text("\n".join(SENTENCES), encoding="utf-8")
    commands = folder / "bin"
    commands.mkdir()
    (commands / "scontrol").write_text(f'#!/bin/bash\necho "$@" >> {folder}/requeued-$SLURM_JOB_ID\n')
    pid = f"{folder}/pid-$SLURM_JOB_ID-$SLURM_PROCID"
    (commands / "srun").write_text(f'#!/bin/bash\nshift\necho $$ > {pid}\nexec "$@"\n')
    (commands / "python").write_text(f'#!/bin/bash\nexec {sys.executable} "$@"\n')
    for command in commands.iterdir():
        command.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{commands}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "TEXT": str(folder / "text.txt"),
        "STORE": str(folder / "store"),
        "MODEL": str(tiny_bert),
        "POOLING": "mean(1,2)",
        "SLURM_JOB_NAME": "bertflow-train",
        "SLURM_NTASKS": "1",
        "SLURM_NTASKS_PER_NODE": "1",
        "SLURM_NNODES": "1",
        "SLURM_NODEID": "0",
        "SLURM_PROCID": "0",
        "SLURM_LOCALID": "0",
        "SLURM_CPUS_PER_TASK": "1",
        "MASTER_ADDR": "127.0.0.1",
    }
    return folder, environment


def submit(cluster, script, name, job, *more, **variables):
    """Start a job; its log goes to a file, as SLURM's do."""
    folder, environment = cluster
    environment = {**environment, "RUN": str(folder / name), "SLURM_JOB_ID": str(job), **variables}
    with (folder / f"{name}.log").open("a") as log:
        command = ["bash", str(SCRIPTS[script]), *more]
        return subprocess.Popen(command, stdout=log, stderr=log, env=environment, cwd=folder, start_new_session=True)


def wait_for(condition, job, log):
    begin = time.monotonic()
    while not condition():
        assert job.poll() is None, log.read_text()
        assert time.monotonic() - begin < TIMEOUT
        time.sleep(0.01)


def notify(cluster, job, rank=0, kind=signal.SIGUSR1):
    """Signal a task, and not the script that started it, as SLURM does."""
    os.kill(int((cluster[0] / f"pid-{job}-{rank}").read_text()), kind)


def rows(folder):
    metrics = folder / "metrics.csv"
    return metrics.read_bytes().count(b"\n") if metrics.exists() else 0


def end(*jobs):
    for job in jobs:
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)
        job.wait(timeout=TIMEOUT)


def complete(jobs, log):
    """All jobs come to a good end."""
    try:
        codes = [job.wait(timeout=TIMEOUT) for job in jobs]
    finally:
        end(*jobs)
    assert codes == [0] * len(jobs), log.read_text()


def last(folder):
    return torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]


def require_equal(run, other):
    for name, tensor in last(other).items():
        torch.testing.assert_close(last(run)[name], tensor, rtol=0, atol=1e-6)
    assert (run / "metrics.csv").read_bytes() == (other / "metrics.csv").read_bytes()
    assert read_record(run / "run.json", dict)["status"] == "done"


@pytest.mark.slow
def test_the_embedding_script_builds_a_store_that_the_training_script_reads(cluster):
    folder, environment = cluster
    complete([submit(cluster, "embed", "embed", 1)], folder / "embed.log")
    assert len(EmbeddingStore.open(environment["STORE"])) == len(SENTENCES)
    complete([submit(cluster, "train", "short", 2, *OPTIONS, "--flow.epochs=1")], folder / "short.log")
    assert read_record(folder / "short" / "run.json", dict)["status"] == "done"


@pytest.fixture(scope="module")
def whole(cluster):
    """The folder of a run that got no notice."""
    folder, _ = cluster
    complete([submit(cluster, "train", "whole", 10, *OPTIONS)], folder / "whole.log")
    return folder / "whole"


@pytest.mark.slow
def test_a_job_that_gets_notice_is_requeued_and_comes_to_the_same_end(cluster, whole):
    folder, _ = cluster
    run, log, requeued = folder / "noticed", folder / "noticed.log", folder / "requeued-77"
    job = submit(cluster, "train", "noticed", 77, *OPTIONS)
    try:
        for notice in (1, 2):  # the second, as if SLURM had not ended us at once
            seen = rows(run)
            wait_for(lambda seen=seen: rows(run) > seen + 3, job, log)
            notify(cluster, 77)
            wait_for(lambda notice=notice: requeued.exists() and requeued.read_text().count("\n") == notice, job, log)
        assert requeued.read_text() == "requeue 77\n" * 2
        wait_for(lambda: [path.name for path in run.glob("checkpoints/hpc_*")] == ["hpc_ckpt_2.ckpt"], job, log)
        checkpoint = torch.load(run / "checkpoints" / "hpc_ckpt_2.ckpt", weights_only=True)
        assert 0 < checkpoint["global_step"] < 60 * 8
        os.killpg(job.pid, signal.SIGKILL)
    finally:
        end(job)
    # As it was found: no later checkpoint than the one that was written at the notice.
    (run / "checkpoints" / "last.ckpt").unlink(missing_ok=True)
    complete([submit(cluster, "train", "noticed", 77, *OPTIONS)], log)
    assert read_record(run / "run.json", dict)["resumed"][0]["step"] == checkpoint["global_step"]
    require_equal(run, whole)
    assert not list(run.glob("checkpoints/hpc_*"))


@pytest.mark.slow
def test_two_ranks_that_get_notice_agree_on_the_step(cluster):
    folder, _ = cluster
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    run, log, requeued = folder / "ranks", folder / "ranks.log", folder / "requeued-88"
    two = {"SLURM_NTASKS": "2", "SLURM_NTASKS_PER_NODE": "2", "MASTER_PORT": port}

    def both():
        return [
            submit(cluster, "train", "ranks", 88, *OPTIONS, **two, SLURM_PROCID=str(rank), SLURM_LOCALID=str(rank))
            for rank in range(2)
        ]

    jobs = both()
    try:
        wait_for(lambda: rows(run) > 4, jobs[0], log)
        notify(cluster, 88, rank=1)  # a moment before the other
        time.sleep(0.05)
        notify(cluster, 88, rank=0)
        wait_for(requeued.exists, jobs[0], log)
        wait_for(lambda: list(run.glob("checkpoints/hpc_*")), jobs[0], log)
    finally:
        end(*jobs)
    jobs = both()
    complete(jobs, log)
    facts = read_record(run / "run.json", dict)
    assert facts["status"] == "done"
    assert facts["world_size"] == 2
