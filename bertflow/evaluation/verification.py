"""Is this pipeline right on your encoder? The published figures that need no training, computed again.

    layers 1 and last     "all" and "wmean", seven tasks    pins pooling, tokenization, aggregation
    embedding and last    STS-B, SICK-R                     the slip of an index that several papers share
    last layer            STS-B
    whitening             STS-B, SICK-R                     pins the closed form, and what it is fitted on

The figures are those of bert-base-uncased. Whitening is fitted on all splits of the task, every sentence as often as it
occurs in a pair, as its authors did (bojone/BERT-whitening, eng/eval.py): transductive, and without labels. Sentences
are embedded once for all poolings, at the largest number of tokens; only those that a smaller number cuts, once more.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from bertflow.data.pairs import Pairs, unique_sentences
from bertflow.data.sts import load_sts
from bertflow.errors import DataError
from bertflow.evaluation.tables import task_title
from bertflow.results import AbstractResult
from bertflow.tables import Table

if TYPE_CHECKING:
    from bertflow.encoder.transformer import TransformerEncoder

    Embeddings = NDArray[np.float32]

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
class Verified:
    """A published figure and ours, x 100."""

    check: Check
    n: int
    value: float

    @property
    def difference(self) -> float:
        """Ours less the published one, from the nearer end where there are two."""
        return self.value - min(max(self.value, self.check.low), self.check.high)

    @property
    def passed(self) -> bool:
        """Whether ours is within the tolerance."""
        return abs(self.difference) <= TOLERANCE

    def cells(self) -> tuple[str, ...]:
        """A line of the table."""
        check = self.check
        name = f"{task_title(check.task)} {check.pooling}{'+whitening' if check.whitened else ''}"
        published = f"{check.low:.2f}" if check.low == check.high else f"{check.low:.2f} to {check.high:.2f}"
        ours = (f"{self.value:.2f}", f"{self.difference:+.2f}", "PASS" if self.passed else "FAIL")
        return (name, check.aggregation, str(check.max_length), published, *ours, check.source)

    def as_dict(self) -> dict[str, Any]:
        """Flat, ready for JSON; correlations in [-1, 1]."""
        ends = {"low": round(self.check.low / 100, 6), "high": round(self.check.high / 100, 6)}
        return {**asdict(self.check), **ends, "n": self.n, "value": self.value / 100, "passed": self.passed}


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


def verify_paper(
    model: str, data_dir: str, max_length: int | None = None, device: str = "auto", progress: bool | None = None
) -> Verification:
    """Check that this pipeline computes the published figures on your bert-base-uncased.

    Without training: three poolings and closed-form whitening, computed again, PASS or FAIL within 0.1. Exit code 4 if
    one fails.

    Args:
        model: bert-base-uncased: its folder, or its hub id.
        data_dir: Folder of the STS data, with the sub-sets of STS12-16.
        max_length: Of all figures, in tokens (default: what each source used).
        device: cpu, cuda, ...
        progress: Whether to show a progress bar (default: in a terminal or a notebook).

    Returns:
        Every figure beside ours.

    Raises:
        DataError: If a task is missing, or has no sub-sets where its figure needs them.
    """
    from bertflow.encoder.folders import open_model
    from bertflow.encoder.model import tokenize
    from bertflow.encoder.transformer import TransformerEncoder

    checks = CHECKS if max_length is None else [replace(check, max_length=max_length) for check in CHECKS]
    longest = max(check.max_length for check in checks)

    def encoder_of(length: int) -> "TransformerEncoder":
        # "mean" reads the last layer, so that all blocks are loaded; the papers' encoders had no prompt.
        return TransformerEncoder(model, "mean", length, device=device, dtype="float32", prompt="")

    def tokens(sentences: Sequence[str]) -> "NDArray[np.integer[Any]]":
        return tokenize(sentences, open_model(model).tokenizer, longest).lengths

    sets = {task: load_sts(task, data_dir) for task in tasks_of(checks)}
    return verify(encoder_of, tokens, sets, checks, progress)


def verify(
    encoder_of: "Callable[[int], TransformerEncoder]",
    tokens: "Callable[[Sequence[str]], NDArray[np.integer[Any]]]",
    sets: Mapping[str, Pairs],
    checks: Sequence[Check] = CHECKS,
    progress: bool | None = None,
) -> Verification:
    """Compute every figure again.

    Args:
        encoder_of: Opens the encoder for a number of tokens; its pooling should need all blocks.
        tokens: How many tokens each sentence has, special ones included.
        sets: The tasks of ``tasks_of(checks)``.
        checks: The published figures.
        progress: Whether to show a progress bar (default: in a terminal or a notebook).

    Raises:
        DataError: If a task has no sub-sets where its figure needs them, or embeddings cannot be scored.
    """
    from bertflow.evaluation.encoding import row_numbers

    sentences = unique_sentences(sets.values())
    row_of = row_numbers(sentences)
    longest, *shorter = sorted({check.max_length for check in checks}, reverse=True)
    encoder = encoder_of(longest)
    poolings = list(dict.fromkeys(check.pooling for check in checks))
    embedded = {longest: encoder.encode_poolings(sentences, poolings, progress)}
    lengths = tokens(sentences)
    for length in shorter:
        cut = np.flatnonzero(lengths > length)
        embedded[length] = {pooling: x.copy() for pooling, x in embedded[longest].items()}
        anew = encoder_of(length).encode_poolings([sentences[row] for row in cut], poolings) if len(cut) else {}
        for pooling, x in anew.items():
            embedded[length][pooling][cut] = x
    rows = [_verified(check, embedded[check.max_length][check.pooling], sets, row_of) for check in checks]
    recipe = {key: value for key, value in encoder.describe().items() if key not in ("pooling", "layers", "max_length")}
    forms = dict.fromkeys(form for pairs in sets.values() for form in pairs.text_form.split("+"))
    return Verification(tuple(rows), recipe, encoder.dim, tuple(forms))


def _verified(check: Check, x: "Embeddings", sets: Mapping[str, Pairs], row_of: Mapping[str, int]) -> Verified:
    import torch

    from bertflow.affine import whitening_map
    from bertflow.evaluation.encoding import require_usable
    from bertflow.evaluation.figures import ScoredTask, task_figures
    from bertflow.moments import Moments
    from bertflow.similarity import SIMILARITIES

    pairs = sets[check.task]
    first, second = (x[rows] for rows in pairs.rows(row_of))
    if check.whitened:
        fitted = np.concatenate([rows for split in FITTED_ON[check.task] for rows in sets[split].rows(row_of)])
        whitening = whitening_map(Moments.of(x[fitted]))
        with torch.inference_mode():
            first, second = (whitening(torch.from_numpy(side)).numpy() for side in (first, second))
    for sentences, side in ((pairs.first, first), (pairs.second, second)):
        require_usable(check.pooling, side, sentences, "cosine", f"task {pairs.task}")
    task = ScoredTask(pairs, "cosine", SIMILARITIES["cosine"].paired(first, second)[None])
    for figure in task_figures(task, resamples=0, seed=0):
        if (figure.aggregation, figure.subset, figure.metric) == (check.aggregation, "", "cosine_spearman"):
            return Verified(check, figure.n, 100 * float(figure.values[0]))
    raise DataError(
        f"The figure of {check.task} is {check.aggregation}, over its sub-sets, but {pairs.source} does not name them. "
        "Give a folder with the authors' packages."
    )
