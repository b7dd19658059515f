"""The folders that are written: one a target, complete or absent.

    sentence-transformers   a folder that SentenceTransformer loads
    onnx                    one graph and a tokenizer, nothing else needed
    safetensors             a folder that CalibratedEncoder.load reads

Every folder holds a model card, ``golden.json``, and ``bertflow_export.json``, which says what was exported.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from bertflow.affine import AffineMap
from bertflow.calibrated import over
from bertflow.data.sts import StsSource
from bertflow.encoder.abstract import SentenceEncoder
from bertflow.encoder.device import resolve_device
from bertflow.encoder.options import EncoderOptions
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.errors import MissingExtraError, UsageError
from bertflow.export.approximation import Int8Loss, add_int8, linearize, require_flow
from bertflow.export.card import Exported, make_card, push_export, read_results
from bertflow.export.golden import Golden, distances, embed_locally
from bertflow.export.onnx_graph import require_onnx, write_onnx
from bertflow.export.parts import Parts, make_golden
from bertflow.export.st_folder import OURS, TYPES
from bertflow.export.st_modules import write_sentence_transformer
from bertflow.files import atomic_folder
from bertflow.maps import UnitMap, fitted_map
from bertflow.opening import Openable, load
from bertflow.places import require_place
from bertflow.progress import working
from bertflow.records import EXPORT, write_export_record
from bertflow.registry import lookup

POOLED = {"mean": "their mean, each weighted by its number of tokens", "max": "their largest value in each coordinate"}
"""How chunks become one embedding, in words."""


def export(
    model: Openable,
    options: EncoderOptions,
    folder: Path,
    target: str,
    layout: str,
    linearized: bool,
    text: str | Path | None,
    int8: bool,
    suite: tuple[str, str] | None,
    results: str | Path | None,
    name: str | None,
    license_: str | None,
    push: str | None,
    private: bool,
    without_text_hashes: bool,
    progress: bool | None,
) -> Exported:
    """Write what a user names; checked before anything is read, opened, written, compared and pushed.

    ``suite`` names STS tasks and their folder; approximations are scored on them.
    """
    lookup("target", TARGETS, target)
    lookup("layout", TYPES, layout)
    if push and not re.fullmatch("[^/]+/[^/]+", push):
        raise UsageError(f"--push takes OWNER/NAME, got {push!r}.")
    if target == "onnx":
        require_onnx()
    require_place(folder, folder=True, new=True, sign=EXPORT, what="an earlier export")
    tasks = StsSource(*suite) if suite else ()
    resolve_device(options.get("device") or "auto")
    options["device"] = "cpu"
    model = load(model, **options)
    if linearized:
        require_flow(model.calibrator)

    sets = list(tasks)
    if without_text_hashes:
        model.forget_text()
    cost: list[str] = []
    if linearized:
        model, cost = linearize(model, text, sets, progress)
    written = write_export(
        model,
        folder,
        target,
        layout,
        partial(add_int8, sets=sets, progress=progress) if int8 else None,
        name=push or name or "",
        results=read_results(Path(results), model.describe()) if results else (),
        license=license_,
        notes=[f"It stands in for a flow: {line}" for line in cost],
    )
    distance = golden_distance(folder) if target == "sentence-transformers" else None
    commit = push_export(folder, push, private) if push else ""
    return replace(written, stand_in=tuple(cost), distance=distance, commit=commit)


@working("writing and checking the export")
def write_export(
    system: SentenceEncoder,
    folder: Path,
    target: str,
    layout: str = "legacy",
    int8: Callable[[Path], Int8Loss] | None = None,
    saved: Path | None = None,
    **card: Any,
) -> Exported:
    """Write an open encoder; ``export_encoder`` is this with everything before and after it.

    Args:
        system: The encoder.
        folder: New, empty, or an earlier export, which is replaced.
        target: A row of ``TARGETS``.
        layout: Layout of a sentence-transformers folder: legacy or modern.
        int8: Writes an int8 graph into the folder and gives its loss.
        saved: Folder in which the raw encoder is saved already.
        card: Arguments of ``make_card``.
    """
    given, chunks = system, system.describe().get("chunks") if target != "safetensors" else None
    with atomic_folder(folder) as aside, TemporaryDirectory() as scratch, TemporaryDirectory() as whole:
        if chunks:  # other tools embed a chunk, and split nothing
            system.raw.write(Path(whole))
            system = over(TransformerEncoder(whole, device="cpu", chunks=""), system)
        describe = system.describe()
        parts = Parts(system, saved if saved and not chunks else Path(scratch), given)
        golden = make_golden(parts)
        facts = TARGETS[target](parts, aside, layout)
        if chunks:
            facts |= {"chunks": chunks, "long_texts": _long_texts(chunks, system, parts.max_length)}
        golden.write(aside)
        record = {
            "format": 1,
            "target": target,
            "describe": describe,
            "dim": system.dim,
            "role": given.role,
            "facts": facts,
            "versions": {package: version(package) for package in ("bertflow", "torch", "transformers")},
        }
        write_export_record(aside, record)
        ours = tuple(module for module in facts.get("modules", ()) if module in OURS)
        written = Exported(folder, target, describe, ours, facts, int8=int8(aside) if int8 else None)
        make_card(given, written, **card).save(aside / "README.md")
    return written


def _long_texts(chunks: str, system: SentenceEncoder, cut: int) -> str:
    """What users of an export have to do for long texts, since other tools do not split them."""
    pooled = POOLED[chunks.rpartition(":")[2]]
    module = system.calibrator.map if system.calibrator else None
    linear = not isinstance(module, UnitMap) and isinstance(module and fitted_map(module), AffineMap | None)
    equal = "mean" in chunks and linear
    before = "" if equal else " bertflow itself pools before the calibrator, and so has somewhat other numbers."
    return f"what was written cuts at {cut} tokens: split a text by {chunks}, embed its chunks, take {pooled}.{before}"


def _safetensors(parts: Parts, aside: Path, layout: str) -> dict[str, Any]:
    if parts.system.calibrator is None:
        raise UsageError(
            "The target safetensors is for a calibrated encoder, this one is raw. Save it with encoder.save(folder)."
        )
    over(parts.encoder, parts.given).write(aside)
    return {}


TARGETS: Mapping[str, Callable[[Parts, Path, str], dict[str, Any]]] = {
    "sentence-transformers": write_sentence_transformer,
    "onnx": write_onnx,
    "safetensors": _safetensors,
}
"""What can be written: given the encoder's parts, the folder and the layout, it returns the facts for the record."""


def golden_distance(folder: Path) -> float | None:
    """Distance of what sentence-transformers computes from the golden vectors; None if it is not installed."""
    golden = Golden.read(folder)
    try:
        found = embed_locally(folder, golden.sentences)
    except MissingExtraError:
        return None
    return float(distances(found, np.array(golden.vectors, np.float32)).max())
