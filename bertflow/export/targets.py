"""Write an encoder for others: one folder a target, whole or not at all.

    sentence-transformers   a folder that SentenceTransformer loads
    onnx                    one graph, tokenizer, nothing else needed
    safetensors             what CalibratedEncoder.load reads

Every folder holds a model card, ``golden.json``, and ``bertflow_export.json``, which says what it is.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bertflow.calibrated import CalibratedEncoder
from bertflow.errors import UsageError
from bertflow.export.card import make_card
from bertflow.export.golden import make_golden
from bertflow.export.int8 import measure_int8, write_int8, write_loss
from bertflow.export.onnx_graph import write_onnx
from bertflow.export.parts import Exportable, Parts, raw_encoder, save_tokenizer
from bertflow.export.record import RECORD, write_record
from bertflow.export.st_folder import write_sentence_transformer
from bertflow.files import atomic_folder
from bertflow.registry import lookup

CONFIG = "config.json"
Scores = Callable[[Path], dict[str, Any]]
"""The folder of an ONNX export -> what was measured with labels."""


@dataclass(frozen=True)
class Options:
    """How an export is written.

    Attributes:
        layout: Of a sentence-transformers folder: legacy or modern.
        name: In the card; by default the folder's.
        results: Measured rows for the card (``card.read_results``).
        license: For the card, as the hub spells it.
        notes: Sentences for the card.
        int8_sentences: With some, an int8 graph is written and measured on them.
        int8_scores: What else the int8 graph is measured by.
    """

    layout: str = "legacy"
    name: str = ""
    results: Sequence[Mapping[str, Any]] = ()
    license: str | None = None
    notes: Sequence[str] = ()
    int8_sentences: Sequence[str] = ()
    int8_scores: Scores | None = None


@dataclass(frozen=True)
class Written:
    """What was written.

    Attributes:
        folder: Where.
        ours: Modules of bertflow in it, for which sentence-transformers asks for a flag.
        facts: What was found: modules, or the difference from torch.
        int8: What int8 costs, in one line; empty without it.
    """

    folder: Path
    ours: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    int8: str = ""


def export(system: Exportable, folder: str | Path, target: str, options: Options | None = None) -> Written:
    """Write an encoder, raw or calibrated, for other tools.

    Args:
        system: What is written.
        folder: New, empty, or an earlier export, which is replaced.
        target: A row of ``TARGETS``.
        options: How.

    Raises:
        UnknownNameError: For an unknown target or layout.
        UsageError: If the folder holds something else, or the target cannot do what the encoder does.
        DataError: If what was written does not do what the encoder does.
        MissingExtraError: If the target needs a package that is not installed.
    """
    write, options, folder = lookup("target", TARGETS, target), options or Options(), Path(folder)
    require_replaceable(folder)
    raw_encoder(system)
    with atomic_folder(folder) as aside, TemporaryDirectory() as scratch:
        raw_encoder(system).write(Path(scratch))
        golden = make_golden(system, Path(scratch))
        written = write(system, aside, options)
        golden.write(aside)
        write_record(aside, target, system.describe(), system.dim, dict(written.facts))
        if options.int8_sentences:
            written = _add_int8(written, aside, options)
        card = make_card(
            system,
            options.name or folder.resolve().name,
            target,
            options.results,
            written.ours,
            options.notes,
            options.license,
            written.int8,
        )
        card.save(aside / "README.md")
    return Written(folder, written.ours, written.facts, written.int8)


def require_replaceable(folder: Path) -> None:
    """Refuse to replace what is no earlier export.

    Raises:
        UsageError: If the folder holds something else.
    """
    if folder.is_dir() and any(folder.iterdir()) and not (folder / RECORD).is_file():
        raise UsageError(f"{folder} holds something that is no earlier export. Choose another --output.")


def _sentence_transformers(system: Exportable, aside: Path, options: Options) -> Written:
    modules = write_sentence_transformer(Parts.take(system, aside), options.layout)
    ours = tuple(module.name for module in modules if not module.builtin)
    return Written(aside, ours, {"layout": options.layout, "modules": [module.name for module in modules]})


def _onnx(system: Exportable, aside: Path, options: Options) -> Written:
    with TemporaryDirectory() as scratch:
        parts = Parts.take(system, Path(scratch))
        difference = write_onnx(parts, aside)
        save_tokenizer(parts, aside)
        (aside / CONFIG).write_bytes((Path(scratch) / CONFIG).read_bytes())  # servers read the model's type from it
    return Written(aside, (), {"blocks": parts.depth, "largest_difference_from_torch": difference})


def _safetensors(system: Exportable, aside: Path, options: Options) -> Written:
    if not isinstance(system, CalibratedEncoder):
        raise UsageError(
            "The target safetensors is for a calibrated encoder, this one is raw. Save it with encoder.save(folder)."
        )
    system.write(aside)
    return Written(aside)


def _add_int8(written: Written, aside: Path, options: Options) -> Written:
    write_int8(aside)
    loss = measure_int8(aside, options.int8_sentences)
    scores = options.int8_scores(aside) if options.int8_scores else {}
    write_loss(aside, loss, scores)
    labelled = "".join(
        f"; {name} {100 * pair['float32']:.2f} -> {100 * pair['int8']:.2f}" for name, pair in scores.items()
    )
    return Written(aside, written.ours, written.facts, loss.summary() + labelled)


TARGETS: Mapping[str, Callable[[Exportable, Path, Options], Written]] = {
    "sentence-transformers": _sentence_transformers,
    "onnx": _onnx,
    "safetensors": _safetensors,
}
"""What can be written."""
