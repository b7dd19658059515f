"""Is this pipeline right on your encoder? ``verify_paper`` computes published figures again.

Those that need no training:

    layers 1 and last     "all" and "wmean", seven tasks    pins pooling, tokenization, aggregation
    embedding and last    STS-B, SICK-R                     the slip of an index that several papers share
    last layer            STS-B
    whitening             STS-B, SICK-R                     pins the closed form, and what it is fitted on

The figures are those of bert-base-uncased. Whitening is fitted on all splits of the task, every sentence as often as it
occurs in a pair, as its authors did (bojone/BERT-whitening, eng/eval.py): transductive, and without labels.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from bertflow import TransformerEncoder, Whitening
from bertflow.array_types import Float32
from bertflow.data.pairs import Pairs, unique_sentences
from bertflow.data.sts import StsSource
from bertflow.data.sts_tasks import SUITES, task_title
from bertflow.evaluation.aggregation import ScoredTask, task_figures
from bertflow.evaluation.poolings import recipe_of
from bertflow.evaluation.sides import row_numbers
from bertflow.evaluation.significance import Place
from bertflow.opening import load_transformer
from bertflow.progress import unsaid, working
from bertflow.results import AbstractResult, Parts
from bertflow.similarity import COSINE
from bertflow.studies.literature import published, with_subsets
from bertflow.tables import Table, number

TOLERANCE = 0.1
"""Tolerance of a figure x 100."""
SIZE = (12, 768)
"""Blocks and width of the encoder whose figures were published."""
UNCUT = 128
"""The length where a source cut nothing: no sentence of the tasks has more tokens, 93 is the most."""
FITTED_ON: Mapping[str, tuple[str, ...]] = {
    "stsb": ("stsb-train", "stsb-dev", "stsb"),
    "sickr": ("sickr-train", "sickr-trial", "sickr"),
}
"""Task -> the splits that its whitening is fitted on."""


@dataclass(frozen=True)
class Check:
    """One published figure, Spearman of the cosine x 100, and ours.

    Attributes:
        task: One of the seven tasks.
        pooling: A spelling.
        whitened: Whether the embeddings were whitened.
        aggregation: ``all`` or ``wmean``.
        max_length: Longest sentence, in tokens.
        low: The figure; the lower one where two sources differ.
        high: The higher one.
        source: Papers and places.
        n: Pairs that ours was computed on.
        value: Our figure; NaN before it is computed.
    """

    task: str
    pooling: str
    whitened: bool
    aggregation: str
    max_length: int
    low: float
    high: float
    source: str
    n: int = 0
    value: float = math.nan

    @property
    def difference(self) -> float:
        """Ours minus the published one, from the nearer end where there are two."""
        return self.value - min(max(self.value, self.low), self.high)

    @property
    def passed(self) -> bool:
        """Whether ours is within the tolerance."""
        return abs(self.difference) <= TOLERANCE

    def cells(self) -> tuple[str, ...]:
        """A line of the table."""
        name = f"{task_title(self.task)} {self.pooling}{'+whitening' if self.whitened else ''}"
        figure = " to ".join(dict.fromkeys(number(end / 100) for end in (self.low, self.high)))
        ours = (number(self.value / 100), number(self.difference / 100, sign="+"), "PASS" if self.passed else "FAIL")
        return (name, self.aggregation, str(self.max_length), figure, *ours, self.source)

    def as_dict(self) -> dict[str, Any]:
        """Flat, ready for JSON; correlations in [-1, 1]."""
        ends = {"low": round(self.low / 100, 6), "high": round(self.high / 100, 6)}
        return {**asdict(self), **ends, "value": self.value / 100, "passed": self.passed}


def _checks(tasks: Sequence[str], *models: str, whitened: bool = False, source: str = "{}") -> Iterator[Check]:
    """The figures of one model, which several papers may print; ``source`` is written with that of the first."""
    lines = [next(line for line in published() if line.model == model) for model in models]
    for task in tasks:
        how = (task, lines[0].pooling, whitened, lines[0].aggregation, lines[0].max_length or UNCUT)
        printed = [line.scores[task] for line in lines]
        yield Check(*how, min(printed), max(printed), source.format(lines[0].source))


FIXED = "issue 285 of princeton-nlp/SimCSE"
CHECKS: Sequence[Check] = (
    *_checks(SUITES["sts7"], "BERT-base first-last-avg"),
    *_checks(SUITES["sts7"], f"BERT-base first-last after the fix ({FIXED})", source=FIXED),
    *_checks(("stsb", "sickr"), "BERT-base first-last as printed (in fact embedding+last)"),
    *_checks(("stsb",), "BERT-base avg"),
    *_checks(
        *(("stsb", "sickr"), "BERT-base-whitening (target)", "BERT-whitening (target)"),
        whitened=True,
        source="{}; table C.1 of Gao et al.",
    ),
)
"""Figures that are verified."""


def tasks_of(checks: Sequence[Check]) -> list[str]:
    """The tasks whose pairs are needed, each once."""
    fitted = [split for check in checks if check.whitened for split in FITTED_ON[check.task]]
    return list(dict.fromkeys([*(check.task for check in checks), *fitted]))


@dataclass(frozen=True, repr=False)
class Verification(AbstractResult):
    """All figures, and the encoder that ours are of.

    Attributes:
        rows: Figures in the order of the checks.
        encoder: The encoder's description, without a pooling.
        dim: Its width.
        text_forms: Text form of each task.
    """

    rows: tuple[Check, ...]
    encoder: Mapping[str, Any]
    dim: int
    text_forms: tuple[str, ...]

    title = "Published figures"

    @property
    def failed(self) -> int:
        """How many figures are not reproduced."""
        return sum(not row.passed for row in self.rows)

    def parts(self) -> Parts:
        """A line a figure, what came out, whose figures these are, and how ours were made."""
        header = ("figure", "aggregation", "tokens", "published", "ours", "difference", "verdict", "source")
        yield Table(header, tuple(row.cells() for row in self.rows))
        own, name = (self.encoder["blocks"], self.dim), self.encoder["encoder"]
        yield (
            f"{len(self.rows) - self.failed} of {len(self.rows)} figures of {name} are within {TOLERANCE} of the "
            "published ones."
        )
        if own != SIZE:
            yield (
                f"The published figures are those of bert-base-uncased ({SIZE[0]} blocks, {SIZE[1]} wide). {name} has "
                f"{own[0]} blocks, {own[1]} wide: it is another encoder, so FAIL says nothing about the pipeline here."
            )
        yield (
            f"Spearman of the cosine x 100; {' and '.join(self.text_forms)} text, where the sources read STS12-16 as "
            "SentEval tokenized it; whitening fitted on all splits of its task, without labels (transductive)."
        )

    def missed(self) -> str:
        """How many figures are not reproduced, if there are any."""
        return f"{self.failed} of {len(self.rows)} published figures are not reproduced." if self.failed else ""

    def as_dict(self) -> dict[str, Any]:
        """Everything; correlations in [-1, 1]."""
        rows = [row.as_dict() for row in self.rows]
        return {"format": 1, "encoder": dict(self.encoder), "tolerance": TOLERANCE / 100, "rows": rows}


def verify_model(model: str, data_dir: str, max_length: int | None, device: str, progress: bool | None) -> Verification:
    """See ``bertflow.verify_paper``."""
    checks = CHECKS if max_length is None else [replace(check, max_length=max_length) for check in CHECKS]
    tasks = StsSource(tasks_of(checks), data_dir)
    # "mean" reads the last layer, so that all blocks are loaded; the papers' encoders had no prompt.
    load_transformer(model, pooling="mean", device=device, max_length=max_length)
    sets = dict(zip(tasks.names, tasks, strict=True))
    opened = partial(load_transformer, model, pooling="mean", device=device, dtype="float32", prompt="")
    return verify(opened, sets, checks, progress)


@working("computing the published figures")
def verify(
    open_encoder: Callable[..., TransformerEncoder],
    sets: Mapping[str, Pairs],
    checks: Sequence[Check] = CHECKS,
    progress: bool | None = None,
) -> Verification:
    """Compute every published figure again; sentences are embedded once more only where fewer tokens cut them.

    Args:
        open_encoder: Opens the encoder for a ``max_length``; its pooling should need all blocks.
        sets: The tasks of ``tasks_of(checks)``.
        checks: The published figures.
        progress: Whether to show a progress bar (default: in a terminal or a notebook).

    Raises:
        DataError: If a task has no sub-sets where its figure needs them, or embeddings cannot be scored.
    """
    sentences = unique_sentences(sets.values())
    row_of = row_numbers(sentences)
    longest, *shorter = sorted({check.max_length for check in checks}, reverse=True)
    encoder = open_encoder(max_length=longest)
    poolings = list(dict.fromkeys(check.pooling for check in checks))
    embedded = {longest: encoder.encode_poolings(sentences, poolings, progress)}
    for length in shorter:
        cut = np.flatnonzero(encoder.tokenized(sentences).lengths > length)
        texts = [sentences[row] for row in cut]
        embedded[length] = {pooling: x.copy() for pooling, x in embedded[longest].items()}
        with unsaid():  # all of these are cut, as they were for the figures
            anew = open_encoder(max_length=length).encode_poolings(texts, poolings) if texts else {}
        for pooling, x in anew.items():
            embedded[length][pooling][cut] = x
    rows = [_verified(check, embedded[check.max_length][check.pooling], sets, row_of) for check in checks]
    forms = dict.fromkeys(form for pairs in sets.values() for form in pairs.text_form.split("+"))
    return Verification(tuple(rows), recipe_of(encoder, "max_length"), encoder.dim, tuple(forms))


def _verified(check: Check, x: Float32, sets: Mapping[str, Pairs], row_of: Mapping[str, int]) -> Check:
    pairs = with_subsets(sets[check.task], check.aggregation)
    if check.whitened:
        fitted = np.concatenate([rows for split in FITTED_ON[check.task] for rows in sets[split].rows(row_of)])
        x = Whitening().fit(x[fitted]).transform(x)
    first, second = pairs.rows(row_of)
    task = ScoredTask(pairs, "cosine", COSINE.paired(x[first], x[second])[None])
    wanted = Place(check.task, check.aggregation, "cosine_spearman")
    figure = next(one for one in task_figures(task, 0, 0) if one.place == wanted)
    return replace(check, n=figure.n, value=100 * float(figure.values[0]))
