"""The card at the top of a report: the verdict, three numbers before and after, and what to do next."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from bertflow.geometry.cloud import Cloud, K, participation
from bertflow.geometry.pairs import PairScores, random_cosines
from bertflow.geometry.report import Card, listed, rounded
from bertflow.tables import Table

CENTERED = 0.2
"""Median cosine of random pairs up to which a cosine can be read as it is, and there is no cone: 0.08 on docstrings by
the tuned encoder at hand, 0.28 and more by poolings that were not tuned."""


@dataclass(frozen=True)
class Finding:
    """What the numbers say.

    Attributes:
        cone: Whether random pairs of the first system have high cosines.
        change: Whether the best of the others ranks pairs better or worse than the first by more than chance: "better",
            "worse", "level"; "unknown" without pairs; "alone" without others.
        best: The best of the others.
    """

    cone: bool
    change: str
    best: str = ""


VERDICTS: Mapping[tuple[bool, str], str] = {
    (True, "better"): "A narrow cone, and calibration helps: use {best}.",
    (True, "worse"): "A narrow cone, but calibration ranks these pairs worse: rescale the scores instead.",
    (True, "level"): "A narrow cone, but on these pairs no calibration ranks better than chance can explain.",
    (True, "unknown"): "A narrow cone. Whether calibration ranks better, only pairs can say.",
    (True, "alone"): "A narrow cone.",
    (False, "better"): "No cone, but calibration still helps on these pairs: use {best}.",
    (False, "worse"): "Leave it: there is no cone, and calibration ranks these pairs worse.",
    (False, "level"): "Leave it: there is no cone, and calibration ranks these pairs no better.",
    (False, "unknown"): "No cone. Whether calibration ranks better, only pairs can say.",
    (False, "alone"): "No cone.",
}
"""The verdict where the caller has none of its own."""


def look(cosines: Mapping[str, float], scores: PairScores | None) -> Finding:
    """What to make of median cosines of random pairs and of scores, each by system, the one "before" first."""
    before, *others = cosines
    cone = cosines[before] > CENTERED
    if not others:
        return Finding(cone, "alone")
    if scores is None:
        return Finding(cone, "unknown")
    best = max(others, key=lambda name: scores.values[name][0])
    if not scores.separable.get(best):
        return Finding(cone, "level", best)
    return Finding(cone, "better" if scores.values[best][0] > scores.values[before][0] else "worse", best)


def card_of(clouds: Mapping[str, Cloud], scores: PairScores | None, verdict: str = "", then: str = "") -> Card:
    """The card of some systems.

    Args:
        clouds: By system, the one "before" first.
        scores: How well each ranks pairs; None where there are none.
        verdict: What to do, if that was decided already.
        then: A command that can be typed next.

    Raises:
        DataError: If the clouds cannot be measured.
    """
    cosines = {name: float(np.median(random_cosines(cloud))) for name, cloud in clouds.items()}
    rows = [
        ("cosine of two unrelated sentences", *(rounded(value) for value in cosines.values()), "near 0"),
        ("directions in use", *(f"{participation(one):.0f} of {one.dim}" for one in clouds.values()), "many"),
    ]
    found = look(cosines, scores)
    says = f"Two unrelated sentences have a cosine of {listed(cosines)} (median)"
    if scores is not None:
        values = {name: 100 * value for name, (value, _, _) in scores.values.items()}
        rows.append((f"{scores.title}, x 100", *(rounded(values[name], 1) for name in clouds), "high"))
        says += f"; {scores.title} x 100 is {listed(values, 1)}"
    else:
        lost = {name: 100 * float((cloud.occurrences == 0).mean()) for name, cloud in clouds.items()}
        rows.append((f"sentences among the {K} nearest of none", *(f"{lost[name]:.1f} %" for name in clouds), "few"))
    said = verdict or VERDICTS[found.cone, found.change].format(best=found.best)
    return Card(said, f"{says}.", Table(("", *clouds, "wanted"), tuple(rows)), then)
