import gzip

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from bertflow.data.pairs import load_pairs, load_related
from bertflow.data.sts import load_graded
from bertflow.errors import UnknownNameError
from bertflow.text_keys import hash_texts

SNLI = "gold_label\tsentence1_binary_parse\tsentence1\tsentence2\tpairID\tlabel1\n"
ROWS = [("A dog runs.", "A dog moves.", "entailment"), ("A dog runs.", "A dog sleeps.", "contradiction")]
TSV = "premise\thypothesis\tlabel\n" + "".join("\t".join(row) + "\n" for row in ROWS)


KINDS = {
    "sentence1\tsentence2\tscore": ("graded", {"5": 5, "0": 0, "2.5": 2.5}),
    "score\tsentence2\tsentence1": ("graded", {"5": 5, "0": 0, "2.5": 2.5}),
    "id\tsentence_A\tsentence_B\trelatedness_score\tclass": ("graded", {"5": 5, "0": 0, "2.5": 2.5}),
    "a\tb\tlabel": ("binary", {"1": 1, "0": 0}),
    "sentence1\tsentence2\tlabel": ("binary", {"1": 1, "0": 0}),
    "id\tquestion\tsentence\tlabel": ("binary", {"entailment": 1, "not_entailment": 0}),
    "premise\thypothesis\tlabel": ("classes", {"entailment": 1, "neutral": 2, "contradiction": 0}),
    "Query\tText": ("retrieval", None),
    "question\tanswer": ("retrieval", None),
    "anchor\tpositive": ("texts", None),
    "sentence1\tsentence2": ("texts", None),
}
ASIDE = ("id", "class")


@pytest.mark.parametrize("header", KINDS)
def test_the_columns_tell_the_kind(header, write):
    kind, targets = KINDS[header]
    names, rows = header.split("\t"), []
    for n, one in enumerate(targets or range(3)):
        cells = iter((f"first {n}", f"second {n}", one))
        row = {name: name if name in ASIDE else next(cells) for name in sorted(names, key="score".__eq__)}
        rows.append("\t".join(row[name] for name in names))
    pairs = load_pairs(write("some.tsv", "\n".join([header, *rows]) + "\n"))
    assert (pairs.kind, pairs.task, pairs.source) == (kind, "some", "some.tsv")
    sides = ("second", "first") if header.startswith("score") else ("first", "second")
    for side, found in zip(sides, (pairs.first, pairs.second), strict=True):
        assert found == tuple(f"{side} {n}" for n in range(len(rows)))
    assert (None if pairs.target is None else pairs.target.tolist()) == (targets and [*targets.values()])
    assert pairs.subsets == ("all",) * len(rows)


def test_columns_of_no_kind_are_refused_with_all_that_are_wanted(write, refusal):
    path = write("a.tsv", "left\tright\tlabel\nx\ty\t1\n")
    assert refusal(load_pairs, path, ("binary", "retrieval")) == (
        f"{path} should have the columns a + b + label | sentence1 + sentence2 + label | question + sentence + label | "
        "query + text | question + answer, but has left, right, label. Rename the columns that hold them to a, b."
    )


def test_columns_and_how_the_rows_add_up_are_said(write, caplog):
    caplog.set_level("INFO")
    path = write("mine.tsv", "id\tanchor\tpositive\n1\tx\ty\n2\tz\tw\n")
    for kind in ("texts", ["triplets", "texts"]):
        load_pairs(path, kind)
    load_pairs(write("faq.tsv", "query\ttext\na\tb\nc\td\na\te\n"), "retrieval")
    assert [message.split(": ", 1)[1] for message in caplog.messages] == [
        "using columns anchor, positive (unused: id; see --columns)",
        "using columns anchor, positive (unused: id)",
        "using columns query, text (see --columns)",
        "3 rows = 2 used + 1 whose query or text occurs before",
    ]


def test_two_columns_can_be_named_or_numbered(write):
    path = write("a.csv", "id,left,right\n1,x,y\n")
    assert load_pairs(path, columns="left, right").first == ("x",)
    assert load_pairs(path, columns=["2", "3"]).second == ("right", "y")


def test_pairs_are_taken_with_all_that_belongs_to_them(write):
    pairs = load_pairs(write("a.tsv", "sentence1\tsentence2\tscore\tsubset\na\tb\t1\tX\nc\td\t2\tY\ne\ta\t3\tX\n"))
    some = pairs.taken([2, 0])
    assert (some.first, some.second, some.subsets) == (("e", "a"), ("a", "b"), ("X", "X"))
    assert some.target.tolist() == [3.0, 1.0]
    assert some.sentences == ["e", "a", "b"]
    assert some.rows({"a": 5, "b": 6, "e": 7}).tolist() == [[7, 5], [5, 6]]


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
        ("bom.tsv.gz", gzip.compress(("\ufeff" + TSV.replace("premise", "Premise")).encode(), mtime=0)),
        ("SICK.txt", "pair_ID\tsentence_A\tsentence_B\tentailment_judgment\n"
         + "".join(f"{k}\t{a}\t{b}\t{c.upper()}\n" for k, (a, b, c) in enumerate(ROWS))),
    ],
)  # fmt: skip
def test_labeled_pairs_are_read_from_every_layout(name, content, write):
    pairs = load_pairs(write(name, content), "classes")
    assert list(zip(pairs.first, pairs.second, strict=True)) == [row[:2] for row in ROWS]
    assert [pairs.classes[target] for target in pairs.target] == [row[2] for row in ROWS]


def test_pairs_without_a_gold_label_are_dropped_and_counted(write, caplog):
    caplog.set_level("INFO")
    pairs = load_pairs(write("a.tsv", TSV + "A cat.\tA dog.\t-\n"), "classes")
    assert (len(pairs), pairs.dropped) == (2, 1)
    assert caplog.messages[-1].endswith("a.tsv: 3 rows = 2 used + 1 without a label (-)")


def test_files_add_up_and_give_their_names(write):
    pairs = load_pairs([write("a.tsv", TSV), write("b.tsv.gz", gzip.compress(TSV.encode()))], "classes")
    assert (len(pairs), pairs.tasks) == (4, ("a", "b"))


def test_other_classes_can_be_named(write):
    path = write("a.tsv", "sentence1\tsentence2\tlabel\nx y\tz\tyes\nx\tz\tno\n")
    assert load_pairs(path, "classes", classes=["no", "yes"]).target.tolist() == [1, 0]


@pytest.fixture
def nli(write):
    return load_pairs(write("a.tsv", TSV), "classes")


def test_the_pairs_of_one_class_belong_together(nli):
    pairs = nli.of_class("entailment")
    assert (pairs.second, pairs.target, pairs.classes) == (("A dog moves.",), None, ())


def test_an_unknown_class_is_said(nli, refusal):
    said = refusal(nli.of_class, "yes", error=UnknownNameError)
    assert said == "Unknown class 'yes'. Known: contradiction, entailment, neutral."


def test_pairs_with_shown_text_are_left_out_by_key(nli):
    pairs = nli.without_text(hash_texts(["a DOG moves"]))
    assert (pairs.second, pairs.target.tolist()) == (("A dog sleeps.",), [0])


TWO_COLUMNS = [
    ("a.tsv", "Who runs?\tA dog.\nWho sleeps?\tA cat.\n"),
    ("a.tsv", "question\tanswer\nWho runs?\tA dog.\nWho sleeps?\tA cat.\n"),
    ("a.csv", "id,answer,question\n1,A dog.,Who runs?\n2,A cat.,Who sleeps?\n"),
    ("a.jsonl", '{"text": "Who runs?", "paraphrase": "A dog."}\n{"text": "Who sleeps?", "paraphrase": "A cat."}\n'),
]


@pytest.mark.parametrize(("name", "content"), TWO_COLUMNS)
def test_two_columns_are_pairs_that_belong_together(name, content, write):
    pairs = load_related(write(name, content))
    assert list(zip(pairs.first, pairs.second, strict=True)) == [("Who runs?", "A dog."), ("Who sleeps?", "A cat.")]
    assert pairs.target is None


def test_a_third_column_holds_wrong_answers(write, refusal):
    rows = "anchor,positive,negative\nWho runs?,A  dog.,A cat.\nWho sleeps?,A cat.,A bird.\n"
    path = write("a.csv", rows)
    pairs = load_related(path)
    assert (pairs.second, pairs.negatives) == (("A dog.", "A cat."), ("A cat.", "A bird."))
    assert (pairs.target, pairs.kind, set(pairs.subsets)) == (None, "texts", {"all"})
    assert pairs.taken([1]).negatives == ("A bird.",)
    two = write("b.csv", "question,answer\nWho?,Me.\n")
    said = refusal(lambda: load_related([path, two]))
    assert said == f"{path}, {two}: some files have a column of negatives, some not. Train on one kind alone."


GRADED = "sentence1\tsentence2\tscore\na\tb\t5\nc\td\t0\ne\tf\t2.5\n"


@pytest.fixture
def graded(write):
    """Reads the scored pairs."""
    return lambda name="mine.tsv", **options: load_graded(write(name, GRADED), **options)


def test_scores_are_shares_of_the_highest(graded):
    pairs = graded()
    assert_allclose(pairs.target, [1, 0, 0.5])
    assert (pairs.tasks, pairs.classes) == (("mine",), ())


def test_the_highest_score_can_be_said(graded):
    assert_allclose(graded(top=10).target, [0.5, 0, 0.25])


def test_scores_beyond_the_highest_are_refused(graded, refusal):
    assert refusal(graded, top=1) == (
        "mine.tsv should be scored from 0 to 1, but its scores go from 0 to 5. "
        "Say the highest score with data.top_score."
    )


def test_a_sample_keeps_the_order_and_the_targets(graded):
    pairs = graded()
    some = pairs.sample(2, seed=0)
    rows = [pairs.first.index(text) for text in some.first]
    assert rows == sorted(rows)
    assert_array_equal(some.target, pairs.target[rows])


def test_equal_pairs_have_one_digest_and_other_labels_another(graded):
    assert graded().digest() == graded("other.tsv").digest() != graded(top=10).digest()


def test_tasks_are_known_by_their_names(shared_data):
    pairs = load_graded(tasks="sickr-trial", data_dir=shared_data / "sts")
    assert pairs.tasks == ("sickr-trial",)
    assert 0.2 <= pairs.target.min() < pairs.target.max() == 1


def test_the_nli_files_are_read_whole(shared_data):
    pairs = load_pairs(sorted((shared_data / "nli").glob("*.tsv.gz")), "classes")
    assert len(pairs) == 46_619
    assert np.bincount(pairs.target).tolist() == [12_876, 16_471, 17_272]


def test_labels_of_jsonl_are_numbers(write):
    path = write("q.jsonl", '{"a": "x", "b": "y", "label": 0}\n{"a": "u", "b": "v", "label": 1}\n')
    assert load_pairs(path, "binary").target.tolist() == [0, 1]


def test_a_query_or_text_that_comes_again_is_left_out_and_counted(write, caplog):
    rows = ["How?\tSo.", "HOW\tOtherwise.", "Why?\tso", "When?\tNow.", "When?\tNow."]
    path = write("faq.tsv", "\n".join(["query\ttext", *rows]))
    caplog.set_level("INFO")
    pairs = load_pairs(path, "retrieval")
    assert list(zip(pairs.first, pairs.second, strict=True)) == [("How?", "So."), ("When?", "Now.")]
    assert caplog.messages[-1] == f"{path}: 5 rows = 2 used + 3 whose query or text occurs before"


RELATED = "question\tanswer\nWho runs?\tA dog.\n"
ONE_CLASS = "premise\thypothesis\tlabel\n" + "A dog runs.\tA dog moves.\tentailment\n" * 2
HOW = "Repair the label, leave the pair out, or name the classes with data.classes."
SCORES = (
    "Repair it, or leave the pair out. From scores, such as 0 to 5, make a column label: 1 for pairs that match, 0 for "
    "others. Or give them, in a column score, to `bertflow fix --labels` or `bertflow evaluate --tasks`."
)
FEW = "but a comparison of classes needs at least 2. Give more pairs."
REFUSED = {
    "classes, label": (TSV + "A cat.\tA dog.\tmaybe\n", "{}, line 4: a label should be one of contradiction, "
                       f"entailment, neutral, got 'maybe'. {HOW}"),
    "classes, empty cell": (TSV + " \tA dog.\tneutral\n", "{}, line 4: the column premise should hold text, got ' '. "
                            "Leave the pair out."),
    "classes, one": (ONE_CLASS, "{} gives all 2 pairs the same class, entailment. Add pairs with another class."),
    "classes, one pair": (ONE_CLASS[: ONE_CLASS.rindex("A dog runs.")], f"{{}} holds 1 pair, {FEW}"),
    "related, one pair": (RELATED, "{} holds 1 pair, but contrast needs at least 2. Give more pairs."),
    "graded, no scores": ("sentence1\tsentence2\tlabel\na\tb\t1\n", "{} should have the columns sentence1 + sentence2 "
                          "+ score | sentence_A + sentence_B + relatedness_score, but has sentence1, sentence2, label. "
                          "Rename the columns that hold them to score."),
    "binary, scores": ("sentence1\tsentence2\tscore\nx\ty\t2\n", "{} should have the columns a + b + label | "
                       "sentence1 + sentence2 + label | question + sentence + label, but has sentence1, sentence2, "
                       "score. It holds scores of pairs, which `bertflow fix --labels` and `bertflow evaluate "
                       "--tasks` take. Where a column label is wanted, it should be 1 for pairs that match, and 0 for "
                       "others."),
    "retrieval, ids": ("question\tid\nx\t2\n", "{} should have the columns query + text | question + answer, but has "
                       "question, id. It holds questions and the ids of their answers, which `bertflow search evaluate "
                       "--labels` takes. Or name the columns to read with --columns."),
    "binary, label": ("a\tb\tlabel\nx\ty\t2\n", "{}, line 2: a label should be one of 0, 1, not_entailment, "
                      f"entailment, got '2'. {SCORES}"),
    "binary, one label": ("a\tb\tlabel\nx\ty\t1\nu\tv\t1\n", "{} gives all 2 pairs the same label, 1. Add pairs with "
                          "another label."),
    "retrieval, column": ("query\tbody\na\tb\n", "{} should have the columns query + text | question + answer, but has "
                          "query, body. Rename the columns that hold them to text, or name two of them with "
                          "--columns."),
    "retrieval, one pair": ("query\ttext\na\tb\n", "{} holds 1 pair, but a ranking needs at least 2. Give more "
                            "pairs."),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_are_no_pairs_of_a_kind_is_refused_with_its_line(write, case, refusal):
    kind, (content, message) = case.partition(",")[0], REFUSED[case]
    path = write("a.tsv", content)
    assert refusal(lambda: load_related(path) if kind == "related" else load_pairs(path, kind)) == (
        message.format(path)
    )


def test_a_cell_that_is_missing_in_jsonl_is_refused(write, refusal):
    path = write("a.jsonl", '{"sentence1": "a", "sentence2": null, "score": 1}\n')
    assert "line 1: the column sentence2 should hold text, got None" in refusal(load_pairs, path, "graded")
