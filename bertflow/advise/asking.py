"""Labels that are not there: which pairs are worth judging, and the table that a person fills in.

    sentence1,sentence2,score,scale
    A dog runs.,A dog is running.,,0 (nothing in common) to 5 (the same meaning)

No label tells apart candidates that rank two pairs alike. So pairs are drawn by how much the candidates
disagree: with r_s the rank of a pair's cosine under candidate s, from 0 to 1 among all pairs at hand,

    weight of a pair = (standard deviation of r_s over s) ^ POWER,     each sentence in one pair at most

At hand are the nearest neighbors of each sentence under each candidate, and random pairs. The table names no candidate,
so the judge is blind. The weight knows no label, so which candidate it favors is left to chance; but the pairs are
not random ones: a score on them does not estimate the score on other pairs, only the comparison counts. What the power
should be, and what the labels are worth: benchmarks/ask.py.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

from bertflow.array_types import Floats, Intp
from bertflow.data.columns import parse_score
from bertflow.data.pairs import Pairs
from bertflow.data.tables import open_table, table_suffix
from bertflow.errors import DataError
from bertflow.evaluation.sides import Systems
from bertflow.files import write_text
from bertflow.geometry.cloud import nearest
from bertflow.similarity import unit_rows
from bertflow.tables import to_csv
from bertflow.text_keys import text_key

COLUMNS = ("sentence1", "sentence2", "score", "scale")
SCALE = (0.0, 5.0)
SPELLED = "0 (nothing in common) to 5 (the same meaning)"
"""The scale, in each row of the table: its column also tells that the pairs were asked for."""
POWER = 3
"""Exponent of the disagreement: 0 draws at random, very large numbers draw few kinds of pairs."""
SENTENCES = 4000
"""Sentences that pairs are made of: the more there are, the nearer are the nearest."""
NEAREST = 5
"""Pairs of each sentence with its nearest neighbors under each candidate; one more is at random."""
FEWEST_ASKED, MOST_ASKED = 30, 500
"""Fewest pairs that have to be judged, and the most that can be asked for."""


def choose_pairs(systems: Systems, sentences: Sequence[str], n: int, seed: int) -> Pairs:
    """The pairs whose judgement would tell the systems apart best; a pair has no score yet.

    Args:
        systems: Candidates, and raw.
        sentences: Sentences, the first ones of different documents.
        n: Number of pairs; fewer where the sentences are too few to be in one pair each.
        seed: Random seed for the draw.
    """
    rng = np.random.default_rng(seed)
    some = list({text_key(one): one for one in sentences}.values())[:SENTENCES]
    near = min(NEAREST, len(some) - 1)
    units = [unit_rows(system.encode(some)) for system in systems.values()]
    pool = [np.stack([np.arange(len(some)), rng.integers(len(some), size=len(some))])]
    pool += (np.stack([np.arange(len(some)).repeat(near), nearest(x, near)[0].ravel()]) for x in units)
    pairs = np.unique(np.sort(np.hstack(pool), axis=0), axis=1)
    pairs = pairs[:, pairs[0] != pairs[1]]
    cosines = np.stack([np.einsum("nd,nd->n", x[pairs[0]], x[pairs[1]]) for x in units])
    chosen = pairs[:, drawn(cosines, pairs, n, rng)]
    first, second = (tuple(some[row] for row in side) for side in chosen)
    return Pairs("asked labels", first, second, kind="texts", source="fix --ask")


def drawn(cosines: Floats, sides: NDArray[np.integer], n: int, rng: np.random.Generator, power: float = POWER) -> Intp:
    """Which of m pairs to judge, at most n, each sentence once.

    Args:
        cosines: (k, m), by k candidates.
        sides: (2, m), the sentences of each pair by number.
        n: Number of pairs.
        rng: Draws.
        power: Exponent of the disagreement.
    """
    disagreement = (rankdata(cosines, axis=1) / cosines.shape[1]).std(0)
    # The smallest of exponentials over weights: a draw without replacement (Efraimidis & Spirakis 2006).
    order = np.argsort(rng.exponential(size=len(disagreement)) / (disagreement + 1e-9) ** power)
    used: set[int] = set()
    found: list[int] = []
    for row in order:
        pair = {int(sides[0, row]), int(sides[1, row])}
        if used.isdisjoint(pair):
            used |= pair
            found.append(int(row))
            if len(found) == n:
                break
    return np.array(found, dtype=np.intp)


def write_asked(path: Path, pairs: Pairs) -> None:
    """Write the table to fill in; the mark at its beginning tells Excel that it is UTF-8."""
    rows = [(one, two, "", SPELLED) for one, two in zip(pairs.first, pairs.second, strict=True)]
    write_text(path, f"\ufeff{to_csv(COLUMNS, rows)}")


def read_asked(path: str | Path) -> tuple[Pairs, int] | None:
    """The judged pairs of a table that ``write_asked`` wrote and a person filled in, and how many it asked for.

    Rows without a score are left out.

    Returns:
        None for a table of another kind.

    Raises:
        DataError: If too few are judged, all have one score, or a score is not valid; the message names file and line.
    """
    if not table_suffix(path) or not (table := open_table(path)).known([COLUMNS]):
        return None
    rows = list(table.usable(COLUMNS[:3], lambda row: row))
    judged = [
        (str(row.cells[0]), str(row.cells[1]), parse_score(row, 2, SCALE))
        for row in rows
        if str("" if row.cells[2] is None else row.cells[2]).strip()
    ]
    if len(judged) < FEWEST_ASKED:
        raise DataError(
            f"{path} has {len(judged)} judged pairs of {len(rows)}, but {FEWEST_ASKED} or more are wanted. Fill in "
            f"the column score: {SPELLED}."
        )
    first, second, target = zip(*judged, strict=True)
    if len(set(target)) == 1:
        raise DataError(f"{path}: all {len(judged)} judged pairs have the score {target[0]:g}, so they rank nothing.")
    return Pairs("asked labels", first, second, np.array(target), source=Path(path).name), len(rows)
