"""Semantic textual similarity: pairs of sentences with a human score.

A task is a row of ``TASKS``. Its pairs come from

    <data_dir>/<task>.{tsv,csv,...}             a table with sentence1, sentence2, score[, subset], if there is one
    <data_dir>/STS12/ ... STSB/ SICK/           else the packages as their authors published them
    the hub                                     with data_dir "hub", at a pinned revision

The packages are read without quoting: the sentences hold unbalanced quotation marks, and a csv reader merges lines
silently. Sentences are kept as they are in the file. A user's own task is a table: its name in the folder, or its path.
The number of pairs of a known task is checked, since a set that is a few pairs short still gives a score.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from bertflow.data.columns import ANY_SCALE, COLUMNS, Scale, say_columns
from bertflow.data.pairs import Pairs, checked, joined, load_pairs, pairs_of_table
from bertflow.data.sts_tasks import LAYOUTS, SUITES, TASKS, StsTask
from bertflow.data.tables import (
    FORMATS,
    TextTable,
    load_hub_table,
    open_table,
    table_name,
    table_suffix,
)
from bertflow.errors import DataError, UnknownNameError, UsageError, logger
from bertflow.places import expand, require_files
from bertflow.registry import several
from bertflow.text_keys import text_key

REPEATED = 0.1
"""Share of pairs that repeat others from which a note says so; of STS12, the most of all tasks, 6 % do."""
TOP = 5.0
"""The highest score of the STS tasks."""
BINARY = "Pairs with labels 0 and 1, in a column label, are for `bertflow evaluate --binary`."
"""What is said where scores look like labels."""
OWN = StsTask("", "own", {}, ANY_SCALE)
"""A task of the user's, of which nothing is known."""


@dataclass(frozen=True)
class StsSource:
    """STS tasks that are known and seem to be there; nothing is read yet.

    Attributes:
        tasks: Tasks, suites and paths of tables; a string may hold several, separated by commas.
        data_dir: Folder, as for ``load_sts``; it may hold a table of a user's own task. Paths need none.

    Raises:
        UnknownNameError: If a name is none of these.
        UsageError: If the folder is left out.
        DataError: If a table, or the folder of the data, is missing.
    """

    tasks: str | Sequence[str]
    data_dir: str | Path | None = None

    def __post_init__(self) -> None:
        named = [task for task in self.names or [""] if table_suffix(task) is None]
        if named and self.data_dir is None:
            raise UsageError("STS tasks need the folder they lie in. Give data.data_dir.")
        folder = None if not named or _is_hub(self.data_dir) else _local_folder(self.data_dir)
        for task in named:
            if _own_table(task, folder) is None:
                _require_task(task)
        require_files(*(task for task in self.names if task not in named))

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The tasks with suites spelled out, each once, in the order given."""
        names = [name.strip() for item in several(self.tasks) for name in item.split(",")]
        return tuple(dict.fromkeys(task for name in names if name for task in SUITES.get(name, (name,))))

    def __iter__(self) -> Iterator[Pairs]:
        """The pairs of each task, read when it is its turn."""
        return (load_sts(task, self.data_dir) for task in self.names)


def load_sts(task: str, data_dir: str | Path | None) -> Pairs:
    """Load one task.

    Args:
        task: A name of ``TASKS``, the name of a table in ``data_dir``, or the path of a table.
        data_dir: The folder of the data; ``hub`` for the Hugging Face hub at pinned revisions, ``hub:FOLDER`` for a
            folder that holds ``owner/name`` folders in the hub's format.

    Raises:
        UnknownNameError: If there is no such task.
        DataError: If files are missing or damaged, if the number of pairs is not the task's, if there are fewer than
            three, or if all have one score.
    """
    if table_suffix(task):
        return _load_table(Path(task), own_task(task), OWN)
    if _is_hub(data_dir):
        return _load_hub(task, str(data_dir).partition(":")[2])
    folder = _local_folder(data_dir)
    if table := _own_table(task, folder):
        return _load_table(table, task, TASKS.get(task, OWN))
    row = _require_task(task)
    return _load_mix(task, row, folder) if row.mix else _load_package(task, row, folder)


def own_task(path: str | Path) -> str:
    """What a table of one's own is called as a task: as its file, with the ending where a known task has that name."""
    name = table_name(path)
    return Path(path).name if name in TASKS or name in SUITES else name


def load_tasks(tasks: Iterable[str], data_dir: str | Path | None, columns: str | Sequence[str] | None) -> list[Pairs]:
    """Load tasks; ``columns`` are those of two texts and the score in tables that are given by their paths."""
    own = set(filter(table_suffix, tasks if columns else ()))
    loaded = [load_pairs(task, "graded", columns) if task in own else load_sts(task, data_dir) for task in tasks]
    for one in loaded:
        if (repeated := len(one) - len({*zip(one.first, one.second, strict=True)})) > REPEATED * len(one):
            told = one.task, repeated, len(one)
            logger.warning("%s: %d of %d pairs repeat others, so intervals are too narrow. Leave repeats out.", *told)
    return loaded


def _is_hub(data_dir: object) -> bool:
    return str(data_dir).partition(":")[0] == "hub"


def _local_folder(data_dir: str | Path | None) -> Path:
    folder = expand(data_dir or "")
    if not folder.is_dir():
        raise DataError(
            f"{folder} should be the folder of the STS data, but there is no such folder. "
            "Give one that holds STS12/, ..., STSB/, SICK/ or tables <task>.tsv."
        )
    return folder


def load_graded(
    paths: str | Path | Sequence[str | Path] = (),
    tasks: str | Sequence[str] = (),
    data_dir: str | Path | None = None,
    top: float = TOP,
) -> Pairs:
    """Scored pairs to learn from: a target is the score as a share of the highest.

    Args:
        paths: Tables with sentence1, sentence2 and score.
        tasks: Names of ``TASKS`` or suites, in ``data_dir``; by their names the evaluation knows label leaks.
        data_dir: The folder of the tasks.
        top: The highest score of ``paths``.

    Raises:
        DataError: If a file is missing or damaged, a score is outside 0 to ``top``, or all scores are equal.
        UnknownNameError: If there is no such task.
    """
    named = StsSource(tasks, data_dir).names if tasks else ()
    parts = []
    for name in (*named, *(str(expand(path)) for path in several(paths))):
        pairs = load_sts(name, data_dir)
        highest = TASKS[name].scale[1] if name in TASKS else top
        if pairs.target.min() < 0 or pairs.target.max() > highest:
            raise DataError(
                f"{pairs.source} should be scored from 0 to {highest:g}, but its scores go from {pairs.target.min():g} "
                f"to {pairs.target.max():g}. Say the highest score with data.top_score."
            )
        parts.append(replace(pairs, target=(pairs.target / highest).astype(np.float32)))
    return joined(parts)


def pair_keys(pairs: Pairs) -> list[frozenset[str]]:
    """What makes two pairs the same, for each pair: the text keys of both sentences, in either order."""
    return [frozenset(map(text_key, sentences)) for sentences in zip(pairs.first, pairs.second, strict=True)]


def _require_task(task: str) -> StsTask:
    if task in TASKS:
        return TASKS[task]
    known = ", ".join((*TASKS, *SUITES))
    raise UnknownNameError(
        f"Unknown task {task!r}. Known: {known}; and any table of your own with sentence1, sentence2, score: "
        "its path, or its name in the data folder."
    )


def _own_table(task: str, data_dir: Path | None) -> Path | None:
    """The table named for a task, if the folder has one."""
    if data_dir is None or Path(task).name != task:
        return None
    names = [f"{task}{suffix}{gz}" for suffix in FORMATS for gz in ("", ".gz")]
    found = [path for name in names if table_suffix(name) and (path := data_dir / name).is_file()]
    if len(found) > 1:
        raise DataError(
            f"The task {task} should be in one table, but there are {' and '.join(map(str, found))}. Remove one."
        )
    return found[0] if found else None


def scored_pairs(table: TextTable, scale: Scale = ANY_SCALE) -> Pairs:
    """The scored pairs of a table, not yet checked as a whole."""
    return pairs_of_table(table, table.require(COLUMNS["graded"]), scale=scale)


def _load_table(path: Path, task: str, row: StsTask) -> Pairs:
    table = open_table(path)
    if row is OWN:
        labels = f" {BINARY}" if table.known(COLUMNS["binary"]) else ""
        say_columns(
            table, table.require(COLUMNS["graded"], f"Rename its columns, or name them with --columns a,b,c.{labels}")
        )
    pairs = _checked(task, scored_pairs(table, row.scale), row, path.name, place=str(path))
    if row is OWN and {*pairs.target.tolist()} <= {0.0, 1.0}:
        logger.info("%s: all scores are 0 or 1. %s", path, BINARY)
    return pairs


def _load_package(task: str, row: StsTask, data_dir: Path) -> Pairs:
    folder = next((data_dir / name for name in row.folders if (data_dir / name).is_dir()), None)
    if folder is None:
        raise DataError(
            f"The task {task} should be in {data_dir / row.folders[0]} or in a table {data_dir / task}.tsv, "
            "but neither is there. Complete the folder, or leave the task out."
        )
    pairs = joined([scored_pairs(LAYOUTS[row.layout](folder, name), row.scale) for name in row.files])
    return _checked(task, pairs, row, folder.name, place=str(folder))


def _load_mix(task: str, row: StsTask, data_dir: Path) -> Pairs:
    parts = []
    for part in row.mix:
        shown = {key for other in part.not_in for key in pair_keys(load_sts(other, data_dir))}
        loaded = load_sts(part.task, data_dir)
        kept = loaded.taken([at for at, key in enumerate(pair_keys(loaded)) if key not in shown])
        parts.append(replace(kept, subsets=(part.subset,) * len(kept)))
    sources = " + ".join(dict.fromkeys(part.source for part in parts))
    return _checked(task, joined(parts), row, sources, place=str(data_dir))


def _load_hub(task: str, root: str) -> Pairs:
    row = _require_task(task)
    if not row.hub:
        known = ", ".join(name for name, other in TASKS.items() if other.hub)
        raise DataError(f"The task {task} is not on the hub. On it are: {known}. Give a folder of the data instead.")
    # mteb states 0 to 5 for all of them, SICK-R included.
    do = "Check the way to the hub; or give --data_dir, the folder of the STS data; or --tasks FILE, pairs of your own."
    table = load_hub_table(row.hub, root, do=do)
    pairs = replace(scored_pairs(table, (0.0, TOP)), subsets=())
    return replace(_checked(task, pairs, row, f"hub:{row.hub}", place=row.hub), text_form=row.hub_form)


def _checked(task: str, pairs: Pairs, row: StsTask, source: str, place: str) -> Pairs:
    """The pairs with what the task says of them, once they are known to be complete and fit for a correlation."""
    counts = Counter(pairs.subsets)
    wanted = {"all": row.n} if set(counts) == {"all"} else row.pairs
    for subset in dict.fromkeys((*wanted, *counts)) if row.pairs else ():
        if wanted.get(subset, 0) != counts[subset]:
            what = f"The task {task}" if subset == "all" else f"The sub-set {subset} of the task {task}"
            raise DataError(
                f"{what} has {wanted.get(subset, 0)} pairs, but {place} gives {counts[subset]}. Fetch it again."
            )
    checked(pairs, place)
    # SentEval's copies have the files and names of the originals, but not one upper-case letter.
    lowered = row.pairs and not any(character.isupper() for text in pairs.first for character in text)
    form = "senteval" if lowered else "raw"
    return replace(pairs, task=task, tasks=(task,), split=row.split, source=source, text_form=form)
