import pytest

from bertflow.data.sts_tasks import SUITES
from bertflow.errors import UnknownNameError
from bertflow.evaluation.figures import AGGREGATIONS
from bertflow.evaluation.rows import Column
from bertflow.evaluation.verification import matching, published, published_table

AVERAGES = {
    ("BERT-base-flow (target)", "wmean"): 69.57,
    ("BERT-large-flow (target)", "wmean"): 70.76,
    ("BERT-base-NLI-flow (NLI)", "wmean"): 76.48,
    ("BERT avg (of the SBERT paper)", "all"): 54.81,
    ("BERT-whitening (target)", "all"): 64.26,
    ("unsup SimCSE-BERT-base", "all"): 76.25,
    ("unsup ConSERT-base", "all"): 72.74,
}
"""As the papers print them."""


@pytest.mark.parametrize(("model", "aggregation"), AVERAGES)
def test_a_line_has_the_average_that_its_paper_prints(model, aggregation):
    (line,) = [line for line in published() if (line.model, line.aggregation) == (model, aggregation)]
    assert line.average == pytest.approx(AVERAGES[model, aggregation], abs=0.006)


def test_every_line_has_seven_scores_an_aggregation_and_a_source():
    for line in published():
        assert tuple(line.scores) == SUITES["sts7"]
        assert line.aggregation in AGGREGATIONS
        assert line.source
        assert all(10 < score < 90 for score in line.scores.values())


def test_lines_are_found_by_a_part_of_model_or_source_under_one_aggregation():
    found = matching("2011.05864", "wmean")
    assert {line.aggregation for line in found} == {"wmean"}
    assert "BERT-base-flow (NLI)" in [line.model for line in found]
    assert [line.model for line in matching("base-FLOW (target)", "wmean")] == ["BERT-base-flow (target)"]


def test_nothing_is_published_under_mean():
    with pytest.raises(UnknownNameError) as refused:
        matching("", "mean")
    assert str(refused.value) == "No figures are published under the aggregation mean. Known: all, wmean."


def test_an_unknown_model_lists_the_known_ones():
    with pytest.raises(UnknownNameError) as refused:
        matching("nobody", "all")
    assert str(refused.value).startswith("No figures published under all hold 'nobody'. Known: GloVe avg")


def test_the_table_has_the_columns_of_ours():
    shown = [
        Column("STS-B", "stsb", "wmean", "m"),
        Column("mine", "mine", "wmean", "m"),
        Column("Avg", "sts7", "wmean", "m"),
    ]
    table = published_table(matching("base-flow (target)", "wmean"), shown)
    assert table.header == ("published", "STS-B", "mine", "Avg")
    assert table.lines[0][1:] == ("70.72", "-", "69.57")
