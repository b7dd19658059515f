"""The average of the weights of a fit is Lightning's, also where a run is resumed after its last step."""

import pytest
import torch
from pytorch_lightning.callbacks import ModelCheckpoint

from bertflow.training.flow_fit import FlowFit, trainer_options
from bertflow.training.recipe import resolve
from bertflow.training.trainer import quiet_trainer

RECIPE = {"glow": {"hidden": 8}, "batch_size": 64, "epochs": 2, "ema": 0.9, "keep": "last"}


def run(embeddings, folder, resume=None, **options):
    fit = FlowFit(embeddings, resolve("default", RECIPE))
    last = ModelCheckpoint(folder, "last", every_n_train_steps=4, enable_version_counter=False)
    options = {"accelerator": "cpu", "enable_checkpointing": True, "callbacks": [last], **options}
    fit.run(quiet_trainer(trainer_options(fit.recipe, len(fit.x)), options), resume)
    return fit.steps, fit.module.flow.state_dict()


@pytest.mark.parametrize("options", [{"max_steps": 8}, {"max_epochs": 1, "limit_train_batches": 8}])
def test_a_run_that_is_resumed_after_its_last_step_has_the_average(options, embeddings, tmp_path):
    steps, expected = run(embeddings, tmp_path, **options)
    again, found = run(embeddings, tmp_path, tmp_path / "last.ckpt", **options)
    averaged = torch.load(tmp_path / "last.ckpt", weights_only=True)["state_dict"]
    assert steps == again == 8
    for name, tensor in expected.items():
        assert torch.equal(found[name], tensor)
        assert torch.equal(averaged[f"flow.{name}"], tensor)
