"""Which rule says best what is likely? Geometry, and pairs of docstrings, beside what ``tuning`` says.

    python benchmarks/likely.py --data_dir DATA

For poolings of raw and of tuned layers, and plain texts of several kinds, raw and the recipes that could be likely are
fitted on 3,000 lines. Two of them are whitening of what ``sif`` and ``soft-sif`` pooling gives, of all directions where
the spectrum is steep and of a quarter where it is spread, as ``similarity-2`` has it. Then each rule chooses:

    geometry     the participation ratio of the plain mean is at most 75 and random pairs have cosines above 0.2: the
                 recipe with ``soft-sif`` (of a steep spectrum: ``sif``); else raw
    not refuted  the same, but raw where docstring pairs say that the recipe is worse by more than chance
    not worse    the same, but raw where the recipe is worse at all on docstring pairs: what ``bertflow fix`` does
    confirmed    the same, but raw unless docstring pairs say that the recipe is better by more than chance
    decided      of both poolings the one that docstring pairs prefer, if they confirm it

A rule holds up if what it chooses costs little on ``tuning`` (Spearman x 100, mean of the sub-sets). "captions" are the
sentences of ``tuning`` itself: nine in ten are captions, so this text is narrow. Docstring pairs are of the choosing
half. Writes likely.json and likely.md.
"""

import argparse
import json
import logging
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from material import docstrings, halves
from weak_pairs import FITTED, MOST_PAIRS, Text, evidence_of, read_texts, split

from bertflow.advise.candidates import fit_candidates
from bertflow.advise.evidence import Evidence, Judgement
from bertflow.advise.likely import CENTERED
from bertflow.bands import head_of
from bertflow.calibration.spelling import RAW, parse_systems
from bertflow.data.pairs import Pairs
from bertflow.data.sts import load_sts
from bertflow.encoder.embedded import embedded_encoder
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.errors import NullDirectionWarning
from bertflow.evaluation.report import score_sets
from bertflow.evaluation.systems import SharedPass
from bertflow.moments import Moments
from bertflow.scoring.random_pairs import RandomPairs
from bertflow.training.rows import CALIBRATED, LOOKED_AT, STEEP, effective_rank, participation_ratio

HERE = Path(__file__).parent
logger = logging.getLogger("likely")
LAYERS: Mapping[str, Sequence[str]] = {
    "minilm": ("0", "1,2", "3", "4", "5", "6", "0,-1", "1,-1", "-2,-1"),
    "mlm4": ("0", "2", "4", "1,-1", "-2,-1"),
}
"""Of each encoder, the layers whose mean is the pooling of a stand-in."""
TUNED = ("minilm 6", "minilm 0,-1", "minilm 1,-1", "minilm -2,-1")
"""Those that were tuned for sentences."""


def measured(
    encoder: str, folder: str, fitted: list[str], tuning: Pairs, evidence: Evidence, resamples: int
) -> Iterator[dict[str, Any]]:
    """Of each pooling: its geometry, the scores on tuning, and what docstring pairs say."""
    source = SharedPass(TransformerEncoder(folder, pooling="mean", device="cpu", max_length=128))
    for layers in LAYERS[encoder]:
        for tokens in ("mean", "sif", "soft-sif"):
            source.pooled(f"{tokens}({layers})", fitted)
    for layers in LAYERS[encoder]:
        mean = source.pooled(f"mean({layers})")
        x = mean.encode(fitted)
        moments = Moments.of(x[:LOOKED_AT])
        k = head_of(mean.dim)
        rows = parse_systems(
            ",".join(f"{t}({layers})+whitening{n}" for t in ("mean", "sif", "soft-sif") for n in ("", f"({k})"))
        )
        systems = {
            **fit_candidates(source, {row: row.pooling or "" for row in rows}, fitted, seed=0),
            RAW: mean,
        }
        report, judged = score_sets(systems, [tuning], resamples=0), evidence.judge(systems, resamples, 0)
        yield {
            "layers": f"{encoder} {layers}",
            "ratio": participation_ratio(moments),
            "rank": effective_rank(moments),
            "median": float(np.median(RandomPairs.of(x, 0).cosines)),
            "tuning": {name: 100 * report.value(name, "tuning", "mean") for name in systems},
            "docstrings": {row.spelling: said_by(judged, row.spelling) for row in rows},
            "mrr": {name: 100 * value for name, value in judged.choosing.values("mrr").items()},
        }


def said_by(judged: Judgement, candidate: str) -> list[float]:
    """The gain of a candidate over raw in MRR x 100 on the judging half, and its interval."""
    gain = judged._lead(judged.judging, candidate, RAW)
    return [100 * value for value in (gain.difference, gain.ci_low, gain.ci_high) if value is not None]


def recipe(row: Mapping[str, Any], tokens: str) -> str:
    """Whitening of one pooling, with the directions that the spectrum asks for."""
    name = f"{tokens}({row['layers'].split()[1]})+whitening"
    return next(one for one in row["tuning"] if one.startswith(name) and (one == name) == (row["rank"] <= STEEP))


def geometry(row: Mapping[str, Any]) -> str:
    """The recipe by geometry alone."""
    if row["ratio"] > CALIBRATED or row["median"] <= CENTERED:
        return RAW
    return recipe(row, "sif" if row["rank"] <= STEEP else "soft-sif")


def not_refuted(row: Mapping[str, Any]) -> str:
    """The same, unless docstrings say that it is worse."""
    found = geometry(row)
    return found if found != RAW and row["docstrings"][found][2] >= 0 else RAW


def not_worse(row: Mapping[str, Any]) -> str:
    """The same, unless it is worse on docstrings."""
    found = geometry(row)
    return found if found != RAW and row["docstrings"][found][0] > 0 else RAW


def confirmed(row: Mapping[str, Any]) -> str:
    """The same, if docstrings say that it is better."""
    found = geometry(row)
    return found if found != RAW and row["docstrings"][found][1] > 0 else RAW


def decided(row: Mapping[str, Any]) -> str:
    """Docstrings choose the pooling, and confirm it."""
    if geometry(row) == RAW:
        return RAW
    found = max((recipe(row, tokens) for tokens in ("sif", "soft-sif")), key=lambda name: row["mrr"][name])
    return found if row["docstrings"][found][1] > 0 else RAW


RULES: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "geometry": geometry,
    "not refuted": not_refuted,
    "not worse": not_worse,
    "confirmed": confirmed,
    "decided": decided,
}


def to_markdown(rows: Sequence[Mapping[str, Any]]) -> str:
    """What each rule chooses, by its gain over raw on tuning; then the sums."""
    lines = [
        "What each rule chooses, and in brackets its gain over raw on `tuning` (Spearman x 100).",
        "",
        f"| layers | text | ratio | cosine | rank | raw | best | {' | '.join(RULES)} |",
        "|---" * (7 + len(RULES)) + "|",
    ]
    for row in rows:
        scores = row["tuning"]
        best = max(scores, key=lambda name: scores[name])
        cells = [
            f"{(name := rule(row)).split('+')[0].split('(')[0]} ({scores[name] - scores[RAW]:+.1f})"
            for rule in RULES.values()
        ]
        lines.append(
            f"| {row['layers']} | {row['text']} | {row['ratio']:.0f} | {row['median']:.2f} | {row['rank']:.0f} "
            f"| {scores[RAW]:.1f} | {best} {scores[best]:.1f} | {' | '.join(cells)} |"
        )
    lines += [
        "",
        "| rule | raw layers: mean gain, smallest | left raw | tuned layers: mean gain, smallest | left raw |",
        "|---|---|---|---|---|",
    ]
    for name, rule in RULES.items():
        cells = []
        for of_tuned in (False, True):
            some = [row for row in rows if (row["layers"] in TUNED) == of_tuned]
            gains = [row["tuning"][rule(row)] - row["tuning"][RAW] for row in some]
            kept = sum(rule(row) == RAW for row in some)
            cells += [f"{np.mean(gains):+.2f}, {min(gains):+.1f}", f"{kept} of {len(some)}"] if some else ["-", "-"]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Fit, choose, score, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data_dir", type=Path, required=True, help="holds sts, text and encoders")
    parser.add_argument("--texts", nargs="+", help="only these")
    parser.add_argument("--resamples", type=int, default=300)
    parser.add_argument("--output", type=Path, default=HERE / "likely.json", help="and the same with .md")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    warnings.simplefilter("ignore", NullDirectionWarning)
    folders = {"minilm": embedded_encoder(), "mlm4": str(options.data_dir / "encoders" / "mlm-4x256")}
    tuning, pairs = load_sts("tuning", options.data_dir / "sts"), docstrings()[1]
    pairs = pairs.taken(halves(len(pairs))["choosing"][:MOST_PAIRS])
    evidence = evidence_of(zip(pairs.first, pairs.second, strict=True), "docstrings")
    assert evidence is not None, "there are enough of them"
    captions: Text = [[sentence] for sentence in tuning.sentences]
    texts = {**read_texts(options.data_dir), "captions": captions}
    # What an interrupted run wrote is kept.
    rows: list[dict[str, Any]] = json.loads(options.output.read_text())["rows"] if options.output.exists() else []
    done = {(row["text"], row["layers"].split()[0]) for row in rows}
    for text_name, text in texts.items():
        fitted = split(text, seed=0)[0][:FITTED]
        for encoder, folder in folders.items():
            begin = time.perf_counter()
            if (text_name, encoder) in done or (options.texts and text_name not in options.texts):
                continue
            found = measured(encoder, folder, fitted, tuning, evidence, options.resamples)
            rows += [{"text": text_name, **one} for one in found]
            options.output.write_text(json.dumps({"resamples": options.resamples, "rows": rows}, indent=1) + "\n")
            options.output.with_suffix(".md").write_text(to_markdown(rows))
            logger.info("%s, %s: %.0f s", encoder, text_name, time.perf_counter() - begin)


if __name__ == "__main__":
    main()
