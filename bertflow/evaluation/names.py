"""What tables call a system: the name in ``NAME=path``, what its encoder says, or the end of its path.

Each command that writes an encoder calls its folder "encoder", so of such a folder the one above is named too.
"""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from bertflow.encoder import ENCODER, known_as

if TYPE_CHECKING:
    from bertflow.encoder.abstract import SentenceEncoder

CHOSEN = "fix.json"
"""Record beside an encoder that `bertflow fix` wrote: it tells which labels chose it."""
Model: TypeAlias = "str | Path | SentenceEncoder"
"""What is scored: a hub id, a folder or a file; or an encoder."""
Text: TypeAlias = str | Path | Sequence[str]
"""A text that a user gives: a file, or its sentences."""


def split_name(model: Model) -> tuple[str, Model]:
    """The name in ``NAME=path``, and the path; a path that exists is taken as it is, and its name is empty."""
    if not isinstance(model, str) or os.path.lexists(model):
        return "", model
    name, _, path = model.partition("=")
    return (name, path) if path and name and name == Path(name).name else ("", model)


def name_of(model: Model) -> str:
    """What tables call a system that stands alone: the name of its folder, or what its encoder says."""
    return _parts(model)[-1]


def distinct_names(models: Sequence[tuple[str, Model]]) -> list[str]:
    """What tables call several systems: the name that was given, else the shortest end of a path that no other has."""
    parts = [[name] if name else _parts(model) for name, model in models]
    names = []
    for own in parts:
        others = [one for one in parts if one != own]
        apart = (size for size in range(1, len(own)) if all(one[-size:] != own[-size:] for one in others))
        names.append("/".join(own[-next(apart, len(own)) :]))
    return names


def _parts(model: Model) -> list[str]:
    if not isinstance(model, str | Path):
        return [str(model.describe().get("encoder", type(model).__name__))]
    if not Path(model).exists():
        return [str(model)]
    folder = Path(model).resolve()
    *above, last = folder.as_posix().split("/")
    return [*above[:-1], f"{above[-1]}/{last}"] if last == ENCODER else [*above, known_as(folder)]


def poolings_differ(poolings: Iterable[str]) -> list[str]:
    """The line that says which poolings are compared; none where they are one."""
    names = [*dict.fromkeys(poolings)]
    return [f"Poolings differ ({', '.join(names)}), so a difference may come from the pooling."] if names[1:] else []
