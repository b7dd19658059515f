"""Semantic textual similarity: pairs of sentences with a human score.

A task is a row of ``TASKS``. Its pairs come from

    <data_dir>/<task>.{tsv,csv,jsonl,parquet}   a table with sentence1, sentence2, score[, subset], if there is one
    <data_dir>/STS12/ ... STSB/ SICK/           else the packages as their authors gave them out
    the hub                                     with data_dir "hub", at a pinned revision

A task of one's own is such a table: its name in the folder, or its path. How many pairs a known task has is asserted,
since a set that is a few pairs short still gives a score.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bertflow.data.hub import load_hub_table
from bertflow.data.sts_layouts import LAYOUTS, ScoredPair, read_table
from bertflow.data.sts_tasks import SUITES, TASKS, StsTask
from bertflow.data.tables import FORMATS, open_table, table_suffix
from bertflow.errors import DataError, UnknownNameError
from bertflow.text_keys import text_key

OWN_SCALE = (-math.inf, math.inf)
"""Scores of a user's own task: any finite numbers."""


@dataclass(frozen=True, eq=False)
class StsPairs:
    """The pairs of one task, in the order of its files; four sequences of one length."""

    task: str
    split: str
    sentence1: tuple[str, ...]
    sentence2: tuple[str, ...]
    gold: NDArray[np.float64]
    """Human scores, on the scale of the task."""
    subsets: tuple[str, ...]
    """The sub-set of each pair; "all" where there are none."""
    text_form: str
    """``raw``: case and spacing as written; ``senteval``: lower-cased and Moses-tokenized."""
    source: str
    """Where the pairs came from: a file, a folder, or a hub dataset with its revision."""

    def __len__(self) -> int:
        """The number of pairs."""
        return len(self.sentence1)


def expand_tasks(tasks: str | Sequence[str], data_dir: str | Path | None = None) -> tuple[str, ...]:
    """Names of tasks with suites spelled out, each once, in the order given.

    Args:
        tasks: Tasks, suites and paths of tables; a string may hold several, separated by commas.
        data_dir: Where a task of one's own may stand as a table.

    Raises:
        UnknownNameError: If a name is none of these.
    """
    names = [name.strip() for item in ([tasks] if isinstance(tasks, str) else tasks) for name in item.split(",")]
    expanded = dict.fromkeys(task for name in names if name for task in SUITES.get(name, (name,)))
    for task in expanded:
        if task not in TASKS and table_suffix(task) is None and _own_table(task, data_dir) is None:
            raise _unknown_task(task)
    if not expanded:
        raise _unknown_task("")
    return tuple(expanded)


def load_sts(task: str, data_dir: str | Path) -> StsPairs:
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
        return _load_table(Path(task), Path(task).name.removesuffix(".gz").rpartition(".")[0], None)
    if str(data_dir) == "hub" or str(data_dir).startswith("hub:"):
        return _load_hub(task, str(data_dir).partition(":")[2])
    folder = Path(data_dir).expanduser()
    if not folder.is_dir():
        raise DataError(
            f"{folder} should be the folder of the STS data, but there is no such folder. "
            "Give one that holds STS12/, ..., STSB/, SICK/ or tables <task>.tsv."
        )
    if table := _own_table(task, folder):
        return _load_table(table, task, TASKS.get(task))
    row = _require_task(task)
    return _load_mix(task, row, folder) if row.mix else _load_package(task, row, folder)


def unique_sentences(sets: Iterable[StsPairs]) -> list[str]:
    """Distinct sentences of some tasks by exact text, in the order of their first appearance."""
    return list(
        dict.fromkeys(
            sentence
            for pairs in sets
            for pair in zip(pairs.sentence1, pairs.sentence2, strict=True)
            for sentence in pair
        )
    )


def pair_key(sentence1: str, sentence2: str) -> frozenset[str]:
    """What makes two pairs the same: the text keys of both sentences, in either order."""
    return frozenset((text_key(sentence1), text_key(sentence2)))


def _unknown_task(task: str) -> UnknownNameError:
    known = ", ".join((*TASKS, *SUITES))
    return UnknownNameError(
        f"Unknown task {task!r}. Known: {known}; and any table of your own with sentence1, sentence2, score: "
        "its path, or its name in the data folder."
    )


def _require_task(task: str) -> StsTask:
    if task not in TASKS:
        raise _unknown_task(task)
    return TASKS[task]


def _own_table(task: str, data_dir: str | Path | None) -> Path | None:
    """The table named for a task, if the folder has one."""
    if data_dir is None or Path(task).name != task:
        return None
    names = [f"{task}{suffix}{gz}" for suffix in FORMATS for gz in ("", ".gz")]
    found = [path for name in names if table_suffix(name) and (path := Path(data_dir) / name).is_file()]
    if len(found) > 1:
        raise DataError(
            f"The task {task} should stand in one table, but there are {' and '.join(map(str, found))}. Remove one."
        )
    return found[0] if found else None


def _load_table(path: Path, task: str, row: StsTask | None) -> StsPairs:
    pairs = read_table(open_table(path), row.scale if row else OWN_SCALE)
    return _checked(task, row, pairs, path.name, text_form=None, place=str(path))


def _load_package(task: str, row: StsTask, data_dir: Path) -> StsPairs:
    folder = next((data_dir / name for name in row.folders if (data_dir / name).is_dir()), None)
    if folder is None:
        raise DataError(
            f"The task {task} should stand in {data_dir / row.folders[0]} or in a table {data_dir / task}.tsv, "
            "but neither is there. Complete the folder, or leave the task out."
        )
    pairs = [pair for name in row.files for pair in LAYOUTS[row.layout](folder, name, row.scale)]
    return _checked(task, row, pairs, folder.name, text_form=None, place=str(folder))


def _load_mix(task: str, row: StsTask, data_dir: Path) -> StsPairs:
    pairs: list[ScoredPair] = []
    sources: list[str] = []
    for part in row.mix:
        shown = {key for other in part.not_in for key in _keys(load_sts(other, data_dir))}
        loaded = load_sts(part.task, data_dir)
        sources.append(loaded.source)
        pairs += [
            ScoredPair(first, second, float(gold), part.subset)
            for first, second, gold in zip(loaded.sentence1, loaded.sentence2, loaded.gold, strict=True)
            if pair_key(first, second) not in shown
        ]
    return _checked(task, row, pairs, " + ".join(dict.fromkeys(sources)), text_form=None, place=str(data_dir))


def _keys(pairs: StsPairs) -> Iterable[frozenset[str]]:
    return map(pair_key, pairs.sentence1, pairs.sentence2)


def _load_hub(task: str, root: str) -> StsPairs:
    row = _require_task(task)
    if row.hub is None:
        known = ", ".join(name for name, other in TASKS.items() if other.hub)
        raise DataError(f"The task {task} is not on the hub. On it are: {known}. Give a folder of the data instead.")
    where = row.hub.where
    # mteb states 0 to 5 for all of them, SICK-R included.
    pairs = [pair._replace(subset="all") for pair in read_table(load_hub_table(where, root or None), (0.0, 5.0))]
    return _checked(task, row, pairs, f"hub:{where}", row.hub.text_form, place=str(where))


def _checked(
    task: str, row: StsTask | None, pairs: list[ScoredPair], source: str, text_form: str | None, place: str
) -> StsPairs:
    """Pairs as the record they become, once they are known to be complete and fit for a correlation."""
    counts = Counter(pair.subset for pair in pairs)
    if row and set(counts) != {"all"}:
        _require_counts(task, row.pairs, counts, place)
    elif row and len(pairs) != row.n:
        raise DataError(f"The task {task} has {row.n} pairs, but {place} gives {len(pairs)}. Fetch it again.")
    gold = np.array([pair.gold for pair in pairs], dtype=np.float64)
    if len(gold) < 3:
        raise DataError(f"{place} holds {len(gold)} pairs, but a correlation needs at least 3. Give more pairs.")
    if gold.min() == gold.max():
        raise DataError(
            f"{place} scores all {len(gold)} pairs {gold[0]:g}: without variance there is no correlation. "
            "Give pairs with different scores."
        )
    first, second = tuple(pair.sentence1 for pair in pairs), tuple(pair.sentence2 for pair in pairs)
    return StsPairs(
        task=task,
        split=row.split if row else "own",
        sentence1=first,
        sentence2=second,
        gold=gold,
        subsets=tuple(pair.subset for pair in pairs),
        text_form=text_form or _text_form(first, row),
        source=source,
    )


def _require_counts(task: str, wanted: dict[str, int], got: Counter[str], place: str) -> None:
    for subset in dict.fromkeys((*wanted, *got)):
        if wanted.get(subset, 0) != got[subset]:
            raise DataError(
                f"The sub-set {subset} of the task {task} has {wanted.get(subset, 0)} pairs, "
                f"but {place} gives {got[subset]}. Fetch it again."
            )


def _text_form(sentences: Sequence[str], row: StsTask | None) -> str:
    """SentEval's copies have the files and names of the originals, but not one upper-case letter."""
    return "senteval" if row and not any(character.isupper() for text in sentences for character in text) else "raw"
