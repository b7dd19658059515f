"""One split of a dataset of the Hugging Face hub, as a table.

``datasets`` fetches it once and keeps it in its cache. A folder in the hub's own format (``<root>/owner/name/`` with a
``test.jsonl.gz`` or ``test.parquet``, say) stands in for the hub where there is no network: it takes the same road.
"""

from dataclasses import dataclass
from pathlib import Path

from bertflow.data.tables import TextTable, dataset_table
from bertflow.errors import DataError


@dataclass(frozen=True)
class HubSplit:
    """Where a split stands on the hub."""

    path: str
    """``owner/name``, or the path of a folder in the hub's format."""
    split: str
    revision: str | None = None
    """A commit, for numbers that can be repeated; the newest if None."""
    config: str | None = None

    def __str__(self) -> str:
        """The spelling ``owner/name[@revision][#config]:split``."""
        revision = f"@{self.revision}" if self.revision else ""
        config = f"#{self.config}" if self.config else ""
        return f"{self.path}{revision}{config}:{self.split}"


def parse_hub_split(spelling: str) -> HubSplit:
    """Read ``owner/name[@revision][#config][:split]``; the split is ``train`` unless named."""
    rest, _, split = spelling.partition(":")
    rest, _, config = rest.partition("#")
    path, _, revision = rest.partition("@")
    return HubSplit(path, split or "train", revision or None, config or None)


def load_hub_table(where: HubSplit, root: str | Path | None = None, streaming: bool = False) -> TextTable:
    """Fetch one split, or take it from the cache.

    Args:
        where: Dataset, revision and split.
        root: A folder that holds ``owner/name`` folders in the hub's format; the hub itself if None.
        streaming: Read it as it comes, each time it is read, and keep nothing of it on disk.

    Raises:
        DataError: If there is no such dataset, revision or split, or no way to the hub.
    """
    from datasets import load_dataset

    path = where.path if root is None else str(Path(root) / where.path)
    try:
        rows = load_dataset(path, where.config, split=where.split, revision=where.revision, streaming=streaming)
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split()).rstrip(".")
        raise DataError(
            f"The dataset {where} could not be loaded: {reason}. "
            "Check its name, revision and split, and the way to the hub."
        ) from None
    return dataset_table(rows, str(where))
