"""What speaks against a change that no labels prove. Signals without labels may veto a change; they never choose one.

    narrow text       topics that are left out of a fit are strange to it (``bertflow.breadth``)
    other queries     the user's queries are of another kind than the text
    other neighbors   hardly one of the ten nearest texts is among those of the raw encoder

Signals that failed when tried: hubness, the share of neighbors as a score, any sum of signals (benchmarks/harm.md).
"""

from collections.abc import Collection, Sequence
from functools import cache, cached_property

from bertflow.advise.bare_vectors import lacks_text
from bertflow.advise.split import SplitText
from bertflow.array_types import Intp
from bertflow.breadth import FEWEST, FOREIGN, FOREIGN_ALONE, Breadth, breadth_of, how_far
from bertflow.calibration.spelling import RAW
from bertflow.evaluation.sides import Systems
from bertflow.retrieval.comparing import SHARED, nearest_rows, share_in_common

FEWEST_SHARED = 0.05
"""Share of the ten nearest texts that both encoders find, below which a map is not trusted: 0.00 to 0.01 where it
ruined a search, 0.12 or more where it helped."""
MOST_ASKING = 500
UNKNOWN = "Vectors alone do not show whether their text is broad: give the text, or --query_vectors."


class Vetoes:
    """What speaks against a candidate, in plain sentences.

    Args:
        systems: Raw and the candidates, by name.
        text: Text that the candidates were fitted on, and text that they were not.
        queries: The user's queries; may be empty.
        safe: Candidates that neither narrow text nor strange queries veto.
    """

    def __init__(self, systems: Systems, text: SplitText, queries: Sequence[str], safe: Collection[str]) -> None:
        self._systems, self._text, self._safe = systems, text, safe
        self._queries, self._nearest = queries[:MOST_ASKING], cache(self._ranked)

    def __call__(self, name: str) -> tuple[str, ...]:
        """All that is said of a candidate, by its name."""
        shared = share_in_common(self._nearest(RAW), self._nearest(name))
        few = f"Of the {SHARED} nearest texts, only {100 * shared:.0f} % stay the same with {name}."
        whatever = () if name in self._safe else self._of_text()
        return (*whatever, *([few] if shared < FEWEST_SHARED else []))

    @cached_property
    def _breadth(self) -> Breadth | None:
        raw, texts = self._systems[RAW], self._text.read
        return breadth_of(raw.encode(texts), None if lacks_text(raw) else texts)

    def _of_text(self) -> tuple[str, ...]:
        """What the text and the queries say of a map that is fitted to the text."""
        raw, found = self._systems[RAW], []
        if (breadth := self._breadth) is None:
            return (f"There are fewer than {FEWEST} different sentences: too few to tell whether the text is broad.",)
        if breadth.narrow:
            found.append(str(breadth))
        elif lacks_text(raw) and not self._queries:
            found.append(UNKNOWN)
        most = FOREIGN_ALONE if lacks_text(raw) else FOREIGN
        if self._queries and (far := breadth.strangeness(raw.encode_query(self._queries))) > most:
            found.append(f"Your queries are unlike the text: {how_far(far)} as far away as its lines.")
        return tuple(found)

    def _ranked(self, name: str) -> Intp:
        """The nearest texts of each query, or else of other texts."""
        text, asked, system = self._text, self._queries, self._systems[name]
        asking = system.encode_query(asked) if asked else system.encode(text.reference[:MOST_ASKING])
        return nearest_rows(asking, system.encode(text.fitted))
