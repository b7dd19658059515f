"""The STS tasks as rows: where their pairs are, how many there are, on which scale they are scored; and their files.

Numbers of pairs are those of the authors' packages, which mteb's descriptive statistics confirm. STS13 is the usual one
of 1,500 pairs, without the SMT sub-set, whose text could not be given out. ``sickr`` is what SentEval and the papers
score (the test pairs), ``sickr-all`` what mteb calls SICK-R.

The packages lie in three layouts:

    SemEval   STS.input.X.txt (two sentences a line, tab-separated; STS16 adds columns of source notes) and
              STS.gs.X.txt (line i scores line i; a blank line means that the pair was never annotated)
    STS-B     tab-separated in spite of its name .csv, without a header; some lines have columns of source notes
    SICK      tab-separated with a header; CRLF in the test file
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bertflow.data.cells import split_tsv
from bertflow.data.lines import read_lines
from bertflow.data.tables import Rows, TextTable, open_table
from bertflow.errors import DataError, shown

TEXT_FORMS = {"raw": "text as written", "senteval": "text as SentEval tokenized it"}
"""Form of a text -> the words for it."""
STS12_16 = ("sts12", "sts13", "sts14", "sts15", "sts16")


@dataclass(frozen=True)
class Part:
    """Pairs that a mixed task takes from another one."""

    task: str
    subset: str = "all"
    not_in: tuple[str, ...] = ()
    """Leave out the pairs of these tasks, by the text keys of both sentences in either order."""


@dataclass(frozen=True)
class StsTask:
    """One task. Either ``files`` in a package, or a ``mix`` of other tasks."""

    title: str
    split: str
    pairs: dict[str, int]
    """Scored pairs of each sub-set; the one sub-set of a task without any is called "all"."""
    scale: tuple[float, float] = (0.0, 5.0)
    folders: tuple[str, ...] = ()
    """The names that the folder of the package may have: ours, SentEval's."""
    layout: str = ""
    """A row of ``LAYOUTS``."""
    files: tuple[str, ...] = ()
    """What the layout reads: sub-sets or file names."""
    mix: tuple[Part, ...] = ()
    hub: str = ""
    """A copy on the hub that holds all pairs as one set, as ``load_hub_table`` spells it; empty if there is none."""
    hub_form: str = "raw"
    """The text form of that copy."""
    aggregation: str = "all"
    """How the sub-sets become one figure unless the user chooses: ``all``, ``mean`` or ``wmean``."""

    @property
    def n(self) -> int:
        """Scored pairs in all."""
        return sum(self.pairs.values())


def _semeval(title: str, revision: str, pairs: dict[str, int]) -> StsTask:
    """A year of SemEval; mteb's copy of it carries SentEval's text."""
    folders, hub = (title, f"{title}-en-test"), f"mteb/{title.lower()}-sts@{revision}:test"
    return StsTask(
        title, "test", pairs, folders=folders, layout="semeval", files=tuple(pairs), hub=hub, hub_form="senteval"
    )


def _stsb(split: str, file: str, hub_split: str, n: int) -> StsTask:
    """A split of the STS Benchmark; mteb's copy of it carries the authors' text."""
    hub = f"mteb/stsbenchmark-sts@b0fddb56ed78048fa8b90373c8a3cfc37b684831:{hub_split}"
    folders = ("STSB", "STSBenchmark")
    return StsTask("STS-B", split, {"all": n}, folders=folders, layout="stsb", files=(file,), hub=hub)


def _sick(split: str, file: str, n: int) -> StsTask:
    return StsTask("SICK-R", split, {"all": n}, (1.0, 5.0), folders=("SICK",), layout="sick", files=(file,))


TASKS: Mapping[str, StsTask] = {
    "sts12": _semeval(
        "STS12",
        "a0d554a64d88156834ff5ae9920b964011b16384",
        {"MSRpar": 750, "MSRvid": 750, "SMTeuroparl": 459, "surprise.OnWN": 750, "surprise.SMTnews": 399},
    ),
    "sts13": _semeval(
        "STS13", "7e90230a92c190f1bf69ae9002b8cea547a64cca", {"FNWN": 189, "headlines": 750, "OnWN": 561}
    ),
    "sts14": _semeval(
        "STS14",
        "6031580fec1f6af667f0bd2da0a551cf4f0b2375",
        {"deft-forum": 450, "deft-news": 300, "headlines": 750, "OnWN": 750, "images": 750, "tweet-news": 750},
    ),
    "sts15": _semeval(
        "STS15",
        "ae752c7c21bf194d8b67fd573edf7ae58183cbe3",
        {"answers-forums": 375, "answers-students": 750, "belief": 375, "headlines": 750, "images": 750},
    ),
    "sts16": _semeval(
        "STS16",
        "4d8694f8f0e0100860b497b999b3dbed754a0513",
        {"answer-answer": 254, "headlines": 249, "plagiarism": 230, "postediting": 244, "question-question": 209},
    ),
    "stsb": _stsb("test", "sts-test.csv", "test", 1379),
    "stsb-dev": _stsb("dev", "sts-dev.csv", "validation", 1500),
    "stsb-train": _stsb("train", "sts-train.csv", "train", 5749),
    "sickr": _sick("test", "SICK_test_annotated.txt", 4927),
    "sickr-train": _sick("train", "SICK_train.txt", 4500),
    "sickr-trial": _sick("trial", "SICK_trial.txt", 500),
    "sickr-all": StsTask(
        "SICK-R",
        split="train+trial+test",
        pairs={"all": 9927},
        scale=(1.0, 5.0),
        mix=(Part("sickr-train"), Part("sickr-trial"), Part("sickr")),
        hub="mteb/sickr-sts@20a6d6f312dd54037fe07a32d58e5e168867909d:test",
    ),
    "tuning": StsTask(
        "tuning",
        split="dev",
        pairs={"sick": 5000, "stsb-dev": 369},
        mix=(Part("sickr-train", "sick"), Part("sickr-trial", "sick"), Part("stsb-dev", "stsb-dev", not_in=STS12_16)),
        # SICK is scored from 1 to 5 and STS-B from 0 to 5: their gold scores cannot be ranked together.
        aggregation="mean",
    ),
}
"""A row is a task. For choices use ``tuning``: none of its STS-B pairs is in STS12-16. (Of its 5,000 SICK pairs, 44
stand in STS12 and 1 in STS15, whose captions SICK drew from too, 15 in STS-B's test set and 102 in SICK's, in either
order; 6 of STS-B's stand in SICK's, too.)"""

SUITES: Mapping[str, tuple[str, ...]] = {"sts7": (*STS12_16, "stsb", "sickr")}
"""A row is a name for several tasks, in the column order of the papers."""


def suites_of(tasks: Collection[str]) -> dict[str, tuple[str, ...]]:
    """The suites all of whose tasks are among these."""
    return {name: members for name, members in SUITES.items() if {*members} <= {*tasks}}


def task_title(task: str) -> str:
    """What the papers call a task: "STS-B"; with the split where that is not the test set; "Avg" for a suite."""
    if task in SUITES:
        return "Avg"
    if task not in TASKS:
        return task
    row = TASKS[task]
    return row.title if row.split == "test" or row.title == task else f"{row.title} {row.split}"


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
