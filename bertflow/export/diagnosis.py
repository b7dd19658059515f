"""Why a server's embeddings differ: each explanation is tried, and the one that fits best is named.

    right           within the tolerance                    cut elsewhere    short sentences right, longer ones not
    half precision  off by what half precision costs        a mistake        a suspect of the golden file fits
    roughly right   by more than that, as with int8         unit length      any of these, after normalizing

Of all explanations the one that leaves the smallest distance is named, if that distance is small.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from bertflow.export.golden import SUSPECT_ROWS, Golden, distances

Float32 = NDArray[np.float32]
FITS = 0.05
"""A wrong vector is explained when what it was explained by is no farther than this share of its length."""
AT_MOST = 0.5
"""Whatever half precision costs: beyond this share nothing is explained."""
HALF_PRECISION = 3.0
"""Up to this many times what half precision was measured to cost is called half precision."""


@dataclass(frozen=True)
class Finding:
    """What was found.

    Attributes:
        right: Whether the vectors are the golden ones.
        text: In plain words.
        distance: Median distance from the golden vectors, as a share of their length; infinite for another width.
    """

    right: bool
    text: str
    distance: float


@dataclass(frozen=True)
class Explanation:
    """One way to read the vectors that came back."""

    text: str
    wanted: Float32
    rows: NDArray[np.intp]

    def distance(self, got: Float32) -> float:
        """Median distance that it leaves; infinite where widths differ."""
        if got.shape[1] != self.wanted.shape[1]:
            return float("inf")
        return float(np.median(distances(got[self.rows], self.wanted)))


def diagnose(golden: Golden, got: Float32, normalized: bool = False) -> Finding:
    """Compare vectors (n, any width) of the golden sentences, in their order, with the golden ones.

    Args:
        golden: What is right.
        got: What the server answered.
        normalized: Whether vectors of unit length are what is wanted.
    """
    wanted = _unit(golden.vectors) if normalized else golden.vectors
    whole = Explanation("", wanted, np.arange(len(wanted)))
    distance = whole.distance(got)
    off = distances(got, wanted) if np.isfinite(distance) else np.full(len(got), np.inf)
    if (off <= golden.tolerance).all():
        return Finding(True, "The vectors are the golden ones.", distance)
    cut = _cut(golden, off)
    if cut:
        return Finding(False, cut, distance)
    best = min(_explanations(golden, normalized), key=lambda explanation: explanation.distance(got))
    left = best.distance(got)
    if best.text and left <= min(AT_MOST, max(FITS, HALF_PRECISION * _half(golden))):
        return Finding(False, f"The server differs: {best.text}{_how_exactly(golden, left)}.", distance)
    if distance <= HALF_PRECISION * _half(golden):
        return Finding(False, f"The server computes in lower precision{_like(golden, distance)}.", distance)
    if not best.text and left <= AT_MOST:
        return Finding(
            False, f"The server computes the right embeddings roughly{_like(golden, distance)}. Is it int8?", left
        )
    return Finding(False, _unexplained(golden, got, best, left), distance)


def _explanations(golden: Golden, normalized: bool) -> list[Explanation]:
    """The golden vectors and the suspects, of the wanted length first, then of the other."""
    rows = np.array(SUSPECT_ROWS)
    plain = [Explanation("", golden.vectors, np.arange(len(golden.vectors)))]
    plain += [Explanation(text, vectors, rows) for text, vectors in golden.suspects.items()]
    unit = [Explanation(one.text, _unit(one.wanted), one.rows) for one in plain]
    wanted, other, length = (unit, plain, "leaves vectors") if normalized else (plain, unit, "scales vectors")
    length += " at a length of their own" if normalized else " to unit length (cosines are right, distances are not)"
    return [
        *wanted,
        *(replace(one, text=f"{one.text}, and {length}" if one.text else f"it {length}") for one in other),
    ]


def _cut(golden: Golden, off: NDArray[np.float64]) -> str | None:
    """Whether short sentences are right and longer ones wrong, as when they are cut elsewhere."""
    tokens, right = np.array(golden.tokens), off <= golden.tolerance
    wrong = ~right
    if not right.any() or tokens[wrong].min() <= tokens[right].max():
        return None
    if tokens[wrong].min() > golden.max_length:
        return (
            f"The server differs: it reads more than max_length={golden.max_length} tokens of a long sentence; "
            f"up to {tokens[right].max()} tokens its vectors are right."
        )
    return (
        f"The server differs: it cuts long sentences somewhere from {tokens[right].max()} to {tokens[wrong].min() - 1} "
        f"tokens, and not at max_length={golden.max_length}."
    )


def _half(golden: Golden) -> float:
    return max(golden.precision.values())


def _like(golden: Golden, distance: float) -> str:
    close = min(golden.precision, key=lambda dtype: abs(np.log(golden.precision[dtype] / distance)))
    return f": its vectors are off by {distance:.1e} of their length, {close} costs {golden.precision[close]:.1e}"


def _how_exactly(golden: Golden, left: float) -> str:
    if left <= golden.tolerance:
        return ""
    return f" (which leaves {left:.1e} of a vector's length: it computes in lower precision, too)"


def _unexplained(golden: Golden, got: Float32, best: Explanation, left: float) -> str:
    width = golden.vectors.shape[1]
    if got.shape[1] != width:
        return (
            f"The server differs: its vectors are {got.shape[1]} wide, {width} were expected, and none of the usual "
            "mistakes explains them. Is it another model?"
        )
    return (
        f"The server differs, and none of {len(golden.suspects)} usual mistakes explains it: the closest "
        f"({best.text or 'the right vectors'}) leaves {left:.2f} of a vector's length. Is it another model?"
    )


def _unit(x: Float32) -> Float32:
    return x / np.linalg.norm(x, axis=1, keepdims=True).clip(min=np.finfo(np.float32).tiny)
