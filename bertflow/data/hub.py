"""Splits of datasets of the Hugging Face hub, as tables.

``datasets`` fetches a split once and keeps it in its cache. A folder in the hub's own format (``<root>/owner/name/``
with a ``test.jsonl.gz``, say) can stand in for the hub.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from bertflow.data.tables import Rows, TextTable
from bertflow.errors import DataError, reason_of


def parse_hub_split(spelling: str) -> dict[str, Any]:
    """Read ``owner/name[@revision][#config][:split]``; the split is ``train`` unless named."""
    rest, _, split = spelling.partition(":")
    rest, _, config = rest.partition("#")
    path, _, revision = rest.partition("@")
    return {"path": path, "name": config or None, "revision": revision or None, "split": split or "train"}


def load_hub_table(
    spelling: str,
    root: str = "",
    streaming: bool = False,
    do: str = "Check its name, revision and split, and the way to the hub.",
) -> TextTable:
    """Fetch one split, or take it from the cache.

    Args:
        spelling: ``owner/name[@revision][#config][:split]``; with a commit as the revision, numbers can be repeated.
        root: A folder that holds ``owner/name`` folders in the hub's format; the hub itself if empty.
        streaming: Read it as it comes, each time it is read, and keep nothing of it on disk.
        do: What the user can do if it cannot be loaded.

    Raises:
        DataError: If there is no such dataset, revision or split, or no way to the hub.
    """
    from datasets import load_dataset
    from datasets.exceptions import DatasetsError

    where = parse_hub_split(spelling)
    try:
        rows = load_dataset(**{**where, "path": str(Path(root, where["path"]))}, streaming=streaming)
        # Of a stream in some formats the columns are known when a row was seen.
        columns: Iterable[str] = rows.column_names or next(iter(rows), {})
    except (OSError, ValueError, EOFError, DatasetsError) as error:
        cause = error.__cause__ if isinstance(error.__cause__, Exception) else error
        raise DataError(f"The dataset {spelling} could not be loaded: {reason_of(cause)}. {do}") from None

    def read(names: Sequence[str]) -> Rows:
        try:
            for number, row in enumerate(rows.select_columns(list(names)), start=1):
                yield number, tuple(row[name] for name in names)
        except (OSError, ValueError, EOFError, DatasetsError) as error:
            raise DataError(f"{spelling} is damaged: {reason_of(error)}. Fetch it again.") from None

    return TextTable(spelling, tuple(columns), read, unit="row")
