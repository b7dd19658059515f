"""``resume``: continue a run, however it stopped, to the end that it would have come to.

    auto   continue the run in the output folder; begin it where there is none; do nothing where it is done
    FILE   from this checkpoint of a run, in its own folder or in a new one

A run is continued with its own options, text and encoder. Options that only say where and how it runs may differ.
"""

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NotRequired

from typing_extensions import TypedDict

from bertflow.errors import DataError, UsageError
from bertflow.records import read_record

if TYPE_CHECKING:
    from bertflow.encoder.abstract import SentenceEncoder

RUN = "run.json"
"""Written last when a run begins: a folder that has it can be continued."""
AUTO = "auto"
FREE = (
    "output",
    "report",
    "resume",
    "data.data_dir",
    "data.store",
    "encoder.device",
    "trainer.accelerator",
    "trainer.devices",
    "trainer.enable_progress_bar",
    "trainer.logger",
    "trainer.max_time",
    "trainer.num_nodes",
    "trainer.profiler",
    "trainer.strategy",
)
"""Options that may differ when a run is continued."""


class RunRecord(TypedDict):
    """What ``run.json`` cannot be continued without."""

    options: dict[str, Any]
    status: str
    text: NotRequired[dict[str, Any]]
    describe: NotRequired[dict[str, Any]]
    fit: NotRequired[dict[str, Any]]


def read_run(folder: Path) -> RunRecord:
    """What ``run.json`` says.

    Raises:
        DataError: If it is missing or damaged.
    """
    return read_record(folder / RUN, RunRecord, "training run", "Choose another folder for a new run.")


@dataclass(frozen=True)
class Resumption:
    """Where a run goes on.

    Attributes:
        run: The run folder that was left; None for a run that begins.
        checkpoint: The checkpoint in it; None where it stopped before the first one.
        steps: Steps taken by then.
        done: Whether the run came to its end.
    """

    run: Path | None = None
    checkpoint: Path | None = None
    steps: int = 0
    done: bool = False


def find_resumption(resume: str | Path | None, output: Path | None, options: Mapping[str, Any]) -> Resumption:
    """What ``resume`` means for the folders as they are.

    Raises:
        UsageError: If the run was made with other options, or the options do not say which run.
        DataError: If the checkpoint cannot be read, or is in no run folder.
    """
    if resume is None:
        return Resumption()
    from bertflow.training.checkpoints import newest_checkpoint, steps_of

    if resume != AUTO:
        checkpoint = Path(resume)
        run = checkpoint.parent.parent
        if checkpoint.is_file() and not (run / RUN).is_file():
            raise DataError(
                f"A checkpoint to go on from is in checkpoints/ of a run folder, but {run} has no run.json. "
                "Give one that does."
            )
        steps = steps_of(checkpoint)
        require_same_options(run, options)
        here = output is None or output.resolve() == run.resolve()
        return Resumption(run, checkpoint, steps, done=here and read_run(run)["status"] == "done")
    if output is None:
        raise UsageError("--resume auto continues the run in --output, but none was given. Give --output DIR.")
    if not (output / RUN).is_file():
        return Resumption()
    require_same_options(output, options)
    found = newest_checkpoint(output / "checkpoints")
    return Resumption(output, found, steps_of(found) if found else 0, done=read_run(output)["status"] == "done")


def require_same_options(run: Path, options: Mapping[str, Any]) -> None:
    """Refuse to continue a run as another one.

    Raises:
        UsageError: For the first option that differs.
    """
    import pytorch_lightning as pl

    left_out = {f"trainer.{name}": one.default for name, one in inspect.signature(pl.Trainer).parameters.items()}
    then, now = ({**left_out, **dict(flat_options(each))} for each in (read_run(run)["options"], options))
    for name in {**now, **then}:
        if then.get(name) != now.get(name) and not any(name == free or name.startswith(f"{free}.") for free in FREE):
            raise UsageError(
                f"The run in {run} was made with {name}={then.get(name)}, but now it is {now.get(name)}. "
                f"Give the options of {run / 'config.yaml'}, or choose another --output."
            )


def require_same_inputs(run: Path, text: Mapping[str, Any], encoder: "SentenceEncoder") -> None:
    """Refuse to continue a run whose text or encoder has changed behind the same options.

    Raises:
        DataError: For the first fact about the text that differs, or for all about the encoder.
    """
    from bertflow.encoder.identity import Identity

    then, do = read_run(run), "Use what it was made from, or choose another --output."
    before = then.get("text", {})
    for name, now in text.items():
        if before.get(name) != now:
            raise DataError(
                f"The run in {run} was made with text.{name} {before.get(name)!r}, but now it is {now!r}. {do}"
            )
    Identity.from_record(then.get("describe", {})).require(
        encoder.identity, f"The run in {run} was made by", do, exact=True
    )


def flat_options(options: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of a tree of options, as ``flow.glow.hidden``."""
    for name, value in options.items():
        if isinstance(value, Mapping):
            yield from flat_options(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
