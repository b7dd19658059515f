"""What the tables of the stand-ins say is what was measured, and a miss is said."""

from pathlib import Path

import pytest

from .conftest import read_json

ROOT = Path(__file__).parents[2]


@pytest.fixture
def printed(benchmark):
    return benchmark("standins_print")


@pytest.fixture(scope="module")
def rows():
    return [row for row in read_json(ROOT / "benchmarks/standins.json") if "stand-in" in row]


@pytest.mark.parametrize(("page", "form"), [("README.md", "brief"), ("docs/results.md", "short")])
def test_the_readme_and_the_results_have_the_same_figures(printed, rows, page, form):
    table = "\n".join(getattr(printed, form)(rows))
    assert table in (ROOT / page).read_text("utf-8"), table


def test_every_stand_in_has_a_name(printed, rows):
    assert set(printed.STAND_INS) == {row["stand-in"] for row in rows}
    assert set(printed.README) < set(printed.STAND_INS)
