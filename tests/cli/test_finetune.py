import json
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest

from bertflow.cli.command import command
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.training.recipe import PRESETS

from .conftest import NOUNS, ROOT, SCORED, read_json, run_python, write_table

TRAINER = ("--trainer.enable_progress_bar=false", "--trainer.accelerator=cpu")
LABELS = ("entailment", "neutral", "contradiction")
ROWS = [(f"the {a} {noun} sleeps .", f"a {noun} in the {place}", LABELS[k % 3])
        for a in ("big", "small") for noun in NOUNS for k, place in enumerate(NOUNS)]  # fmt: skip


@pytest.fixture
def pairs():
    return write_table("pairs.tsv", "premise hypothesis label", ROWS)


@pytest.fixture
def arguments(tiny_bert, pairs):
    given = [f"--encoder.model={tiny_bert}", f"--data.pairs={pairs}", "--output=run"]
    return ["finetune", *given, "--encoder.pooling=mean(2)", "--encoder.device=cpu", *TRAINER, "--trainer.logger=false"]


def test_a_run_is_evaluated_as_its_encoder(arguments, told):
    told(*arguments, "--trainer.max_steps=2")
    binary = write_table("binary.tsv", "a b label", [("the dog", "a cat", 1), ("a bird", "the man", 0)])
    said = told("evaluate", "run", f"--binary={binary}", "--device=cpu", "--details")
    assert "run: encoder run, pooling mean(2), max length 64, " in said


def test_fine_tune_then_fit_a_flow_is_two_commands(arguments, pairs, told):
    told(*arguments, "--trainer.max_steps=2")
    flow = ["train", "--encoder.model=run/encoder", f"--data.sentences={pairs}", *TRAINER]
    flow += ["--trainer.max_steps=2", "--flow.glow.hidden=8", "--output=flow"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        told(*flow)
    record = read_json("flow/calibrator/calibrator.json")
    assert record["labels"] == ["pairs"]


def test_graded_pairs_are_met_by_their_cosine(trained, pairs):
    write_table(pairs, SCORED, [(first, second, k % 6) for k, (first, second, _) in enumerate(ROWS)])
    fit = trained("--finetune.objective=regression")["fit"]
    assert "held_out_loss" in fit
    assert "held_out_right" not in fit


@pytest.mark.parametrize(("extra", "n"), [([], 72), (["--data.only=entailment"], 24)])
def test_pairs_that_belong_together_may_come_from_labels(extra, n, trained):
    assert trained("--finetune.objective=in-batch-negatives", *extra)["pairs"]["n"] == n


def test_pairs_with_a_scored_sentence_are_left_out_and_counted(trained):
    write_table("mine.tsv", SCORED, [("The big dog sleeps", "b", 1), ("c", "d", 2), ("e", "f", 3)])
    pairs = trained("--data.leave_out=mine", "--data.data_dir=.")["pairs"]
    assert {"n": 66, "left_out": 6}.items() <= pairs.items()


NOT_USED = {
    "--data.classes=[good,bad]": "{path}, line 2: a label should be one of good, bad, got 'entailment'. Repair the "
    "label, leave the pair out, or name the classes with --data.classes.",
    "--finetune.learning_rate=1e30 --finetune.warmup=0 --trainer.log_every_n_steps=1": "The loss should stay finite, "
    "but after ",
}


@pytest.mark.parametrize(("given", "message"), NOT_USED.items())
def test_what_cannot_be_used_is_one_line(given, message, arguments, pairs, refused):
    assert refused(3, *arguments, *given.split()).startswith(f"error: {message.format(path=pairs)}")
    assert not Path("run/encoder").exists()
    assert Path("run").exists() == message.startswith("The loss")


def config(name):
    return f"--config={ROOT / 'configs' / name}.yaml"


def test_the_config_of_the_paper_is_the_papers_recipe():
    arguments = command("finetune").parse([config("paper-nli")])
    recipe = arguments["recipe"]
    assert (recipe.objective, recipe.learning_rate, recipe.batch_size, recipe.epochs, recipe.warmup) == (
        "classification", 2e-5, 16, 1.0, 0.1)  # fmt: skip
    assert (recipe.weight_decay, recipe.clip_norm, recipe.max_length, recipe.held_out) == (0.01, 1.0, 64, 0.0)
    assert (arguments["encoder"]["pooling"], arguments["pairs"].only) == ("mean", None)


def test_the_config_of_the_joint_loss_is_the_released_one():
    arguments = command("finetune").parse([config("paper-joint-stsb")])
    recipe = arguments["recipe"]
    assert (recipe.joint, recipe.learning_rate, recipe.batch_size, recipe.epochs) == ("apart", 5e-5, 32, 3.0)
    assert recipe.flow_recipe() == PRESETS["paper-tf"]
    given = ["--finetune.joint=apart", '--finetune.flow={"glow": {"levels": 2}}']
    changed = command("finetune").parse(given)["recipe"].flow_recipe()
    assert (changed.glow.levels, changed.glow.hidden, changed.learning_rate) == (2, 32, 1e-3)


@pytest.mark.slow
def test_two_ranks_come_to_the_same_encoder_as_one(arguments, tiny_bert):
    """In-batch negatives are those of all ranks; dropout differs between ranks, so it is off here."""
    steady = Path(shutil.copytree(tiny_bert, "steady"))
    config = read_json(steady / "config.json")
    config |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    (steady / "config.json").write_text(json.dumps(config))
    found = {}
    for world, launch in ((1, []), (2, ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"])):
        options = [f"--encoder.model={steady}", "--finetune.objective=in-batch-negatives", "--finetune.epochs=2",
                   f"--output={world}", "--finetune.two_sided=true",
                   "--finetune.learning_rate=5e-3"]  # fmt: skip
        options += ["--trainer.strategy=ddp"] if world > 1 else []
        run_python(*launch, "-m", "bertflow", *arguments, *options)
        found[world] = TransformerEncoder(f"{world}/encoder").encode([row[1] for row in ROWS])
    start = TransformerEncoder(steady).encode([row[1] for row in ROWS])
    assert np.abs(found[1] - start).max() > 0.1
    np.testing.assert_allclose(found[1], found[2], atol=1e-3)
