"""An index of answers that is searched through a graph of neighbors (HNSW) of the library usearch.

For so many phrases that comparing a question with all of them takes too long. The graph is derived from the index file
and lies beside it as ``<index>.<name>-<calibrator>-<state>.usearch``. When the index was changed, the graph is brought
up to date by the numbers of its phrases and their embeddings, written aside, and renamed; a graph that is missing is
built again. Its candidates
are scored again exactly, so scores are exact and only an answer may be missed. Of few phrases, or when nearly all are
wanted, every one is compared and none is missed.

    AnswerIndex.open("faq.index", encoder, search=UsearchSearch())
"""

from collections.abc import Sequence

import numpy as np

from bertflow.array_types import Float32, Float64, Int64
from bertflow.data.corpus import chunks
from bertflow.errors import DataError, needs
from bertflow.files import atomic_file
from bertflow.retrieval.storage import ROWS, Storage

with needs("usearch", "search"):
    from usearch.index import Index

LOOK = 256
"""How many neighbors a search keeps (``expansion_search``); more finds more, but is slower."""
FEW = 20_000
"""Number of phrases up to which comparing all (at 384 dimensions) takes no longer than searching the graph. Up to this
number they are added by one thread, since several threads leave nodes of a small graph unreachable."""
MORE = 4
"""How many phrases are looked at first, for each answer that is wanted."""


class UsearchSearch:
    """Approximate neighbors, for ``AnswerIndex``; see ``bertflow.retrieval.ranking.Search``."""

    def refresh(self, storage: Storage) -> None:
        """Bring the graph up to date with what is stored.

        Raises:
            DataError: If the graph's file is damaged.
        """
        facts = storage.facts()
        stem = f"{storage.path.name}.{facts['name'][:8]}-"
        kind = f"{stem}{facts['digest'][:8] or 'raw'}"
        path = storage.path.with_name(f"{kind}-{facts['state'][:8]}.usearch")
        graph = Index(ndim=facts["dim"], metric="cos", dtype="f32", expansion_search=LOOK)
        found = [path] if path.exists() else sorted(path.parent.glob(f"{kind}*.usearch"))
        if found:
            try:
                graph.load(str(found[0]))
            except (RuntimeError, ValueError) as error:
                raise DataError(f"{found[0]} is damaged: {error}. Delete it; it will be built again.") from None
        held, stored = np.sort(graph.keys[: len(graph)].astype(np.int64)), storage.numbers()
        current = found == [path]
        same = np.intersect1d(held, stored)
        if not current:  # of an earlier content, or of a copy of the index that went another way
            same = np.concatenate([same[:0], *(_equal(graph, storage, part) for part in chunks(same.tolist(), ROWS))])
        gone, new = np.setdiff1d(held, same), np.setdiff1d(stored, same)
        if len(gone):
            graph.remove(gone.astype(np.uint64))
        for part in chunks(new.tolist(), ROWS):
            threads = 1 if len(graph) < FEW else 0
            graph.add(np.array(part, np.uint64), storage.vectors(part), threads=threads)
        if not current:
            with atomic_file(path) as aside:
                graph.save(str(aside))
            for old in set(path.parent.glob(f"{stem}*.usearch")) - {path}:
                old.unlink()
        self._storage, self._graph = storage, graph

    def candidates(self, questions: Float64, k: int) -> list[Sequence[int]]:
        """The nearest phrases of each question (q, dim), enough to hold ``k`` answers where there are as many."""
        return [self._nearest(question.astype(np.float32), k) for question in questions]

    def _nearest(self, question: Float32, k: int) -> list[int]:
        # The nearest phrases of k different answers are the best phrases of the k best answers.
        count = MORE * k
        while True:
            exact = len(self._graph) <= max(FEW, count)
            numbers: list[int] = self._graph.search(question, count, exact=exact).keys.astype(np.int64).tolist()
            answers = {name for name, *_ in self._storage.phrases(numbers).values()}
            if len(answers) >= k or count >= len(self._graph):
                return numbers
            count = min(4 * count, len(self._graph))


def _equal(graph: Index, storage: Storage, numbers: list[int]) -> Int64:
    """The phrases whose embeddings in the graph are those of the index."""
    same = (np.array(graph.get(np.array(numbers, np.uint64))) == storage.vectors(numbers)).all(1)
    return np.array(numbers, np.int64)[same]
