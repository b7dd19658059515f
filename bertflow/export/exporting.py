"""An export from what a user names: checked before anything is read, opened, written, compared and pushed."""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from bertflow.data.sts import expand_tasks, load_sts, require_tasks
from bertflow.encoder.abstract import SentenceEncoder
from bertflow.export import approximation, onnx_encoder, targets
from bertflow.export.exported import Exported
from bertflow.export.st_folder import TYPES
from bertflow.opening import LoadOptions, calibrator_of, load, require_openable
from bertflow.registry import lookup


@dataclass(frozen=True)
class ToExport:
    """What is asked for: arguments of ``bertflow.export_encoder``."""

    target: str
    layout: str
    linearize: bool
    text: str | Path | None
    int8: bool
    results: str | Path | None
    name: str | None
    license: str | None
    push: str | None
    private: bool
    progress: bool | None

    def written(
        self,
        model: str | Path | SentenceEncoder,
        options: LoadOptions,
        folder: Path,
        suite: tuple[str, str] | None,
        without_text_hashes: bool,
    ) -> Exported:
        """Write a model; ``suite`` names STS tasks and their folder, on which what is approximate is scored."""
        lookup("target", targets.TARGETS, self.target)
        lookup("layout", TYPES, self.layout)
        if self.push:
            targets.require_name(self.push)
        if self.target == "onnx":
            onnx_encoder.require_onnx()
        targets.require_earlier(folder)
        if suite:
            require_tasks(*suite)
        require_openable(model, **options)
        if self.linearize:
            approximation.require_flow(calibrator_of(model, options.get("revision")))

        sets = [load_sts(task, suite[1]) for task in expand_tasks(*suite)] if suite else []
        if isinstance(model, str | Path):
            options["device"] = "cpu"
            model = load(model, **options)
        if without_text_hashes:
            model.forget_text()
        cost: list[str] = []
        if self.linearize:
            model, cost = approximation.linearize(model, self.text, sets, self.progress)
        written = targets.write_export(
            model,
            folder,
            self.target,
            layout=self.layout,
            name=self.push or self.name or "",
            results=targets.read_results(Path(self.results), model.describe()) if self.results else (),
            license=self.license,
            notes=[f"It stands in for a flow: {line}" for line in cost],
            int8=partial(approximation.add_int8, sets=sets, progress=self.progress) if self.int8 else None,
        )
        distance = targets.golden_distance(folder) if self.target == "sentence-transformers" else None
        commit = targets.push_export(folder, self.push, self.private) if self.push else ""
        return replace(written, stand_in=tuple(cost), distance=distance, commit=commit)
