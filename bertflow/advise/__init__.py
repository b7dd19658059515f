"""``bertflow.fix``: evidence, then a decision, then advice."""

from pathlib import Path

from bertflow.errors import UsageError


def require_new(folder: Path) -> None:
    """Refuse a folder that holds something.

    Raises:
        UsageError: If it does.
    """
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise UsageError(f"The folder {folder} must be new or empty, but something is there. Choose another output.")
