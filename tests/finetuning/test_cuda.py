"""What only a GPU can show of a fine-tuning; every machine with one runs it."""

import numpy as np
import pytest
import torch

from bertflow.data.pairs import Pairs
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.finetuning.fitting import fit_siamese

from ..texts import NOUNS

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
FIRST = [f"the {size} {noun} sleeps ." for size in ("big", "small", "red") for noun in NOUNS]
SCORES = np.linspace(0, 1, len(FIRST), dtype=np.float32)
PAIRS = Pairs("nouns", FIRST, [f"a {noun} in the garden" for noun in NOUNS] * 3, SCORES)


@pytest.mark.parametrize("joint", [None, "apart"])
def test_pairs_teach_on_a_gpu_what_they_teach_on_a_cpu(steady_bert, joint):
    def held_out(device, accelerator):
        encoder = TransformerEncoder(steady_bert, "mean(2)", device=device)
        changes = {"objective": "regression", "batch_size": 4, "epochs": 2.0, "held_out": 0.3, "joint": joint}
        return fit_siamese(encoder, PAIRS, trainer={"accelerator": accelerator}, **changes).held_out["held_out_loss"]

    assert held_out("cuda", "gpu") == pytest.approx(held_out("cpu", "cpu"), abs=1e-3)
