"""``--resume``: go on where a run stopped, however it stopped, to the end that it would have come to.

    auto   continue the run in --output; begin it where there is none; do nothing where it is done
    FILE   from this checkpoint of a run, in its own folder or, with --output, in a new one

A run is continued with its own options. Those that say only where and how it runs, not what comes out, may differ.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bertflow.encoder.identity import Identity
from bertflow.errors import DataError, UsageError
from bertflow.runs.folder import RUN, read_run
from bertflow.training.checkpoints import newest_checkpoint, steps_of

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


def find_resumption(resume: str | None, output: Path | None, values: Mapping[str, Any]) -> Resumption:
    """What ``--resume`` means for the folders as they are.

    Args:
        resume: The option.
        output: The run folder.
        values: All options of this run.

    Raises:
        UsageError: If the run was made with other options, or the options do not say which run.
        DataError: If the checkpoint cannot be read, or stands in no run folder.
    """
    if resume is None:
        return Resumption()
    if resume != AUTO:
        checkpoint = Path(resume)
        run = checkpoint.parent.parent
        if checkpoint.is_file() and not (run / RUN).is_file():
            raise DataError(
                f"A checkpoint to go on from stands in checkpoints/ of a run folder, but {run} has no run.json. "
                "Give one that does."
            )
        steps = steps_of(checkpoint)
        require_same_options(run, values)
        here = output is None or output.resolve() == run.resolve()
        return Resumption(run, checkpoint, steps, done=here and _is_done(run))
    if output is None:
        raise UsageError("--resume auto continues the run in --output, but none was given. Give --output DIR.")
    if not (output / RUN).is_file():
        return Resumption()
    require_same_options(output, values)
    found = newest_checkpoint(output / "checkpoints")
    return Resumption(output, found, steps_of(found) if found else 0, done=_is_done(output))


def require_same_options(run: Path, values: Mapping[str, Any]) -> None:
    """Refuse to continue a run as another one.

    Raises:
        UsageError: For the first option that differs.
    """
    then, now = (dict(_flat(options)) for options in (read_run(run)["options"], values))
    for name in {**now, **then}:
        if then.get(name) != now.get(name) and not any(name == free or name.startswith(f"{free}.") for free in FREE):
            raise UsageError(
                f"The run in {run} was made with {name}={then.get(name)}, but now it is {now.get(name)}. "
                f"Give the options of {run / 'config.yaml'}, or choose another --output."
            )


def require_same_inputs(run: Path, facts: Mapping[str, Any]) -> None:
    """Refuse to continue a run whose text or encoder has changed behind the same options.

    Raises:
        DataError: For the first fact of the text that differs, or all of the encoder.
    """
    record = read_run(run)
    then, do = record.get("text", {}), "Bring back what it was made of, or choose another --output."
    for name, now in facts["text"].items():
        if then.get(name) != now:
            raise DataError(
                f"The run in {run} was made with text.{name} {then.get(name)!r}, but now it is {now!r}. {do}"
            )
    Identity.from_record(record.get("describe", {})).require(
        Identity.from_record(facts["describe"]), f"The run in {run} was made with", do, exact=True
    )


def _is_done(run: Path) -> bool:
    return read_run(run)["status"] == "done"


def _flat(options: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in options.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
