from itertools import chain

import numpy as np
import pytest
import torch

from bertflow.errors import UsageError
from bertflow.training.batches import ShuffledBatches


def epoch(batches, number=0):
    batches.set_epoch(number)
    return [batch[:, 0].tolist() for batch in batches]


def numbered(n, **options):
    rows = torch.arange(n, dtype=torch.float32)[:, None]
    unit = options.get("unit", 1)
    return ShuffledBatches(rows, np.arange(0, n - n % unit, unit), **{"batch_size": 4, "seed": 0, **options})


def test_an_epoch_has_every_row_once_but_for_what_fills_no_batch():
    drawn = list(chain(*epoch(numbered(22))))
    assert len(drawn) == len(set(drawn)) == 20
    assert set(drawn) < set(range(22))


def test_every_epoch_has_its_own_order_and_always_the_same():
    assert epoch(numbered(20), 1) == epoch(numbered(20), 1) != epoch(numbered(20), 2)


def test_the_order_is_not_that_of_the_rows():
    assert list(chain(*epoch(numbered(20)))) != list(range(20))


@pytest.mark.parametrize("world", [1, 2, 3])
def test_any_number_of_ranks_takes_the_same_steps(world):
    ranks = [epoch(numbered(24, rank=rank, world=world), 3) for rank in range(world)]
    together = [sorted(chain(*shares)) for shares in zip(*ranks, strict=True)]
    assert together == [sorted(batch) for batch in epoch(numbered(24), 3)]


def test_pairs_stay_together():
    for batch in epoch(numbered(20, unit=2)):
        assert [row + 1 for row in batch[::2]] == batch[1::2]
        assert all(row % 2 == 0 for row in batch[::2])


def test_fewer_rows_than_a_batch_are_one_batch():
    assert sorted(epoch(numbered(3))[0]) == [0, 1, 2]


@pytest.mark.parametrize("rows", [np.arange(8.0)[:, None], [str(k) for k in range(8)]])
def test_rows_may_be_an_array_or_sentences(rows):
    batches = list(ShuffledBatches(rows, np.arange(8), batch_size=8, seed=0))
    assert sorted(float(row) for row in batches[0]) == list(range(8))


def test_a_restart_goes_on_where_the_checkpoint_was_written():
    whole = epoch(numbered(20), 1)
    interrupted = numbered(20)
    interrupted.set_epoch(1)
    taken = iter(interrupted)
    first = [next(taken)[:, 0].tolist() for _ in range(2)]
    resumed = numbered(20)
    resumed.load_state_dict(interrupted.state_dict())
    assert first + epoch(resumed, 1) == whole


def test_an_epoch_that_was_left_early_does_not_shorten_the_next():
    batches = numbered(20)
    next(iter(batches))
    assert len(epoch(batches, 1)) == 5


def test_a_batch_with_too_few_rows_for_all_ranks_is_refused(refusal):
    assert refusal(lambda: numbered(100, unit=2, rank=0, world=3), error=UsageError) == (
        "Each of 3 processes needs a row of every batch, but a batch has 4 rows in units of 2. "
        "Raise flow.batch_size, or start fewer processes."
    )
