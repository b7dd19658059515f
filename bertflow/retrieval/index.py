"""Known answers for a new question: embedded once, searched many times.

    answers, past questions -- encoder --> raw -- calibrator --> calibrated     both kept in one file
    question                -- the same encoder and calibrator --> its nearest answers

Since the raw embeddings are kept, a better calibrator needs no second pass of the encoder (``recalibrate``). Where an
encoder has a prompt for queries, all questions are embedded with it, past ones too; answers are embedded as documents.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Self

import numpy as np

from bertflow.array_types import Float64
from bertflow.calibration.base import AbstractCalibrator
from bertflow.data.corpus import Answer, refuse_ids
from bertflow.encoder.abstract import SentenceEncoder
from bertflow.encoder.identity import Identity
from bertflow.errors import DataError, UsageError, logger
from bertflow.files import atomic_file
from bertflow.next_steps import new_place
from bertflow.places import require_place
from bertflow.progress import working
from bertflow.retrieval.calibrating import (
    CALIBRATOR,
    COUNTS,
    count_texts,
    files_of,
    fit_own,
    parse_own,
    with_another,
    with_own,
)
from bertflow.retrieval.ranking import AbstractIndex, ExactSearch, Hit, Phrases, Search, rank
from bertflow.retrieval.roles import calibrate_by_role, embed_phrases, index_chunks
from bertflow.retrieval.storage import Storage
from bertflow.text_keys import text_key


class AnswerIndex(AbstractIndex):
    """Answers in one file, found by what they say and by the questions they answered before.

    Made by ``create`` or ``open``. A change is written completely or not at all, even after ``kill -9``. Others may
    read meanwhile, and see it with their next question. An index belongs to the thread that opened it.

    Attributes:
        path: The file.
        encoder: Embeds questions and answers; raw or calibrated.
    """

    def __init__(self, storage: Storage, encoder: SentenceEncoder, search: Search | None = None) -> None:
        self.path, self.encoder = storage.path, encoder
        self._storage, self._search = storage, search or ExactSearch()
        self._chunks: str | None = storage.facts().get("chunks")
        self._seen = ""

    @classmethod
    def create(
        cls,
        path: str | Path,
        encoder: SentenceEncoder,
        answers: Iterable[Answer] = (),
        source: Mapping[str, Any] | None = None,
        search: Search | None = None,
        progress: bool | None = None,
        chunks: str | None = None,
        calibrate: str | None = None,
    ) -> Self:
        """Embed answers into a new file, which appears when all of them are in it.

        Args:
            path: File to write; must not exist.
            encoder: Raw or calibrated.
            answers: Known answers; more can be added later.
            source: How the encoder was opened, ready for JSON; kept for those who open the index again.
            search: Finds the candidates; by default exactly, in memory.
            progress: Whether to show a progress bar (default: in a terminal or a notebook).
            chunks: How the texts of answers are split, as ``tokens:128:32``, so that a hit says which part of a long
                text it is; past questions stay whole. By default nothing is split.
            calibrate: Calibrator to fit on all texts, as ``whitening``, and to keep; for a raw encoder.

        Raises:
            UsageError: If ``path`` exists, the encoder cannot split texts so, or is calibrated already.
            DataError: If an id occurs twice, an embedding has length zero, or there are too few texts to calibrate on.
        """
        path, counts = require_new_index(path), None
        if calibrate:
            answers = list(answers)
            texts = [text for answer in answers for text in answer.phrases]
            # The number of chunks is known when they are made.
            parse_own(calibrate, encoder.calibrator, None if chunks else len({*texts}), encoder.dim)
            counts = count_texts(encoder, texts)
        with atomic_file(path) as aside:
            facts = {**encoder.identity.as_dict(), "dim": encoder.dim, "source": dict(source or {})}
            if chunks:
                facts["chunks"] = index_chunks(encoder.raw, chunks)
            with cls(storage := Storage.create(aside, facts), encoder) as index:
                index.add(answers, progress=progress)
                if counts is not None:
                    with storage.transaction():
                        storage.keep(COUNTS, {COUNTS: counts.astype("<i8").tobytes()})
                if calibrate:
                    index.fit(calibrate)
                encoder = index.encoder
        return cls(Storage(path), encoder, search)

    @classmethod
    def open(
        cls,
        path: str | Path,
        encoder: SentenceEncoder,
        recalibrate: bool = False,
        search: Search | None = None,
        force: bool = False,
    ) -> Self:
        """Open an index with the encoder and the calibrator that made its embeddings.

        Args:
            path: File that ``create`` wrote.
            encoder: Raw or calibrated. An index that has fitted a calibrator of its own takes the raw one.
            recalibrate: If the calibrator is another one, send the raw embeddings through it instead of refusing it.
            search: How to search, as for ``create``.
            force: Accept an encoder that differs in what ``bertflow.encoder.identity.RULES`` refuses.

        Raises:
            DataError: If there is no index, or its embeddings are by another encoder or calibrator.
        """
        storage, do = Storage(Path(path)), "Open it with the encoder that it was built with, or build it again."
        try:
            index = cls(storage, encoder if recalibrate else with_own(storage, encoder), search)
            held, given = index.identity, index.encoder.identity
            held.raw.require(given.raw, f"{index.path} holds embeddings by", do, force)
            if recalibrate and held.differences(given):
                index._recalibrate()
            if not force:
                index._require_same_calibrator()
        except DataError:
            storage.close()
            raise
        return index

    def __len__(self) -> int:
        """The number of answers."""
        return self._storage.count("answers")

    def __contains__(self, name: str) -> bool:
        return bool(self._storage.known([name]))

    def close(self) -> None:
        """Close the file."""
        self._storage.close()

    @property
    def identity(self) -> Identity:
        """The encoder and calibrator that made the embeddings."""
        return Identity.from_record(self._storage.facts())

    def held(self, questions: Sequence[str]) -> int:
        """How many of some questions are in the index themselves."""
        keys = {text_key(text) for answer in self.answers() for text in answer.phrases}
        return sum(text_key(question) in keys for question in questions)

    def answers(self) -> list[Answer]:
        """All answers, in the order they came."""
        with self._storage.snapshot():
            return list(self._storage.answers())

    def texts(self) -> list[str]:
        """The own texts of all answers."""
        return [answer.text for answer in self.answers()]

    def add(self, answers: Iterable[Answer], progress: bool | None = None) -> None:
        """Add answers under new ids; all of them or none. What was added already, as it is now, is not added again.

        Raises:
            DataError: If an id is there with another text, occurs twice, or an embedding has length zero.
        """
        self._put(answers, progress)

    def update(self, answers: Iterable[Answer], progress: bool | None = None) -> None:
        """Replace answers by id; all of them or none. Only new phrases are embedded.

        Raises:
            DataError: If an id is unknown, occurs twice, or an embedding has length zero.
        """
        self._put(answers, progress, replace=True)

    def remove(self, names: Iterable[str]) -> None:
        """Remove answers by id; all of them or none; an id that is unknown is refused."""
        names = list(dict.fromkeys(names))
        self._storage.require_known(names)
        with self._storage.transaction():
            self._storage.delete(names)
            self._storage.set_facts({})

    def recalibrate(self, calibrator: AbstractCalibrator | None) -> None:
        """Send the raw embeddings through another calibrator of the same encoder, or none; nothing is encoded again."""
        raw = self.encoder.raw
        self.encoder = raw if calibrator is None else with_another(self._storage, raw, calibrator)
        self._recalibrate()

    def fit(self, calibrator: str) -> None:
        """Fit a calibrator on all texts that are here, and send them through it; nothing is encoded again.

        Raises:
            UsageError: If it is not the spelling of a closed form.
            DataError: If there are too few texts.
        """
        self.encoder = fit_own(self._storage, self.encoder, calibrator)
        self._recalibrate(files_of(self.encoder))

    def remember(self, source: Mapping[str, Any]) -> None:
        """Note how the encoder is opened, for those who open the index again."""
        with self._storage.transaction():
            self._storage.set_facts({"source": dict(source)})

    def _ranked(self, questions: Float64, k: int) -> list[list[Hit]]:
        """The best ``k`` answers for the embeddings (q, dim) of some questions, which have length one."""
        with self._storage.snapshot():
            if (state := self._storage.facts()["state"]) != self._seen:  # another process may have written
                self._require_same_calibrator()
                self._search.refresh(self._storage)
                self._seen = state
            if not len(self):
                return [[] for _ in questions]
            found = self._search.candidates(questions, k)
            return [rank(self._storage, row, numbers, k) for row, numbers in zip(questions, found, strict=True)]

    def phrases(self, raw: bool = False) -> Phrases:
        """All embeddings in memory in float64, to score the ranking; ``raw`` for those without the calibrator."""
        with self._storage.snapshot():
            return Phrases.read(self._storage, raw, np.float64)

    def _require_same_calibrator(self) -> None:
        """Another process may have calibrated the index again since it was opened."""
        do = "Open it with that calibrator, or calibrate it again (recalibrate): its raw embeddings are kept."
        self.identity.require(self.encoder.identity, f"{self.path} holds embeddings by", do)

    def _put(self, answers: Iterable[Answer], progress: bool | None, replace: bool = False) -> None:
        """Embed answers, except known phrases, then write them: other writers wait only for the writing."""
        answers = list(answers)
        names = [answer.id for answer in answers]
        twice = [name for name, times in Counter(names).items() if times > 1]
        refuse_ids(twice, "given twice. Give each answer an id of its own.")
        known = self._storage.known(names)
        if replace:
            self._storage.require_known(names)
        elif known:
            held = {answer.id: answer.phrases for answer in self.answers()}
            if all(held.get(answer.id) == answer.phrases for answer in answers):
                logger.info("%s holds these answers already (%d): there is nothing to add.", self.path, len(answers))
                return
            refuse_ids(known, "there already. Update it, or give the new answer another id.")
        kept = self._storage.raw_of(names, self.encoder.raw.dim)
        x, asked, phrases = embed_phrases(answers, self.encoder.raw, kept, self._chunks, progress)
        z = calibrate_by_role(self.encoder, x, asked)
        if not (lengths := np.linalg.norm(z, axis=1)).all():
            first = int(np.argmin(lengths))
            text = next(text for text, row, _ in chain.from_iterable(phrases.values()) if row == first)
            raise DataError(f"The embedding of {text!r} is all zeros, so it has no cosine. Leave it out.")
        with working("writing the index"), self._storage.transaction():
            self._require_same_calibrator()
            if replace:
                self._storage.delete(names)
            for answer in answers:
                self._storage.insert(answer.id, phrases[answer.id], x, z if self.encoder.calibrator else None)
            self._storage.set_facts({})

    def _recalibrate(self, own: Mapping[str, bytes] | None = None) -> None:
        held, given = self.identity, self.encoder.identity
        with working("calibrating the index"), self._storage.transaction():
            self._storage.keep(CALIBRATOR, own or {})
            for part in self._storage.parts():
                x = self._storage.vectors(part, raw=True)
                asked = self._storage.asked(part)
                z = calibrate_by_role(self.encoder, x, asked) if self.encoder.calibrator else [None] * len(part)
                self._storage.recalibrate(part, z)
            self._storage.set_facts({**given.as_dict(), "dim": self.encoder.dim})
        if held.digest not in ("", given.digest):
            logger.info("%s: the calibrator %s replaces %s.", self.path, given.spelled(), held.spelled())


def require_new_index(path: str | Path) -> Path:
    """The place of a new index; refused if something is there."""
    if Path(path).exists():
        raise UsageError(
            f"{path} exists already. Choose another name, as {new_place(path)}. Or add answers with new ids, from a "
            "table with a column id, by `bertflow search add`."
        )
    require_place(path)
    return Path(path)
