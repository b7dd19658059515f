"""Real processes: signals in the middle of a write, a full file system, closed pipes.

Each test starts Python anew, so all of them are slow.
"""

import signal
import subprocess
import sys

import pytest

from bertflow.calibration.spelling import load_calibrator
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
def test_a_signal_in_the_middle_of_a_write_leaves_nothing_half_written(job, number, place, told):
    with started(job) as process:
        process.send_signal(number)
        process.stdin.close()
        error = process.stderr.read()
    assert process.returncode == EXIT[number]
    if number != signal.SIGKILL:
        assert error.splitlines()[-1] == "interrupted"
        assert not list((place / "out").iterdir())
    assert not (place / "out/new").exists()
    told(*JOBS[job].split())
    OPENED[job](place / "out/new")
    assert [path.name for path in (place / "out").iterdir()] == ["new"], "what the dead left is removed"


@pytest.mark.parametrize(
    ("end", "code", "said"), [("| true", 0, ""), ("> /dev/full", 3, "No space left on device"), (">&-", 0, "")]
)
def test_output_that_nobody_takes(end, code, said, place):
    command = f"{sys.executable} -m bertflow tokens dog --model BERT {end}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert (done.returncode, done.stderr.count("\n")) == (code, 1 + bool(said)), "what is done, then what went wrong"
    assert said in done.stderr
