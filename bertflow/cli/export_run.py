"""What ``bertflow export`` does: open, put a stand-in in the flow's place if asked, write, check, push."""

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from bertflow.calibrated import RECORD as CALIBRATED
from bertflow.calibrated import CalibratedEncoder
from bertflow.calibration.saving import load_calibrator
from bertflow.cli.printing import print_lines
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.errors import MissingExtraError, UsageError
from bertflow.evaluation.systems import open_system
from bertflow.export.card import read_results
from bertflow.export.golden import Golden, distances
from bertflow.export.measure import int8_scores, int8_sentences, linearized, scored_sets
from bertflow.export.onnx_graph import require_onnx
from bertflow.export.parts import Exportable
from bertflow.export.st_load import load_sentence_transformer
from bertflow.export.targets import TARGETS, Options, Written, export, require_replaceable
from bertflow.export.upload import push, require_name
from bertflow.registry import lookup

OF_ENCODERS = ("pooling", "max_length")
"""Options that say how an encoder as it comes is used."""
APPROXIMATIONS: Mapping[str, tuple[str, ...]] = {
    "int8": ("onnx",),
    "linearize": ("sentence-transformers", "onnx"),
}
"""An option -> the targets it is for."""


def run_export(options: argparse.Namespace) -> int:
    """Carry out what the command line asks for; returns the exit code.

    Raises:
        BertflowError: For what cannot be used.
    """
    out, progress = Console(), sys.stderr.isatty()
    _check(options)
    sets = scored_sets(options)
    system, notes = open_exportable(options), []
    if options.linearize:
        if not isinstance(system, CalibratedEncoder):
            raise UsageError(f"--linearize is for a flow, but {options.model} is an encoder as it comes. Leave it out.")
        system, lines = linearized(system, options.text, sets, progress)
        notes += [f"It stands in for a flow: {line}" for line in lines]
        print_lines(out, lines)
    results = read_results(options.results, system.describe()) if options.results else []
    written = export(
        system,
        options.output,
        options.target,
        Options(
            layout=options.layout,
            name=options.push or options.name or "",
            results=results,
            license=options.license,
            notes=notes,
            int8_sentences=int8_sentences() if options.int8 else (),
            int8_scores=int8_scores(sets, progress) if options.int8 else None,
        ),
    )
    print_lines(out, _said(system, written, options.target))
    if options.push:
        print_lines(out, [f"pushed    {push(options.output, options.push, options.private)}"])
    return 0


def open_exportable(options: argparse.Namespace) -> Exportable:
    """The encoder that was named, on the CPU.

    Raises:
        UsageError: If options are given that a calibrated encoder has of its own, or there is no transformer.
    """
    given = {name: getattr(options, name) for name in OF_ENCODERS if getattr(options, name) is not None}
    folder = Path(options.model)
    if (folder / CALIBRATED).is_file():
        _refuse(options.model, given)
        encoder = TransformerEncoder(folder / "encoder", dtype=options.dtype, device="cpu")
        return CalibratedEncoder(encoder, load_calibrator(folder / "calibrator"))
    opened = open_system(options.model, "cpu", **given, **({"dtype": options.dtype} if options.dtype else {}))
    own = opened.shared.own
    if not isinstance(own, TransformerEncoder):
        raise UsageError(f"{options.model} is a file of word vectors, which has no transformer to export.")
    if opened.calibrator is None:
        return own
    _refuse(options.model, given)
    return CalibratedEncoder(own, opened.calibrator)


def _refuse(model: str, given: dict[str, Any]) -> None:
    if given:
        raise UsageError(f"{model} is calibrated and keeps its own {next(iter(given))}. Leave that option out.")


def _check(options: argparse.Namespace) -> None:
    """Everything that can be refused before anything is computed."""
    lookup("target", TARGETS, options.target)
    for name, targets in APPROXIMATIONS.items():
        if getattr(options, name) and options.target not in targets:
            raise UsageError(f"--{name} is for the target {' or '.join(targets)}, got {options.target}. Leave it out.")
    if options.text and not options.linearize:
        raise UsageError("--text is what --linearize is fitted on. Add --linearize, or leave it out.")
    if (options.tasks or options.data_dir) and not (options.linearize or options.int8):
        raise UsageError("--tasks and --data_dir are for --linearize and --int8. For scores use `bertflow evaluate`.")
    if options.private and not options.push:
        raise UsageError("--private is for --push. Add --push OWNER/NAME, or leave it out.")
    if options.push:
        require_name(options.push)
    if options.target == "onnx":
        require_onnx()
    require_replaceable(options.output)


def _said(system: Exportable, written: Written, target: str) -> list[str]:
    description = system.describe()
    lines = [
        f"encoder   {description['encoder']}, {description['pooling']}, {description.get('calibrator', 'as it comes')}",
        f"written   {written.folder} ({', '.join(sorted(path.name for path in written.folder.iterdir()))})",
    ]
    if "modules" in written.facts:
        lines.append(f"modules   {' -> '.join(['Transformer', *written.facts['modules']])}")
    if written.ours:
        lines.append(
            f"load      bertflow.load_sentence_transformer({str(written.folder)!r}); SentenceTransformer asks for "
            f"trust_remote_code=True, as {' and '.join(written.ours)} is bertflow's"
        )
    if "largest_difference_from_torch" in written.facts:
        lines.append(f"checked   within {written.facts['largest_difference_from_torch']:.1e} of torch on unseen shapes")
    if written.int8:
        lines.append(f"int8      {written.int8}")
    reread = CHECKS.get(target)
    return [*lines, reread(written.folder)] if reread else lines


def _reread(folder: Path) -> str:
    """Load what was written as a stranger would, and compare it with the golden vectors."""
    golden = Golden.read(folder)
    try:
        model = load_sentence_transformer(folder, device="cpu")
    except MissingExtraError:
        return "checked   not yet: sentence-transformers is not installed here; `bertflow doctor` does it elsewhere"
    off = distances(np.asarray(model.encode(golden.sentences), np.float32), golden.vectors).max()
    return f"checked   sentence-transformers gives the golden vectors within {off:.1e} of their length"


CHECKS: Mapping[str, Callable[[Path], str]] = {"sentence-transformers": _reread}
"""A target -> how what was written is read again; the graph of the target onnx is checked before it is written."""
