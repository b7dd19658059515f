import pytest

from bertflow.data.binary import load_binary
from bertflow.errors import DataError


@pytest.mark.parametrize(
    "content",
    [
        "a\tb\tlabel\nx\ty\t1\nu\tv\t0\n",
        "sentence1\tsentence2\tlabel\nx\ty\t1\nu\tv\t0\n",
        "index\tquestion\tsentence\tlabel\n0\tx\ty\tentailment\n1\tu\tv\tnot_entailment\n",
    ],
)
def test_pairs_and_labels_are_read(write, content):
    pairs = load_binary(write("qnli.tsv", content))
    assert (pairs.task, pairs.a, pairs.b, len(pairs)) == ("qnli", ("x", "u"), ("y", "v"), 2)
    assert pairs.labels.tolist() == [1, 0]


def test_labels_of_jsonl_are_numbers(write):
    path = write("q.jsonl", '{"a": "x", "b": "y", "label": 0}\n{"a": "u", "b": "v", "label": 1}\n')
    assert load_binary(path).labels.tolist() == [0, 1]


REFUSED = {
    "label": ("a\tb\tlabel\nx\ty\t2\n", "{}, line 2: a label should be one of 0, 1, not_entailment, entailment, got "
              "'2'. Repair the label."),
    "empty cell": ("a\tb\tlabel\nx\t\t1\n", "{}, line 2: a pair needs two texts, but one is ''. Leave the pair out."),
    "one label": ("a\tb\tlabel\nx\ty\t1\nu\tv\t1\n", "{} should hold pairs of both labels, but 2 of its 2 are labelled "
                  "1. Give pairs of both kinds."),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_file_that_is_no_binary_task_is_refused(write, case):
    content, message = REFUSED[case]
    path = write("q.tsv", content)
    with pytest.raises(DataError) as error:
        load_binary(path)
    assert str(error.value) == message.format(path)
