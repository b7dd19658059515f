"""How long a command is silent: when its first line comes, and the longest time between two; also on a loaded machine.

    python benchmarks/silence.py [NAME ...] [--busy 2] [--rows 60000] [--terminal] [--data_dir STS] [--write]

Each command runs as a process of its own on a small input, with its output in pipes, as in the log of a job; or in a
terminal, where bars are. A command that leaves files should end with ``next:``. What ``--write`` keeps is silence.md.
"""

import datetime
import os
import platform
import pty
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import termios
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from threading import Event, Thread

import numpy as np
from bench_page import processor_name

from bertflow.data.docstrings import docstring_corpus
from bertflow.encoder.embedded import embedded_encoder
from bertflow.files import write_text

DRAWN = 10_000
"""Sentences of docstrings that are drawn at most; more are the same with a number behind."""
WIDTH = 64
"""Of the vectors that no encoder made."""


@dataclass(frozen=True)
class Row:
    """A command line, and how it is run.

    Attributes:
        line: What follows ``bertflow``; MODEL, PORT and STS stand for an encoder, a port that is free, and the data.
        until: Text after which it is stopped, for a command that goes on for ever.
        beside: Name of a row that runs at the same time, from its ``until`` on.
        code: The exit code.
    """

    line: str
    until: str = ""
    beside: str = ""
    code: int = 0


MODEL = "--model MODEL --pooling mean(1,2)"
FLOW = "--encoder.model MODEL --encoder.pooling mean(1,2)"
LINES: Mapping[str, Row] = {
    "demo": Row("demo --output demo"),
    "fix": Row("fix MODEL text.txt --pooling mean(1,2) --output fixed"),
    "fix, vectors": Row("fix --vectors x.npy --output fixed-vectors"),
    "train": Row(f"train --data.sentences text.txt {FLOW} --output run"),
    "train, options": Row("train --print_config"),
    "finetune": Row(
        "finetune --finetune.objective in-batch-negatives --data.pairs related.tsv --encoder.model MODEL "
        "--output tuned --trainer.max_steps 50"
    ),
    "embed": Row(f"embed text.txt --store store {MODEL}"),
    "embed, verify": Row("embed --store store --verify"),
    "fit": Row("fit --store store --calibrator flow --output flow"),
    "fit, closed form": Row("fit --vectors x.npy --calibrator whitening --output whitening"),
    "transform": Row("transform --calibrator flow --store store --output z.npy"),
    "transform, vectors": Row("transform --calibrator whitening --vectors x.npy --output whitened.npy"),
    "reindex": Row("reindex lancedb:db/docs lancedb:db/docs2 --calibrator whitening --output reindexed"),
    "reindex, flow": Row("reindex lancedb:db/docs lancedb:db/docs3 --calibrator flow --output reindexed-flow"),
    "evaluate": Row(
        "evaluate MODEL run --tasks scored.tsv --data_dir . --compare raw,whitening --fit_on text.txt --output scores"
    ),
    "evaluate, seeds": Row("evaluate run --tasks scored.tsv --data_dir . --seeds 2 --ceiling --resamples 10000"),
    "sweep": Row("sweep MODEL --tasks scored.tsv --data_dir . --output swept"),
    "verify-paper": Row("verify-paper MODEL --data_dir STS --output verified", code=4),
    "paper-tables": Row(
        "paper-tables MODEL --data_dir STS --tasks stsb --seeds 2 --max_sentences 500 --output paper-tables"
    ),
    "inspect": Row("inspect MODEL --pooling mean(1,2) --output report"),
    "tokens": Row("tokens dog --model MODEL"),
    "tokens, vocabulary": Row("tokens --vocabulary --model MODEL"),
    "words": Row("words --study king-queen --model MODEL --output words"),
    "compare": Row("compare MODEL fixed/encoder text.txt --queries text.txt --output compared"),
    "export": Row("export fixed/encoder --target onnx --output onnx"),
    "export, int8": Row("export fixed/encoder --target onnx --int8 --output onnx-int8"),
    "export, folder": Row("export fixed/encoder --target sentence-transformers --output exported"),
    "score": Row("score fixed/encoder related.tsv --output scored-pairs.tsv"),
    "score, save": Row("score MODEL related.tsv --fit_on text.txt --labels labels.tsv --save scored --precision 0.5"),
    "score, drift": Row("score scored --domain shuffled.txt --fail_on_drift", code=4),
    "search example": Row("search example faq"),
    "search build": Row(f"search build index --answers answers.tsv {MODEL}"),
    "search add": Row("search add index --answers more.tsv"),
    "search update": Row("search update index --answers answers.tsv"),
    "search remove": Row("search remove index 0 1"),
    "search recalibrate": Row("search recalibrate index --model run"),
    "search ask": Row("search ask index dog"),
    "search evaluate": Row("search evaluate index --labels right.tsv"),
    "search info": Row("search info index"),
    "serve": Row("serve fixed/encoder --port PORT", until="is served at http"),
    "doctor": Row("doctor --golden onnx --model onnx"),
    "doctor, server": Row("doctor --golden onnx --url http://127.0.0.1:PORT --model_name encoder", beside="serve"),
}
"""A row for each command, and for what takes it another way; some take what earlier ones made."""


def write_inputs(folder: Path, n: int) -> None:
    """Text, pairs that are related, scored and labelled, answers, vectors, and a database where LanceDB is.

    Args:
        folder: Where.
        n: Sentences and vectors; of pairs a third.
    """
    drawn = min(n, DRAWN)
    text, pairs = docstring_corpus(drawn // 3, drawn, 0)
    rows = list(zip(numbered(pairs.first, n // 3), numbered(pairs.second, n // 3), strict=True))
    sentences = numbered(text, n)
    (folder / "text.txt").write_text("\n".join(sentences), "utf-8")
    words = np.array([word for sentence in sentences for word in sentence.split()])
    np.random.default_rng(0).shuffle(words)
    (folder / "shuffled.txt").write_text("\n".join(map(" ".join, np.array_split(words, n))), "utf-8")
    tables = {
        "related.tsv": [("query", "text"), *rows],
        "scored.tsv": [("sentence1", "sentence2", "score"), *((*row, str(k % 6)) for k, row in enumerate(rows))],
        "labels.tsv": [
            ("sentence1", "sentence2", "label"),
            *((row[0], rows[k - k % 2][1], str(1 - k % 2)) for k, row in enumerate(rows)),
        ],
        "answers.tsv": [("id", "text"), *((str(k), row[1]) for k, row in enumerate(rows))],
        "more.tsv": [("id", "text"), *((f"more {k}", f"More: {row[1]}") for k, row in enumerate(rows))],
        "right.tsv": [("question", "id"), *((row[0], str(k)) for k, row in enumerate(rows) if k > 1)],
    }
    for name, lines in tables.items():
        (folder / name).write_text("\n".join("\t".join(line) for line in lines), "utf-8")
    x = np.random.default_rng(0).standard_normal((n, WIDTH), np.float32) / np.arange(1, WIDTH + 1, dtype=np.float32)
    np.save(folder / "x.npy", x)
    if find_spec("lancedb"):
        import lancedb
        import pyarrow as pa

        vectors = pa.FixedSizeListArray.from_arrays(pa.array(x.ravel()), WIDTH)
        lancedb.connect(folder / "db").create_table("docs", pa.table({"id": range(n), "vector": vectors}))


def numbered(texts: Sequence[str], n: int) -> list[str]:
    """So many texts; after the last one they begin again, with a number behind."""
    again = (k // len(texts) for k in range(n))
    return [texts[k % len(texts)] + (f" {time}" if time else "") for k, time in enumerate(again)]


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """So many processes beside, which compute all the time."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(processes)]
    try:
        yield
    finally:
        for one in others:
            one.kill()
            one.wait()


class Heard:
    """A process, and what it says: all of both streams, and when each part of it came.

    Args:
        words: Its command line.
        folder: Where it runs.
        until: Text that is waited for.
        terminal: Whether it writes to a terminal, else to two pipes.
    """

    def __init__(self, words: Sequence[str], folder: Path, until: str = "", terminal: bool = False) -> None:
        self.parts: list[tuple[float, str]] = []
        self.until, self._until = Event(), until
        ends = [pty.openpty()] if terminal else [os.pipe(), os.pipe()]
        if terminal:
            termios.tcsetwinsize(ends[0][1], (24, 100))  # where it is unknown, bars are not shown
        self._begin = time.monotonic()
        self.process = subprocess.Popen(
            words, cwd=folder, stdin=subprocess.DEVNULL, stdout=ends[0][1], stderr=ends[-1][1]
        )
        for _, written in ends:
            os.close(written)
        self.texts = [""] * len(ends)
        self._listeners = [Thread(target=self._listen, args=(at, read)) for at, (read, _) in enumerate(ends)]
        for one in self._listeners:
            one.start()

    def _listen(self, at: int, read: int) -> None:
        with suppress(OSError):  # the end of a terminal
            while part := os.read(read, 2**16).decode("utf-8", "replace"):
                self.parts.append((time.monotonic() - self._begin, part))
                self.texts[at] += part
                if self._until and self._until in self.texts[at]:
                    self.until.set()
        os.close(read)
        self.until.set()  # it will not come any more

    def stop(self) -> None:
        """Wait for the text, and stop the process as Ctrl-C does."""
        self.until.wait()
        self.process.terminate()

    def end(self) -> float:
        """Seconds until the process has ended."""
        for one in self._listeners:
            one.join()
        self.process.wait()
        return time.monotonic() - self._begin


@dataclass(frozen=True)
class Measured:
    """What a command said, and when.

    Attributes:
        name: Of its row.
        first: Seconds until its first word.
        longest: Longest time without a word.
        after: The last line before that.
        whole: Seconds from start to end.
        lines: How many.
        then: What it says at its end of what comes next: "next", "-" where it left nothing, "no next".
        failed: Its last words where the exit code is another one than that of its row.
    """

    name: str
    first: float
    longest: float
    after: str
    whole: float
    lines: int
    then: str
    failed: str

    def cells(self) -> tuple[str, ...]:
        """A line of the table."""
        return self.name, f"{self.first:.2f}", f"{self.longest:.1f}", f"{self.whole:.1f}", str(self.lines), self.then


HEADER = ("command", "first line, s", "longest silence, s", "whole, s", "lines", "end")


def longest_silence(parts: Sequence[tuple[float, str]], whole: float) -> tuple[float, str]:
    """The longest time without a word, from the start to the end, and the last line before it."""
    heard = [(0.0, ""), *sorted(parts), (whole, "")]
    silent = max(range(len(heard) - 1), key=lambda at: heard[at + 1][0] - heard[at][0])
    return heard[silent + 1][0] - heard[silent][0], last_of("".join(part for _, part in heard[: silent + 1]))


def last_of(text: str) -> str:
    """The last line that is not empty; of a bar the last state."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def files_of(folder: Path) -> dict[Path, int]:
    """Every file, and when it was changed."""
    return {path: path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()}


class Bench:
    """Where commands run.

    Args:
        folder: Holds what they read; they write there as well.
        data_dir: Folder of the STS data.
        terminal: Whether they write to a terminal.
    """

    def __init__(self, folder: Path, data_dir: Path | None = None, terminal: bool = False) -> None:
        self.folder, self.terminal = folder, terminal
        with socket.create_server(("127.0.0.1", 0)) as one:
            port = one.getsockname()[1]
        data = "no --data_dir was given" if data_dir is None else data_dir.resolve()
        self.words = {"MODEL": embedded_encoder(), "PORT": str(port), "STS": str(data)}

    def start(self, row: Row) -> Heard:
        """Start a command."""
        line = row.line
        for word, stands_for in self.words.items():
            line = line.replace(word, shlex.quote(stands_for))
        return Heard([sys.executable, "-m", "bertflow", *shlex.split(line)], self.folder, row.until, self.terminal)

    @contextmanager
    def beside(self, name: str) -> Iterator[None]:
        """With another command, from what it waits for on."""
        other = self.start(LINES[name])
        try:
            other.until.wait()
            yield
        finally:
            other.stop()
            other.end()

    def measured(self, name: str) -> Measured:
        """Run a command to its end."""
        row = LINES[name]
        with self.beside(row.beside) if row.beside else nullcontext():
            before, heard = files_of(self.folder), self.start(row)
            try:
                if row.until:
                    heard.stop()
                whole = heard.end()
            finally:
                heard.process.kill()  # where this process is stopped itself
        said = sorted(heard.parts)
        left, last = files_of(self.folder) != before, heard.texts[0].rstrip().splitlines()
        then = any(line.startswith("next: ") for line in last[-5:])
        code, words = heard.process.returncode, last_of("".join(part for _, part in said))
        failed = "" if code == row.code else f"exit code {code}: {words}"
        return Measured(
            name,
            said[0][0] if said else whole,
            *longest_silence(said, whole),
            whole,
            sum(text.count("\n") for text in heard.texts),
            "next" if then else "no next" if left else "-",
            failed,
        )


def page(found: Sequence[Measured], given: Namespace) -> str:
    """silence.md: what was found, and where."""
    where = "a terminal" if given.terminal else "pipes"
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    rows = [HEADER, ("---", *["---:"] * (len(HEADER) - 2), "---"), *(one.cells() for one in found)]
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in rows)
    return f"""# How long a command is silent

`python benchmarks/silence.py --busy {given.busy} --rows {given.rows} --data_dir STS --write` runs each command on a
small input, with its output in {where}. "End" is whether a command that leaves files ends with `next:`.

{date}, {processor_name()}, {os.cpu_count()} cores, Python {platform.python_version()}, {given.busy} processes beside
that compute all the time, and a load of {os.getloadavg()[0]:.0f} in all at the end; {given.rows:,} sentences.

{table}
"""


def main() -> None:
    """Measure, and print a line a command as it comes."""
    parser = ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("names", nargs="*", help=f"of {'; '.join(LINES)} (default: all)")
    parser.add_argument("--busy", type=int, default=0, help="processes beside that compute all the time")
    parser.add_argument("--rows", type=int, default=2000, help="sentences and vectors; of pairs a third")
    parser.add_argument("--terminal", action="store_true", help="write to a terminal instead of pipes")
    parser.add_argument("--data_dir", type=Path, help="folder of the STS data")
    parser.add_argument("--write", action="store_true", help="write silence.md")
    given = parser.parse_args()
    print("  ".join((f"{HEADER[0]:20}", *HEADER[1:])), flush=True)
    found = []
    for one in measured(given):
        found.append(one)
        cells = [f"{cell:>{len(title)}}" for cell, title in zip(one.cells(), HEADER, strict=True)]
        print("  ".join([f"{one.name:20}", *cells[1:], f"after: {one.after[:80]}", one.failed]).rstrip(), flush=True)
    if given.write:
        write_text(Path(__file__).with_suffix(".md"), page(found, given))


def measured(given: Namespace) -> Iterator[Measured]:
    """Run the commands, one after the other."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what was started ends with it
    with tempfile.TemporaryDirectory() as place:
        write_inputs(Path(place), given.rows)
        with busy(given.busy):
            bench = Bench(Path(place), given.data_dir, given.terminal)
            yield from map(bench.measured, given.names or LINES)


if __name__ == "__main__":
    main()
