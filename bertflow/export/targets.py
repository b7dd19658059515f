"""Write an encoder for other tools: one folder a target, complete or absent.

    sentence-transformers   a folder that SentenceTransformer loads
    onnx                    one graph and a tokenizer, nothing else needed
    safetensors             a folder that CalibratedEncoder.load reads

Every folder holds a model card, ``golden.json``, and ``bertflow_export.json``, which says what was exported.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from typing_extensions import Unpack

from bertflow.errors import MissingExtraError, UsageError
from bertflow.export.onnx_encoder import RECORD, write_record
from bertflow.files import atomic_folder
from bertflow.opening import LoadOptions, load
from bertflow.registry import lookup
from bertflow.results import AbstractResult

if TYPE_CHECKING:
    from bertflow.encoder.abstract import SentenceEncoder
    from bertflow.export.onnx_graph import Int8Loss

CONFIG = "config.json"
APPROXIMATIONS: Mapping[str, tuple[str, ...]] = {
    "int8": ("onnx",),
    "linearize": ("sentence-transformers", "onnx"),
}
"""An option -> the targets that it applies to."""
TASKS = "tuning"
"""STS tasks by default: choices are not made on test sets."""


@dataclass(frozen=True, repr=False)
class Exported(AbstractResult):
    """An encoder that was written for other tools.

    Attributes:
        folder: Where it was written.
        target: A row of ``TARGETS``.
        describe: ``describe()`` of the encoder.
        ours: Modules of bertflow in it, for which sentence-transformers asks for a flag.
        facts: What was chosen or measured: layout and modules, or the difference from torch.
        stand_in: What an affine stand-in for a flow costs, in words; empty without one.
        int8: What int8 costs; None without it.
        distance: Distance of what sentence-transformers computes from the golden vectors, as a share of their length;
            None where that was not checked.
        commit: Address of the commit on the hub; empty if it was not pushed.
    """

    folder: Path
    target: str
    describe: Mapping[str, Any]
    ours: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    stand_in: tuple[str, ...] = ()
    int8: "Int8Loss | None" = None
    distance: float | None = None
    commit: str = ""

    def parts(self) -> list[str]:
        """What a person reads."""
        what = self.describe
        names = ", ".join(sorted(path.name for path in self.folder.iterdir()))
        lines = [
            *self.stand_in,
            f"encoder   {what['encoder']}, {what['pooling']}, {what.get('calibrator', 'as it comes')}",
            f"written   {self.folder} ({names})",
        ]
        if "modules" in self.facts:
            lines.append(f"modules   {' -> '.join(['Transformer', *self.facts['modules']])}")
        if self.ours:
            lines.append(
                f"load      bertflow.load_sentence_transformer({str(self.folder)!r}); SentenceTransformer asks for "
                f"trust_remote_code=True, as {' and '.join(self.ours)} is bertflow's"
            )
        if "largest_difference_from_torch" in self.facts:
            difference = self.facts["largest_difference_from_torch"]
            lines.append(f"checked   within {difference:.1e} of torch on unseen shapes")
        if self.int8:
            lines.append(f"int8      {self.int8}")
        if self.distance is not None:
            lines.append(
                f"checked   sentence-transformers gives the golden vectors within {self.distance:.1e} of their length"
            )
        elif self.target == "sentence-transformers":
            lines.append(
                "checked   not yet: sentence-transformers is not installed here; run `bertflow doctor` elsewhere"
            )
        return [*lines, *([f"pushed    {self.commit}"] if self.commit else [])]


def export_encoder(
    model: "str | Path | SentenceEncoder",
    output: str | Path,
    target: str,
    *,
    layout: str = "legacy",
    linearize: bool = False,
    text: str | Path | None = None,
    int8: bool = False,
    tasks: str | None = None,
    data_dir: str | Path | None = None,
    results: str | Path | None = None,
    name: str | None = None,
    license: str | None = None,  # noqa: A002 - the hub's word
    push: str | None = None,
    private: bool = False,
    progress: bool | None = None,
    **options: Unpack[LoadOptions],
) -> Exported:
    """Write an encoder, calibrated or raw, for other tools.

    Every export holds a model card, and golden vectors that `bertflow doctor` compares a server with.

    Args:
        model: What to export: a run folder, a saved encoder, or any encoder (hub id or folder).
        output: Folder to write: new, empty, or an earlier export, which is replaced.
        target: sentence-transformers, onnx or safetensors.
        layout: Class paths of a sentence-transformers folder: legacy, which servers know, or modern.
        linearize: Replace a flow by the best affine map.
        text: Text to fit that map on (default: docstrings of installed packages).
        int8: With the target onnx: also write an approximate int8 graph, and its loss.
        tasks: STS tasks on which the map and the int8 graph are scored (default with data_dir: tuning).
        data_dir: Folder of the STS data (hub: download it).
        results: results.json of `bertflow evaluate`, for the model card.
        name: Name in the model card (default: the folder's name).
        license: License for the model card, as the hub spells it; it depends on the encoder's own.
        push: Repository OWNER/NAME on the hub to upload to afterwards.
        private: With push: make a new repository private.
        progress: Whether to show a progress bar (default: in a terminal or a notebook).
        options: ``LoadOptions``.

    Raises:
        UnknownNameError: For an unknown target or layout.
        UsageError: If options contradict each other, the folder holds something else, the target cannot do what the
            encoder does, or the hub refuses.
        DataError: If what was written does not compute what the encoder computes.
        MissingExtraError: If the target needs a package that is not installed.
    """
    folder, scored = Path(output), bool(tasks or data_dir)
    _check({"int8": int8, "linearize": linearize}, target, folder, text, scored, push, private)
    from bertflow.calibrated import CalibratedEncoder
    from bertflow.data.sts import expand_tasks, load_sts
    from bertflow.export.approximation import add_int8, linearized
    from bertflow.export.card import push_export, read_results

    where = str(data_dir or "hub")
    sets = [load_sts(task, where) for task in expand_tasks(tasks or TASKS, where)] if scored else []
    if isinstance(model, str | Path):
        options["device"] = "cpu"
        model = load(model, **options)
    system, cost = model, list[str]()
    if linearize:
        if not isinstance(system, CalibratedEncoder):
            raise UsageError(
                f"--linearize is for a flow, but {system.describe()['encoder']} is a raw encoder. Leave it out."
            )
        system, cost = linearized(system, text, sets, progress)
    written = write_export(
        system,
        folder,
        target,
        layout=layout,
        name=push or name or "",
        results=read_results(Path(results), system.describe()) if results else (),
        license=license,
        notes=[f"It stands in for a flow: {line}" for line in cost],
        int8=partial(add_int8, sets=sets, progress=progress) if int8 else None,
    )
    distance = _distance(folder) if target == "sentence-transformers" else None
    commit = push_export(folder, push, private) if push else ""
    return replace(written, stand_in=tuple(cost), distance=distance, commit=commit)


def _check(
    approximations: Mapping[str, bool],
    target: str,
    folder: Path,
    text: str | Path | None,
    scored: bool,
    push: str | None,
    private: bool,
) -> None:
    """Refuse everything that can be refused before anything is computed."""
    lookup("target", TARGETS, target)
    for name, asked in approximations.items():
        if asked and target not in APPROXIMATIONS[name]:
            fitting = " or ".join(APPROXIMATIONS[name])
            raise UsageError(f"--{name} is for the target {fitting}, got {target}. Leave it out.")
    if text and not approximations["linearize"]:
        raise UsageError("--text is what --linearize is fitted on. Add --linearize, or leave it out.")
    if scored and not any(approximations.values()):
        raise UsageError("--tasks and --data_dir are for --linearize and --int8. For scores use `bertflow evaluate`.")
    if private and not push:
        raise UsageError("--private is for --push. Add --push OWNER/NAME, or leave it out.")
    if push:
        from bertflow.export.card import require_name

        require_name(push)
    if target == "onnx":
        from bertflow.export.onnx_graph import require_onnx

        require_onnx()
    require_replaceable(folder)


def write_export(
    system: "SentenceEncoder",
    folder: Path,
    target: str,
    layout: str = "legacy",
    name: str = "",
    results: Sequence[Mapping[str, Any]] = (),
    license: str | None = None,  # noqa: A002 - the hub's word
    notes: Sequence[str] = (),
    int8: "Callable[[Path], Int8Loss] | None" = None,
) -> Exported:
    """Write an open encoder; ``export_encoder`` is this with everything before and after it.

    Args:
        system: The encoder.
        folder: New, empty, or an earlier export, which is replaced.
        target: A row of ``TARGETS``.
        layout: Layout of a sentence-transformers folder: legacy or modern.
        name: Name in the card; by default the folder's.
        results: Measured rows for the card (``card.read_results``).
        license: License for the card, as the hub spells it.
        notes: Sentences for the card.
        int8: Writes an int8 graph into the folder and gives its loss.
    """
    from bertflow.export.card import make_card
    from bertflow.export.golden import make_golden
    from bertflow.export.parts import transformer_of
    from bertflow.export.st_folder import OURS

    write = lookup("target", TARGETS, target)
    require_replaceable(folder)
    encoder = transformer_of(system)
    with atomic_folder(folder) as aside, TemporaryDirectory() as scratch:
        encoder.write(Path(scratch))
        golden = make_golden(system, Path(scratch))
        facts = write(system, aside, layout)
        golden.write(aside)
        write_record(aside, target, system.describe(), system.dim, facts)
        ours = tuple(module for module in facts.get("modules", ()) if module in OURS)
        loss = int8(aside) if int8 else None
        card_name, cost = name or folder.resolve().name, str(loss or "")
        card = make_card(system, card_name, target, results, ours, notes, license, cost)
        card.save(aside / "README.md")
    return Exported(folder, target, system.describe(), ours, facts, int8=loss)


def require_replaceable(folder: Path) -> None:
    """Check that nothing but an earlier export would be replaced.

    Raises:
        UsageError: If the folder holds something else.
    """
    if folder.is_dir() and any(folder.iterdir()) and not (folder / RECORD).is_file():
        raise UsageError(f"{folder} holds something that is not an earlier export. Choose another --output.")


def _sentence_transformers(system: "SentenceEncoder", aside: Path, layout: str) -> dict[str, Any]:
    from bertflow.export.parts import Parts
    from bertflow.export.st_folder import write_sentence_transformer

    modules = write_sentence_transformer(Parts.take(system, aside), layout)
    return {"layout": layout, "modules": [module.name for module in modules]}


def _onnx(system: "SentenceEncoder", aside: Path, layout: str) -> dict[str, Any]:
    from bertflow.export.onnx_graph import write_onnx
    from bertflow.export.parts import Parts

    with TemporaryDirectory() as scratch:
        parts = Parts.take(system, Path(scratch))
        difference = write_onnx(parts, aside)
        parts.save_tokenizer(aside)
        (aside / CONFIG).write_bytes((Path(scratch) / CONFIG).read_bytes())  # servers read the model's type from it
    return {"blocks": parts.depth, "largest_difference_from_torch": difference}


def _safetensors(system: "SentenceEncoder", aside: Path, layout: str) -> dict[str, Any]:
    from bertflow.calibrated import CalibratedEncoder

    if not isinstance(system, CalibratedEncoder):
        raise UsageError(
            "The target safetensors is for a calibrated encoder, this one is raw. Save it with encoder.save(folder)."
        )
    system.write(aside)
    return {}


TARGETS: Mapping[str, Callable[["SentenceEncoder", Path, str], dict[str, Any]]] = {
    "sentence-transformers": _sentence_transformers,
    "onnx": _onnx,
    "safetensors": _safetensors,
}
"""What can be written: given the encoder, the folder and the layout, it returns the facts for the record."""


def _distance(folder: Path) -> float | None:
    """Distance of what sentence-transformers computes from the golden vectors; None if it is not installed."""
    import numpy as np

    from bertflow.export.diagnosis import distances
    from bertflow.export.golden import Golden
    from bertflow.export.st_folder import load_sentence_transformer

    golden = Golden.read(folder)
    try:
        model = load_sentence_transformer(folder, device="cpu")
    except MissingExtraError:
        return None
    return float(distances(np.asarray(model.encode(golden.sentences), np.float32), golden.vectors).max())
