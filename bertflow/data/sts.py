"""Semantic textual similarity: pairs of sentences with a human score.

A task is a row of ``TASKS``. Its pairs come from

    <data_dir>/<task>.{tsv,csv,jsonl,parquet}   a table with sentence1, sentence2, score[, subset], if there is one
    <data_dir>/STS12/ ... STSB/ SICK/           else the packages as their authors published them
    the hub                                     with data_dir "hub", at a pinned revision

The packages lie in three layouts:

    SemEval   STS.input.X.txt (two sentences a line, tab-separated; STS16 adds columns of source notes) and
              STS.gs.X.txt (line i scores line i; a blank line means that the pair was never annotated)
    STS-B     tab-separated in spite of its name .csv, without a header; some lines have columns of source notes
    SICK      tab-separated with a header; CRLF in the test file

Nothing here is read with csv quoting: the sentences hold unbalanced quotation marks, and a csv reader merges lines
silently. Sentences are kept as they are in the file. A user's own task is a table: its name in the folder, or its path.
The number of pairs of a known task is checked, since a set that is a few pairs short still gives a score.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from bertflow.data.hub import load_hub_table
from bertflow.data.pairs import ANY_SCALE, Pairs, Scale, checked, joined, pairs_of_table
from bertflow.data.sts_tasks import SUITES, TASKS, StsTask
from bertflow.data.tables import (
    COLUMNS,
    FORMATS,
    Rows,
    TextTable,
    open_table,
    read_lines,
    split_tsv,
    table_name,
    table_suffix,
)
from bertflow.errors import DataError, UnknownNameError, UsageError, shown
from bertflow.files import require_files
from bertflow.text_keys import text_key

TOP = 5.0
"""The highest score of the STS tasks."""
OWN = StsTask("", "own", {}, ANY_SCALE)
"""A task of the user's, of which nothing is known."""


def expand_tasks(tasks: str | Sequence[str], data_dir: str | Path | None = None) -> tuple[str, ...]:
    """Names of tasks with suites spelled out, each once, in the order given.

    Args:
        tasks: Tasks, suites and paths of tables; a string may hold several, separated by commas.
        data_dir: Where a user's own task may stand as a table.

    Raises:
        UnknownNameError: If a name is none of these.
    """
    names = [name.strip() for item in ([tasks] if isinstance(tasks, str) else tasks) for name in item.split(",")]
    expanded = dict.fromkeys(task for name in names if name for task in SUITES.get(name, (name,)))
    for task in expanded or [""]:
        if table_suffix(task) is None and _own_table(task, data_dir) is None:
            _require_task(task)
    return tuple(expanded)


def load_sts(task: str, data_dir: str | Path) -> Pairs:
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
        return _load_table(Path(task), table_name(task), OWN)
    if _is_hub(data_dir):
        return _load_hub(task, str(data_dir).partition(":")[2])
    folder = _local_folder(data_dir)
    if table := _own_table(task, folder):
        return _load_table(table, task, TASKS.get(task, OWN))
    row = _require_task(task)
    return _load_mix(task, row, folder) if row.mix else _load_package(task, row, folder)


def require_tasks(tasks: str | Sequence[str], data_dir: str | Path) -> None:
    """Refuse tasks that are unknown or missing, before anything is read.

    Raises:
        UnknownNameError: If there is no such task.
        DataError: If a table, or the folder of the data, is missing.
    """
    names = tasks.split(",") if isinstance(tasks, str) else tasks
    if not _is_hub(data_dir) and not all(map(table_suffix, names)):
        _local_folder(data_dir)
    require_files(*filter(table_suffix, expand_tasks(tasks, data_dir)))


def _is_hub(data_dir: str | Path) -> bool:
    return str(data_dir) == "hub" or str(data_dir).startswith("hub:")


def _local_folder(data_dir: str | Path) -> Path:
    folder = Path(data_dir).expanduser()
    if not folder.is_dir():
        raise DataError(
            f"{folder} should be the folder of the STS data, but there is no such folder. "
            "Give one that holds STS12/, ..., STSB/, SICK/ or tables <task>.tsv."
        )
    return folder


def load_tasks(tasks: str, data_dir: str | None) -> list[Pairs]:
    """Load several tasks from the folder that the options of a training name.

    Raises:
        UsageError: If no folder is named.
    """
    return [load_sts(task, require_folder(data_dir)) for task in expand_tasks(tasks, data_dir)]


def require_folder(data_dir: str | None) -> str:
    """The folder of the tasks, which has to be named.

    Raises:
        UsageError: If it is not.
    """
    if data_dir is None:
        raise UsageError("STS tasks need the folder they lie in. Give data.data_dir.")
    return data_dir


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
    given = [paths] if isinstance(paths, str | Path) else paths
    parts = []
    for name in [*(expand_tasks(tasks, data_dir) if tasks else ()), *(str(Path(path).expanduser()) for path in given)]:
        pairs = load_sts(name, data_dir or ".")
        highest = TASKS[name].scale[1] if name in TASKS else top
        if pairs.target.min() < 0 or pairs.target.max() > highest:
            raise DataError(
                f"{pairs.source} should be scored from 0 to {highest:g}, but its scores go from {pairs.target.min():g} "
                f"to {pairs.target.max():g}. Say the highest score with data.top_score."
            )
        parts.append(replace(pairs, target=(pairs.target / highest).astype(np.float32)))
    return joined(parts)


def pair_key(sentence1: str, sentence2: str) -> frozenset[str]:
    """What makes two pairs the same: the text keys of both sentences, in either order."""
    return frozenset((text_key(sentence1), text_key(sentence2)))


def pair_keys(pairs: Pairs) -> Iterable[frozenset[str]]:
    """The key of each pair."""
    return map(pair_key, pairs.first, pairs.second)


def _require_task(task: str) -> StsTask:
    if task in TASKS:
        return TASKS[task]
    known = ", ".join((*TASKS, *SUITES))
    raise UnknownNameError(
        f"Unknown task {task!r}. Known: {known}; and any table of your own with sentence1, sentence2, score: "
        "its path, or its name in the data folder."
    )


def _own_table(task: str, data_dir: str | Path | None) -> Path | None:
    """The table named for a task, if the folder has one."""
    if data_dir is None or Path(task).name != task:
        return None
    names = [f"{task}{suffix}{gz}" for suffix in FORMATS for gz in ("", ".gz")]
    found = [path for name in names if table_suffix(name) and (path := Path(data_dir) / name).is_file()]
    if len(found) > 1:
        raise DataError(
            f"The task {task} should be in one table, but there are {' and '.join(map(str, found))}. Remove one."
        )
    return found[0] if found else None


def scored_pairs(table: TextTable, scale: Scale = ANY_SCALE) -> Pairs:
    """The scored pairs of a table, not yet checked as a whole."""
    return pairs_of_table(table, table.require(COLUMNS["graded"]), scale=scale)


def _load_table(path: Path, task: str, row: StsTask) -> Pairs:
    return _checked(task, scored_pairs(open_table(path), row.scale), row, path.name, place=str(path))


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
    table = load_hub_table(row.hub, root, do="Check the way to the hub, or give the folder of the data as data_dir.")
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


def semeval_table(folder: Path, subset: str) -> TextTable:
    """The annotated pairs of one sub-set of STS12 to STS16.

    Raises:
        DataError: If a file is missing, or the line counts differ.
    """
    inputs, golds = folder / f"STS.input.{subset}.txt", folder / f"STS.gs.{subset}.txt"
    for path in (inputs, golds):
        if not path.is_file():
            raise DataError(f"The sub-set {subset} should be in {path}, which is missing. Is the folder complete?")
    texts, scores = ([line for _, line in read_lines(path)] for path in (inputs, golds))
    if len(texts) != len(scores):
        raise DataError(
            f"{inputs} has {len(texts)} lines and {golds} has {len(scores)}, but line i of one should score line i "
            "of the other. Fetch both again."
        )
    lines = enumerate(zip(texts, scores, strict=True), start=1)
    cells = [(number, [subset, score, *text.split("\t")]) for number, (text, score) in lines if score.strip()]
    return _placed(f"{inputs} + {golds.name}", cells, subset=0, score=1, sentence1=2, sentence2=3)


def stsb_table(folder: Path, name: str) -> TextTable:
    """One split of the STS Benchmark: genre, file, year, id, score, sentence 1, sentence 2."""
    return _placed(str(folder / name), split_tsv(folder / name), score=4, sentence1=5, sentence2=6)


LAYOUTS: Mapping[str, Callable[[Path, str], TextTable]] = {
    "semeval": semeval_table,
    "stsb": stsb_table,
    "sick": lambda folder, name: open_table(folder / name, suffix=".tsv"),
}
"""A row is how a package lays out its pairs; the function takes the folder, and the sub-set or file."""


def _placed(name: str, lines: Iterable[tuple[int, list[str]]], **places: int) -> TextTable:
    """Lines of cells as a table of those that stand in known places; others are notes."""

    def read(columns: Sequence[str]) -> Rows:
        for number, cells in lines:
            if len(cells) <= max(places.values()):
                raise DataError(
                    f"{name}, line {number}: two sentences and a score are wanted, separated by tabs, "
                    f"got {shown(cells)}. Fetch the file again."
                )
            yield number, tuple(cells[places[column]] for column in columns)

    return TextTable(name, tuple(places), read)
