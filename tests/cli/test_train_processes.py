"""Real processes: torchrun, two nodes on one machine. Each starts ``train.py`` as a user would."""

import os
import subprocess
import sys
from itertools import product

import pytest
import torch

from bertflow.records import read_record

from ..conftest import TIMEOUT
from .conftest import NOUNS, ROOT, TRAINING, free_port

TRAIN = ROOT / "train.py"
FORMS = product(("big", "small", "red", "green"), NOUNS, ("runs", "sings"), NOUNS)
SENTENCES = [f"the {a} {b} {v} in the {c} ." for a, b, v, c in FORMS]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
LAUNCHERS = {"one": [sys.executable], "two ranks": [*TORCHRUN, "--standalone", "--nproc-per-node=2"]}

pytestmark = pytest.mark.slow

REMEMBER = '''
import os
import pytorch_lightning as pl
import torch

class Remember(pl.Callback):
    """Writes down each rank's flow as the training starts and as it ends, and what DDP was given."""

    def save(self, trainer, module, moment):
        state = {name: tensor.clone() for name, tensor in module.flow.state_dict().items()}
        names = [name for name, _ in trainer.strategy.model.named_parameters()]
        name = f"{moment}-{trainer.global_rank}-of-{trainer.world_size}.pt"
        torch.save({"flow": state, "wrapped": names}, os.path.join(os.environ["REMEMBERED"], name))

    def on_train_start(self, trainer, module):
        self.save(trainer, module, "start")

    def on_train_batch_end(self, trainer, module, *_):
        if trainer.global_step == 3:
            self.save(trainer, module, "early")

    def on_train_end(self, trainer, module):
        self.save(trainer, module, "end")
'''


@pytest.fixture(scope="module")
def scene(tiny_bert, tmp_path_factory):
    """A folder with text, the callback, and options that all runs share."""
    folder = tmp_path_factory.mktemp("processes")
    (folder / "text.txt").write_text("\n".join(SENTENCES))
    (folder / "remember.py").write_text(REMEMBER)
    options = [f"--encoder.model={tiny_bert}", f"--data.sentences={folder / 'text.txt'}", *TRAINING]
    options += ["--trainer.log_every_n_steps=5", "--trainer.callbacks=remember.Remember", "--flow.batch_size=32"]
    options.append("--flow.keep=last")
    return folder, options


def start(scene, name, launch, *more):
    """Start a training."""
    folder, options = scene
    remembered = folder / f"remembered-{name}"
    remembered.mkdir(exist_ok=True)
    environment = {**os.environ, "PYTHONPATH": str(folder), "REMEMBERED": str(remembered)}
    environment |= {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
    arguments = [*options, f"--data.store={folder / 'store'}", f"--output={folder / name}", "--resume=auto", *more]
    return subprocess.Popen(
        [*launch, str(TRAIN), *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    )


def finish(*processes):
    """Wait for processes that should succeed, and end them in any case."""
    try:
        printed = [process.communicate(timeout=TIMEOUT)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, text in zip(processes, printed, strict=True):
        assert process.returncode == 0, text


@pytest.fixture(scope="module")
def remembered(scene):
    """What the ranks remember, by (launcher, moment, rank); and the folder of the runs."""
    folder, _ = scene
    short = "--flow.epochs=3"
    finish(start(scene, "one", LAUNCHERS["one"], short))
    finish(start(scene, "two ranks", LAUNCHERS["two ranks"], short))
    node = [*TORCHRUN, "--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=c10d", "--rdzv-id=1"]
    node += ["--local-addr=localhost", f"--rdzv-endpoint=localhost:{free_port()}"]
    finish(*(start(scene, "two nodes", node, short) for _ in range(2)))
    states = {}
    for name, world in (("one", 1), ("two ranks", 2), ("two nodes", 2)):
        for moment in ("start", "early", "end"):
            for rank in range(world):
                path = folder / f"remembered-{name}" / f"{moment}-{rank}-of-{world}.pt"
                states[name, moment, rank] = torch.load(path, weights_only=True)
    return folder, states


def distance(one, other):
    return max(float((one["flow"][name].double() - other["flow"][name].double()).abs().max()) for name in one["flow"])


@pytest.mark.parametrize("name", ["two ranks", "two nodes"])
@pytest.mark.parametrize("moment", ["start", "early", "end"])
def test_all_ranks_have_the_same_parameters(remembered, name, moment):
    _, states = remembered
    assert distance(states[name, moment, 0], states[name, moment, 1]) == 0


@pytest.mark.parametrize("name", ["two ranks", "two nodes"])
def test_the_start_does_not_depend_on_the_number_of_ranks(remembered, name):
    _, states = remembered
    assert distance(states["one", "start", 0], states[name, "start", 0]) == 0
    assert distance(states["one", "start", 0], states["one", "end", 0]) > 1e-3
    # docs/cluster.md: gradients are added in another order, and the difference grows with the steps.
    assert distance(states["one", "early", 0], states[name, "early", 0]) < 1e-6


@pytest.mark.parametrize("name", ["two ranks", "two nodes"])
def test_held_out_bits_do_not_depend_on_the_number_of_ranks(remembered, name):
    folder, _ = remembered
    one, several = (read_record(folder / run / "report/fit.json", dict) for run in ("one", name))
    assert one["steps"] == several["steps"] == 3 * (288 - 16) // 32 - 1
    assert several["held_out_bits"] == pytest.approx(one["held_out_bits"], abs=1e-3)


@pytest.mark.parametrize("name", ["one", "two ranks"])
def test_the_frozen_encoder_is_neither_wrapped_nor_checkpointed(remembered, name):
    folder, states = remembered
    assert all(".flow." in f".{parameter}" for parameter in states[name, "end", 0]["wrapped"])
    checkpoint = torch.load(folder / name / "checkpoints/last.ckpt", weights_only=True)
    assert all(parameter.startswith("flow.") for parameter in checkpoint["state_dict"])


def test_several_processes_without_common_folders_are_refused(scene):
    folder, options = scene
    command = [*LAUNCHERS["two ranks"], str(TRAIN), *options, f"--output={folder / 'refused'}"]
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    refused = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, env=environment)
    assert refused.returncode != 0
    assert (
        "error: 2 processes train together and need the same folders, but --data.store was not given. "
        "Give a folder that all of them can see.\n"
    ) in refused.stderr
    assert not (folder / "refused").exists()
