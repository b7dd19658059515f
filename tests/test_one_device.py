"""What runs on a GPU stays there, and is not waited for: shown on PyTorch's device of shapes, which has no numbers."""

import copy
import sys
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from bertflow.calibration.closed_forms import AllButTheTop, Center, Ridge, Standardize, TwoBand, Whitening
from bertflow.data.pairs import Pairs
from bertflow.encoder.device import sent
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.finetuning import FinetuneRecipe
from bertflow.finetuning.fitting import SiameseFit
from bertflow.finetuning.joint import JOINT
from bertflow.finetuning.objectives import OBJECTIVES, Sides
from bertflow.training.batches import take
from bertflow.training.flow_fit import FlowFit
from bertflow.training.recipe import resolve

GPU = torch.device("meta")
SENTENCES = ["the man runs", "a dog", "", "the big cat eats in the garden .", "a red bird sings"]


def is_sent():
    """Whether ``sent`` is at work, which copies from pinned memory without waiting."""
    frame = sys._getframe()
    while frame and frame.f_code is not sent.__code__:
        frame = frame.f_back
    return frame is not None


class OneDevice(TorchDispatchMode):
    """Operators that mix devices, or copy from one to the other by waiting."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        seen = [x for x in tree_leaves((args, kwargs, made)) if isinstance(x, Tensor)]
        # One number of the processor goes along with a kernel, but a copy of it does not.
        seen = [x for x in seen if x.ndim or "copy" in str(func)]
        if len({x.device for x in seen}) > 1 and not is_sent():
            self.found.append(str(func))
        return made


@contextmanager
def without_waiting():
    """A block on the GPU, in which nothing is waited for."""
    with OneDevice() as asked:
        yield
    assert not asked.found


def placed(module):
    """A copy of a module on the GPU."""
    return copy.deepcopy(module).to(GPU)


def on_gpu(encoder, dtype=torch.float32):
    """An encoder whose model is on the GPU."""
    encoder.stack.model.to(GPU, dtype)
    encoder.device = GPU
    return encoder


def rows(n, dim=6):
    return torch.empty(n, dim, device=GPU)


def test_what_is_waited_for_is_found():
    table = torch.empty(5, device=GPU)
    for wrong in (lambda: table[torch.arange(2)], lambda: torch.arange(2).to(GPU), lambda: torch.tensor(1.0).to(GPU)):
        with pytest.raises(AssertionError, match="aten"), without_waiting():
            wrong()
    with without_waiting():
        table[sent(torch.arange(2), GPU)] * torch.tensor(2.0)


POOLINGS = ["mean(1,4)", "sif(4)", "cls", "content", "max", "last-token", "mask", "denoised-mask(1,4)"]


@torch.no_grad()
@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_batch_stays_on_the_gpu(tiny_bert, pooling, dtype):
    encoder = TransformerEncoder(tiny_bert, pooling, device="cpu").count_tokens(SENTENCES)
    text = encoder.tokenized(SENTENCES)
    on_gpu(encoder, dtype)
    encoder.embed_batch(text.batch(np.arange(2), 0).to(GPU))  # what is done once
    for batch in text.batches(64, 0):
        with without_waiting():
            made = encoder.embed_batch(batch.to(GPU))
        assert (made.device, made.dtype, made.shape) == (GPU, torch.float32, (len(batch.rows), encoder.dim))


def test_the_sentences_of_a_step_stay_on_the_gpu(tiny_bert):
    encoder = on_gpu(TransformerEncoder(tiny_bert, device="cpu"))
    with without_waiting():
        made = encoder.embed(SENTENCES, dropout=True)
    assert (made.device, made.shape) == (GPU, (5, 16))


@pytest.mark.parametrize(
    "calibrator", [Center(), Standardize(), AllButTheTop(2), Whitening(), Ridge(), TwoBand()], ids=str
)
def test_a_calibrator_stays_on_the_gpu(calibrator):
    fitted = placed(calibrator.fit(np.random.default_rng(0).normal(size=(40, 6))).map)
    with without_waiting():
        assert fitted(rows(5)).device == GPU
        if not isinstance(calibrator, TwoBand):
            assert fitted.inverse(rows(5)).device == GPU


@pytest.mark.parametrize("preset", ["default", "search-2", "paper-tf", "paper-text"])
def test_a_flow_stays_on_the_gpu(preset):
    x = np.random.default_rng(0).normal(size=(200, 6)).astype(np.float32)
    flow = placed(FlowFit(x, resolve(preset, {"dropout": False})).module.flow)
    with without_waiting():
        made = [-flow.log_prob(rows(32)).mean(), flow(rows(32)), *flow.latent(rows(32))]
        made[0].backward()
    assert {one.device for one in made} == {one.grad.device for one in flow.parameters()} == {GPU}


def test_rows_of_a_fit_are_drawn_on_the_gpu():
    with without_waiting():
        assert take(rows(50), np.array([3, 1, 4])).device == GPU


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_pairs_are_judged_on_the_gpu(objective):
    judge = placed(OBJECTIVES[objective](6, FinetuneRecipe(objective=objective, two_sided=True), 3))
    targets = {"classes": torch.int64, "scores": torch.float32}.get(judge.targets)
    texts = [torch.empty(4, dtype=torch.int64, device=GPU) for _ in range(2)]
    given = None if targets is None else torch.empty(4, dtype=targets, device=GPU)
    with without_waiting():
        judged = judge(Sides(rows(4), rows(4), *texts, given), 0, lambda mine: mine)
    assert {one.device for one in judged.values()} == {GPU}


@pytest.mark.parametrize("joint", [None, *JOINT])
def test_a_step_of_fine_tuning_stays_on_the_gpu(tiny_bert, joint):
    encoder = TransformerEncoder(tiny_bert, device="cpu")
    pairs = Pairs("graded", SENTENCES[3:] * 3, SENTENCES[:2] * 3, np.zeros(6, np.float32))
    recipe = FinetuneRecipe(objective="regression", batch_size=2, held_out=0.0, joint=joint)
    fit = SiameseFit(encoder, pairs, recipe)
    batch, module = fit.data.batch(np.arange(4)), fit.module.to(GPU)
    with without_waiting():
        judged = module.objective(module(batch.to(GPU)), 0, lambda mine: mine)
        judged["loss"].backward()
    assert {one.device for one in judged.values()} == {GPU}
