"""SLURM without SLURM: the scripts with ``sbatch``, ``srun`` and ``scontrol`` of our own, and the real signals."""

import os
import re
import signal
import subprocess
import sys
import time

import pytest
import torch

from bertflow.cli.command import command
from bertflow.records import read_record

from ..conftest import TIMEOUT
from .conftest import ROOT, TRAINING, free_port
from .conftest import SLEEPING as SENTENCES

SCRIPTS = {path.stem: path for path in sorted((ROOT / "configs/slurm").glob("*.sbatch"))}
OPTIONS = [*TRAINING, "--trainer.log_every_n_steps=4", "--flow.batch_size=16", "--flow.epochs=60", "--flow.keep=last"]


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
    assert command.startswith(f'\nsrun --kill-on-bad-exit=1 "${{python[@]}}" -m bertflow {script} ')


def test_the_notice_goes_to_the_tasks_and_the_run_resumes():
    options, command = read("train")
    assert re.fullmatch(r"SIGUSR1@\d+", options["signal"])
    assert "--resume auto" in command


SBATCH = """
IFS=, read -r -a exported <<<"${1#--export=ALL,}"
shift
cp "$1" slurm_script  # SLURM runs a copy, which lies elsewhere
shift
exec env "${exported[@]}" SLURM_JOB_ID=1 SLURM_CPUS_PER_TASK=3 bash slurm_script "$@"
"""
PYTHON = """
if [ "$*" = "-m bertflow --version" ]; then exec echo "bertflow 9"; fi
printf '%s\\n' "$HF_HUB_OFFLINE" "$OMP_NUM_THREADS" "$@" >called
"""


def write_commands(folder, texts):
    """Commands of our own, which may be run; returns the folder with them."""
    folder.mkdir()
    for name, text in texts.items():
        (folder / name).write_text(f"#!/bin/bash\n{text}")
        (folder / name).chmod(0o755)
    return folder


@pytest.fixture
def submitted(tmp_path):
    """Runs a line of a shell where ``sbatch``, ``srun`` and Python are our own; what Python was called with."""
    commands = write_commands(tmp_path / "bin", {"sbatch": SBATCH, "srun": 'shift\nexec "$@"\n', "python": PYTHON})
    kept = {name: value for name, value in os.environ.items() if name not in ("HF_HUB_OFFLINE", "PYTHON")}

    def run(line, **variables):
        environment = {**kept, "PATH": f"{commands}:{kept['PATH']}", **variables}
        line = line.replace("configs/slurm", str(ROOT / "configs/slurm"))
        done = subprocess.run(["bash", "-c", line], cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (0, "bertflow 9\n"), done.stderr
        offline, threads, *argv = (tmp_path / "called").read_text().splitlines()
        assert (threads, argv[:2]) == ("3", ["-m", "bertflow"])
        return offline, argv[2:]

    return run


def test_what_the_guide_submits_is_understood(submitted):
    page = (ROOT / "docs/cluster.md").read_text("utf-8").replace("\\\n", " ")
    embed, train = re.findall(r"^sbatch .*$", page, re.MULTILINE)
    offline, argv = submitted(embed)
    named = ["--model", "bert-base-uncased", "--pooling", "first-last-avg"]
    assert (offline, argv) == ("1", ["embed", "text.txt", "--store", "store", *named])
    _, argv = submitted(f"{train} --flow.epochs 3")
    options = command("train").parse(argv[1:])
    assert (options["resume"], options["output"], options["flow"].epochs) == ("auto", "runs/mine", 3)
    assert (options["text"].sentences, options["text"].store) == ("text.txt", "store")
    assert (options["encoder"]["model"], options["encoder"]["pooling"]) == ("bert-base-uncased", "first-last-avg")


def test_the_lines_of_the_paper_are_made_by_an_array_and_merged_without_one(submitted):
    page = (ROOT / "docs/paper.md").read_text("utf-8").replace("\\\n", " ")
    (line,) = re.findall(r"^sbatch --array=1-12 (.*)$", page, re.MULTILINE)
    offline, argv = submitted(f"sbatch {line} --seeds 3", SLURM_ARRAY_TASK_ID="7", NLI_MODELS="one two")
    options = command("paper-tables").parse(argv[1:])
    assert (offline, options["line"], options["seeds"], options["models"]) == ("1", 7, 3, "bert-base-uncased")
    made = ("snli.jsonl", ["one", "two"], "runs/paper")
    assert (options["nli"], options["nli_models"], str(options["output"])) == made
    assert command("paper-tables").parse(submitted(f"sbatch {line}")[1][1:])["line"] is None


@pytest.mark.parametrize(("text", "offline"), [("a.txt b.tsv", "1"), ("hub:my/text@v1#en:train a.txt", "0")])
def test_several_texts_are_read_and_those_of_the_hub_through_the_network(text, offline, submitted):
    call, texts = f'sbatch --export=ALL,TEXT="{text}",STORE=s,RUN=r configs/slurm', text.split()
    assert submitted(f"{call}/embed.sbatch") == (offline, ["embed", *texts, "--store", "s"])
    assert submitted(f"{call}/embed.sbatch", HF_HUB_OFFLINE="1")[0] == "1"
    found, argv = submitted(f"{call}/train.sbatch")
    assert (found, command("train").parse(argv[1:])["text"].sentences) == (offline, texts)


def test_a_file_may_have_a_blank_in_its_name(submitted, tmp_path):
    (tmp_path / "my text.txt").touch()
    _, argv = submitted('sbatch --export=ALL,TEXT="my text.txt",STORE=s configs/slurm/embed.sbatch --shards 2')
    assert argv == ["embed", "my text.txt", "--store", "s", "--shards", "2"]


def test_python_comes_from_where_it_is_named_and_a_job_without_bertflow_ends_at_once(submitted, tmp_path):
    call = "sbatch --export=ALL,TEXT=a.txt,STORE=s{} configs/slurm/embed.sbatch"
    write_commands(tmp_path / "in", {"container": '[ "$1" = exec ] && shift && echo "in it" >there && exec "$@"\n'})
    assert submitted(call.format(',PYTHON="in/container exec python"'))[1] == ["embed", "a.txt", "--store", "s"]
    assert (tmp_path / "there").exists()
    with pytest.raises(AssertionError, match=r"error: true-python cannot run bertflow\. Activate its environment"):
        submitted(call.format(",PYTHON=true-python"))


@pytest.fixture(scope="module")
def cluster(tiny_bert, tmp_path_factory):
    """A folder with a corpus and with commands that stand for SLURM's; and the environment of a job in it."""
    folder = tmp_path_factory.mktemp("slurm")
    (folder / "text.txt").write_text("\n".join(SENTENCES))
    texts = {
        "scontrol": f'echo "$@" >> {folder}/requeued-$SLURM_JOB_ID\n',
        "srun": f'shift\necho $$ > {folder}/pid-$SLURM_JOB_ID-$SLURM_PROCID\nexec "$@"\n',
        "python": f'exec {sys.executable} "$@"\n',
    }
    commands = write_commands(folder / "bin", texts)
    environment = {
        **os.environ,
        "PATH": f"{commands}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "TEXT": str(folder / "text.txt"),
        "STORE": str(folder / "store"),
        "MODEL": str(tiny_bert),
        "POOLING": "mean(1,2)",
        "SLURM_JOB_NAME": "bertflow-train",
        **{f"SLURM_{name}": "1" for name in ("NTASKS", "NTASKS_PER_NODE", "NNODES", "CPUS_PER_TASK")},
        **{f"SLURM_{name}": "0" for name in ("NODEID", "PROCID", "LOCALID")},
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


def two_ranks(cluster, name, job):
    """Start both tasks of a training."""
    two = {"SLURM_NTASKS": "2", "SLURM_NTASKS_PER_NODE": "2", "MASTER_PORT": str(free_port())}
    return [
        submit(cluster, "train", name, job, *OPTIONS, **two, SLURM_PROCID=str(rank), SLURM_LOCALID=str(rank))
        for rank in range(2)
    ]


def complete(jobs, log):
    """All jobs come to a good end."""
    try:
        codes = [job.wait(timeout=TIMEOUT) for job in jobs]
    finally:
        end(*jobs)
    assert codes == [0] * len(jobs), log.read_text()


def last(folder):
    return torch.load(folder / "checkpoints/last.ckpt", weights_only=True)["state_dict"]


def require_equal(run, other):
    for name, tensor in last(other).items():
        torch.testing.assert_close(last(run)[name], tensor, rtol=0, atol=1e-6)
    assert (run / "metrics.csv").read_bytes() == (other / "metrics.csv").read_bytes()
    assert read_record(run / "run.json", dict)["status"] == "done"


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
        checkpoint = torch.load(run / "checkpoints/hpc_ckpt_2.ckpt", weights_only=True)
        assert 0 < checkpoint["global_step"] < 60 * 8
        os.killpg(job.pid, signal.SIGKILL)
    finally:
        end(job)
    # As it was found: no later checkpoint than the one that was written at the notice.
    (run / "checkpoints/last.ckpt").unlink(missing_ok=True)
    complete([submit(cluster, "train", "noticed", 77, *OPTIONS)], log)
    assert read_record(run / "run.json", dict)["resumed"][0]["step"] == checkpoint["global_step"]
    require_equal(run, whole)
    assert not list(run.glob("checkpoints/hpc_*"))


@pytest.mark.slow
def test_two_ranks_that_get_notice_agree_on_the_step(cluster):
    folder, _ = cluster
    run, log, requeued = folder / "ranks", folder / "ranks.log", folder / "requeued-88"
    jobs = two_ranks(cluster, "ranks", 88)
    try:
        wait_for(lambda: rows(run) > 4, jobs[0], log)
        notify(cluster, 88, rank=1)  # a moment before the other
        time.sleep(0.05)
        notify(cluster, 88, rank=0)
        wait_for(requeued.exists, jobs[0], log)
        wait_for(lambda: list(run.glob("checkpoints/hpc_*")), jobs[0], log)
    finally:
        end(*jobs)
    jobs = two_ranks(cluster, "ranks", 88)
    complete(jobs, log)
    facts = read_record(run / "run.json", dict)
    assert (facts["status"], facts["world_size"]) == ("done", 2)


@pytest.mark.slow
def test_where_another_rank_has_ended_a_run_is_interrupted_and_goes_on(cluster):
    folder, _ = cluster
    run, log = folder / "lost", folder / "lost.log"
    jobs = two_ranks(cluster, "lost", 99)
    try:
        wait_for(lambda: rows(run) > 4, jobs[0], log)
        notify(cluster, 99, rank=1, kind=signal.SIGKILL)
        assert jobs[0].wait(timeout=TIMEOUT) == 1
    finally:
        end(*jobs)
    said = log.read_text()
    assert "note: Another process of this training has ended: " in said
    assert "interrupted: the calibrator is the best state so far" in said
    assert "Internal error" not in said
    assert read_record(run / "run.json", dict)["status"] == "interrupted"
    complete(two_ranks(cluster, "lost", 99), log)
    assert read_record(run / "run.json", dict)["status"] == "done"
