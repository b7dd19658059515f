"""The report on the geometry of an encoder: a card, then sections, each with what to see, its numbers and its picture.

``page.py`` sets it as one HTML page.
"""

import logging
import webbrowser
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bertflow.data.sts import require_tasks
from bertflow.errors import UsageError, require_between, require_seed
from bertflow.files import require_files, require_place, write_text
from bertflow.next_steps import next_command, option_words
from bertflow.opening import require_openable
from bertflow.results import AbstractResult, ready_for_json
from bertflow.tables import Table

if TYPE_CHECKING:
    from bertflow.data.pairs import Pairs
    from bertflow.encoder.abstract import SentenceEncoder

logger = logging.getLogger("bertflow")

FEWEST = 24
"""Fewest sentences for a report: ten neighbors are then fewer than half of them."""
REPORT = "report.html"
DOCSTRINGS, NONE = "docstrings", "none"
"""What ``pairs`` may be besides a task and a table."""
SUMMARY = "Measures"
"""The section that is printed."""
HEIGHT = 600
"""Pixels of the report in a notebook."""


@dataclass(frozen=True)
class GeometrySection:
    """One section of a report.

    Attributes:
        sees: What to see in this picture, and the numbers behind it.
        numbers: The numbers, for JSON.
        draw: Makes the picture: called with ``bertflow.plots``, returns a Figure. None without a picture.
        alt: Text in the place of the picture, for readers who cannot see it.
        table: The numbers as a table.
        explained: What the numbers are and how to read them, two sentences for each name.
    """

    sees: str
    numbers: Mapping[str, Any]
    draw: Callable[[Any], Any] | None = None
    alt: str = ""
    table: Table | None = None
    explained: Mapping[str, str] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """What to see, and the numbers, ready for JSON."""
        return {"sees": self.sees, **ready_for_json(self.numbers)}


@dataclass(frozen=True)
class Card:
    """What to know first.

    Attributes:
        verdict: What to do, or what the space is.
        says: The numbers behind it, in a sentence.
        numbers: Three numbers, a column for each system, the one "before" first.
        then: A command that can be typed next; empty if there is none.
    """

    verdict: str
    says: str
    numbers: Table
    then: str = ""

    def as_dict(self) -> dict[str, Any]:
        """The words and the numbers, ready for JSON."""
        lines = [dict(zip(self.numbers.header[1:], cells, strict=True)) for _, *cells in self.numbers.lines]
        numbers = {name: line for (name, *_), line in zip(self.numbers.lines, lines, strict=True)}
        return {"verdict": self.verdict, "says": self.says, "numbers": numbers, "next": self.then}


@dataclass(frozen=True, repr=False)
class GeometryReport(AbstractResult):
    """The geometry of some systems.

    Attributes:
        heading: Title of the report.
        facts: How it was made, by the name of the fact.
        sections: By title.
        left_out: Titles of the sections that are missing, each with the reason.
        card: What to know first; None where the clouds cannot be measured.
        page: Where ``report.html`` was written; None if it was not.
    """

    name = "report"
    format = 1
    not_in_json = ("heading", "page")
    heading: str
    facts: Mapping[str, str]
    sections: Mapping[str, GeometrySection]
    left_out: Mapping[str, str] = field(default_factory=dict)
    card: Card | None = None
    page: Path | None = None

    def parts(self) -> Iterator[Table | str]:
        """The verdict, the table of measures, and what is missing."""
        if self.card is not None:
            yield self.card.verdict
        summary = self.sections.get(SUMMARY)
        if summary is not None and summary.table is not None:
            yield summary.table
        yield from (f"left out: {title}: {reason}" for title, reason in self.left_out.items())
        if self.page is not None:
            yield f"report  {self.page}"

    def as_dict(self) -> dict[str, Any]:
        """Everything but the pictures, ready for JSON."""
        return {"title": self.heading, **super().as_dict()}

    def to_markdown(self) -> str:
        """The card, and every section but its picture."""
        text = f"# {self.heading}\n\n"
        if self.card is not None:
            text += f"**{self.card.verdict}** {self.card.says}\n\n{self.card.numbers.to_markdown()}\n"
            text += f"Next: `{self.card.then}`\n\n" if self.card.then else ""
        text += "".join(f"* {name}: {value}\n" for name, value in self.facts.items())
        for title, part in self.sections.items():
            text += f"\n## {title}\n\n{part.sees}\n" + (f"\n{part.table.to_markdown()}" if part.table else "")
            explained = "".join(f"* {name}: {says}\n" for name, says in part.explained.items())
            text += f"\n{explained}" if explained else ""
        missing = "".join(f"* {title}: {reason}\n" for title, reason in self.left_out.items())
        return text + (f"\n## Left out\n\n{missing}" if missing else "")

    def to_html(self) -> str:
        """One page that needs no other file, no network and no script; without matplotlib, a page without pictures."""
        from bertflow.geometry.page import report_page

        return report_page(self)

    def save(self, folder: str | Path) -> Path:
        """Write ``report.html`` and ``report.json``, each whole or not at all.

        Args:
            folder: Created if it is missing.

        Returns:
            The folder.
        """
        folder = Path(folder)
        write_text(folder / "report.json", self.to_json())
        write_text(folder / REPORT, self.to_html())
        return folder

    def headline(self) -> str:
        """The heading, and how many sections there are."""
        return f"{self.heading}: {len(self.sections)} sections, {len(self.left_out)} left out"

    def _repr_html_(self) -> str:
        return f'<iframe srcdoc="{escape(self.to_html())}" width="100%" height="{HEIGHT}" frameborder="0"></iframe>'


def inspect_geometry(
    model: "str | Path | SentenceEncoder | None" = None,
    text: "str | Path | Sequence[str] | None" = None,
    *,
    compare: str | None = None,
    sentences: int = 2000,
    pairs: "str | Path | Pairs" = DOCSTRINGS,
    data_dir: str = "hub",
    frequencies: str | Path | None = None,
    pooling: str | None = None,
    max_length: int | None = None,
    device: str = "auto",
    seed: int = 0,
    output: str | Path | None = None,
    open_report: bool = False,
    progress: bool | None = None,
) -> GeometryReport:
    """Report on the geometry of an encoder, before and after calibration.

    The report is one HTML file (no network, no script) and a JSON file with every number. Pictures need matplotlib:
    pip install 'bertflow[plots]'.

    Args:
        model: A hub id, the folder of an encoder, a folder that CalibratedEncoder.save wrote, the folder of a train.py
            run, or a file of word vectors; in Python also an encoder (default: inner layers of the embedded encoder).
        text: Sentences, of which some are looked at, and others are fitted on (default: docstrings).
        compare: Systems beside the model, as "raw,abtt(7),whitening" (default: raw,whitening,flow; for a calibrated
            model raw, and whitening if its calibrator is a flow). A flow has to be trained, so raw,whitening is faster.
        sentences: Number of sentences to look at, at most half of the text.
        pairs: An STS task, a table of scored pairs or of queries and texts, docstrings, or none.
        data_dir: Folder of the STS data; "hub" reads them from the hub, at pinned revisions.
        frequencies: Lines of a word and its count (default: counted in the text).
        pooling: Pooling of an encoder that is not calibrated: a name, or a row such as "mean(1,2)".
        max_length: Longest sentence of such an encoder, in tokens (default: its own, else 128).
        device: Where the encoder runs: cpu, cuda, ...
        seed: Random seed for the samples.
        output: Folder to write report.html and report.json to (on the command line by default: report, or RUN/report).
        open_report: Open report.html in the browser.
        progress: Whether to show a progress bar (default: in a terminal or a notebook).

    Raises:
        UsageError: If an option cannot be used.
        DataError: If there are too few sentences, or data is missing or damaged.
    """
    require_between(FEWEST, sentences=sentences)
    require_seed(seed)
    require_page(output, open_report)
    require_place(output, folder=True)
    require_files(text, frequencies)
    from bertflow.calibration.spelling import parse_systems
    from bertflow.geometry import inspecting  # loads torch

    parse_systems(compare or "")
    if isinstance(pairs, str | Path) and pairs not in (NONE, DOCSTRINGS):
        require_tasks(str(pairs), data_dir)
    require_openable(model, pooling=pooling, max_length=max_length, device=device)
    opened = inspecting.open_encoder(model, device, pooling=pooling, max_length=max_length)
    drawn = inspecting.draw_text(text, pairs, data_dir, sentences, seed)
    options = option_words(pooling=pooling, max_length=max_length)
    then = next_command(model, calibrated=opened.calibrator is not None, text=text, options=options)
    report = inspecting.inspect_opened(opened, drawn, compare, frequencies, run_folder(model), progress, then)
    if output is None:
        return report
    report = replace(report, page=report.save(output) / REPORT)
    if open_report:
        show_page(Path(output) / REPORT)
    return report


def require_page(output: str | Path | None, open_report: bool) -> None:
    """Refuse to open a report that is not written.

    Raises:
        UsageError: If there is no output.
    """
    if open_report and output is None:
        raise UsageError("A report that is not written cannot be opened. Give an output folder.")


def show_page(page: Path) -> None:
    """Open a page in the browser; where there is none, say so."""
    if not webbrowser.open(page.absolute().as_uri()):
        logger.warning("No browser can be opened here. The report is %s.", page)


def run_folder(model: "str | Path | SentenceEncoder | None") -> Path | None:
    """The folder of a training run, if that is what the user named."""
    return Path(model) if isinstance(model, str | Path) and (Path(model) / "run.json").is_file() else None


def rounded(value: float, decimals: int = 2) -> str:
    """A number as sentences and tables print it: never a negative zero."""
    return f"{round(value, decimals) + 0.0:.{decimals}f}"


def listed(values: Mapping[str, float], decimals: int = 2, unit: str = "") -> str:
    """Values of the systems in a sentence: "0.60 (raw), 0.01 (whitening)"."""
    return ", ".join(f"{rounded(value, decimals)}{unit} ({name})" for name, value in values.items())
