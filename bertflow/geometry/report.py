"""The report on the geometry of an encoder: sections, each a sentence with its numbers and its picture.

One HTML page holds it all: pictures are SVG within the page, there is no script, and the page's own policy forbids the
browser to load anything. Text is escaped where it enters the page. ``page.html`` is a ``string.Template``.
"""

import base64
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

from bertflow.data.sts import require_tasks
from bertflow.errors import MissingExtraError, require_between, require_seed
from bertflow.files import require_files, require_place, write_text
from bertflow.opening import require_openable
from bertflow.results import AbstractResult, ready_for_json
from bertflow.tables import Table

if TYPE_CHECKING:
    from bertflow.data.pairs import Pairs
    from bertflow.encoder.abstract import SentenceEncoder

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
        sees: One sentence: what to see, and the number behind it.
        numbers: The numbers, for JSON.
        draw: Makes the picture: called with ``bertflow.plots``, returns a Figure. None without a picture.
        alt: Text in the place of the picture, for readers who cannot see it.
        table: The numbers as a table.
    """

    sees: str
    numbers: Mapping[str, Any]
    draw: Callable[[Any], Any] | None = None
    alt: str = ""
    table: Table | None = None

    def as_dict(self) -> dict[str, Any]:
        """The sentence and the numbers, ready for JSON."""
        return {"sees": self.sees, **ready_for_json(self.numbers)}


@dataclass(frozen=True, repr=False)
class GeometryReport(AbstractResult):
    """The geometry of some systems.

    Attributes:
        heading: Title of the report.
        facts: How it was made, by the name of the fact.
        sections: By title.
        left_out: Titles of the sections that are missing, each with the reason.
        page: Where ``report.html`` was written; None if it was not.
    """

    name = "report"
    format = 1
    not_in_json = ("heading", "page")
    heading: str
    facts: Mapping[str, str]
    sections: Mapping[str, GeometrySection]
    left_out: Mapping[str, str] = field(default_factory=dict)
    page: Path | None = None

    def parts(self) -> Iterator[Table | str]:
        """The table of measures, and what is missing."""
        summary = self.sections.get(SUMMARY)
        if summary is not None and summary.table is not None:
            # The last column says in words what each measure means; it is too wide for a terminal.
            yield Table(summary.table.header[:-1], tuple(line[:-1] for line in summary.table.lines))
        yield from (f"left out: {title}: {reason}" for title, reason in self.left_out.items())
        if self.page is not None:
            yield f"report  {self.page}"

    def as_dict(self) -> dict[str, Any]:
        """Everything but the pictures, ready for JSON."""
        return {"title": self.heading, **super().as_dict()}

    def to_markdown(self) -> str:
        """Every section but its picture."""
        text = f"# {self.heading}\n\n" + "".join(f"* {name}: {value}\n" for name, value in self.facts.items())
        for title, part in self.sections.items():
            text += f"\n## {title}\n\n{part.sees}\n" + (f"\n{part.table.to_markdown()}" if part.table else "")
        missing = "".join(f"* {title}: {reason}\n" for title, reason in self.left_out.items())
        return text + (f"\n## Left out\n\n{missing}" if missing else "")

    def to_html(self) -> str:
        """One page that needs no other file, no network and no script; without matplotlib, a page without pictures."""
        note = ""
        try:
            from bertflow import plots
        except MissingExtraError as error:
            plots = None  # type: ignore[assignment]
            note = f"The pictures are missing; sentences, tables and numbers are complete. {error}"
        facts = "\n".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in self.facts.items())
        sections = [_section(title, part, plots) for title, part in self.sections.items()]
        if self.left_out:
            items = "\n".join(f"<li>{escape(title)}: {escape(reason)}</li>" for title, reason in self.left_out.items())
            sections.append(f"<section>\n<h2>Left out</h2>\n<ul>\n{items}\n</ul>\n</section>")
        template = Template((files("bertflow.geometry") / "page.html").read_text(encoding="utf-8"))
        return template.substitute(
            title=escape(self.heading),
            notes=f'<p class="note">{escape(note)}</p>' if note else "",
            facts=facts,
            sections="\n".join(sections),
        )

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
    progress: bool | None = None,
) -> GeometryReport:
    """Report on the geometry of an encoder, before and after calibration.

    The report is one HTML file (no network, no script) and a JSON file with every number. Pictures need matplotlib:
    pip install 'bertflow[plots]'.

    Args:
        model: A hub id, the folder of an encoder, a folder that CalibratedEncoder.save wrote, the folder of a train.py
            run, or a file of word vectors; in Python also an encoder (default: inner layers of the embedded encoder).
        text: Sentences to look at; others of them are what calibrators are fitted on (default: docstrings).
        compare: Systems beside the model, as "raw,abtt(7),whitening" (default: raw,whitening; raw for a model that is
            calibrated).
        sentences: Number of sentences to look at, at most half of the text.
        pairs: An STS task, a table of scored pairs or of queries and texts, docstrings, or none.
        data_dir: Folder of the STS data; "hub" reads them from the hub, at pinned revisions.
        frequencies: Lines of a word and its count (default: counted in the text).
        pooling: Pooling of an encoder that is not calibrated: a name, or a row such as "mean(1,2)".
        max_length: Longest sentence of such an encoder, in tokens (default: 128).
        device: Where the encoder runs: cpu, cuda, ...
        seed: Random seed for the samples.
        output: Folder to write report.html and report.json to (on the command line by default: report, or RUN/report).
        progress: Whether to show a progress bar (default: in a terminal or a notebook).

    Raises:
        UsageError: If an option cannot be used.
        DataError: If there are too few sentences, or data is missing or damaged.
    """
    require_between(FEWEST, sentences=sentences)
    require_seed(seed)
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
    report = inspecting.inspect_opened(opened, drawn, compare, frequencies, run_folder(model), progress)
    return report if output is None else replace(report, page=report.save(output) / REPORT)


def run_folder(model: "str | Path | SentenceEncoder | None") -> Path | None:
    """The folder of a training run, if that is what the user named."""
    return Path(model) if isinstance(model, str | Path) and (Path(model) / "run.json").is_file() else None


def rounded(value: float, decimals: int = 2) -> str:
    """A number as sentences and tables print it: never a negative zero."""
    return f"{round(value, decimals) + 0.0:.{decimals}f}"


def listed(values: Mapping[str, float], decimals: int = 2, unit: str = "") -> str:
    """Values of the systems in a sentence: "0.60 raw, 0.01 whitening"."""
    return ", ".join(f"{rounded(value, decimals)}{unit} {name}" for name, value in values.items())


def _section(title: str, part: GeometrySection, plots: Any) -> str:
    parts = [f"<section>\n<h2>{escape(title)}</h2>\n<p>{escape(part.sees)}</p>"]
    if part.draw is not None and plots is not None:
        image = base64.b64encode(plots.to_svg(part.draw(plots))).decode()
        parts.append(f'<figure><img alt="{escape(part.alt)}" src="data:image/svg+xml;base64,{image}"></figure>')
    if part.table is not None:
        parts.append(_table(part.table))
    return "\n".join([*parts, "</section>"])


def _table(table: Table) -> str:
    # Columns of words are set as text, columns of numbers to the right.
    words = [any(cell[:1].isalpha() for cell in column[1:]) for column in zip(table.header, *table.lines, strict=True)]

    def row(cells: Sequence[str], tag: str) -> str:
        marks = [' class="words"' if is_text else "" for is_text in words]
        found = [f"<{tag}{mark}>{escape(cell)}</{tag}>" for cell, mark in zip(cells, marks, strict=True)]
        return f"<tr>{''.join(found)}</tr>"

    lines = "\n".join(row(line, "td") for line in table.lines)
    head = row(table.header, "th")
    return f'<div class="wide"><table>\n<thead>{head}</thead>\n<tbody>\n{lines}\n</tbody>\n</table></div>'
