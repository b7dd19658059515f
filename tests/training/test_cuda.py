"""What only a GPU can show of a fit; every machine with one runs it."""

import pytest
import pytorch_lightning as pl
import torch

from bertflow.training.flow_fit import FlowFit, fit_flow, trainer_options
from bertflow.training.recipe import resolve
from bertflow.training.trainer import quiet_trainer

RECIPE = {"glow": {"hidden": 8}, "batch_size": 64, "epochs": 2}
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


def bits(embeddings, **trainer):
    return fit_flow(embeddings, trainer=trainer, **RECIPE).record.held_out_bits


def test_a_fit_ends_as_on_a_cpu(embeddings):
    assert bits(embeddings, accelerator="gpu") == pytest.approx(bits(embeddings, accelerator="cpu"), abs=1e-3)


def test_a_fit_goes_on_after_its_weights_left_the_gpu(embeddings):
    def twice(accelerator):
        fit = FlowFit(embeddings, resolve("default", RECIPE))
        for _ in range(2):
            fit.run(quiet_trainer(trainer_options(fit.recipe, len(fit.x)), {"accelerator": accelerator}))
        return fit.result().record.held_out_bits

    assert twice("gpu") == pytest.approx(twice("cpu"), abs=1e-3)


class NothingWaits(pl.Callback):
    """Between its third and its tenth step, what would wait for the GPU is an error."""

    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step in (3, 10):
            torch.cuda.set_sync_debug_mode("error" if trainer.global_step == 3 else "default")

    def on_exception(self, *_):
        torch.cuda.set_sync_debug_mode("default")


def test_no_step_waits_for_the_gpu(embeddings):
    fit_flow(embeddings, trainer={"accelerator": "gpu", "callbacks": [NothingWaits()]}, **RECIPE)


def test_rows_may_be_on_the_gpu(embeddings):
    there = torch.from_numpy(embeddings).to("cuda")
    assert bits(there, accelerator="gpu") == bits(embeddings, accelerator="gpu")
