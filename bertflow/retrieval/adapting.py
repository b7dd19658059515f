"""A query encoder for an index that stays as it is: documents are embedded as before, queries are moved to them.

    gap = mean of crops of the documents - mean of the documents          queries: x -> x - gap / 2

One vector: undone by using the encoder as it was. Real queries refine it (``bertflow.calibration.queries``).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bertflow.breadth import FEW_WORDS, RUNNING, richness
from bertflow.calibrated import CalibratedEncoder
from bertflow.calibration.queries import CROPS, crops, matched, only_queries
from bertflow.calibration.saving import Provenance
from bertflow.data.columns import split_columns
from bertflow.data.corpus import TextSource, drawn_rows, load_sentences
from bertflow.encoder.abstract import SentenceEncoder
from bertflow.encoder.options import EncoderOptions, given_options
from bertflow.errors import DataError, UsageError
from bertflow.maps import UnitMap, gap_of
from bertflow.moments import Moments
from bertflow.opening import load
from bertflow.places import require_files
from bertflow.progress import working
from bertflow.results import AbstractResult
from bertflow.retrieval.indexing import opener
from bertflow.similarity import unit_rows
from bertflow.text_keys import hash_texts

EMBEDDED = 5000
"""Documents that are embedded for their mean."""


@dataclass(frozen=True, repr=False)
class Adapted(AbstractResult):
    """A query encoder that was written.

    Attributes:
        folder: Where it was written.
        describe: ``describe()`` of the encoder.
        documents: Documents whose mean was taken.
        crops: Crops that stand in for queries.
        queries: Queries that refined them.
        moved: How far queries are moved, as a share of a document's mean distance from the mean of all.
        index: What it asks, if that was named.
    """

    folder: Path
    describe: Mapping[str, Any]
    documents: int
    crops: int
    queries: int
    moved: float
    index: str = ""

    def parts(self) -> Iterator[str]:
        """What was done."""
        refined = f", refined by {self.queries:,} queries" if self.queries else ""
        yield f"encoder   {self.describe['encoder']}, {self.describe['pooling']}: documents as before"
        yield f"fitted    on {self.documents:,} documents and {self.crops:,} crops of them{refined}"
        yield f"queries   are moved by {self.moved:.2f} of the mean distance of documents from their mean"
        yield f"written   {self.folder}: its encode and encode_query are for queries, encode_document for documents"


def adapt_encoder(
    model: str | Path | SentenceEncoder,
    text: Sequence[str],
    columns: str | None,
    index: str | Path | None,
    queries: str | Path | None,
    output: Path,
    progress: bool | None,
    options: EncoderOptions,
) -> Adapted:
    """Write the query encoder for some text, or for an index with its own text."""
    require_files(queries)
    if index is None:
        named = split_columns(columns)
        source, encoder = TextSource(text, named), load(model, **options)
        documents = load_sentences(source.paths, named)
    else:
        if given := given_options(options):
            raise UsageError(f"The encoder of an index is opened as it was saved. Leave --{given[0]} out.")
        name = model if isinstance(model, str | Path) else None
        with opener(index, {"model": name, "device": options.get("device")}, text=columns)() as opened:
            encoder, documents = opened.encoder, opened.texts()
    asked = load_sentences(queries) if queries else []
    adapted, n, moved = only_queries_of(encoder, documents, asked, progress)
    adapted.save(output)
    return Adapted(output, adapted.describe(), n, CROPS, len(asked), moved, "" if index is None else str(index))


@working("fitting the query encoder")
def only_queries_of(
    encoder: SentenceEncoder, documents: Sequence[str], queries: Sequence[str] = (), progress: bool | None = None
) -> tuple[CalibratedEncoder, int, float]:
    """An encoder that moves queries, the number of documents it was fitted on, and how far it moves.

    Raises:
        DataError: If the documents have so few different words that moved queries found less.
    """
    if (words := richness(documents)) < FEW_WORDS:
        raise DataError(
            f"The text has {words:.0f} different words per {RUNNING:,}. With fewer than {FEW_WORDS}, moved "
            "queries found less (docs/adapt.md). Use the encoder as it is, or run `bertflow fix --purpose search`."
        )
    raw, cropped, distinct = encoder.raw, crops(documents), list(dict.fromkeys(filter(str.strip, documents)))
    some = [distinct[row] for row in drawn_rows(len(distinct), EMBEDDED, seed=0)]
    x, asked = raw.encode(some, progress=progress), raw.encode_query(cropped, progress=progress)
    if queries:
        asked = matched(raw.encode_query(queries, progress=progress), asked)
    provenance = Provenance.of(raw.describe(), hash_texts(some))
    adapted = CalibratedEncoder(raw, only_queries(encoder.calibrator, x, asked, provenance))
    adapted.role = "query"
    gap = gap_of(adapted.calibrator.map)
    assert gap is not None, "it moves queries"
    rows = unit_rows(x) if isinstance(adapted.calibrator.map, UnitMap) else x
    spread = np.sqrt(np.trace(Moments.of(rows).covariance))
    return adapted, len(some), float(gap.norm() / spread)
