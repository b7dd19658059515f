"""JSON records, read through a schema: a file that is missing, damaged or of another form is refused in one line.

A schema is a frozen dataclass or a ``TypedDict`` beside the code that owns the record. Values must have the type that
the schema gives (no "5" for 5). Fields that a schema does not name are allowed, so that a record of a later version can
still be read. A dataclass leaves them out; for a ``TypedDict`` the record comes back as it stands in the file.
"""

import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import numpy as np
from pydantic import AfterValidator, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails, from_json
from typing_extensions import is_typeddict

from bertflow.errors import BertflowError, DataError, UsageError
from bertflow.files import restore

Record = TypeVar("Record")
SHOWN = 60
"""Characters of a wrong value that a message shows."""


def _plain(name: str) -> str:
    if name in (".", "..") or "/" in name or "\\" in name or "\0" in name:
        raise ValueError("a plain file name")
    return name


FileName = Annotated[str, AfterValidator(_plain)]
"""The plain name of a file in the folder of the record, so that a record cannot point out of its folder."""
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
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise DataError(f"{path} is missing. Is {path.parent} the right folder, and complete?") from None
    return parse_record(content, schema, str(path), what, do)


def parse_record(
    content: str | bytes, schema: type[Record], name: str, what: str = "record", do: str = "Write it again."
) -> Record:
    """As ``read_record``, for JSON that was read already; ``name`` is what messages call it."""
    try:
        record = _adapter(schema).validate_json(content, strict=True)
    except ValidationError as error:
        raise DataError(_message(error.errors()[0], name, what, do)) from None
    return from_json(content) if is_typeddict(schema) else record


def require_types(options: object, group: str) -> None:
    """Refuse a dataclass with a value of another type than its field states, or a number that is not finite.

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
    if field == "format":
        wanted = error["ctx"]["expected"]
        later = "Was it written by a later bertflow?"
        return f"{name} should be a {what} of format {wanted}, but is of format {found}. {later}"
    wanted = error["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    return f"{name} is not a complete {what}: {field or 'it'} should be {wanted}, got {found}. {do}"
