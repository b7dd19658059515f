"""Vectors that exist already: the best map for them as they are, beside the best overall.

    keep the vectors     a map of the encoder's own pooling: nothing is encoded again
    encode again         the best of all candidates, which may need another pooling

Both are decided by the same evidence and the same rules; what they cost is measured in the run.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bertflow.advise.likely import WIDEST
from bertflow.advise.verdict import Decision
from bertflow.encoder.abstract import SentenceEncoder
from bertflow.results import ready_for_json
from bertflow.tables import MISSING, Section, Table

KEEP, AGAIN = "keep the vectors", "encode again"
THOUSAND = 1000
"""Vectors that a map is timed on."""


@dataclass(frozen=True)
class Choice:
    """One of two things that can be done with vectors that exist.

    Attributes:
        what: ``KEEP`` or ``AGAIN``.
        decision: What is advised, and its gain where pairs measured one.
        dim: Width of the result.
        map_seconds: Seconds that the map takes for 1,000 vectors.
        encoding_seconds: Seconds to encode 1,000 sentences; None where nothing is encoded.
    """

    what: str
    decision: Decision
    dim: int
    map_seconds: float
    encoding_seconds: float | None

    @property
    def line(self) -> tuple[str, ...]:
        """A line of the table."""
        gain, cells = self.decision.gain, (MISSING, MISSING)
        if gain is not None:
            shown = f"{100 * gain.difference:+.1f}"
            if gain.ci_low is not None and gain.ci_high is not None:
                shown += f" ({100 * gain.ci_low:+.1f} to {100 * gain.ci_high:+.1f})"
            cells = (shown, f"{gain.metric.removeprefix('cosine_')}, {gain.task}")
        costs = [f"{1000 * self.map_seconds:.1f} ms" if self.decision.system != "raw" else "nothing"]
        if self.encoding_seconds is not None:
            costs.insert(0, f"{self.encoding_seconds:.1f} s")
        standing = self.decision.standing.split(",")[0] or MISSING
        return (self.what, self.decision.system, str(self.dim), *cells, standing, " + ".join(costs))

    def as_dict(self) -> dict[str, Any]:
        """Every number, ready for JSON."""
        named = {"what": self.what, **self.decision._asdict(), "dim": self.dim}
        costs = {"map_seconds_per_1000": self.map_seconds, "encoding_seconds_per_1000": self.encoding_seconds}
        return ready_for_json(named | costs)


def choose(
    what: str, decision: Decision, system: SentenceEncoder, sentences: Sequence[str], encoding: float | None
) -> Choice:
    """A choice, with the time of its map on vectors of some sentences, which are embedded already."""
    seconds = 0.0
    if system.calibrator is not None:
        x = system.raw.encode(sentences[:THOUSAND])
        system.calibrate(x)  # the first call also loads what is needed
        begin = time.perf_counter()
        system.calibrate(x)
        seconds = (time.perf_counter() - begin) / len(x) * THOUSAND
    return Choice(what, decision, system.dim, seconds, encoding)


def choices_section(choices: Sequence[Choice], bare: bool) -> Section:
    """Both choices as a table; where vectors are ``bare``, nothing is known of other poolings."""
    header = ("to do", "map", "width", "gain x 100 (95 %)", "measured by", "evidence", "cost of 1,000")
    lines = []
    if bare:
        lines.append("What encoding again would gain needs the encoder: bertflow fix MODEL TEXT --keep_vectors.")
    elif len(choices) == 1:
        lines.append("No other pooling was better by this evidence, so there is no reason to encode again.")
    if choices[0].dim > WIDEST:
        lines.append(
            f"The vectors stay {choices[0].dim:,} wide, but the HNSW index of pgvector takes {WIDEST:,} dimensions at "
            f"most: fit whitening({WIDEST}), or store halfvec (4,000)."
        )
    return Section("Keep the vectors, or encode again", Table(header, tuple(one.line for one in choices)), tuple(lines))
