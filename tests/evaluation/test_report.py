import json
import re
from dataclasses import replace

import numpy as np
import pytest

from bertflow.calibrated import CalibratedEncoder
from bertflow.calibration.closed_forms import Whitening
from bertflow.data.pairs import Pairs, unique_sentences
from bertflow.data.sts_tasks import SUITES
from bertflow.evaluation.evaluating import score_sets
from bertflow.evaluation.seeds import SeveralSeeds
from bertflow.similarity import SIMILARITIES
from bertflow.tables import Section, Table

from .conftest import ToyEncoder, toy_pairs


@pytest.fixture
def report(sts7):
    return score_sets({"one": ToyEncoder(), "two": ToyEncoder(seed=1)}, sts7[::-1], resamples=50)


def test_columns_stand_in_the_order_of_the_papers_times_hundred(report):
    assert " ".join(report.table().header) == "system STS12 STS13 STS14 STS15 STS16 STS-B SICK-R Avg"
    assert report.table().lines[0][1] == f"{100 * report.value('one', 'sts12'):.2f}"


def test_a_task_without_the_aggregation_says_which_it_shows():
    report = score_sets({"it": ToyEncoder()}, [toy_pairs("sts12", (30,)), toy_pairs("tuning", (30, 30))], resamples=0)
    assert replace(report, aggregation="wmean").table().header == ("system", "STS12 (all)", "tuning")
    assert report.table().header == ("system", "STS12", "tuning (mean)")


def test_other_splits_say_so():
    report = score_sets({"it": ToyEncoder()}, [toy_pairs("stsb-dev", (30,)), toy_pairs("stsb", (30,))], resamples=0)
    assert report.table().header == ("system", "STS-B", "STS-B dev")


def test_the_report_says_in_words_what_can_be_told_apart(report):
    best, other = sorted(("one", "two"), key=lambda name: -report.value(name, "sts7"))
    (line,) = report.comparison()
    assert line.startswith(f"Avg: {best} {100 * report.value(best, 'sts7'):.2f} against {other} ")
    assert "significant difference" in line
    assert "; by task better on" in line


def test_without_resamples_the_words_claim_nothing(pairs):
    report = score_sets({"one": ToyEncoder(), "two": ToyEncoder(seed=1)}, [pairs], resamples=0)
    assert report.comparison()[0].endswith("without resamples it is not known whether this is chance.")
    assert report.intervals().lines[0][1] == "-"


def test_a_single_system_is_compared_with_nothing(pairs):
    assert score_sets({"it": ToyEncoder()}, [pairs], resamples=0).comparison() == []


def test_the_answer_on_a_single_system_has_its_intervals(pairs):
    alone, two = (
        score_sets({name: ToyEncoder(seed=at) for at, name in enumerate(names)}, [pairs], resamples=200)
        for names in ("a", "ab")
    )
    assert alone.intervals() in [*alone.answer()]
    assert two.intervals() not in [*two.answer()]
    assert all(report.intervals() in [*report.parts()] for report in (alone, two))


def test_few_resamples_become_as_many_as_the_tasks_need():
    one, sets = ToyEncoder(), []
    for task in ("sts12", "sts13", "sts14", "sts15", "sts16", "stsb", "sickr"):
        pairs = toy_pairs(task, (100,))
        gold = SIMILARITIES["cosine"].paired(one.encode(list(pairs.first)), one.encode(list(pairs.second)))
        sets.append(replace(pairs, target=gold))
    report = score_sets({"one": one, "two": ToyEncoder(seed=1)}, sets, resamples=200)
    assert report.resamples == 7 * 400
    assert "Every 95 % interval is from 2,800 bootstrap resamples of pairs or queries (BCa)" in report.captions()[0]
    assert all(row.separable for row in report.differences)


def test_captions_say_how_the_numbers_were_made(pairs):
    report = score_sets({"it": ToyEncoder(hashes=None)}, [pairs], resamples=50)
    assert replace(report, aggregation="wmean").captions() == [
        "cosine_spearman x 100 of toy (60 pairs); aggregation wmean (mean over the sub-sets of a task, weighted by "
        "their pairs); text as written. Every 95 % interval is from 400 bootstrap resamples of pairs or queries (BCa); "
        "seed 0. Significant: p < 0.05 by the paired bootstrap.",
        "it: encoder toy, pooling mean, max length 128, it is not recorded how much of the scored text was in the "
        "fitting text.",
    ]


def test_how_much_of_the_scored_text_was_fitted_on_is_said_in_words(pairs):
    raw, half = ToyEncoder(), unique_sentences([pairs])
    fitted = CalibratedEncoder.fit(raw, Whitening(n_components=3), half[: len(half) // 2])
    report = score_sets({"raw": raw, "fitted": fitted}, [pairs], resamples=0)
    assert "Pooling mean. 0 to 50 % of the scored text was in the fitting text. How" in [*report.answer()][-1]
    assert report.captions()[1].endswith(", 0 % of the scored text was in the fitting text.")


def test_json_holds_correlations_between_minus_one_and_one(report):
    record = json.loads(report.to_json())
    assert all(-1 <= row["value"] <= 1 for row in record["rows"])
    assert {row["aggregation"] for row in record["rows"]} == {"all", "mean", "wmean", "subset"}
    assert {row["task"] for row in record["differences"]} == {row["task"] for row in record["rows"]}


def test_markdown_holds_the_table_the_intervals_and_the_captions(report):
    text = report.to_markdown()
    assert report.table().to_markdown() in text
    assert report.intervals().to_markdown() in text
    assert all(f"* {line}\n" in text for line in (*report.comparison(), *report.captions()))


def test_all_kinds_of_pairs_share_one_table(pairs):
    found = Pairs("faq", pairs.first[:9], pairs.second[:9], kind="retrieval", source="faq.tsv")
    report = score_sets({"it": ToyEncoder()}, [pairs, found], resamples=0)
    assert report.table().header == ("system", "toy", "hit@1", "MRR", "random median", "random 95 %")


def test_a_summary_counts_the_tasks_of_one_kind_alone():
    graded = [toy_pairs(task, (30,)) for task in ("news", "chat", "mail")]
    labeled = [replace(toy_pairs(task, (40,)), kind="binary", target=np.arange(40) % 2) for task in ("qnli", "qqp")]
    report = score_sets({"one": ToyEncoder(), "two": ToyEncoder(seed=1)}, [*graded, *labeled], resamples=50)
    sts, binary = report.comparison()
    for line, own, others in ((sts, graded, labeled), (binary, labeled, graded)):
        counted = re.search(r"better on (\d), worse on (\d)(?:, no significant difference on (.*))?\.", line)
        same = (counted[3] or "").split(", ") if counted[3] else []
        assert int(counted[1]) + int(counted[2]) + len(same) == len(own)
        assert not {*same} & {pairs.task for pairs in others}
        assert line in report.to_markdown()
        assert line in list(report.parts())


def answered(gold, resamples=400, seeds=None):
    """The line of a report on an encoder, raw and whitened to three directions; ``gold`` gives the gold scores."""
    pairs, raw = toy_pairs(sizes=(80,)), ToyEncoder()
    systems = {"raw": raw, "mine": CalibratedEncoder.fit(raw, Whitening(n_components=3), unique_sentences([pairs]))}
    sides = (systems[gold].encode(list(side)) for side in (pairs.first, pairs.second))
    scored = replace(pairs, target=SIMILARITIES["cosine"].paired(*sides))
    (line,) = score_sets(systems, [scored], resamples=resamples, seeds=seeds).summary()
    return line


ABOVE = r" Here raw \(no calibrator\) scores higher than {}\."


def test_the_answer_names_the_best_and_says_where_raw_is_above_its_calibrator():
    best = r"toy: {} is best \(100\.00\), significantly better than {} \(\+[\d.]+\)\."
    assert re.fullmatch(best.format("raw", "mine") + ABOVE.format("mine"), answered("raw"))
    assert re.fullmatch(best.format("mine", "raw"), answered("mine"))


@pytest.mark.parametrize("names", [("news", "chat", "mail"), SUITES["sts7"]])
def test_the_answer_names_the_tasks_on_which_another_system_is_best(names):
    """In a line for each, or after the best by their mean."""
    tasks, raw = [toy_pairs(task, (80,)) for task in names], ToyEncoder()
    systems = {"raw": raw, "mine": CalibratedEncoder.fit(raw, Whitening(n_components=3), unique_sentences(tasks))}
    for at, gold in enumerate(("mine", "raw", *["mine"] * (len(names) - 2))):
        sides = (systems[gold].encode(list(side)) for side in (tasks[at].first, tasks[at].second))
        tasks[at] = replace(tasks[at], target=SIMILARITIES["cosine"].paired(*sides))
    first, *others = score_sets(systems, tasks, resamples=50).summary()
    if len(names) == 3:
        assert first.startswith("news: mine is best (100.00), ")
        assert [line.split(" (")[0] for line in others] == ["chat: raw is best", "mail: mine is best"]
    else:
        assert (first.startswith("Avg: mine is best ("), others) == (True, [])
        assert " Another is best on STS13 (raw, 100.00)." in first


@pytest.mark.parametrize(("resamples", "words"), [(400, "significantly worse than"), (0, "untested against")])
def test_a_mean_over_seeds_that_is_below_another_system_is_not_called_better(resamples, words):
    mean, seeds = "flow of mine, 1 seed", SeveralSeeds("mine", (0,), ("mine",))
    line = rf"toy: {mean} \(.*\), {words} raw \(-[\d.]+\)\.{ABOVE.format(mean)}"
    assert re.fullmatch(line, answered("raw", resamples, seeds))


def test_what_is_added_stands_in_the_document_the_json_and_the_folder(pairs, tmp_path):
    report, section = score_sets({"one": ToyEncoder()}, [pairs], resamples=0), Section("Mine", Table(("a",), (("b",),)))
    found = report.add(section, data={"mine": 1}, files={"mine.txt": "x"})
    assert (list(found.parts())[-1], section in report.parts()) == (section, False)
    assert section.to_markdown() in found.to_markdown()
    assert json.loads(found.to_json())["mine"] == 1
    assert (found.save(tmp_path) / "mine.txt").read_text() == "x"
