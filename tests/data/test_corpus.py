import gc
import gzip
import itertools
import json
import logging

import pytest
from datasets import Dataset

from bertflow.advise.reading import read_documents
from bertflow.data.columns import added_up
from bertflow.data.corpus import TextSource, load_sentences, require_corpus
from bertflow.data.lines import skip_bad
from bertflow.data.tables import parse_hub_split

TABLES = {
    "text": ("text\tlabel\nA b.\t1\nC d.\t0\n", ["A b.", "C d."]),
    "sentence": ("idx\tsentence\n0\tA b.\n1\tC d.\n", ["A b.", "C d."]),
    "pair": ("sentence1\tsentence2\tgold_label\nA b.\tC d.\tneutral\n", ["A b.", "C d."]),
    "SICK": ("pair_ID\tsentence_A\tsentence_B\n1\tA b.\tC d.\n", ["A b.", "C d."]),
    "NLI, any case": ("\ufeffPremise\tHypothesis\tLabel\nA b.\tC d.\tneutral\n", ["A b.", "C d."]),
    "retrieval": ("query\ttext\nA b.\tC d.\n", ["A b.", "C d."]),
}


def test_sentences_are_cleaned_and_stand_once_in_the_order_given(write):
    path = write("a.txt", "  Two\twords \r\n\n \u3000\n\u200b\nOne.\nTwo words\none.\nOne.\n")
    assert load_sentences(path) == ["Two words", "One.", "one."]
    assert list(TextSource([path])) == ["Two words", "One.", "Two words", "one.", "One."]


@pytest.mark.parametrize("read", [load_sentences, lambda path: [one.sentences[0] for one in read_documents(path)]])
def test_a_first_line_that_names_a_column_is_no_sentence_and_that_is_said(write, caplog, read):
    caplog.set_level(logging.INFO)
    path = write("queries.txt", "Query\nA b.\ntext\n")
    assert read(path) == ["A b.", "text"]
    assert caplog.messages == [f"{path}: its first line, 'Query', is taken for the name of a column and left out."]


@pytest.mark.parametrize("read", [load_sentences, read_documents])
@pytest.mark.parametrize("content", ["", "\n  \n\t\n"])
def test_an_empty_file_is_named(write, refusal, read, content):
    path = write("empty.txt", content)
    assert refusal(read, path) == f"{path} should hold sentences, but holds none. Give text."


def test_a_stream_is_read_no_further_than_it_is_asked_for(write, refusal):
    path = write("a.txt", b"one\ntwo\n\xff\n")
    assert list(itertools.islice(TextSource([path]), 2)) == ["one", "two"]
    assert "line 3" in refusal(lambda: list(TextSource([path])))


def test_several_files_become_one_corpus(write):
    one, two = write("a.txt", "A b.\nC d.\n"), write("b.tsv.gz", gzip.compress(b"text\nC d.\nE f.\n"))
    assert load_sentences([one, str(two)]) == ["A b.", "C d.", "E f."]


@pytest.mark.parametrize("name", TABLES)
def test_the_columns_that_hold_text_are_found(write, name):
    content, expected = TABLES[name]
    assert load_sentences(write("a.tsv", content)) == expected


def test_the_columns_found_are_said(write, caplog):
    caplog.set_level("INFO")
    path = write("a.tsv", TABLES["NLI, any case"][0])
    load_sentences(path)
    said = f"{path}: using columns Premise, Hypothesis (unused: Label; see --columns); each row is 2 sentences"
    assert caplog.messages[0] == said


def test_a_column_of_another_name_is_found_by_its_text_and_repeated_sentences_are_counted(write, caplog):
    caplog.set_level("INFO")
    rows = "".join(f"A{n},a red chair of wood {n % 3},{n}\n" for n in range(9))
    path = write("shop.csv", f"sku,what we sell,price\n{rows}")
    assert len(load_sentences(path)) == 3
    assert caplog.messages == [
        f"{path}: using column what we sell (unused: sku, price; see --columns)",
        f"{path}: 9 sentences = 3 different + 6 repeated",
    ]
    assert added_up({"different": 1, "repeated": 1}) == "2 sentences = 1 different + 1 repeated"
    assert added_up({"used": 1, "in the labels": 0}, "rows") == "1 row = 1 used"


def test_a_title_above_the_header_is_refused(write, refusal):
    rows = "".join(f"{n};a red chair of wood;a chair with four legs {n}\n" for n in range(9))
    path = write("export.csv", f"Export of today;;\nid;title;body\n{rows}")
    assert refusal(load_sentences, path) == (
        f"{path} has text in a column without a name. The first line should hold the names of the columns: delete the "
        "lines above it, or add the name."
    )


def test_columns_may_be_named(write):
    path = write("a.csv", "text,note\nA b.,C d.\n")
    assert load_sentences(path, columns=["Note"]) == ["C d."]
    assert load_sentences(path, columns=["note", "text"]) == ["C d.", "A b."]


@pytest.mark.parametrize("cell", [None, "", "  ", "\0", "\u200b\u2060 \x07"])
def test_a_cell_in_which_nothing_can_be_seen_is_refused(write, refusal, cell):
    rows = [{"query": "A b.", "text": "C d."}, {"query": "E f.", "text": cell}, {"query": "G h.", "text": "I j."}]
    path = write("a.jsonl", "\n".join(map(json.dumps, rows)))
    what = f"the column text should hold text, got {cell!r}. Fill it in, or leave the line out."
    assert refusal(load_sentences, path) == f"{path}, line 2: {what}"
    with skip_bad(path.with_name("bad.tsv")) as skipped:
        assert load_sentences(path) == ["A b.", "C d.", "G h.", "I j."]  # the row is left out whole
    assert skipped.rows == [(str(path), "", 2, what)]


@pytest.mark.parametrize(("suffix", "expected"), [("", ["A b.", "C d."]), (":validation", ["E f."])])
def test_a_dataset_of_the_hub_is_text_too(tmp_path, write, own_cache, suffix, expected):
    write("owner/name/train.jsonl", '{"text": "A b."}\n{"text": "C d."}\n')
    write("owner/name/validation.jsonl", '{"text": "E f."}\n')
    assert load_sentences(f"hub:{tmp_path}/owner/name{suffix}") == expected


# The csv reader of datasets leaves a file to be closed when it is forgotten.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("ending", ["jsonl", "csv", "parquet"])
def test_a_dataset_of_the_hub_is_streamed_and_not_stored(tmp_path, write, own_cache, ending):
    path = write(f"owner/name/train.{ending}", "")
    getattr(Dataset.from_dict({"text": ["A b.", "C d."], "n": [1, 2]}), f"to_{ending.removesuffix('l')}")(str(path))
    assert list(TextSource([f"hub:{tmp_path}/owner/name"])) == ["A b.", "C d."]
    assert not list((tmp_path / "cache").rglob("train*.arrow"))
    gc.collect()


HUB = {
    "owner/name": {"path": "owner/name", "split": "train", "revision": None, "name": None},
    "owner/name@abc#en:test": {
        "path": "owner/name",
        "split": "test",
        "revision": "abc",
        "name": "en",
    },  # en:test", {"path": "owner/name", "split": "test", "revision": "abc", "name": "en"}),
    "owner/name#en": {
        "path": "owner/name",
        "split": "train",
        "revision": None,
        "name": "en",
    },  # en", {"path": "owner/name", "split": "train", "revision": None, "name": "en"}),
}


@pytest.mark.parametrize(("spelling", "expected"), HUB.items())
def test_a_hub_dataset_has_one_spelling(spelling, expected):
    assert parse_hub_split(spelling) == expected


def test_a_dataset_that_is_not_there_is_refused(tmp_path, own_cache, refusal):
    assert refusal(load_sentences, f"hub:{tmp_path}/none") == (
        f"The dataset {tmp_path}/none could not be loaded: Couldn't find any data file at {tmp_path}/none. "
        "Check its name, revision and split, and the way to the hub."
    )


REFUSED = {
    "no text column": ("a.tsv", "id\tlabel\n1\t0\n", None, "{} should have the columns query + text | text | "
                       "sentence | question + answer | text + paraphrase | anchor + positive | sentence1 + sentence2 | "
                       "sentence_A + sentence_B | premise + hypothesis | a + b | text1 + text2 | title + description | "
                       "title + body | subject + body, but has id, label. "
                       "Rename the columns that hold text, or name them with --columns (by number, from 1, if "
                       "the file has no header). If it holds one sentence per line, rename it to .txt."),
    "no such column": ("a.tsv", "id\ttext\n1\tA b.\n", ["body"], "{} has no column 'body'. Its columns: id, text. "
                       "Name some of these with --columns, or number them, from 1, if the file has no header."),
    "no text": ("a.jsonl", '{"text": "A b."}\n{"text": 7}\n', None, "{}, line 2: the column text should hold text, got "
                "7. Rename the columns that hold text, or name them with --columns."),
    "unknown ending": ("a.docx", "A b.", None, "{} should be text, by its ending one of .txt, .tsv, .csv, .xlsx, "
                       ".jsonl, .json, .parquet (text also .gz), or a dataset spelled hub:owner/name. Rename or "
                       "convert it."),
}  # fmt: skip


@pytest.mark.parametrize("line", ["One, with a comma.", "None."])
@pytest.mark.parametrize("columns", [None, ["1"]])
def test_sentences_in_a_csv_are_refused_with_what_to_do(write, refusal, line, columns):
    path = write("a.csv", f"{line}\nTwo, three, four.\nFive, six, seven, eight.\n")
    do = "rename a file of one sentence per line" if columns else "If it holds one sentence per line, rename it"
    assert refusal(load_sentences, path, columns).endswith(f"{do} to .txt.")


@pytest.mark.parametrize("case", REFUSED)
def test_a_file_without_text_is_refused(write, case, refusal):
    name, content, columns, message = REFUSED[case]
    path = write(name, content)
    assert refusal(load_sentences, path, columns) == message.format(path)


def test_a_corpus_of_one_sentence_is_no_corpus_to_fit_on(write, refusal):
    sentences = load_sentences(write("a.txt", "Alone.\nAlone.\n"))
    assert sentences == ["Alone."]
    said = refusal(require_corpus, sentences)
    assert said == "Fitting needs at least 2 different sentences, got 1. Give more text."


REAL = [
    ("nli/conjnli_dev.tsv.gz", None, 976),  # starts with a byte-order mark
    ("nli/snli_test.tsv.gz", None, 12961),
    ("text/wikisplit_tune.tsv.gz", ["1"], 5000),
    ("text/commonvoice_en_sentences.txt.gz", None, 49254),
]


@pytest.mark.parametrize(("file", "columns", "n"), REAL)
def test_real_text_has_as_many_sentences_as_its_authors_count(shared_data, file, columns, n):
    assert len(load_sentences(shared_data / file, columns)) == n
