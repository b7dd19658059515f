"""From what a user names to the systems that are scored.

    an encoder              a hub id or a folder                         scored as it comes
    a calibrated encoder    a folder that ``CalibratedEncoder.save`` wrote
    a run                   a folder that ``train.py`` wrote             its calibrator on its encoder

and for each distinct encoder among them the baselines that are asked for.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertflow.calibrated import RECORD, CalibratedEncoder
from bertflow.calibration.base import AbstractCalibrator
from bertflow.calibration.saving import load_calibrator
from bertflow.encoder.transformer import SentenceEncoder, TransformerEncoder
from bertflow.errors import DataError, UsageError
from bertflow.evaluation.baselines import RAW, SIF, Baseline
from bertflow.evaluation.shared_pass import PooledEncoder, SharedPass
from bertflow.files import read_json, to_json

CALIBRATOR = "calibrator"
"""Where a calibrated encoder and a run keep their calibrator."""


@dataclass(frozen=True)
class Opened:
    """One thing that the user named.

    Attributes:
        name: What the tables call it.
        shared: Its encoder.
        calibrator: Its calibrator; None for an encoder as it comes.
    """

    name: str
    shared: SharedPass
    calibrator: AbstractCalibrator | None


def open_system(path: str, device: str = "auto", **options: Any) -> Opened:
    """Open an encoder, a calibrated encoder or a run.

    Args:
        path: A hub id or a folder.
        device: Where the encoder runs.
        options: Of ``TransformerEncoder``, for an encoder as it comes; what is calibrated keeps its own.

    Raises:
        UsageError: If the folder is a calibrator alone.
        DataError: If the folder is missing, incomplete or damaged.
    """
    folder = Path(path)
    name = folder.resolve().name if folder.exists() else path
    if (folder / "calibrator.json").is_file():
        raise UsageError(f"{path} is a calibrator without an encoder. Give the folder that holds both.")
    calibrated = (folder / CALIBRATOR).is_dir()
    recipe = _fitted_recipe(folder) if calibrated else {"model": path, **options}

    def open_encoder(pooling: str | None) -> TransformerEncoder:
        return TransformerEncoder(**{**recipe, "device": device} | ({"pooling": pooling} if pooling else {}))

    return Opened(name, SharedPass(open_encoder), load_calibrator(folder / CALIBRATOR) if calibrated else None)


def _fitted_recipe(folder: Path) -> dict[str, Any]:
    """The encoder's arguments, as a calibrated encoder or a run keeps them."""
    if (folder / RECORD).is_file():
        return {"model": str(folder / "encoder")}
    record = read_json(folder / "run.json")
    if not isinstance(record.get("encoder"), dict):
        raise DataError(
            f"{folder / 'run.json'} should say which encoder the calibrator belongs to, but does not. Fit again."
        )
    return dict(record["encoder"])


def build_systems(
    opened: Sequence[Opened], baselines: Sequence[Baseline], corpus: list[str] | None, progress: bool = False
) -> dict[str, SentenceEncoder]:
    """The systems to score, by the names they have in tables.

    Args:
        opened: What the user named.
        baselines: What stands beside each distinct encoder among them.
        corpus: Text to fit the baselines on. None: they are refitted from the moments of a calibrator in ``opened``.
        progress: Show a bar on stderr.

    Raises:
        UsageError: If there is nothing to fit a baseline on, or two systems have one name.
    """
    groups: dict[str, list[Opened]] = {}
    for one in opened:
        groups.setdefault(to_json(one.shared.own.describe()), []).append(one)
    systems: dict[str, SentenceEncoder] = {}
    for group in groups.values():
        suffix = f" {group[0].name}" if len(groups) > 1 else ""
        for name, system in _systems_of(group, baselines, corpus, progress).items():
            label = name if name in {one.name for one in group} else name + suffix
            if label in systems:
                raise UsageError(f"Two systems would be called {label!r}. Rename one folder, or leave one out.")
            systems[label] = system
    return systems


def _systems_of(
    group: Sequence[Opened], baselines: Sequence[Baseline], corpus: list[str] | None, progress: bool
) -> dict[str, SentenceEncoder]:
    """What is scored on one encoder: baselines first, then what is calibrated already."""
    shared = group[0].shared
    fitted = [one for one in group if one.calibrator is not None]
    wanted = dict.fromkeys(([Baseline(RAW)] if len(fitted) < len(group) else []) + list(baselines))
    own = shared.pooled(shared.own_pooling, corpus)
    encoders = {one: shared.pooled(one.pooling_for(shared.own_pooling), corpus) for one in wanted}
    systems: dict[str, SentenceEncoder] = {}
    for baseline, encoder in encoders.items():
        moments = fitted[0].calibrator if fitted and baseline.pooling is None else None
        systems[baseline.spelling] = _system(baseline, encoder, moments, corpus, progress)
    for one in fitted:
        assert one.calibrator is not None
        if one.name in systems:
            raise UsageError(f"Two systems would be called {one.name!r}. Rename one folder, or leave one out.")
        systems[one.name] = CalibratedEncoder(own, one.calibrator)
    return systems


def _system(
    baseline: Baseline,
    encoder: PooledEncoder,
    calibrator: AbstractCalibrator | None,
    corpus: list[str] | None,
    progress: bool,
) -> SentenceEncoder:
    if corpus is None and (baseline.pooling == SIF or (baseline.calibrator is not None and calibrator is None)):
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
