"""Predictions as CSV: what every system thought of every pair, beside what people thought."""

import csv
import io

from bertflow.evaluation.report import Report

DECIMALS = 8
"""Of a similarity: finer than the float32 it was made from."""


def predictions_csv(report: Report) -> str:
    """One line a pair, one column a system, in the order of the tasks' files."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    names = [system.name for system in report.systems]
    writer.writerow(["task", "split", "subset", "sentence1", "sentence2", "gold", *names])
    for task in report.tasks:
        pairs = task.pairs
        columns = zip(pairs.subsets, pairs.first, pairs.second, pairs.target, task.similarities.T, strict=True)
        for subset, first, second, gold, similarities in columns:
            scores = [f"{similarity:.{DECIMALS}f}" for similarity in similarities]
            writer.writerow([pairs.task, pairs.split, subset, first, second, f"{gold:g}", *scores])
    return out.getvalue()
