"""Answers and labels: a few lines of each format, and what is refused."""

import json

import pyarrow
import pyarrow.parquet
import pytest

from bertflow.data.corpus import Answer, load_answer_labels, load_answers
from bertflow.errors import UsageError

ASKED = "sku;category;description;asked\n7;pens;Writes.;Does it write?||Is it blue?\n"
EXPECTED = [Answer("a1", "Press the button.", ("How?", "What now?")), Answer("2", "It is free.")]
TABLES = {
    "answers.tsv": "id\ttext\tquestions\na1\tPress the button.\tHow? || What now?\n2\tIt is free.\t\n",
    "answers.csv": 'id,text,questions\na1,Press the button.,"How?||What now?"\n2,It is free.,\n',
    "answers.jsonl": "".join(
        json.dumps(row) + "\n"
        for row in (
            {"id": "a1", "text": "Press the button.", "questions": ["How?", "What now?"]},
            {"id": 2, "text": "It is free.", "questions": None},
        )
    ),
}


PEN = [Answer("7", "A pen\nIt does not write.", ("A pen",)), Answer("8", "Nor does it erase.")]
FOUND = {
    **{name: (name, content, None, EXPECTED) for name, content in TABLES.items()},
    "no past questions": ("answers.tsv", "ID\tText\na\tYes.\n", None, [Answer("a", "Yes.")]),
    "questions and answers": ("faq.tsv", "id\tquestion\tanswer\na1\tHow? || What now?\tPress the button.\n"
                              "2\t\tIt is free.\n", None, EXPECTED),
    **{header: ("tickets.csv", f"{header}\n7,A pen,It does not write.,3\n8,,Nor does it erase.,3\n", None, PEN)
       for header in ("id,subject,body,status", "id,Title,body,status", "id,title,text,author",
                      "id,title,description,price")},
    "no subject": ("tickets.csv", "id,body,status\n7,It does not write.,open\n", None,
                   [Answer("7", "It does not write.")]),
    "three columns that are named": ("faq.csv", ASKED, "sku,description,asked", [Answer("7", "Writes.",
                                     ("Does it write?", "Is it blue?"))]),
    "two columns that are named": ("faq.csv", ASKED, "sku, Description", [Answer("7", "Writes.")]),
}  # fmt: skip


@pytest.mark.parametrize("case", FOUND)
def test_answers_are_found_with_their_past_questions_and_their_titles_before_them(write, case):
    name, content, columns, expected = FOUND[case]
    assert load_answers(write(name, content), columns) == expected


def test_parquet_holds_the_same(tmp_path):
    path = tmp_path / "answers.parquet"
    columns = {"id": ["a1", "2"], "text": [one.text for one in EXPECTED], "questions": [["How?", "What now?"], []]}
    pyarrow.parquet.write_table(pyarrow.table(columns), path)
    assert load_answers(path) == EXPECTED


YES = [Answer("1", "Yes."), Answer("2", "Yes.")]


NUMBERED = [
    ("question,answer\nHow?,Yes.\n,Yes.\n", [Answer("1", "Yes.", ("How?",)), YES[1]], "answer, question (see"),
    ("sku,Text\n7,Yes.\n", YES[:1], "Text (unused: sku; see"),
    ("ID,text\n7,Yes.\n", [Answer("7", "Yes.")], "ID, text (see"),
]


@pytest.mark.parametrize(("content", "expected", "said"), NUMBERED)
def test_a_new_index_numbers_answers_without_ids(write, content, expected, said, caplog):
    caplog.set_level("INFO")
    path = write("faq.csv", content)
    assert load_answers(path, numbered=True) == expected
    numbered = [] if content.startswith("ID") else [f"{path} has no column id: the answers are numbered from 1."]
    assert caplog.messages == [f"{path}: using column{'s' * (', ' in said)} {said} --columns)", *numbered]
    if not expected[0].questions:
        ids, texts = content.splitlines()[0].split(",")
        load_answers(path, f"{ids},{texts}")
        assert caplog.messages[-1] == f"{path}: {ids} holds the ids, {texts} the texts."


@pytest.mark.parametrize(("name", "columns"), [("faq.csv", "description"), ("faq.txt", None)])
def test_a_column_of_text_and_plain_lines_are_numbered_where_that_is_asked_for(write, refusal, name, columns):
    path = write(name, "sku;description\n7;Writes.\n9;Erases.\n" if columns else "Writes.\nErases.\n")
    assert load_answers(path, columns, numbered=True) == [Answer("1", "Writes."), Answer("2", "Erases.")]
    assert refusal(load_answers, path, columns).startswith(f"{path} has no column id. Add one, or name")


def test_the_phrases_of_an_answer_are_its_text_first_and_each_once():
    assert Answer("a", "text", ("one", "text", "one", "two")).phrases == ("text", "one", "two")


SKUS = "sku;description\n7;Writes.\n"
REFUSED = {
    "no ids": ("faq.csv", "question,answer\nHow?,Yes.\n", None, "{} has no column id. Add one, or name the column that "
               "holds the ids with --columns."),
    "other columns": ("faq.csv", "sku,note\n1,Yes.\n", None, "{} should have the columns text + questions | answer + "
                      "questions | answer + question | text + title | description + title | body + title | body + "
                      "subject | text | answer | description | body, but has sku, note. Name the column of text with "
                      "--columns; or those of id, text and, if there are any, past questions."),
    **{f"no column for {named}": ("faq.csv", SKUS, named, "{} has no column 'text'. Its columns: sku, description. "
       "Name some of these with --columns, or number them, from 1, if the file has no header.")
       for named in ("sku,text", "text, SKU")},
    "an empty text": ("answers.tsv", "id\ttext\na\t \n", None, "{}, line 2: the column text should hold text, got "
                      "' '. Fill it in, or leave the line out."),
    "an empty id": ("answers.tsv", "id\ttext\n\tYes.\n", None, "{}, line 2: the column id should hold text, got ''. "
                    "Fill it in, or leave the line out."),
    "an id twice": ("answers.tsv", "id\ttext\na\tYes.\nb\tNo.\na\tMaybe.\n", None, "{}, line 4: the id 'a' is "
                    "already in line 2. Give each answer an id of its own, and its past questions in one cell."),
    "no list of questions": ("answers.jsonl", '{"id": "a", "text": "Yes.", "questions": [1]}\n', None, "{}, line 1: "
                             "past questions should be a list of texts, got [1]. Repair it."),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_are_no_answers_is_refused_with_its_line(write, case, refusal):
    name, content, columns, message = REFUSED[case]
    path = write(name, content)
    assert refusal(load_answers, path, columns) == message.format(path)


def test_four_columns_are_too_many(write, refusal):
    assert refusal(load_answers, write("faq.csv", SKUS), "a,b,c,d", error=UsageError) == (
        "--columns takes text, or id, text and, if there are any, past questions, as a,b or a,b,c; got 'a,b,c,d'."
    )


def test_a_question_may_have_several_right_answers(write):
    path = write("labels.tsv", "question\tid\nHow?\ta\nWhy?\tb\nHow?\tc\n")
    assert load_answer_labels(path) == {"How?": {"a", "c"}, "Why?": {"b"}}


def test_labels_without_questions_are_refused(write, refusal):
    path = write("labels.tsv", "question\tid\n")
    assert "holds no questions" in refusal(load_answer_labels, path)
