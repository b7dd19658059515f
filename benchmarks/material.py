"""What the benchmarks of quality are made of: the stand-ins, the text to fit on, and their embeddings.

A stand-in is an encoder with a pooling; "inner layers of a tuned MiniLM standing in for a raw BERT" is all that four of
them are. Each set of sentences is embedded once for all poolings of an encoder, and kept in a folder.

    fitted on      transductive   the distinct sentences of the scored task itself
                   inductive      a mixture of four kinds of text that holds no evaluated sentence, by key
                   docstrings     sentences of docstrings; the retrieval pairs are not among them
    collection     the texts of the retrieval pairs, which is what is searched

The queries are halved once: recipes are chosen on one half and reported on the other, both among all texts.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
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
from bertflow.encoder.batching import TOKEN_BUDGETS, tokenize
from bertflow.encoder.embedded import embedded_encoder
from bertflow.encoder.locating import open_model
from bertflow.encoder.model import BlockStack
from bertflow.encoder.pooling import COUNTED, TOKEN_REDUCTIONS, Pooling, TokenViews, parse_pooling
from bertflow.encoder.seen_text import TokenCounts
from bertflow.evaluation.aggregation import ScoredTask
from bertflow.evaluation.ungraded import right_ranks
from bertflow.files import file_sha256
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
        return self.sif.replace("sif", "soft-sif")


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


PLAIN = ("mean", "cls")
"""How tokens become one vector a layer in all that is embedded, besides by frequency."""
MAX_LENGTH = 128
READ = {".json", ".safetensors", ".bin", ".txt"}
"""What an encoder is read from, in its folder."""


def folders(data_dir: Path) -> dict[str, str]:
    """The two encoders at hand by name."""
    return {"minilm": embedded_encoder(), "mlm4": str(data_dir / "encoders" / "mlm-4x256")}


def evaluation_keys(data_dir: Path) -> set[str]:
    """Text keys of every sentence that any task here scores."""
    tasks = ("tuning", *SUITES["sts7"])
    return {text_key(sentence) for sentence in unique_sentences(load_sts(task, data_dir / "sts") for task in tasks)}


@cache
def mixture(data_dir: Path, each: int = 6_000, seed: int = 0) -> list[str]:
    """Up to ``each`` sentences of each kind of text, none of them evaluated."""
    generator = np.random.default_rng(seed)
    seen = evaluation_keys(data_dir)
    chosen: list[str] = []
    for files in MIXTURE.values():
        kept = list(_new(texts_of(data_dir, files), seen))
        chosen += [kept[row] for row in sorted(generator.permutation(len(kept))[:each])]
    return chosen


def texts_of(data_dir: Path, files: Sequence[str]) -> Iterable[str]:
    """The sentences of some files of ``MIXTURE``."""
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


@cache
def docstrings(n_pairs: int = 2_500, n_sentences: int = 12_000) -> tuple[list[str], Pairs]:
    """Sentences to fit on and pairs to score; the text depends on the versions that are installed."""
    return docstring_corpus(n_pairs, n_sentences)


class LayerPoolings(Mapping[str, Vectors]):
    """Embeddings of the same sentences by pooling: of single layers as they are kept, of several joined from them.

    Args:
        folders: Hold one array a reduction and layer, ``sif(3).npy``.
        blocks: Of the encoder.
    """

    def __init__(self, folders: Sequence[Path], blocks: int) -> None:
        self.folders, self.blocks = folders, blocks

    def __getitem__(self, spelling: str) -> Vectors:
        pooling = parse_pooling(spelling)
        names = [f"{pooling.tokens}({k}).npy" for k in pooling.resolve(self.blocks)]
        found = [np.load(folder / name) for name in names for folder in self.folders if (folder / name).exists()]
        joined: Vectors = np.hstack(found) if pooling.join == "concat" else np.mean(found, axis=0, dtype=np.float32)
        return joined

    def __iter__(self) -> Iterator[str]:
        return (path.stem for folder in self.folders for path in folder.glob("*.npy"))

    def __len__(self) -> int:
        return len(list(iter(self)))


class Embedder:
    """Embeds sets of sentences by every layer of an encoder, and keeps what it made.

    Args:
        data_dir: Holds ``encoders/mlm-4x256``.
        cache: Where arrays are kept, by content.
        more: Names and folders of more encoders.
    """

    def __init__(self, data_dir: Path, cache: Path, more: Mapping[str, str] | None = None) -> None:
        self.folders = {**folders(data_dir), **(more or {})}
        self.cache = cache

    def embed(self, encoder: str, sentences: Sequence[str], *counted: Sequence[str]) -> LayerPoolings:
        """The embeddings of ``sentences`` by pooling; ``sif`` counts the tokens of the first of ``counted``.

        One pass is enough for several texts to count, which may be asked for by themselves afterwards.
        """
        key = _content(Path(self.folders[encoder]))
        place = self.cache / _digest(key, sentences)
        aside = {place / _digest(key, text): text for text in counted}
        if any(not (folder / "done").exists() for folder in (place, *aside)):
            self._write(self.folders[encoder], sentences, place, aside)
        return LayerPoolings([place, *list(aside)[:1]], int((place / "done").read_text()))

    @torch.no_grad()
    def _write(self, model: str, sentences: Sequence[str], place: Path, counted: Mapping[Path, Sequence[str]]) -> None:
        folder = open_model(model)
        layers = range(folder.blocks + 1)
        stack = BlockStack.load(folder, [Pooling(tuple(layers))])
        cut = partial(tokenize, tokenizer=folder.tokenizer, max_length=MAX_LENGTH)
        counts = {at: TokenCounts.of_text(text, cut, len(folder.tokenizer)) for at, text in counted.items()}
        files = [(place, tokens) for tokens in PLAIN] + [(at, tokens) for at in counts for tokens in COUNTED]
        found = {file: np.empty((len(layers), len(sentences), stack.dim), np.float32) for file in files}
        text = cut(sentences)
        for batch in text.batches(TOKEN_BUDGETS["cpu"], folder.pad_id):
            states = stack.read(batch.ids, batch.mask, layers)
            weights = {at: one.weigh(batch.ids, batch.content, COUNTED) for at, one in counts.items()}
            for at, tokens in files:
                views = TokenViews(batch.mask, batch.content, weights.get(at))
                for k in layers:
                    found[at, tokens][k, batch.rows] = TOKEN_REDUCTIONS[tokens](states[k].float(), views).numpy()
        for (at, tokens), arrays in found.items():
            at.mkdir(parents=True, exist_ok=True)
            for k, x in enumerate(arrays):
                np.save(at / f"{tokens}({k}).npy", x)
        for at in (place, *counts):
            (at / "done").write_text(str(folder.blocks))


@cache
def _content(folder: Path) -> str:
    """Fingerprint of a model's files: a name may come to stand for another model."""
    return file_sha256(*sorted(path for path in folder.iterdir() if path.suffix in READ))


def _digest(encoder: str, sentences: Sequence[str]) -> str:
    return hashlib.sha256("\0".join((encoder, *sentences)).encode()).hexdigest()[:24]


SETTINGS = ("transductive", "inductive", "docstrings")
"""Two for STS, one for retrieval."""
SEARCHED = ("collection", "docstrings")
"""Settings for retrieval: fitted on the searched texts themselves, or on other sentences of their kind."""


def halves(n: int) -> Mapping[str, NDArray[np.intp]]:
    """Rows of the ``choosing`` and of the ``reporting`` queries, of ``n``."""
    order = np.random.default_rng(0).permutation(n)
    return {"choosing": np.sort(order[: n // 2]), "reporting": np.sort(order[n // 2 :])}


@dataclass(frozen=True)
class Embedded:
    """What a system is fitted on, and what it is scored on, for one encoder in one setting; by pooling.

    ``scored`` holds the distinct sentences of STS tasks; or queries, and ``texts`` what they must find. ``queries`` are
    the rows of those that count; all by default.
    """

    fitted: Mapping[str, Vectors]
    scored: Mapping[str, Vectors]
    texts: Mapping[str, Vectors] | None = None
    queries: NDArray[np.intp] | None = None

    def hits(self, z: Vectors, texts: Vectors) -> NDArray[np.bool_]:
        """Which of the queries find their text first; both embedded by one system."""
        found = right_ranks(z, texts) == 1
        return found if self.queries is None else found[self.queries]


class Material:
    """The text of the benchmarks, and its embeddings.

    Args:
        data_dir: Holds ``sts``, ``text``, ``nli`` and ``encoders``.
        cache: Where embeddings are kept.
        tasks: The STS tasks that are scored.
        half: Of the retrieval queries, by name; all by default.
        more: Names and folders of more encoders.
    """

    def __init__(
        self,
        data_dir: Path,
        cache: Path,
        tasks: Sequence[str],
        half: str | None = None,
        more: Mapping[str, str] | None = None,
    ) -> None:
        self.sets = [load_sts(task, data_dir / "sts") for task in tasks]
        self.sentences = unique_sentences(self.sets)
        self.data_dir = data_dir
        self.docstrings, self.retrieval = docstrings()
        self._queries = halves(len(self.retrieval))[half] if half else None
        self._embedder = Embedder(data_dir, cache, more)
        row_of = {sentence: row for row, sentence in enumerate(self.sentences)}
        self._sides = [pairs.rows(row_of) for pairs in self.sets]

    @cached_property
    def mixture(self) -> list[str]:
        """Text of other kinds, read when it is first asked for."""
        return mixture(self.data_dir)

    @property
    def folders(self) -> Mapping[str, str]:
        """The models by name."""
        return self._embedder.folders

    def embedded(self, encoder: str, setting: str) -> Embedded:
        """Embeddings of one encoder in one setting."""
        embed, (queries, texts) = partial(self._embedder.embed, encoder), (self.retrieval.first, self.retrieval.second)
        if setting in SEARCHED:
            first, second = (self.docstrings, texts) if setting == "docstrings" else (texts, self.docstrings)
            sides = (embed(side, first, second) for side in (queries, texts))
            return Embedded(embed(first, first), *sides, self._queries)
        counted, other = self.sentences, self.mixture
        if setting == "inductive":
            counted, other = other, counted
        return Embedded(embed(counted, counted), embed(self.sentences, counted, other))

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

    def score(self, fitted: torch.nn.Module, data: Embedded, pooling: str) -> list[float]:
        """Spearman x 100 of each task or sub-set, or hit@1 in percent."""
        z = applied(fitted, data.scored[pooling])
        if data.texts is None:
            return self.sts(z)
        return [100 * float(data.hits(z, applied(fitted, data.texts[pooling])).mean())]


def _groups(pairs: Pairs) -> Iterable[NDArray[np.intp]]:
    """All pairs; or those of each sub-set, where the task's gold scores cannot be ranked together."""
    names = np.array(pairs.subsets)
    together = TASKS[pairs.task].aggregation == "all"
    return [np.arange(len(pairs))] if together else [np.flatnonzero(names == one) for one in dict.fromkeys(names)]
