"""What the tables of the stand-ins say is what was measured, and a miss is said."""

import pytest

from .conftest import FOLDER, imported, read_json

printed = imported("standins_print")


@pytest.fixture(scope="module")
def rows():
    return [row for row in read_json(FOLDER / "standins.json") if "stand-in" in row]


@pytest.mark.parametrize(("page", "form"), [("README.md", "brief"), ("docs/results.md", "short")])
def test_the_readme_and_the_results_have_the_same_figures(printed, rows, page, form):
    table = "\n".join(getattr(printed, form)(rows))
    assert table in (FOLDER.parent / page).read_text("utf-8"), table


def test_every_stand_in_has_a_name(printed, rows):
    assert set(printed.STAND_INS) == {row["stand-in"] for row in rows}
    assert set(printed.README) < set(printed.STAND_INS)
