"""Sentences without labels on the command line: ``bertflow finetune --objective simcse TEXT``."""

import pytest

from bertflow.cli import main as bertflow
from bertflow.cli.command import command
from bertflow.encoder.transformer import TransformerEncoder

from .conftest import read_json
from .test_finetune import NOUNS, config

TEXT = [f"the {a} {noun} sleeps in the {place} ." for a in ("big", "small") for noun in NOUNS for place in NOUNS]


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("\n".join([*TEXT, *TEXT[:5]]), encoding="utf-8")
    return path


@pytest.fixture
def arguments(tiny_bert, text, tmp_path):
    shared = ["--encoder.device=cpu", "--trainer.enable_progress_bar=false", "--trainer.accelerator=cpu"]
    given = ["finetune", "--objective", "simcse", str(text), f"--encoder.model={tiny_bert}"]
    return [*given, *shared, f"--output={tmp_path / 'run'}"]


def facts(tmp_path):
    return read_json(tmp_path / "run/run.json")


def test_text_is_enough(arguments, tmp_path, capsys):
    (tmp_path / "mine.tsv").write_text(f"sentence1\tsentence2\tscore\n{TEXT[0]}\tb\t1\nc\td\t2\ne\tf\t3\n")
    given = [*arguments, "--finetune.held_out=0.2", "--data.leave_out=mine", f"--data.data_dir={tmp_path}"]
    assert bertflow([*given, "--trainer.log_every_n_steps=1"]) == 0
    assert facts(tmp_path)["pairs"] == {"sources": ["text.txt"], "n": 71, "no_label": 0, "left_out": 1}
    assert facts(tmp_path)["fit"].keys() >= {"held_out_loss", "held_out_right"}
    assert "sentences 57 to train on, 14 held out" in capsys.readouterr().out
    assert TransformerEncoder(tmp_path / "run/encoder").describe()["labels"] == []
    header = (tmp_path / "run/metrics.csv").read_text().splitlines()[0]
    assert set(header.split(",")) >= {"train/loss", "train/right", "val/loss"}


def test_a_flow_may_be_trained_beside_it(arguments, tmp_path, told):
    joint = ["--finetune.joint=apart", '--finetune.flow={"glow": {"hidden": 4}}', "--trainer.max_steps=2"]
    told(*arguments, *joint)
    record = read_json(tmp_path / "run/calibrator/calibrator.json")
    assert record["labels"] == []


def test_the_config_is_the_published_recipe():
    arguments = command("finetune").parse([config("simcse"), "wikipedia.txt"])
    recipe, data = arguments["recipe"], arguments["pairs"]
    assert (recipe.objective, recipe.learning_rate, recipe.batch_size, recipe.epochs) == ("simcse", 3e-5, 64, 1.0)
    assert (recipe.warmup, recipe.weight_decay, recipe.clip_norm, recipe.max_length) == (0.0, 0.0, 1.0, 32)
    assert (1 / recipe.scale, recipe.head, recipe.two_sided, recipe.dropout) == (0.05, None, False, None)
    assert (data.pairs, data.max_pairs, arguments["encoder"]["pooling"]) == ("wikipedia.txt", 1_000_000, "cls")


def test_files_are_given_by_place_or_by_name():
    assert (
        command("finetune").parse(["a.txt"])["pairs"].pairs
        == command("finetune").parse(["--data.pairs=a.txt"])["pairs"].pairs
    )
    assert command("finetune").parse(["a.txt", "b c.txt"])["pairs"].pairs == ["a.txt", "b c.txt"]
    assert command("finetune").parse(["--objective", "simcse"])["recipe"].objective == "simcse"
    assert "usage: bertflow finetune [FILE]" in command("finetune").help()
    assert "--objective" in command("finetune").help()


def test_evaluate_takes_it_and_says_what_was_seen(arguments, tmp_path, capsys):
    assert bertflow([*arguments, "--trainer.max_steps=1"]) == 0
    rows = "".join(f"{TEXT[k]}\tthe {noun} sleeps\t{k}\n" for k, noun in enumerate(NOUNS))
    (tmp_path / "mine.tsv").write_text(f"sentence1\tsentence2\tscore\n{rows}")
    given = ["--tasks=mine", f"--data_dir={tmp_path}", "--compare=raw", "--resamples=0"]
    assert bertflow(["evaluate", str(tmp_path / "run/encoder"), *given, f"--output={tmp_path / 'scores'}"]) == 0
    found = read_json(tmp_path / "scores/results.json")
    assert {row["seen"] for row in found["rows"]} == {0.5}
    assert "labels" not in capsys.readouterr().out
