"""Resamples of pairs: rows of weights, the same for all systems, so that their differences are paired.

    by pair        how often each pair was drawn, with replacement, within its group; a task's own interval
    by sentence    each distinct sentence draws g ~ Gamma(1/2), a pair weighs the sum of its two sentences' g, which is
                   Exp(1): the weight of the Bayesian bootstrap. The same pair weighs the same in every task, and pairs
                   that share one sentence move together with correlation 1/2. For means over tasks, which share text.

Source: Efron 1979 for the first; Rubin 1981, "The Bayesian bootstrap", for the weights of the second.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from bertflow.evaluation.aggregation import Members
from bertflow.text_keys import hash_text, text_key

Float64 = NDArray[np.float64]
BLOCK = 25
"""Resamples at a time: enough to be vectorised, few enough to stay in the processor's cache."""


def generator(seed: int, name: str) -> np.random.Generator:
    """A generator for one task: what it draws does not depend on which other tasks are scored."""
    return np.random.default_rng([seed, hash_text(name)])


def pair_weights(groups: Sequence[Members], resamples: int, rng: np.random.Generator) -> Iterator[Float64]:
    """Blocks of rows (<= BLOCK, n): how often each pair was drawn within its group; the groups hold all n pairs."""
    n = sum(map(len, groups))
    for start in range(0, resamples, BLOCK):
        rows = min(BLOCK, resamples - start)
        weights = np.zeros((rows, n))
        for members in groups:
            size = len(members)
            drawn = rng.integers(0, size, (rows, size)) + size * np.arange(rows)[:, None]
            weights[:, members] = np.bincount(drawn.ravel(), minlength=rows * size).reshape(rows, size)
        yield weights


def sentence_numbers(tasks: Sequence[tuple[Sequence[str], Sequence[str]]]) -> list[NDArray[np.intp]]:
    """For each task, the numbers (2, n) of its pairs' sentences: one number for one text, whatever the task."""
    numbers: dict[str, int] = {}
    return [
        np.array([[numbers.setdefault(text_key(one), len(numbers)) for one in side] for side in sides], dtype=np.intp)
        for sides in tasks
    ]


def sentence_weights(
    numbers: Sequence[NDArray[np.intp]], resamples: int, rng: np.random.Generator
) -> Iterator[list[Float64]]:
    """Blocks of rows for several tasks at once: for each task, weights (<= BLOCK, n)."""
    sentences = 1 + max(int(pairs.max()) for pairs in numbers)
    for start in range(0, resamples, BLOCK):
        # Half the square of a standard normal number is Gamma(1/2).
        draws = rng.standard_normal((min(BLOCK, resamples - start), sentences)) ** 2 / 2
        yield [draws[:, pairs[0]] + draws[:, pairs[1]] for pairs in numbers]
