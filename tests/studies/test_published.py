import json
from dataclasses import replace

import numpy as np
import pytest

from bertflow.data.sts_tasks import SUITES
from bertflow.errors import UnknownNameError, UsageError
from bertflow.evaluation.aggregation import AGGREGATIONS
from bertflow.evaluation.evaluating import score_sets
from bertflow.studies.literature import PublishedFigures, matching, published

from .conftest import ToyEncoder, toy_pairs

AVERAGES = {
    ("BERT-base-flow (target)", "wmean"): 69.57,
    ("BERT-large-flow (target)", "wmean"): 70.76,
    ("BERT-base-NLI-flow (NLI)", "wmean"): 76.48,
    ("BERT avg (of the SBERT paper)", "all"): 54.81,
    ("BERT-whitening (target)", "all"): 64.26,
    ("unsup SimCSE-BERT-base (Wikipedia; checkpoint chosen by STS-B dev)", "all"): 76.25,
    ("unsup PromptBERT-base (a prompt's mask; mean of runs)", "all"): 78.52,  # printed as 78.54, which its row is not
    ("unsup PromptRoBERTa-base (a prompt's mask; mean of runs)", "all"): 79.15,
    ("unsup ConSERT-base", "all"): 72.74,
}
"""As the papers print them."""
TOKENIZED = "text of STS12-16 as SentEval tokenized it"


@pytest.mark.parametrize(("model", "aggregation"), AVERAGES)
def test_a_line_has_the_average_that_its_paper_prints(model, aggregation):
    (line,) = [line for line in published() if (line.model, line.aggregation) == (model, aggregation)]
    assert line.score("sts7") == pytest.approx(AVERAGES[model, aggregation], abs=0.006)


def test_every_line_has_seven_scores_an_aggregation_and_a_source():
    for line in published():
        assert tuple(line.scores) == SUITES["sts7"]
        assert line.aggregation in AGGREGATIONS
        assert line.source
        assert all(10 < score < 90 for score in line.scores.values())


def test_lines_are_found_by_a_part_of_model_or_source():
    found = matching("2011.05864", ["stsb"])
    assert {line.aggregation for line in found} == {"all", "wmean"}
    assert "BERT-base-flow (NLI)" in [line.model for line in found]
    assert [line.model for line in matching("base-FLOW (target)", ["sts12"])] == ["BERT-base-flow (target)"]


def test_an_unknown_model_lists_the_known_ones(refusal):
    assert refusal(matching, "nobody", ["stsb"], error=UnknownNameError).startswith(
        "No published figures hold 'nobody'. Known: GloVe avg"
    )


def test_other_tasks_than_the_published_ones_are_refused(refusal):
    assert refusal(matching, "", ["mine", "stsb-dev"], error=UsageError) == (
        "The published figures are those of sts12, sts13, sts14, sts15, sts16, stsb, sickr, and none of these tasks is "
        "scored. Add one to tasks, or leave published out."
    )


def shown(sets, part, aggregation="all", similarity="cosine", **said):
    """The published lines beside a toy encoder that says of itself what is given."""

    class Encoder(ToyEncoder):
        def describe(self):
            return super().describe() | said

    names = [pairs.task for pairs in sets]
    report = score_sets({"it": Encoder()}, sets, similarity, resamples=0)
    return PublishedFigures(matching(part, names)).add_to(replace(report, aggregation=aggregation))


def published_table(report):
    return report.beside[0].table


def test_figures_of_other_tasks_are_left_out():
    binary = replace(toy_pairs("qnli", (20,)), kind="binary", target=np.arange(20) % 2)
    report = shown([toy_pairs("stsb", (20,)), toy_pairs("mine", (20,)), binary], "base-flow (target)")
    assert report.table().header == ("system", "STS-B", "mine", "qnli")
    assert published_table(report).header == ("published", "STS-B", "protocol")
    assert published_table(report).lines[0][1] == "70.72"


def test_the_mean_of_all_tasks_is_that_of_the_paper(sts7):
    table = published_table(shown(sts7, "base-flow (target)", "wmean"))
    assert (table.header[-2], table.lines[0][-2]) == ("Avg", "69.57")


@pytest.mark.parametrize(
    ("task", "form", "how", "said", "expected"),
    [
        ("sts12", "senteval", "wmean", {"pooling": "first-last-avg", "max_length": 64}, "as ours"),
        ("sts12", "raw", "wmean", {"pooling": "first-last-avg", "max_length": 64}, TOKENIZED),
        ("sts12", "senteval", "all", {"pooling": "first-last-avg", "max_length": 64}, "aggregation wmean"),
        ("sts12", "senteval", "wmean", {"pooling": "mean", "max_length": 64}, "pooling first-last-avg"),
        ("sts12", "senteval", "wmean", {"pooling": "first-last-avg", "max_length": 128}, "max length 64"),
        # STS-B has one sub-set, and was read as it is.
        ("stsb", "raw", "all", {"pooling": "first-last-avg", "max_length": 64}, "as ours"),
    ],
)  # fmt: skip
def test_a_line_says_what_of_its_protocol_differs(task, form, how, said, expected):
    pairs = replace(toy_pairs(task, (20, 20) if task == "sts12" else (20,)), text_form=form)
    assert published_table(shown([pairs], "base-flow (target)", how, **said)).lines[0][-1] == expected


def test_another_similarity_differs():
    report = shown([toy_pairs("stsb", (20,))], "base-flow (target)", similarity="dot", pooling="first-last-avg")
    assert published_table(report).lines[0][-1] == "similarity cosine, max length 64"
    best_of_four = published_table(shown([toy_pairs("stsb", (20,))], "unsup ConSERT-base", pooling="last-2-avg"))
    assert best_of_four.lines[0][-1] == "similarity the best of four similarities"


def test_lines_of_our_protocol_stand_first_in_console_markdown_and_json():
    report = shown([toy_pairs("stsb", (20,))], "", pooling="mean", max_length=128)
    protocols = [line[-1] for line in published_table(report).lines]
    assert len(protocols) == len(published())
    assert protocols.count("as ours") > 0
    assert protocols == sorted(protocols, key=lambda words: words != "as ours")
    assert published_table(report) in list(report.parts())
    assert published_table(report).to_markdown() in report.to_markdown()
    rows = json.loads(report.to_json())["published"]
    assert [row["differs"] == "" for row in rows].count(True) == protocols.count("as ours")
    assert rows[0]["scores"] == {"stsb": 0.5802}
