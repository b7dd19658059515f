"""What ``bertflow.fix`` is asked for, and what it has at hand once everything is read: encoder, text and evidence."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np

from bertflow.advise.asking import FEWEST_ASKED, MOST_ASKED
from bertflow.advise.bare_vectors import VectorEncoder
from bertflow.advise.candidates import parse_candidates
from bertflow.advise.evidence import MINED, UNKNOWN_WORDS, Evidence, docstring_evidence, load_evidence
from bertflow.advise.likely import PURPOSES, Shape
from bertflow.advise.reading import Document, Documents, read_documents
from bertflow.advise.reasons import announced
from bertflow.advise.split import SplitText, split_text
from bertflow.breadth import are_few, richness
from bertflow.data.pairs import Pairs
from bertflow.encoder.abstract import SentenceEncoder
from bertflow.encoder.cutting import tokens_per_word, unknown_share
from bertflow.encoder.options import EncoderOptions, given_options
from bertflow.errors import MOST_RESAMPLES, UsageError, require_between, require_seed
from bertflow.evaluation.names import Model, Text, name_of
from bertflow.evaluation.systems import SharedPass
from bertflow.files import file_sha256
from bertflow.opening import load
from bertflow.places import expand
from bertflow.registry import lookup
from bertflow.retrieval.comparing import load_queries
from bertflow.similarity import unit_rows
from bertflow.training import Use
from bertflow.training.auto import LOOKED_AT

FEWEST_RESAMPLES = 100
"""Fewest resamples: with fewer, the ends of a 95 % interval are single draws."""
MATCHED, SHUFFLES = 300, 999
"""Pairs that are compared with shuffled rows, and how often they are shuffled."""
MATCHED_P = 0.01
"""Largest p-value of two columns that are pairs."""
UNKNOWN = (
    "the encoder does not know these words, so it cannot tell them apart. Take an encoder whose tokenizer knows the "
    "language of the text."
)
MOST_TOKENS = 1.5
"""Most tokens of a word that the tokenizer knows: 1.0 to 1.4 in 37 English texts, code among them, 1.6 in English lists
of ingredients and clinical notes, 1.6 to 2.9 in 8 texts that are German, French, Spanish, Italian or half so, by
MiniLM's tokenizer of English."""
IN_PIECES = (
    "{:.1f} tokens for each word of the text (1.0 to 1.4 in a language that the tokenizer knows): the encoder may not "
    "know the language of the text, or its rare words. Compare it with an encoder that was made for such text."
)
VECTORS_ALONE = "no pairs can be made of vectors without their text."


@dataclass(frozen=True)
class Request:
    """What is asked for: the arguments of ``bertflow.fix``."""

    encoder: "Model | None"
    text: Text | None
    columns: str | None
    labels: str | Path | Pairs | None
    queries: Text | None
    purpose: Use
    vectors: str | Path | None
    column: str | None
    query_vectors: str | Path | None
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
    options: EncoderOptions

    def require_usable(self) -> None:
        """Refuse what cannot be used, before anything is read.

        Raises:
            UsageError: For the first option that cannot be used.
        """
        if self.queries is not None and self.vectors is not None:
            raise UsageError("--queries needs an encoder, but --vectors has none. Give --query_vectors instead.")
        for name, instead in {"query_vectors": "queries", "column": "columns"}.items():
            if self.vectors is None and getattr(self, name) is not None:
                raise UsageError(f"--{name} belongs to --vectors, but an encoder was given. Give --{instead} instead.")
        parse_candidates(self.candidates)
        require_between(FEWEST_RESAMPLES, MOST_RESAMPLES, resamples=self.resamples)
        require_between(1, max_sentences=self.max_sentences, max_pairs=self.max_pairs)
        require_between(FEWEST_ASKED, MOST_ASKED, ask=self.ask)
        require_seed(self.seed)
        lookup("purpose", PURPOSES, self.purpose)
        encoder, _ = self.sources
        given = [f"--{name}" for name in given_options(self.options)]
        if self.vectors is not None and (wrong := [*given, *(["an encoder"] if encoder is not None else [])]):
            do = "Leave it out." if given else "Leave it out, or give --keep_vectors instead of --vectors."
            raise UsageError(f"--vectors takes only the text of the vectors, got {wrong[0]}. {do}")

    @property
    def keeps(self) -> bool:
        """Whether only what maps the encoder's own embeddings is advised."""
        return self.keep_vectors or self.vectors is not None

    @property
    def sources(self) -> tuple[Any, Any]:
        """Encoder and text, either of which may be None: `bertflow fix --vectors FILE TEXT` names the text first."""
        swapped = self.vectors is not None and self.text is None
        return (None, self.encoder) if swapped else (self.encoder, self.text)


@dataclass(frozen=True)
class Case:
    """What is at hand.

    Attributes:
        request: What is asked for.
        name: Name of the encoder.
        encoder: The encoder.
        source: The same with several poolings, which share a pass.
        text: Name of the text; empty where vectors have none.
        split: The text.
        queries: Queries without labels, each once; they choose nothing.
        labeled: Evidence that was given.
        evidence: All evidence, the one that decides first.
    """

    request: Request
    name: str
    encoder: SentenceEncoder
    source: SharedPass
    text: str
    split: SplitText
    queries: list[str]
    labeled: list[Evidence]
    evidence: list[Evidence]

    @classmethod
    def read(cls, request: Request) -> Self:
        """Read everything that was named.

        Raises:
            UsageError: If options contradict each other.
            DataError: If a file is damaged, or there is too little text.
        """
        seed, most = request.seed, request.max_sentences + 2 * request.max_pairs + 1
        labeled = [] if request.labels is None else [load_evidence(request.labels, seed)]
        name, encoder, text, documents = _read_all(request, most)
        if (labeled or request.ask) and not text:
            given = "--labels" if labeled else "--ask"
            raise UsageError(f"{given} is about sentences, but vectors alone have none. Give their text, too.")
        queries = encoder.queries if isinstance(encoder, VectorEncoder) else []
        queries = queries if request.queries is None else load_queries(request.queries, seed)
        documents = _with_real_pairs(documents, encoder, request)
        known = [sentence for one in labeled for sentence in one.sentences]
        split = split_text(documents, text or name, known, request.max_sentences, request.max_pairs, seed)
        mined = [Evidence(MINED, split.choosing, split.judging)] if split.choosing and split.judging else []
        # For search, pairs of a query and its text come before other labels.
        search = request.purpose == "search"
        evidence = sorted([*labeled, *mined], key=lambda one: search and one.choosing.kind != "retrieval")
        return cls(request, name, encoder, SharedPass(encoder), text, split, queries, labeled, evidence)

    @cached_property
    def own(self) -> SentenceEncoder:
        """The encoder with its own pooling."""
        return self.source.pooled(self.source.own_pooling)

    @property
    def labels_sha256(self) -> str:
        """Digest of the file of labels; empty where there is none, or other evidence decided."""
        labels = self.request.labels
        path = expand(labels) if isinstance(labels, str | Path) else None
        return file_sha256(path) if path and path.is_file() and not self.evidence[0].mined else ""

    @cached_property
    def words(self) -> float:
        """Number of different words of the text in 5,000."""
        return richness(self.split.read)

    @property
    def doubtful(self) -> bool:
        """Whether something may speak against a map that is fitted to the text: few words, or queries."""
        return are_few(self.words) or bool(self.queries)

    @cached_property
    def general(self) -> Shape | None:
        """The shape of the encoder on docstrings; None if it does not know their words."""
        docstrings = docstring_evidence(self.encoder)
        return None if docstrings is None else Shape.of(self.source, docstrings.sentences)

    @property
    def missing(self) -> str:
        """Why there are no mined pairs, if there are none."""
        return self.split.without_pairs if self.text else VECTORS_ALONE

    @cached_property
    def sentences(self) -> list[str]:
        """All sentences that are encoded, each once; those to fit on come first."""
        judging = (sentence for one in self.evidence for sentence in one.sentences)
        return list(dict.fromkeys([*self.split.fitted, *self.split.reference, *self.split.whole, *judging]))

    @property
    def lines(self) -> list[str]:
        """What is worth reading before anything is encoded."""
        pooling, split, request = self.encoder.describe().get("pooling", "as given"), self.split, self.request
        others = split.judged.replace("sentences", "others")
        return [
            f"encoder   {self.name}, {pooling}, width {self.own.dim}",
            f"text      {len(split.fitted):,} sentences to fit on, {len(split.whole):,} {others} for thresholds",
            f"evidence  {announced(self.evidence, self.missing, request.purpose, request.vectors is not None)}",
            *self.about_text,
        ]

    @cached_property
    def about_text(self) -> list[str]:
        """Which columns are read, how the rows add up, and whether the encoder knows the words."""
        return [
            *([f"columns   {self.split.columns}"] if self.split.columns else []),
            f"rows      {self.split.counted}",
            *([f"unknown   {self.unread}"] if self.unread else []),
        ]

    @cached_property
    def unread(self) -> str:
        """How much of the text the encoder does not know, or knows only as pieces of words; empty for little."""
        if (share := unknown_share(self.encoder, self.split.fitted)) > UNKNOWN_WORDS:
            return f"{100 * share:.0f} % of the tokens of the text are [UNK]: {UNKNOWN}"
        pieces = tokens_per_word(self.encoder, self.split.fitted[:LOOKED_AT])
        return IN_PIECES.format(pieces) if pieces > MOST_TOKENS else ""


def _read_all(request: Request, most: int) -> tuple[str, SentenceEncoder, str, Documents]:
    """Open and read everything before anything is computed; of vectors without text, ``most`` at random.

    Returns:
        Name of the encoder, the encoder, name of the text (empty where vectors have no text), and its documents.
    """
    encoder, text = request.sources
    if request.vectors is None:
        name, opened = _opened(encoder, request.options)
        documents = read_documents(text, request.columns)
    else:
        documents = Documents([]) if text is None else read_documents(text, request.columns, whole_lines=True)
        read = [line for document in documents for line in document.sentences]
        given = read if isinstance(text, str | Path) else None if text is None else [*filter(str.strip, text)]
        asked = None if request.query_vectors is None else Path(request.query_vectors)
        own = (given, most, request.seed, asked, request.column)
        name, opened = str(request.vectors), VectorEncoder(Path(request.vectors), *own)
        documents = documents or Documents((Document((one,)) for one in opened.sentences), unit="vectors")
    return name, opened, Path(text).name if isinstance(text, str | Path) else "" if text is None else "text", documents


def _opened(encoder: Model, options: EncoderOptions) -> tuple[str, SentenceEncoder]:
    """An encoder that is not calibrated yet, and its name."""
    name, opened = name_of(encoder), load(encoder, **options)
    if opened.calibrator is not None:
        calibrator = opened.describe()["calibrator"]
        raise UsageError(f"{name} is already calibrated by {calibrator}. Give the encoder without its calibrator.")
    return name, opened


def _with_real_pairs(documents: Documents, encoder: SentenceEncoder, request: Request) -> Documents:
    """The documents; only one of their columns if two that were found by their text are not pairs."""
    columns = documents.columns
    if columns is None or not columns.alone:
        return documents
    pairs = [pair for document in documents for pair in document.pairs]
    p = matched_p(encoder, pairs, request.seed)
    if p < MATCHED_P:
        return documents
    assert isinstance(request.text, str | Path), "a table"
    alone = read_documents(request.text, columns.alone)
    assert alone.columns is not None, "of a table"
    which = " and ".join(columns.names)
    note = f"; {which} are not used as pairs: their rows are not more alike than shuffled ones (p = {p:.2g})"
    alone.columns = replace(alone.columns, note=note)
    return alone


def matched_p(encoder: SentenceEncoder, pairs: Sequence[tuple[str, str]], seed: int) -> float:
    """How often shuffled rows have a mean cosine as high as that of the pairs: a permutation test's p-value."""
    if not pairs:
        return 1.0
    rng = np.random.default_rng(seed)
    some = [pairs[row] for row in rng.permutation(len(pairs))[:MATCHED]]
    queries, texts = ([pair[side] for pair in some] for side in (0, 1))
    cosines = unit_rows(encoder.encode_query(queries)) @ unit_rows(encoder.encode(texts)).T
    places = np.arange(len(some))
    shuffled = np.array([cosines[places, rng.permutation(len(some))].mean() for _ in range(SHUFFLES)])
    return float(1 + (shuffled >= cosines.diagonal().mean()).sum()) / (1 + SHUFFLES)
