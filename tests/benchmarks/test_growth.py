"""What growth.py says of the points it measured."""

import math
from pathlib import Path

import pytest

from .conftest import imported, read_json

growth = imported("growth")


def points(growth, cost, memory=lambda n: 100.0):
    return [{"rows": n, "width": 384, "seconds": cost(n), "mb": memory(n)} for n in growth.ROWS]


@pytest.mark.parametrize("exponent", [0.5, 1.0, 2.0])
def test_the_exponent_is_that_of_the_largest_sizes(growth, exponent):
    found = points(growth, lambda n: 1e-6 * n**exponent if n >= 10_000 else 5.0)
    assert growth.slope(found, "rows", "seconds") == pytest.approx(exponent)


GROWING = [
    (lambda n: 1e-6 * n, lambda n: 100.0, []),
    (lambda n: 1e-6 * n * math.log(n), lambda n: 100.0, []),
    (lambda n: 1e-9 * n**1.5, lambda n: 100.0, ["faster than n log n"]),
    (lambda n: 1e-6 * n, lambda n: n / 1e3, ["should be flat"]),
]


@pytest.mark.parametrize(("cost", "memory", "said"), GROWING)
def test_what_grows_too_fast_is_marked(growth, cost, memory, said):
    found = {"step": "fit", "rows": points(growth, cost, memory), "width": points(growth, cost)}
    row = " ".join(growth.judged(found))
    assert [mark for mark in ("faster than n log n", "should be flat") if mark in row] == said


def test_the_page_quotes_the_growth_that_is_kept(growth):
    kept = read_json(Path(growth.__file__).with_suffix(".json"))
    assert growth.by_size(kept) in growth.PAGE.read_text("utf-8")
