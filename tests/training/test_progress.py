import logging
import re

import pytorch_lightning as pl

from bertflow.training.fitting import FlowFit, trainer_options
from bertflow.training.recipe import resolve
from bertflow.training.trainer import WholeRunBar

RECIPE = resolve("default", {"batch_size": 64, "glow": {"hidden": 8}, "epochs": 2})  # 2 x 22 steps


def fit(embeddings, tmp_path, bar, resume=None, **options):
    fit = FlowFit(embeddings, RECIPE)
    quiet = {"enable_model_summary": False, "accelerator": "cpu", "logger": False, "default_root_dir": tmp_path}
    fit.run(pl.Trainer(**{**quiet, **trainer_options(fit.recipe, len(fit.x)), "callbacks": [bar], **options}), resume)


def test_the_bar_counts_the_steps_of_the_whole_run_and_says_how_long_it_takes(embeddings, tmp_path, capsys):
    bar = WholeRunBar()
    bar.enable()
    fit(embeddings, tmp_path, bar, enable_checkpointing=False)
    last = capsys.readouterr().err.replace("\r", "\n").strip().splitlines()[-1]
    assert re.search(r"44/44 \[.*<00:00,.* held out -?\d+\.\d{4} bits per dimension\]", last)


def test_nothing_is_shown_where_nobody_looks(embeddings, tmp_path, capsys):
    fit(embeddings, tmp_path, WholeRunBar(), enable_checkpointing=False)
    assert not capsys.readouterr().err.strip()


def test_the_log_of_a_job_gets_a_line_now_and_then(embeddings, tmp_path, monkeypatch, caplog):
    caplog.set_level(logging.INFO, "bertflow")
    monkeypatch.setattr("bertflow.progress.EVERY", 0.0)
    fit(embeddings, tmp_path, WholeRunBar(), enable_checkpointing=False)
    said = [message for message in caplog.messages if message.startswith("training: ")]
    assert len(said) == 44
    assert said[-1].startswith("training: 44 of 44 steps, ")
