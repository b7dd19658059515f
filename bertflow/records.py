"""JSON records and small arrays, read through a schema: what is missing, damaged or of another form is one line.

A schema is a frozen dataclass or a ``TypedDict`` beside the code that owns the record. Values must have the type that
the schema gives (no "5" for 5), and numbers are finite. A record of another ``format`` is one of another version, and
is refused. Fields that a schema does not name are allowed: a dataclass leaves them out; for a ``TypedDict`` the record
comes back as it stands in the file.

A record may hold its own checksum, and those of the files beside it. They catch accidents, not attackers: an
attacker who can write the files can write the record.
"""

import functools
import hashlib
import json
import math
import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails, from_json
from typing_extensions import TypedDict, is_typeddict

from bertflow.errors import BertflowError, DataError, UsageError, reason_of
from bertflow.files import file_sha256, restore, to_json, write_text
from bertflow.places import require_files

Record = TypeVar("Record")
SEAL = "record_sha256"
"""The key of a record's own checksum; what other tools wrote has none."""
SHOWN = 60
"""Characters of a wrong value that a message shows."""


def _plain(name: str) -> str:
    if name in (".", "..") or set(name) & set("/\\\0") or len(os.fsencode(name)) > 255:
        raise ValueError("a plain file name")
    return name


FileName = Annotated[str, AfterValidator(_plain)]
"""The plain name of a file in the folder of the record, so that a record cannot point out of its folder."""
Checked = AfterValidator
"""Check by a function, in a schema."""
Checksums = dict[FileName, str]
"""SHA-256 of files in the folder of the record, by their names."""
Size = Annotated[int, Field(ge=1, le=2**31)]
"""A width, a length or a number of parts."""
Count = Annotated[int, Field(ge=0, lt=2**63)]
"""A number of rows, of bytes and the like."""
_adapter: Callable[[Any], TypeAdapter[Any]] = functools.cache(TypeAdapter)


def read_record(path: str | Path, schema: type[Record], what: str = "record", do: str = "Write it again.") -> Record:
    """Read a JSON file.

    Args:
        path: The file.
        schema: What it should hold. A field ``format: Literal[...]`` is the version of the form.
        what: What the record is, for messages.
        do: What the user can do about a wrong file, for messages.

    Raises:
        DataError: If the file is missing, is not JSON, or is of another form; the message names file and field.
    """
    path = Path(path)
    restore(path.parent)
    require_files(path, parts=True)
    return parse_record(path.read_bytes(), schema, str(path), what, do)


def parse_record(
    content: str | bytes, schema: type[Record], name: str, what: str, do: str, finite: bool = True
) -> Record:
    """Do what ``read_record`` does, for JSON that was read already; ``name`` is what messages call it.

    With ``finite=False`` numbers may be NaN or infinite; such a record has no checksum.
    """
    try:
        record, whole = _adapter(schema).validate_json(content, strict=True), from_json(content)
        found = _seal(whole) if finite else None
    except ValidationError as error:
        raise DataError(_message(error.errors()[0], name, what, do)) from None
    except ValueError:
        raise DataError(f"{name} is not a {what}: all its numbers should be finite, one is not. {do}") from None
    if finite and isinstance(whole, dict) and whole.get(SEAL, found) != found:
        raise DataError(f"{name} is damaged: {SEAL}, its checksum, is not that of what it holds. {do}")
    return whole if is_typeddict(schema) else record


def write_record(path: Path, record: Mapping[str, Any], indent: int | None = 2) -> None:
    """Write a record with its checksum, whole or not at all; without ``indent`` on one line."""
    plain = json.loads(to_json(record, indent=None))
    write_text(path, to_json({**plain, SEAL: _seal(plain)}, indent))


def _seal(record: Any) -> str:
    """The checksum of a record, however it is written down."""
    if isinstance(record, dict):
        record = {key: value for key, value in record.items() if key != SEAL}
    return hashlib.sha256(json.dumps(record, sort_keys=True, allow_nan=False).encode()).hexdigest()


def read_arrays(
    path: Path,
    wanted: Mapping[str, tuple[str, int]] | None = None,
    optional: Collection[str] = (),
    do: str = "Write it again.",
) -> dict[str, NDArray[Any]]:
    """Read the arrays of a safetensors file.

    Args:
        path: The file.
        wanted: The name of each array with its type and its number of dimensions, as ``{"counts": ("int64", 1)}``;
            None takes whatever is there.
        optional: Names of arrays that may be missing.
        do: What the user can do about a wrong file, for messages.

    Raises:
        DataError: If the file is missing or damaged, holds other arrays, or a number that is not finite.
    """
    import safetensors.numpy

    require_files(path, parts=True)
    try:
        arrays = safetensors.numpy.load_file(path)
    except (safetensors.SafetensorError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path} is damaged: it should hold safetensors, but: {reason_of(error)}. {do}") from None
    forms = {name: (str(array.dtype), array.ndim) for name, array in arrays.items()}
    if wanted is not None and forms != (
        full := {name: wanted[name] for name in wanted if name in forms or name not in optional}
    ):
        raise DataError(f"{path} is damaged: it should hold {_arrays(full)}, but holds {_arrays(forms)}. {do}")
    if odd := [name for name, array in arrays.items() if not np.isfinite(array).all()]:
        raise DataError(f"{path} is damaged: {odd[0]} is not finite. {do}")
    return dict(arrays)


def _arrays(forms: Mapping[str, tuple[str, int]]) -> str:
    return ", ".join(f"{name} ({dtype}, {ndim}-D)" for name, (dtype, ndim) in sorted(forms.items())) or "nothing"


def checksums(folder: Path, *patterns: str) -> Checksums:
    """The checksum of every file in a folder, or of those of some patterns."""
    found = sorted({path for pattern in patterns or ("*",) for path in folder.glob(pattern)})
    return {path.name: file_sha256(path) for path in found if path.is_file()}


def require_whole(
    record: Path, listed: Checksums, belong: Collection[str], what: str, folder: Path | None = None
) -> None:
    """Compare files with the checksums in a record; each is read once, in blocks.

    Args:
        record: The record.
        listed: Its checksums.
        belong: The names of the files that should have one.
        what: What the folder is, for messages.
        folder: Where the files are; by default beside the record.

    Raises:
        DataError: If a file or its checksum is missing, or a file is not what was written.
    """
    folder, do = folder or record.parent, f"Save the {what} again"
    if odd := sorted(set(belong) ^ listed.keys()):
        raise DataError(
            f"{record} should hold the checksums of {', '.join(sorted(belong))}, but {odd[0]} is "
            f"{'missing' if odd[0] in belong else 'not one of them'}. {do}."
        )
    for name, checksum in listed.items():
        path = folder / name
        if not path.is_file():
            raise DataError(f"{path} is missing from the {what} folder. {do}, or copy it whole.")
        if file_sha256(path) != checksum:
            raise DataError(f"{path} is damaged: its checksum is not the one in {record.name}. {do}.")


def require_fields(options: object, group: str, least: Mapping[str, float]) -> None:
    """Refuse a dataclass with a value of another type than its field states, or a number not finite or below its least.

    Raises:
        UsageError: For the first one, as ``group.name``.
    """
    for name, wanted in get_type_hints(type(options)).items():
        value = getattr(options, name)
        plain = value.item() if isinstance(value, np.generic) else value
        try:
            _adapter(wanted).validate_python(plain, strict=True)
            wrong = ["a finite number"] if isinstance(plain, float) and not math.isfinite(plain) else []
        except ValidationError as error:
            wrong = [each["msg"].removeprefix("Input should be ") for each in error.errors()]
        if wrong:
            raise UsageError(f"{group}.{name} should be {' or '.join(wrong)}, got {value!r}.")
        if name in least and isinstance(plain, int | float) and plain < least[name]:
            raise UsageError(f"{group}.{name} must be at least {least[name]}, got {value}.")


def other_version(name: object, found: object, wanted: object, do: str) -> str:
    """The refusal of a format that this version does not read."""
    return f"{name} was made by another version of bertflow: it has format {found}, this one reads {wanted}. {do}"


def _message(error: ErrorDetails, name: str, what: str, do: str) -> str:
    """What was wanted, what was found and what to do, for the first thing that is wrong."""
    if error["type"] == "json_invalid":
        return f"{name} is damaged: it should hold JSON, but: {error['ctx']['error']}. {do}"
    if isinstance(cause := error.get("ctx", {}).get("error"), BertflowError):
        return f"{name}: {cause}"
    place = error["loc"][:-2] if "[key]" in error["loc"] else error["loc"]
    field = ".".join(map(str, place))
    value = "null" if error["input"] is None else repr(error["input"])
    found = value if len(value) <= SHOWN else f"{value[:SHOWN]}..."
    if error["type"] == "missing":
        return f"{name} is not a complete {what}: it has no {field}. {do}"
    if error["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        return f"{name} is not a {what}: {field} is not one of its keys. {do}"
    if field == "format" and error["type"] == "literal_error":
        return other_version(name, found, error["ctx"]["expected"], do)
    wanted = error["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    return f"{name} is not a complete {what}: {field or 'it'} should be {wanted}, got {found}. {do}"


EXPORT = "bertflow_export.json"
"""The record of an export, which is read by other tools, too."""
EXPORTED = ("*.safetensors", "*.onnx", "config.json", "tokenizer.json", "modules.json")
"""The files of an export that have a checksum; prompts and the longest sentence may be changed by its users."""


class ExportFiles(TypedDict):
    """What ``bertflow_export.json`` says of the files in its folder ("") and in each folder in it."""

    sha256: dict[FileName, Checksums]


def write_export_record(folder: Path, record: Mapping[str, Any]) -> None:
    """Write the record of an export, with the checksums of what is in its folder now."""
    parts = {"": folder} | {path.name: path for path in sorted(folder.iterdir()) if path.is_dir()}
    found = {name: checksums(part, *EXPORTED) for name, part in parts.items()}
    write_record(folder / EXPORT, {**record, "sha256": found})


def require_export(folder: Path) -> None:
    """Compare the files of an export with the checksums in its record, if it has one.

    Raises:
        DataError: If a file is missing, or is not what was written.
    """
    if os.path.lexists(folder / EXPORT):
        listed = read_record(folder / EXPORT, ExportFiles, "record of an export", "Export the encoder again.")
        for name, files in listed["sha256"].items():
            require_whole(folder / EXPORT, files, files, "export", folder / name)
