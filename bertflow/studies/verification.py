"""Is this pipeline right on your encoder? ``verify_paper`` computes published figures again.

Those that need no training:

    layers 1 and last     "all" and "wmean", seven tasks    pins pooling, tokenization, aggregation
    embedding and last    STS-B, SICK-R                     the slip of an index that several papers share
    last layer            STS-B
    whitening             STS-B, SICK-R                     pins the closed form, and what it is fitted on

The figures are those of bert-base-uncased. Whitening is fitted on all splits of the task, every sentence as often as it
occurs in a pair, as its authors did (bojone/BERT-whitening, eng/eval.py): transductive, and without labels.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from bertflow import TransformerEncoder, Whitening
from bertflow.data.pairs import Pairs, unique_sentences
from bertflow.data.sts import load_sts, require_tasks
from bertflow.errors import DataError
from bertflow.evaluation.figures import ScoredTask, task_figures
from bertflow.evaluation.poolings import open_transformer, recipe_of
from bertflow.evaluation.rows import task_title
from bertflow.opening import require_openable, require_transformer
from bertflow.progress import working
from bertflow.results import AbstractResult
from bertflow.similarity import SIMILARITIES
from bertflow.tables import Table

TOLERANCE = 0.1
"""Of a figure x 100."""
SIZE = (12, 768)
"""Blocks and width of the encoder whose figures were published."""
UNCUT = 128
"""No sentence of the tasks has more tokens: 93 is the most."""
FITTED_ON: Mapping[str, tuple[str, ...]] = {
    "stsb": ("stsb-train", "stsb-dev", "stsb"),
    "sickr": ("sickr-train", "sickr-trial", "sickr"),
}
"""Task -> the splits that its whitening is fitted on."""
SU = "Su et al. 2021, arXiv:2103.15316, tables 1 and 2"
LI = "Li et al. 2020, arXiv:2011.05864, table 2"
GAO = "Gao et al. 2021, arXiv:2104.08821, table 5"
FIXED = "issue 285 of princeton-nlp/SimCSE"


@dataclass(frozen=True)
class Check:
    """One published figure, Spearman of the cosine x 100.

    Attributes:
        task: One of the seven tasks.
        pooling: A spelling.
        whitened: Whether the embeddings were whitened.
        aggregation: ``all`` or ``wmean``.
        max_length: In tokens.
        low: The figure; the lower one where two sources differ.
        high: The higher one.
        source: Paper and place.
    """

    task: str
    pooling: str
    whitened: bool
    aggregation: str
    max_length: int
    low: float
    high: float
    source: str


def _checks(
    pooling: str, aggregation: str, max_length: int, source: str, whitened: bool = False, **figures: float | list[float]
) -> Iterable[Check]:
    for task, figure in figures.items():
        low, high = figure if isinstance(figure, list) else (figure, figure)
        yield Check(task, pooling, whitened, aggregation, max_length, low, high, source)


CHECKS: Sequence[Check] = (
    *_checks(
        "first-last-avg", "wmean", 64, SU,
        sts12=57.86, sts13=61.97, sts14=62.49, sts15=70.96, sts16=69.76, stsb=59.04, sickr=63.75,
    ),
    *_checks(
        "first-last-avg", "all", UNCUT, FIXED,
        sts12=45.09, sts13=64.30, sts14=54.56, sts15=70.52, sts16=67.87, stsb=59.05, sickr=63.75,
    ),
    *_checks("emb-last-avg", "all", UNCUT, GAO, stsb=53.87, sickr=62.06),
    *_checks("mean", "wmean", 64, LI, stsb=47.29),
    *_checks("first-last-avg", "wmean", 64, f"{SU}; table C.1 of Gao et al.", True, stsb=71.34, sickr=[60.40, 60.60]),
)  # fmt: skip
"""All figures; ``UNCUT`` is the length where the source cut nothing."""


def tasks_of(checks: Sequence[Check]) -> list[str]:
    """The tasks whose pairs are needed, each once."""
    fitted = [split for check in checks if check.whitened for split in FITTED_ON[check.task]]
    return list(dict.fromkeys([*(check.task for check in checks), *fitted]))


@dataclass(frozen=True)
class Verified(Check):
    """A published figure and ours, x 100."""

    n: int
    value: float

    @property
    def difference(self) -> float:
        """Ours less the published one, from the nearer end where there are two."""
        return self.value - min(max(self.value, self.low), self.high)

    @property
    def passed(self) -> bool:
        """Whether ours is within the tolerance."""
        return abs(self.difference) <= TOLERANCE

    def cells(self) -> tuple[str, ...]:
        """A line of the table."""
        name = f"{task_title(self.task)} {self.pooling}{'+whitening' if self.whitened else ''}"
        figure = f"{self.low:.2f}" if self.low == self.high else f"{self.low:.2f} to {self.high:.2f}"
        ours = (f"{self.value:.2f}", f"{self.difference:+.2f}", "PASS" if self.passed else "FAIL")
        return (name, self.aggregation, str(self.max_length), figure, *ours, self.source)

    def as_dict(self) -> dict[str, Any]:
        """Flat, ready for JSON; correlations in [-1, 1]."""
        ends = {"low": round(self.low / 100, 6), "high": round(self.high / 100, 6)}
        return {**asdict(self), **ends, "value": self.value / 100, "passed": self.passed}


@dataclass(frozen=True, repr=False)
class Verification(AbstractResult):
    """All figures, and the encoder that ours are of.

    Attributes:
        rows: In the order of the checks.
        encoder: The encoder's description, without a pooling.
        dim: Its width.
        text_forms: Text form of each task.
    """

    rows: tuple[Verified, ...]
    encoder: Mapping[str, Any]
    dim: int
    text_forms: tuple[str, ...]

    title: ClassVar[str] = "Published figures"

    @property
    def failed(self) -> int:
        """How many figures are not reproduced."""
        return sum(not row.passed for row in self.rows)

    def table(self) -> Table:
        """A line a figure."""
        header = ("figure", "aggregation", "tokens", "published", "ours", "difference", "verdict", "source")
        return Table(header, tuple(row.cells() for row in self.rows))

    def summary(self) -> list[str]:
        """What came out, whose figures these are, and how ours were made."""
        own, lines = (self.encoder["blocks"], self.dim), []
        if own != SIZE:
            lines.append(
                f"The published figures are those of bert-base-uncased ({SIZE[0]} blocks, {SIZE[1]} wide). "
                f"{self.encoder['encoder']} has {own[0]} blocks, {own[1]} wide: it is another encoder, so FAIL says "
                "nothing about the pipeline here."
            )
        return [
            f"{len(self.rows) - self.failed} of {len(self.rows)} figures of {self.encoder['encoder']} are within "
            f"{TOLERANCE} of the published ones.",
            *lines,
            f"Spearman of the cosine x 100; {' and '.join(self.text_forms)} text, where the sources read STS12-16 as "
            "SentEval tokenized it; whitening fitted on all splits of its task, without labels (transductive).",
        ]

    def parts(self) -> Iterator[Table | str]:
        """The table, and how it was made."""
        yield self.table()
        yield from self.summary()

    def missed(self) -> str:
        """How many figures are not reproduced, if there are any."""
        return f"{self.failed} of {len(self.rows)} published figures are not reproduced." if self.failed else ""

    def as_dict(self) -> dict[str, Any]:
        """Everything; correlations in [-1, 1]."""
        rows = [row.as_dict() for row in self.rows]
        return {"format": 1, "encoder": dict(self.encoder), "tolerance": TOLERANCE / 100, "rows": rows}


def verify_model(
    model: str, data_dir: str, max_length: int | None = None, device: str = "auto", progress: bool | None = None
) -> Verification:
    """See ``bertflow.verify_paper``."""
    checks = CHECKS if max_length is None else [replace(check, max_length=max_length) for check in CHECKS]
    require_tasks(tasks_of(checks), data_dir)
    # "mean" reads the last layer, so that all blocks are loaded; the papers' encoders had no prompt.
    require_openable(model, pooling="mean", device=device, max_length=max_length)
    require_transformer(model)
    sets = {task: load_sts(task, data_dir) for task in tasks_of(checks)}

    def opened(length: int) -> TransformerEncoder:
        return open_transformer(model, pooling="mean", max_length=length, device=device, dtype="float32", prompt="")

    return verify(opened, sets, checks, progress)


@working("computing the published figures")
def verify(
    open_encoder: Callable[[int], TransformerEncoder],
    sets: Mapping[str, Pairs],
    checks: Sequence[Check] = CHECKS,
    progress: bool | None = None,
) -> Verification:
    """Compute every published figure again; sentences are embedded once more only where fewer tokens cut them.

    Args:
        open_encoder: Opens the encoder for a number of tokens; its pooling should need all blocks.
        sets: The tasks of ``tasks_of(checks)``.
        checks: The published figures.
        progress: Whether to show a progress bar (default: in a terminal or a notebook).

    Raises:
        DataError: If a task has no sub-sets where its figure needs them, or embeddings cannot be scored.
    """
    sentences = unique_sentences(sets.values())
    row_of = {sentence: row for row, sentence in enumerate(sentences)}
    longest, *shorter = sorted({check.max_length for check in checks}, reverse=True)
    encoder = open_encoder(longest)
    poolings = list(dict.fromkeys(check.pooling for check in checks))
    embedded = {longest: encoder.encode_poolings(sentences, poolings, progress)}
    for length in shorter:
        cut = np.flatnonzero(encoder.tokenized(sentences).lengths > length)
        embedded[length] = {pooling: x.copy() for pooling, x in embedded[longest].items()}
        anew = open_encoder(length).encode_poolings([sentences[row] for row in cut], poolings) if len(cut) else {}
        for pooling, x in anew.items():
            embedded[length][pooling][cut] = x
    rows = [_verified(check, embedded[check.max_length][check.pooling], sets, row_of) for check in checks]
    forms = dict.fromkeys(form for pairs in sets.values() for form in pairs.text_form.split("+"))
    return Verification(tuple(rows), recipe_of(encoder, "max_length"), encoder.dim, tuple(forms))


def _verified(check: Check, x: NDArray[np.float32], sets: Mapping[str, Pairs], row_of: Mapping[str, int]) -> Verified:
    pairs = sets[check.task]
    if check.whitened:
        fitted = np.concatenate([rows for split in FITTED_ON[check.task] for rows in sets[split].rows(row_of)])
        x = Whitening().fit(x[fitted]).transform(x)
    first, second = pairs.rows(row_of)
    task = ScoredTask(pairs, "cosine", SIMILARITIES["cosine"].paired(x[first], x[second])[None])
    wanted = (check.aggregation, "cosine_spearman", "")
    figure = next(
        (one for one in task_figures(task, 0, 0) if (one.aggregation, one.metric, one.subset) == wanted), None
    )
    if figure is None:
        raise DataError(
            f"The figure of {check.task} is {check.aggregation}, over its sub-sets, but {pairs.source} does not name "
            "them. Give a folder with the authors' packages."
        )
    return Verified(**vars(check), n=figure.n, value=100 * float(figure.values[0]))
