"""The picture of the README: the narrow cone of raw embeddings becomes a cloud, and cosines mean something again.

    python benchmarks/picture.py        (make picture) writes docs/cone.svg, and picture.json with the numbers in it

Encoder, kind of text, pooling and flow are those of ``bertflow demo``. What is shown was not fitted on: sentences in
the plane of their two largest directions, not centered; cosines of random texts, and of texts that belong together.
"""

import json
from pathlib import Path

import numpy as np

from bertflow.calibrated import CalibratedEncoder, encode_systems
from bertflow.calibration.spelling import parse_calibrator
from bertflow.data.docstrings import docstring_corpus
from bertflow.encoder.embedded import embedded_encoder
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.files import write_json
from bertflow.geometry.cloud import Cloud
from bertflow.geometry.frequency import plane
from bertflow.geometry.pairs import cosines_of_pairs, random_cosines
from bertflow.plots import BINS, COLORS, Figure, save_figure
from bertflow.runs.demonstration import MAX_LENGTH, SYSTEMS

HERE = Path(__file__).parent
N_PAIRS, N_SENTENCES, SEED = 2000, 6000, 0
POINTS = 800
"""Sentences in the plane."""
SHOWN = {"raw": "before: raw embeddings", "flow": "after: the flow"}
SIZE = (8.6, 4.9)
EDGES = np.linspace(-0.4, 1.0, BINS + 1)


def main() -> None:
    """Draw, and write the numbers that are in the picture."""
    sentences, pairs = docstring_corpus(N_PAIRS, N_SENTENCES + POINTS, SEED)
    sentences, held_out = sentences[POINTS:], sentences[:POINTS]
    raw = TransformerEncoder(embedded_encoder(), pooling=SYSTEMS["raw"][0], max_length=MAX_LENGTH)
    flow = CalibratedEncoder.fit(raw, parse_calibrator(SYSTEMS["flow"][1]), sentences)
    systems = {"raw": raw, "flow": flow}
    embedded = {name: Cloud(x) for name, x in encode_systems(systems, held_out).items()}
    texts = {name: Cloud(x) for name, x in encode_systems(systems, pairs.second).items()}
    cosines = cosines_of_pairs(systems, pairs)
    figure, facts = Figure(figsize=SIZE, layout="constrained", facecolor="white"), {}
    grid = figure.subplots(2, 2, width_ratios=(1, 1.7))
    for row, (name, title) in enumerate(SHOWN.items()):
        points, (cone, hills) = plane(embedded[name]), grid[row]
        points /= np.sqrt(np.square(points).sum(1).mean())
        cone.scatter(*points.T, s=5, color=COLORS[row], alpha=0.6, linewidths=0, rasterized=True)
        cone.plot(0, 0, marker="+", markersize=13, markeredgewidth=2, color="black")
        cone.set(xlim=(-2.2, 2.2), ylim=(-2.2, 2.2), aspect="equal", xticks=[], yticks=[])
        cone.set_title(title, fontsize=10, loc="left")
        samples = {"texts that have nothing to do with each other": random_cosines(texts[name])}
        samples["a summary and its paragraph"] = cosines.paraphrases(name)
        for at, (label, sample) in enumerate(samples.items()):
            look = {"density": True, "color": COLORS[at]}
            hills.hist(sample, EDGES, histtype="stepfilled", alpha=0.3, **look)
            hills.hist(
                sample, EDGES, histtype="step", linewidth=1.4, linestyle="--" if at else "-", label=label, **look
            )
        medians = [float(np.median(sample)) for sample in samples.values()]
        facts[name] = dict(zip(("random", "together"), medians, strict=True))
        hills.set_title(f"median cosine {medians[0]:.2f} and {medians[1]:.2f}", fontsize=10, loc="left")
        hills.set(xlim=(EDGES[0], EDGES[-1]), yticks=[])
        hills.spines[["top", "right", "left"]].set_visible(False)
    grid[1][1].set_xlabel("cosine")
    grid[0][1].legend(loc="upper left", frameon=False, fontsize=9)
    save_figure(figure, HERE.parent / "docs" / "cone.svg")
    write_json(HERE / "picture.json", {"text": pairs.source, "median cosines": facts})
    print(json.dumps(facts, indent=1))


if __name__ == "__main__":
    main()
