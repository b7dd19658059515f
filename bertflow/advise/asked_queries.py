"""What is shown of queries without labels: are they like the text, and what do they find before and after?

They choose nothing: what comes nearer is seen, not proven.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from sklearn.cluster import KMeans

from bertflow.array_types import Float64
from bertflow.retrieval.comparing import Comparison, Named, compare_systems
from bertflow.scoring.drift import STRANGE, Excess
from bertflow.similarity import unit_rows
from bertflow.tables import Section

CLUSTERS = 20
"""Clusters of the text."""


@dataclass(frozen=True)
class AskedQueries:
    """Queries beside the text.

    Attributes:
        percentile: Median of the percentiles of their likelihood among held-out text; None where that is unknown.
        outside: How many are less likely than 99 % of held-out text; None likewise.
        reached: Clusters of the text that are the nearest one of some query.
        clusters: Clusters of the text.
        comparison: What they find, before and after.
    """

    percentile: float | None
    outside: Excess | None
    reached: int
    clusters: int
    comparison: Comparison

    @classmethod
    def of(
        cls, queries: Sequence[str], texts: Sequence[str], systems: Named, percentiles: Float64 | None, seed: int
    ) -> "AskedQueries":
        """Look at queries among texts.

        Args:
            queries: The queries.
            texts: What they search.
            systems: The encoder before and after, by their names.
            percentiles: Percentiles of the queries' likelihoods among held-out text; None where that is unknown.
            seed: Random seed for the clusters and for the queries that are shown.
        """
        before = systems[0][1]
        x, asked = unit_rows(before.encode(texts)), unit_rows(before.encode_query(queries))
        clusters = min(CLUSTERS, len(np.unique(x, axis=0)))
        nearest = KMeans(clusters, n_init=1, random_state=seed).fit(x).predict(asked)
        return cls(
            percentile=None if percentiles is None else float(np.median(percentiles)),
            outside=None if percentiles is None else Excess(int((percentiles <= STRANGE).sum()), len(percentiles)),
            reached=len(np.unique(nearest)),
            clusters=clusters,
            comparison=compare_systems(systems, queries, texts, seed),
        )

    def lines(self) -> Iterator[str]:
        """Whether the queries are like the text."""
        n = f"{self.comparison.queries:,} queries"
        if self.outside is None or self.percentile is None:
            yield f"Whether the {n} are in domain is not known: that needs 2 sentences for each dimension."
        else:
            share = f"{100 * self.outside.share:.0f} % of the {n}"
            do = ": add such text, and call `bertflow fix` again" if self.outside.clear else ""
            yield f"{share} are out of domain ({STRANGE:g} % of ordinary text is){do}."
            yield f"Their median percentile among held-out text is {self.percentile:.1f}."
        yield f"They reach {self.reached} of {self.clusters} clusters of the text."

    def section(self) -> Section:
        """What they find, and whether they are like the text."""
        return self.comparison.section(tuple(self.lines()))
