"""The report on the geometry of an encoder: a card, then sections, each with what to see, its numbers and its picture.

It is set as one HTML page: pictures are SVG inside it, and no script or network is needed.
"""

import base64
import inspect
import re
import webbrowser
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

import docstring_parser

from bertflow.errors import MissingExtraError, logger
from bertflow.files import write_text
from bertflow.geometry import REPORT
from bertflow.next_steps import FEWEST
from bertflow.policy import content_hash
from bertflow.results import AbstractResult, Parts, ready_for_json
from bertflow.tables import Strong, Table

SUMMARY = "Measures"
"""The section whose numbers are folded on the page, and printed with ``--details``."""
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
        systems = self.numbers.header[1:]
        numbers = {name: dict(zip(systems, cells, strict=True)) for name, *cells in self.numbers.lines}
        return {"verdict": self.verdict, "says": self.says, "numbers": numbers, "next": self.then}


@dataclass(frozen=True, repr=False)
class GeometryReport(AbstractResult):
    """The geometry of some systems.

    Attributes:
        heading: Title of the report.
        facts: How it was made, by the name of the fact.
        sections: Sections by title.
        left_out: Titles of the sections that are missing, each with the reason.
        card: What to know first; None where the clouds cannot be measured.
        page: Where ``report.html`` was written; None if it was not.
        drawn: Where the pictures were written as files; None if they were not.
        n: Number of different sentences of the text, if it is the user's own.
    """

    name = "report"
    format = 1
    not_in_json = ("heading", "page", "drawn", "n")
    heading: str
    facts: Mapping[str, str]
    sections: Mapping[str, GeometrySection]
    left_out: Mapping[str, str] = field(default_factory=dict)
    card: Card | None = None
    page: Path | None = None
    drawn: Path | None = None
    n: int = FEWEST

    def answer(self) -> Parts:
        """The card, the sections that are missing, and where the report is."""
        if self.card is not None:
            yield Strong(self.card.verdict)
            yield self.card.numbers
        if self.left_out:
            yield f"left out  {', '.join(self.left_out)} (why: --details)"
        if self.page is not None:
            yield f"report    {self.page}"
        if self.drawn is not None:
            yield f"pictures  {self.drawn}"

    def parts(self) -> Parts:
        """The answer, all measures, and why sections are missing."""
        yield from self.answer()
        summary = self.sections.get(SUMMARY)
        if summary is not None and summary.table is not None:
            yield summary.table
        yield from (f"left out: {title}: {reason}" for title, reason in self.left_out.items())

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
        note = ""
        try:
            from bertflow import plots
        except MissingExtraError as error:
            plots = None  # type: ignore[assignment]
            note = f"The pictures are missing; sentences, tables and numbers are complete. {error}"
        bodies = {title: _section(title, part, plots) for title, part in self.sections.items()}
        bodies["How it was made"] = _terms(self.facts)
        if self.left_out:
            items = "\n".join(f"<li>{escape(title)}: {escape(why)}</li>" for title, why in self.left_out.items())
            bodies["Left out"] = f"<ul>\n{items}\n</ul>"
        sections = (
            f'<section id="{_anchor(title)}">\n<h2>{escape(title)}</h2>\n{body}\n</section>'
            for title, body in bodies.items()
        )
        template = (files("bertflow.geometry") / "page.html").read_text(encoding="utf-8")
        return Template(template).substitute(
            style_hash=content_hash(template, "style"),
            title=escape(self.heading),
            notes=f'<p class="note">{escape(note)}</p>' if note else "",
            card=_card(self.card) if self.card else "",
            contents="\n".join(f'<li><a href="#{_anchor(title)}">{escape(title)}</a></li>' for title in bodies),
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

    def written(self, folder: Path, shown: bool) -> "GeometryReport":
        """Save as ``save`` does, and show the page if that is wanted; returns the report that knows where it is."""
        report = replace(self, page=self.save(folder) / REPORT)
        if shown:
            show_page(folder / REPORT)
        return report

    def draw(self, folder: Path, kinds: Sequence[str], plots: Any) -> "GeometryReport":
        """Write the picture of each section as files of some kinds; returns the report that knows where they are."""
        for title, part in self.sections.items():
            figure = part.draw(plots) if part.draw else None
            for kind in kinds if figure else ():
                plots.save_figure(figure, folder / f"{_anchor(title)}.{kind}")
        return replace(self, drawn=folder)

    def headline(self) -> str:
        """The heading, and how many sections there are."""
        return f"{self.heading}: {len(self.sections)} sections, {len(self.left_out)} left out"

    def _repr_html_(self) -> str:
        return f'<iframe srcdoc="{escape(self.to_html())}" width="100%" height="{HEIGHT}" frameborder="0"></iframe>'


def show_page(page: Path) -> None:
    """Open a page in the browser; where there is none, say so."""
    if not webbrowser.open(page.absolute().as_uri()):
        logger.warning("No browser can be opened here. The report is %s.", page)


def docstring(of: object) -> str:
    """What a docstring without sections says, in one line."""
    return " ".join((inspect.getdoc(of) or "").split())


def attributes(record: type) -> dict[str, str]:
    """What the docstring of a record says of each field, in one line each."""
    found = docstring_parser.parse(inspect.getdoc(record) or "", docstring_parser.DocstringStyle.GOOGLE)
    return {one.arg_name: " ".join((one.description or "").split()) for one in found.params}


def rounded(value: float, decimals: int = 2) -> str:
    """A number as sentences and tables print it: never a negative zero."""
    return f"{round(value, decimals) + 0.0:.{decimals}f}"


def listed(values: Mapping[str, float], decimals: int = 2, unit: str = "") -> str:
    """Values of the systems in a sentence: "0.60 (raw), 0.01 (whitening)"."""
    return ", ".join(f"{rounded(value, decimals)}{unit} ({name})" for name, value in values.items())


def _card(card: Card) -> str:
    numbers = _table(card.numbers)
    then = f'<p class="next">Next <code>{escape(card.then)}</code></p>' if card.then else ""
    return f'<div class="card">\n<p class="verdict">{escape(card.verdict)}</p>\n{numbers}\n{then}\n</div>'


def _section(title: str, part: GeometrySection, plots: Any) -> str:
    parts = [f"<p>{escape(part.sees)}</p>"]
    if part.draw is not None and plots is not None:
        image = base64.b64encode(plots.to_svg(part.draw(plots))).decode()
        parts.append(f'<figure><img alt="{escape(part.alt)}" src="data:image/svg+xml;base64,{image}"></figure>')
    numbers = [*([_table(part.table)] if part.table else []), *([_terms(part.explained)] if part.explained else [])]
    if title == SUMMARY:
        numbers = ["<details><summary>All measures</summary>", *numbers, "</details>"]
    return "\n".join([*parts, *numbers])


def _terms(terms: Mapping[str, str]) -> str:
    rows = "\n".join(f"<dt>{escape(name)}</dt><dd>{escape(value)}</dd>" for name, value in terms.items())
    return f"<dl>\n{rows}\n</dl>"


def _anchor(title: str) -> str:
    return re.sub(r"\W+", "-", title.lower())


def _broken(cell: str) -> str:
    """A cell whose line may break within the name of a system, which is long for a phone: sif+whitening(96)."""
    return re.sub(r"(?<=[a-z])\+(?=[a-z])", "+<wbr>", escape(cell))


def _table(table: Table) -> str:
    # Columns of words are set as text, columns of numbers to the right.
    words = [any(cell[:1].isalpha() for cell in column[1:]) for column in zip(table.header, *table.lines, strict=True)]

    def row(cells: Sequence[str], tag: str) -> str:
        marks = [' class="words"' if is_text else "" for is_text in words]
        found = [f"<{tag}{mark}>{_broken(cell)}</{tag}>" for cell, mark in zip(cells, marks, strict=True)]
        return f"<tr>{''.join(found)}</tr>"

    lines = "\n".join(row(line, "td") for line in table.lines)
    head = row(table.header, "th")
    return f'<div class="wide"><table>\n<thead>{head}</thead>\n<tbody>\n{lines}\n</tbody>\n</table></div>'
