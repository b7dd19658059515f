"""How long a command is silent: when its first line comes, and the longest time between two; also on a loaded machine.

    python benchmarks/silence.py [COMMAND ...] [--busy 2]

Each command runs as a process of its own on a small input, with its output in pipes, as in the log of a job.
"""

import os
import shlex
import subprocess
import sys
import tempfile
import time
from argparse import ArgumentParser
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from queue import Queue
from threading import Thread

from bertflow.data.docstrings import docstring_corpus
from bertflow.encoder.embedded import embedded_encoder

MODEL = "--model MODEL --pooling mean(1,2)"
LINES: Mapping[str, str] = {
    "demo": "--output demo",
    "fix": "MODEL text.txt --pooling mean(1,2) --output fixed",
    "train": "--data.sentences text.txt --encoder.model MODEL --encoder.pooling mean(1,2) --output run",
    "finetune": "--finetune.objective in-batch-negatives --data.pairs related.tsv --encoder.model MODEL --output tuned "
    "--trainer.max_steps 50",
    "embed": f"text.txt --store store {MODEL}",
    "fit": "--store store --calibrator flow --output flow",
    "transform": "--calibrator flow --store store --output z.npy",
    "inspect": "MODEL --pooling mean(1,2) --output report",
    "tokens": "dog --model MODEL",
    "words": "--study king-queen --model MODEL",
    "export": "fixed/encoder --target onnx --output onnx",
    "score": "fixed/encoder related.tsv --output scored.tsv",
    "search build": f"index --answers answers.tsv {MODEL}",
    "search ask": "index dog",
    "doctor": "--golden onnx --model onnx",
    "sweep": "MODEL --tasks scored.tsv --data_dir .",
    "evaluate": "MODEL run --tasks scored.tsv --data_dir . --compare raw,whitening --fit_on text.txt --output scores",
}
"""A command line of each that needs no other data; some take what earlier ones made."""


def write_inputs(folder: Path) -> None:
    """Text, related and scored pairs, and answers, from docstrings."""
    text, pairs = docstring_corpus(500, 1500, 0)
    rows = list(zip(pairs.first, pairs.second, strict=True))
    (folder / "text.txt").write_text("\n".join(text), "utf-8")
    tables = {
        "related.tsv": [("query", "text"), *rows],
        "scored.tsv": [("sentence1", "sentence2", "score"), *((*row, str(k % 6)) for k, row in enumerate(rows))],
        "answers.tsv": [("id", "text"), *((str(k), row[1]) for k, row in enumerate(rows))],
    }
    for name, lines in tables.items():
        (folder / name).write_text("\n".join("\t".join(line) for line in lines), "utf-8")


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


def times_of(words: list[str], folder: Path) -> tuple[list[float], int]:
    """Seconds from the start to each line of either stream, and to the end; and the exit code."""
    heard: Queue[float] = Queue()
    begin = time.monotonic()
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "cwd": folder, "env": os.environ}
    with subprocess.Popen([sys.executable, "-m", "bertflow", *words], **pipes) as process:  # type: ignore[call-overload]

        def listen(stream: object) -> None:
            for _ in stream:  # type: ignore[attr-defined]
                heard.put(time.monotonic() - begin)

        threads = [Thread(target=listen, args=(stream,)) for stream in (process.stdout, process.stderr)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return [*sorted(heard.queue), time.monotonic() - begin], process.returncode


def main() -> None:
    """Measure, and print a line a command as it comes."""
    parser = ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("commands", nargs="*", default=[*LINES], help=f"of {', '.join(LINES)}")
    parser.add_argument("--busy", type=int, default=0, help="processes beside that compute all the time")
    given = parser.parse_args()
    print(f"{'command':14} {'first line, s':>14} {'longest silence, s':>19} {'whole, s':>9}  lines", flush=True)
    with tempfile.TemporaryDirectory() as place:
        write_inputs(Path(place))
        measure(given.commands, Path(place), given.busy)


def measure(commands: Sequence[str], folder: Path, others: int) -> None:
    """Run the commands, with so many processes beside, and print a line for each."""
    with busy(others):
        for name in commands:
            line = LINES[name].replace("MODEL", shlex.quote(embedded_encoder()))
            times, code = times_of([*name.split(), *shlex.split(line)], folder)
            longest = max(after - before for before, after in zip([0.0, *times], times, strict=False))
            failed = f"  exit code {code}" if code else ""
            print(f"{name:14} {times[0]:14.2f} {longest:19.1f} {times[-1]:9.1f}  {len(times) - 1}{failed}", flush=True)


if __name__ == "__main__":
    main()
