import numpy as np
import pytest
import torch

from bertflow.errors import UsageError
from bertflow.training.batches import HELD_OUT_LEAST, ShuffledBatches, hold_out
from bertflow.training.module import INITIAL_ROWS, TrainingData


@pytest.mark.parametrize(
    ("n", "share", "held"),
    [(1000, 0.05, 50), (100, 0.05, HELD_OUT_LEAST), (63, 0.05, 0), (1000, 0, 0), (1_000_000, 0.05, 10_000)],
)
def test_how_many_rows_are_held_out(n, share, held):
    train, out = hold_out(n, share, seed=0)
    assert len(out) == held
    assert sorted([*train, *out]) == list(range(n))


def test_pairs_are_held_out_together_and_what_is_no_pair_is_left_out():
    train, out = hold_out(201, 0.1, seed=0, unit=2)
    assert sorted([*train, *out]) == list(range(0, 200, 2))
    assert len(out) == 10


def test_the_seed_decides_who_is_held_out():
    assert np.array_equal(hold_out(500, 0.1, 3)[1], hold_out(500, 0.1, 3)[1])
    assert not np.array_equal(hold_out(500, 0.1, 3)[1], hold_out(500, 0.1, 4)[1])


def test_a_share_that_is_none_is_refused():
    with pytest.raises(UsageError, match=r"^held_out is the share of rows that judge the fit, from 0 to 0.5; got 2\.$"):
        hold_out(100, 2, 0)


def test_the_initialization_sees_training_rows_alone():
    train, _ = hold_out(500, 0.1, 0)
    batches = ShuffledBatches(torch.arange(500.0)[:, None], train, batch_size=256, seed=0)
    assert sorted(batches.sample(INITIAL_ROWS)[:, 0].tolist()) == train.tolist()


def test_all_held_out_rows_are_one_batch():
    held_out = torch.randn(30, 2)
    batches = ShuffledBatches(torch.randn(99, 2), np.arange(99), batch_size=9, seed=0)
    (batch,) = TrainingData(batches, held_out).val_dataloader()
    assert torch.equal(batch, held_out)
