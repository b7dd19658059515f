"""What every result can do: the fields of a record become JSON by themselves."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from bertflow.results import AbstractResult


@dataclass(frozen=True)
class Place:
    at: tuple[int, int]


@dataclass(frozen=True)
class Spoken:
    value: float

    def as_dict(self):
        return {"said": self.value}


@dataclass(frozen=True, repr=False)
class Found(AbstractResult):
    folder: Path
    places: tuple[Place, ...]
    spoken: Spoken
    counts: Mapping[int, Any]
    secret: object = None

    format: ClassVar[int | None] = 2
    not_in_json: ClassVar[tuple[str, ...]] = ("secret",)

    def parts(self):
        yield "found"


def test_every_field_that_is_not_left_out_is_ready_for_json():
    counts = {1: np.float32(0.5), 2: np.arange(2)}
    found = Found(Path("a/b"), (Place((1, 2)),), Spoken(0.5), counts, secret=object())
    assert found.as_dict() == {
        "format": 2,
        "folder": "a/b",
        "places": [{"at": [1, 2]}],
        "spoken": {"said": 0.5},
        "counts": {"1": 0.5, "2": [0, 1]},
    }
    assert found.to_json().startswith('{\n  "counts": {\n    "1": 0.5')


class Lines(AbstractResult):
    def parts(self):
        yield from ("A line.", "1. First.", "files     in a", "threshold a match", "raw: no label", "two words  apart")


def test_a_label_stands_out_in_a_document():
    assert Lines().to_markdown() == (
        "* A line.\n1. First.\n* **files** in a\n* **threshold** a match\n* raw: no label\n* two words  apart\n"
    )
