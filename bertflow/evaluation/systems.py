"""From what a user names to the systems that are scored.

    an encoder              a hub id or a folder                         scored as it comes
    a calibrated encoder    a folder that ``CalibratedEncoder.save`` wrote
    a run                   a folder that ``train.py`` wrote             its calibrator on its encoder
    word vectors            a file: GloVe, word2vec text, fastText       their mean

and for each distinct encoder among them the baselines that are asked for, and the supervised ceiling.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertflow.calibrated import CalibratedEncoder
from bertflow.calibration.base import AbstractCalibrator
from bertflow.calibration.spelling import RAW, STATIC, SystemSpec
from bertflow.encoder.abstract import SentenceEncoder
from bertflow.encoder.static import StaticEncoder
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.encoder.word_vectors import WordVectorEncoder
from bertflow.errors import UsageError
from bertflow.evaluation.shared_pass import SharedPass
from bertflow.evaluation.word_pass import WordPass
from bertflow.opening import find, load

CEILING = "ceiling"
"""What tables call the supervised ceiling."""
Ceiling = Callable[[SentenceEncoder], SentenceEncoder]
"""An encoder -> the best that labels make of it."""


@dataclass(frozen=True)
class Opened:
    """One thing that the user named.

    Attributes:
        name: What the tables call it.
        shared: Its encoder.
        calibrator: Its calibrator; None for an encoder as it comes.
        open_static: Its word embeddings alone, by their pooling; None for word vectors, which are nothing else.
        recipe: The arguments of ``TransformerEncoder`` that open its encoder; None for word vectors.
    """

    name: str
    shared: SharedPass | WordPass
    calibrator: AbstractCalibrator | None
    open_static: Callable[[str], StaticEncoder] | None
    recipe: Mapping[str, Any] | None = None

    def pooled(self, baseline: SystemSpec, corpus: list[str] | None) -> SentenceEncoder:
        """The encoder that a baseline is built on."""
        if baseline.pooling is None or baseline.pooling not in STATIC:
            return self.shared.pooled(baseline.pooling_for(self.shared.own_pooling), corpus)
        assert self.open_static is not None, "word vectors have no static baselines"
        static = self.open_static(STATIC[baseline.pooling])
        return static.count_tokens(corpus) if baseline.counts and corpus is not None else static


def open_system(path: str, device: str = "auto", **options: Any) -> Opened:
    """Open what ``bertflow.load`` opens, so that the poolings of its encoder share a pass.

    Args:
        path: A hub id, a folder or a file.
        device: Where the encoder runs.
        options: Of ``bertflow.load``, for an encoder without a calibrator; a calibrated one keeps its own.

    Raises:
        UsageError: If it cannot be opened with these options.
        DataError: If it is missing, incomplete or damaged.
    """
    name = Path(path).resolve().name if Path(path).exists() else path
    calibrated = find(path, options.get("revision"))[1].calibrated
    encoder = load(path, device=device, **({} if calibrated else options))
    if isinstance(encoder.raw, WordVectorEncoder):
        return Opened(name, WordPass(encoder.raw), encoder.calibrator, None)
    raw = encoder.raw
    if not isinstance(raw, TransformerEncoder):
        raise UsageError(f"{path} should be a transformer or word vectors, but is a {type(raw).__name__}.")
    recipe = raw.recipe

    def open_pooling(pooling: str | None) -> TransformerEncoder:
        return raw if pooling is None else TransformerEncoder(**{**recipe, "pooling": pooling})

    def open_static(pooling: str) -> StaticEncoder:
        return StaticEncoder(recipe["model"], pooling, recipe["max_length"], recipe["revision"])

    return Opened(name, SharedPass(open_pooling), encoder.calibrator, open_static, recipe)


def build_systems(
    opened: Sequence[Opened],
    baselines: Sequence[SystemSpec],
    corpus: list[str] | None,
    progress: bool = False,
    ceiling: Ceiling | None = None,
) -> dict[str, SentenceEncoder]:
    """The systems to score, by the names they have in tables.

    Args:
        opened: What the user named.
        baselines: What stands beside each distinct encoder among them.
        corpus: Text to fit the baselines on. None: they are refitted from the moments of a calibrator in ``opened``.
        progress: Show a bar on stderr.
        ceiling: Makes the supervised ceiling of each distinct encoder, which stands beside it with ``raw``.

    Raises:
        UsageError: If there is nothing to fit a baseline on, two systems have one name, or there is no transformer
            whose word embeddings could be averaged.
    """
    static = [baseline.spelling for baseline in baselines if baseline.pooling in STATIC]
    if static and all(one.open_static is None for one in opened):
        raise UsageError(f"{static[0]} averages the word embeddings of a transformer, but none is given. Leave it out.")
    groups: dict[str, list[Opened]] = {}
    for one in opened:
        groups.setdefault(one.shared.own.identity.key, []).append(one)
    systems: dict[str, SentenceEncoder] = {}
    for group in groups.values():
        suffix = f" {group[0].name}" if len(groups) > 1 else ""
        for name, system in _systems_of(group, baselines, corpus, progress, ceiling).items():
            label = name if name in {one.name for one in group} else name + suffix
            if label in systems:
                raise UsageError(f"Two systems would be called {label!r}. Rename one folder, or leave one out.")
            systems[label] = system
    return systems


def _systems_of(
    group: Sequence[Opened],
    baselines: Sequence[SystemSpec],
    corpus: list[str] | None,
    progress: bool,
    ceiling: Ceiling | None,
) -> dict[str, SentenceEncoder]:
    """What is scored on one encoder: baselines first, then what is calibrated already."""
    first = group[0]
    fitted = [one for one in group if one.calibrator is not None]
    raw = SystemSpec(RAW)
    wanted = dict.fromkeys(([raw] if len(fitted) < len(group) or ceiling else []) + list(baselines))
    own = first.pooled(raw, corpus)
    # Word vectors are static already.
    built = [one for one in wanted if one.pooling not in STATIC or first.open_static]
    encoders = {one: first.pooled(one, corpus) for one in built}
    systems: dict[str, SentenceEncoder] = {}
    for baseline, encoder in encoders.items():
        moments = fitted[0].calibrator if fitted and baseline.pooling is None else None
        systems[baseline.spelling] = _system(baseline, encoder, moments, corpus, progress)
    if ceiling:
        systems[CEILING] = ceiling(own)
    for one in fitted:
        assert one.calibrator is not None
        if one.name in systems:
            raise UsageError(f"Two systems would be called {one.name!r}. Rename one folder, or leave one out.")
        systems[one.name] = CalibratedEncoder(own, one.calibrator)
    return systems


def _system(
    baseline: SystemSpec,
    encoder: SentenceEncoder,
    calibrator: AbstractCalibrator | None,
    corpus: list[str] | None,
    progress: bool,
) -> SentenceEncoder:
    if corpus is None and (baseline.counts or (baseline.calibrator is not None and calibrator is None)):
        raise UsageError(
            f"{baseline.spelling} needs text to be fitted on. Add --fit_on FILE, or --fit_on eval for the scored "
            "sentences."
        )
    if baseline.calibrator is None:
        return encoder
    if corpus is not None:
        return CalibratedEncoder(encoder, baseline.fitted(encoder, corpus, progress))
    assert calibrator is not None
    return CalibratedEncoder(encoder, baseline.refitted(calibrator))
