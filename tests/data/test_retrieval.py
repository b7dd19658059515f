import logging

import pytest

from bertflow.data.retrieval import load_retrieval
from bertflow.errors import DataError


@pytest.mark.parametrize("header", ["query\ttext", "Question\tAnswer", "id\tQUERY\ttext"])
def test_each_query_has_its_text(write, header):
    lead = "7\t" if header.startswith("id") else ""
    pairs = load_retrieval(write("faq.tsv", f"{header}\n{lead}How?\tSo.\n{lead}When?\tNow.\n"))
    assert (pairs.task, pairs.queries, pairs.texts, len(pairs)) == ("faq", ("How?", "When?"), ("So.", "Now."), 2)
    assert pairs.source == "faq.tsv"


def test_a_query_or_text_that_comes_again_is_left_out_and_counted(write, caplog):
    rows = ["How?\tSo.", "HOW\tOtherwise.", "Why?\tso", "When?\tNow.", "When?\tNow."]
    path = write("faq.tsv", "\n".join(["query\ttext", *rows]))
    with caplog.at_level(logging.WARNING):
        pairs = load_retrieval(path)
    assert list(zip(pairs.queries, pairs.texts, strict=True)) == [("How?", "So."), ("When?", "Now.")]
    assert caplog.messages == [
        f"{path}: 3 of 5 pairs are left out, since their query or text stood before and one right text a query is "
        "scored."
    ]


REFUSED = {
    "column": ("query\tbody\na\tb\n", "{} should have the columns query + text | question + answer, but has query, "
               "body. Rename its columns."),
    "empty cell": ("query\ttext\na\tb\nc\t \n", "{}, line 3: a query and its text are wanted, but one is ' '. Leave "
                   "the pair out."),
    "one pair": ("query\ttext\na\tb\n", "{} holds 1 different pairs, but a ranking needs at least 2. Give more pairs."),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_file_that_is_no_retrieval_task_is_refused(write, case):
    content, message = REFUSED[case]
    path = write("faq.tsv", content)
    with pytest.raises(DataError) as error:
        load_retrieval(path)
    assert str(error.value) == message.format(path)
