import json
from dataclasses import dataclass, field
from typing import Literal, NotRequired

import pytest
from typing_extensions import TypedDict

from bertflow.records import FileName, read_record


@dataclass(frozen=True)
class Box:
    format: Literal[1]
    n: int
    names: tuple[str, ...] = ()
    sha256: dict[FileName, str] = field(default_factory=dict)
    size: float | None = None


class Settings(TypedDict):
    length: NotRequired[int]


@pytest.fixture
def read(tmp_path):
    def read(content, schema):
        path = tmp_path / "box.json"
        path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
        return read_record(path, schema, "box", "Pack it again.")

    return read


def test_a_record_comes_back_as_its_dataclass(read):
    content = {"format": 1, "n": 3, "names": ["a"], "sha256": {"a.npy": "0f"}, "size": 2, "later": "ignored"}
    assert read(content, Box) == Box(1, 3, ("a",), {"a.npy": "0f"}, 2.0)


def test_a_typed_dict_keeps_the_fields_that_it_does_not_name(read):
    assert read({"other": [1, {"x": None}]}, Settings) == {"other": [1, {"x": None}]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "is damaged: it should hold JSON, but: EOF while parsing an object at line 1 column 1. Pack it again."),
        (b"\xff", "is damaged: it should hold JSON, but: expected value at line 1 column 1. Pack it again."),
        ([], "is not a complete box: it should be an object, got []. Pack it again."),
        (None, "is not a complete box: it should be an object, got null. Pack it again."),
        ({"format": 2}, "was made by another version of bertflow: it has format 2, this one reads 1. Pack it again."),
        ({"n": 1}, "is not a complete box: it has no format. Pack it again."),
        ({"format": 1}, "is not a complete box: it has no n. Pack it again."),
        ({"format": 1, "n": "3"}, "is not a complete box: n should be a valid integer, got '3'. Pack it again."),
        ({"format": 1, "n": True}, "is not a complete box: n should be a valid integer, got True. Pack it again."),
        ({"format": 1, "n": None}, "is not a complete box: n should be a valid integer, got null. Pack it again."),
        ({"format": 1, "n": 1, "names": ["a", 2]},
         "is not a complete box: names.1 should be a valid string, got 2. Pack it again."),
        ({"format": 1, "n": 1, "sha256": {"../a": ""}},
         "is not a complete box: sha256 should be a plain file name, got '../a'. Pack it again."),
    ],
)  # fmt: skip
def test_a_wrong_record_is_one_line_with_file_and_field(read, tmp_path, content, message, refusal):
    assert refusal(read, content, Box) == (f"{tmp_path / 'box.json'} {message}")


def test_a_missing_record_names_its_folder(tmp_path, refusal):
    assert refusal(read_record, tmp_path / "box.json", Box) == (
        f"{tmp_path / 'box.json'} is missing. Is {tmp_path} the right folder, and complete?"
    )
