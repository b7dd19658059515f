"""What ``bertflow.fix`` is asked for, and what it has at hand once everything is read: encoder, text and evidence."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Self, get_args

from bertflow.advise.asking import FEWEST_ASKED, MOST_ASKED
from bertflow.advise.candidates import parse_candidates
from bertflow.advise.evidence import MINED, Evidence, announced, load_evidence
from bertflow.advise.reading import SplitText, read_all, split_text
from bertflow.calibration.spelling import SystemSpec
from bertflow.data.pairs import Pairs
from bertflow.encoder.abstract import SentenceEncoder
from bertflow.errors import MOST_RESAMPLES, UsageError, require_between, require_seed
from bertflow.evaluation.systems import SharedPass
from bertflow.opening import LoadOptions
from bertflow.registry import lookup
from bertflow.training.purpose import Purpose

FEWEST_RESAMPLES = 100
"""Fewest resamples: with fewer, the ends of a 95 % interval are single draws."""
VECTORS_ALONE = "no pairs can be made of vectors without their text."


@dataclass(frozen=True)
class Request:
    """What is asked for: the arguments of ``bertflow.fix``."""

    encoder: str | Path | SentenceEncoder | None
    text: str | Path | Sequence[str] | None
    columns: str | None
    labels: str | Path | Pairs | None
    purpose: Purpose
    vectors: str | Path | None
    keep_vectors: bool
    ask: int | None
    candidates: str | None
    max_sentences: int
    max_pairs: int
    resamples: int
    seed: int
    without_text_hashes: bool
    progress: bool | None
    say: Callable[[str], None]
    options: LoadOptions

    def require_usable(self) -> None:
        """Refuse what cannot be used, before anything is read.

        Raises:
            UsageError: For the first option that cannot be used.
        """
        parse_candidates(self.candidates)
        require_between(FEWEST_RESAMPLES, MOST_RESAMPLES, resamples=self.resamples)
        require_between(1, max_sentences=self.max_sentences, max_pairs=self.max_pairs)
        require_between(FEWEST_ASKED, MOST_ASKED, ask=self.ask)
        require_seed(self.seed)
        lookup("purpose", dict.fromkeys(get_args(Purpose)), self.purpose)

    @cached_property
    def rows(self) -> list[SystemSpec]:
        """The candidates to try."""
        return parse_candidates(self.candidates)

    @property
    def keeps(self) -> bool:
        """Whether only what maps the encoder's own embeddings is advised."""
        return self.keep_vectors or self.vectors is not None


@dataclass(frozen=True)
class Case:
    """What is at hand.

    Attributes:
        name: Name of the encoder.
        encoder: The encoder.
        source: The same with several poolings, which share a pass.
        text: Name of the text; empty where vectors have none.
        split: The text.
        labelled: Evidence that was given.
        evidence: All evidence, the one that decides first.
    """

    name: str
    encoder: SentenceEncoder
    source: SharedPass
    text: str
    split: SplitText
    labelled: list[Evidence]
    evidence: list[Evidence]

    @classmethod
    def read(cls, request: Request) -> Self:
        """Read everything that was named.

        Raises:
            UsageError: If options contradict each other.
            DataError: If a file is damaged, or there is too little text.
        """
        seed, most = request.seed, request.max_sentences + 2 * request.max_pairs + 1
        labelled = [] if request.labels is None else [load_evidence(request.labels, seed)]
        name, encoder, text, documents = read_all(
            request.encoder, request.text, request.columns, request.vectors, request.options, most, seed
        )
        if (labelled or request.ask) and not text:
            given = "labels are" if labelled else "ask is"
            raise UsageError(f"{given} about sentences, and vectors alone have none. Give the text of the vectors.")
        known = [sentence for one in labelled for sentence in one.sentences]
        split = split_text(documents, text or name, known, request.max_sentences, request.max_pairs, seed)
        mined = [Evidence(MINED, split.choosing, split.judging)] if split.choosing and split.judging else []
        # For search, pairs of a query and its text come before other labels.
        search = request.purpose == "search"
        evidence = sorted([*labelled, *mined], key=lambda one: search and one.choosing.kind != "retrieval")
        return cls(name, encoder, SharedPass(encoder), text, split, labelled, evidence)

    @cached_property
    def own(self) -> SentenceEncoder:
        """The encoder with its own pooling."""
        return self.source.pooled(self.source.own_pooling)

    @property
    def missing(self) -> str:
        """Why there are no mined pairs, if there are none."""
        return self.split.without_pairs if self.text else VECTORS_ALONE

    @cached_property
    def sentences(self) -> list[str]:
        """All that are encoded, each once; those to fit on come first."""
        judging = (sentence for one in self.evidence for sentence in one.sentences)
        return list(dict.fromkeys([*self.split.fitted, *self.split.reference, *judging]))

    def lines(self, bare: bool) -> list[str]:
        """What is worth reading before anything is encoded; ``bare`` vectors have no encoder."""
        pooling, split = self.encoder.describe().get("pooling", "as given"), self.split
        aside = f"put aside: {len(split.reference):,} for random pairs"
        return [
            f"encoder   {self.name}, {pooling}, width {self.own.dim}",
            f"text      {len(split.fitted):,} sentences to fit on; {aside}",
            f"evidence  {announced(self.evidence, self.missing, bare)}",
        ]
