"""The picture of the README: the narrow cone of raw embeddings becomes a cloud, and cosines mean something again.

    python benchmarks/picture.py        (make picture) writes docs/cone.svg, docs/cone-dark.svg, and picture.json

The first two are the picture on light and on dark pages, to be read at 375 pixels; the third has the numbers in it.

Encoder, kind of text, pooling and flow are those of ``bertflow demo``. What is shown was not fitted on: sentences in
the plane of their two largest directions, not centered; cosines of random texts, and of texts that belong together.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from numpy.typing import NDArray

from bertflow.calibrated import CalibratedEncoder, encode_systems
from bertflow.calibration.spelling import parse_calibrator
from bertflow.data.docstrings import docstring_corpus
from bertflow.encoder.embedded import embedded_encoder
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.files import write_json
from bertflow.geometry.cloud import Cloud
from bertflow.geometry.frequency import plane
from bertflow.geometry.pairs import COSINE_BINS, cosines_of_pairs
from bertflow.plots import COLORS, Figure, save_figure
from bertflow.runs.demonstration import MAX_LENGTH, SYSTEMS

HERE = Path(__file__).parent
N_PAIRS, N_SENTENCES, SEED = 2000, 6000, 0
POINTS = 800
"""Sentences in the plane."""
SHOWN = {"raw": "before", "flow": "after"}
SIZE = (5.2, 4.6)
EDGES = np.linspace(-0.4, 1.0, COSINE_BINS + 1)
PAGES = {"cone.svg": ("white", "black"), "cone-dark.svg": ("#0d1117", "#e6edf3")}
"""Background and letters."""
Samples = Mapping[str, Mapping[str, NDArray[Any]]]


def main() -> None:
    """Draw, and write the numbers that are in the picture."""
    sentences, pairs = docstring_corpus(N_PAIRS, N_SENTENCES + POINTS, SEED)
    sentences, held_out = sentences[POINTS:], sentences[:POINTS]
    raw = TransformerEncoder(embedded_encoder(), pooling=SYSTEMS["raw"][0], max_length=MAX_LENGTH)
    flow = CalibratedEncoder.fit(raw, parse_calibrator(SYSTEMS["flow"][1]), sentences)
    systems = {"raw": raw, "flow": flow}
    points = {name: plane(Cloud(x)) for name, x in encode_systems(systems, held_out).items()}
    texts = {name: Cloud(x) for name, x in encode_systems(systems, pairs.second).items()}
    cosines = cosines_of_pairs(systems, pairs)
    samples = {
        name: {"unrelated texts": texts[name].random_cosines, "a summary and its paragraph": cosines.paraphrases(name)}
        for name in SHOWN
    }
    for page, colors in PAGES.items():
        with rc_context(dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color"), colors[1])):
            save_figure(drawn(points, samples, *colors), HERE.parent / "docs" / page)
    facts = {
        name: dict(zip(("random", "together"), (float(np.median(one)) for one in both.values()), strict=True))
        for name, both in samples.items()
    }
    write_json(HERE / "picture.json", {"text": pairs.source, "median cosines": facts})
    print(json.dumps(facts, indent=1))


def drawn(points: Mapping[str, NDArray[Any]], samples: Samples, paper: str, ink: str) -> Figure:
    """A row for each system: its sentences in the plane, and its cosines."""
    figure = Figure(figsize=SIZE, layout="constrained", facecolor=paper)
    grid = figure.subplots(2, 2, width_ratios=(1, 1.7))
    for (cone, hills), (name, title) in zip(grid, SHOWN.items(), strict=True):
        x = points[name] / np.sqrt(np.square(points[name]).sum(1).mean())
        cone.scatter(*x.T, s=5, color=ink, alpha=0.4, linewidths=0, rasterized=True)
        cone.plot(0, 0, marker="+", markersize=13, markeredgewidth=2, color=ink)
        cone.set(xlim=(-2.2, 2.2), ylim=(-2.2, 2.2), aspect="equal", xticks=[], yticks=[], facecolor=paper)
        cone.set_title(title, fontsize=13, loc="left")
        for at, (label, sample) in enumerate(samples[name].items()):
            look = {"density": True, "color": COLORS[at]}
            hills.hist(sample, EDGES, histtype="stepfilled", alpha=0.3, **look)
            line = {"histtype": "step", "linewidth": 1.4, "linestyle": "--" if at else "-"}
            hills.hist(sample, EDGES, label=label, **line, **look)
        medians = " and ".join(f"{np.median(sample):.2f}" for sample in samples[name].values())
        hills.set_title(f"median cosines {medians}", fontsize=13, loc="left")
        hills.set(xlim=(EDGES[0], EDGES[-1]), yticks=[], facecolor=paper)
        hills.tick_params(labelsize=12)
        hills.spines[["top", "right", "left"]].set_visible(False)
    lines, labels = grid[0][1].get_legend_handles_labels()
    figure.legend(lines, labels, loc="outside lower right", ncols=2, frameon=False, fontsize=12, handlelength=1.2)
    return figure


if __name__ == "__main__":
    main()
