"""What speaks against a change that no labels prove. Signals without labels may veto a change; they never choose one.

    narrow text       topics that are left out of a fit are strange to it (``bertflow.breadth``)
    other queries     the user's queries are of another kind than the text
    other neighbors   hardly one of the ten nearest texts is among those of the raw encoder

Signals that failed when tried: hubness, the share of neighbors as a score, any sum of signals (benchmarks/harm.md).
"""

from collections.abc import Mapping, Sequence

from bertflow.advise.bare_vectors import VectorEncoder
from bertflow.breadth import FEWEST, FOREIGN, breadth_of
from bertflow.calibration.spelling import RAW
from bertflow.encoder.abstract import SentenceEncoder
from bertflow.retrieval.comparing import SHARED, nearest_rows, share_in_common

FEWEST_SHARED = 0.05
"""Share of the ten nearest texts that both encoders find, below which a map is not trusted: 0.00 to 0.01 where it
ruined a search, 0.12 or more where it helped."""
MOST_ASKING = 500


def find_vetoes(
    systems: Mapping[str, SentenceEncoder],
    fitted: Sequence[str],
    reference: Sequence[str],
    queries: Sequence[str],
    safe: str,
    seed: int,
) -> dict[str, tuple[str, ...]]:
    """What speaks against each candidate, in plain sentences.

    Args:
        systems: Raw and the candidates, by name.
        fitted: Texts that the candidates were fitted on.
        reference: Other texts of the same kind.
        queries: The user's queries; may be empty.
        safe: The candidate that divides by nothing, so that a narrow text or strange queries do not speak against it.
        seed: Random seed for the rows that are looked at.
    """
    raw, asking = systems[RAW], (queries or reference)[:MOST_ASKING]
    bare, always = isinstance(raw, VectorEncoder), []
    breadth = breadth_of(raw.encode(fitted), None if bare else [*fitted, *reference], seed)
    if breadth is None:
        always.append(f"There are fewer than {FEWEST} different sentences: too few to tell whether the text is broad.")
    elif breadth.narrow:
        always.append(str(breadth))
    if breadth and queries and (far := breadth.strangeness(raw.encode_query(asking))) > FOREIGN:
        always.append(f"The queries are {far:.0f} times as far from the text as its own sentences: of another kind.")
    sides = {
        name: nearest_rows((one.encode_query if queries else one.encode)(asking), one.encode(fitted))
        for name, one in systems.items()
    }
    found = {}
    for name, nearest in sides.items():
        shared = share_in_common(sides[RAW], nearest)
        few = f"Of the {SHARED} nearest texts, only {100 * shared:.0f} % stay the same with {name}."
        found[name] = (*(always if name != safe else []), *([few] if shared < FEWEST_SHARED else []))
    return found
