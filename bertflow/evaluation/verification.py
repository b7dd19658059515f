"""Is this pipeline right on your encoder? Every published figure of ``paper_checks``, computed again.

    sentences of all tasks -> one pass for all poolings -> whitening where asked for -> figures beside published ones

Sentences are embedded once, at the largest number of tokens; only those that a smaller number cuts, once more.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from bertflow.affine import whitening_map
from bertflow.data.pairs import Pairs, unique_sentences
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.errors import DataError
from bertflow.evaluation.encoding import require_usable, row_numbers
from bertflow.evaluation.figures import task_figures
from bertflow.evaluation.meter import ScoredTask
from bertflow.evaluation.paper_checks import CHECKS, FITTED_ON, Check
from bertflow.evaluation.tables import task_title
from bertflow.moments import Moments
from bertflow.results import AbstractResult
from bertflow.similarity import SIMILARITIES
from bertflow.tables import Table

TOLERANCE = 0.1
"""Of a figure x 100."""
SIZE = (12, 768)
"""Blocks and width of the encoder whose figures were published."""
Embeddings = NDArray[np.float32]


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
        text_forms: Of the tasks.
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


def verify(
    encoder_of: Callable[[int], TransformerEncoder],
    tokens: Callable[[Sequence[str]], NDArray[np.integer[Any]]],
    sets: Mapping[str, Pairs],
    checks: Sequence[Check] = CHECKS,
    progress: bool = False,
) -> Verification:
    """Compute every figure again.

    Args:
        encoder_of: Opens the encoder for a number of tokens; its pooling should need all blocks.
        tokens: How many tokens each sentence has, special ones included.
        sets: The tasks of ``tasks_of(checks)``.
        checks: The published figures.
        progress: Show a bar on stderr.

    Raises:
        DataError: If a task has no sub-sets where its figure needs them, or embeddings cannot be scored.
    """
    sentences = unique_sentences(sets.values())
    row_of = row_numbers(sentences)
    first, *shorter = sorted({check.max_length for check in checks}, reverse=True)
    encoder = encoder_of(first)
    poolings = list(dict.fromkeys(check.pooling for check in checks))
    embedded: dict[int, Mapping[str, Embeddings]] = {first: encoder.encode_poolings(sentences, poolings, progress)}
    lengths = tokens(sentences)
    for length in shorter:
        cut = np.flatnonzero(lengths > length)
        embedded[length] = _replaced(embedded[first], cut, [sentences[row] for row in cut], encoder_of, length)
    rows = [_verified(check, embedded[check.max_length][check.pooling], sets, row_of) for check in checks]
    recipe = {key: value for key, value in encoder.describe().items() if key not in ("pooling", "layers", "max_length")}
    forms = dict.fromkeys(form for pairs in sets.values() for form in pairs.text_form.split("+"))
    return Verification(tuple(rows), recipe, encoder.dim, tuple(forms))


def _replaced(
    longer: Mapping[str, Embeddings],
    cut: NDArray[np.intp],
    sentences: Sequence[str],
    encoder_of: Callable[[int], TransformerEncoder],
    length: int,
) -> Mapping[str, Embeddings]:
    """What a smaller number of tokens makes of the same sentences: only those that are cut are embedded again."""
    if not len(cut):
        return longer
    anew = encoder_of(length).encode_poolings(sentences, list(longer))
    replaced = {pooling: x.copy() for pooling, x in longer.items()}
    for pooling, x in replaced.items():
        x[cut] = anew[pooling]
    return replaced


def _verified(check: Check, x: Embeddings, sets: Mapping[str, Pairs], row_of: Mapping[str, int]) -> Verified:
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
