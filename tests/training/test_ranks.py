"""Two ranks on one machine see the same start, take the same steps, and end with the same flow."""

import subprocess
import sys

import numpy as np
import pytest
import torch

WORKER = """
import os, sys
import numpy as np, pytorch_lightning as pl, torch
from bertflow.training.flow_fit import FlowFit, trainer_options
from bertflow.training.recipe import resolve

folder, world, backend = sys.argv[1], int(sys.argv[2]), sys.argv[3]

class Remember(pl.Callback):
    def on_train_batch_start(self, trainer, module, batch, index):
        if trainer.global_step == 0:
            self.start = {name: tensor.clone() for name, tensor in module.flow.state_dict().items()}

    def on_train_batch_end(self, trainer, module, *_):
        if trainer.global_step == 3:
            self.early = {name: tensor.clone() for name, tensor in module.flow.state_dict().items()}

remember = Remember()
recipe = resolve("default", {"glow": {"hidden": 8, "initialization": "data"}, "batch_size": 64, "epochs": 2})
fit = FlowFit(np.load(f"{folder}/x.npy"), recipe)
strategy = pl.strategies.DDPStrategy(process_group_backend=backend) if world > 1 else "auto"
fit.run(pl.Trainer(
    accelerator="gpu" if backend == "nccl" else "cpu", devices=world, strategy=strategy, callbacks=[remember],
    logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    **trainer_options(fit.recipe, len(fit.x)),
))
rank = int(os.environ.get("RANK", 0))
result = fit.result()
states = {
    "start": remember.start,
    "early": remember.early,
    "end": fit.module.flow.state_dict(),
    "bits": result.record.held_out_bits,
}
torch.save(states, f"{folder}/{world}-{rank}.pt")
"""


TWO_GPUS = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="there are no two GPUs")


@pytest.fixture(scope="module", params=["gloo", pytest.param("nccl", marks=TWO_GPUS)])
def states(request, tmp_path_factory, embeddings):
    """The flow's weights at the start and at the end, by (world size, rank); of CPUs, or of GPUs."""
    folder = tmp_path_factory.mktemp("ranks")
    np.save(folder / "x.npy", embeddings)
    (folder / "worker.py").write_text(WORKER)
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    for world, launch in ((1, []), (2, launcher)):
        command = [sys.executable, *launch, str(folder / "worker.py"), str(folder), str(world), request.param]
        finished = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert finished.returncode == 0, finished.stderr
    keys = ((1, 0), (2, 0), (2, 1))
    return {key: torch.load(folder / "{}-{}.pt".format(*key), weights_only=True, map_location="cpu") for key in keys}


@pytest.mark.slow
@pytest.mark.parametrize("moment", ["start", "early", "end"])
def test_the_ranks_have_equal_parameters(states, moment):
    for name, tensor in states[2, 0][moment].items():
        assert torch.equal(tensor, states[2, 1][moment][name])


@pytest.mark.slow
def test_the_start_does_not_depend_on_how_many_ranks_there_are(states):
    for name, tensor in states[1, 0]["start"].items():
        assert torch.equal(tensor, states[2, 0]["start"][name])


@pytest.mark.slow
def test_after_a_few_steps_one_rank_and_two_differ_by_rounding(states):
    # docs/cluster.md: gradients are added in another order, and the difference grows with the steps.
    one, two = states[1, 0]["early"], states[2, 0]["early"]
    assert any(not torch.equal(tensor, states[1, 0]["start"][name]) for name, tensor in one.items())
    for name, tensor in one.items():
        torch.testing.assert_close(tensor, two[name], rtol=0, atol=1e-6)


@pytest.mark.slow
def test_one_rank_and_two_end_with_the_same_likelihood(states):
    assert states[1, 0]["bits"] == pytest.approx(states[2, 0]["bits"], abs=1e-4)
    assert states[2, 0]["bits"] == states[2, 1]["bits"]
