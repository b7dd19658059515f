"""The first question of the paper: how much of the meaning in raw embeddings does the cosine leave unused?

    python benchmarks/ceiling.py --data_dir DATA

Of every stand-in for BERT-base (see standins.py): raw, label-free calibrators of the same embeddings, fitted on the
scored sentences without their scores, and the supervised ceiling (``bertflow.studies.ceiling``), which learns from
the task's own labels, by folds that share no sentence. A share of the gap between raw and the ceiling is shown where
the ceiling is separably above raw and above every calibrator, by a paired bootstrap; else a dash, with the reason.

Spearman x 100, "all" aggregation. Writes ceiling.json beside this file.
"""

from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any

from material import STAND_INS, TUNED, folders
from study import Case, Row, Study, table, with_interval

from bertflow.calibrated import CalibratedEncoder
from bertflow.calibration.spelling import RAW, parse_systems
from bertflow.data.pairs import Pairs, unique_sentences
from bertflow.data.sts import StsSource
from bertflow.encoder.abstract import SentenceEncoder
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.evaluation.evaluating import score_sets
from bertflow.evaluation.report import Report
from bertflow.evaluation.score_table import Column
from bertflow.evaluation.systems import SharedPass
from bertflow.studies.ceiling import CEILING, ceilings_of, labeled_pairs
from bertflow.studies.sections import gap_section

CHOSEN = {**STAND_INS, "last": TUNED["last"]}
LABEL_FREE = "center,standardize,abtt(3),abtt(10),whitening,whitening(128),whitening(64),flow"
ABOVE = (
    "Inner layers of a tuned MiniLM standing in for a raw BERT (L0 to CLS3), its last layer, and a small plain BERT "
    "(MLM4); BERT-base not run here.\n\n"
    "The best label-free row is the best of eight calibrators on the test set itself, so its share is an upper one. "
    "Intervals are 95 %, of ceiling - best."
)


def scored(encoder: SentenceEncoder, sets: Sequence[Pairs], options: Namespace) -> dict[str, Any]:
    """Raw, the calibrators and the ceiling of one encoder."""
    sentences = unique_sentences(sets)
    systems: dict[str, SentenceEncoder] = {RAW: encoder}
    for spec in parse_systems(LABEL_FREE):
        systems[spec.spelling] = CalibratedEncoder(encoder, spec.make().fit_sentences(encoder, sentences))
    labeled = labeled_pairs([pairs.task for pairs in sets], options.data_dir / "sts")
    ceilings = ceilings_of(systems, sets, labeled)
    return summary(score_sets(systems, sets, resamples=options.resamples, scorers=ceilings))


def summary(report: Report) -> dict[str, Any]:
    """By column: raw, the best calibrator, the ceiling, what the ceiling is above both, and shares."""
    section = gap_section(report, RAW, CEILING)
    shares = {name: dict(zip(section.table.header[1:], cells, strict=True)) for name, *cells in section.table.lines}
    return {
        "columns": {column.title: facts_of(report, column, shares) for column in report.columns},
        "reasons": section.lines[1:],
    }


def facts_of(report: Report, column: Column, shares: Mapping[str, Mapping[str, str]]) -> dict[str, Any]:
    """One column."""
    values = {row.system: 100 * row.value for row in report.rows if row.place == column.place and not row.subset}
    best = max(shares, key=lambda name: values[name])
    above = {}
    for other in (RAW, best):
        row = next(row for row in report.compared(CEILING, other) if row.place == column.place)
        above[other] = [round(100 * end, 2) for end in (row.difference, row.ci_low or 0.0, row.ci_high or 0.0)]
    return {
        "values": {name: round(value, 2) for name, value in values.items()},
        "best": best,
        "ceiling above": above,
        "shares": {name: cells[column.title] for name, cells in shares.items()},
    }


def page(rows: Sequence[Row]) -> str:
    """Five lines a stand-in; a share where the ceiling is above the best by more than chance (``ceiling.json``)."""
    titles = list(rows[0]["columns"])
    lines = []
    for row in rows:
        columns = [row["columns"][title] for title in titles]
        cells = {
            "raw": [f"{column['values'][RAW]:.1f}" for column in columns],
            "best label-free": [f"{column['values'][column['best']]:.1f} {column['best']}" for column in columns],
            "ceiling": [f"{column['values'][CEILING]:.1f}" for column in columns],
            "ceiling - best": [with_interval(*column["ceiling above"][column["best"]]) for column in columns],
            "share closed": [column["shares"][column["best"]] for column in columns],
        }
        lines += [(row["stand-in"], name, *found) for name, found in cells.items()]
    return f"{ABOVE}\n\n{table(('stand-in', '', *titles), lines)}"


def cases(options: Namespace) -> Iterator[Case]:
    """The stand-ins; those of one model share a pass."""
    sets = list(StsSource(options.tasks, options.data_dir / "sts"))
    opened = cache(lambda name: SharedPass(TransformerEncoder(folders(options.data_dir)[name], "mean", max_length=128)))
    for name in options.only:
        one = CHOSEN[name]
        yield (
            {"stand-in": name, "pooling": one.pooling},
            partial(lambda one: scored(opened(one.encoder).pooled(one.pooling), sets, options), one),
        )


STUDY = Study(
    __file__,
    __doc__,
    cases,
    page,
    "sts and encoders",
    {
        "tasks": ("sts7", "choose on tuning, report on sts7"),
        "resamples": (500, "of the bootstrap"),
        "only": (list(CHOSEN), "stand-ins"),
    },
)
if __name__ == "__main__":
    STUDY.main()
