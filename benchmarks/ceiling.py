"""The first question of the paper: how much of the meaning in raw embeddings does the cosine leave unused?

    python benchmarks/ceiling.py --data_dir DATA

Of every stand-in for BERT-base (see standins.py): raw, label-free calibrators of the same embeddings, fitted on the
scored sentences without their scores, and the supervised ceiling (``bertflow.evaluation.ceiling``), which learns from
the task's own labels, by folds that share no sentence. A share of the gap between raw and the ceiling is shown where
the ceiling is separably above raw and above every calibrator, by a paired bootstrap; else a dash, with the reason.

Spearman x 100, "all" aggregation. Writes ceiling.json and ceiling.md beside this file.
"""

import argparse
import logging
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from material import STAND_INS, TUNED

from bertflow.calibrated import CalibratedEncoder
from bertflow.calibration.spelling import RAW, parse_systems
from bertflow.data.pairs import Pairs, unique_sentences
from bertflow.data.sts import expand_tasks, load_sts
from bertflow.encoder.abstract import SentenceEncoder
from bertflow.encoder.embedded import embedded_encoder
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.errors import NullDirectionWarning
from bertflow.evaluation.ceiling import CEILING, ceilings_of, labelled_pairs
from bertflow.evaluation.gap import gap_section
from bertflow.evaluation.report import Report, score_sets
from bertflow.evaluation.rows import Column
from bertflow.evaluation.systems import SharedPass
from bertflow.files import write_json, write_text

HERE = Path(__file__).parent
logger = logging.getLogger("ceiling")
CHOSEN = {**STAND_INS, "last": TUNED["last"]}
LABEL_FREE = "center,standardize,abtt(3),abtt(10),whitening,whitening(128),whitening(64),flow"
ABOVE = (
    "Inner layers of a tuned MiniLM standing in for a raw BERT (L0 to CLS3), its last layer, and a small plain BERT "
    "(MLM4); BERT-base not run here."
)


def encoders(data_dir: Path) -> dict[str, SentenceEncoder]:
    """The stand-ins by name; those of one model share a pass."""
    folders = {"minilm": embedded_encoder(), "mlm4": str(data_dir / "encoders" / "mlm-4x256")}
    shared: dict[str, SharedPass] = {}
    found: dict[str, SentenceEncoder] = {}
    for name, one in CHOSEN.items():
        if one.encoder not in shared:
            shared[one.encoder] = SharedPass(TransformerEncoder(folders[one.encoder], one.pooling, max_length=128))
        found[name] = shared[one.encoder].pooled(one.pooling)
    return found


def scored(encoder: SentenceEncoder, sets: Sequence[Pairs], data_dir: Path, resamples: int) -> Report:
    """Raw, the calibrators and the ceiling of one encoder."""
    sentences = unique_sentences(sets)
    systems: dict[str, SentenceEncoder] = {RAW: encoder}
    for spec in parse_systems(LABEL_FREE):
        systems[spec.spelling] = CalibratedEncoder(encoder, spec.make().fit_sentences(encoder, sentences))
    labelled = labelled_pairs([pairs.task for pairs in sets], data_dir / "sts")
    return score_sets(systems, sets, resamples=resamples, ceilings=ceilings_of(systems, sets, labelled))


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
    values = {
        row.system: 100 * row.value
        for row in report.rows
        if (row.task, row.aggregation, row.metric, row.subset) == (column.task, column.aggregation, column.metric, "")
    }
    best = max(shares, key=lambda name: values[name])
    above = {}
    for other in (RAW, best):
        row = next(
            row
            for row in report.compared(CEILING, other)
            if (row.task, row.aggregation, row.metric) == (column.task, column.aggregation, column.metric)
        )
        above[other] = [round(100 * end, 2) for end in (row.difference, row.ci_low or 0.0, row.ci_high or 0.0)]
    return {
        "values": {name: round(value, 2) for name, value in values.items()},
        "best": best,
        "ceiling above": above,
        "shares": {name: cells[column.title] for name, cells in shares.items()},
    }


def to_markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """Four lines a stand-in, and the reasons."""
    titles = list(rows[0]["columns"])
    lines = [
        ABOVE,
        "",
        "The best label-free row is the best of eight calibrators on the test set itself, so its share is an upper "
        "one. Intervals are 95 %, of ceiling - best.",
        "",
        f"| stand-in | | {' | '.join(titles)} |",
        f"|---|---|{'---:|' * len(titles)}",
    ]
    reasons = []
    for row in rows:
        columns = [row["columns"][title] for title in titles]
        gaps = [column["ceiling above"][column["best"]] for column in columns]
        cells = {
            "raw": [f"{column['values'][RAW]:.1f}" for column in columns],
            "best label-free": [f"{column['values'][column['best']]:.1f} {column['best']}" for column in columns],
            "ceiling": [f"{column['values'][CEILING]:.1f}" for column in columns],
            "ceiling - best": [f"{gap:+.1f} [{low:+.1f}, {high:+.1f}]" for gap, low, high in gaps],
            "share closed": [column["shares"][column["best"]] for column in columns],
        }
        lines += [f"| {row['stand-in']} | {name} | {' | '.join(found)} |" for name, found in cells.items()]
        reasons += [f"* {row['stand-in']}, {reason}" for reason in row["reasons"]]
    return "\n".join([*lines, "", *reasons]).rstrip() + "\n"


def main() -> None:
    """Fit, score, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data_dir", type=Path, required=True, help="holds sts and encoders")
    parser.add_argument("--tasks", default="sts7", help="choose on tuning, report on sts7")
    parser.add_argument("--resamples", type=int, default=500)
    parser.add_argument("--only", nargs="*", default=list(CHOSEN), help="names of stand-ins")
    parser.add_argument("--output", type=Path, default=HERE / "ceiling.json", help="and the same with .md")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    warnings.simplefilter("ignore", NullDirectionWarning)
    sets = [load_sts(task, options.data_dir / "sts") for task in expand_tasks(options.tasks)]
    rows = []
    for name, encoder in encoders(options.data_dir).items():
        if name in options.only:
            begin = time.perf_counter()
            report = scored(encoder, sets, options.data_dir, options.resamples)
            rows.append({"stand-in": name, "pooling": CHOSEN[name].pooling, **summary(report)})
            logger.info("%s %.0f s\n%s", name, time.perf_counter() - begin, report.to_markdown())
            write_json(options.output, {"tasks": options.tasks, "resamples": options.resamples, "rows": rows})
            write_text(options.output.with_suffix(".md"), to_markdown(rows))


if __name__ == "__main__":
    main()
