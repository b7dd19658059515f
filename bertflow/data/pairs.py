"""Pairs of texts, with what is known about each pair, and one reader for all kinds of them.

    graded       sentence1, sentence2, score       a human score
    binary       a, b, label                       1 where the texts belong together, 0 where they do not
    classes      premise, hypothesis, label        a named class (natural language inference)
    retrieval    query, text                       the one right text of a query
    candidates   query, text, label                1 where the text is right for the query; each has several
    texts        two columns of text               nothing else is known
    triplets     anchor, positive, negative        texts, with a wrong text each

The columns tell the kind (``bertflow.data.columns.COLUMNS``). A pair that cannot be used is refused, not left out.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bertflow.array_types import Hashes, Int64, Intp
from bertflow.data.columns import (
    ANY_SCALE,
    COLUMNS,
    LABELS,
    PAIR_KINDS,
    Scale,
    added_up,
    open_columns,
    parse_label,
    parse_score,
    split_columns,
)
from bertflow.data.corpus import drawn_rows, require_corpus
from bertflow.data.tables import TableRow, TextTable, table_name
from bertflow.errors import DataError, how_many, logger
from bertflow.places import expand
from bertflow.registry import lookup, several
from bertflow.text_keys import hash_text, unique_pairs

NLI_CLASSES = ("contradiction", "entailment", "neutral")
"""The classes in the order of the released BERT-flow."""
NO_GOLD = "-"
"""SNLI's mark for a pair on which its annotators did not agree: it is dropped and counted."""
SEEN = "whose query or text occurs before"
"""Pairs that are left out, as messages call them: one right text of a query is scored."""
NEEDS: Mapping[str, tuple[int, str, str]] = {
    "graded": (3, "a correlation", "score"),
    "binary": (2, "a comparison of both labels", "label"),
    "classes": (2, "a comparison of classes", "class"),
    "retrieval": (2, "a ranking", ""),
    "candidates": (2, "a ranking of candidates", "label"),
    "texts": (1, "a table", ""),
}
"""The fewest pairs of each kind, for what they are needed, and what belongs to each pair."""


@dataclass(frozen=True, eq=False)
class Pairs:
    """Pairs of texts in the order of their file; all sequences have one length.

    Attributes:
        task: Their name in tables.
        first: First sentences, premises, queries.
        second: Second sentences, hypotheses, the texts that answer the queries.
        target: The score (float), the label or the class (int64) of each pair; None for retrieval and texts.
        kind: One of ``PAIR_KINDS``, or ``candidates``.
        split: Which part of the task.
        subsets: The sub-set of each pair; "all" where there are none.
        classes: Names of the classes, by their numbers.
        text_form: ``raw``: case and spacing as written; ``senteval``: lower-cased and Moses-tokenized.
        source: Where the pairs came from: a file, a folder, or a hub dataset with its revision.
        tasks: Tasks and files that were put together; the task alone by default.
        dropped: Pairs without a gold label, which were left out.
        negatives: A text for each pair that is near, but does not belong to the first; empty for none.
    """

    task: str
    first: tuple[str, ...]
    second: tuple[str, ...]
    target: Any = None
    kind: str = "graded"
    split: str = "own"
    subsets: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    text_form: str = "raw"
    source: str = ""
    tasks: tuple[str, ...] = ()
    dropped: int = 0
    negatives: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "subsets", self.subsets or ("all",) * len(self.first))
        object.__setattr__(self, "tasks", self.tasks or (self.task,))

    def __len__(self) -> int:
        """The number of pairs."""
        return len(self.first)

    @property
    def sentences(self) -> list[str]:
        """Distinct texts, in the order of their first appearance."""
        return unique_sentences([self])

    def rows(self, row_of: Mapping[str, int]) -> Intp:
        """Rows of both sides (2, n) among sentences that are numbered by ``row_of``."""
        return np.array([[row_of[text] for text in side] for side in (self.first, self.second)], dtype=np.intp)

    def taken(self, rows: Sequence[int] | Int64 | Intp) -> "Pairs":
        """Some of the pairs, in the order asked for."""
        sides = (self.first, self.second, self.subsets, self.negatives)
        first, second, subsets, negatives = (tuple(side[row] for row in rows) if side else () for side in sides)
        target = None if self.target is None else self.target[np.asarray(rows, dtype=np.intp)]
        return replace(self, first=first, second=second, target=target, subsets=subsets, negatives=negatives)

    def sample(self, n: int | None, seed: int) -> "Pairs":
        """A random sample of ``n`` pairs in their order; all of them if there are no more, or ``n`` is None."""
        return self if n is None or n >= len(self) else self.taken(drawn_rows(len(self), n, seed))

    def of_class(self, name: str) -> "Pairs":
        """The pairs of one class as pairs that belong together: premises and what they entail.

        Raises:
            UnknownNameError: If there is no such class.
        """
        index = lookup("class", {known: k for k, known in enumerate(self.classes)}, name)
        return replace(self.taken(np.flatnonzero(self.target == index)), target=None, classes=(), kind="texts")

    def without_text(self, hashes: Hashes) -> "Pairs":
        """The pairs of which neither side occurs in some text, given as hashes of its keys (``bertflow.text_keys``)."""
        shown = set(hashes.tolist())
        pairs = enumerate(zip(*filter(None, (self.first, self.second, self.negatives)), strict=True))
        return self.taken([row for row, pair in pairs if not any(hash_text(text) in shown for text in pair)])

    def digest(self) -> str:
        """One fingerprint for equal pairs with equal targets in the same order."""
        targets = [] if self.target is None else self.target.tolist()
        texts = (*self.first, *self.second, *self.negatives)
        return hashlib.sha256("\0".join((*texts, *map(repr, targets))).encode()).hexdigest()


def texts_of(sets: Iterable[Pairs]) -> Iterator[str]:
    """Both sentences of each pair of some tasks, repeats included."""
    return (text for pairs in sets for pair in zip(pairs.first, pairs.second, strict=True) for text in pair)


def unique_sentences(sets: Iterable[Pairs]) -> list[str]:
    """Distinct sentences of some tasks by exact text, in the order of their first appearance."""
    return list(dict.fromkeys(texts_of(sets)))


def joined(parts: Sequence[Pairs]) -> Pairs:
    """Pairs of one kind as one set, called as the first."""
    first, *others = parts
    if not others:
        return first
    names = ("first", "second", "subsets", "negatives", "tasks")
    texts: dict[str, Any] = {name: tuple(text for part in parts for text in getattr(part, name)) for name in names}
    target = None if first.target is None else np.concatenate([part.target for part in parts])
    source, dropped = ", ".join(dict.fromkeys(part.source for part in parts)), sum(part.dropped for part in parts)
    texts["tasks"] = tuple(dict.fromkeys(texts["tasks"]))
    return replace(first, **texts, target=target, source=source, dropped=dropped)


def load_pairs(
    paths: Pairs | str | Path | Sequence[str | Path],
    kind: str | Sequence[str] | None = None,
    columns: str | Sequence[str] | None = None,
    classes: Sequence[str] = NLI_CLASSES,
) -> Pairs:
    """Read pairs of texts from one or several tables.

    Args:
        paths: Tables (``bertflow.data.tables``); .txt is tsv, as SNLI, MNLI and SICK call theirs. Pairs that are loaded
            are taken as they are, of the kind that is asked for.
        kind: One of ``PAIR_KINDS``, or several that are allowed; by default the columns tell the kind. Candidate lists
            are read where they are asked for, as ``candidates``.
        columns: The two columns of text, and that of the target if ``kind`` is one that has it, where they have other
            names; numbers from 1 for a table without a header. If several kinds are allowed, the pairs are then of the
            kind ``texts``. A tsv of two columns with other names is taken to have no header.
        classes: Names of the classes that are wanted, in their order; case does not matter.

    Raises:
        DataError: If a file or column is missing, a row cannot be used, or too little is left; with file and line.
        UsageError: If ``columns`` are too few or too many.
    """
    if isinstance(paths, Pairs):
        return replace(paths, kind=kind) if isinstance(kind, str) else paths
    given = [expand(path) for path in several(paths)]
    kinds = several(kind or PAIR_KINDS)
    target = NEEDS[kinds[0]][2] if len(kinds) == 1 else ""
    wanted = f" and that of the {target}, as a,b,c" if target else ", as a,b or 1,2"
    names = split_columns(columns, f"two columns of text{wanted}", 3 if target else 2)
    found, place = joined([_read_file(path, kinds, names, classes) for path in given]), ", ".join(map(str, given))
    pairs = checked(found, place)
    rows = {"used": len(pairs), SEEN: len(found) - len(pairs), f"without a label ({NO_GOLD})": found.dropped}
    if pairs.kind == "retrieval" or pairs.dropped:
        logger.info("%s: %s", place, added_up(rows, "rows", [SEEN] if pairs.kind == "retrieval" else []))
    return _collapsed(pairs) if pairs.kind == "classes" else pairs


def load_related(paths: str | Path | Sequence[str | Path]) -> Pairs:
    """Pairs of texts that belong together, to learn from, perhaps with negatives: white space is collapsed.

    Raises:
        DataError: As ``load_pairs``, and if there are fewer than two pairs, or some files have negatives and some not.
    """
    pairs, place = load_pairs(paths, ["triplets", "texts"]), ", ".join(map(str, several(paths)))
    if len(pairs.negatives) not in (0, len(pairs)):
        raise DataError(f"{place}: some files have a column of negatives, some not. Train on one kind alone.")
    if len(pairs) < 2:
        raise DataError(f"{place} holds 1 pair, but contrast needs at least 2. Give more pairs.")
    return _collapsed(pairs)


def pairs_of_sentences(sentences: Sequence[str], source: str = "text") -> Pairs:
    """Each distinct sentence with itself, to learn from without labels; ``source`` names them.

    Raises:
        DataError: If there are fewer than two.
    """
    distinct = tuple(dict.fromkeys(sentences))
    require_corpus(distinct)
    return Pairs(source, distinct, distinct, kind="texts", source=source)


def pairs_of_table(
    table: TextTable,
    names: Sequence[str],
    kind: str = "graded",
    classes: Sequence[str] = NLI_CLASSES,
    scale: Scale = ANY_SCALE,
) -> Pairs:
    """Columns of an open table as pairs, not yet checked as a whole; see ``load_pairs``."""
    graded, triplets = kind == "graded", kind == "triplets"
    subset = (table.find(["subset"]) or ()) if graded else ()
    known = LABELS if kind in ("binary", "candidates") else {name.casefold(): at for at, name in enumerate(classes)}

    def pair(row: TableRow) -> tuple[str, str, float, str] | None:
        if kind == "classes" and row.cells[2] == NO_GOLD:
            return None
        target, third = 0.0, row.text(2, "Leave the pair out.") if triplets else "all"
        if len(names) == 3 and not triplets:
            target = parse_score(row, 2, scale) if graded else parse_label(row, 2, known)
        first, second = (row.text(at, "Leave the pair out.") for at in range(2))
        return first, second, target, str(row.cells[3]) if subset else third

    found = list(table.usable((*names, *subset), pair))
    rows = [one for one in found if one]
    first, second, targets, subsets = zip(*rows, strict=True) if rows else ((), (), (), ())
    return Pairs(
        task=table_name(table.name),
        first=first,
        second=second,
        target=np.array(targets, np.float64 if graded else np.int64) if len(names) == 3 and not triplets else None,
        kind="texts" if triplets else kind,
        subsets=() if triplets else subsets,
        negatives=subsets if triplets else (),
        classes=tuple(classes) if kind == "classes" else (),
        source=Path(table.name).name,
        dropped=len(found) - len(rows),
    )


def _read_file(path: Path, kinds: Sequence[str], columns: Sequence[str] | None, classes: Sequence[str]) -> Pairs:
    choices = [names for kind in kinds for names in COLUMNS[kind]]
    free = kinds in (["texts"], ["retrieval"])
    do = f"Rename its columns{', or name two of them with --columns' if free else ''}."
    table, names = open_columns(path, choices, columns, headless=2 if "texts" in kinds else 0, do=do, named=free)
    known = [kind for kind in kinds if (len(kinds) == 1 if columns else table.known(COLUMNS[kind]))]
    return pairs_of_table(table, names, known[0] if known else "texts", classes)


def checked(pairs: Pairs, place: str) -> Pairs:
    """The pairs, once they are known to have together what their kind needs; ``place`` names them in messages.

    Raises:
        DataError: If there are too few, or all have one target.
    """
    if pairs.kind == "retrieval":
        kept = unique_pairs(zip(pairs.first, pairs.second, strict=True))
        first, second = zip(*kept, strict=True) if kept else ((), ())
        pairs = replace(pairs, first=first, second=second, subsets=())
    n, (least, what, target) = len(pairs), NEEDS[pairs.kind]
    if n < least:
        raise DataError(f"{place} holds {how_many(n, 'pairs')}, but {what} needs at least {least}. Give more pairs.")
    if pairs.target is not None and len(values := set(pairs.target.tolist())) == 1:
        only = pairs.classes[values.pop()] if pairs.classes else f"{values.pop():g}"
        raise DataError(f"{place} gives all {n} pairs the same {target}, {only}. Add pairs with another {target}.")
    return pairs


def _collapsed(pairs: Pairs) -> Pairs:
    """The pairs with the white space of their texts collapsed."""
    sides = (pairs.first, pairs.second, pairs.negatives)
    first, second, negatives = (tuple(" ".join(text.split()) for text in side) for side in sides)
    return replace(pairs, first=first, second=second, negatives=negatives)
