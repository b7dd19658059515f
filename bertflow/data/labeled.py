"""Text with labels, one each in a table; and words with tags in the columns of CoNLL, an empty line between sentences.

    labels    a table of text (or sentence, word) and label; or lines ``sentence<TAB>label`` without a header

    EU       NNP  B-NP  B-ORG        the word first and the tag last, as in CoNLL-2000 to 2003 and WNUT;
    rejects  VBZ  B-VP  O            columns are split at tabs, or at spaces where a line has no tab
    German   JJ   B-NP  B-MISC

Lines of ``-DOCSTART-`` are skipped. Elsewhere than in CoNLL-U (by its ending, .conllu) no line is a comment, since a
number sign may be a word. There the word is column 2 and the tag column 4, and the lines of multi-word tokens (1-2) and
of empty nodes (1.1) are skipped. All may be compressed (.gz).

Tags such as B-ORG spell entities: IOB1, IOB2 (BIO), BIOES or BILOU, with types or without.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import dropwhile, groupby, takewhile
from operator import itemgetter, not_
from pathlib import Path

from bertflow.data.columns import COLUMNS, open_columns, split_columns
from bertflow.data.lines import read_lines
from bertflow.data.tables import table_suffix
from bertflow.errors import DataError, shown

CONLL, CONLLU = (".conll", ".bio", ".iob", ".iob2", ".bioes"), ".conllu"
"""Endings of such files; others are looked into."""
DOCUMENT = "-DOCSTART-"
_ENTITY = re.compile(r"[BIESLU]-.+")
Span = tuple[int, int, str]
"""First word of an entity, the word behind its last, and its type."""


@dataclass(frozen=True)
class TaggedText:
    """Sentences of words, each word with a tag.

    Attributes:
        sentences: The words of each sentence.
        tags: The tags of each sentence.
        source: The file.
    """

    sentences: tuple[tuple[str, ...], ...]
    tags: tuple[tuple[str, ...], ...]
    source: str

    @cached_property
    def names(self) -> list[str]:
        """The different tags, sorted."""
        return sorted({tag for tags in self.tags for tag in tags})

    @property
    def spells_entities(self) -> bool:
        """Whether tags are those of entities: B-ORG, I-ORG, O, or B, I, O without types."""
        return any(map(_ENTITY.fullmatch, self.names)) or {"I", "O"} <= set(self.names) <= set("BIOESLU")


def is_conll(path: str | Path) -> bool:
    """Whether a file holds words in columns: by its ending, else by a first sentence and an empty line behind it."""
    name = Path(path).name.lower().removesuffix(".gz")
    if name.endswith((*CONLL, CONLLU)):
        return True
    if table_suffix(path) not in (None, ".tsv"):
        return False
    lines = (_cells(line) if line.strip() else [] for _, line in read_lines(path))
    first = list(takewhile(bool, dropwhile(not_, lines)))
    if not any(lines) or tuple(cell.casefold() for cell in first[0]) in COLUMNS["labeled"]:
        return False
    return len({*map(len, first)}) == 1 < len(first[0]) and all(" " not in cells[0] for cells in first)


def _cells(line: str) -> list[str]:
    if "\t" in line.strip():
        return [cell.strip() for cell in line.rstrip().split("\t")]
    return re.split(" +", line.strip(" "))  # no other space: a hard one may be part of a word


def load_conll(path: str | Path, columns: Sequence[int] | None = None) -> TaggedText:
    """Read words and tags.

    Args:
        path: The file.
        columns: Columns of the word and the tag, from 1, or from -1 for the last (default: 1 and -1; .conllu: 2 and 4).

    Raises:
        DataError: If the file is missing or damaged, a line has other columns than the first, a cell is empty, there is
            only one tag, or some tags spell entities and others do not.
    """
    universal = Path(path).name.lower().removesuffix(".gz").endswith(CONLLU)
    word, tag = columns or ((2, 4) if universal else (1, -1))
    rows = groupby(_rows(path, universal, (word, tag)), key=itemgetter(0))
    sentences = [tuple(zip(*(cells for _, cells in group), strict=True)) for _, group in rows]
    words, tags = zip(*sentences, strict=True) if sentences else ((), ())
    text = TaggedText(words, tags, Path(path).name)
    if len(text.names) < 2:
        raise DataError(f"{path} should hold two tags or more, but holds {len(text.names)}. Give more text.")
    spelled = [name for name in text.names if _ENTITY.fullmatch(name)]
    odd = [name for name in text.names if name not in ("O", *spelled)]
    if odd and spelled:
        raise DataError(
            f"{path}: tags such as {spelled[0][:30]} spell entities, but {shown(odd[0])} does not. "
            "Repair the tag, or choose another column."
        )
    return text


def _rows(path: str | Path, universal: bool, wanted: Sequence[int]) -> Iterator[tuple[int, tuple[str, str]]]:
    """Word and tag of each line, with a number for the sentence."""
    sentence, width, first = 0, 0, 0
    for number, line in read_lines(path):
        if not line.strip():
            sentence += 1
            continue
        cells = _cells(line)
        if cells[0] == DOCUMENT or (universal and (line.startswith("#") or not cells[0].isdecimal())):
            continue
        width, first = width or len(cells), first or number
        if len(cells) != width:
            raise DataError(
                f"{path}, line {number}: {width} columns are wanted, as in line {first}, but {len(cells)} are there. "
                "Repair the line."
            )
        if not all(0 < abs(column) <= width for column in wanted):
            raise DataError(
                f"{path}, line {number}: the columns {wanted[0]} and {wanted[1]} are wanted, but there are {width}. "
                "Name those of the word and of the tag, from 1."
            )
        word, tag = (cells[column - (column > 0)] for column in wanted)
        if not (word and tag):
            raise DataError(
                f"{path}, line {number}: a word and its tag are wanted, got {shown(line)}. Repair the line."
            )
        yield sentence, (word, tag)


def entities(tags: Sequence[str]) -> set[Span]:
    """The entities that the tags of a sentence spell, as conlleval and seqeval count them.

    A word begins an entity by B or S (BILOU: U), and also where another type ends, or where nothing goes on: so I-ORG
    after O begins one, as in IOB1 and in what a classifier makes up. E and S (L and U) end one.
    """
    found: set[Span] = set()
    start, kind, before = 0, "", "O"
    for at, tag in enumerate([*tags, "O"]):
        role, this = tag[:1], tag[2:]
        goes_on = role in "IEL" and before in "BI" and this == kind
        if before != "O" and not goes_on:
            found.add((start, at, kind))
        if not goes_on:
            start, kind = at, this
        before = role
    return found


@dataclass(frozen=True)
class LabeledText:
    """Some texts and the label of each, in the order of the file.

    Attributes:
        texts: Sentences, or words.
        labels: One for each of ``texts``.
        source: The file.
    """

    texts: tuple[str, ...]
    labels: tuple[str, ...]
    source: str


def load_labels(path: str | Path, columns: str | Sequence[int] | None = None) -> LabeledText:
    """Read a file of labeled text.

    Args:
        path: The file.
        columns: The columns of text and label, as a,b; found by their names by default.

    Raises:
        UsageError: If ``columns`` are not two.
        DataError: If the file is missing or damaged, a cell is empty, or there is only one label.
    """
    named = split_columns(columns, "those of text and label, as a,b", 2)
    do = "Rename its columns, or name those of text and label with --columns."
    table, names = open_columns(path, COLUMNS["labeled"], named, headless=2, do=do, named=True)
    rows = list(table.usable(names, lambda row: (" ".join(row.text(0).split()), row.name(1))))
    if (n := len({label for _, label in rows})) < 2:
        raise DataError(f"{table.name} should hold two labels or more, but holds {n}. Give more text.")
    texts, labels = zip(*rows, strict=True)
    return LabeledText(texts, labels, Path(path).name)
