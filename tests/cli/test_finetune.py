import json
import shutil
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

from bertflow.cli.command import command
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.training.recipe import PRESETS

from .conftest import NOUNS, read_json

REPOSITORY = Path(__file__).resolve().parents[2]
TRAINER = ("--trainer.enable_progress_bar=false", "--trainer.accelerator=cpu")
LABELS = ("entailment", "neutral", "contradiction")
ROWS = [(f"the {a} {noun} sleeps .", f"a {noun} in the {place}", LABELS[k % 3])
        for a in ("big", "small") for noun in NOUNS for k, place in enumerate(NOUNS)]  # fmt: skip


@pytest.fixture
def pairs(tmp_path):
    path = tmp_path / "pairs.tsv"
    path.write_text("premise\thypothesis\tlabel\n" + "".join("\t".join(row) + "\n" for row in ROWS), encoding="utf-8")
    return path


@pytest.fixture
def arguments(tiny_bert, pairs, tmp_path):
    given = [f"--encoder.model={tiny_bert}", f"--data.pairs={pairs}", f"--output={tmp_path / 'run'}"]
    return ["finetune", *given, "--encoder.pooling=mean(2)", "--encoder.device=cpu", *TRAINER, "--trainer.logger=false"]


def test_a_run_is_evaluated_as_its_encoder(arguments, tmp_path, told):
    told(*arguments, "--trainer.max_steps=2")
    (tmp_path / "binary.tsv").write_text("a\tb\tlabel\nthe dog\ta cat\t1\na bird\tthe man\t0\n")
    options = [f"--binary={tmp_path / 'binary.tsv'}", "--device=cpu", "--details"]
    assert "run: encoder run, pooling mean(2), max length 64, " in told("evaluate", tmp_path / "run", *options)


def test_fine_tune_then_fit_a_flow_is_two_commands(arguments, pairs, tmp_path, told):
    told(*arguments, "--trainer.max_steps=2")
    flow = ["train", f"--encoder.model={tmp_path / 'run' / 'encoder'}", f"--data.sentences={pairs}", *TRAINER]
    flow += ["--trainer.max_steps=2", "--flow.glow.hidden=8", f"--output={tmp_path / 'flow'}"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        told(*flow)
    record = read_json(tmp_path / "flow/calibrator/calibrator.json")
    assert record["labels"] == ["pairs"]


def test_graded_pairs_are_met_by_their_cosine(arguments, pairs, tmp_path, told):
    rows = "".join(f"{first}\t{second}\t{k % 6}\n" for k, (first, second, _) in enumerate(ROWS))
    pairs.write_text("sentence1\tsentence2\tscore\n" + rows)
    told(*arguments, "--finetune.objective=regression")
    fit = read_json(tmp_path / "run/run.json")["fit"]
    assert "held_out_loss" in fit
    assert "held_out_right" not in fit


@pytest.mark.parametrize(("extra", "n"), [([], 72), (["--data.only=entailment"], 24)])
def test_pairs_that_belong_together_may_come_from_labels(extra, n, arguments, tmp_path, told):
    told(*arguments, "--finetune.objective=in-batch-negatives", *extra)
    assert read_json(tmp_path / "run/run.json")["pairs"]["n"] == n


def test_pairs_with_a_scored_sentence_are_left_out_and_counted(arguments, tmp_path, told):
    (tmp_path / "mine.tsv").write_text("sentence1\tsentence2\tscore\nThe big dog sleeps\tb\t1\nc\td\t2\ne\tf\t3\n")
    told(*arguments, "--data.leave_out=mine", f"--data.data_dir={tmp_path}")
    assert {"n": 66, "left_out": 6}.items() <= read_json(tmp_path / "run/run.json")["pairs"].items()


@pytest.mark.parametrize(
    ("given", "code", "message"),
    [
        (["--data.classes=[good,bad]"], 3, "{path}, line 2: a label should be one of good, bad, "
         "got 'entailment'. Repair the label, leave the pair out, or name the classes with --data.classes."),
        (["--finetune.learning_rate=1e30", "--finetune.warmup=0", "--trainer.log_every_n_steps=1"], 3, "The loss "
         "should stay finite, but after "),
    ],
)  # fmt: skip
def test_what_cannot_be_used_is_one_line(given, code, message, arguments, pairs, tmp_path, refused):
    assert refused(code, *arguments, *given).startswith(f"error: {message.format(path=pairs)}")
    assert not (tmp_path / "run/encoder").exists()
    assert (tmp_path / "run").exists() == message.startswith("The loss")


def config(name):
    return f"--config={REPOSITORY / 'configs' / name}.yaml"


def test_the_config_of_the_paper_is_the_papers_recipe():
    arguments = command("finetune").parse([config("paper-nli")])
    recipe = arguments["recipe"]
    assert (recipe.objective, recipe.learning_rate, recipe.batch_size, recipe.epochs, recipe.warmup) == (
        "classification", 2e-5, 16, 1.0, 0.1)  # fmt: skip
    assert (recipe.weight_decay, recipe.clip_norm, recipe.max_length, recipe.held_out) == (0.01, 1.0, 64, 0.0)
    assert (arguments["encoder"]["pooling"], arguments["pairs"].only) == ("mean", None)


def test_the_config_of_the_joint_loss_is_the_released_one():
    arguments = command("finetune").parse(["--config", str(REPOSITORY / "configs/paper-joint-stsb.yaml")])
    recipe = arguments["recipe"]
    assert (recipe.joint, recipe.learning_rate, recipe.batch_size, recipe.epochs) == ("apart", 5e-5, 32, 3.0)
    assert recipe.flow_recipe() == PRESETS["paper-tf"]
    changed = (
        command("finetune")
        .parse(["--finetune.joint=apart", '--finetune.flow={"glow": {"levels": 2}}'])["recipe"]
        .flow_recipe()
    )
    assert (changed.glow.levels, changed.glow.hidden, changed.learning_rate) == (2, 32, 1e-3)


@pytest.mark.slow
def test_two_ranks_come_to_the_same_encoder_as_one(arguments, tmp_path, tiny_bert):
    """In-batch negatives are those of all ranks; dropout differs between ranks, so it is off here."""
    steady = Path(shutil.copytree(tiny_bert, tmp_path / "steady"))
    config = read_json(steady / "config.json")
    config |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    (steady / "config.json").write_text(json.dumps(config))
    found = {}
    for world, launch in ((1, []), (2, ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"])):
        options = [f"--encoder.model={steady}", "--finetune.objective=in-batch-negatives", "--finetune.epochs=2",
                   f"--output={tmp_path / str(world)}", "--finetune.two_sided=true",
                   "--finetune.learning_rate=5e-3"]  # fmt: skip
        options += ["--trainer.strategy=ddp"] if world > 1 else []
        command = [sys.executable, *launch, "-m", "bertflow", *arguments, *options]
        finished = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert finished.returncode == 0, finished.stderr
        found[world] = TransformerEncoder(tmp_path / str(world) / "encoder").encode([row[1] for row in ROWS])
    start = TransformerEncoder(steady).encode([row[1] for row in ROWS])
    assert np.abs(found[1] - start).max() > 0.1
    np.testing.assert_allclose(found[1], found[2], atol=1e-3)
