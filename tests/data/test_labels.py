import pytest

from bertflow.data.corpus import load_labels
from bertflow.errors import DataError


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.tsv", "a dog\tanimal\nthe  house\tthing\n"),
        ("a.tsv", "text\tlabel\na dog\tanimal\nthe house\tthing\n"),
        ("a.csv", "label,sentence\nanimal,a dog\nthing,the house\n"),
        ("a.jsonl", '{"word": "a dog", "label": "animal"}\n{"word": "the house", "label": "thing"}\n'),
    ],
)
def test_texts_and_labels_are_read(name, content, write):
    found = load_labels(write(name, content))
    assert (found.texts, found.labels, found.source) == (("a dog", "the house"), ("animal", "thing"), name)


def test_numbers_are_labels(write):
    assert load_labels(write("a.jsonl", '{"text": "a", "label": 1}\n{"text": "b", "label": 0}\n')).labels == ("1", "0")


REFUSED = {
    "empty cell": ("a.tsv", "a dog\tanimal\n\tthing\n", "{}, line 2: the column 1 should hold text, got ''. Fill it "
                   "in, or leave the line out."),
    "one label": ("a.tsv", "a dog\tanimal\na cat\tanimal\n", "{} should hold two labels or more, but holds 1. Give "
                  "more text."),
    "columns": ("a.csv", "a,b\nx,y\n", "{} should have the columns text + label | sentence + label | word + label, but "
                "has a, b. Rename its columns."),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_file_that_holds_no_labelled_text_is_refused(write, case):
    name, content, message = REFUSED[case]
    path = write(name, content)
    with pytest.raises(DataError) as error:
        load_labels(path)
    assert str(error.value) == message.format(path)
