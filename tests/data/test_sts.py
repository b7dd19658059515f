"""Tasks from small folders, and the real ones against plain loops over their files."""

import gzip
import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from bertflow.data.pairs import Pairs, unique_sentences
from bertflow.data.sts import TASKS, StsSource, load_sts, pair_keys
from bertflow.errors import UnknownNameError

OWN = "sentence1\tsentence2\tscore\nA b.\tC d.\t1\nE f.\tA b.\t2\nG h.\tI j.\t70\n"
STS7 = ("sts12", "sts13", "sts14", "sts15", "sts16", "stsb", "sickr")

# Pairs, mean gold score: the tables of the data's own README.
REAL = {
    "sts12": (3108, 3.5061),
    "sts13": (1500, 2.3362),
    "sts14": (3750, 2.8114),
    "sts15": (3000, 2.4059),
    "sts16": (1186, 2.4132),
    "stsb": (1379, 2.6079),
    "stsb-dev": (1500, 2.3639),
    "stsb-train": (5749, 2.7010),
    "sickr": (4927, 3.5300),
    "sickr-train": (4500, 3.5209),
    "sickr-trial": (500, 3.5944),
}


@pytest.fixture(scope="session")
def sts_dir(shared_data):
    return shared_data / "sts"


def known_names(task):
    return (
        f"Unknown task {task!r}. Known: sts12, sts13, sts14, sts15, sts16, stsb, stsb-dev, stsb-train, sickr, "
        "sickr-train, sickr-trial, sickr-all, tuning, sts7; and any table of your own with sentence1, sentence2, "
        "score: its path, or its name in the data folder."
    )


SUITES = [
    ("sts7", STS7),
    (["sts7"], STS7),
    ("sts12, stsb", ("sts12", "stsb")),
    (["stsb", "sts7"], ("stsb", "sts12", "sts13", "sts14", "sts15", "sts16", "sickr")),
    ("tuning,stsb", ("tuning", "stsb")),
]


@pytest.mark.parametrize(("tasks", "expected"), SUITES)
def test_suites_are_spelled_out_once(tasks, expected):
    assert StsSource(tasks, "hub").names == expected


def test_a_name_in_the_data_folder_is_a_task(write):
    folder = write("mine.jsonl.gz", gzip.compress(b"{}")).parent
    assert StsSource("mine,stsb", folder).names == ("mine", "stsb")
    with pytest.raises(UnknownNameError):
        StsSource("mine", "hub")


@pytest.mark.parametrize("task", ["sts17", ""])
def test_an_unknown_task_is_refused(tmp_path, task, refusal):
    for call in (StsSource, load_sts):
        assert refusal(call, task, tmp_path, error=UnknownNameError) == known_names(task)


@pytest.mark.parametrize("how", ["name", "path"])
def test_a_task_of_ones_own_is_a_table(write, how):
    path = write("mine.tsv", OWN)
    pairs = load_sts("mine", path.parent) if how == "name" else load_sts(str(path), "no-such-folder")
    assert (pairs.task, pairs.split, pairs.source, pairs.text_form) == ("mine", "own", "mine.tsv", "raw")
    assert pairs.first == ("A b.", "E f.", "G h.")
    assert pairs.second == ("C d.", "A b.", "I j.")
    assert pairs.target.tolist() == [1, 2, 70]  # any scale
    assert pairs.subsets == ("all", "all", "all")


def test_unique_sentences_come_in_the_order_of_their_first_appearance(write):
    mine = load_sts(str(write("mine.tsv", OWN)), "")
    other = load_sts(str(write("other.tsv", OWN.replace("G h.", "a b."))), "")
    assert unique_sentences([mine, other]) == ["A b.", "C d.", "E f.", "G h.", "I j.", "a b."]


def test_pairs_are_the_same_in_either_order_and_spelling():
    first, second = ("A man's hat.", "b", "a", "a"), ("B", "a man 's hat", "b", "c")
    one, same, other, another = pair_keys(Pairs("mine", first, second))
    assert one == same
    assert other != another


@pytest.fixture
def small_sts13(monkeypatch):
    """STS13 as if its sub-sets had two pairs and one."""
    row = replace(TASKS["sts13"], pairs={"FNWN": 2, "OnWN": 1}, files=("FNWN", "OnWN"))
    monkeypatch.setattr("bertflow.data.sts.TASKS", {**TASKS, "sts13": row})


def write_sts13(write, folder, fnwn="a\tb\nC\td\n"):
    write(f"{folder}/STS.input.FNWN.txt", fnwn)
    write(f"{folder}/STS.gs.FNWN.txt", "".join(f"{k}\n" for k in range(fnwn.count("\n"))))
    write(f"{folder}/STS.input.OnWN.txt", "e\tf\n")
    return write(f"{folder}/STS.gs.OnWN.txt", "5\n").parent.parent


@pytest.mark.parametrize("folder", ["STS13", "STS13-en-test"])
def test_a_package_is_read_sub_set_by_sub_set(write, small_sts13, folder):
    pairs = load_sts("sts13", write_sts13(write, folder))
    assert list(zip(pairs.first, pairs.second, pairs.target, pairs.subsets, strict=True)) == [
        ("a", "b", 0, "FNWN"),
        ("C", "d", 1, "FNWN"),
        ("e", "f", 5, "OnWN"),
    ]
    assert (pairs.split, pairs.source, pairs.text_form) == ("test", folder, "raw")


def test_lower_cased_text_is_known_for_sentevals(write, small_sts13):
    assert load_sts("sts13", write_sts13(write, "STS13", "a\tb\nc\td\n")).text_form == "senteval"


def test_a_sub_set_with_pairs_too_few_or_many_is_refused(write, small_sts13, refusal):
    folder = write_sts13(write, "STS13", "a\tb\nc\td\ne\tf\n")
    said = refusal(load_sts, "sts13", folder)
    assert said == f"The sub-set FNWN of the task sts13 has 2 pairs, but {folder}/STS13 gives 3. Fetch it again."


def test_a_table_comes_before_a_package(write, small_sts13):
    folder = write_sts13(write, "STS13")
    write("sts13.tsv", "sentence1\tsentence2\tscore\tsubset\nu\tv\t1\tFNWN\nw\tx\t2\tFNWN\ny\tz\t3\tOnWN\n")
    assert load_sts("sts13", folder).source == "sts13.tsv"


@pytest.mark.parametrize(("file", "task"), [("mine.tsv", "mine"), ("stsb.tsv", "stsb.tsv"), ("sts7.tsv", "sts7.tsv")])
def test_a_table_that_is_given_by_its_path_is_not_taken_for_a_known_task(file, task, write):
    pairs = load_sts(str(write(file, OWN)), None)
    assert (pairs.task, pairs.split) == (task, "own")


HEADER = "sentence1\tsentence2\tscore\n"
REFUSED = {
    "two tables": ("mine", {"mine.tsv": OWN, "mine.csv": OWN}, "The task mine should be in one table, but there are "
                   "{0}/mine.tsv and {0}/mine.csv. Remove one."),
    "too few": ("mine", {"mine.tsv": OWN.rpartition("G h.")[0]}, "{0}/mine.tsv holds 2 pairs, but a correlation needs "
                "at least 3. Give more pairs."),
    "one score": ("mine", {"mine.tsv": HEADER + "a\tb\t2.5\n" * 4}, "{0}/mine.tsv gives all 4 pairs the same score, "
                  "2.5. Add pairs with another score."),
    "no package": ("stsb", {}, "The task stsb should be in {0}/STSB or in a table {0}/stsb.tsv, but neither is there. "
                   "Complete the folder, or leave the task out."),
    "incomplete": ("sts13", {"sts13.tsv": HEADER + "u\tv\t1\nw\tx\t2\n"}, "The task sts13 has 3 pairs, but "
                   "{0}/sts13.tsv gives 2. Fetch it again."),
    "its scale": ("sickr", {"sickr.tsv": HEADER + "u\tv\t0\n"}, "{0}/sickr.tsv, line 2: a score should lie between 1 "
                  "and 5, got 0. Repair the score."),
    "no folder": ("sts12", None, "{0} should be the folder of the STS data, but there is no such folder. Give one that "
                  "holds STS12/, ..., STSB/, SICK/ or tables <task>.tsv."),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_task_that_cannot_be_scored_is_refused(write, tmp_path, small_sts13, refusal, case):
    task, files, message = REFUSED[case]
    for name, content in (files or {}).items():
        write(name, content)
    folder = tmp_path / "no" if files is None else tmp_path
    assert refusal(load_sts, task, folder) == message.format(folder)


@pytest.mark.parametrize("kind", ["jsonl.gz", "parquet"])
def test_a_task_comes_from_the_hub(write, tmp_path, own_cache, monkeypatch, kind):
    monkeypatch.setattr("bertflow.data.sts.TASKS", {"sts12": replace(TASKS["sts12"], pairs={"X": 3})})
    rows = [{"split": "test", "sentence1": f"a {k}", "sentence2": f"b {k}", "score": k / 2} for k in range(3)]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    if kind == "parquet":
        from datasets import Dataset

        (tmp_path / "mteb/sts12-sts").mkdir(parents=True)
        Dataset.from_list(rows).to_parquet(str(tmp_path / "mteb/sts12-sts/test.parquet"))
    else:
        write("mteb/sts12-sts/test.jsonl.gz", gzip.compress(lines.encode()))
    pairs = load_sts("sts12", f"hub:{tmp_path}")
    assert pairs.second == ("b 0", "b 1", "b 2")
    assert pairs.target.tolist() == [0.0, 0.5, 1.0]
    assert pairs.subsets == ("all", "all", "all")
    assert pairs.text_form == "senteval"
    assert pairs.source == "hub:mteb/sts12-sts@a0d554a64d88156834ff5ae9920b964011b16384:test"


def test_the_hub_must_give_all_pairs(write, tmp_path, own_cache, refusal):
    write("mteb/sts12-sts/test.jsonl", '{"sentence1": "a", "sentence2": "b", "score": 1.0}\n')
    assert refusal(load_sts, "sts12", f"hub:{tmp_path}") == (
        "The task sts12 has 3108 pairs, but mteb/sts12-sts@a0d554a64d88156834ff5ae9920b964011b16384:test gives 1. "
        "Fetch it again."
    )


@pytest.mark.parametrize("task", ["sickr", "tuning"])
def test_a_task_that_is_not_on_the_hub_says_which_are(task, refusal):
    assert refusal(load_sts, task, "hub") == (
        f"The task {task} is not on the hub. On it are: sts12, sts13, sts14, sts15, sts16, stsb, stsb-dev, "
        "stsb-train, sickr-all. Give a folder of the data instead."
    )


@pytest.mark.parametrize("task", REAL)
def test_real_tasks_have_the_pairs_and_means_of_the_readme(sts_dir, task):
    n, mean = REAL[task]
    pairs = load_sts(task, sts_dir)
    assert len(pairs) == n
    assert pairs.target.mean() == pytest.approx(mean, abs=5e-5)
    assert pairs.text_form == "raw"
    if any(subset != "all" for subset in pairs.subsets):
        assert Counter(pairs.subsets) == TASKS[task].pairs


@pytest.mark.parametrize("year", ["STS12", "STS13", "STS14", "STS15", "STS16"])
def test_real_packages_agree_with_a_plain_loop(sts_dir, year):
    expected = []
    for name in TASKS[year.lower()].pairs:
        inputs = (sts_dir / year / f"STS.input.{name}.txt").read_bytes().decode().split("\n")
        golds = (sts_dir / year / f"STS.gs.{name}.txt").read_bytes().decode().split("\n")
        for text, gold in zip(inputs, golds, strict=True):
            if gold:
                first, second = text.split("\t")[:2]
                expected.append((first, second, float(gold), name))
    pairs = load_sts(year.lower(), sts_dir)
    assert list(zip(pairs.first, pairs.second, pairs.target, pairs.subsets, strict=True)) == expected


def test_the_seven_tasks_have_their_distinct_sentences(sts_dir):
    assert len(unique_sentences(StsSource("sts7", sts_dir))) == 26_173


def test_sickr_all_is_the_three_splits(sts_dir):
    whole = load_sts("sickr-all", sts_dir)
    parts = [load_sts(task, sts_dir) for task in ("sickr-train", "sickr-trial", "sickr")]
    assert len(whole) == 9927
    assert whole.first == sum((part.first for part in parts), ())
    np.testing.assert_array_equal(whole.target, np.concatenate([part.target for part in parts]))
    assert set(whole.subsets) == {"all"}


def test_tuning_shares_few_pairs_with_what_is_reported(sts_dir):
    tuning = load_sts("tuning", sts_dir)
    assert Counter(tuning.subsets) == {"sick": 5000, "stsb-dev": 369}
    keys = pair_keys(tuning)
    shared = {}
    for task in STS7:
        reported = set(pair_keys(load_sts(task, sts_dir)))
        shared[task] = Counter(subset for subset, key in zip(tuning.subsets, keys, strict=True) if key in reported)
    assert {task: dict(counts) for task, counts in shared.items() if counts} == {
        "sts12": {"sick": 44},
        "sts15": {"sick": 1},
        "stsb": {"sick": 15},
        "sickr": {"sick": 102, "stsb-dev": 6},
    }
