"""The average of the weights of a fit: that of Lightning, without waiting for the device."""

from types import SimpleNamespace

import pytest
import pytorch_lightning as pl
import torch

from bertflow.training import checkpoints
from bertflow.training.checkpoints import EMAWeightAveraging
from bertflow.training.fitting import FlowFit, trainer_options
from bertflow.training.recipe import resolve
from bertflow.training.trainer import quiet_trainer

RECIPE = {"glow": {"hidden": 8}, "batch_size": 64, "epochs": 2, "ema": 0.9}


class Saver(pl.Callback):
    """Writes a checkpoint after the fourth step."""

    def __init__(self, path):
        self.path = path

    def on_train_batch_end(self, trainer, *_):
        if self.path and trainer.global_step == 4:
            trainer.save_checkpoint(self.path)


def run(embeddings, checkpoint=None, resume=None):
    """The callback that averaged nine steps, and the average."""
    fit = FlowFit(embeddings, resolve("default", RECIPE))
    options = {"accelerator": "cpu", "max_steps": 9, "callbacks": [Saver(checkpoint)]}
    trainer = quiet_trainer(trainer_options(fit.recipe, len(fit.x)), options)
    fit.run(trainer, resume)
    (callback,) = (each for each in trainer.callbacks if isinstance(each, pl.callbacks.WeightAveraging))
    return callback, callback._average_model.state_dict()


def lightnings(decay):
    return pl.callbacks.EMAWeightAveraging(decay=decay, use_buffers=False)


def test_it_is_the_average_that_lightning_makes(embeddings, monkeypatch):
    callback, found = run(embeddings)
    monkeypatch.setattr(checkpoints, "EMAWeightAveraging", lightnings)
    theirs, expected = run(embeddings)
    assert type(callback) is not type(theirs)
    assert callback.state_key == theirs.state_key
    assert callback.state_dict() == theirs.state_dict() == {"latest_update_step": 9}
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=0)


@pytest.mark.slow
def test_a_checkpoint_of_lightnings_average_is_gone_on_with(embeddings, monkeypatch, tmp_path):
    expected = run(embeddings)[1]
    monkeypatch.setattr(checkpoints, "EMAWeightAveraging", lightnings)
    run(embeddings, checkpoint=tmp_path / "last.ckpt")
    monkeypatch.undo()
    callback, found = run(embeddings, resume=tmp_path / "last.ckpt")
    assert isinstance(callback, EMAWeightAveraging)
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=0, atol=0)


def test_it_is_kept_where_the_weights_will_be_and_asks_for_no_number(embeddings):
    nowhere = torch.device("meta")  # which has no numbers to give
    module, callback = FlowFit(embeddings, resolve("default", RECIPE)).module, EMAWeightAveraging(0.9)
    trainer = SimpleNamespace(strategy=SimpleNamespace(root_device=nowhere), global_step=0)
    callback.setup(trainer, module, "fit")
    module.flow.to(nowhere)
    for step in range(1, 4):
        trainer.global_step = step
        callback.on_train_batch_end(trainer, module, None, None, step)
    assert {tensor.device for tensor in callback._average_model.state_dict().values()} == {nowhere}
