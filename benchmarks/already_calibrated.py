"""When should a calibrator do nothing? Label-free statistics of many poolings beside what calibration buys there.

    python benchmarks/already_calibrated.py --data_dir DATA [--encoders NAME=FOLDER ...]

For every layer and pooling of an encoder, fitted on other text (mixture) and on the scored text itself (narrow):

    gain         tuning, Spearman x 100: whitening to 128 directions, and the best closed form, over raw
    ratio        participation ratio of the embeddings
    cosine       mean cosine of two sentences
    halves       do the halves of a sentence agree? Mean correlation over principal directions of the embeddings of the
                 first half and of the second, each embedded alone
    half finds   hit@1 in percent: the first half of a sentence finds the second among 3,000; raw, and whitened

A criterion would have to tell the poolings with a gain from those with a loss, on encoders that it was not chosen on.
Writes already_calibrated.json and .md beside this file.
"""

import argparse
import json
import warnings
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from closed_forms import CLOSED_FORMS, applied
from material import Material, Vectors

from bertflow.affine import whitening_map
from bertflow.encoder.embedded import embedded_encoder
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.errors import NullDirectionWarning
from bertflow.evaluation.figures import right_ranks
from bertflow.moments import Moments
from bertflow.training.rows import participation_ratio

HERE = Path(__file__).parent
HALVED = 3_000
WORDS = range(10, 41)
"""Sentences of so many words are cut in halves."""
COLUMNS = ("gain of 128", "best gain", "ratio", "cosine", "halves", "half finds", "whitened")


def poolings(blocks: int) -> list[str]:
    """Every layer by itself, and the usual pairs."""
    single = [f"mean({k})" for k in range(blocks + 1)] + [f"cls({k})" for k in range(1, blocks + 1)]
    return [*single, "mean(1,2)", "mean(0,-1)", "mean(1,-1)", "mean(-2,-1)"]


def halves(sentences: Sequence[str]) -> tuple[list[str], list[str]]:
    """First and second halves of a sample."""
    words = [sentence.split() for sentence in sentences]
    words = [each for each in words if len(each) in WORDS]
    chosen = [words[row] for row in np.random.default_rng(1).permutation(len(words))[:HALVED]]
    return [" ".join(w[: len(w) // 2]) for w in chosen], [" ".join(w[len(w) // 2 :]) for w in chosen]


def statistics(material: Material, fitted: Vectors, scored: Vectors, first: Vectors, second: Vectors) -> dict[str, Any]:
    """One pooling, fitted on one text."""
    moments = Moments.of(fitted)
    maps = {name: form(moments) for name, form in CLOSED_FORMS.items()}
    score = {name: float(np.mean(material.sts(applied(form, scored)))) for name, form in maps.items()}
    hits = {
        name: 100 * float((right_ranks(applied(maps[name], first), applied(maps[name], second)) == 1).mean())
        for name in ("raw", "whitening")
    }
    unit = fitted / np.linalg.norm(fitted, axis=1, keepdims=True)
    n = len(unit)
    return {
        "raw": score["raw"],
        "gain of 128": score["whitening(128)"] - score["raw"],
        "best gain": max(score.values()) - score["raw"],
        "ratio": participation_ratio(moments),
        "cosine": float((np.square(unit.sum(0)).sum() - n) / (n * (n - 1))),
        "halves": agreement(moments, first, second),
        "half finds": hits["raw"],
        "whitened": hits["whitening"],
    }


def agreement(moments: Moments, first: Vectors, second: Vectors) -> float:
    """Mean over principal directions of the correlation between two views of the same sentences."""
    a, b = (applied(whitening_map(moments), x - x.mean(0) + moments.mean.astype(np.float32)) for x in (first, second))
    return float(((a * b).mean(0) / np.sqrt((a * a).mean(0) * (b * b).mean(0))).mean())


def rows(material: Material, encoder_name: str, folder: str) -> Iterable[dict[str, Any]]:
    """All poolings of one encoder."""
    encoder = TransformerEncoder(folder, pooling="mean", max_length=128)
    names = poolings(encoder.describe()["blocks"])
    texts = {"mixture": material.mixture, "narrow": material.sentences}
    embedded = {name: encoder.encode_poolings(text, names) for name, text in texts.items()}
    cut = {name: [encoder.encode_poolings(half, names) for half in halves(text)] for name, text in texts.items()}
    for pooling in names:
        found = {
            name: statistics(
                material, embedded[name][pooling], embedded["narrow"][pooling], *(half[pooling] for half in cut[name])
            )
            for name in texts
        }
        yield {"encoder": encoder_name, "pooling": pooling, **found}


def to_markdown(found: Sequence[Mapping[str, Any]]) -> str:
    """A line a pooling; in a cell, fitted on the mixture / on the narrow text."""
    head = ("encoder", "pooling", "raw", *COLUMNS)
    body = [
        (
            row["encoder"],
            row["pooling"],
            f"{row['mixture']['raw']:.1f}",
            *(f"{row['mixture'][name]:.2f} / {row['narrow'][name]:.2f}" for name in COLUMNS),
        )
        for row in found
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ("---",) * len(head), *body)) + "\n"


def main() -> None:
    """Measure, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data_dir", type=Path, required=True, help="holds sts, text, nli and encoders")
    parser.add_argument("--cache", type=Path, default=Path("embeddings"), help="where embeddings are kept")
    parser.add_argument("--encoders", nargs="*", default=[], help="NAME=FOLDER of more encoders, fine-tuned ones say")
    parser.add_argument("--output", type=Path, default=HERE / "already_calibrated.json", help="and the same with .md")
    options = parser.parse_args()
    warnings.simplefilter("ignore", NullDirectionWarning)
    material, found = Material(options.data_dir, options.cache, ["tuning"]), []
    encoders = {"minilm": embedded_encoder(), "mlm-4x256": str(options.data_dir / "encoders" / "mlm-4x256")}
    for name, folder in (encoders | dict(one.split("=", 1) for one in options.encoders)).items():
        found += list(rows(material, name, folder))
        options.output.write_text(json.dumps(found, indent=1) + "\n")
        options.output.with_suffix(".md").write_text(to_markdown(found))


if __name__ == "__main__":
    main()
