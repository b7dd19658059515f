"""Limits of YAML, before objects are made of it: whatever a command line or a file of options holds is read here.

YAML can nest without end, and an alias can stand for a list of aliases, so that a few lines mean billions of values.
The parser's events come one by one, and tell both beforehand.
"""

from dataclasses import dataclass
from typing import Any

import yaml
from jsonargparse import get_loader, set_loader

CHARACTERS = 2**22
"""Length of a text."""
VALUES = 100_000
"""Values in it, where each alias counts as what it stands for."""
DEPTH = 50
"""Levels of lists and mappings, those that aliases stand for included."""


@dataclass
class _Node:
    """A value: how many values and levels it has, and the anchor that aliases call it by."""

    anchor: str | None = None
    values: int = 1
    depth: int = 0


_read: Any = get_loader("yaml")


def limit_yaml() -> None:
    """Let jsonargparse refuse YAML beyond the limits, as it refuses what is not YAML."""
    set_loader("yaml", _read_small, (yaml.YAMLError,))


def _read_small(text: str) -> Any:
    _require_small(text)
    return _read(text)


def _require_small(text: str) -> None:
    if len(text) > CHARACTERS:
        raise yaml.YAMLError(f"it has {len(text):,} characters, and {CHARACTERS:,} are read at most")
    named, open_ = dict[str, _Node](), [_Node()]
    for event in yaml.parse(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
        if isinstance(event, yaml.CollectionStartEvent):
            open_.append(_Node(event.anchor))
        elif isinstance(event, yaml.NodeEvent | yaml.CollectionEndEvent):
            node = open_.pop() if isinstance(event, yaml.CollectionEndEvent) else _Node(getattr(event, "anchor", None))
            if isinstance(event, yaml.AliasEvent):
                node = named.get(event.anchor, _Node(values=VALUES))  # in itself it stands for endlessly many
            elif node.anchor:
                named[node.anchor] = node
            open_[-1].values += node.values
            open_[-1].depth = max(open_[-1].depth, node.depth + 1)
        if len(open_) + open_[-1].depth > DEPTH or open_[-1].values > VALUES:
            raise yaml.YAMLError(
                f"it has more than {VALUES:,} values, where each alias counts as what it stands for, or more than "
                f"{DEPTH} levels"
            )
