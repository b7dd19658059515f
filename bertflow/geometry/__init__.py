"""A report on the geometry of an encoder, before and after calibration.

measures      cloud.py  measures.py  pairs.py  frequency.py  contexts.py  masked.py  fitted.py, with their sections
report        sections.py  inspecting.py: which sections are made, and what is looked at
records       report.py: the card, the sections, and the page; imports none of the others
"""

from pathlib import Path

from bertflow.errors import UsageError

FEWEST = 24
"""Fewest sentences for a report: ten neighbors are then fewer than half of them."""
REPORT = "report.html"
"""The page in the folder of a report."""
NONE = "none"
"""What ``pairs`` may be besides a task, a table and docstrings."""


def require_page(output: str | Path | None, open_report: bool) -> None:
    """Refuse to open a report that is not written.

    Raises:
        UsageError: If there is no output.
    """
    if open_report and output is None:
        raise UsageError("A report that is not written cannot be opened. Give an output folder.")


def run_folder(model: object) -> Path | None:
    """The folder of a training run, if that is what the user named."""
    return Path(model) if isinstance(model, str | Path) and (Path(model) / "run.json").is_file() else None
