"""How many directions to keep: whitening to k of them, for every pooling of two encoders, beside its spectrum.

    python benchmarks/spectrum.py --data_dir DATA

Scored on ``tuning`` (the mean of its two Spearman correlations x 100), fitted on its own sentences (transductive) and
on a mixture without them (inductive). ``bertflow.training.rows`` reads its bound off this table: up to which
effective rank of the plain mean of the same layers to keep all directions. ``--again`` writes the table anew from
spectrum.json. Writes spectrum.json and spectrum.md beside this file.
"""

import argparse
import json
import logging
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from closed_forms import applied
from material import SETTINGS, Material

from bertflow.affine import whitening_map
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.files import write_json, write_text
from bertflow.moments import Moments
from bertflow.training.rows import STEEP, effective_rank, participation_ratio

HERE = Path(__file__).parent
BLOCKS: Mapping[str, int] = {"minilm": 6, "mlm4": 4}
KEPT = 96
"""Directions that are compared with all."""
WIDTHS = (64, KEPT, 128, 192, None)
"""Directions that are kept; None for all."""
GAIN = 0.5
"""Points that say that all directions, or ``KEPT`` of them, are better."""


def poolings(blocks: int) -> list[str]:
    """Every single layer, by token frequency too, and two pairs of layers."""
    single = [f"{tokens}({k})" for k in range(blocks + 1) for tokens in ("mean", "sif", "soft-sif", "cls")]
    single.remove("cls(0)")  # the same vector for every sentence
    return single + [f"{tokens}({pair})" for pair in ("1,2", "1,-1") for tokens in ("mean", "sif", "soft-sif")]


def rows(material: Material, folders: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """One row a pooling and setting."""
    for encoder, blocks in BLOCKS.items():
        names = poolings(blocks)
        for setting in SETTINGS[:2]:
            counted = material.sentences if setting == "transductive" else material.mixture
            model = TransformerEncoder(folders[encoder], pooling="sif", max_length=128).count_tokens(counted)
            scored = model.encode_poolings(material.sentences, names)
            fitted = scored if setting == "transductive" else model.encode_poolings(counted, names)
            for name in names:
                logging.info("%s %s %s", encoder, setting, name)
                moments = Moments.of(fitted[name])
                z = applied(whitening_map(moments), scored[name])
                yield {
                    "encoder": encoder,
                    "setting": setting,
                    "pooling": name,
                    "effective rank": effective_rank(moments),
                    "participation ratio": participation_ratio(moments),
                    "scores": {str(k or "all"): float(np.mean(material.sts(z[:, :k]))) for k in WIDTHS},
                }


def to_markdown(found: list[dict[str, Any]]) -> str:
    """The rows by the effective rank of their plain mean, and how the bound sorts them."""
    plain = plain_ranks(found)
    names = [str(k or "all") for k in WIDTHS]
    lines = [f"| encoder | pooling | fitted | plain rank | effective rank | {' | '.join(names)} | all - {KEPT} |"]
    lines += ["|---|---|---|---:|---:" + "|---:" * (len(names) + 1) + "|"]
    for row, rank in sorted(zip(found, plain, strict=True), key=lambda pair: pair[1]):
        cells = [f"{row['scores'][name]:.1f}" for name in names]
        lines.append(
            f"| {row['encoder']} | {row['pooling']} | {row['setting']} | {rank:.1f} | {row['effective rank']:.1f} "
            f"| {' | '.join(cells)} | {gain(row):+.1f} |"
        )
    return "\n".join([*summary(found), "", *lines]) + "\n"


def plain_ranks(found: list[dict[str, Any]]) -> list[float]:
    """The effective rank that decides, by row: of the plain mean, where tokens are weighed by frequency."""
    ranks = {(row["encoder"], row["setting"], row["pooling"]): row["effective rank"] for row in found}
    return [ranks[row["encoder"], row["setting"], re.sub("^(soft-)?sif", "mean", row["pooling"])] for row in found]


def gain(row: Mapping[str, Any]) -> float:
    """What keeping all directions gives over keeping ``KEPT``."""
    return float(row["scores"]["all"] - row["scores"][str(KEPT)])


def summary(found: list[dict[str, Any]]) -> Iterator[str]:
    """How many poolings the bound sorts as their scores do, by encoder and setting."""
    yield (
        f"Sorted right by an effective rank of the plain mean of {STEEP:g}, of the poolings for which it matters by "
        f"{GAIN} points:"
    )
    yield ""
    for encoder in BLOCKS:
        for setting in SETTINGS[:2]:
            here = [
                (rank, gain(row))
                for row, rank in zip(found, plain_ranks(found), strict=True)
                if (row["encoder"], row["setting"]) == (encoder, setting) and abs(gain(row)) >= GAIN
            ]
            right = sum((rank <= STEEP) == (gained > 0) for rank, gained in here)
            more, fewer = ([rank for rank, gained in here if (gained > 0) == wanted] for wanted in (True, False))
            yield (
                f"* {encoder}, {setting}: {right} of {len(here)}; all are better at {span(more)}, {KEPT} at "
                f"{span(fewer)}."
            )


def span(ranks: list[float]) -> str:
    """From the least to the largest."""
    return f"effective ranks of {min(ranks):.0f} to {max(ranks):.0f}" if ranks else "none"


def main() -> None:
    """Whiten, score, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data_dir", type=Path, required=True, help="holds sts, text, nli and encoders")
    parser.add_argument("--cache", type=Path, default=Path("embeddings"), help="where embeddings are kept")
    parser.add_argument("--again", action="store_true", help="write the table anew, measure nothing")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    if options.again:
        found = json.loads((HERE / "spectrum.json").read_text())
    else:
        material = Material(options.data_dir, options.cache, ["tuning"])
        found = list(rows(material, material.folders))
        write_json(HERE / "spectrum.json", found)
    write_text(HERE / "spectrum.md", to_markdown(found))


if __name__ == "__main__":
    main()
