"""``export_encoder``: write an encoder for other tools, check it, and push it."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import Unpack

from bertflow.errors import UsageError
from bertflow.files import require_files, require_place
from bertflow.opening import LoadOptions, calibrator_of, load, require_openable
from bertflow.registry import lookup
from bertflow.results import AbstractResult

if TYPE_CHECKING:
    from bertflow.encoder.abstract import SentenceEncoder
    from bertflow.export.approximation import Int8Loss

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

    def parts(self) -> Iterator[str]:
        """What a person reads."""
        what, facts = self.describe, self.facts
        names = ", ".join(sorted(path.name for path in self.folder.iterdir()))
        yield from self.stand_in
        yield f"encoder   {what['encoder']}, {what['pooling']}, {what.get('calibrator', 'as it comes')}"
        yield f"written   {self.folder} ({names})"
        if "modules" in facts:
            yield f"modules   {' -> '.join(['Transformer', *facts['modules']])}"
        if "chunks" in facts:
            yield f"chunks    {facts['long_texts']}"
        if self.ours:
            flag = f"trust_remote_code=True, as {' and '.join(self.ours)} is bertflow's"
            call = f"bertflow.load_sentence_transformer({str(self.folder)!r})"
            yield f"load      {call}; SentenceTransformer asks for {flag}"
        if "largest_difference_from_torch" in facts:
            yield f"checked   within {facts['largest_difference_from_torch']:.1e} of torch on unseen shapes"
        if self.int8:
            yield f"int8      {self.int8}"
        if self.distance is not None:
            yield f"checked   sentence-transformers gives the golden vectors within {self.distance:.1e} of their length"
        elif self.target == "sentence-transformers":
            yield "checked   not yet: sentence-transformers is not installed here; run `bertflow doctor` elsewhere"
        if self.commit:
            yield f"pushed    {self.commit}"


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
    without_text_hashes: bool = False,
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
        license: License for the model card, as the hub spells it (default: that of the encoder's own README.md).
        push: Repository OWNER/NAME on the hub to upload to afterwards.
        private: With push: make a new repository private.
        without_text_hashes: Leave out the hashes by which an evaluation knows which sentences were seen.
        progress: Whether to show a progress bar (default: in a terminal or a notebook).
        options: ``LoadOptions``.

    Raises:
        UnknownNameError: For an unknown target or layout.
        UsageError: If options contradict each other, the folder holds something else, the target cannot do what the
            encoder does, or the hub refuses.
        DataError: If what was written does not compute what the encoder computes.
        MissingExtraError: If the target needs a package that is not installed.
    """
    from bertflow.data.sts import expand_tasks, load_sts, require_tasks
    from bertflow.export import approximation, onnx_encoder, targets
    from bertflow.export.st_folder import TYPES

    folder, scored = Path(output), bool(tasks or data_dir)
    lookup("target", targets.TARGETS, target)
    lookup("layout", TYPES, layout)
    for option, asked, only in (
        ("int8", int8, ("onnx",)),
        ("linearize", linearize, ("sentence-transformers", "onnx")),
        ("layout", layout != "legacy", ("sentence-transformers",)),
    ):
        if asked and target not in only:
            raise UsageError(f"--{option} is for the target {' or '.join(only)}, got {target}. Leave it out.")
    if text and not linearize:
        raise UsageError("--text is what --linearize is fitted on. Add --linearize, or leave it out.")
    if scored and not (int8 or linearize):
        raise UsageError("--tasks and --data_dir are for --linearize and --int8. For scores use `bertflow evaluate`.")
    if private and not push:
        raise UsageError("--private is for --push. Add --push OWNER/NAME, or leave it out.")
    if push:
        targets.require_name(push)
    if target == "onnx":
        onnx_encoder.require_onnx()
    targets.require_earlier(folder)
    require_place(folder, folder=True)
    require_files(text, results)
    if scored:
        require_tasks(tasks or TASKS, data_dir or "hub")
    require_openable(model, **options)
    if linearize:
        approximation.require_flow(calibrator_of(model, options.get("revision")))

    where = str(data_dir or "hub")
    sets = [load_sts(task, where) for task in expand_tasks(tasks or TASKS, where)] if scored else []
    if isinstance(model, str | Path):
        options["device"] = "cpu"
        model = load(model, **options)
    if without_text_hashes:
        model.forget_text()
    cost: list[str] = []
    if linearize:
        model, cost = approximation.linearize(model, text, sets, progress)
    written = targets.write_export(
        model,
        folder,
        target,
        layout=layout,
        name=push or name or "",
        results=targets.read_results(Path(results), model.describe()) if results else (),
        license=license,
        notes=[f"It stands in for a flow: {line}" for line in cost],
        int8=partial(approximation.add_int8, sets=sets, progress=progress) if int8 else None,
    )
    distance = targets.golden_distance(folder) if target == "sentence-transformers" else None
    commit = targets.push_export(folder, push, private) if push else ""
    return replace(written, stand_in=tuple(cost), distance=distance, commit=commit)
