"""What the tables of the stand-ins say is what was measured, and a miss is said."""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def printed(benchmark):
    return benchmark("standins_print")


@pytest.fixture(scope="module")
def rows():
    return [row for row in json.loads((ROOT / "benchmarks" / "standins.json").read_text("utf-8")) if "stand-in" in row]


@pytest.mark.parametrize(("page", "form"), [("README.md", "brief"), ("docs/results.md", "short")])
def test_the_readme_and_the_results_have_the_same_figures(printed, rows, page, form):
    table = "\n".join(getattr(printed, form)(rows))
    assert table in (ROOT / page).read_text("utf-8"), table


def test_every_stand_in_has_a_name(printed, rows):
    assert set(printed.STAND_INS) == {row["stand-in"] for row in rows}
    assert set(printed.README) < set(printed.STAND_INS)


@pytest.mark.parametrize(
    ("pair", "setting", "gap", "held"),
    [
        ("similarity - closed", "inductive", [-0.2, -0.5, 0.1], True),
        ("similarity - closed", "inductive", [-0.2, -0.5, -0.1], False),
        ("search - closed", "docstrings", [-0.2, -0.5, -0.1], False),
        ("both - similarity", "transductive", [-1.0, -1.3, -0.8], True),
        ("both - similarity", "transductive", [-1.1, -1.3, -0.8], False),
        ("both - search", "docstrings", [-1.6, -3.0, 0.4], False),
    ],
    ids=lambda value: str(value).replace(" ", ""),
)
def test_what_was_missed_is_said(printed, pair, setting, gap, held):
    said = list(printed.judged([{"stand-in": "L9", "setting": setting, "differences": {pair: gap}}]))
    assert sum("in 1 of 1. Missed: none." in line for line in said) == held
    assert sum("in 0 of 1. Missed: L9" in line for line in said) == (not held)
