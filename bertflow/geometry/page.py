"""A report as one HTML page: no other file, no network and no script; the page's own policy forbids all of them.

Text is escaped where it enters the page; pictures are SVG within it. ``page.html`` is a ``string.Template``, and the
policy names the hash of its style, so that no other style is applied.
"""

import base64
import re
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from string import Template
from typing import Any

from bertflow.errors import MissingExtraError
from bertflow.geometry.report import Card, GeometryReport, GeometrySection
from bertflow.policy import content_hash
from bertflow.tables import Table


def report_page(report: GeometryReport) -> str:
    """The page of a report; without matplotlib, a page without pictures."""
    note = ""
    try:
        from bertflow import plots
    except MissingExtraError as error:
        plots = None  # type: ignore[assignment]
        note = f"The pictures are missing; sentences, tables and numbers are complete. {error}"
    sections = [_section(title, part, plots) for title, part in report.sections.items()]
    titles = [*report.sections, "How it was made"]
    sections.append(f'<section id="{_anchor(titles[-1])}">\n<h2>{titles[-1]}</h2>\n{_terms(report.facts)}\n</section>')
    if report.left_out:
        titles.append("Left out")
        items = "\n".join(f"<li>{escape(title)}: {escape(reason)}</li>" for title, reason in report.left_out.items())
        sections.append(f'<section id="left-out">\n<h2>Left out</h2>\n<ul>\n{items}\n</ul>\n</section>')
    template = (files("bertflow.geometry") / "page.html").read_text(encoding="utf-8")
    return Template(template).substitute(
        style_hash=content_hash(template, "style"),
        title=escape(report.heading),
        notes=f'<p class="note">{escape(note)}</p>' if note else "",
        card=_card(report.card) if report.card else "",
        contents="\n".join(f'<li><a href="#{_anchor(title)}">{escape(title)}</a></li>' for title in titles),
        sections="\n".join(sections),
    )


def _card(card: Card) -> str:
    numbers = _table(card.numbers)
    then = f'<p class="next">Next <code>{escape(card.then)}</code></p>' if card.then else ""
    return f'<div class="card">\n<p class="verdict">{escape(card.verdict)}</p>\n{numbers}\n{then}\n</div>'


def _section(title: str, part: GeometrySection, plots: Any) -> str:
    parts = [f'<section id="{_anchor(title)}">\n<h2>{escape(title)}</h2>\n<p>{escape(part.sees)}</p>']
    if part.draw is not None and plots is not None:
        image = base64.b64encode(plots.to_svg(part.draw(plots))).decode()
        parts.append(f'<figure><img alt="{escape(part.alt)}" src="data:image/svg+xml;base64,{image}"></figure>')
    if part.table is not None:
        parts.append(_table(part.table))
    if part.explained:
        parts.append(_terms(part.explained))
    return "\n".join([*parts, "</section>"])


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
