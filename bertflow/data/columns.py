"""What the columns of a table hold: text, pairs, scores, labels.

    of known names    title, description; question, answer; sentence1, sentence2; text ...     ``COLUMNS``
    of other names    three words or more in the median: text. Of two whose rows mostly differ, the shorter one is a
                      query of the longer one. A column that stands alone may be shorter

Pairs that were found in the second way may be none: what uses them looks whether the two texts of a row are alike.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from statistics import median

from bertflow.data.lines import none_skipped
from bertflow.data.tables import Choices, TableRow, TextTable, is_plain_text, open_table, table_suffix
from bertflow.errors import DataError, RowError, UsageError, how_many, logger, shown
from bertflow.written import UNSPACED

PAIR_KINDS = ("graded", "binary", "classes", "retrieval", "texts")
"""The kinds that are pairs of texts; the first that a table has the columns of is taken."""
TEXTS = (
    *(("query", "text"), ("question", "answer"), ("text", "paraphrase"), ("anchor", "positive")),
    *(("sentence1", "sentence2"), ("sentence_A", "sentence_B"), ("premise", "hypothesis")),
    *(("a", "b"), ("text1", "text2")),
    *(("title", "description"), ("title", "body"), ("subject", "body")),
)
COLUMNS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    # Two texts and a target.
    "graded": (("sentence1", "sentence2", "score"), ("sentence_A", "sentence_B", "relatedness_score")),
    "binary": (("a", "b", "label"), ("sentence1", "sentence2", "label"), ("question", "sentence", "label")),
    "classes": (
        ("sentence1", "sentence2", "gold_label"),  # SNLI, MNLI, GLUE's copies
        ("premise", "hypothesis", "label"),
        ("premise", "hypothesis", "gold_label"),
        ("sentence1", "sentence2", "label"),
        ("sentence_A", "sentence_B", "entailment_judgment"),  # SICK
    ),
    # Two texts.
    "retrieval": (("query", "text"), ("question", "answer")),
    "candidates": (("query", "text", "label"), ("question", "answer", "label"), ("question", "sentence", "label")),
    "documents": (("question", "answer"), ("query", "text"), ("title", "text"), TEXTS[3], *TEXTS[-3:]),
    "texts": TEXTS,
    "triplets": (("anchor", "positive", "negative"), ("query", "positive", "negative"), ("sent0", "sent1", "hard_neg")),
    # One text, perhaps with something beside it.
    "sentences": (("query", "text"), ("text",), ("sentence",), *TEXTS[1:]),
    "queries": tuple((name,) for name in ("query", "question", "text", "sentence")),
    "labeled": (("text", "label"), ("sentence", "label"), ("word", "label")),
    "answers": (
        *(("text", "questions"), ("answer", "questions"), ("answer", "question")),
        # A title is found as a past question is, and stands before its text.
        *(("text", "title"), ("description", "title"), ("body", "title"), ("body", "subject")),
        *(("text",), ("answer",), ("description",), ("body",)),
    ),
    "answered": (("question", "id"),),
    "passages": tuple((name,) for name in ("text", "page_content", "content", "passage", "chunk", "body", "sentence")),
}
"""A row is what a table holds, and what its columns may be called: the texts first, then what belongs to them."""
LABELS: Mapping[str, int] = {"0": 0, "1": 1, "not_entailment": 0, "entailment": 1}
"""How a binary label may be written. QNLI's copies on the hub number them the other way round: 0 is entailment."""
BAD_LABEL = (
    "Repair it, or leave the pair out. From scores, such as 0 to 5, make a column label: 1 for pairs that match, 0 "
    "for others. Or give them, in a column score, to `bertflow fix --labels` or `bertflow evaluate --tasks`."
)
"""What to do about a binary label that is not valid."""
BAD_CLASS = "Repair the label, leave the pair out, or name the classes with data.classes."
Scale = tuple[float, float]
"""The lowest and the highest score there can be."""
ANY_SCALE: Scale = (-1e100, 1e100)
"""Range of a user's own scores; beyond it their square is infinite."""
TAKEN_BY: Mapping[str, str] = {
    "graded": "scores of pairs, which `bertflow fix --labels` and `bertflow evaluate --tasks` take. Where a column "
    "label is wanted, it should be 1 for pairs that match, and 0 for others",
    "answered": "questions and the ids of their answers, which `bertflow search evaluate --labels` takes",
}
"""Kinds of tables that are given where others are wanted, and where they belong."""
LEAST_WORDS = 3
"""Fewest words of each text of a pair; in the median, of a column of text."""
MOST_REPEATED = 0.5
"""Largest share of the rows of a column of pairs that repeat others."""
SAMPLE = 5000
"""Rows that tell what a column holds, the first ones."""
RENAME = "Rename the columns that hold text, or name them with --columns."
NAME_THEM = (
    f"{RENAME[:-1]} (by number, from 1, if the file has no header). "
    "If it holds one sentence per line, rename it to .txt."
)
NAMES_FIRST = "The first line should hold the names of the columns: delete the lines above it, or add the name."
_WORD = re.compile(rf"{UNSPACED}|\S*[^\W\d_]\S*")
"""A word with a letter: dates and numbers are not text."""
_EUROPEAN = re.compile(r"\s*-?\d+,\d\d?\s*")
"""A number with a comma before its one or two decimals, as Excel writes it in Europe."""


def split_columns(spelled: str | Sequence[object] | None, wanted: str = "", *counts: int) -> Sequence[str] | None:
    """Names or numbers of columns as they are given, a,b or a list; None for none.

    Raises:
        UsageError: If they are not as many as one of ``counts``, if any; ``wanted`` says what they should be.
    """
    parts = spelled.split(",") if isinstance(spelled, str) else spelled
    names = None if parts is None else [str(name).strip() for name in parts]
    if names is not None and counts and len(names) not in counts:
        raise UsageError(f"--columns takes {wanted}; got {spelled!r}.")
    return names


def open_columns(
    path: str | Path,
    choices: Choices,
    columns: Sequence[str] | None = None,
    headless: int = 0,
    do: str = "Rename its columns.",
    named: bool = False,
    first: Sequence[str] = (),
) -> tuple[TextTable, tuple[str, ...]]:
    """Open a file and find its columns.

    Args:
        path: A file, as for ``open_table``; .txt is tsv, as in SNLI, MNLI and SICK.
        choices: What the columns may be called.
        columns: Names that are wanted instead; numbers from 1 for a tsv or csv without a header.
        headless: Number of columns of a tsv without a header.
        do: What the user can do if the columns are not there.
        named: Whether the command takes ``--columns``, which is then said beside the columns that are read.
        first: A column that is read as well, and first, where it is there.

    Raises:
        DataError: As ``open_table``, and if the columns are not there.
    """
    suffix = ".tsv" if is_plain_text(path) else table_suffix(path)
    table = open_table(path, columns, suffix)
    own = " Or name the columns to read with --columns." * named
    do = next((f"It holds {said}.{own}" for kind, said in TAKEN_BY.items() if table.known(COLUMNS[kind])), do)
    if columns is None and suffix == ".tsv" and len(table.columns) == headless and not table.known(choices):
        columns = [str(k + 1) for k in range(headless)]
        table = open_table(path, columns, suffix)
    names = table.named(columns) if columns else (*(table.find(first) or ()), *table.require(choices, do))
    say_columns(table, names, named)
    return table, names


def without_header(path: str | Path, lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Lines of plain text; a first line that is the name of a column is left out, and a note says so."""
    for number, line in lines:
        if number == 1 and (line.strip().casefold(),) in COLUMNS["queries"]:
            logger.info("%s: its first line, %s, is taken for the name of a column and left out.", path, shown(line))
            continue
        yield number, line


def say_columns(table: TextTable, names: Sequence[str], named: bool = False) -> None:
    """Say which columns of a table are read; ``named`` if ``--columns`` can choose others."""
    unused = tuple(name for name in table.columns if name not in names)
    logger.info("%s: %s", table.name, TextColumns(tuple(names), unused, paired=False, named=named))


@dataclass(frozen=True)
class TextColumns:
    """The columns of a table that are read.

    Attributes:
        names: Their names, as the table spells them.
        unused: The others.
        paired: Whether the first is a query of the second.
        alone: The one to read where pairs that were found by their text do not match; empty for columns of known names.
        note: What else there is to say.
        named: Whether ``--columns`` can choose others.
    """

    names: tuple[str, ...]
    unused: tuple[str, ...]
    paired: bool
    alone: str = ""
    note: str = ""
    named: bool = True

    def as_answers(self) -> str | None:
        """What ``search build --columns`` takes, so that texts are found by their titles; None where it finds that."""
        *title, text = self.names
        if self.paired and (text.casefold(), title[0].casefold()) in COLUMNS["answers"]:
            return None
        ids = [name for name in self.unused if name.casefold() == "id"]
        return ",".join([*ids, text, *(title if ids and self.paired else ())])

    def __str__(self) -> str:
        """One line."""
        unused = f"unused: {', '.join(self.unused)}" if self.unused else ""
        more = "; ".join(filter(None, (unused, "see --columns" if self.named else "")))
        pairs = " as pairs" if self.paired else ""
        of = f"column{'s' if len(self.names) > 1 else ''} {', '.join(self.names)}"
        return f"using {of}{pairs}{f' ({more})' if more else ''}{self.note}"


def is_long(text: str) -> bool:
    """Whether a text has enough words for a pair; in scripts without spaces, two letters are a word."""
    return len(re.sub(UNSPACED, r"\g<0> ", text).split()) >= LEAST_WORDS


def added_up(rows: Mapping[str, int], unit: str = "sentences", always: Sequence[str] = ()) -> str:
    """How the rows of a text add up: "100 rows = 90 used + 10 repeated"; what is 0 is said of ``always`` alone."""
    parts = [f"{n:,} {what}" for what, n in rows.items() if n or what in always]
    return f"{how_many(sum(rows.values()), unit)} = {' + '.join(parts)}"


def choose_columns(table: TextTable, named: Sequence[str] | None) -> TextColumns:
    """The columns that a user named, or of known names, or that hold text.

    Raises:
        DataError: If none does; the message lists those that are there.
    """

    def chosen(names: Sequence[str], paired: bool, alone: str = "") -> TextColumns:
        return TextColumns(tuple(names), tuple(one for one in table.columns if one not in names), paired, alone)

    if named is not None:
        return chosen(table.named(named), len(named) == 2)
    if pair := table.known(COLUMNS["documents"]):
        return chosen(pair, True)
    known = table.known(COLUMNS["sentences"]) or ()
    if len(known) == 2:
        return chosen(known, False)
    cells = _text_columns(table)
    found = {name: one for name, one in cells.items() if one[0] >= LEAST_WORDS}
    varied = sorted((name for name in found if found[name][1] <= MOST_REPEATED), key=lambda name: found[name][0])
    alone = cells if len(table.columns) == 1 else ()
    main = [*known, *reversed(varied), *sorted(found, key=lambda name: found[name][1]), *alone][:1]
    if main == [""]:
        raise DataError(f"{table.name} has text in a column without a name. {NAMES_FIRST}")
    beside = [name for name in varied if name not in main]
    if beside and main[0] in varied:
        return chosen(sorted((beside[0], main[0]), key=varied.index), True, main[0])
    others = sorted(cells.keys() - {*main}, key=lambda name: (cells[name][1], name))
    note = next(filter(None, (_no_pairs(name, *cells[name]) for name in others)), "")
    return replace(chosen(main or table.require(COLUMNS["sentences"], NAME_THEM), False), note=note)


def _no_pairs(name: str, words: float, repeated: float) -> str:
    """Why a column makes no pairs with another one, for a note; empty for single words, and for other reasons."""
    if words > 1 and repeated > MOST_REPEATED:
        return f"; no pairs: {100 * repeated:.0f} % of the values of {name} are repeats"
    if 1 < words < LEAST_WORDS:
        return f"; no pairs: {name} has a median of {words:g} words, and pairs need {LEAST_WORDS}"
    return ""


def _text_columns(table: TextTable) -> Mapping[str, tuple[float, float]]:
    """Columns with letters, each with its median number of words and the share of rows that repeat others."""
    rows = []
    with suppress(RowError), none_skipped():  # a row that cannot be used is refused when the text is read
        for _, cells in islice(table.read(table.columns), SAMPLE):
            rows.append(cells)
    found = {}
    for name, column in zip(table.columns, zip(*rows, strict=True), strict=False):
        filled = [cell for cell in column if cell is not None and cell != ""]
        if filled and all(isinstance(cell, str) for cell in filled):
            words = median(len(_WORD.findall(cell)) for cell in filled)
            if words:
                found[name] = (words, 1 - len(set(filled)) / len(filled))
    return found


def parse_score(row: TableRow, at: int, scale: Scale = ANY_SCALE) -> float:
    """A cell that should hold a gold score, as a number.

    Raises:
        RowError: If it is not a finite number, or lies outside the scale.
    """
    cell = row.cells[at]
    try:
        value = float(cell.replace(",", ".") if isinstance(cell, str) and _EUROPEAN.fullmatch(cell) else cell)
    except (TypeError, ValueError, OverflowError):
        value = math.nan
    if not math.isfinite(value):
        raise row.bad(f"a score should be a number, got {shown(cell)}. Repair the score or leave the pair out.")
    if not scale[0] <= value <= scale[1]:
        raise row.bad(f"a score should lie between {scale[0]:g} and {scale[1]:g}, got {value:g}. Repair the score.")
    return value


def parse_label(row: TableRow, at: int, known: Mapping[str, int]) -> int:
    """The number of a label or a class. Classes have no other numbers, since copies number them differently.

    Raises:
        RowError: If it is not known.
    """
    label = row.cells[at]
    if isinstance(label, list | dict) or (name := str(label).strip().casefold()) not in known:
        do = BAD_LABEL if known is LABELS else BAD_CLASS
        raise row.bad(f"a label should be one of {', '.join(known)}, got {shown(label)}. {do}")
    return known[name]
