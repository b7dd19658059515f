"""Is a text broad enough to fit a map to, and is other text of its kind?

Whitening divides by the deviations that a text shows. Text of one narrow kind, such as a catalog made from templates,
varies in few directions. Whatever is new in a query, or in a text on another topic, lies in the other directions, where
the division makes it large at random: search is ruined, and nothing in the text shows it. So some topics (clusters of
the text) are left out of a fit, and compared with rows that were left out at random:

    d(y)     = mean over directions of (coordinate of y after whitening)^2          1 on average for the rows of the fit
    novelty  = median d of rows whose topic was left out  /  median d of rows that were left out at random

Near 1, a new topic is no surprise, and the text is broad. Other text, such as queries, is compared in the same way with
the whole text:

    strangeness  = median d of the other rows  /  median d of rows that were left out at random

Where the text is at hand, its words are a second sign, since templates whose parts come together in all ways have no
novelty: they have few different words.

Rows are scaled to unit length first, as in the domain check. Labels are not needed, and vectors without text will do.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.cluster import KMeans

from bertflow.affine import AffineMap, whitening_map
from bertflow.array_types import Bools, Float64, Floats, Intp
from bertflow.errors import logger, without_null_warnings
from bertflow.moments import Moments
from bertflow.similarity import unit_rows
from bertflow.text_keys import hash_text
from bertflow.written import written_words

Block = TypeVar("Block", bound=NDArray[Any])
PART = re.compile(r"[^A-Z]+|[A-Z]+(?![^A-Z])|[A-Z][^A-Z]+")
"""A part of a word; the name getUserName has three."""
RUNNING, RICH = 5000, 1000.0
"""Running words, and the different ones among them below which a text is narrow: 1,100 to 2,000 in broad text, 850 in
captions, 130 to 900 in text made from templates (benchmarks/EXPLORED.md)."""
FEW_WORDS = 100
"""Different words among them below which a shift of queries or documents cost search up to 8 points
(benchmarks/EXPLORED.md)."""
SHORT = 3
"""Most words of a title: if most texts are titles, maps and weights of words harm search (benchmarks/EXPLORED.md)."""
NARROW = 3.0
"""Novelty above which a text is narrow: 1.0 to 1.2 on broad text, 1.2 to 2 on captions and descriptions, 7 or more on
lists of words, copies and templates (benchmarks/harm.md)."""
MANY_TIMES = 100
"""Novelty above which its value says nothing: rows of copies have no distance to speak of."""
FOREIGN = 20.0
"""Strangeness above which other text is of another kind: 1 to 9 where a map that was fitted to the text helped."""
FOREIGN_ALONE = 7.0
"""Strangeness of queries above which vectors without their text keep their encoder: 1 to 7 where ridge(1) found more,
9 where it lost 6 of 19 points, 24 to 530 on narrow text."""
TOPICS, FOLDS = 20, 5
"""Number of clusters, and of parts that are left out in turn."""
MOST = 3000
"""Rows that are looked at: of texts those whose hashes are the smallest, so that it is the same sample everywhere."""
FEWEST = 5 * TOPICS
"""Fewest different rows that can be judged."""


@dataclass(frozen=True)
class Breadth:
    """How well a text stands for text that it does not hold; made by ``breadth_of``.

    Attributes:
        n: Number of rows that were looked at.
        novelty: Distance of topics that were left out over that of rows left out at random; about 1 is broad.
        at_random: Median distance of rows left out at random.
        density: Whitening of all rows of unit length.
        words: Richness of the text: different words in ``RUNNING``; None where the text is not at hand.
        titles: Whether most texts have at most ``SHORT`` words.
    """

    n: int
    novelty: float
    at_random: float
    density: AffineMap
    words: float | None = None
    titles: bool = False

    def signs(self) -> tuple[str, ...]:
        """What says that the text is narrow, each in a few words."""
        few = self.words is not None and are_few(self.words)
        return (
            *([f"most of its texts have at most {SHORT} words"] if self.titles else []),
            *([f"it has {self.words:.0f} different words per {RUNNING:,}"] if few else []),
            *[self._far] * (self.novelty > NARROW),
        )

    @property
    def _far(self) -> str:
        return f"a topic left out of a fit lies {how_far(self.novelty)} as far off as random lines"

    @property
    def narrow(self) -> bool:
        """Whether a map that is fitted to the text may ruin a search."""
        return bool(self.signs())

    def strangeness(self, rows: Floats) -> float:
        """Distance of other embeddings (n, dim) over that of rows left out at random; 1 is text of the same kind."""
        return float(np.median(_distances(self.density, unit_rows(rows)))) / self.at_random

    def __str__(self) -> str:
        """One line."""
        if not self.narrow:
            return f"The text is broad ({self._far})."
        return f"The text is narrow ({', and '.join(self.signs())}): a strong map that is fitted to it may harm search."


def how_far(ratio: float) -> str:
    """A ratio of distances in words."""
    return f"{ratio:.1f} times" if ratio < MANY_TIMES else f"more than {MANY_TIMES} times"


def breadth_of(x: Floats, texts: Sequence[str] | None = None) -> Breadth | None:
    """Judge the breadth of a text by its raw embeddings, and by its words.

    Args:
        x: Raw embeddings (n, dim), finite and not zero.
        texts: The texts, if they are at hand; neither their order nor copies matter.

    Returns:
        None for fewer than ``FEWEST`` different rows, which cannot be judged.
    """
    return _judged(x[np.random.default_rng(0).permutation(len(x)) if texts is None else by_hash(texts)][:MOST], texts)


def _judged(x: Floats, texts: Sequence[str] | None) -> Breadth | None:
    rng, rows = np.random.default_rng(0), unit_rows(x)
    rows = rows[np.sort(np.unique(rows, axis=0, return_index=True)[1])]
    if len(rows) < FEWEST:
        return None
    topics = KMeans(TOPICS, n_init=1, random_state=0).fit_predict(rows)
    parts = {"topics": rng.permutation(TOPICS)[topics] % FOLDS, "rows": np.arange(len(rows)) % FOLDS}
    far = {name: float(np.mean([_left_out(rows, of == part) for part in range(FOLDS)])) for name, of in parts.items()}
    words = None if texts is None else richness(texts)
    titles = texts is not None and are_titles(texts)
    return Breadth(len(rows), far["topics"] / far["rows"], far["rows"], _density(rows), words, titles)


def are_few(words: float) -> bool:
    """Whether so many different words in ``RUNNING`` are a sign of narrow text."""
    return words < RICH


def are_titles(texts: Sequence[str]) -> bool:
    """Whether most texts have at most ``SHORT`` words."""
    return float(np.median([len([*_parts(text)]) for text in texts])) <= SHORT


def _parts(text: str) -> Iterator[str]:
    return chain.from_iterable(PART.findall(word) for word, _ in written_words(text))


def by_hash(texts: Sequence[str]) -> Intp:
    """Places of the different texts, the one with the smallest hash first: an order at random, the same everywhere."""
    return np.unique(np.array([hash_text(text) for text in texts], dtype=np.uint64), return_index=True)[1]


def richness(texts: Sequence[str]) -> float:
    """Number of different words in ``RUNNING`` running words of a text; of a shorter one what it would be (Heaps).

    Source: Heaps 1978, section 7.5: the number of different words grows as a power of the length, here 1/2.
    """
    running = chain.from_iterable(_parts(texts[at]) for at in by_hash(texts))
    words = list(islice(map(str.lower, running), RUNNING))
    return len(set(words)) * float(np.sqrt(RUNNING / max(1, len(words))))


def watch_breadth(blocks: Iterable[Block], n: int) -> Iterator[Block]:
    """Pass on blocks of raw embeddings, and warn in one line in the end if their text is narrow.

    Args:
        blocks: Arrays (rows, dim).
        n: Number of rows in all; every k-th is kept, so that there are ``MOST`` or up to twice as many.
    """
    step, kept, row = max(1, n // MOST), [], 0
    for block in blocks:
        kept.append(np.array(block[-row % step :: step]))
        row += len(block)
        yield block
    if kept and (said := _said(breadth_of(np.concatenate(kept)))):
        logger.warning(said)


def narrowness(texts: Sequence[str], rows_at: Callable[[Intp], Floats]) -> str:
    """What to say of texts that are narrow, by raw embeddings at some places or by their words; else empty."""
    return _said(_judged(rows_at(by_hash(texts)[:MOST]), texts))


def _said(breadth: Breadth | None) -> str:
    return f"{breadth} `bertflow fix` says whether to use it." if breadth and breadth.narrow else ""


def _left_out(rows: Float64, left: Bools) -> float:
    """Median distance of some rows in a fit of the others."""
    return float(np.median(_distances(_density(rows[~left]), rows[left])))


def _density(rows: Float64) -> AffineMap:
    with without_null_warnings():
        return whitening_map(Moments.of(rows))


def _distances(density: AffineMap, rows: Float64) -> Float64:
    with torch.inference_mode():
        return density(torch.from_numpy(rows)).square().mean(1).numpy()
