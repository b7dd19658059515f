"""CoNLL columns as they come, and entities counted by hand."""

import gzip

import pytest

from bertflow.data.labeled import TaggedText, entities, is_conll, load_conll, load_labels

CONLL2003 = """\
-DOCSTART- -X- -X- O

EU NNP B-NP B-ORG
rejects VBZ B-VP O
German JJ B-NP B-MISC

# # B-NP O
New NNP I-NP B-LOC
York NNP I-NP I-LOC
"""
UNIVERSAL = """\
# sent_id = 1
1-2\tdu\t_\t_\t_\t_\t_\t_\t_\t_
1\tde\tde\tADP\t_\t_\t0\troot\t_\t_
2\tle\tle\tDET\t_\t_\t1\tdet\t_\t_
2.1\tvu\tvoir\tVERB\t_\t_\t_\t_\t_\t_

1\t10 000\t10000\tNUM\t_\t_\t0\troot\t_\t_
"""


def test_the_word_is_first_and_the_tag_is_last(write):
    text = load_conll(write("a.conll", CONLL2003))
    assert text.sentences == (("EU", "rejects", "German"), ("#", "New", "York"))
    assert text.tags == (("B-ORG", "O", "B-MISC"), ("O", "B-LOC", "I-LOC"))
    assert (text.source, text.spells_entities) == ("a.conll", True)


@pytest.mark.parametrize(("columns", "tags"), [((1, 2), ("NNP", "VBZ", "JJ")), ((1, -2), ("B-NP", "B-VP", "B-NP"))])
def test_other_columns_can_be_named(columns, tags, write):
    assert load_conll(write("a.txt", CONLL2003), columns).tags[0] == tags


def test_conllu_has_comments_ranges_and_empty_nodes(write):
    text = load_conll(write("a.conllu", UNIVERSAL))
    assert text.sentences == (("de", "le"), ("10 000",))
    assert text.tags == (("ADP", "DET"), ("NUM",))
    assert not text.spells_entities


def test_tabs_crlf_a_line_of_blanks_and_gzip_are_read(tmp_path):
    path = tmp_path / "wnut.conll.gz"
    path.write_bytes(gzip.compress("at\tO\r\nhome\u00a0again\tB-x\r\n\t\r\nhi\tO\r\n".encode()))
    assert load_conll(path).sentences == (("at", "home\u00a0again"), ("hi",))


def test_a_hard_space_is_part_of_a_word(write):
    assert load_conll(write("a.conll", "10\u00a0000 NUM\nhi X\n")).sentences == (("10\u00a0000", "hi"),)


KNOWN = [
    ("eng.train", CONLL2003, True),
    ("a.txt", "a\tX\nb\tY\n\nc\tX\n", True),
    ("a.tsv", "a dog\tanimal\n\nthe house\tthing\n", False),  # sentences with a label, and an empty line
    ("a.tsv", "word\tlabel\ndog\tanimal\n\nhouse\tthing\n", False),  # its header says what it is
    ("a.txt", "a dog runs\n\nthe cat sleeps now\n", True),  # nothing tells it from columns; the reader refuses it
    ("a.txt", "dog\ncat\n\nbird\n", False),
    ("a.tsv", "dog\tanimal\nhouse\tthing\n", False),
    ("a.csv", "text,label\n\na,b\n", False),
    ("a.bio", "a O\n", True),
]


@pytest.mark.parametrize(("name", "content", "expected"), KNOWN)
def test_a_file_is_known_by_its_ending_or_by_its_first_sentence(name, content, expected, write):
    assert is_conll(write(name, content)) is expected


REFUSED = {
    "columns": ("a O\nb B-x\nc\n", None, "{}, line 3: 2 columns are wanted, as in line 1, but 1 are there. "
                "Repair the line."),
    "no such column": ("a O\nb B-x\n", (1, 4), "{}, line 1: the columns 1 and 4 are wanted, but there are 2. "
                       "Name those of the word and of the tag, from 1."),
    "empty cell": ("a\t1\tO\nb\t\tO\nc\t1\tI\n", (1, 2), "{}, line 2: a word and its tag are wanted, got 'b\\t\\tO'. "
                   "Repair the line."),
    "one tag": ("a O\nb O\n", None, "{} should hold two tags or more, but holds 1. Give more text."),
    "a slip": ("a B-x\nb I_x\nc O\n", None, "{}: tags such as B-x spell entities, but 'I_x' does not. "
               "Repair the tag, or choose another column."),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_holds_no_words_with_tags_is_refused(case, write, refusal):
    content, columns, message = REFUSED[case]
    path = write("a.conll", content)
    assert refusal(load_conll, path, columns) == message.format(path)


@pytest.mark.parametrize(
    ("names", "expected"),
    [("B-x I-x O", True), ("I-x O", True), ("B I O", True), ("I O", True), ("S U", False), ("NOUN O", False)],
)
def test_tags_spell_entities_or_do_not(names, expected):
    assert TaggedText((("a",),), (tuple(names.split()),), "").spells_entities is expected


ENTITIES = {
    "nothing": ("O O", set()),
    "IOB2": ("B-a I-a O B-a B-a", {(0, 2, "a"), (3, 4, "a"), (4, 5, "a")}),
    "IOB1: I begins one, B parts two": ("I-a I-a B-a O I-b", {(0, 2, "a"), (2, 3, "a"), (4, 5, "b")}),
    "another type begins another": ("B-a I-b I-b", {(0, 1, "a"), (1, 3, "b")}),
    "BIOES": ("B-a I-a E-a S-b S-b O", {(0, 3, "a"), (3, 4, "b"), (4, 5, "b")}),
    "what a classifier makes up": ("S-a I-a O E-a I-a", {(0, 1, "a"), (1, 2, "a"), (3, 4, "a"), (4, 5, "a")}),
    "BILOU": ("B-a L-a U-a", {(0, 2, "a"), (2, 3, "a")}),
    "without types": ("B I O I", {(0, 2, ""), (3, 4, "")}),
    "a type with a hyphen": ("B-creative-work I-creative-work", {(0, 2, "creative-work")}),
}


@pytest.mark.parametrize("case", ENTITIES)
def test_entities_by_hand(case):
    tags, expected = ENTITIES[case]
    assert entities(tags.split()) == expected


# Texts with a label each


LABELED = [
    ("a.tsv", "a dog\tanimal\nthe  house\tthing\n"),
    ("a.tsv", "text\tlabel\na dog\tanimal\nthe house\tthing\n"),
    ("a.csv", "label,sentence\nanimal,a dog\nthing,the house\n"),
    ("a.jsonl", '{"word": "a dog", "label": "animal"}\n{"word": "the house", "label": "thing"}\n'),
]


@pytest.mark.parametrize(("name", "content"), LABELED)
def test_texts_and_labels_are_read(name, content, write):
    found = load_labels(write(name, content))
    assert (found.texts, found.labels, found.source) == (("a dog", "the house"), ("animal", "thing"), name)


def test_numbers_are_labels(write):
    assert load_labels(write("a.jsonl", '{"text": "a", "label": 1}\n{"text": "b", "label": 0}\n')).labels == ("1", "0")


NOT_LABELED = {
    "one label": ("a.tsv", "a dog\tanimal\na cat\tanimal\n", "{} should hold two labels or more, but holds 1. Give "
                  "more text."),
    "columns": ("a.csv", "a,b\nx,y\n", "{} should have the columns text + label | sentence + label | word + label, but "
                "has a, b. Rename the columns that hold them to text, label, or name those of text and label with "
                "--columns."),
}  # fmt: skip


@pytest.mark.parametrize("case", NOT_LABELED)
def test_a_file_that_holds_no_labeled_text_is_refused(write, case, refusal):
    name, content, message = NOT_LABELED[case]
    path = write(name, content)
    assert refusal(load_labels, path) == message.format(path)
