import json
import shutil

import pytest
import pytorch_lightning as pl
import torch

from bertflow.encoder.transformer import TransformerEncoder


def opened(folder, pooling="mean(2)"):
    return TransformerEncoder(folder, pooling, device="cpu")


def weights(fit):
    return {name: tensor.clone() for name, tensor in fit.module.state_dict().items()}


def assert_close(first, second, atol=1e-6):
    torch.testing.assert_close(dict(second), dict(first), rtol=0, atol=atol)


@pytest.fixture
def steady_bert(tiny_bert, tmp_path):
    """The tiny BERT without dropout."""
    folder = shutil.copytree(tiny_bert, tmp_path / "steady-bert")
    config = json.loads((folder / "config.json").read_text())
    config |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


class StopAt(pl.Callback):
    """Writes a checkpoint after a step, and stops there."""

    def __init__(self, step, path):
        self.step, self.path = step, path

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx):
        if trainer.global_step == self.step:
            trainer.save_checkpoint(self.path)
            trainer.should_stop = True


@pytest.fixture
def stop_at():
    """Makes a callback of a step and of the file that the checkpoint goes to."""
    return StopAt
