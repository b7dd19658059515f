"""What all studies share: how they begin, what is kept of a run that is interrupted, and the page that they print.

    python benchmarks/NAME.py --data_dir DATA     measures all rows, writes NAME.json after each, and prints the page
    python benchmarks/NAME.py --resume ...        goes on: rows that are kept are not measured again
    python benchmarks/NAME.py --print             measures nothing; prints the page of what is kept

A study is a name, a function that yields its cases, and one that makes a page of the rows that are kept. A case is what
identifies a row, and a call that measures the rest of it.
"""

import argparse
import json
import logging
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bertflow.errors import NullDirectionWarning
from bertflow.files import write_text

Row = Mapping[str, Any]
Case = tuple[Row, Callable[[], Row]]
"""What identifies a row, and what measures it."""
logger = logging.getLogger("study")


@dataclass(frozen=True)
class Study:
    """A measurement that can be repeated.

    Attributes:
        script: Its file; what is kept lies beside it.
        says: What it measures, for ``--help``.
        cases: What is measured with these options.
        page: The rows that are kept, as Markdown.
        data: What the folder of data holds; empty for a study without one.
        arguments: More options by name: the default, and what it means. A list takes several words, False is a flag.
        also: Writes what else the rows are shown in, as a page of the guide; not of rows that are kept elsewhere.
    """

    script: str
    says: str | None
    cases: Callable[[argparse.Namespace], Iterable[Case]]
    page: Callable[[Sequence[Row]], str]
    data: str = "sts, text, nli and encoders"
    arguments: Mapping[str, tuple[Any, str]] = field(default_factory=dict)
    also: Callable[[Sequence[Row]], None] = lambda rows: None

    @property
    def kept(self) -> Path:
        """Where the rows are."""
        return Path(self.script).with_suffix(".json")

    def main(self, given: Sequence[str] | None = None) -> None:
        """Measure, keep each row, print the page."""
        options = self.parser().parse_args(given)
        if self.data and not (options.print or options.data_dir):
            self.parser().error(f"to measure, a folder with {self.data} is wanted. Give --data_dir DATA.")
        logging.basicConfig(level=logging.INFO, format="%(message)s")
        warnings.simplefilter("ignore", NullDirectionWarning)
        rows = rows_of(options.output)
        try:
            if not options.print:
                self.run(options, rows)
        except KeyboardInterrupt:
            raise SystemExit("interrupted; what was measured is kept. Go on with --resume.") from None
        self.write(options.output, rows)
        print(self.page(rows).rstrip())

    def parser(self) -> argparse.ArgumentParser:
        """The options that all studies have, and its own."""
        parser = argparse.ArgumentParser(description=self.says, formatter_class=argparse.RawDescriptionHelpFormatter)
        if self.data:
            parser.add_argument("--data_dir", type=Path, help=f"holds {self.data}; needed to measure")
        for name, (default, says) in self.arguments.items():
            kind: dict[str, Any] = {"type": type(default)}
            if isinstance(default, list):
                kind = {"nargs": "*", "type": type(default[0]) if default else str}
            elif default is False:
                kind = {"action": "store_true"}
            parser.add_argument(f"--{name}", default=default, help=f"{says} (default: %(default)s)", **kind)
        parser.add_argument("--resume", action="store_true", help="measure only what is not kept")
        parser.add_argument("--print", action="store_true", help="measure nothing, print the page")
        parser.add_argument("--output", type=Path, default=self.kept, help="where rows are kept")
        return parser

    def run(self, options: argparse.Namespace, rows: list[Row]) -> None:
        """Measure the cases, in place of rows that are kept of them; the file is written after each."""
        cases = list(self.cases(options))
        if not options.resume:
            rows[:] = [row for row in rows if not any(same(row, case) for case, _ in cases)]
        for at, (case, measure) in enumerate(cases, start=1):
            if any(same(row, case) for row in rows):
                continue
            begin = time.perf_counter()
            rows.append({**case, **measure()})
            self.write(options.output, rows)
            said = ", ".join(map(str, case.values()))
            logger.info("[%d/%d] %s (%.0f s)", at, len(cases), said, time.perf_counter() - begin)

    def write(self, path: Path, rows: Sequence[Row]) -> None:
        """The rows, and the pages of the guide that show them."""
        write_text(path, json.dumps(rows, indent=1) + "\n")  # in order
        if path == self.kept:
            self.also(rows)


def rows_of(path: Path) -> list[Row]:
    """The rows that a study has kept."""
    rows: list[Row] = json.loads(path.read_text("utf-8")) if path.exists() else []
    return rows


def same(row: Row, case: Row) -> bool:
    """Whether a row is of that case."""
    return all(row.get(name) == value for name, value in case.items())


def table(header: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table in Markdown, with an empty line behind it."""
    rule = f"|---|{'---:|' * (len(header) - 1)}"
    return "\n".join([f"| {' | '.join(header)} |", rule, *(f"| {' | '.join(line)} |" for line in lines)]) + "\n\n"


def with_interval(value: float, low: float, high: float, places: int = 1) -> str:
    """A difference and the ends of its interval."""
    return f"{value:+.{places}f} [{low:+.{places}f}, {high:+.{places}f}]"
