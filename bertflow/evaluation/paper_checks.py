"""The published figures that need no training, as data: what ``verify-paper`` computes again.

    layers 1 and last     "all" and "wmean", seven tasks    pins pooling, tokenization, aggregation
    embedding and last    STS-B, SICK-R                     the slip of an index that several papers share
    last layer            STS-B
    whitening             STS-B, SICK-R                     pins the closed form, and what it is fitted on

The figures are those of bert-base-uncased. Whitening is fitted on all splits of the task, every sentence as often as it
stands in a pair, as its authors did (bojone/BERT-whitening, eng/eval.py): transductive, and without labels.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

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
        task: Of the seven.
        pooling: A spelling.
        whitened: Whether the embeddings were whitened.
        aggregation: ``all`` or ``wmean``.
        max_length: In tokens.
        low: The figure; the lower one where two sources differ.
        high: The higher one.
        source: Where it stands.
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
