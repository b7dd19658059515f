"""Exact search against the graph of usearch: seconds to get ready, milliseconds a question, what is missed.

    python benchmarks/search.py [--phrases 50000] [--encode 2000]

Embeddings of docstring sentences by the embedded encoder, whitened; to have more phrases than sentences were encoded,
each is repeated with noise of a third of its own length. Questions are sentences that are not in the index.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bertflow.calibrated import CalibratedEncoder
from bertflow.calibration.calibrators import Whitening
from bertflow.data.corpus import Answer
from bertflow.data.docstrings import docstring_corpus
from bertflow.encoder.abstract import AbstractEncoder
from bertflow.encoder.embedded import embedded_encoder
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.integrations.usearch import UsearchSearch
from bertflow.retrieval.index import AnswerIndex

QUESTIONS, K, NOISE = 200, 5, 1 / 3


class Kept(AbstractEncoder):
    """An encoder of texts whose embeddings are known already."""

    def __init__(self, rows: dict[str, NDArray[np.float32]]) -> None:
        self._rows = rows
        self.dim = len(next(iter(rows.values())))

    def _encode(self, sentences: list[str], *_: Any) -> NDArray[np.float32]:
        return np.array([self._rows[sentence] for sentence in sentences], np.float32).reshape(-1, self.dim)

    def describe(self) -> dict[str, str]:
        """Its name."""
        return {"encoder": "kept"}

    def fitted_hashes(self) -> None:
        """Unknown."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--phrases", type=int, default=50_000, help="in the index (default: 50000)")
    parser.add_argument("--encode", type=int, default=2000, help="sentences that are encoded (default: 2000)")
    options = parser.parse_args()
    sentences, _ = docstring_corpus(n_pairs=1, n_sentences=options.encode + QUESTIONS)
    encoder = TransformerEncoder(embedded_encoder(), pooling="mean(1,2)", max_length=128)
    z = CalibratedEncoder.fit(encoder, Whitening(), sentences[: options.encode]).encode(sentences)
    questions = sentences[options.encode :]
    phrases = _repeated(z[: options.encode], options.phrases)
    rows = {f"phrase {number}": row for number, row in enumerate(phrases)}
    kept = Kept({**rows, **dict(zip(questions, z[options.encode :], strict=True))})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "index"
        seconds, index = _timed(lambda: AnswerIndex.create(path, kept, [Answer(text, text) for text in rows]))
        print(f"{len(rows)} phrases, {kept.dim} dimensions, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
        print(f"index written in {seconds:.1f} s, {path.stat().st_size / 2**20:.0f} MB")
        graph = AnswerIndex.open(path, kept, search=UsearchSearch())
        found = {}
        for name, one in (("exact", index), ("usearch", graph)):
            ready, _ = _timed(lambda one=one: one.search(questions[0], K))
            spent, found[name] = _timed(lambda one=one: [one.search(question, K) for question in questions])
            print(f"{name}: ready in {ready:.1f} s, {1000 * spent / len(questions):.1f} ms a question")
        recall = np.mean(
            [
                len({hit.id for hit in ours} & {hit.id for hit in theirs}) / K
                for ours, theirs in zip(found["exact"], found["usearch"], strict=True)
            ]
        )
        print(f"usearch finds {100 * recall:.1f} % of the exact best {K}")


def _repeated(z: NDArray[np.float32], n: int) -> NDArray[np.float32]:
    rng = np.random.default_rng(0)
    copies = np.resize(np.arange(len(z)), n)
    noise = rng.standard_normal((n, z.shape[1])) * NOISE * z.std()
    noise[: len(z)] = 0
    return (z[copies] + noise).astype(np.float32)


def _timed(work: Callable[[], Any]) -> tuple[float, Any]:
    begin = time.perf_counter()
    result = work()
    return time.perf_counter() - begin, result


if __name__ == "__main__":
    main()
