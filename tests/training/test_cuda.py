"""What only a GPU can show of a fit; every machine with one runs it."""

import pytest
import torch

from bertflow.training.fitting import fit_flow

RECIPE = {"glow": {"hidden": 8}, "batch_size": 64, "epochs": 2}
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


def bits(embeddings, **trainer):
    return fit_flow(embeddings, trainer=trainer, **RECIPE).record.held_out_bits


def test_steps_replayed_as_cuda_graphs_end_as_on_a_cpu(embeddings, caplog):
    found = bits(embeddings, accelerator="gpu")
    assert "CUDA graphs" not in caplog.text
    assert found == pytest.approx(bits(embeddings, accelerator="cpu"), abs=1e-3)
