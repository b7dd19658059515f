import pytest

from bertflow.evaluation.evaluating import score_sets
from bertflow.text_keys import hash_texts

from .conftest import ToyEncoder, toy_pairs


def rows(encoder, sets, **options):
    return score_sets({"it": encoder}, sets, resamples=0, **options).rows


@pytest.mark.parametrize(
    ("hashes", "share", "name"), [((), 0.0, "inductive"), (None, "unknown", "unknown")], ids=["nothing", "unknown"]
)
def test_a_row_says_what_was_seen(pairs, hashes, share, name):
    found = {(row.as_dict()["seen"], row.as_dict()["setting"]) for row in rows(ToyEncoder(hashes=hashes), [pairs])}
    assert found == {(share, name)}


def test_the_share_that_was_seen_is_counted_by_sentence(pairs, seen_half):
    hashes, share = seen_half
    found = rows(ToyEncoder(hashes=hashes), [pairs])
    assert [row.seen for row in found] == pytest.approx([share] * len(found))
    assert {row.as_dict()["setting"] for row in found} == {"transductive"}


def test_case_and_punctuation_do_not_hide_what_was_seen(pairs):
    shouted = hash_texts([f"{sentence.upper()}!" for sentence in (*pairs.first, *pairs.second)])
    assert {row.seen for row in rows(ToyEncoder(hashes=shouted), [pairs])} == {1.0}


def test_one_task_that_was_seen_does_not_colour_another():
    seen, other = toy_pairs("stsb", (20,)), toy_pairs("sickr", (20,), seed=9)
    shares = {row.task: row.seen for row in rows(ToyEncoder(hashes=hash_texts(seen.first)), [seen, other])}
    assert shares["stsb"] > 0.4
    assert shares["sickr"] < shares["stsb"]


@pytest.mark.parametrize("task", ["sts12", "sts13", "sts14", "sts15", "sts16", "stsb-train"])
def test_a_system_trained_on_labels_of_the_scored_pairs_is_refused(task, refusal):
    assert refusal(rows, ToyEncoder(labels=["stsb-train"]), [toy_pairs(task)]) == (
        f"The system it was trained on the labels of stsb-train. They include labels of {task}, so a score on {task} "
        f"says nothing. Leave {task} out, or give --force: then the score is marked."
    )


def test_a_system_trained_on_other_labels_is_scored():
    assert rows(ToyEncoder(labels=["stsb-train"]), [toy_pairs("stsb"), toy_pairs("sickr")])


def test_a_forced_score_is_marked_in_rows_tables_and_captions():
    report = score_sets({"it": ToyEncoder(labels=["stsb"])}, [toy_pairs("sts12", (12, 9))], resamples=0, force=True)
    assert {row.label_leak for row in report.rows} == {"stsb"}
    assert report.table().lines[0][1].endswith("!")
    assert "TRAINED ON LABELS of stsb" in report.captions()[1]
