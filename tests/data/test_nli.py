import gzip

import numpy as np
import pytest

from bertflow.data.nli import load_nli
from bertflow.data.pairs import load_graded, load_related, sample
from bertflow.errors import DataError, UnknownNameError
from bertflow.text_keys import hash_texts

SNLI = "gold_label\tsentence1_binary_parse\tsentence1\tsentence2\tpairID\tlabel1\n"
ROWS = [("A dog runs.", "A dog moves.", "entailment"), ("A dog runs.", "A dog sleeps.", "contradiction")]
TSV = "premise\thypothesis\tlabel\n" + "".join("\t".join(row) + "\n" for row in ROWS)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.tsv", TSV),
        ("a.csv", TSV.replace("\t", ",")),
        ("snli_1.0_dev.txt", SNLI + "".join(f"{c}\t( x )\t{a}\t{b}\tid\t{c}\n" for a, b, c in ROWS)),
        ("mnli.tsv", "index\tsentence1\tsentence2\tlabel1\tgold_label\n"
         + "".join(f"{k}\t{a}\t{b}\tneutral\t{c}\n" for k, (a, b, c) in enumerate(ROWS))),
        ("a.jsonl", "".join(f'{{"gold_label": "{c}", "sentence1": "{a}", "sentence2": "{b}", "annotator_labels": []}}\n'
         for a, b, c in ROWS)),
        ("bom.tsv.gz", gzip.compress(("\ufeff" + TSV.replace("premise", "Premise")).encode())),
        ("SICK.txt", "pair_ID\tsentence_A\tsentence_B\tentailment_judgment\n"
         + "".join(f"{k}\t{a}\t{b}\t{c.upper()}\n" for k, (a, b, c) in enumerate(ROWS))),
    ],
)  # fmt: skip
def test_labelled_pairs_are_read_from_every_layout(name, content, write):
    pairs = load_nli(write(name, content))
    assert list(zip(pairs.first, pairs.second, strict=True)) == [row[:2] for row in ROWS]
    assert [pairs.classes[target] for target in pairs.targets] == [row[2] for row in ROWS]


def test_pairs_without_a_gold_label_are_dropped_and_counted(write, caplog):
    with caplog.at_level("INFO", "bertflow"):
        pairs = load_nli(write("a.tsv", TSV + "A cat.\tA dog.\t-\n"))
    assert (len(pairs), pairs.dropped) == (2, 1)
    assert caplog.messages == ["1 pairs have no gold label (-) and are left out; 2 are kept."]


def test_files_add_up_and_give_their_names(write):
    pairs = load_nli([write("a.tsv", TSV), write("b.tsv.gz", gzip.compress(TSV.encode()))])
    assert (len(pairs), pairs.sources) == (4, ("a", "b"))


def test_other_classes_can_be_named(write):
    path = write("a.tsv", "sentence1\tsentence2\tlabel\nx y\tz\tyes\nx\tz\tno\n")
    assert load_nli(path, ["no", "yes"]).targets.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("A cat.\tA dog.\tmaybe\n", "{path}, line 4: a label should be one of contradiction, entailment, neutral, or - "
         "for none, got 'maybe'. Name the labels with data.classes, or leave the pair out."),
        ("A cat.\tA dog.\t1\n", "{path}, line 4: a label should be one of contradiction, entailment, neutral, or - "
         "for none, got '1'. Name the labels with data.classes, or leave the pair out."),
        (" \tA dog.\tneutral\n", "{path}, line 4: the column premise should hold text, got ' '. Leave the pair out."),
        ("A cat.\t\tneutral\n", "{path}, line 4: the column hypothesis should hold text, got ''. Leave the pair out."),
        ("A cat.\tneutral\n", "{path}, line 4: 3 cells are wanted, as in line 1, but 2 are there. Repair the line."),
    ],
)  # fmt: skip
def test_what_is_no_labelled_pair_is_named_with_its_line(line, message, write):
    path = write("a.tsv", TSV + line)
    with pytest.raises(DataError) as caught:
        load_nli(path)
    assert str(caught.value) == message.format(path=path)


@pytest.mark.parametrize(("kept", "only"), [(1, "only entailment"), (0, "none")])
def test_one_class_is_nothing_to_learn(kept, only, write):
    path = write("a.tsv", "".join(TSV.splitlines(keepends=True)[: 1 + kept]))
    with pytest.raises(DataError) as caught:
        load_nli(path)
    assert str(caught.value) == (
        f"{path} should hold two classes or more of contradiction, entailment, neutral, but holds {only}. "
        "Give pairs of the others."
    )


def test_other_columns_are_refused(write):
    path = write("a.tsv", "left\tright\tlabel\nx\ty\tneutral\n")
    with pytest.raises(DataError, match=r"but has left, right, label\. Rename its columns\.$"):
        load_nli(path)


def test_the_pairs_of_one_class_belong_together(write):
    pairs = load_nli(write("a.tsv", TSV)).of_class("entailment")
    assert (pairs.second, pairs.targets, pairs.classes) == (("A dog moves.",), None, ())


def test_an_unknown_class_is_said(write):
    pairs = load_nli(write("a.tsv", TSV))
    with pytest.raises(UnknownNameError) as caught:
        pairs.of_class("yes")
    assert str(caught.value) == "Unknown class 'yes'. Known: contradiction, entailment, neutral."


def test_pairs_with_shown_text_are_left_out_by_key(write):
    pairs = load_nli(write("a.tsv", TSV)).without_text(hash_texts(["a DOG moves"]))
    assert (pairs.second, pairs.targets.tolist()) == (("A dog sleeps.",), [0])


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.tsv", "Who runs?\tA dog.\nWho sleeps?\tA cat.\n"),
        ("a.tsv", "question\tanswer\nWho runs?\tA dog.\nWho sleeps?\tA cat.\n"),
        ("a.csv", "id,answer,question\n1,A dog.,Who runs?\n2,A cat.,Who sleeps?\n"),
        ("a.jsonl", '{"text": "Who runs?", "paraphrase": "A dog."}\n{"text": "Who sleeps?", "paraphrase": "A cat."}\n'),
    ],
)
def test_two_columns_are_pairs_that_belong_together(name, content, write):
    pairs = load_related(write(name, content))
    assert list(zip(pairs.first, pairs.second, strict=True)) == [("Who runs?", "A dog."), ("Who sleeps?", "A cat.")]
    assert pairs.targets is None


def test_an_answer_that_is_missing_is_named_with_its_line(write):
    path = write("a.tsv", "question\tanswer\nWho runs?\tA dog.\nWho?\t\n")
    with pytest.raises(DataError) as caught:
        load_related(path)
    assert str(caught.value) == f"{path}, line 3: the column answer should hold text, got ''. Leave the pair out."


def test_one_pair_is_no_contrast(write):
    path = write("a.tsv", "question\tanswer\nWho runs?\tA dog.\n")
    with pytest.raises(DataError) as caught:
        load_related(path)
    assert str(caught.value) == f"{path} holds 1 pairs, but contrast needs at least 2. Give more pairs."


GRADED = "sentence1\tsentence2\tscore\na\tb\t5\nc\td\t0\ne\tf\t2.5\n"


def test_scores_are_shares_of_the_highest(write):
    pairs = load_graded(write("mine.tsv", GRADED))
    np.testing.assert_allclose(pairs.targets, [1, 0, 0.5])
    assert (pairs.sources, pairs.classes) == (("mine",), ())


def test_the_highest_score_can_be_said(write):
    np.testing.assert_allclose(load_graded(write("mine.tsv", GRADED), top=10).targets, [0.5, 0, 0.25])


def test_scores_beyond_the_highest_are_refused(write):
    path = write("mine.tsv", GRADED)
    with pytest.raises(DataError) as caught:
        load_graded(path, top=1)
    assert str(caught.value) == (
        "mine.tsv should be scored from 0 to 1, but its scores go from 0 to 5. "
        "Say the highest score with data.top_score."
    )


def test_a_sample_keeps_the_order_and_the_targets(write):
    pairs = load_graded(write("mine.tsv", GRADED))
    some = sample(pairs, 2, seed=0)
    rows = [pairs.first.index(text) for text in some.first]
    assert rows == sorted(rows)
    np.testing.assert_array_equal(some.targets, pairs.targets[rows])


def test_equal_pairs_have_one_digest_and_other_labels_another(write):
    pairs = load_graded(write("mine.tsv", GRADED))
    assert pairs.digest() == load_graded(write("other.tsv", GRADED)).digest()
    assert pairs.digest() != load_graded(write("mine.tsv", GRADED), top=10).digest()


def test_tasks_are_known_by_their_names(shared_data):
    pairs = load_graded(tasks="sickr-trial", data_dir=shared_data / "sts")
    assert pairs.sources == ("sickr-trial",)
    assert 0.2 <= pairs.targets.min() < pairs.targets.max() == 1


def test_the_nli_files_are_read_whole(shared_data):
    pairs = load_nli(sorted((shared_data / "nli").glob("*.tsv.gz")))
    assert len(pairs) == 46_619
    assert np.bincount(pairs.targets).tolist() == [12_876, 16_471, 17_272]
