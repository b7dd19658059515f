"""From what a user names to the systems that are scored.

For each distinct encoder among what is named there are the baselines that are asked for, and the supervised ceiling.
Its poolings share a pass: each sentence goes through the transformer once for all of them. What was embedded is kept in
memory: a few ten thousand sentences, not a corpus.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertflow.calibrated import CalibratedEncoder
from bertflow.calibration.base import AbstractCalibrator
from bertflow.calibration.spelling import RAW, STATIC, SystemSpec
from bertflow.encoder.abstract import AbstractEncoder, Float32, Role, SentenceEncoder
from bertflow.encoder.static import StaticEncoder
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.encoder.word_vectors import WordVectorEncoder
from bertflow.errors import UsageError
from bertflow.opening import WORD_VECTOR_FILE, find, load

CEILING = "ceiling"
"""Name of the supervised ceiling in tables."""
Ceiling = Callable[[SentenceEncoder], SentenceEncoder]
"""An encoder -> the best that labels make of it."""


class SharedPass:
    """An encoder with several poolings, which all remember what any of them was asked for.

    Args:
        own: A raw encoder, with its own pooling.
    """

    def __init__(self, own: SentenceEncoder) -> None:
        self.own = own
        self._recipe: Mapping[str, Any] = getattr(own, "recipe", None) or {}
        self.own_pooling = str(self._recipe.get("pooling", ""))
        self._encoders = {self.own_pooling: own}
        self._rows: dict[Role, dict[str, dict[str, Float32]]] = {"document": {}, "query": {}}

    def pooled(self, pooling: str, corpus: list[str] | None = None) -> SentenceEncoder:
        """The encoder with ``pooling``; all poolings should be asked for before the first sentence is embedded.

        Args:
            pooling: A spelling.
            corpus: Text in which ``sif`` counts tokens, if the encoder has no counts of its own.

        Raises:
            UsageError: If the encoder has no such pooling.
        """
        if pooling not in self._encoders:
            if not self._recipe:
                raise UsageError(
                    f"A {type(self.own).__name__} has one pooling, got {pooling!r}. Give an encoder by name."
                )
            self._encoders[pooling] = load(**{**self._recipe, "pooling": pooling})
            for rows in self._rows.values():
                rows.clear()
        encoder = self._encoders[pooling]
        if isinstance(encoder, WordVectorEncoder) and pooling != self.own_pooling and corpus is not None:
            encoder.count_words(corpus)
        if not isinstance(encoder, TransformerEncoder):
            return encoder
        if corpus is not None and encoder.describe().get("token_counts", "none needed") is None:
            encoder.count_tokens(corpus)
        return PooledEncoder(self, pooling, encoder)

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
        encoders = {name: one for name, one in self._encoders.items() if isinstance(one, TransformerEncoder)}
        for name, encoder in encoders.items():
            by_counts.setdefault(encoder.describe().get("token_counts", ""), []).append(name)
        uncounted = by_counts.pop("", [])
        groups = list(by_counts.values()) or [[]]
        groups[0] = groups[0] + uncounted
        return [(encoders[group[0]], group) for group in groups]


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


class Opened:
    """One encoder that the user named or gave, with the poolings that baselines need.

    Args:
        name: Its name in tables.
        encoder: Raw or calibrated.

    Attributes:
        name: As above.
        shared: The raw encoder with its poolings.
        calibrator: Its calibrator; None for a raw encoder.
        recipe: The arguments that open the raw encoder; None if it is not a transformer.
    """

    def __init__(self, name: str, encoder: SentenceEncoder) -> None:
        self.name, self.calibrator, self.shared = name, encoder.calibrator, SharedPass(encoder.raw)
        self.recipe = encoder.raw.recipe if isinstance(encoder.raw, TransformerEncoder) else None

    def pooled(self, spec: SystemSpec, corpus: list[str] | None) -> SentenceEncoder:
        """The encoder that a baseline is built on."""
        if spec.pooling is None:
            return self.shared.pooled(self.shared.own_pooling, corpus)
        if spec.pooling not in STATIC:
            return self.shared.pooled(spec.pooling_for(self.shared.own_pooling), corpus)
        assert self.recipe is not None, "only transformers have static baselines"
        place = {name: self.recipe[name] for name in ("model", "max_length", "revision")}
        static = load(**place, pooling=spec.pooling)
        assert isinstance(static, StaticEncoder), "a static pooling"
        return static.count_tokens(corpus) if spec.counts and corpus is not None else static


def open_system(path: str, device: str = "auto", **options: Any) -> Opened:
    """Open what ``bertflow.load`` opens.

    Args:
        path: A hub id, a folder or a file.
        device: Where the encoder runs.
        options: Of ``bertflow.load``, for transformers without a calibrator; the others keep their own.

    Raises:
        UsageError: If it cannot be opened with these options.
        DataError: If it is missing, incomplete or damaged.
    """
    kind = find(path, options.get("revision"))[1]
    own = kind.calibrated or kind.called == WORD_VECTOR_FILE
    encoder = load(path, device=device, **({} if own else options))
    return Opened(Path(path).resolve().name if Path(path).exists() else path, encoder)


def build_systems(
    opened: Sequence[Opened],
    baselines: Sequence[SystemSpec],
    corpus: list[str] | None,
    progress: bool | None = None,
    ceiling: Ceiling | None = None,
) -> dict[str, SentenceEncoder]:
    """The systems to score, by the names they have in tables.

    Args:
        opened: What the user named.
        baselines: Baselines of each distinct encoder among them.
        corpus: Text to fit the baselines on. None: they are refitted from the moments of a calibrator in ``opened``.
        progress: Whether to show a progress bar (default: in a terminal or a notebook).
        ceiling: Makes the supervised ceiling of each distinct encoder, which is added together with ``raw``.

    Raises:
        UsageError: If there is nothing to fit a baseline on, two systems have one name, or there is no transformer
            whose word embeddings could be averaged.
    """
    static = [baseline.spelling for baseline in baselines if baseline.pooling in STATIC]
    if static and all(one.recipe is None for one in opened):
        raise UsageError(f"{static[0]} averages the word embeddings of a transformer, but none is given. Leave it out.")
    groups: dict[str, list[Opened]] = {}
    for one in opened:
        groups.setdefault(one.shared.own.identity.key, []).append(one)
    systems: dict[str, SentenceEncoder] = {}
    for group in groups.values():
        suffix = f" {group[0].name}" if len(groups) > 1 else ""
        names = [one.name for one in group]
        for name, system in _systems_of(group, baselines, corpus, progress, ceiling):
            label = name if name in names else name + suffix
            if label in systems:
                raise UsageError(f"Two systems would be called {label!r}. Rename one folder, or leave one out.")
            systems[label] = system
    return systems


def _systems_of(
    group: Sequence[Opened],
    baselines: Sequence[SystemSpec],
    corpus: list[str] | None,
    progress: bool | None,
    ceiling: Ceiling | None,
) -> Iterator[tuple[str, SentenceEncoder]]:
    """What is scored on one encoder: baselines first, then what is calibrated already."""
    first, raw = group[0], SystemSpec(RAW)
    calibrators = {one.name: one.calibrator for one in group if one.calibrator is not None}
    wanted = dict.fromkeys(([raw] if len(calibrators) < len(group) or ceiling else []) + list(baselines))
    own = first.pooled(raw, corpus)
    # Word vectors are static already. All poolings are opened before the first one embeds.
    encoders = {one: first.pooled(one, corpus) for one in wanted if one.pooling not in STATIC or first.recipe}
    for spec, encoder in encoders.items():
        moments = next(iter(calibrators.values()), None) if spec.pooling is None else None
        yield spec.spelling, _system(spec, encoder, moments, corpus, progress)
    if ceiling:
        yield CEILING, ceiling(own)
    for one in group:
        if one.calibrator is not None:
            yield one.name, CalibratedEncoder(own, one.calibrator)


def _system(
    spec: SystemSpec,
    encoder: SentenceEncoder,
    calibrator: AbstractCalibrator | None,
    corpus: list[str] | None,
    progress: bool | None,
) -> SentenceEncoder:
    if corpus is None and (spec.counts or (spec.calibrator is not None and calibrator is None)):
        raise UsageError(
            f"{spec.spelling} needs text to be fitted on. Give a file with fit_on, or eval for the scored sentences."
        )
    if spec.calibrator is None:
        return encoder
    if corpus is not None:
        return CalibratedEncoder(encoder, spec.make().fit_sentences(encoder, corpus, progress))
    assert calibrator is not None
    return CalibratedEncoder(encoder, spec.refitted(calibrator))
