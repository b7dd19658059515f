"""Is the default flow's score one seed's luck? The same recipe with several seeds, beside every baseline.

    python benchmarks/seeds.py --data_dir DATA --work RUNS

Two stand-ins for a raw BERT: MLM4, a small plain masked-language-model BERT, first and last block averaged; and inner
layers of a tuned MiniLM. Each is fitted with the default recipe on a mixture of text that holds no scored sentence
(inductive), once by ``bertflow.train``; ``bertflow.evaluate(run, seeds=5)`` fits it again with the next seeds, and
scores the seven STS test sets. A run that is there already is used again. Writes seeds.json and seeds.md beside this
file.
"""

import argparse
import json
import logging
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from material import mixture

import bertflow
from bertflow.data.fitting_text import TextOptions
from bertflow.encoder.embedded import embedded_encoder
from bertflow.errors import NullDirectionWarning
from bertflow.evaluation.report import Report
from bertflow.files import write_json, write_text
from bertflow.runs import ModelOptions

HERE = Path(__file__).parent
POOLINGS: Mapping[str, str] = {"MLM4": "first-last-avg", "MiniLM": "mean(1,2)"}
"""Stand-in -> its pooling; MiniLM is the embedded encoder."""


def trained(name: str, folder: str, options: argparse.Namespace) -> Path:
    """The folder of the run with seed 0."""
    run: Path = options.work / name.lower()
    if not (run / "report" / "fit.json").exists():
        text = TextOptions(str(options.work / "mixture.txt"), store=str(options.work / f"{name.lower()}-store"))
        encoder = ModelOptions(folder, pooling=POOLINGS[name], max_length=128)
        bertflow.train(encoder, text, output=run, resume="auto", report=False)
    return run


def summary(report: Report) -> dict[str, Any]:
    """Scores of all systems, the spread over seeds, and what their mean is more than each other system; x 100."""
    assert report.seeds is not None
    places = [(column.task, column.aggregation, column.metric) for column in report.columns]
    scores = {one.name: [percent(value) for value in report.shown_values(one.name)] for one in report.shown}
    spreads = {(row["task"], row["aggregation"], row["metric"]): row for row in report.seeds.spreads(report.rows)}
    less = {}
    for other in list(scores)[:-1]:
        rows = {(row.task, row.aggregation, row.metric): row for row in report.compared(report.seeds.name, other)}
        less[other] = [
            {
                "difference": percent(row.difference),
                "ci": [percent(row.ci_low), percent(row.ci_high)],
                "is": row.verdict,
            }
            for row in map(rows.__getitem__, places)
        ]
    return {
        "columns": [column.title for column in report.columns],
        "scores": scores,
        "seeds": {
            seed: [percent(spreads[place]["values"][at]) for place in places]
            for at, seed in enumerate(report.seeds.seeds)
        },
        "standard deviation": [percent(spreads[place]["standard_deviation"]) for place in places],
        "less": less,
    }


def percent(value: float | None) -> float | None:
    """A figure x 100, as it is printed."""
    return None if value is None else round(100 * value, 2)


def to_markdown(conditions: Mapping[str, int], found: Mapping[str, Mapping[str, Any]]) -> str:
    """How the figures were made; for each stand-in the scores, and the differences."""
    parts = [
        f'Spearman x 100, "all" aggregation; the default recipe with {conditions["seeds"]} seeds, fitted on up to '
        f"{4 * conditions['mixture']:,} sentences that hold no scored one (inductive). 95 % intervals from "
        f"{conditions['resamples']:,} resamples of pairs, for Avg of sentences, and of seeds. An asterisk: separable, "
        "p < 0.05 by the paired bootstrap, over the tasks with Holm's correction.\n"
    ]
    for name, one in found.items():
        rows = {**one["scores"], **{f"seed {seed}": row for seed, row in one["seeds"].items()}}
        rows["standard deviation"] = one["standard deviation"]
        parts += [f"## {name}, {POOLINGS[name]}", "", *table("system", one["columns"], rows, "{:.2f}".format), ""]
        cells = {f"mean - {other}": row for other, row in one["less"].items()}
        parts += [*table("mean over seeds, less", one["columns"], cells, difference), ""]
    return "\n".join(parts)


def difference(cell: Mapping[str, Any]) -> str:
    """A difference with its interval; an asterisk where it is separable."""
    low, high = cell["ci"]
    return f"{cell['difference']:+.2f} [{low:+.2f}, {high:+.2f}]{'' if cell['is'].startswith('not') else ' *'}"


def table(title: str, columns: Sequence[str], rows: Mapping[str, Sequence[Any]], shown: Any) -> list[str]:
    """Lines of a table."""
    lines = [f"| {' | '.join([title, *columns])} |", f"|---|{'---:|' * len(columns)}"]
    return lines + [f"| {' | '.join([name, *map(shown, row)])} |" for name, row in rows.items()]


def main() -> None:
    """Train, fit again, score, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data_dir", type=Path, required=True, help="holds sts, text, nli and encoders")
    parser.add_argument("--work", type=Path, required=True, help="where runs are kept")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--mixture", type=int, default=6_000, help="sentences of each of four kinds of text to fit on")
    parser.add_argument("--resamples", type=int, default=1_000)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    warnings.simplefilter("ignore", NullDirectionWarning)
    text = options.work / "mixture.txt"
    if not text.exists():
        write_text(text, "".join(f"{sentence}\n" for sentence in mixture(options.data_dir, options.mixture)))
    conditions = {name: getattr(options, name) for name in ("seeds", "mixture", "resamples")}
    encoders = {"MLM4": str(options.data_dir / "encoders" / "mlm-4x256"), "MiniLM": embedded_encoder()}
    found: dict[str, Any] = {}
    for name, folder in encoders.items():
        run = trained(name, folder, options)
        scored = {"seeds": options.seeds, "resamples": options.resamples, "data_dir": options.data_dir / "sts"}
        report = bertflow.evaluate(str(run), "sts7", **scored)
        report.save(options.work / f"{name.lower()}-scores")
        found[name] = summary(report)
        write_json(HERE / "seeds.json", {"conditions": conditions, **found})
        logging.info("%s", json.dumps(found[name]["less"]))
    write_text(HERE / "seeds.md", to_markdown(conditions, found))


if __name__ == "__main__":
    main()
