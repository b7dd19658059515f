"""A report: sections with a sentence, its numbers and its picture; as one HTML file, and as JSON.

The HTML needs nothing but itself: pictures are SVG within it, there is no script, and its own policy forbids the
browser to load anything. Text is escaped where it enters the page. The page is a ``string.Template`` of the standard
library: a dozen slots and no logic, so a template engine would be one more dependency for nothing.
"""

import base64
import html
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from string import Template
from typing import Any

from bertflow.errors import MissingExtraError
from bertflow.files import to_json

PAGE = Template("""\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>$title</title>
<style>
body { margin: 0; background: #fff; color: #1a1a1a; font: 16px/1.5 system-ui, "Segoe UI", Arial, sans-serif; }
main { max-width: 900px; margin: 0 auto; padding: 1.5rem; }
h1 { font-size: 1.7rem; line-height: 1.25; overflow-wrap: anywhere; }
h2 { font-size: 1.2rem; margin: 2.2rem 0 .3rem; border-top: 1px solid #ccc; padding-top: .8rem; }
p.note { background: #fff4d6; border-left: 4px solid #e69f00; padding: .5rem .8rem; }
figure { margin: .6rem 0; }
figure img { display: block; width: 100%; height: auto; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1rem; }
dt { color: #555; }
dd { margin: 0; overflow-wrap: anywhere; }
table { border-collapse: collapse; width: 100%; font-size: .88rem; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .2rem .45rem; border-bottom: 1px solid #ddd; vertical-align: top; }
th:first-child, td:first-child, .words { text-align: left; }
th { border-bottom: 2px solid #888; }
.wide { overflow-x: auto; }
@media print {
  main { max-width: none; padding: 0; }
  section, figure, tr { break-inside: avoid; }
  body { font-size: 11pt; }
}
</style>
</head>
<body>
<main>
<h1>$title</h1>
$notes
<dl>
$facts
</dl>
$sections
$left_out
</main>
</body>
</html>
""")


@dataclass(frozen=True)
class Grid:
    """A table of a section: cells as they are printed; a column of ``words`` is set as text."""

    header: tuple[str, ...]
    lines: tuple[tuple[str, ...], ...]
    words: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Section:
    """One part of a report.

    Attributes:
        sees: One sentence: what to see, and the number behind it.
        numbers: The numbers, for JSON.
        draw: Makes the picture: is called with ``bertflow.plots``, returns its Figure. None without one.
        alt: What the picture shows, for those who cannot see it.
        grid: A table.
    """

    sees: str
    numbers: Mapping[str, Any]
    draw: Callable[[Any], Any] | None = None
    alt: str = ""
    grid: Grid | None = None


@dataclass(frozen=True)
class GeometryReport:
    """Sections by their title, and what was left out.

    Attributes:
        title: Of the report.
        facts: How it was made, by the name of the fact.
        sections: By title.
        left_out: Reasons by the title of the section that is missing.
        notes: What the reader must know first.
    """

    title: str
    facts: Mapping[str, str]
    sections: Mapping[str, Section]
    left_out: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def to_json(self) -> str:
        """Everything but the pictures."""
        sections = {title: {"sees": part.sees, **part.numbers} for title, part in self.sections.items()}
        return to_json(
            {
                "format": 1,
                "title": self.title,
                "facts": dict(self.facts),
                "sections": sections,
                "left_out": dict(self.left_out),
            }
        )

    def to_html(self) -> str:
        """One page that needs no other file, no network and no script; without matplotlib, one without pictures."""
        notes = list(self.notes)
        try:
            from bertflow import plots
        except MissingExtraError as error:
            plots = None  # type: ignore[assignment]
            notes.append(f"The pictures are missing; sentences, tables and numbers are complete. {error}")
        facts = "\n".join(f"<dt>{_text(name)}</dt><dd>{_text(value)}</dd>" for name, value in self.facts.items())
        return PAGE.substitute(
            title=_text(self.title),
            notes="\n".join(f'<p class="note">{_text(note)}</p>' for note in notes),
            facts=facts,
            sections="\n".join(_section(title, part, plots) for title, part in self.sections.items()),
            left_out=_left_out(self.left_out),
        )


def number(value: float, decimals: int = 2) -> str:
    """A number as sentences and tables print it: never a negative zero."""
    return f"{round(value, decimals) + 0.0:.{decimals}f}"


def _section(title: str, part: Section, plots: Any) -> str:
    parts = [f"<section>\n<h2>{_text(title)}</h2>\n<p>{_text(part.sees)}</p>"]
    if part.draw is not None and plots is not None:
        image = base64.b64encode(plots.to_svg(part.draw(plots))).decode()
        parts.append(f'<figure><img alt="{_text(part.alt)}" src="data:image/svg+xml;base64,{image}"></figure>')
    if part.grid is not None:
        parts.append(_grid(part.grid))
    return "\n".join([*parts, "</section>"])


def _grid(grid: Grid) -> str:
    def row(cells: Sequence[str], tag: str) -> str:
        marks = [' class="words"' if at in grid.words else "" for at in range(len(cells))]
        found = [f"<{tag}{mark}>{_text(cell)}</{tag}>" for cell, mark in zip(cells, marks, strict=True)]
        return f"<tr>{''.join(found)}</tr>"

    lines = "\n".join(row(line, "td") for line in grid.lines)
    head = row(grid.header, "th")
    return f'<div class="wide"><table>\n<thead>{head}</thead>\n<tbody>\n{lines}\n</tbody>\n</table></div>'


def _left_out(reasons: Mapping[str, str]) -> str:
    if not reasons:
        return ""
    items = "\n".join(f"<li>{_text(title)}: {_text(reason)}</li>" for title, reason in reasons.items())
    return f"<section>\n<h2>Left out</h2>\n<ul>\n{items}\n</ul>\n</section>"


def _text(value: str) -> str:
    return html.escape(value, quote=True)
