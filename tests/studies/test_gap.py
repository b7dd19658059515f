"""Shares of the gap between raw and the ceiling, and why there are none."""

from dataclasses import replace

import pytest

from bertflow.evaluation.report import Report
from bertflow.evaluation.score_table import Row, SystemFacts
from bertflow.evaluation.significance import Difference
from bertflow.studies.sections import CeilingStudy, gap_section

HOW = ("all", "cosine_spearman")


def report_of(values, low=0.01, labels=()):
    """A report on one task; ``low`` is the lower end of every difference between the ceiling and another system."""
    facts = [SystemFacts(name, {"weights": "w"}, None, labels if name == "tuned" else ()) for name in values]
    rows = [
        Row("sts16", "test", "all", "", "cosine_spearman", 9, name, value, 0.0, 1.0, 0.0, "", "raw", "", {})
        for name, value in values.items()
    ]
    others = [name for name in values if name != "ceiling"]
    gaps = [values["ceiling"] - values[other] for other in others]
    differences = [
        Difference("sts16", *HOW, "ceiling", other, gap, low and min(gap, low), gap + 0.1, 0.01, None, 0.01)
        for other, gap in zip(others, gaps, strict=True)
    ]
    return Report(tuple(rows), tuple(differences), tuple(facts), 10, 0, "cosine_spearman")


@pytest.mark.parametrize(("value", "share"), [(0.5, "0 %"), (0.6, "25 %"), (0.88, "95 %"), (0.3, "below raw")])
def test_the_share_of_the_gap(value, share):
    section = gap_section(report_of({"raw": 0.5, "center": value, "ceiling": 0.9}), "raw", "ceiling")
    assert section.table.header == ("raw to ceiling", "STS16")
    assert section.table.lines == (("center", share),)
    assert len(section.lines) == 1


def test_no_share_where_a_label_free_system_is_as_good_and_the_reason_in_words():
    found = report_of({"raw": 0.4, "whitening": 0.645, "center": 0.5, "ceiling": 0.65}, low=-0.02)
    section = gap_section(found, "raw", "ceiling")
    assert section.table.lines == (("whitening", "-"), ("center", "-"))
    assert section.lines[1:] == (
        "STS16: no share, since ceiling (65.00) is not separably above whitening (64.50): difference 0.50, 95 % -2.00 "
        "to 10.50.",
    )


def test_no_share_where_nothing_was_resampled():
    section = gap_section(report_of({"raw": 0.5, "center": 0.6, "ceiling": 0.9}, low=None), "raw", "ceiling")
    assert section.table.lines == (("center", "-"),)
    assert section.lines[1] == (
        "STS16: no share. Without resamples it is not known whether ceiling is above the others."
    )


def test_systems_of_other_weights_and_those_that_saw_labels_have_no_share():
    found = report_of({"raw": 0.5, "center": 0.6, "other": 0.95, "tuned": 0.95, "ceiling": 0.9}, labels=("nli",))
    systems = [replace(one, description={"weights": "v"}) if one.name == "other" else one for one in found.systems]
    section = gap_section(replace(found, systems=tuple(systems)), "raw", "ceiling")
    assert section.table.lines == (("center", "25 %"),)


def test_a_section_for_each_ceiling_stands_in_the_json_as_well():
    found = report_of({"raw": 0.5, "center": 0.6, "ceiling": 0.9})
    written = CeilingStudy({}).add_to(found).as_dict()["sections"]
    assert written[0]["table"]["lines"] == (("center", "25 %"),)
