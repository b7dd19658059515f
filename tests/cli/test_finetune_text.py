"""Sentences without labels on the command line: ``bertflow finetune --objective simcse TEXT``."""

from pathlib import Path

import pytest

from bertflow.cli.command import command
from bertflow.encoder.transformer import TransformerEncoder

from .conftest import SCORED, SLEEPING, read_json, write_table
from .test_finetune import NOUNS, config

TEXT = SLEEPING[:72]


@pytest.fixture
def text():
    path = Path("text.txt")
    path.write_text("\n".join([*TEXT, *TEXT[:5]]))
    return path


@pytest.fixture
def arguments(tiny_bert, text):
    shared = ["--encoder.device=cpu", "--trainer.enable_progress_bar=false", "--trainer.accelerator=cpu"]
    given = ["finetune", "--objective", "simcse", str(text), f"--encoder.model={tiny_bert}"]
    return [*given, *shared, "--output=run"]


def test_text_is_enough(arguments, told):
    write_table("mine.tsv", SCORED, [(TEXT[0], "b", 1), ("c", "d", 2), ("e", "f", 3)])
    given = [*arguments, "--finetune.held_out=0.2", "--data.leave_out=mine", "--data.data_dir=."]
    assert "sentences 57 to train on, 14 held out" in told(*given, "--trainer.log_every_n_steps=1")
    facts = read_json("run/run.json")
    assert facts["pairs"] == {"sources": ["text.txt"], "n": 71, "no_label": 0, "left_out": 1}
    assert facts["fit"].keys() >= {"held_out_loss", "held_out_right"}
    assert TransformerEncoder("run/encoder").describe()["labels"] == []
    header = Path("run/metrics.csv").read_text().splitlines()[0]
    assert set(header.split(",")) >= {"train/loss", "train/right", "val/loss"}


def test_a_flow_may_be_trained_beside_it(arguments, told):
    joint = ["--finetune.joint=apart", '--finetune.flow={"glow": {"hidden": 4}}', "--trainer.max_steps=2"]
    told(*arguments, *joint)
    record = read_json("run/calibrator/calibrator.json")
    assert record["labels"] == []


def test_the_config_is_the_published_recipe():
    arguments = command("finetune").parse([config("simcse"), "wikipedia.txt"])
    recipe, data = arguments["recipe"], arguments["pairs"]
    assert (recipe.objective, recipe.learning_rate, recipe.batch_size, recipe.epochs) == ("simcse", 3e-5, 64, 1.0)
    assert (recipe.warmup, recipe.weight_decay, recipe.clip_norm, recipe.max_length) == (0.0, 0.0, 1.0, 32)
    assert (1 / recipe.scale, recipe.head, recipe.two_sided, recipe.dropout) == (0.05, None, False, None)
    assert (data.pairs, data.max_pairs, arguments["encoder"]["pooling"]) == ("wikipedia.txt", 1_000_000, "cls")


def test_files_are_given_by_place_or_by_name():
    finetune = command("finetune")
    assert finetune.parse(["a.txt"])["pairs"].pairs == finetune.parse(["--data.pairs=a.txt"])["pairs"].pairs
    assert finetune.parse(["a.txt", "b c.txt"])["pairs"].pairs == ["a.txt", "b c.txt"]
    assert finetune.parse(["--objective", "simcse"])["recipe"].objective == "simcse"
    assert "usage: bertflow finetune [FILE]" in finetune.help()
    assert "--objective" in finetune.help()


def test_evaluate_takes_it_and_says_what_was_seen(arguments, told):
    said = told(*arguments, "--trainer.max_steps=1")
    write_table("mine.tsv", SCORED, [(TEXT[k], f"the {noun} sleeps", k) for k, noun in enumerate(NOUNS)])
    given = ["--tasks=mine", "--data_dir=.", "--compare=raw", "--resamples=0"]
    said += told("evaluate", "run/encoder", *given, "--output=scores")
    assert {row["seen"] for row in read_json("scores/results.json")["rows"]} == {0.5}
    assert "labels" not in said
