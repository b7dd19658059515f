import csv

import pytest

from bertflow.data.sts import scored_pairs
from bertflow.data.sts_tasks import LAYOUTS


def read(path, layout, name=None, scale=(0.0, 5.0)):
    """The pairs of a file, each with its score and its sub-set."""
    pairs = scored_pairs(LAYOUTS[layout](path.parent, name or path.name), scale)
    return list(zip(pairs.first, pairs.second, pairs.target, pairs.subsets, strict=True))


@pytest.fixture
def semeval(write):
    """Write the sub-set X of a SemEval package and give one of its files."""

    def write_package(inputs: str, golds: str):
        write("STS.gs.X.txt", golds)
        return write("STS.input.X.txt", inputs)

    return write_package


AB = ("a", "b", 1.0, "X")
SUBSETS = {
    "blank gold drops its pair": ("a\tb\nc\td\ne\tf\ng\th\n", "1\n\n \n4.5\n", [AB, ("g", "h", 4.5, "X")]),
    "notes": ("a\tb\tnote\tnote\nc\td\tnote\tnote\n", "1\n2\n", [AB, ("c", "d", 2.0, "X")]),
    "unbalanced quotation marks": ('"a\tb\nc"\td\n', "1\n2\n", [('"a', "b", 1.0, "X"), ('c"', "d", 2.0, "X")]),
    "sentences stay as they stand": (" a  b.\tc \n", "1\n", [(" a  b.", "c ", 1.0, "X")]),
}


@pytest.mark.parametrize("case", SUBSETS)
def test_a_subset_of_semeval_is_read_line_by_line(semeval, case):
    inputs, golds, expected = SUBSETS[case]
    assert read(semeval(inputs, golds), "semeval", "X") == expected


def test_stsb_is_separated_by_tabs_without_quoting(write):
    lines = [
        'main-news\theadlines\t2015\t0001\t4.250\t"Quoted\tNot quoted',
        "main-news\theadlines\t2015\t0002\t0\tPlain\tAlso plain\tsource\tsource",
        'main-news\theadlines\t2015\t0003\t1.0\tEnd"\tof it',
    ]
    path = write("sts-dev.csv", "\n".join(lines) + "\n")
    with path.open(newline="") as file:
        assert len(list(csv.reader(file, delimiter="\t"))) == 1  # the trap: default quoting merges lines
    assert read(path, "stsb") == [
        ('"Quoted', "Not quoted", 4.25, "all"),
        ("Plain", "Also plain", 0.0, "all"),
        ('End"', "of it", 1.0, "all"),
    ]


SICK = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\r\n"


def test_sick_has_a_header_and_may_have_crlf(write):
    path = write("SICK.txt", f"{SICK}6\tA b\tC d\t3.3\tNEUTRAL\r\n7\tE f\tG h\t5\tENTAILMENT\r\n")
    assert read(path, "sick", scale=(1.0, 5.0)) == [("A b", "C d", 3.3, "all"), ("E f", "G h", 5.0, "all")]


REFUSED = {
    "counts": ("a\tb\nc\td\n", "1\n", "{0}/STS.input.X.txt has 2 lines and {0}/STS.gs.X.txt has 1, but line i of one "
               "should score line i of the other. Fetch both again."),
    "no number": ("a\tb\nc\td\n", "1\ntwo\n", "{0}/STS.input.X.txt + STS.gs.X.txt, line 2: a score should be a "
                  "number, got 'two'. Repair the score or leave the pair out."),
    "one sentence": ("a\tb\nc\n", "1\n2\n", "{0}/STS.input.X.txt + STS.gs.X.txt, line 2: two sentences and a score are "
                     "wanted, separated by tabs, got ['X', '2', 'c']. Fetch the file again."),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_damaged_subset_is_refused(semeval, case, refusal):
    inputs, golds, message = REFUSED[case]
    path = semeval(inputs, golds)
    assert refusal(read, path, "semeval", "X") == (message.format(path.parent))


@pytest.mark.parametrize("missing", ["STS.input.X.txt", "STS.gs.X.txt"])
def test_a_missing_subset_is_refused(semeval, missing, refusal):
    path = semeval("a\tb\n", "1\n")
    (path.parent / missing).unlink()
    said = refusal(read, path, "semeval", "X")
    assert said == f"The sub-set X should be in {path.parent}/{missing}, which is missing. Is the folder complete?"
