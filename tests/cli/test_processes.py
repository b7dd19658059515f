"""Real processes: signals in the middle of a write, a full file system, closed pipes.

Each test starts Python anew, so all of them are slow.
"""

import signal
import subprocess
import sys

import pytest

from bertflow.calibration.spelling import load_calibrator
from bertflow.cli import main
from bertflow.opening import load

pytestmark = pytest.mark.slow
JOBS = {
    "fit": "fit --vectors x.npy --calibrator whitening(4) --output out/new",
    "export": "export BERT --target sentence-transformers --output out/new",
}
OPENED = {"fit": load_calibrator, "export": load}
"""What opens the result of a job, or refuses half of one."""
# A process that was started in the background ignores Ctrl-C, and so do its children: they set the handler themselves.
BEGIN = """
import os, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)
import sentence_transformers, bertflow.export.targets, bertflow.runs.sources
from bertflow.cli import main
"""
HELD = """
def held(number):
    print("writing", flush=True)
    time.sleep(60)
os.fsync = held
sys.exit(main(sys.argv[1:]))
"""
EXIT = {signal.SIGINT: 1, signal.SIGTERM: 1, signal.SIGKILL: -signal.SIGKILL}


def started(job):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    process = subprocess.Popen([sys.executable, "-c", BEGIN + HELD, *JOBS[job].split()], **pipes)
    assert process.stdout.readline() == "writing\n"
    return process


@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize("number", EXIT, ids=lambda number: number.name)
def test_a_signal_in_the_middle_of_a_write_leaves_nothing_half_written(job, number, place):
    with started(job) as process:
        process.send_signal(number)
        process.stdin.close()
        error = process.stderr.read()
    assert process.returncode == EXIT[number]
    if number != signal.SIGKILL:
        assert error.splitlines()[-1] == "interrupted"
        assert not list((place / "out").iterdir())
    assert not (place / "out" / "new").exists()
    assert main(JOBS[job].split()) == 0
    OPENED[job](place / "out" / "new")
    assert [path.name for path in (place / "out").iterdir()] == ["new"], "what the dead left is removed"


@pytest.fixture
def small_disk(tmp_path):
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16k", "none", str(folder)], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip("only the superuser may mount a file system")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


FULL = {
    **JOBS,
    "embed": "embed text.txt --model BERT --store out/new --device cpu",
    "transform": "transform --vectors x.npy --calibrator fitted --output out/new.npy",
    "search build": "search build out/new --answers answers.tsv --model BERT --device cpu",
    "score": "score BERT labels.tsv --fit_on text.txt --save out/new --device cpu",
}


@pytest.mark.parametrize("job", FULL)
def test_a_file_system_that_is_full_is_one_line_and_leaves_nothing_half_written(job, place, small_disk, error_line):
    (small_disk / "others").write_bytes(bytes(12000))
    line = error_line(main(FULL[job].replace("out/", f"{small_disk}/").split()), 3)
    assert any(part in line for part in ("No space left", "disk is full", "are free there", "disk I/O", "No space"))
    assert [path.name for path in small_disk.rglob("*") if path.is_file()] == ["others"]


@pytest.mark.parametrize(
    ("end", "code", "said"), [("| true", 0, ""), ("> /dev/full", 3, "No space left on device"), (">&-", 0, "")]
)
def test_output_that_nobody_takes(end, code, said, place):
    command = f"{sys.executable} -m bertflow tokens dog --model BERT {end}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (code, 1 + bool(said)), "what is done, then what went wrong"
    assert said in done.stderr
