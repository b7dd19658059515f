"""A training that is killed comes to the same end: equal weights, bit by bit, and the same figures in metrics.csv.

What is left of a killed run is what it had written. So a run is copied after each of its writes to checkpoints and
metrics, and each copy is continued.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from pytorch_lightning.loggers import CSVLogger
from pytorch_lightning.utilities import rank_zero_only
from safetensors.torch import load_file

import bertflow
from bertflow.data.fitting_text import TextOptions
from bertflow.data.pairs import Pairs
from bertflow.files import write_text
from bertflow.training import trainer as train_trainer
from bertflow.training.checkpoints import WholeCheckpoints
from bertflow.training.trainer import METRICS

from ..texts import NOUNS

ROOT = Path(__file__).parents[2]
SENTENCES = [f"the {a} {b} sleeps in the {c} ." for a in ("big", "small", "red") for b in NOUNS for c in NOUNS][:64]
FIRST, SECOND = SENTENCES[:32], [f"a {noun} in the {place}" for noun in NOUNS for place in NOUNS][:32]
PAIRS = Pairs("nouns", FIRST, SECOND, np.arange(32) % 3, "classes", classes=("animal", "person", "thing"))

TUNING = {"batch_size": 8, "held_out": 0.25, "checkpoint_every": 2}  # three steps in an epoch: some end with one
ONE_EPOCH = {"batch_size": 8, "held_out": 0.0, "checkpoint_every": 3, "epochs": 1}
FLOW = {"batch_size": 16, "epochs": 2, "glow": {"hidden": 8}}  # three steps
CASES = {
    "finetune": (TUNING | {"held_out": 0.0, "checkpoint_every": 3}, {"max_steps": 10}),  # the last epoch is cut off
    "finetune, held out": (TUNING, {"max_steps": 6}),
    "train": (FLOW, {}),
}
MORE = {
    "finetune, by epochs": (TUNING | {"epochs": 2.0}, {}),
    "finetune, by epochs, none held out": (ONE_EPOCH | {"epochs": 2.0}, {}),
    "finetune, one epoch": (ONE_EPOCH, {}),
    "finetune, logged now and then": (TUNING | {"checkpoint_every": 1}, {"max_steps": 8, "log_every_n_steps": 3}),
    "finetune, accumulated": (TUNING | {"checkpoint_every": 1}, {"max_steps": 5, "accumulate_grad_batches": 2}),
    "finetune, validated in an epoch": (TUNING | {"batch_size": 4}, {"max_steps": 9, "val_check_interval": 2}),
    "finetune, validated while a step is accumulated": (
        TUNING | {"batch_size": 4, "checkpoint_every": 1},
        {"max_steps": 5, "val_check_interval": 3, "accumulate_grad_batches": 2},
    ),
    "finetune, validated across epochs": (
        TUNING,
        {"max_steps": 8, "val_check_interval": 2, "check_val_every_n_epoch": None},
    ),
    "finetune, validated every other epoch": (TUNING, {"max_steps": 11, "check_val_every_n_epoch": 2}),
    "finetune, in bfloat16": (TUNING, {"max_steps": 5, "precision": "bf16-mixed"}),
    "finetune, joint apart": (TUNING | {"joint": "apart"}, {"max_steps": 6}),
    "finetune, joint labels": (TUNING | {"joint": "labels", "held_out": 0.0}, {"max_steps": 6}),
    "finetune, joint sum": (TUNING | {"joint": "sum", "epochs": 2.0}, {}),
    "train, cut off": (FLOW | {"epochs": 3, "held_out": 0.0}, {"max_steps": 7}),
    "train, accumulated": (FLOW, {"accumulate_grad_batches": 2}),
    "train, validated in an epoch": (FLOW | {"batch_size": 8}, {"val_check_interval": 2}),
    "train, validated every other epoch": (FLOW | {"epochs": 3}, {"check_val_every_n_epoch": 2}),
    "train, as in the paper": (FLOW | {"preset": "paper-text", "glow": {"levels": 2}}, {}),
    "train, averaged": (FLOW | {"ema": 0.9}, {}),
    "train, averaged and the last kept": (FLOW | {"ema": 0.9, "keep": "last"}, {"max_steps": 5}),
}

pytestmark = pytest.mark.filterwarnings("ignore:The number of training batches:UserWarning")


def run(case, bert, folder, **more):
    """Begin a run, or go on with it."""
    recipe, trainer = (CASES | MORE)[case]
    encoder = {"model": str(bert), "pooling": "mean(2)", "device": "cpu"}
    options = {"accelerator": "cpu", "enable_progress_bar": False, "log_every_n_steps": 1, **trainer, **more}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(train_trainer, "CHECKPOINT_STEPS", 2)
        if case.startswith("finetune"):
            bertflow.finetune(encoder, PAIRS, recipe, options, folder, "auto")
        else:
            write_text(folder.parent / "text.txt", "\n".join(SENTENCES))  # whole at all times: the other rank reads it
            text = TextOptions(str(folder.parent / "text.txt"), store=str(folder.parent / "store"))
            bertflow.train(encoder, text, recipe, options, folder, "auto", report=False, save_encoder=False)


def copied(case, bert, folder, every_write, **more):
    """The whole run, in ``folder/whole``, and copies of it after each write, or after each checkpoint."""
    whole = folder / "whole"

    def then_copied(write):
        def both(*given, **named):
            write(*given, **named)
            if not rank_zero_only.rank and (whole / "run.json").exists():
                shutil.copytree(whole, folder / f"copy-{len(list(folder.iterdir())):03}")

        return both

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(WholeCheckpoints, "save_checkpoint", then_copied(WholeCheckpoints.save_checkpoint))
        if every_write:
            patched.setattr(CSVLogger, "log_metrics", then_copied(CSVLogger.log_metrics))
        run(case, bert, whole, **more)
    return whole


def results(folder):
    """All that a run comes to: weights, metrics and figures."""
    state = torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)
    tensors = {f"checkpoint/{name}": tensor for name, tensor in state["state_dict"].items()}
    for path in sorted(folder.rglob("*.safetensors")):
        tensors |= {f"{path.relative_to(folder)}/{name}": tensor for name, tensor in load_file(path).items()}
    facts = json.loads((folder / "run.json").read_text())
    figures = {name: value for name, value in facts["fit"].items() if name not in ("seconds", "peak_memory_mb")}
    return tensors, (folder / METRICS).read_text().splitlines(), figures, facts["status"], state["global_step"]


def require_equal(folder, whole):
    (found, logged, *rest), (expected, all_logged, *others) = results(folder), results(whole)
    assert rest == others, folder.name
    assert all(row in all_logged for row in logged), folder.name
    assert len(all_logged) - len(logged) <= 2, "the rows of the step at which it was killed, and of its validation"
    assert found.keys() == expected.keys()
    assert not [name for name, tensor in expected.items() if not torch.equal(found[name], tensor)], folder.name


def require_the_same_end(case, bert, folder, every_write=True, **more):
    whole = copied(case, bert, folder, every_write, **more)
    all_ranks_wait()
    copies = sorted(folder.glob("copy-*"))
    assert len(copies) >= 2
    for each in copies:
        run(case, bert, each, **more)
        all_ranks_wait()
        require_equal(each, whole)


def all_ranks_wait():
    if torch.distributed.is_initialized():
        torch.distributed.barrier()


@pytest.mark.parametrize("case", CASES)
def test_a_run_that_is_killed_after_a_checkpoint_comes_to_the_same_end(case, tiny_bert, tmp_path):
    require_the_same_end(case, tiny_bert, tmp_path, every_write=False)


@pytest.mark.slow
@pytest.mark.parametrize("case", [*CASES, *MORE])
def test_a_run_that_is_killed_after_any_write_comes_to_the_same_end(case, tiny_bert, tmp_path):
    require_the_same_end(case, tiny_bert, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["finetune", "finetune, held out", "train"])
def test_so_does_one_on_two_ranks(case, tiny_bert, tmp_path):
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
    command = [*launcher, "-m", __name__, case, str(tiny_bert), str(tmp_path)]
    finished = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=400, env=environment, check=False
    )
    assert finished.returncode == 0, finished.stderr


if __name__ == "__main__":  # one of several ranks
    require_the_same_end(sys.argv[1], sys.argv[2], Path(sys.argv[3]), every_write=False, strategy="ddp")
