"""Torch itself says how many threads it has."""

import numpy as np
import pytest
import pytorch_lightning as pl
import torch

from bertflow.training import flow_fit
from bertflow.training.flow_fit import SMALL, fit_flow, threads_for


@pytest.fixture(autouse=True)
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


class Watching(pl.Callback):
    def on_train_batch_end(self, *_):
        self.threads = torch.get_num_threads()


@pytest.mark.parametrize(("small", "expected"), [(SMALL, 1), (10, 2)])
def test_a_fit_of_small_steps_takes_one_thread_while_it_lasts(monkeypatch, small, expected):
    monkeypatch.setattr(flow_fit, "SMALL", small)
    x = np.random.default_rng(0).standard_normal((64, 8)).astype(np.float32)
    fit_flow(x, trainer={"max_steps": 2, "callbacks": [watching := Watching()]})
    assert watching.threads == expected
    assert torch.get_num_threads() == 2


def test_threads_come_back_after_an_error():
    def fails():
        with threads_for(1):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert torch.get_num_threads() == 2
