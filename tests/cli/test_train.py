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
from bertflow.errors import UsageError
from bertflow.jobs import locked
from bertflow.training.checkpoints import StopAfter
from bertflow.training.recipe import preset_for
from bertflow.training.trainer import build_trainer

from ..encoder.conftest import make
from .conftest import ROOT, SCORED, TRAINING, read_json, write_table
from .conftest import SLEEPING as SENTENCES


def parse_options(*argv):
    return SimpleNamespace(**command("train").parse([*argv]))


def trainer_of(*options, recipe=()):
    """The trainer of a command line with these options."""
    return build_trainer(parse_options(*options, "--trainer.accelerator=cpu").trainer, Path(), dict(recipe))


def options_of(model, folder):
    (folder / "text.txt").write_text("\n".join(SENTENCES))
    given = [f"--encoder.model={model}", f"--data.sentences={folder / 'text.txt'}", f"--output={folder / 'run'}"]
    return ["train", *given, *TRAINING, "--flow.batch_size=16"]


@pytest.fixture
def arguments(tiny_bert):
    return options_of(tiny_bert, Path())


@pytest.fixture(scope="module")
def run(tiny_bert, tmp_path_factory):
    """A finished run: its folder."""
    folder = tmp_path_factory.mktemp("finished")
    assert bertflow([*options_of(tiny_bert, folder), "--flow.epochs=2"]) == 0
    return folder / "run"


def test_the_run_is_a_calibrated_encoder(run, tiny_bert):
    encoder = make(tiny_bert, "mean(1,2)")
    expected = load_calibrator(run / "calibrator").transform(encoder.encode(SENTENCES[:5]))
    assert_array_equal(CalibratedEncoder.load(run, device="cpu").encode(SENTENCES[:5]), expected)


def test_the_calibrator_knows_its_encoder_and_text(run):
    provenance = load_calibrator(run / "calibrator").provenance
    assert provenance.encoder["pooling"] == "mean(1,2)"
    assert len(provenance.text_hashes) == len(SENTENCES)


def test_checkpoints_hold_the_flow_alone_and_are_safe_to_read(run):
    checkpoint = torch.load(run / "checkpoints/last.ckpt", weights_only=True)
    assert all(name.startswith("flow.") for name in checkpoint["state_dict"])


def test_the_config_of_a_run_makes_the_same_run_again(run, told):
    told("train", "--config", run / "config.yaml", "--output", "again")
    first, second = (load_calibrator(folder / "calibrator").map.state_dict() for folder in (run, Path("again")))
    assert all(torch.equal(tensor, second[name]) for name, tensor in first.items())


def test_token_counts_for_sif_come_from_the_text_and_are_kept(trained, tiny_bert):
    trained("--encoder.pooling=sif(2)", "--trainer.max_steps=2")
    expected = make(tiny_bert, "sif(2)").count_tokens(SENTENCES)
    loaded = CalibratedEncoder.load("run", device="cpu")
    assert_allclose(loaded.encoder.encode(SENTENCES[:3]), expected.encode(SENTENCES[:3]), atol=1e-6)


def test_the_released_recipe_runs_with_dropout_in_the_loop(trained):
    fit = trained("--flow.preset=paper-tf", "--flow.glow.levels=2", "--flow.batch_size=64")["fit"]
    assert fit["dropout"]
    assert fit["steps"] == len(SENTENCES) // 64


ROWS = [(a, b, k % 5) for k, (a, b) in enumerate(zip(SENTENCES[::2], SENTENCES[1::2], strict=True))]


@pytest.mark.parametrize(("unit", "n"), [(1, len(SENTENCES)), (2, 2 * len(SENTENCES))])
def test_pairs_of_tasks_come_as_often_as_they_stand_there_and_sentences_once(unit, n, arguments, told):
    write_table("mine.tsv", SCORED, ROWS + ROWS)
    arguments = [argument for argument in arguments if not argument.startswith("--data.")]
    tasks = ["--data.tasks=mine", "--data.data_dir=.", f"--flow.unit={unit}", "--trainer.max_steps=1"]
    told(*arguments, *tasks)
    assert read_json("run/run.json")["text"]["sentences"] == n


def test_embeddings_may_rest_in_a_store(arguments, run, told):
    stored = ["--data.store=store", "--output=stored", "--flow.epochs=2"]
    told(*arguments, *stored)
    assert Path("store/store.json").exists()
    first, second = (read_json(one / "report/fit.json") for one in (run, Path("stored")))
    assert second["held_out_bits"] == pytest.approx(first["held_out_bits"], rel=1e-4)


def test_a_sample_of_the_text_is_enough_if_asked_for(trained):
    assert trained("--data.max_sentences=70", "--trainer.max_steps=1")["text"]["sentences"] == 70


def test_a_sample_of_pairs_is_made_of_pairs():
    write_table("mine.tsv", SCORED, ROWS)
    sample = training_text(TextOptions(tasks="mine", data_dir=".", max_sentences=20), seed=0)
    rows = [SENTENCES.index(sentence) for sentence in sample]
    assert len(rows) == 20
    assert [row + 1 for row in rows[::2]] == rows[1::2]


@pytest.mark.parametrize(("option", "value"), [("gradient_clip_val=0.5", 0.5), ("fast_dev_run=true", True)])
def test_trainer_options_come_before_the_recipe(option, value):
    recipe = {"max_epochs": 8, "max_steps": -1, "gradient_clip_val": None, "log_every_n_steps": 50}
    assert getattr(trainer_of(f"--trainer.{option}", recipe=recipe), option.partition("=")[0]) == value


def test_a_limit_of_the_users_replaces_all_of_the_recipe():
    trainer = trainer_of("--trainer.max_steps=500", recipe={"max_epochs": 8, "max_steps": -1})
    assert trainer.max_epochs == -1
    assert [one.steps for one in trainer.callbacks if isinstance(one, StopAfter)] == [500]


def test_callbacks_of_the_users_are_added():
    found = trainer_of("--trainer.callbacks=LearningRateMonitor").callbacks
    assert {"LearningRateMonitor", "ModelCheckpoint"} <= {type(callback).__name__ for callback in found}


def test_barebones_is_bare():
    assert trainer_of("--trainer.barebones=true", recipe={"max_epochs": 1, "log_every_n_steps": 9}).barebones


@pytest.mark.skipif(importlib.util.find_spec("wandb") is not None, reason="wandb is installed")
def test_a_logger_whose_package_is_missing_says_how_to_get_it(refusal):
    said = refusal(parse_options, "--trainer.logger=WandbLogger", "--trainer.logger.project=x", error=UsageError)
    assert said == "An option needs a package that is not installed. Install it with: pip install 'wandb>=0.12.10'"


LOGGERS = [
    ([], ["CSVLogger", "TensorBoardLogger"]),
    (["--trainer.logger=true"], ["CSVLogger", "TensorBoardLogger"]),
    (["--trainer.logger=false"], []),
    (["--trainer.logger=CSVLogger", "--trainer.logger.save_dir=x"], ["CSVLogger", "CSVLogger"]),
]


@pytest.mark.parametrize(("given", "names"), LOGGERS)
def test_metrics_go_to_csv_and_tensorboard_or_to_what_was_asked_for(given, names):
    assert [type(logger).__name__ for logger in trainer_of(*given).loggers] == names


def test_a_progress_bar_of_the_users_takes_the_place_of_ours():
    theirs = trainer_of("--trainer.callbacks=TQDMProgressBar").progress_bar_callback
    assert type(theirs).__name__ == "TQDMProgressBar"
    ours = build_trainer({"accelerator": "cpu"}, Path(), {})
    assert ours.progress_bar_callback is None
    assert "StepCount" in [type(callback).__name__ for callback in ours.callbacks]


CONFIGS = [path for path in sorted((ROOT / "configs").glob("*.yaml")) if "\nflow:" in path.read_text()]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.name)
def test_every_config_can_be_read_and_names_its_preset(path):
    options = parse_options("--config", str(path), "--data.data_dir", ".")
    assert preset_for(yaml.safe_load(path.read_text())["flow"]["preset"]) == options.flow.preset


SEE = "`bertflow train --print_config` shows all options with their values."
TOO_LARGE = "it has more than 50 levels, or an alias of a list. Write the list out"
BOMB = "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 9))
CHAIN = "".join(f"a{i}: &a{i} [*a{i - 1}]\n" for i in range(1, 2000))


WITHOUT_BOUNDS = {
    "deep": ("flow: " + "[" * 5000 + "]" * 5000, TOO_LARGE),
    "deep by aliases": ("a0: &a0 [x]\n" + CHAIN + "flow: *a1999", TOO_LARGE),
    "large by aliases": ("a0: &a0 [x]\n" + BOMB + "flow: *a8", TOO_LARGE),
    "endless": ("flow: &a [*a]", TOO_LARGE),
    "long": ("flow: " + "x" * 2**22, "it has 4,194,310 characters, and 4,194,304 are read at most"),
}


@pytest.mark.parametrize(("config", "message"), WITHOUT_BOUNDS.values(), ids=WITHOUT_BOUNDS)
def test_a_config_without_bounds_is_one_line(config, message, refused):
    Path("bad.yaml").write_text(config)
    line = refused(2, "train", "--config", "bad.yaml")
    assert line == f"error: The options cannot be read: Problems parsing config: {message}. {SEE}"


def test_a_config_may_have_aliases(told):
    Path("good.yaml").write_text("flow:\n  steps: &seven 7\n  epochs: *seven\n")
    assert "epochs: 7.0\n" in told("train", "--config", "good.yaml", "--print_config")


def test_a_folder_that_is_in_use_is_left_alone(arguments, refused):
    Path("run").mkdir()
    Path("run/mine.txt").write_text("mine")
    choose = "Choose another --output, or continue a run with --resume auto."
    assert refused(2, *arguments) == f"error: Output folder run is not empty. {choose}"


def test_two_runs_do_not_share_a_folder(arguments, refused, told):
    with locked(Path(".run.lock")):  # as a run in another process holds it
        line = refused(2, *arguments)
    refusal = "Another run writes to run now. Wait for its end, or choose another --output."
    assert line == f"error: {refusal}"
    told(*arguments, "--flow.epochs=1")
    assert not Path(".run.lock").exists()


def test_a_fit_that_diverges_leaves_its_last_good_state(arguments, capsys):
    wild = ["--flow.learning_rate=1e9", "--flow.warmup_steps=0", "--flow.decay=constant", "--flow.linear_rate_share=1"]
    assert bertflow([*arguments, *wild]) == 3
    assert "error: The loss should stay finite, but after " in capsys.readouterr().err
    assert read_json("run/run.json")["status"] == "diverged"
    assert np.isfinite(CalibratedEncoder.load("run", device="cpu").encode(SENTENCES[:3])).all()


@pytest.mark.parametrize("stop", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_a_run_that_is_interrupted_leaves_a_usable_folder(stop, arguments):
    command = [sys.executable, str(ROOT / "train.py"), *arguments[1:], "--trainer.max_epochs=100000"]
    heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # a job in the background begins with it ignored
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    process = subprocess.Popen(command, **pipes, preexec_fn=heed)
    metrics, begin = Path("run/metrics.csv"), time.monotonic()
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
    assert read_json("run/run.json")["status"] == "interrupted"
    assert np.isfinite(CalibratedEncoder.load("run", device="cpu").encode(SENTENCES[:3])).all()
    assert "Traceback" not in printed


@pytest.mark.slow
def test_without_options_it_fits_the_embedded_encoder_to_the_embedded_text(minilm, told):
    options = ["--output", "run", "--data.max_sentences=3000", "--trainer.max_epochs=1"]
    told("train", *options)
    assert read_json("run/run.json")["describe"]["pooling"] == "mean(1,2)"
