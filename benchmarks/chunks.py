"""Long texts in search: cut, in chunks that are pooled, or chunk by chunk? The tables of docs/search.md.

    python benchmarks/chunks.py --data_dir DATA

Each text is longer than ``max_length``, and one question must find it among the others of its task:

    docstrings   all prose after the first line, of 40 words or more; the question is the first line
    books        paragraphs of 150 to 250 words; the question is one of their sentences, drawn at random and taken out

The encoder is the built-in MiniLM: its last layer, which is tuned, and ``mean(1,2)`` as a raw encoder. On
``docstrings`` the raw one is whitened too, fitted on other docstrings: on their sentences, on their prose cut, or in
chunks. Nothing is chosen here, so every task only reports. Writes chunks.json beside this file.
"""

import gzip
import logging
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from study import Case, Row, Study, table

from bertflow.calibration.closed_forms import Whitening
from bertflow.data import docstrings
from bertflow.data.corpus import sentence_spans
from bertflow.encoder.chunks import POOLS, ChunkedText
from bertflow.encoder.embedded import embedded_encoder
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.evaluation.significance import difference
from bertflow.evaluation.ungraded import mean_figure
from bertflow.progress import at_level
from bertflow.similarity import unit_rows
from bertflow.text_keys import text_key

ENCODERS = {"last": "mean", "mean(1,2)": "mean(1,2)"}
LENGTHS, PAIRS = {"docstrings": 32, "books": 64}, {"docstrings": 600, "books": 250}
SPLITS = {"tokens": "tokens", "tokens, a quarter shared": "tokens:{room}:{quarter}", "sentences": "sentences"}
FITTED, RESAMPLES = 1500, 1000
Task = tuple[list[str], list[str]]
"""Questions and their texts."""


def long_paragraphs(data: Path, least: int, most: int) -> list[str]:
    """Paragraphs of old books, of this many words."""
    with gzip.open(data / "text" / "books_paragraphs.txt.gz", "rt", encoding="utf-8") as file:
        return [line for line in map(str.strip, file) if least <= len(line.split()) <= most]


def books(paragraphs: Sequence[str], rng: np.random.Generator) -> Task:
    """A sentence of each paragraph, and the paragraph without it."""
    questions, texts = [], []
    for text in paragraphs:
        spans = [(a, b) for a, b in sentence_spans(text) if 6 <= len(text[a:b].split()) <= 60]
        if len(spans) > 1:
            a, b = spans[rng.integers(len(spans))]
            questions.append(text[a:b])
            texts.append(f"{text[:a]}{text[b:]}".strip())
    return questions, texts


def first_lines() -> Task:
    """First lines of docstrings, and all prose behind them; neither occurs twice."""
    found: dict[str, tuple[str, str]] = {}
    for prose in docstrings._read_prose():
        rest = " ".join(prose[1:])
        if len(rest.split()) >= 40 and docstrings.is_summary(prose[0]):
            found.setdefault(text_key(prose[0]), (prose[0], rest))
    unique = {text_key(rest): (first, rest) for first, rest in found.values()}
    return [first for first, _ in unique.values()], [rest for _, rest in unique.values()]


class Ways:
    """The embeddings of some texts by one encoder, by every way to read them; each text is encoded once a split.

    Args:
        encoder: Cuts at its ``max_length``.
        texts: Long ones.
        whole: An encoder of the same kind that reads all of them.
    """

    def __init__(self, encoder: TransformerEncoder, texts: Sequence[str], whole: TransformerEncoder) -> None:
        room = int(encoder.describe()["max_length"]) - 2
        self.cut = {"cut": encoder.encode(texts), "whole, max_length 512": whole.encode(texts)}
        self.split: dict[str, tuple[NDArray[np.float32], ChunkedText]] = {}
        for name, spelling in SPLITS.items():
            self.split[name] = encoder.encode_chunks(texts, spelling.format(room=room, quarter=room // 4))

    def pooled(self) -> Iterator[tuple[str, NDArray[np.float32]]]:
        """One row a text."""
        yield from self.cut.items()
        for name, (x, text) in self.split.items():
            yield from ((f"{name}: {pool}", text.pooled(x, pool)) for pool in POOLS)
            alike = ChunkedText(text.tokens, text.starts, text.spans, np.ones_like(text.sizes))
            yield f"{name}: mean, chunks alike", alike.pooled(x, "mean")

    def ranks(self, questions: NDArray[np.float32], calibrate: Any = lambda x: x) -> dict[str, NDArray[np.float64]]:
        """The rank of the right text for each question, ties against it."""
        q = unit_rows(calibrate(questions))
        scores = {name: q @ unit_rows(calibrate(x)).T for name, x in self.pooled()}
        for name, (x, text) in self.split.items():
            cosines = q @ unit_rows(calibrate(x)).T
            scores[f"{name}: best chunk"] = np.maximum.reduceat(cosines, text.starts[:-1], axis=1)
        return {name: (s >= s.diagonal()[:, None]).sum(1).astype(float) for name, s in scores.items()}


def scores(task: str, ranks: Mapping[str, NDArray[np.float64]]) -> dict[str, dict[str, list[float | None]]]:
    """hit@1 and MRR of every way, and the interval of its difference from cutting."""
    names, found = list(ranks), {name: dict[str, list[float | None]]() for name in ranks}
    for metric, values in (("hit@1", [r == 1 for r in ranks.values()]), ("mrr", [1 / r for r in ranks.values()])):
        figure = mean_figure(task, metric, np.array(values, dtype=np.float64), RESAMPLES, 0)
        for at, way in enumerate(names):
            less = difference(names, figure, at, names.index("cut")) if way != "cut" else None
            ends = [less.ci_low, less.ci_high] if less else [None, None]
            found[way][metric] = [float(figure.values[at]), *ends]
    return found


def measured(task: str, pooling: str, questions: list[str], texts: list[str], others: list[str]) -> dict[str, Any]:
    """One encoder on one task; of the raw one on docstrings whitened, too."""
    encoder = TransformerEncoder(embedded_encoder(), ENCODERS[pooling], max_length=LENGTHS[task], device="cpu")
    whole = TransformerEncoder(embedded_encoder(), ENCODERS[pooling], max_length=512, device="cpu")
    with at_level(logging.ERROR, "bertflow"):  # that texts are cut is what is measured
        q, ways = whole.encode(questions), Ways(encoder, texts, whole)
        systems = {pooling: scores(task, ways.ranks(q))}
        if task == "docstrings" and pooling != "last":
            sentences = [text[a:b] for text in others for a, b in sentence_spans(text)]
            x, split = encoder.encode_chunks(others, "tokens")
            fits = {"sentences": encoder.encode(sentences), "texts cut": encoder.encode(others)}
            for name, rows in (fits | {"texts in chunks": split.pooled(x, "mean")}).items():
                whitened = ways.ranks(q, Whitening().fit(rows).transform)
                systems[f"{pooling}, whitened on {len(rows):,} {name}"] = scores(task, whitened)
    return {"n": len(questions), "systems": systems}


def cases(options: Namespace) -> Iterator[Case]:
    """Each task by each encoder."""
    rng = np.random.default_rng(0)
    tasks = {"docstrings": first_lines(), "books": books(long_paragraphs(options.data_dir, 150, 250), rng)}
    for task, (questions, texts) in tasks.items():
        drawn = rng.permutation(len(texts))
        kept, others = drawn[: PAIRS[task]], [texts[row] for row in drawn[PAIRS[task] :][:FITTED]]
        sides = ([side[row] for row in kept] for side in (questions, texts))
        call = partial(measured, task, questions=next(sides), texts=next(sides), others=others)
        for pooling in ENCODERS:
            yield {"task": task, "pooling": pooling}, partial(call, pooling)


def page(rows: Sequence[Row]) -> str:
    """A table a task: ways down, systems across, hit@1 x 100 with the interval of the difference from cutting."""
    text = ""
    for task in dict.fromkeys(row["task"] for row in rows):
        here = [row for row in rows if row["task"] == task]
        systems = {name: ways for row in here for name, ways in row["systems"].items()}
        ways = next(iter(systems.values()))
        lines = [(way, *(cell(*found[way]["hit@1"]) for found in systems.values())) for way in ways]
        text += f"{task}, {here[0]['n']} questions, max_length {LENGTHS[task]}: hit@1 x 100\n\n"
        text += table(("", *systems), lines)
    return text


def cell(value: float, low: float | None, high: float | None) -> str:
    """A value, and what it has over cutting."""
    return f"{100 * value:.1f}" + ("" if low is None or high is None else f" [{100 * low:+.1f}, {100 * high:+.1f}]")


STUDY = Study(__file__, __doc__, cases, page, "text")
if __name__ == "__main__":
    STUDY.main()
