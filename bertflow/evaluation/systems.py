"""What a user names becomes the systems that are scored.

Each distinct encoder that is named gets the baselines that are asked for. Its poolings share a pass:
each sentence goes through the transformer once for all of them. What was embedded is kept in memory: a few ten thousand
sentences, not a corpus.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
from typing_extensions import Unpack

from bertflow.array_types import Float32, Hashes
from bertflow.calibrated import CalibratedEncoder, over
from bertflow.calibration.spelling import RAW, STATIC, SystemSpec
from bertflow.encoder.abstract import AbstractEncoder, Role, SentenceEncoder
from bertflow.encoder.options import EncoderOptions
from bertflow.encoder.seen_text import AbstractLearner
from bertflow.encoder.transformer import StaticEncoder, TransformerEncoder
from bertflow.errors import UsageError, logger
from bertflow.evaluation.names import CHOSEN, Model, name_of
from bertflow.evaluation.score_table import FittedText
from bertflow.files import file_sha256
from bertflow.opening import load, load_plainly
from bertflow.places import expand


class SharedPass:
    """An encoder with several poolings, which all remember what any of them was asked for.

    Args:
        encoder: Raw, or calibrated: then its raw encoder is shared.
        name: Its name in tables; that of the encoder by default.

    Attributes:
        given: The encoder.
        own: The raw encoder, with its own pooling.
        saved: Whether bertflow wrote the folder that the raw encoder is read from.
        calibrator: What follows it; None for a raw encoder.
        recipe: The arguments that open it; None if it is not a transformer.
        encoders: The encoders by their poolings, which remember nothing.
    """

    def __init__(self, encoder: SentenceEncoder, name: str = "") -> None:
        self.name = name or name_of(encoder)
        self.given, self.own, self.calibrator = encoder, encoder.raw, encoder.calibrator
        self.saved = isinstance(self.own, TransformerEncoder) and bool(self.own.spec.folder.record)
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
            own, recipe = self.own, {**self._recipe, "pooling": pooling}
            again = own.with_pooling(pooling) if isinstance(own, TransformerEncoder) else load(**recipe)
            self.encoders[pooling] = again
            for rows in self._rows.values():
                rows.clear()
        encoder = self.encoders[pooling]
        if corpus is not None and isinstance(encoder, AbstractLearner):
            encoder.count_missing(corpus)
        return PooledEncoder(self, pooling, encoder) if isinstance(encoder, TransformerEncoder) else encoder

    def embed(self, sentences: Sequence[str], pooling: str, role: Role, progress: bool | None) -> Float32:
        """Embeddings (n, dim) by one pooling; new sentences are embedded by all of them."""
        rows = self._rows[role if self.own.has_roles else "document"]
        new = [sentence for sentence in dict.fromkeys(sentences) if sentence not in rows]
        if new:
            found: dict[str, Float32] = {}
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

    def fitted_hashes(self) -> Hashes | None:
        """The text whose tokens were counted, for ``sif``."""
        return self._encoder.fitted_hashes()


def say_choices(models: Sequence[Model], tables: Iterable[object]) -> None:
    """Say which folders ``bertflow fix`` chose by one of the scored tables: their figures on it are optimistic."""
    folders = [expand(one) for one in models if isinstance(one, str | Path)]
    kept = {one: file.read_text("utf-8", "replace") for one in folders if (file := one.parent / CHOSEN).is_file()}
    paths = [expand(one) for one in tables if kept and isinstance(one, str | Path)]
    for path in filter(Path.is_file, paths):
        digest = file_sha256(path)
        for folder in (one for one in kept if digest in kept[one]):
            logger.warning("%s was chosen by %s, so its figures on this file are optimistic.", folder, path)


def remembering(encoder: SentenceEncoder) -> SentenceEncoder:
    """The encoder; a transformer remembers what it embedded, for both its raw and its calibrated embeddings."""
    shared = SharedPass(encoder)
    return over(shared.pooled(shared.own_pooling), encoder)


def open_system(model: Model, **options: Unpack[EncoderOptions]) -> SharedPass:
    """Open what ``bertflow.load`` opens; an encoder is taken as it is.

    Args:
        model: A hub id, a folder or a file; or an encoder.
        options: Options of ``bertflow.load``; calibrated encoders and word vectors take only the device.

    Raises:
        UsageError: If it cannot be opened with these options.
        DataError: If it is missing, incomplete or damaged.
    """
    return SharedPass(load_plainly(model, **options), name_of(model))


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
    text: list[str] | None,
    progress: bool | None = None,
    refits: bool | None = None,
    names: Collection[str] = (),
) -> dict[str, SentenceEncoder]:
    """The systems to score, by the names they have in tables: of each encoder the baselines first.

    Args:
        opened: What the user named.
        baselines: Baselines of each distinct encoder among them.
        text: Text to fit the baselines on.
        progress: Whether to show a progress bar (default: in a terminal or a notebook).
        refits: Whether each text that a calibrator in ``opened`` was fitted on has baselines of its own, refitted from
            its moments where they are enough (default: without text).
        names: Names that the user chose. A raw encoder that has one is called so, unless "raw" is a baseline. Saved
            encoders keep their own name, and so do several that are the same.

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
    several, systems, raw = len(groups) > 1, dict[str, SentenceEncoder](), SystemSpec(RAW)

    def add(name: str, system: SentenceEncoder) -> None:
        if name in systems:
            raise UsageError(f"Two systems would be called {name!r}. Name one as NAME=path, or leave one out.")
        systems[name] = system

    for group in groups.values():
        first = min(group, key=lambda one: (one.calibrator is not None, one.name))
        calibrated = [one for one in group if one.calibrator is not None]
        # One calibrator for each text that was fitted on, whatever the order in which the systems were named.
        by_name = sorted(calibrated, key=attrgetter("name"), reverse=True) if refits or text is None else []
        fits = {FittedText.of(one.calibrator): (one.name, one.calibrator) for one in by_name}
        of = f" of {first.name}" if several else ""
        pooled = f" ({first.own_pooling})" if several and first.own_pooling else ""
        plain = [one for one in group if one.calibrator is None]
        wanted = dict.fromkeys(([raw] if plain else []) + list(baselines))
        kept = () if raw in baselines else names
        own_names = [one.name for one in plain if plain[1:] or one.saved or one.name in kept]
        own = _pooled(first, raw, text)
        # Word vectors are static already. All poolings are opened before the first one embeds.
        encoders = {one: _pooled(first, one, text) for one in wanted if one.pooling not in STATIC or first.recipe}
        for spec, encoder in encoders.items():
            if text is None:
                require_fitted_on(spec, bool(fits), of)
            if spec.calibrator is None:
                for name in (own_names or [RAW + of + pooled]) if spec == raw else [spec.spelling + of]:
                    add(name, encoder)
            elif text is None or (fits and spec.refittable):
                for name, calibrator in fits.values():
                    label = f"{spec.spelling} of {name}" if several or len(fits) > 1 else spec.spelling
                    add(label, CalibratedEncoder(encoder, spec.refitted(calibrator)))
            else:
                fitted = spec.make().fit_sentences(encoder, text, progress, spec.queries(text))
                add(spec.spelling + of, CalibratedEncoder(encoder, fitted))
        for one in calibrated:
            add(one.name, over(own, one.given))
    return systems


def require_fitted_on(spec: SystemSpec, refits: bool, of: str = "") -> None:
    """Refuse a baseline that needs text where there is none.

    Args:
        spec: The baseline.
        refits: Whether there are moments of a calibrator to fit it from.
        of: What follows its name where there are several encoders.

    Raises:
        UsageError: If it counts tokens, draws crops, or has a calibrator without moments.
    """
    if spec.counts or spec.crops or (spec.calibrator is not None and (spec.pooling is not None or not refits)):
        raise UsageError(
            f"{spec.spelling}{of} needs text to be fitted on. Give fit_on: a file, or eval for the scored sentences."
        )
