"""What the benchmarks of quality are made of: the stand-ins, the text to fit on, and their embeddings.

A stand-in is an encoder with a pooling; "inner layers of a tuned MiniLM standing in for a raw BERT" is all that four of
them are. Each set of sentences is embedded once for all poolings of an encoder, and kept in a folder.

    fitted on      transductive   the distinct sentences of the scored task itself
                   inductive      a mixture of four kinds of text that holds no evaluated sentence, by key
                   docstrings     sentences of docstrings; the retrieval pairs are not among them
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from closed_forms import applied
from numpy.typing import NDArray

from bertflow.correlation import spearman
from bertflow.data.corpus import load_sentences
from bertflow.data.docstrings import docstring_corpus
from bertflow.data.docstrings import sentences as sentences_of
from bertflow.data.pairs import Pairs, unique_sentences
from bertflow.data.sts import load_sts
from bertflow.data.sts_tasks import SUITES, TASKS
from bertflow.encoder.embedded import embedded_encoder
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.evaluation.figures import ScoredTask, right_ranks
from bertflow.similarity import SIMILARITIES
from bertflow.text_keys import text_key

Vectors = NDArray[np.float32]
FIRST_OF_EACH_LINE = {"text/wikisplit_tune.tsv.gz", "text/wikisplit_validation.tsv.gz", "text/wikisplit_test.tsv.gz"}
MIXTURE: Mapping[str, Sequence[str]] = {
    "common voice": ("text/commonvoice_en_sentences.txt.gz",),
    "books": ("text/books_paragraphs.txt.gz",),
    "wikisplit": tuple(sorted(FIRST_OF_EACH_LINE)),
    "nli": (
        "nli/snli_dev.tsv.gz",
        "nli/snli_test.tsv.gz",
        "nli/conjnli_adversarial_train_15k.tsv.gz",
        "nli/conjnli_dev.tsv.gz",
        "nli/cad_nli_train.tsv.gz",
        "nli/cad_nli_dev.tsv.gz",
        "nli/cad_nli_test.tsv.gz",
    ),
}
"""Kinds of text and their files."""


@dataclass(frozen=True)
class StandIn:
    """An encoder with a pooling, and the same layers pooled by smooth inverse frequency, hard and soft."""

    encoder: str
    pooling: str
    sif: str

    @property
    def mean(self) -> str:
        """The plain mean of its layers."""
        return self.sif.replace("sif", "mean")

    @property
    def soft(self) -> str:
        """The soft version of ``sif``."""
        return f"soft-{self.sif}"


STAND_INS: Mapping[str, StandIn] = {
    "L0": StandIn("minilm", "mean(0)", "sif(0)"),
    "L1L2": StandIn("minilm", "mean(1,2)", "sif(1,2)"),
    "L3": StandIn("minilm", "mean(3)", "sif(3)"),
    "CLS3": StandIn("minilm", "cls(3)", "sif(3)"),
    "MLM4": StandIn("mlm4", "mean(1,-1)", "sif(1,-1)"),
}
"""Not calibrated yet: a recipe must not lose on these."""
TUNED: Mapping[str, StandIn] = {
    "last": StandIn("minilm", "mean(6)", "sif(6)"),
    "first-last": StandIn("minilm", "mean(1,-1)", "sif(1,-1)"),
}
"""Calibrated already: a recipe must leave these alone, or nearly."""
POOLINGS: Mapping[str, Sequence[str]] = {
    encoder: tuple(
        dict.fromkeys(
            pooling
            for one in (*STAND_INS.values(), *TUNED.values())
            if one.encoder == encoder
            for pooling in (one.pooling, one.sif, one.soft)
        )
    )
    for encoder in ("minilm", "mlm4")
}
"""All that is embedded of each encoder, from one pass."""


def evaluation_keys(data_dir: Path) -> set[str]:
    """Text keys of every sentence that any task here scores."""
    tasks = ("tuning", *SUITES["sts7"])
    return {text_key(sentence) for sentence in unique_sentences(load_sts(task, data_dir / "sts") for task in tasks)}


def mixture(data_dir: Path, each: int = 6_000, seed: int = 0) -> list[str]:
    """Up to ``each`` sentences of each kind of text, none of them evaluated."""
    generator = np.random.default_rng(seed)
    seen = evaluation_keys(data_dir)
    chosen: list[str] = []
    for files in MIXTURE.values():
        kept = list(_new(_read(data_dir, files), seen))
        chosen += [kept[row] for row in sorted(generator.permutation(len(kept))[:each])]
    return chosen


def _read(data_dir: Path, files: Sequence[str]) -> Iterable[str]:
    for file in files:
        columns = ["1"] if file in FIRST_OF_EACH_LINE else None
        for text in load_sentences(data_dir / file, columns):
            yield from sentences_of(text) if "books" in file else [text]


def _new(sentences: Iterable[str], seen: set[str]) -> Iterable[str]:
    for sentence in sentences:
        key = text_key(sentence)
        if key not in seen:
            seen.add(key)
            yield sentence


def docstrings(n_pairs: int = 2_500, n_sentences: int = 12_000) -> tuple[list[str], Pairs]:
    """Sentences to fit on and pairs to score; the text depends on the versions that are installed."""
    return docstring_corpus(n_pairs, n_sentences)


class Embedder:
    """Embeds sets of sentences by every pooling of the stand-ins' encoders, and keeps what it made.

    Args:
        data_dir: Holds ``encoders/mlm-4x256``.
        cache: Where arrays are kept, by content.
    """

    def __init__(self, data_dir: Path, cache: Path) -> None:
        self.folders = {"minilm": embedded_encoder(), "mlm4": str(data_dir / "encoders" / "mlm-4x256")}
        self.cache = cache
        cache.mkdir(parents=True, exist_ok=True)

    def embed(self, encoder: str, sentences: Sequence[str], counted: Sequence[str]) -> dict[str, Vectors]:
        """Each pooling's embeddings (n, dim) of ``sentences``; ``sif`` counts the tokens of ``counted``."""
        text = "\0".join((encoder, *POOLINGS[encoder], "", *sentences, "", *counted))
        folder = self.cache / hashlib.sha256(text.encode()).hexdigest()[:24]
        if not (folder / "done").exists():
            folder.mkdir(exist_ok=True)
            model = TransformerEncoder(self.folders[encoder], pooling="sif").count_tokens(counted)
            for pooling, x in model.encode_poolings(sentences, POOLINGS[encoder]).items():
                np.save(folder / f"{pooling}.npy", x)
            (folder / "done").touch()
        return {pooling: np.load(folder / f"{pooling}.npy", mmap_mode="r") for pooling in POOLINGS[encoder]}


SETTINGS = ("transductive", "inductive", "docstrings")
"""Two for STS, one for retrieval."""


@dataclass(frozen=True)
class Embedded:
    """What a system is fitted on, and what it is scored on, for one encoder in one setting; by pooling.

    ``scored`` holds the distinct sentences of STS tasks; or queries, and ``texts`` what they must find.
    """

    fitted: Mapping[str, Vectors]
    scored: Mapping[str, Vectors]
    texts: Mapping[str, Vectors] | None = None


class Material:
    """The text of the benchmarks, and its embeddings.

    Args:
        data_dir: Holds ``sts``, ``text``, ``nli`` and ``encoders``.
        cache: Where embeddings are kept.
        tasks: The STS tasks that are scored.
    """

    def __init__(self, data_dir: Path, cache: Path, tasks: Sequence[str]) -> None:
        self.sets = [load_sts(task, data_dir / "sts") for task in tasks]
        self.sentences = unique_sentences(self.sets)
        self.mixture = mixture(data_dir)
        self.docstrings, self.retrieval = docstrings()
        self._embedder = Embedder(data_dir, cache)
        row_of = {sentence: row for row, sentence in enumerate(self.sentences)}
        self._sides = [pairs.rows(row_of) for pairs in self.sets]

    @property
    def folders(self) -> Mapping[str, str]:
        """The models by name."""
        return self._embedder.folders

    def embedded(self, encoder: str, setting: str) -> Embedded:
        """Embeddings of one encoder in one setting."""
        if setting == "docstrings":
            queries, texts = (
                self._embedder.embed(encoder, side, self.docstrings)
                for side in (self.retrieval.first, self.retrieval.second)
            )
            return Embedded(self._embedder.embed(encoder, self.docstrings, self.docstrings), queries, texts)
        counted = self.sentences if setting == "transductive" else self.mixture
        scored = self._embedder.embed(encoder, self.sentences, counted)
        return Embedded(
            scored if setting == "transductive" else self._embedder.embed(encoder, counted, counted), scored
        )

    def scored_tasks(self, systems: Sequence[Vectors]) -> list[ScoredTask]:
        """The STS tasks as k systems see them; each system embeds ``sentences``."""
        return [
            ScoredTask(pairs, "cosine", np.stack([SIMILARITIES["cosine"].paired(x[one], x[two]) for x in systems]))
            for pairs, (one, two) in zip(self.sets, self._sides, strict=True)
        ]

    def sts(self, x: Vectors) -> list[float]:
        """Spearman x 100 of one system, by task; of ``tuning``, by sub-set."""
        return [
            100 * spearman(task.similarities[0][members], task.pairs.target[members])
            for task in self.scored_tasks([x])
            for members in _groups(task.pairs)
        ]

    def score(self, fitted: torch.nn.Module, data: Embedded, pooling: str, width: int | None = None) -> list[float]:
        """Spearman x 100 of each task or sub-set, or hit@1 in percent; of the first ``width`` coordinates."""
        z = applied(fitted, data.scored[pooling])[:, :width]
        if data.texts is None:
            return self.sts(z)
        return [100 * float((right_ranks(z, applied(fitted, data.texts[pooling])[:, :width]) == 1).mean())]


def _groups(pairs: Pairs) -> Iterable[NDArray[np.intp]]:
    """All pairs; or those of each sub-set, where the task's gold scores cannot be ranked together."""
    names = np.array(pairs.subsets)
    together = TASKS[pairs.task].aggregation == "all"
    return [np.arange(len(pairs))] if together else [np.flatnonzero(names == one) for one in dict.fromkeys(names)]
