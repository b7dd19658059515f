import io
import re

import pytest
import pytorch_lightning as pl
from rich.console import Console

from bertflow.training import progress
from bertflow.training.fit import FlowFit
from bertflow.training.presets import resolve

RECIPE = resolve("default", {"batch_size": 64, "glow": {"hidden": 8}, "epochs": 2})  # 2 x 22 steps


@pytest.fixture
def screen(monkeypatch):
    """What is shown."""
    shown = io.StringIO()
    monkeypatch.setattr(progress, "Console", lambda stderr: Console(file=shown, force_terminal=True, width=200))
    return shown


def fit(embeddings, tmp_path, bar, resume=None, **options):
    fit = FlowFit(embeddings, RECIPE)
    quiet = {"enable_model_summary": False, "accelerator": "cpu", "logger": False, "default_root_dir": tmp_path}
    fit.run(pl.Trainer(**{**quiet, **fit.trainer_options(), "callbacks": [bar], **options}), resume)


def test_the_bar_counts_the_steps_of_the_whole_run_and_says_how_long_it_takes(embeddings, tmp_path, screen):
    bar = progress.WholeRunBar()
    bar.enable()
    fit(embeddings, tmp_path, bar, enable_checkpointing=False)
    last = re.sub(r"\x1b\[[^a-zA-Z]*[a-zA-Z]", "", screen.getvalue()).replace("\r", "\n").strip().splitlines()[-1]
    assert re.search(r"44/44 .* left 0:00:00 held out -?\d+\.\d{4} bits per dimension", last)


def test_nothing_is_shown_where_nobody_looks(embeddings, tmp_path, screen):
    fit(embeddings, tmp_path, progress.WholeRunBar(), enable_checkpointing=False)
    assert not screen.getvalue().strip()
