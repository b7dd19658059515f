"""A run that was stopped and resumed against one that was not: the same weights, the same metrics.csv, byte by byte."""

import csv
from pathlib import Path

import pytest
import pytorch_lightning as pl
import torch
from torch.testing import assert_close

from bertflow.calibration.spelling import load_calibrator
from bertflow.cli import main as bertflow
from bertflow.geometry import inspecting
from bertflow.records import read_record
from bertflow.runs import folder as run_folder
from bertflow.training import trainer as train_trainer

from .conftest import SLEEPING as SENTENCES
from .conftest import TRAINING

EPOCH, EPOCHS = 8, 3  # 16 of 144 sentences are held out, 16 are a batch


class KilledError(BaseException):
    """What kill -9 leaves no time for is not looked at by these tests."""


class KillAt(pl.Callback):
    """Ends a training before the next step; with half a step more, before the validation that follows the step."""

    def __init__(self, step):
        self.step = step

    def on_train_batch_start(self, trainer, pl_module, batch, batch_idx):
        if trainer.global_step == self.step:
            raise KilledError

    def on_validation_start(self, trainer, pl_module):
        if trainer.global_step == self.step + 0.5:
            raise KilledError


@pytest.fixture(scope="module")
def options(tiny_bert, tmp_path_factory):
    text = tmp_path_factory.mktemp("text") / "text.txt"
    text.write_text("\n".join(SENTENCES))
    given = [f"--encoder.model={tiny_bert}", f"--data.sentences={text}", f"--flow.epochs={EPOCHS}"]
    return [*given, *TRAINING, "--trainer.log_every_n_steps=3", "--flow.batch_size=16"]


@pytest.fixture(scope="module")
def whole(options, tmp_path_factory):
    """The folder of a run that was not stopped."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    assert bertflow(["train", *options, f"--output={folder}", "--resume=auto"]) == 0
    return folder


@pytest.fixture
def stopped(options, monkeypatch):
    """Run to a step and no further; returns what to call again, and the run folder."""

    def stop(step, every=train_trainer.CHECKPOINT_STEPS):
        command, build = ["train", *options, "--output=run"], train_trainer.build_trainer
        monkeypatch.setattr(train_trainer, "CHECKPOINT_STEPS", every)
        with monkeypatch.context() as patched:
            killed = {"callbacks": [KillAt(step)]}
            patched.setattr(run_folder, "build_trainer", lambda given, *more: build({**given, **killed}, *more))
            with pytest.raises(KilledError):
                bertflow(command)
        return command, Path("run")

    return stop


def require_equal_runs(run, whole, rtol=0.0, atol=0.0):
    flows = [load_calibrator(folder / "calibrator").map.state_dict() for folder in (run, whole)]
    for name, tensor in flows[1].items():
        assert_close(flows[0][name], tensor, rtol=rtol, atol=atol)
    states = [torch.load(folder / "checkpoints/last.ckpt", weights_only=True) for folder in (run, whole)]
    assert states[0]["global_step"] == states[1]["global_step"] == EPOCH * EPOCHS
    for name, tensor in states[1]["state_dict"].items():
        assert_close(states[0]["state_dict"][name], tensor, rtol=rtol, atol=atol)
    assert read_record(run / "run.json", dict)["status"] == "done"


STOPS = [
    (3, 1000, 0),  # before any checkpoint
    (8, 1000, 8),  # between two epochs
    (7, 5, 5),  # in the middle of an epoch
    (7.5, 3, 6),  # before the validation at the end of the epoch
]


@pytest.mark.parametrize(("step", "every", "resumed"), STOPS)
def test_a_run_that_was_stopped_comes_to_the_same_end(step, every, resumed, stopped, whole, told):
    command, run = stopped(step, every)
    told(*command, "--resume=auto")
    require_equal_runs(run, whole)
    assert (run / "metrics.csv").read_bytes() == (whole / "metrics.csv").read_bytes()
    facts, expected = read_record(run / "run.json", dict), read_record(whole / "run.json", dict)["fit"]
    assert [resumption["step"] for resumption in facts["resumed"]] == [resumed]
    assert facts["fit"] == expected | {"seconds": facts["fit"]["seconds"]}


def test_metrics_can_be_seen_in_tensorboard(whole):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(whole / "tensorboard"))
    events.Reload()
    rows = list(csv.DictReader((whole / "metrics.csv").read_text().splitlines()))
    expected = [(int(row["step"]), float(row["val/bits_per_dim"])) for row in rows if row["val/bits_per_dim"]]
    assert [(event.step, pytest.approx(event.value)) for event in events.Scalars("val/bits_per_dim")] == expected


def test_a_run_that_is_done_says_so_and_is_left_alone(whole, options, told):
    before = {path: path.stat().st_mtime_ns for path in whole.rglob("*")}
    assert told("train", *options, f"--output={whole}", "--resume=auto") == (
        f"The run in {whole} is done: there is nothing to resume. For another one, choose another --output.\n"
    )
    assert {path: path.stat().st_mtime_ns for path in whole.rglob("*")} == before


@pytest.mark.parametrize(
    ("name", "then", "now"), [("flow.learning_rate", "0.001", "0.5"), ("trainer.max_steps", "-1", "5")]
)
def test_a_run_with_other_options_is_refused(name, then, now, whole, options, refused):
    assert refused(2, "train", *options, f"--output={whole}", "--resume=auto", f"--{name}={now}") == (
        f"error: The run in {whole} was made with {name}={then}, but now it is {now}. "
        f"Give the options of {whole / 'config.yaml'}, or choose another --output."
    )


@pytest.mark.parametrize("given", ["--encoder.device=cpu", "--trainer.devices=1", "--data.store={}/store"])
def test_where_a_run_goes_on_may_differ(given, stopped, whole, told):
    command, run = stopped(9)
    told(*command, "--resume=auto", given.format("."))
    require_equal_runs(run, whole, atol=1e-6)


@pytest.mark.parametrize(
    ("other", "made"),
    [
        (SENTENCES[:-1], "with text.sentences 144, but now it is 143"),
        ([*SENTENCES[:-1], "a cat sings in the big red dog"], "of other sentences, as many"),
        ([SENTENCES[0].upper(), *SENTENCES[1:]], "of these sentences in another spelling"),
    ],
    ids=["fewer", "others", "spelling"],
)
def test_text_that_changed_behind_the_same_options_is_refused(stopped, options, error_line, other, made):
    command, run = stopped(9)
    text = Path(options[1].split("=")[1])
    text.write_text("\n".join(other))
    code = bertflow([*command, "--resume=auto"])
    text.write_text("\n".join(SENTENCES))
    assert error_line(code, 3) == (
        f"error: The run in {run} was made {made}. Use what it was made from, or choose another --output."
    )


def test_a_checkpoint_may_be_continued_in_a_folder_of_its_own(stopped, whole, told):
    command, run = stopped(17)
    fork = Path("fork")
    told(*command, f"--output={fork}", f"--resume={run / 'checkpoints' / 'last.ckpt'}")
    require_equal_runs(fork, whole)
    assert (fork / "metrics.csv").read_bytes() == (whole / "metrics.csv").read_bytes()
    assert read_record(run / "run.json", dict)["status"] == "failed"


def test_the_run_of_a_checkpoint_is_the_output_if_none_is_given(stopped, whole, options, told):
    _, run = stopped(17)
    told("train", *options, f"--resume={run / 'checkpoints' / 'last.ckpt'}")
    require_equal_runs(run, whole)


def test_what_was_begun_and_no_further_is_begun_again(whole, options, told):
    Path("run").mkdir()
    Path("run/.run.json.x1").write_text((whole / "run.json").read_text()[:9])
    told("train", *options, "--output=run", "--resume=auto")
    require_equal_runs(Path("run"), whole)


def test_half_written_files_of_a_killed_run_are_cleared_away(stopped, told):
    command, run = stopped(9)
    (run / ".encoder.0123abcd").mkdir()
    (run / "checkpoints/.last.ckpt.0123abcd").write_text("half")
    told(*command, "--resume=auto")
    assert not [path for path in run.rglob(".*") if path.name != ".gitignore"]


def test_a_report_that_was_not_written_yet_is_written_by_the_next_call(options, monkeypatch, told):
    command, written = ["train", *options, "--report=true", "--output=run"], []

    def killed(*_, **options):
        raise KilledError

    monkeypatch.setattr(inspecting, "write_report", killed)
    with pytest.raises(KilledError):
        bertflow(command)
    monkeypatch.setattr(inspecting, "write_report", lambda folder, *_, **options: written.append(folder))
    told(*command, "--resume=auto")
    assert written == [Path("run/report")]


def test_a_damaged_checkpoint_is_one_line(stopped, refused):
    command, run = stopped(9)
    path = run / "checkpoints/last.ckpt"
    path.write_bytes(path.read_bytes()[:1000])
    line = refused(3, *command, "--resume=auto")
    assert line.startswith(f"error: {path} should be a checkpoint to go on from, but cannot be read: ")
    assert line.endswith(" Delete it to go on from an older one.")


NOT_RESUMED = {
    "auto": "--resume auto continues the run in --output, but none was given. Give --output DIR.",
    "{}/none.ckpt": "The checkpoint {}/none.ckpt is missing. Give one of a run's checkpoints/, or auto.",
    "{}/a/b.ckpt": "A checkpoint to go on from is in checkpoints/ of a run folder, but {} has no run.json. Give one "
    "that does.",
}


@pytest.mark.parametrize(("given", "message"), NOT_RESUMED.items())
def test_what_cannot_be_resumed_is_one_line(given, message, options, tmp_path, capsys):
    Path("a").mkdir()
    Path("a/b.ckpt").write_text("")
    assert bertflow(["train", *options, f"--resume={given.format(tmp_path)}"]) == (2 if given == "auto" else 3)
    assert capsys.readouterr().err == f"error: {message.format(tmp_path)}\n"
