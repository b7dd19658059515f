"""``bertflow.train`` and ``bertflow.finetune`` from Python."""

import dataclasses
import json
import re

import numpy as np
import pytest
import pytorch_lightning as pl

import bertflow
from bertflow.cli import main
from bertflow.cli.command import command
from bertflow.data.pairs import load_pairs
from bertflow.finetuning import FinetuneRecipe
from bertflow.flow import GlowConfig
from bertflow.training.recipe import Recipe

from ..texts import NOUNS

SENTENCES = [f"the {a} {b} sleeps in the {c} ." for a in ("big", "small", "red", "green") for b in NOUNS for c in NOUNS]
FLOW = {"batch_size": 16, "epochs": 1, "glow": {"hidden": 8}}
TRAINER = {"accelerator": "cpu", "enable_progress_bar": False}


@pytest.fixture
def encoder(tiny_bert):
    return bertflow.TransformerEncoder(tiny_bert, "mean(1,2)", device="cpu")


@pytest.fixture
def run(encoder, tmp_path):
    return bertflow.train(encoder, SENTENCES, FLOW, TRAINER, output=tmp_path / "run", report=False)


def test_a_run_gives_its_encoder_and_its_figures(run, tmp_path):
    again = bertflow.CalibratedEncoder.load(tmp_path / "run", device="cpu")
    np.testing.assert_array_equal(run.encoder.encode(SENTENCES[:5]), again.encode(SENTENCES[:5]))
    assert run.calibrator.provenance.encoder["pooling"] == "mean(1,2)"
    assert (run.status, run.record.steps, run.record.n_train) == ("done", 8, 128)
    assert json.loads(run.to_json())["fit"]["steps"] == 8
    assert run.to_markdown().startswith("# Fit of a flow")
    assert repr(run) == f"<FlowRun: done, {tmp_path / 'run'}>"
    assert {path.name for path in run.save(tmp_path / "kept").iterdir()} == {"flow_run.json", "flow_run.md"}


def test_an_encoder_and_its_name_train_the_same_flow(run, tiny_bert, tmp_path):
    (tmp_path / "text.txt").write_text("\n".join(SENTENCES))
    options = {"model": str(tiny_bert), "pooling": "mean(1,2)", "device": "cpu"}
    named = bertflow.train(options, tmp_path / "text.txt", FLOW, TRAINER, output=tmp_path / "named", report=False)
    np.testing.assert_array_equal(named.encoder.encode(SENTENCES[:5]), run.encoder.encode(SENTENCES[:5]))


def test_the_command_and_the_function_write_the_same_options(tiny_bert, tmp_path):
    (tmp_path / "text.txt").write_text("\n".join(SENTENCES))
    options = {"model": str(tiny_bert), "pooling": "mean(1,2)", "device": "cpu"}
    folder = tmp_path / "run"
    bertflow.train(options, tmp_path / "text.txt", FLOW, TRAINER, output=folder, report=False)
    assert main(["train", "--config", str(folder / "config.yaml"), "--output", str(folder), "--resume", "auto"]) == 0


def test_a_run_that_is_done_is_opened(run, encoder, tmp_path):
    again = bertflow.train(encoder, SENTENCES, FLOW, TRAINER, tmp_path / "run", resume="auto", report=False)
    assert list(again.parts()) == [
        f"The run in {tmp_path / 'run'} is done: there is nothing to resume. For another one, choose another --output."
    ]
    assert again.record == run.record
    assert again.encoder.dim == run.encoder.dim


def test_a_preset_can_be_named(encoder, tmp_path):
    run = bertflow.train(encoder, SENTENCES, "paper-text", TRAINER, output=tmp_path / "run", report=False)
    assert run.record.preset == "paper-text"


def test_an_encoder_is_fine_tuned_on_a_file_of_pairs(tiny_bert, tmp_path):
    rows = [f"the {a} {noun} sleeps .\ta {noun}\t{a}" for a in ("big", "small") for noun in NOUNS] * 4
    (tmp_path / "pairs.tsv").write_text("premise\thypothesis\tlabel\n" + "\n".join(rows))
    said = []
    run = bertflow.finetune(
        bertflow.TransformerEncoder(tiny_bert, "mean(2)", device="cpu"),
        load_pairs(tmp_path / "pairs.tsv", "classes", classes=["big", "small"]),
        {"held_out": 0.25},
        TRAINER,
        output=tmp_path / "run",
        say=said.append,
    )
    assert run.encoder.describe()["labels"] == ["pairs"]
    assert (run.record["steps"], run.record["pairs"], said[1]) == (2, 36, "pairs     36 to train on, 12 held out")
    assert json.loads(run.to_json())["fit"] == run.record
    held_out = next(part for part in run.parts() if part.startswith("held out"))
    assert re.fullmatch(r"held out  12 pairs: loss \S+, right \S+ \(fewer than 100 pairs say little\)", held_out)


@pytest.mark.parametrize(
    ("name", "names"),
    [
        ("train", [f"flow.{one.name}" for one in dataclasses.fields(Recipe) if one.name != "glow"]),
        ("train", [f"flow.glow.{one.name}" for one in dataclasses.fields(GlowConfig)]),
        ("train", ["data.sentences", "encoder.model", "trainer.OPTION", "output", "resume", "seed_everything"]),
        ("finetune", [f"finetune.{one.name}" for one in dataclasses.fields(FinetuneRecipe)]),
        ("finetune", ["data.pairs", "encoder.model", "trainer.OPTION", "output", "resume", "seed_everything"]),
    ],
)
def test_help_lists_every_field_and_says_what_it_is(name, names):
    text = " ".join(command(name).help().split())
    for name in names:
        assert f"--{name} " in text
        assert "``" not in text


def test_lightning_refuses_options_before_the_text_is_read_and_rows_are_read_once(encoder, tmp_path, monkeypatch):
    made, read = [], []
    init, of = pl.Trainer.__init__, bertflow.Moments.of
    monkeypatch.setattr(pl.Trainer, "__init__", lambda *args, **options: [made.append(1), init(*args, **options)][1])
    monkeypatch.setattr(bertflow.Moments, "of", lambda rows: [read.append(len(rows)), of(rows)][1])
    bertflow.train(encoder, SENTENCES, FLOW, TRAINER, output=tmp_path / "run", report=False)
    # One before the text is read, with the user's options alone, and one that trains.
    assert len(made) == 2
    # Before, parts of the text are left out in turn, to see whether it is narrow.
    assert (read[-2:], read.count(16)) == ([128, 16], 1)
