import csv

import pytest

from bertflow.data.sts import read_semeval, read_sick, read_stsb
from bertflow.errors import DataError

SCALE = (0.0, 5.0)


@pytest.fixture
def semeval(write):
    """Write one sub-set of a SemEval package and give its folder."""

    def write_package(inputs: str, golds: str):
        write("STS.gs.X.txt", golds)
        return write("STS.input.X.txt", inputs).parent

    return write_package


def test_a_blank_gold_line_drops_its_pair(semeval):
    folder = semeval("a\tb\nc\td\ne\tf\ng\th\n", "1\n\n \n4.5\n")
    assert read_semeval(folder, "X", SCALE) == [("a", "b", 1.0, "X"), ("g", "h", 4.5, "X")]


def test_columns_of_source_notes_are_ignored(semeval):
    folder = semeval("a\tb\tnote\tnote\nc\td\tnote\tnote\n", "1\n2\n")
    assert [pair[:2] for pair in read_semeval(folder, "X", SCALE)] == [("a", "b"), ("c", "d")]


def test_unbalanced_quotation_marks_stay_in_their_line(semeval):
    folder = semeval('"a\tb\nc"\td\n', "1\n2\n")
    assert [pair[:2] for pair in read_semeval(folder, "X", SCALE)] == [('"a', "b"), ('c"', "d")]


def test_sentences_stay_as_they_stand(semeval):
    folder = semeval(" a  b.\tc \n", "1\n")
    assert read_semeval(folder, "X", SCALE)[0][:2] == (" a  b.", "c ")


def test_stsb_is_separated_by_tabs_without_quoting(write):
    lines = [
        'main-news\theadlines\t2015\t0001\t4.250\t"Quoted\tNot quoted',
        "main-news\theadlines\t2015\t0002\t0\tPlain\tAlso plain\tsource\tsource",
        'main-news\theadlines\t2015\t0003\t1.0\tEnd"\tof it',
    ]
    path = write("sts-dev.csv", "\n".join(lines) + "\n")
    with path.open(newline="") as file:
        assert len(list(csv.reader(file, delimiter="\t"))) == 1  # the trap: default quoting merges lines
    assert read_stsb(path.parent, path.name, SCALE) == [
        ('"Quoted', "Not quoted", 4.25, "all"),
        ("Plain", "Also plain", 0.0, "all"),
        ('End"', "of it", 1.0, "all"),
    ]


def test_sick_has_a_header_and_may_have_crlf(write):
    content = (
        "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\r\n"
        "6\tA b\tC d\t3.3\tNEUTRAL\r\n7\tE f\tG h\t5\tENTAILMENT\r\n"
    )
    path = write("SICK.txt", content)
    assert read_sick(path.parent, path.name, (1.0, 5.0)) == [("A b", "C d", 3.3, "all"), ("E f", "G h", 5.0, "all")]


SEMEVAL_REFUSED = {
    "counts": ("a\tb\nc\td\n", "1\n", "{0}/STS.input.X.txt has 2 lines and {0}/STS.gs.X.txt has 1, but line i of one "
               "should score line i of the other. Fetch both again."),
    "no number": ("a\tb\nc\td\n", "1\ntwo\n", "{0}/STS.gs.X.txt, line 2: a score should be a number, got 'two'. Repair "
                  "the score or leave the pair out."),
    "nan": ("a\tb\n", "nan\n", "{0}/STS.gs.X.txt, line 1: a score should be a number, got 'nan'. Repair the score or "
            "leave the pair out."),
    "too high": ("a\tb\n\n", "5.1\n\n", "{0}/STS.gs.X.txt, line 1: a score should lie between 0 and 5, got 5.1. Repair "
                 "the score."),
    "one sentence": ("a\tb\nc\n", "1\n2\n", "{0}/STS.input.X.txt, line 2: at least 2 cells, separated by tabs, are "
                     "wanted, but 1 are there. Fetch the file again."),
    "empty sentence": ("a\t \n", "1\n", "{0}/STS.input.X.txt, line 1: a pair needs two sentences, but one is ' '. "
                       "Leave the pair out."),
}  # fmt: skip


@pytest.mark.parametrize("case", SEMEVAL_REFUSED)
def test_a_damaged_subset_is_refused(semeval, case):
    inputs, golds, message = SEMEVAL_REFUSED[case]
    folder = semeval(inputs, golds)
    with pytest.raises(DataError) as error:
        read_semeval(folder, "X", SCALE)
    assert str(error.value) == message.format(folder)


@pytest.mark.parametrize("missing", ["STS.input.X.txt", "STS.gs.X.txt"])
def test_a_missing_subset_is_refused(semeval, missing):
    folder = semeval("a\tb\n", "1\n")
    (folder / missing).unlink()
    with pytest.raises(DataError) as error:
        read_semeval(folder, "X", SCALE)
    assert str(error.value) == (
        f"The sub-set X should be in {folder}/{missing}, which is missing. Is the folder complete?"
    )


def test_a_short_line_of_stsb_is_refused(write):
    path = write("sts-dev.csv", "genre\tfile\t2015\t1\t3.0\tonly one\n")
    with pytest.raises(DataError) as error:
        read_stsb(path.parent, path.name, SCALE)
    assert str(error.value) == (
        f"{path}, line 1: at least 7 cells, separated by tabs, are wanted, but 6 are there. Fetch the file again."
    )


def test_sick_is_scored_from_one(write):
    path = write("SICK.txt", "header\n6\tA b\tC d\t0.5\tNEUTRAL\n")
    with pytest.raises(DataError) as error:
        read_sick(path.parent, path.name, (1.0, 5.0))
    assert str(error.value) == f"{path}, line 2: a score should lie between 1 and 5, got 0.5. Repair the score."
