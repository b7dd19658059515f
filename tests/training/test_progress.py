import logging
import re

import pytest
import pytorch_lightning as pl

from bertflow.training.flow_fit import FlowFit, trainer_options
from bertflow.training.recipe import resolve
from bertflow.training.trainer import StepCount

RECIPE = resolve("default", {"batch_size": 64, "glow": {"hidden": 8}, "epochs": 2})  # 2 x 22 steps


def fit(embeddings, tmp_path, bar, resume=None, **options):
    fit = FlowFit(embeddings, RECIPE)
    quiet = {"enable_model_summary": False, "accelerator": "cpu", "logger": False, "default_root_dir": tmp_path}
    quiet["enable_progress_bar"] = False
    fit.run(pl.Trainer(**{**quiet, **trainer_options(fit.recipe, len(fit.x)), "callbacks": [bar], **options}), resume)


@pytest.mark.parametrize("watched", [False, True])
def test_the_bar_counts_the_steps_of_the_whole_run_where_somebody_looks(
    watched, embeddings, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr("bertflow.progress.watched", lambda: watched)
    monkeypatch.setattr("bertflow.progress.DELAY", 0.0)
    fit(embeddings, tmp_path, StepCount(), enable_checkpointing=False)
    said = capsys.readouterr().err.replace("\r", "\n").strip()
    assert bool(re.search(r"44/44 \[.*<00:00", said)) == watched
    assert bool(said) == watched


def test_the_log_of_a_job_gets_a_line_now_and_then(embeddings, tmp_path, monkeypatch, caplog):
    caplog.set_level(logging.INFO, "bertflow")
    monkeypatch.setattr("bertflow.progress.EVERY", 0.0)
    fit(embeddings, tmp_path, StepCount(), enable_checkpointing=False)
    said = [message for message in caplog.messages if message.startswith("training: ")]
    assert len(said) == 44
    assert said[-1].startswith("training: 44 of 44 steps, ")
