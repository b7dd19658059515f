"""What only a GPU can show; every machine with one runs it."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from bertflow.calibrated import CalibratedEncoder
from bertflow.calibration.closed_forms import Whitening
from bertflow.encoder.transformer import TransformerEncoder

from ..texts import NOUNS as WORDS

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
SENTENCES = [" ".join(WORDS[(row + at) % 6] for at in range(row % 9)) for row in range(3000)]


@pytest.mark.parametrize("pooling", ["mean(1,4)", "sif(3)", "cls"])
def test_a_gpu_makes_what_a_cpu_makes(tiny_bert, pooling):
    encoders = [
        TransformerEncoder(tiny_bert, pooling, device=name).count_tokens(SENTENCES[:99]) for name in ("cuda", "cpu")
    ]
    found, expected = (encoder.encode(SENTENCES) for encoder in encoders)
    assert_allclose(found, expected, rtol=0, atol=1e-4)


def test_half_precision_is_near_float32(tiny_bert):
    found = TransformerEncoder(tiny_bert, device="cuda", dtype="bfloat16").encode(SENTENCES)
    expected = TransformerEncoder(tiny_bert, device="cpu").encode(SENTENCES)
    cosine = (found * expected).sum(1) / np.linalg.norm(found, axis=1) / np.linalg.norm(expected, axis=1)
    assert cosine.min() > 0.99


def test_no_attention_is_planned_for_each_shape(tiny_bert):
    encoder, seen, on = TransformerEncoder(tiny_bert, device="cuda"), [], torch.backends.cuda.cudnn_sdp_enabled
    before = on()
    encoder.stack.model.register_forward_pre_hook(lambda *_: seen.append(on()))
    encoder.encode(SENTENCES)
    assert (set(seen), on()) == ({False}, before)


def test_a_calibrator_runs_on_the_gpu(tiny_bert):
    encoder = TransformerEncoder(tiny_bert, device="cuda")
    x = encoder.encode(SENTENCES)
    calibrator = Whitening(8).fit(x)
    found = CalibratedEncoder(encoder, calibrator, force=True).encode(SENTENCES)
    assert_allclose(found, calibrator.transform(x), rtol=0, atol=1e-3)
