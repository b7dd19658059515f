"""A collection of a database as an index: it is asked in the same way as a file.

    question -- query encoder, calibrator --> the database's own search --> ids --> their vectors --> exact cosines

What is found is scored again in float64, so a score does not depend on the database. All of the best are sure to be
found only with ``exact``, which compares every row. The percentile of a score is its place among random pairs of rows.

Nothing is searched with an encoder that does not fit: not of another width, and not with another calibrator than the
one that the database has recorded. Where nothing is recorded, the text of a few rows is embedded and compared.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Self

import numpy as np
from safetensors.numpy import save_file

from bertflow.array_types import Float64
from bertflow.calibration.spelling import load_calibrator
from bertflow.data.columns import COLUMNS
from bertflow.data.lines import is_blank
from bertflow.encoder.abstract import SentenceEncoder
from bertflow.encoder.identity import Identity, map_digest
from bertflow.errors import DataError, UsageError, logger
from bertflow.files import atomic_file
from bertflow.records import read_arrays
from bertflow.retrieval.collections import AbstractCollection, Id, open_collection
from bertflow.retrieval.origin import CALIBRATOR, Origin
from bertflow.retrieval.ranking import AbstractIndex, Hit, Scan
from bertflow.similarity import COSINE, unit_rows
from bertflow.text_keys import text_key

TRIED, ALIKE, UNLIKE = 8, 0.99, 0.5
"""Rows whose text is embedded again; median cosine with the stored rows that is expected, and one that is refused."""
READ = 8192
"""Rows that are read at a time, for their text."""
BEST = 5
"""Rows among which a question that is in the collection itself is looked for."""
RANDOM_PAIRS = "random_pairs.safetensors"
NAMED = "--text, in adapt --columns"
"""Options that name the column of the text."""


class CollectionIndex(AbstractIndex):
    """A collection of vectors in a database, asked in words. Nothing is written into it.

    Args:
        collection: Open.
        encoder: Raw or calibrated, as its rows are.
        origin: What is known of it.
        text: Column that holds the text of a row; guessed by default.
        exact: Whether questions are compared with every row, not by the database's index.

    Raises:
        UsageError: If the column of the text has to be named.
        DataError: If the encoder does not fit.
    """

    def __init__(
        self,
        collection: AbstractCollection,
        encoder: SentenceEncoder,
        origin: Origin | None = None,
        text: str | None = None,
        exact: bool = False,
    ) -> None:
        self.collection, self.encoder, self.exact = collection, encoder, exact
        self.origin = origin or Origin(str(collection.address))
        self.path, self._facts = self.origin.address, collection.facts
        recorded = self._require_fitting()
        # Near random directions there are rows of all kinds, and the index finds them quickly.
        directions = np.random.default_rng(0).standard_normal((TRIED, encoder.dim)).astype(np.float32)
        found = collection.search(directions, 1) if len(self) else []
        self._few: list[Id] = list(dict.fromkeys(name for names in found for name in names))
        self._scan = Scan(collection)
        self.text = self._find_text(text)
        self._compare_texts(recorded)

    @classmethod
    def open(
        cls,
        place: str | Path,
        model: str | Path | None = None,
        *,
        device: str | None = None,
        text: str | None = None,
        exact: bool = False,
    ) -> Self:
        """Open a collection by its address, or by the folder of the job that made it.

        Args:
            place: ``KIND:PLACE/NAME``, or a folder that ``bertflow reindex`` wrote.
            model: The encoder whose embeddings it holds; by default the one that the job wrote.
            device: Where the encoder runs; the first of cuda, mps and cpu that is there by default.
            text: Column of text, as for the class.
            exact: Whether to search exactly, as for the class.

        Raises:
            UsageError: If no encoder is known, or the column of the text has to be named.
            DataError: If there is no such collection, or the encoder does not fit.
        """
        origin = Origin.find(str(place))
        with ExitStack() as stack:
            collection = stack.enter_context(open_collection(origin.address))
            opened = cls(collection, origin.open_encoder(model, device), origin, text, exact)
            stack.pop_all()  # it stays open
        return opened

    def __len__(self) -> int:
        """The number of rows."""
        return self._facts.n

    def close(self) -> None:
        """Let go of the database."""
        self.collection.close()

    @property
    def identity(self) -> Identity:
        """The encoder and calibrator that made the embeddings."""
        return self.encoder.identity

    def _ranked(self, questions: Float64, k: int) -> list[list[Hit]]:
        """The nearest rows of the embeddings (q, dim) of some questions, which have length one."""
        found = self.collection.search(questions.astype(np.float32), k, self.exact)
        return [self._hits(row, ids) if ids else [] for row, ids in zip(questions, found, strict=True)]

    def _hits(self, question: Float64, ids: Sequence[Id]) -> list[Hit]:
        scores = unit_rows(self.collection.vectors_of(ids)) @ question
        rows = zip(ids, scores.tolist(), self._texts(ids), self.percentiles(scores), strict=True)
        hits = [Hit(str(name), score, text, text, percentile=percent) for name, score, text, percent in rows]
        return sorted(hits, key=lambda hit: (-hit.score, hit.id))

    def percentiles(self, cosines: Float64) -> list[float] | list[None]:
        """Percent of random pairs of rows with a lower cosine, in [0, 100]; None if there are too few rows to say."""
        if not len(random := self._random):
            return [None] * len(cosines)
        percent: list[float] = (100 * np.searchsorted(random, cosines) / len(random)).tolist()
        return percent

    @cached_property
    def _random(self) -> Float64:
        """Cosines of random pairs, rising; kept in the folder of the job, if that is known."""
        kept = self.origin.folder and self.origin.folder / RANDOM_PAIRS
        if kept and kept.exists():
            return read_arrays(kept, {"cosines": ("float64", 1)}, do="Delete it.")["cosines"]
        random = self._scan.random_cosines()
        if kept:
            with atomic_file(kept) as aside:
                save_file({"cosines": random}, aside)
        return random

    def held(self, questions: Sequence[str]) -> int:
        """How many of some questions are the text of one of the ``BEST`` rows that they find."""
        found = self.collection.search(self.encoder.encode_query(questions), BEST)
        names = list(dict.fromkeys(name for names in found for name in names))
        texts = {name: text_key(text) for name, text in zip(names, self._texts(names), strict=True)}
        asked = zip(questions, found, strict=True)
        return sum(text_key(question) in {texts[name] for name in names} for question, names in asked)

    def phrases(self, raw: bool = False) -> Scan | None:
        """All rows, to score the ranking; ``raw`` for those without the calibrator, None where they are not known."""
        if not (raw and self.identity.digest):
            return self._scan
        source = self.origin.source and open_collection(self.origin.source)
        if source and source.exists() and source.facts.calibrator is None:  # else it was switched to calibrated rows
            return Scan(source)
        logger.warning("The raw vectors of %s are not known, so only the calibrated ones are scored.", self.path)
        return None

    def texts(self) -> list[str]:
        """The texts of all rows.

        Raises:
            DataError: If it has none.
        """
        if self.text is None:
            raise DataError(f"{self.path} has no column of text. Give its text as a file.")
        return [text for part in self.collection.parts(READ) for text in self._texts(self.collection.read(part).ids)]

    def _texts(self, ids: Sequence[Id]) -> list[str]:
        if self.text is None:
            return [""] * len(ids)
        return [str(row.get(self.text) or "") for row in self.collection.fetch(ids).payload]

    def _require_fitting(self) -> bool:
        """Refuse an encoder of another width or calibrator; whether the collection itself records a calibrator."""
        if self._facts.dim != self.encoder.dim:
            raise DataError(
                f"{self.path} holds vectors of width {self._facts.dim}, but {self.encoder!r} makes {self.encoder.dim}. "
                f"{self._do()}"
            )
        recorded, given = self._facts.calibrator, self.identity
        if recorded is None and self.origin.folder:
            recorded = map_digest(load_calibrator(self.origin.folder / CALIBRATOR).map)
        if recorded is not None and recorded != given.digest:
            raise DataError(
                f"{self.path} holds vectors that went through the calibrator {recorded[:8]}, but the encoder's "
                f"calibrator is {given.spelled()}. {self._do()}"
            )
        return self._facts.calibrator is not None

    def _do(self) -> str:
        if own := self.origin.query_encoder:
            return f"Name the collection that holds the calibrated rows, and --model {own}."
        return "Give the query encoder that was written with the collection (--model), or calibrate it again."

    def _find_text(self, text: str | None) -> str | None:
        """The column of the text: the one that was named, else the first that ``COLUMNS`` knows, else the only one."""
        rows = self.collection.fetch(self._few).payload if self._few else []
        columns = list(dict.fromkeys(column for row in rows for column in row))
        texts = [column for column in columns if all(isinstance(row.get(column), str | None) for row in rows)]
        if text is not None:
            if rows and text not in columns:
                raise UsageError(f"{self.path} has no column {text!r}. Its columns: {', '.join(columns) or 'none'}.")
            return text
        spelled = {column.casefold(): column for column in reversed(texts)}
        named = [spelled[name] for (name,) in COLUMNS["passages"] if name in spelled]
        if not named and len(texts) > 1:
            raise UsageError(f"{self.path} has several columns of text: {', '.join(texts)}. Name one with {NAMED}.")
        return next(iter(named or texts), None)

    def _compare_texts(self, recorded: bool) -> None:
        """Embed the text of a few rows: their vectors should come out."""
        texts = dict(zip(self._few, self._texts(self._few), strict=True))
        ids = [name for name, text in texts.items() if not is_blank(text)]
        if not ids:
            if not recorded:
                logger.warning("%s does not say which encoder made its vectors, and has no text to check.", self.path)
            return
        z = self.encoder.encode_document([texts[name] for name in ids])
        alike = float(np.median(COSINE.paired(z, self.collection.vectors_of(ids))))
        told = (
            f"The encoder should make the vectors of {self.path} from their text ({self.text}), but what it makes of "
            f"{len(ids)} rows has a cosine of {alike:.2f} with their vectors."
        )
        if alike < UNLIKE and not recorded:
            raise DataError(f"{told} {self._do()} Or name the column that was embedded ({NAMED}).")
        if alike < ALIKE:
            logger.warning("%s Was it another encoder, pooling or prompt, or another column (%s)?", told, NAMED)
