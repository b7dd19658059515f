"""Sections on word frequency: sentences in the plane, sentences in bins, words in bins."""

from collections.abc import Mapping

import numpy as np

from bertflow.geometry.cloud import Float64
from bertflow.geometry.frequency import NEAREST, Bin, bins, explained_by, fifths, plane
from bertflow.geometry.material import Material
from bertflow.geometry.report import Grid, Section
from bertflow.geometry.space_sections import listed

SHOWN_K = 5
"""Of the numbers of neighbors, the one that is drawn."""
INSIDE = 0.99
"""Share of the points up to which the frame of the plane reaches, on each side."""
MARGIN = 0.1
"""Of the frame, over its width."""


def frequency_plane(material: Material) -> Section:
    """Every sentence in the plane of the two largest singular directions, colored by log frequency."""
    clouds = material.clouds
    points = {name: _scaled(plane(cloud)) for name, cloud in clouds.items()}
    index = next(iter(clouds.values())).sample_index
    frequency = material.log_frequency[index]
    explained = {name: explained_by(xy, frequency) for name, xy in points.items()}
    frame, outside = _frame(points)
    return Section(
        "If colors are sorted in space, frequency is what the largest directions encode: the two of them explain "
        f"{listed({name: 100 * value for name, value in explained.items()}, 0, ' %')} of the variance of the mean log "
        f"word frequency ({material.counted}); the cross is the origin, and {outside} points lie beyond the frame.",
        {"explained": explained, "counts": material.counted, "beyond_the_frame": outside},
        lambda plots: plots.scatters(
            points,
            plots.Axis("first singular direction"),
            plots.Axis("second"),
            frequency,
            "mean log word frequency",
            frame,
        ),
        f"Sentences in the plane of the two largest singular directions, colored by word frequency; a panel for each "
        f"of {', '.join(points)}.",
    )


def sentences_by_frequency(material: Material) -> Section:
    """Length and neighborhood of sentences, in five bins of word frequency."""
    index = next(iter(material.clouds.values())).sample_index
    frequency = material.log_frequency[index]
    groups = fifths(frequency)
    found = {name: bins(cloud.rows(cloud.sample_index), groups, frequency) for name, cloud in material.clouds.items()}
    distances = {name: _relative([row.distance[SHOWN_K] for row in rows]) for name, rows in found.items()}
    rises = {name: 100 * (values[0] / values[-1] - 1) for name, values in distances.items()}
    lines = tuple(
        (name, row.name, f"{row.length:.2f}", f"{row.distance[SHOWN_K]:.2f}", f"{row.product[SHOWN_K]:.2f}")
        for name, rows in found.items()
        for row in rows
    )
    return Section(
        "A level line treats rare and frequent words alike; sentences of the rarest words are farther from their "
        f"{SHOWN_K} nearest than those of the most frequent by {listed(rises, 0, ' %')}.",
        {name: [vars(row) for row in rows] for name, rows in found.items()},
        lambda plots: plots.curves(
            {name: (np.arange(float(len(values))), values) for name, values in distances.items()},
            plots.Axis("sentences by the mean log frequency of their words", ticks=tuple(groups)),
            plots.Axis(f"distance to the {SHOWN_K} nearest, over its mean"),
        ),
        f"Mean distance to the nearest sentences by bins of word frequency, a line for each of {', '.join(found)}.",
        Grid(
            ("system", "sentences", "length", f"distance to {SHOWN_K} nearest", f"product with {SHOWN_K}"),
            lines,
            frozenset({1}),
        ),
    )


def words_by_frequency(material: Material) -> Section:
    """The paper's table 1, on this encoder's word embeddings."""
    rows = material.words
    assert rows is not None, "the section needs them"
    lengths = [row.length for row in rows]
    rising = all(np.diff(lengths) > 0)
    far = [row.distance[SHOWN_K] for row in rows]
    return Section(
        "The paper finds that rarer words are longer and farther from their nearest; here lengths are "
        f"{' / '.join(f'{value:.2f}' for value in lengths)} by rank, which {'rise' if rising else 'do not rise'} "
        "throughout.",
        {"bins": [vars(row) for row in rows]},
        lambda plots: plots.curves(
            {
                "length": (np.arange(float(len(rows))), np.array(lengths)),
                f"distance to the {SHOWN_K} nearest": (np.arange(float(len(rows))), np.array(far)),
                f"product with the {SHOWN_K} largest": (
                    np.arange(float(len(rows))),
                    np.array([row.product[SHOWN_K] for row in rows]),
                ),
            },
            plots.Axis("words by frequency rank", ticks=tuple(row.name for row in rows)),
            plots.Axis("mean"),
        ),
        "Mean length, distance to and product with the nearest, of word embeddings by bins of frequency rank.",
        _words_grid(rows),
    )


def _words_grid(rows: tuple[Bin, ...]) -> Grid:
    header = ["frequency rank", "words", "length"]
    header += [f"distance, {k} nearest" for k in NEAREST] + [f"product, {k} largest" for k in NEAREST]
    lines = [
        (
            row.name,
            f"{row.n:,}",
            f"{row.length:.2f}",
            *(f"{row.distance[k]:.2f}" for k in NEAREST),
            *(f"{row.product[k]:.2f}" for k in NEAREST),
        )
        for row in rows
    ]
    return Grid(tuple(header), tuple(lines))


def _scaled(points: Float64) -> Float64:
    """Points of root mean square length one, so that clouds of different scale share their axes."""
    return points / np.sqrt(np.square(points).sum(1).mean())


def _frame(points: Mapping[str, Float64]) -> tuple[Float64, int]:
    """Corners (2, 2) that leave out the ends of every coordinate, and how many points they leave out."""
    ends = [np.quantile(xy, [1 - INSIDE, INSIDE], axis=0) for xy in points.values()]
    low, high = np.min([end[0] for end in ends] + [np.zeros(2)], axis=0), np.max([end[1] for end in ends], axis=0)
    margin = MARGIN * (high - low)
    frame = np.stack([low - margin, high + margin])
    outside = sum(int(((xy < frame[0]) | (xy > frame[1])).any(1).sum()) for xy in points.values())
    return frame, outside


def _relative(values: list[float]) -> Float64:
    return np.array(values) / np.mean(values)
