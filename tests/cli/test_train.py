import importlib.util
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml
from numpy.testing import assert_allclose, assert_array_equal

from bertflow.calibrated import CalibratedEncoder
from bertflow.calibration.spelling import load_calibrator
from bertflow.cli import main as bertflow
from bertflow.cli.command import command
from bertflow.data.fitting_text import TextOptions, training_text
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.errors import UsageError
from bertflow.jobs import locked
from bertflow.training.checkpoints import StopAfter
from bertflow.training.recipe import preset_for
from bertflow.training.trainer import build_trainer

from .conftest import SLEEPING as SENTENCES
from .conftest import TRAINING, read_json


def parse_options(*argv):
    return SimpleNamespace(**command("train").parse([*argv]))


def trainer_of(folder, *options, recipe=()):
    """The trainer of a command line with these options."""
    return build_trainer(parse_options(*options, "--trainer.accelerator=cpu").trainer, folder, dict(recipe))


REPOSITORY = Path(__file__).resolve().parents[2]


def options_of(model, folder):
    (folder / "text.txt").write_text("\n".join(SENTENCES), encoding="utf-8")
    given = [f"--encoder.model={model}", f"--data.sentences={folder / 'text.txt'}", f"--output={folder / 'run'}"]
    return [*given, *TRAINING, "--flow.batch_size=16"]


@pytest.fixture
def arguments(tiny_bert, tmp_path):
    return options_of(tiny_bert, tmp_path)


@pytest.fixture(scope="module")
def run(tiny_bert, tmp_path_factory):
    """A finished run: its folder."""
    folder = tmp_path_factory.mktemp("finished")
    assert bertflow(["train", *options_of(tiny_bert, folder), "--flow.epochs=2"]) == 0
    return folder / "run"


def test_the_run_is_a_calibrated_encoder(run, tiny_bert):
    encoder = TransformerEncoder(tiny_bert, "mean(1,2)", device="cpu")
    expected = load_calibrator(run / "calibrator").transform(encoder.encode(SENTENCES[:5]))
    assert_array_equal(CalibratedEncoder.load(run, device="cpu").encode(SENTENCES[:5]), expected)


def test_the_calibrator_knows_its_encoder_and_text(run):
    provenance = load_calibrator(run / "calibrator").provenance
    assert provenance.encoder["pooling"] == "mean(1,2)"
    assert len(provenance.text_hashes) == len(SENTENCES)


def test_checkpoints_hold_the_flow_alone_and_are_safe_to_read(run):
    checkpoint = torch.load(run / "checkpoints/last.ckpt", weights_only=True)
    assert all(name.startswith("flow.") for name in checkpoint["state_dict"])


def test_the_config_of_a_run_makes_the_same_run_again(run, tmp_path, told):
    told("train", "--config", run / "config.yaml", "--output", tmp_path / "again")
    first, second = (load_calibrator(folder / "calibrator").map.state_dict() for folder in (run, tmp_path / "again"))
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())


def test_token_counts_for_sif_come_from_the_text_and_are_kept(arguments, tmp_path, told):
    told("train", *arguments, "--encoder.pooling=sif(2)", "--trainer.max_steps=2")
    expected = TransformerEncoder(arguments[0].split("=")[1], "sif(2)", device="cpu").count_tokens(SENTENCES)
    loaded = CalibratedEncoder.load(tmp_path / "run", device="cpu")
    assert_allclose(loaded.encoder.encode(SENTENCES[:3]), expected.encode(SENTENCES[:3]), atol=1e-6)


def test_the_released_recipe_runs_with_dropout_in_the_loop(arguments, tmp_path, told):
    options = ["--flow.preset=paper-tf", "--flow.glow.levels=2", "--flow.batch_size=64"]
    told("train", *arguments, *options)
    fit = read_json(tmp_path / "run/run.json")["fit"]
    assert fit["dropout"]
    assert fit["steps"] == len(SENTENCES) // 64


@pytest.mark.parametrize(("unit", "n"), [(1, len(SENTENCES)), (2, 2 * len(SENTENCES))])
def test_pairs_of_tasks_come_as_often_as_they_stand_there_and_sentences_once(unit, n, arguments, tmp_path, told):
    pairs = enumerate(zip(SENTENCES[::2], SENTENCES[1::2], strict=True))
    rows = "".join(f"{a}\t{b}\t{k % 5}\n" for k, (a, b) in pairs)
    (tmp_path / "mine.tsv").write_text("sentence1\tsentence2\tscore\n" + rows + rows)
    arguments = [argument for argument in arguments if not argument.startswith("--data.")]
    tasks = ["--data.tasks=mine", f"--data.data_dir={tmp_path}", f"--flow.unit={unit}", "--trainer.max_steps=1"]
    told("train", *arguments, *tasks)
    assert read_json(tmp_path / "run/run.json")["text"]["sentences"] == n


def test_embeddings_may_rest_in_a_store(arguments, tmp_path, run, told):
    stored = [f"--data.store={tmp_path / 'store'}", f"--output={tmp_path / 'stored'}", "--flow.epochs=2"]
    told("train", *arguments, *stored)
    assert (tmp_path / "store/store.json").exists()
    first, second = (read_json(one / "report/fit.json") for one in (run, tmp_path / "stored"))
    assert second["held_out_bits"] == pytest.approx(first["held_out_bits"], rel=1e-4)


def test_a_sample_of_the_text_is_enough_if_asked_for(arguments, tmp_path, told):
    told("train", *arguments, "--data.max_sentences=70", "--trainer.max_steps=1")
    assert read_json(tmp_path / "run/run.json")["text"]["sentences"] == 70


def test_a_sample_of_pairs_is_made_of_pairs(tmp_path):
    pairs = enumerate(zip(SENTENCES[::2], SENTENCES[1::2], strict=True))
    rows = "".join(f"{a}\t{b}\t{k % 5}\n" for k, (a, b) in pairs)
    (tmp_path / "mine.tsv").write_text("sentence1\tsentence2\tscore\n" + rows)
    sample = training_text(TextOptions(tasks="mine", data_dir=str(tmp_path), max_sentences=20), seed=0)
    rows = [SENTENCES.index(sentence) for sentence in sample]
    assert len(rows) == 20
    assert [row + 1 for row in rows[::2]] == rows[1::2]


@pytest.mark.parametrize(
    ("option", "name", "value"),
    [
        ("--trainer.gradient_clip_val=0.5", "gradient_clip_val", 0.5),
        ("--trainer.fast_dev_run=true", "fast_dev_run", True),
    ],
)
def test_trainer_options_come_before_the_recipe(option, name, value, tmp_path):
    recipe = {"max_epochs": 8, "max_steps": -1, "gradient_clip_val": None, "log_every_n_steps": 50}
    assert getattr(trainer_of(tmp_path, option, recipe=recipe), name) == value


def test_a_limit_of_the_users_replaces_all_of_the_recipe(tmp_path):
    trainer = trainer_of(tmp_path, "--trainer.max_steps=500", recipe={"max_epochs": 8, "max_steps": -1})
    assert trainer.max_epochs == -1
    assert [one.steps for one in trainer.callbacks if isinstance(one, StopAfter)] == [500]


def test_callbacks_of_the_users_are_added(tmp_path):
    found = trainer_of(tmp_path, "--trainer.callbacks=LearningRateMonitor").callbacks
    assert {"LearningRateMonitor", "ModelCheckpoint"} <= {type(callback).__name__ for callback in found}


def test_barebones_is_bare(tmp_path):
    assert trainer_of(tmp_path, "--trainer.barebones=true", recipe={"max_epochs": 1, "log_every_n_steps": 9}).barebones


@pytest.mark.skipif(importlib.util.find_spec("wandb") is not None, reason="wandb is installed")
def test_a_logger_whose_package_is_missing_says_how_to_get_it(refusal):
    assert refusal(parse_options, "--trainer.logger=WandbLogger", "--trainer.logger.project=x", error=UsageError) == (
        "An option needs a package that is not installed. Install it with: pip install 'wandb>=0.12.10'"
    )


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ([], ["CSVLogger", "TensorBoardLogger"]),
        (["--trainer.logger=true"], ["CSVLogger", "TensorBoardLogger"]),
        (["--trainer.logger=false"], []),
        (["--trainer.logger=CSVLogger", "--trainer.logger.save_dir=x"], ["CSVLogger", "CSVLogger"]),
    ],
)
def test_metrics_go_to_csv_and_tensorboard_or_to_what_was_asked_for(given, names, tmp_path):
    assert [type(logger).__name__ for logger in trainer_of(tmp_path, *given).loggers] == names


def test_a_progress_bar_of_the_users_takes_the_place_of_ours(tmp_path):
    theirs = trainer_of(tmp_path, "--trainer.callbacks=TQDMProgressBar").progress_bar_callback
    assert type(theirs).__name__ == "TQDMProgressBar"
    ours = build_trainer({"accelerator": "cpu"}, tmp_path, {})
    assert ours.progress_bar_callback is None
    assert "StepCount" in [type(callback).__name__ for callback in ours.callbacks]


CONFIGS = [path for path in sorted((REPOSITORY / "configs").glob("*.yaml")) if "\nflow:" in path.read_text()]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_every_config_can_be_read_and_names_its_preset(path, tmp_path):
    options = parse_options("--config", str(path), "--data.data_dir", str(tmp_path))
    assert preset_for(yaml.safe_load(path.read_text())["flow"]["preset"]) == options.flow.preset


SEE = "`bertflow train --print_config` shows all options with their values."


TOO_LARGE = "it has more than 50 levels, or an alias of a list. Write the list out"
BOMB = "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 9))
CHAIN = "".join(f"a{i}: &a{i} [*a{i - 1}]\n" for i in range(1, 2000))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("flow: " + "[" * 5000 + "]" * 5000, TOO_LARGE),
        ("a0: &a0 [x]\n" + CHAIN + "flow: *a1999", TOO_LARGE),
        ("a0: &a0 [x]\n" + BOMB + "flow: *a8", TOO_LARGE),
        ("flow: &a [*a]", TOO_LARGE),
        ("flow: " + "x" * 2**22, "it has 4,194,310 characters, and 4,194,304 are read at most"),
    ],
    ids=["deep", "deep by aliases", "large by aliases", "endless", "long"],
)
def test_a_config_without_bounds_is_one_line(config, message, tmp_path, refused):
    (tmp_path / "bad.yaml").write_text(config)
    line = refused(2, "train", "--config", tmp_path / "bad.yaml")
    assert line == f"error: The options cannot be read: Problems parsing config: {message}. {SEE}"


def test_a_config_may_have_aliases(tmp_path, told):
    (tmp_path / "good.yaml").write_text("flow:\n  steps: &seven 7\n  epochs: *seven\n")
    assert "epochs: 7.0\n" in told("train", "--config", tmp_path / "good.yaml", "--print_config")


def test_a_folder_that_is_in_use_is_left_alone(arguments, tmp_path, refused):
    (tmp_path / "run").mkdir()
    (tmp_path / "run/mine.txt").write_text("mine")
    choose = "Choose another --output, or continue a run with --resume auto."
    assert refused(2, "train", *arguments) == f"error: Output folder {tmp_path / 'run'} is not empty. {choose}"


def test_two_runs_do_not_share_a_folder(arguments, tmp_path, refused, told):
    with locked(tmp_path / ".run.lock"):  # as a run in another process holds it
        line = refused(2, "train", *arguments)
    refusal = f"Another run writes to {tmp_path / 'run'} now. Wait for its end, or choose another --output."
    assert line == f"error: {refusal}"
    told("train", *arguments, "--flow.epochs=1")
    assert not (tmp_path / ".run.lock").exists()


def test_a_fit_that_diverges_leaves_its_last_good_state(arguments, tmp_path, capsys):
    wild = ["--flow.learning_rate=1e9", "--flow.warmup_steps=0", "--flow.decay=constant", "--flow.linear_rate_share=1"]
    assert bertflow(["train", *arguments, *wild]) == 3
    assert "error: The loss should stay finite, but after " in capsys.readouterr().err
    assert read_json(tmp_path / "run/run.json")["status"] == "diverged"
    assert np.isfinite(CalibratedEncoder.load(tmp_path / "run", device="cpu").encode(SENTENCES[:3])).all()


@pytest.mark.parametrize("stop", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_a_run_that_is_interrupted_leaves_a_usable_folder(stop, arguments, tmp_path):
    command = [sys.executable, str(REPOSITORY / "train.py"), *arguments, "--trainer.max_epochs=100000"]
    heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # a job in the background begins with it ignored
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    process = subprocess.Popen(command, **pipes, preexec_fn=heed)
    metrics, begin = tmp_path / "run/metrics.csv", time.monotonic()
    try:
        while not (metrics.exists() and metrics.stat().st_size) and process.poll() is None:
            assert time.monotonic() - begin < 300, "no step was logged"
            time.sleep(0.1)
        process.send_signal(stop)
        printed, _ = process.communicate(timeout=300)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 1, printed
    assert read_json(tmp_path / "run/run.json")["status"] == "interrupted"
    assert np.isfinite(CalibratedEncoder.load(tmp_path / "run", device="cpu").encode(SENTENCES[:3])).all()
    assert "Traceback" not in printed


@pytest.mark.slow
def test_without_options_it_fits_the_embedded_encoder_to_the_embedded_text(minilm, tmp_path, told):
    options = ["--output", str(tmp_path / "run"), "--data.max_sentences=3000", "--trainer.max_epochs=1"]
    told("train", *options)
    assert read_json(tmp_path / "run/run.json")["describe"]["pooling"] == "mean(1,2)"
