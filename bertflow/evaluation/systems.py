"""From what a user names to the systems that are scored.

For each distinct encoder among what is named there are the baselines that are asked for. Its poolings share a pass:
each sentence goes through the transformer once for all of them. What was embedded is kept in memory: a few ten thousand
sentences, not a corpus.

Then both sides of pairs go through the systems, each distinct text once. Embeddings that are not finite, and zeros
under the cosine, have no similarity, so they are refused.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from typing_extensions import Unpack

from bertflow.calibrated import CalibratedEncoder, encode_systems
from bertflow.calibration.spelling import RAW, STATIC, SystemSpec
from bertflow.data.pairs import Pairs, unique_sentences
from bertflow.encoder.abstract import AbstractEncoder, Float32, Role, SentenceEncoder
from bertflow.encoder.learned import AbstractLearner
from bertflow.encoder.static import StaticEncoder
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.errors import DataError, UsageError
from bertflow.evaluation.names import Model, name_of
from bertflow.evaluation.rows import FittedText
from bertflow.opening import WORD_VECTOR_FILE, LoadOptions, find, load
from bertflow.registry import lookup
from bertflow.similarity import SIMILARITIES

ASKING = ("retrieval", "candidates")
"""Kinds of pairs whose first texts are queries."""


class SharedPass:
    """An encoder with several poolings, which all remember what any of them was asked for.

    Args:
        encoder: Raw, or calibrated: then its raw encoder is shared.
        name: Its name in tables; that of the encoder by default.

    Attributes:
        own: The raw encoder, with its own pooling.
        calibrator: What follows it; None for a raw encoder.
        recipe: The arguments that open it; None if it is not a transformer.
        encoders: The encoders by their poolings, which remember nothing.
    """

    def __init__(self, encoder: SentenceEncoder, name: str = "") -> None:
        self.name = name or name_of(encoder)
        self.own, self.calibrator = encoder.raw, encoder.calibrator
        self._recipe: Mapping[str, Any] = getattr(self.own, "recipe", None) or {}
        self.recipe = self._recipe if isinstance(self.own, TransformerEncoder) else None
        self.own_pooling = str(self._recipe.get("pooling", ""))
        self.encoders = {self.own_pooling: self.own}
        self._rows: dict[Role, dict[str, dict[str, Float32]]] = {"document": {}, "query": {}}

    def pooled(self, pooling: str, corpus: list[str] | None = None) -> SentenceEncoder:
        """The encoder with ``pooling``; all poolings should be asked for before the first sentence is embedded.

        Args:
            pooling: A spelling.
            corpus: Text in which ``sif`` counts tokens, if the encoder has no counts of its own.

        Raises:
            UsageError: If the encoder has no such pooling.
        """
        if pooling not in self.encoders:
            if not self._recipe:
                raise UsageError(
                    f"A {type(self.own).__name__} has one pooling, got {pooling!r}. Give an encoder by name."
                )
            self.encoders[pooling] = (
                self.own.with_pooling(pooling)
                if isinstance(self.own, TransformerEncoder)
                else load(**{**self._recipe, "pooling": pooling})
            )
            for rows in self._rows.values():
                rows.clear()
        encoder = self.encoders[pooling]
        if corpus is not None and isinstance(encoder, AbstractLearner):
            encoder.count_missing(corpus)
        return PooledEncoder(self, pooling, encoder) if isinstance(encoder, TransformerEncoder) else encoder

    def embed(self, sentences: Sequence[str], pooling: str, role: Role, progress: bool | None) -> Float32:
        """Embeddings (n, dim) by one pooling; new sentences are embedded by all of them."""
        rows = self._rows[role if "query_prompt" in self.own.describe() else "document"]
        new = [sentence for sentence in dict.fromkeys(sentences) if sentence not in rows]
        if new:
            found: dict[str, NDArray[np.float32]] = {}
            for encoder, poolings in self._passes():
                found |= encoder.encode_poolings(new, poolings, progress, role)
            rows.update({sentence: {name: x[row] for name, x in found.items()} for row, sentence in enumerate(new)})
        return np.array([rows[sentence][pooling] for sentence in sentences], dtype=np.float32)

    def _passes(self) -> list[tuple[TransformerEncoder, list[str]]]:
        """Which encoder does which poolings: one pass for all, unless ``sif`` has several sets of counts."""
        by_counts: dict[str, list[str]] = {}
        encoders = {name: one for name, one in self.encoders.items() if isinstance(one, TransformerEncoder)}
        for name, encoder in encoders.items():
            by_counts.setdefault(encoder.describe().get("token_counts", ""), []).append(name)
        uncounted = by_counts.pop("", [])
        first, *others = list(by_counts.values()) or [[]]
        return [(encoders[group[0]], group) for group in (first + uncounted, *others)]


class PooledEncoder(AbstractEncoder):
    """One pooling of a ``SharedPass``, as a ``SentenceEncoder``."""

    def __init__(self, shared: SharedPass, pooling: str, encoder: TransformerEncoder) -> None:
        self._shared, self._pooling, self._encoder = shared, pooling, encoder
        self.dim = encoder.dim

    def _encode(self, sentences: list[str], role: Role, progress: bool | None, batch_size: int | None) -> Float32:
        return self._shared.embed(sentences, self._pooling, role, progress).reshape(-1, self.dim)

    def describe(self) -> dict[str, Any]:
        """The encoder's description with this pooling."""
        return self._encoder.describe()

    def fitted_hashes(self) -> NDArray[np.uint64] | None:
        """The text whose tokens were counted, for ``sif``."""
        return self._encoder.fitted_hashes()


def remembering(encoder: SentenceEncoder) -> SentenceEncoder:
    """The same encoder; a transformer remembers what it embedded, for both its raw and its calibrated embeddings."""
    shared = SharedPass(encoder)
    raw = shared.pooled(shared.own_pooling)
    return raw if encoder.calibrator is None else CalibratedEncoder(raw, encoder.calibrator, force=True)


def takes_options(model: Model, revision: str | None = None) -> bool:
    """Whether options open a system: what is calibrated and word vectors only take the device."""
    if not isinstance(model, str | Path):
        return model.calibrator is None and isinstance(model.raw, TransformerEncoder)
    kind = find(str(model), revision)[1]
    return not (kind.calibrated or kind.called == WORD_VECTOR_FILE)


def open_system(model: Model, name: str = "", **options: Unpack[LoadOptions]) -> SharedPass:
    """Open what ``bertflow.load`` opens; an encoder is taken as it is.

    Args:
        model: A hub id, a folder or a file; or an encoder.
        name: Its name in tables; by default that of its folder, or what the encoder says.
        options: Of ``bertflow.load``; what is calibrated and word vectors only take the device.

    Raises:
        UsageError: If it cannot be opened with these options.
        DataError: If it is missing, incomplete or damaged.
    """
    if not isinstance(model, str | Path):
        return SharedPass(model, name)
    if not takes_options(model, options.get("revision")):
        options = {"device": options.get("device")}
    return SharedPass(load(model, **options), name or name_of(model))


def _pooled(system: SharedPass, spec: SystemSpec, corpus: list[str] | None) -> SentenceEncoder:
    """The encoder that a baseline is built on."""
    if spec.pooling not in STATIC:
        pooling = system.own_pooling if spec.pooling is None else spec.pooling_for(system.own_pooling)
        return system.pooled(pooling, corpus)
    assert system.recipe is not None, "only transformers have static baselines"
    place = {name: system.recipe[name] for name in ("model", "max_length", "revision")}
    static = load(**place, pooling=spec.pooling)
    assert isinstance(static, StaticEncoder), "a static pooling"
    return static.count_tokens(corpus) if spec.counts and corpus is not None else static


def build_systems(
    opened: Sequence[SharedPass],
    baselines: Sequence[SystemSpec],
    corpus: list[str] | None,
    progress: bool | None = None,
    text: list[str] | None = None,
) -> dict[str, SentenceEncoder]:
    """The systems to score, by the names they have in tables.

    Args:
        opened: What the user named.
        baselines: Baselines of each distinct encoder among them.
        corpus: Text to fit the baselines on. None: each text that a calibrator in ``opened`` was fitted on has
            baselines of its own, refitted from its moments.
        progress: Whether to show a progress bar (default: in a terminal or a notebook).
        text: Instead of ``corpus``, for the baselines that moments are not enough for.

    Raises:
        UsageError: If there is nothing to fit a baseline on, two systems have one name, or there is no transformer
            whose word embeddings could be averaged.
    """
    static = [baseline.spelling for baseline in baselines if baseline.pooling in STATIC]
    if static and all(one.recipe is None for one in opened):
        raise UsageError(f"{static[0]} averages the word embeddings of a transformer, but none is given. Leave it out.")
    groups: dict[str, list[SharedPass]] = {}
    for one in opened:
        groups.setdefault(one.own.identity.key, []).append(one)
    systems: dict[str, SentenceEncoder] = {}
    for group in groups.values():
        for label, system in _systems_of(group, len(groups) > 1, baselines, corpus, progress, text):
            if label in systems:
                raise UsageError(f"Two systems would be called {label!r}. Name one as NAME=path, or leave one out.")
            systems[label] = system
    return systems


def _systems_of(
    group: Sequence[SharedPass],
    several: bool,
    baselines: Sequence[SystemSpec],
    corpus: list[str] | None,
    progress: bool | None,
    text: list[str] | None,
) -> Iterator[tuple[str, SentenceEncoder]]:
    """What is scored on one encoder, one of ``several``: baselines first, then what is calibrated already."""
    first, raw = min(group, key=lambda one: one.name), SystemSpec(RAW)
    calibrators = {one.name: one.calibrator for one in group if one.calibrator is not None}
    # One calibrator for each text that was fitted on, whatever the order in which the systems were named.
    fits = {FittedText.of(calibrators[name]): (name, calibrators[name]) for name in sorted(calibrators, reverse=True)}
    of = f" of {first.name}" if several else ""
    wanted = dict.fromkeys(([raw] if len(calibrators) < len(group) else []) + list(baselines))
    known = text if corpus is None else corpus
    own = _pooled(first, raw, known)
    # Word vectors are static already. All poolings are opened before the first one embeds.
    encoders = {one: _pooled(first, one, known) for one in wanted if one.pooling not in STATIC or first.recipe}
    for spec, encoder in encoders.items():
        from_moments = corpus is None and spec.calibrator is not None
        if text is not None:
            from_moments = from_moments and spec.refittable and bool(fits)
        if known is None:
            require_fitted_on(spec, bool(fits))
        if from_moments:
            for name, calibrator in fits.values():
                label = f"{spec.spelling} of {name}" if several or len(fits) > 1 else spec.spelling
                yield label, CalibratedEncoder(encoder, spec.refitted(calibrator))
        elif known is not None and spec.calibrator is not None:
            fitted = CalibratedEncoder(encoder, spec.make().fit_sentences(encoder, known, progress))
            yield spec.spelling + of, fitted
        else:
            yield spec.spelling + of, encoder
    for one in group:
        if one.calibrator is not None:
            yield one.name, CalibratedEncoder(own, one.calibrator)


def require_fitted_on(spec: SystemSpec, refits: bool) -> None:
    """Refuse a baseline that needs text where there is none; ``refits`` are moments of a calibrator to fit it from.

    Raises:
        UsageError: If it counts tokens, or has a calibrator that moments are not there for.
    """
    if spec.counts or (spec.calibrator is not None and (spec.pooling is not None or not refits)):
        raise UsageError(
            f"{spec.spelling} needs text to be fitted on. Give a file with fit_on, or eval for the scored sentences."
        )


def _has_queries(system: SentenceEncoder, pairs: Pairs) -> bool:
    """Whether the first texts have another prompt than the second ones."""
    return pairs.kind in ASKING and "query_prompt" in system.identity.facts


def pair_cosines(encoder: SentenceEncoder, pairs: Pairs, progress: bool | None = None) -> NDArray[np.float64]:
    """The cosine (n,) of each pair; the first texts of retrieval are queries."""
    sentences = pairs.sentences
    first, second = pairs.rows(row_numbers(sentences))
    x = encoder.encode(sentences, progress=progress)
    asked = encoder.encode_query(sentences, progress=progress) if _has_queries(encoder, pairs) else x
    return SIMILARITIES["cosine"].paired(asked[first], x[second])


def encode_sets(
    systems: Mapping[str, SentenceEncoder],
    sets: Sequence[Pairs],
    similarity: str = "cosine",
    progress: bool | None = None,
) -> Iterator[Iterator[tuple[str, Float32, Float32]]]:
    """Embeddings of the pairs of several tasks by several systems; systems that are alike share one pass.

    Yields:
        For each task, for each system: its name and the embeddings of the first and the second texts, each (n, dim).

    Raises:
        UnknownNameError: For an unknown similarity.
        DataError: For an embedding that has no such similarity.
    """
    lookup("similarity", SIMILARITIES, similarity)
    sentences = unique_sentences(sets)
    rows = row_numbers(sentences)
    embeddings = encode_systems(systems, sentences, progress=progress)
    asking = {name: one for name, one in systems.items() if any(_has_queries(one, pairs) for pairs in sets)}
    queries = encode_systems(asking, sentences, progress, role="query")
    return (
        checked_sides(pairs, pairs.rows(rows), embeddings, queries if pairs.kind in ASKING else {}, similarity)
        for pairs in sets
    )


def checked_sides(
    pairs: Pairs,
    rows: NDArray[np.intp],
    embeddings: Mapping[str, Float32],
    queries: Mapping[str, Float32],
    similarity: str = "cosine",
) -> Iterator[tuple[str, Float32, Float32]]:
    """For each system, both sides of the pairs; refused if they have no such similarity.

    Args:
        pairs: The pairs.
        rows: Of both sides (2, n) in the embeddings.
        embeddings: By system.
        queries: The embeddings of first texts that are queries, of the systems that have a prompt for them.
        similarity: A row of ``SIMILARITIES``.

    Raises:
        DataError: For the first embedding that is not finite, or has length zero where the cosine is asked for.
    """
    for name, x in embeddings.items():
        first, second = queries.get(name, x)[rows[0]], x[rows[1]]
        for side, texts in ((first, pairs.first), (second, pairs.second)):
            finite, something = np.isfinite(side).all(1), side.any(1)
            if not finite.all():
                raise DataError(
                    f"The system {name} gives an embedding that is not finite for {texts[int(np.argmin(finite))]!r} "
                    f"(task {pairs.task}). Look for a half-precision overflow, or a calibrator that was fitted on "
                    "other embeddings."
                )
            if similarity == "cosine" and not something.all():
                raise DataError(
                    f"The system {name} gives an embedding of zeros for {texts[int(np.argmin(something))]!r} "
                    f"(task {pairs.task}), and cosine says nothing about it. Leave the sentence out, or choose "
                    "another similarity."
                )
        yield name, first, second


def row_numbers(sentences: Sequence[str]) -> dict[str, int]:
    """The row of each of some distinct sentences."""
    return {sentence: row for row, sentence in enumerate(sentences)}
