"""Pairs of texts, with what is known about each pair, and one reader for all kinds of them.

    graded       sentence1, sentence2, score       a human score
    binary       a, b, label                       1 where the texts belong together, 0 where they do not
    classes      premise, hypothesis, label        a named class (natural language inference)
    retrieval    query, text                       the one right text of a query
    candidates   query, text, label                1 where the text is right for the query; each has several
    texts        two columns of text               nothing else is known

The columns tell the kind: ``bertflow.data.tables.COLUMNS`` lists their names. A pair that cannot be used is refused
with its file and line, not left out.
"""

import hashlib
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertflow.data.corpus import require_corpus
from bertflow.data.skipping import usable
from bertflow.data.tables import COLUMNS, PAIR_KINDS, TextTable, open_columns, table_name
from bertflow.errors import DataError, RowError, UsageError, shown
from bertflow.registry import lookup
from bertflow.text_keys import hash_text, text_key

logger = logging.getLogger("bertflow")

LABELS: Mapping[str, int] = {"0": 0, "1": 1, "not_entailment": 0, "entailment": 1}
"""How a binary label may be written. QNLI's copies on the hub number them the other way round: 0 is entailment."""
NLI_CLASSES = ("contradiction", "entailment", "neutral")
"""The classes in the order of the released BERT-flow."""
NO_GOLD = "-"
"""SNLI's mark for a pair on which its annotators did not agree: it is dropped and counted."""
Scale = tuple[float, float]
"""The lowest and the highest score there can be."""
ANY_SCALE: Scale = (-1e100, 1e100)
"""Of a table of one's own; beyond it the square of a score is infinite."""
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

    def rows(self, row_of: Mapping[str, int]) -> NDArray[np.intp]:
        """Rows of both sides (2, n) among sentences that are numbered by ``row_of``."""
        return np.array([[row_of[text] for text in side] for side in (self.first, self.second)], dtype=np.intp)

    def taken(self, rows: Sequence[int] | NDArray[np.integer[Any]]) -> "Pairs":
        """Some of the pairs, in the order asked for."""
        first, second, subsets = (tuple(side[row] for row in rows) for side in (self.first, self.second, self.subsets))
        target = None if self.target is None else self.target[np.asarray(rows, dtype=np.intp)]
        return replace(self, first=first, second=second, target=target, subsets=subsets)

    def sample(self, n: int | None, seed: int) -> "Pairs":
        """A random sample of ``n`` pairs in their order; all of them if there are no more, or ``n`` is None."""
        if n is None or n >= len(self):
            return self
        return self.taken(np.sort(np.random.default_rng(seed).permutation(len(self))[:n]))

    def of_class(self, name: str) -> "Pairs":
        """The pairs of one class as pairs that belong together: premises and what they entail.

        Raises:
            UnknownNameError: If there is no such class.
        """
        index = lookup("class", {known: k for k, known in enumerate(self.classes)}, name)
        return replace(self.taken(np.flatnonzero(self.target == index)), target=None, classes=(), kind="texts")

    def without_text(self, hashes: NDArray[np.uint64]) -> "Pairs":
        """The pairs of which neither side occurs in some text, given as hashes of its keys (``bertflow.text_keys``)."""
        shown = set(hashes.tolist())
        pairs = enumerate(zip(self.first, self.second, strict=True))
        return self.taken([row for row, pair in pairs if not any(hash_text(text) in shown for text in pair)])

    def digest(self) -> str:
        """One fingerprint for equal pairs with equal targets in the same order."""
        targets = [] if self.target is None else self.target.tolist()
        return hashlib.sha256("\0".join((*self.first, *self.second, *map(repr, targets))).encode()).hexdigest()


def unique_sentences(sets: Iterable[Pairs]) -> list[str]:
    """Distinct sentences of some tasks by exact text, in the order of their first appearance."""
    return list(
        dict.fromkeys(text for pairs in sets for pair in zip(pairs.first, pairs.second, strict=True) for text in pair)
    )


def unique_pairs(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """The pairs of which neither side stood in an earlier pair that was kept, by text key.

    In a ranking of all texts for each query, a text that answers two queries, or a query with two texts, would count
    right answers as wrong.
    """
    kept: list[tuple[str, str]] = []
    queries: set[str] = set()
    texts: set[str] = set()
    for query, text in pairs:
        keys = text_key(query), text_key(text)
        if keys[0] not in queries and keys[1] not in texts:
            queries.add(keys[0])
            texts.add(keys[1])
            kept.append((query, text))
    return kept


def joined(parts: Sequence[Pairs]) -> Pairs:
    """Pairs of one kind as one set, called as the first."""
    if len(parts) == 1:
        return parts[0]
    return replace(
        parts[0],
        first=tuple(text for part in parts for text in part.first),
        second=tuple(text for part in parts for text in part.second),
        target=None if parts[0].target is None else np.concatenate([part.target for part in parts]),
        subsets=tuple(subset for part in parts for subset in part.subsets),
        source=", ".join(dict.fromkeys(part.source for part in parts)),
        tasks=tuple(dict.fromkeys(task for part in parts for task in part.tasks)),
        dropped=sum(part.dropped for part in parts),
    )


def load_pairs(
    paths: str | Path | Sequence[str | Path],
    kind: str | Sequence[str] | None = None,
    columns: str | Sequence[str] | None = None,
    classes: Sequence[str] = NLI_CLASSES,
) -> Pairs:
    """Read pairs of texts from one or several tables.

    Args:
        paths: tsv (also .txt, as SNLI, MNLI and SICK call theirs), csv, jsonl (each also .gz) or parquet.
        kind: One of ``PAIR_KINDS``, or several that are allowed; by default the columns tell the kind. Candidate lists
            are read where they are asked for, as ``candidates``.
        columns: The two columns of text, where they have other names; numbers from 1 for a table without a header.
            The pairs are then of the kind ``texts``. A tsv of two columns with other names is taken to have no header.
        classes: Names of the classes that are wanted, in their order; case does not matter.

    Raises:
        DataError: If a file or a column is missing, a row cannot be used, or too little is left to work with; the
            message gives file and line.
        UsageError: If ``columns`` are not two.
    """
    given = [paths] if isinstance(paths, str | Path) else paths
    kinds = [kind] if isinstance(kind, str) else list(kind or PAIR_KINDS)
    names = [name.strip() for name in columns.split(",")] if isinstance(columns, str) else columns
    if names is not None and len(names) != 2:
        raise UsageError(f"--columns takes two columns of text, as a,b or 1,2; got {columns!r}.")
    pairs = joined([_read_file(Path(path).expanduser(), kinds, names, classes) for path in given])
    if pairs.dropped:
        logger.info("%d pairs without a gold label (%s) are left out; %d are kept.", pairs.dropped, NO_GOLD, len(pairs))
    pairs = checked(pairs, _spelled(paths))
    return _collapsed(pairs) if pairs.kind == "classes" else pairs


def load_related(paths: str | Path | Sequence[str | Path]) -> Pairs:
    """Pairs of texts that belong together, to learn from: white space is collapsed.

    Raises:
        DataError: As ``load_pairs``, and if there are fewer than two pairs.
    """
    pairs = load_pairs(paths, "texts")
    if len(pairs) < 2:
        raise DataError(f"{_spelled(paths)} holds {len(pairs)} pairs, but contrast needs at least 2. Give more pairs.")
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
    graded = kind == "graded"
    subset = (table.find(["subset"]) or ()) if graded else ()
    numbers = {name.casefold(): number for number, name in enumerate(classes)}
    known = LABELS if kind in ("binary", "candidates") else numbers
    dropped = 0

    def pair(row: tuple[int, tuple[Any, ...]]) -> tuple[str, str, float, str] | None:
        number, (one, other, *more) = row
        if kind == "classes" and more[0] == NO_GOLD:
            return None
        target, bad, do = 0.0, partial(table.bad, number), "Leave the pair out."
        if more:
            target = parse_score(more[0], scale, bad) if graded else _numbered(more[0], known, bad)
        texts = table.text(number, names[0], one, do), table.text(number, names[1], other, do)
        return *texts, target, str(more[1]) if subset else "all"

    rows: list[tuple[str, str, float, str]] = []
    for found in usable(pair, table.read((*names, *subset))):
        if found is None:
            dropped += 1
        else:
            rows.append(found)
    first, second, targets, subsets = zip(*rows, strict=True) if rows else ((), (), (), ())
    return Pairs(
        task=table_name(table.name),
        first=first,
        second=second,
        target=np.array(targets, dtype=np.float64 if graded else np.int64) if len(names) == 3 else None,
        kind=kind,
        subsets=subsets,
        classes=tuple(classes) if kind == "classes" else (),
        source=Path(table.name).name,
        dropped=dropped,
    )


def parse_score(score: Any, scale: Scale, bad: Callable[[str], RowError]) -> float:
    """A gold score as a number; ``bad`` makes the error of its row.

    Raises:
        RowError: If it is not a finite number, or lies outside the scale.
    """
    try:
        value = float(score)
    except (TypeError, ValueError, OverflowError):
        value = math.nan
    if not math.isfinite(value):
        raise bad(f"a score should be a number, got {shown(score)}. Repair the score or leave the pair out.")
    if not scale[0] <= value <= scale[1]:
        raise bad(f"a score should lie between {scale[0]:g} and {scale[1]:g}, got {value:g}. Repair the score.")
    return value


def _spelled(paths: str | Path | Sequence[str | Path]) -> str:
    return ", ".join(str(Path(path).expanduser()) for path in ([paths] if isinstance(paths, str | Path) else paths))


def _read_file(path: Path, kinds: Sequence[str], columns: Sequence[str] | None, classes: Sequence[str]) -> Pairs:
    choices = [names for kind in kinds for names in COLUMNS[kind]]
    do = f"Rename its columns{', or name two of them with the option columns' if kinds == ['texts'] else ''}."
    table, names = open_columns(path, choices, columns, headless="texts" in kinds, do=do)
    known = [] if columns else [kind for kind in kinds if table.known(COLUMNS[kind])]
    return pairs_of_table(table, names, known[0] if known else "texts", classes)


def _numbered(label: Any, known: Mapping[str, int], bad: Callable[[str], RowError]) -> int:
    """The number of a label or a class. Classes have no other numbers, since copies number them differently."""
    if isinstance(label, list | dict) or (name := str(label).strip().casefold()) not in known:
        raise bad(
            f"a label should be one of {', '.join(known)}, got {shown(label)}. Repair the label, leave the pair "
            "out, or name the classes with data.classes."
        )
    return known[name]


def checked(pairs: Pairs, place: str) -> Pairs:
    """The pairs, once they are known to have together what their kind needs; ``place`` names them in messages.

    Raises:
        DataError: If there are too few, or all have one target.
    """
    pairs = _each_once(pairs, place) if pairs.kind == "retrieval" else pairs
    n, (least, what, target) = len(pairs), NEEDS[pairs.kind]
    if n < least:
        raise DataError(f"{place} holds {n} pairs, but {what} needs at least {least}. Give more pairs.")
    if pairs.target is not None and len(values := set(pairs.target.tolist())) == 1:
        only = pairs.classes[values.pop()] if pairs.classes else f"{values.pop():g}"
        raise DataError(f"{place} gives all {n} pairs the same {target}, {only}. Add pairs with another {target}.")
    return pairs


def _each_once(pairs: Pairs, place: str) -> Pairs:
    kept = unique_pairs(zip(pairs.first, pairs.second, strict=True))
    if dropped := len(pairs) - len(kept):
        logger.warning(
            "%s: %d of %d pairs are left out: their query or text occurs before, and only one right text of a query "
            "is scored.",
            *(place, dropped, len(pairs)),
        )
    first, second = zip(*kept, strict=True) if kept else ((), ())
    return replace(pairs, first=first, second=second, subsets=())


def _collapsed(pairs: Pairs) -> Pairs:
    """The pairs with the white space of their texts collapsed."""
    first, second = (tuple(" ".join(text.split()) for text in side) for side in (pairs.first, pairs.second))
    return replace(pairs, first=first, second=second)
