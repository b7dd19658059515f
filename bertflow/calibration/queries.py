"""Queries lie elsewhere than documents, and what stands in for them where there are none: crops of the documents.

    crops      random spans of 2 to 6 words of the documents themselves, without numbers and punctuation
    matched    crops that are moved by real queries

The mean of some queries also holds their topics. So each query q is compared with the crops that are nearest to it,
which share its topic, where each side is centered by its own mean; and few queries say little:

    crop + n/(n + 20) * mean over n queries of (q - mean of its 20 nearest crops)

An index that is there already stays as it is if only queries are moved, by half of the gap between the two means:
``only_queries`` makes a calibrator that does this before any calibrator, or none.
"""

import copy
from collections.abc import Sequence

import numpy as np

from bertflow.affine import identity_map
from bertflow.array_types import Floats
from bertflow.calibration.base import AbstractCalibrator, moments_of_roles, scaled_as
from bertflow.calibration.closed_forms import AbstractClosedForm, ClosedForm
from bertflow.calibration.saving import Provenance
from bertflow.errors import DataError, UsageError
from bertflow.maps import fitted_map
from bertflow.moments import Moments
from bertflow.similarity import unit_rows
from bertflow.written import written_words

CROPS = 2000
"""Crops that are drawn."""
WORDS = (2, 6)
"""Shortest and longest crop, in words."""
NEAREST = 20
"""Crops that a query is compared with."""
PRIOR = 20
"""Queries that count as much as the crops do."""
SHIFT = 0.5
"""Share of the gap by which queries are moved where documents are not. Half of it kept three quarters of the gain and
harmed no search of text that has enough words (benchmarks/harm.md); all of it, when it was tried, cost up to 6 points
of 100 on some."""


def crops(documents: Sequence[str], n: int = CROPS, seed: int = 0) -> list[str]:
    """``n`` random spans of 2 to 6 words, each of a random document; a shorter document is taken whole.

    Words are letters alone: article numbers and punctuation are rare in queries, and with them the spans of a catalog
    were unlike queries. A document without such words is read as it is.

    Raises:
        DataError: If there is no document with words.
    """
    words = [found for document in documents if (found := _words(document))]
    if not words:
        raise DataError(f"Crops are drawn from documents with words, but none of {len(documents):,} has any.")
    generator, drawn = np.random.default_rng(seed), []
    for row in generator.integers(len(words), size=n).tolist():
        document, length = words[row], int(generator.integers(WORDS[0], WORDS[1] + 1))
        start = int(generator.integers(max(1, len(document) - length + 1)))
        drawn.append("".join(document[start : start + length]).strip())
    return drawn


def _words(document: str) -> list[str]:
    """The words of two letters or more, or what stands between spaces; each with the space before it, if any."""
    found = [" " * (not follows) + word for word, follows in written_words(document) if len(word) > 1]
    return found or [f" {word}" for word in document.split()]


def matched(queries: Floats, cropped: Floats) -> Floats:
    """Rows of crops (m, dim), moved to where queries (n, dim) are, but not to where their topics are."""
    asked, known = (unit_rows(rows - rows.mean(0)) for rows in (queries, cropped))
    nearest = np.argsort(-asked @ known.T, axis=1)[:, :NEAREST]
    apart = (queries - cropped[nearest].mean(1)).mean(0)
    moved: Floats = cropped + apart * (len(queries) / (len(queries) + PRIOR))
    return moved.astype(cropped.dtype)


class QueryShift(AbstractClosedForm):
    """Documents as they are; queries moved to where documents are."""

    row = ClosedForm(lambda moments: identity_map(moments.dim))
    divides = False


def only_queries(
    calibrator: AbstractCalibrator | None, documents: Floats, queries: Floats, provenance: Provenance
) -> AbstractCalibrator:
    """A copy of a calibrator that moves queries by a share of the gap between the means; documents are as before.

    Args:
        calibrator: What the documents of an index went through; None if they are raw.
        documents: Raw embeddings (n, dim).
        queries: Raw embeddings (m, dim) of queries, or of what stands in for them.
        provenance: Their text and encoder.

    Raises:
        UsageError: If the calibrator moves queries already.
    """
    if calibrator is not None and calibrator.has_roles:
        raise UsageError(
            f"{calibrator.spelled} moves queries already. Adapt the encoder without it, or use it as it is."
        )
    made = copy.copy(calibrator or QueryShift().fit_moments(Moments.of(documents), provenance))
    gap = moments_of_roles(scaled_as(made.moments_, documents), queries).gap
    assert gap is not None, "there are queries"
    made.map_ = made.with_gap(fitted_map(made.map), SHIFT * gap)
    return made
