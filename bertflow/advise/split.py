"""The split of a text: sentences to fit on, and documents put aside for pairs and thresholds."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any

import numpy as np

from bertflow.advise.reading import Document, Documents
from bertflow.data.columns import TextColumns, added_up
from bertflow.data.pairs import Pairs, unique_sentences
from bertflow.errors import DataError
from bertflow.next_steps import FEWEST
from bertflow.scoring.random_pairs import FEWEST as FEWEST_RANDOM
from bertflow.text_keys import text_key, unique_pairs

HELD_OUT = 1 / 3
"""Largest share of the documents that is put aside."""
FEWEST_PAIRS = 100
"""Fewest held-out pairs that are used: with fewer, no interval can tell systems apart."""
DRAWN = 300
"""Sentences that thresholds are of where few documents are put aside, if these have as many."""
ALWAYS = ("used", "put aside", "seen before")
"""Counts of rows that are named even if they are 0."""


@dataclass(frozen=True)
class SplitText:
    """Text to fit on, and text that is not.

    Attributes:
        fitted: Distinct sentences to fit on.
        lines: The same where narrow text is concerned: lines of several sentences are as the user has them.
        reference: Distinct sentences, a random one of each document put aside, if possible one of no other document;
            several of each, where fewer than ``FEWEST_RANDOM`` documents are put aside.
        whole: The reference where thresholds are concerned: lines of several sentences are as the user has them, if
            there are enough.
        choosing: Mined pairs to choose by; None where there are too few.
        judging: Other mined pairs to judge by.
        mined: Number of different pairs in the whole text: no query and no text occurs twice.
        rows: What became of each line of the text, or row of a table; the numbers add up to all.
        unit: What they count.
        columns: Where a table holds the text; None for plain text.
    """

    fitted: list[str]
    lines: list[str]
    reference: list[str]
    whole: list[str]
    choosing: Pairs | None
    judging: Pairs | None
    mined: int
    rows: Mapping[str, int]
    unit: str = "lines"
    columns: TextColumns | None = None

    @property
    def judged(self) -> str:
        """What thresholds are for."""
        if self.columns and self.columns.paired:
            return "texts of both columns"
        return "sentences" if self.whole == self.reference else "whole lines"

    @property
    def read(self) -> list[str]:
        """The sentences that are embedded: how broad the text is, and how rich in words, is told by them."""
        mined = unique_sentences(filter(None, (self.choosing, self.judging)))
        return list(dict.fromkeys([*self.fitted, *self.reference, *mined]))

    def as_dict(self) -> dict[str, Any]:
        """The sizes, ready for JSON."""
        sizes = {"fitted": len(self.fitted), "reference": len(self.reference), "pairs_in_the_text": self.mined}
        counted = {"unit": self.unit, "rows": {"all": sum(self.rows.values()), **self.rows}}
        return {**sizes, **counted, "columns": asdict(self.columns) if self.columns else None}

    @property
    def counted(self) -> str:
        """How the rows add up, and on how many sentences a fit is, if more or fewer than those used."""
        n = len(self.fitted)
        held = "" if n == self.rows["used"] else f"; fitted on {n:,} distinct sentences of the used ones"
        return f"{added_up(self.rows, self.unit, ALWAYS)}{held}"

    @property
    def without_pairs(self) -> str:
        """Why there are no mined pairs to judge by."""
        if not self.mined and not (self.columns and self.columns.paired):
            where = "paragraphs, empty lines, or question and answer columns"
            return f"the text has no structure that gives pairs ({where})."
        aside = f"{FEWEST_PAIRS} pairs without a repeated text are needed in the third of the text that is put aside"
        return f"{aside}; the whole has {self.mined:,}."


def split_text(
    documents: Documents, source: str, labeled: Sequence[str], max_sentences: int, max_pairs: int, seed: int
) -> SplitText:
    """Put some documents aside: documents with pairs, if there are enough, else any. One that is repeated counts once.

    Args:
        documents: All documents.
        source: Name of the text.
        labeled: Sentences of labeled pairs, which are not fitted on either.
        max_sentences: Largest number of sentences to fit on.
        max_pairs: Largest number of pairs to choose by, and as many to judge by.
        seed: Random seed for what is put aside.

    Raises:
        DataError: If too few sentences are left to fit on, or for thresholds; the message says how many are needed.
    """
    # Copies of what is put aside could not be fitted on, so there would be little left.
    first_copies: dict[tuple[str, ...], Document] = {}
    for document in documents:
        first_copies.setdefault(tuple(map(text_key, document.sentences)), document)
    often = Counter(chain.from_iterable(map(set, first_copies)))
    if len(often) < FEWEST:
        raise _too_small(len(often), "")
    rng = np.random.default_rng(seed)
    copies = list(first_copies.values())
    shuffled = [copies[row] for row in rng.permutation(len(copies))]
    paired = [document for document in shuffled if document.pairs]
    # Whether a third of the documents with pairs has enough pairs.
    of_pairs = sum(len(document.pairs) for document in paired) * HELD_OUT >= FEWEST_PAIRS
    pool = paired if of_pairs else shuffled
    pool = pool[: max(1, int(len(pool) * HELD_OUT))]
    # The first documents, until they have enough pairs, or sentences.
    sizes = np.cumsum([len(document.pairs if of_pairs else document.sentences) for document in pool])
    aside = pool[: int(np.searchsorted(sizes, 2 * max_pairs)) + 1]
    if of_pairs:
        # The same share of the documents without pairs, so that the reference has the same kinds of text.
        others = [document for document in shuffled if not document.pairs]
        aside += others[: round(len(others) * len(aside) / len(paired))]
    pairs = unique_pairs(pair for document in aside for pair in document.pairs) if of_pairs else []
    alone = [[one for one in each.sentences if often[text_key(one)] == 1] or each.sentences for each in aside]
    each = 1 if len(aside) >= FEWEST_RANDOM else -(-DRAWN // len(aside))
    drawn = [_drawn(sentences, each, rng) for sentences in alone]
    reference = _distinct(chain.from_iterable(drawn))
    if len(reference) < FEWEST_RANDOM:
        raise DataError(
            f"Thresholds need at least {FEWEST_RANDOM} different sentences in the documents put aside (at most a third "
            f"of all), got {len(reference)}. Give more documents; empty lines separate them."
        )
    as_given = ([one.line] if one.line else some for one, some in zip(aside, drawn, strict=True))
    whole = _distinct(chain.from_iterable(as_given))
    texts = (text for document in aside for text in chain(document.sentences, *document.pairs))
    known, left_out = set(map(text_key, labeled)), set(map(id, aside))
    rest = [document for document in shuffled if id(document) not in left_out]
    fitted, rows = _fitted(rest, known | set(map(text_key, texts)), known, max_sentences)
    lines = _distinct(chain.from_iterable([each.line] if each.line else each.sentences for each in rest))
    rows["put aside"] = sum(document.lines for document in aside)
    rows["empty"] = documents.lines - sum(document.lines for document in documents)
    rows["seen before"] += documents.lines - sum(rows.values())
    if len(fitted) < FEWEST // 2:
        raise _too_small(len(fitted), " that are neither put aside nor labeled")
    first, second = zip(*pairs, strict=True) if len(pairs) >= FEWEST_PAIRS else ((), ())
    usable = Pairs("mined pairs", first, second, kind="retrieval", source=source) if first else None
    return SplitText(
        fitted=fitted[:max_sentences],
        lines=(lines if any(each.line for each in rest) else fitted)[:max_sentences],
        reference=reference,
        whole=whole if len(whole) >= FEWEST_RANDOM else reference,
        choosing=usable and usable.taken(range(0, len(pairs), 2)),
        judging=usable and usable.taken(range(1, len(pairs), 2)),
        mined=len(unique_pairs(pair for document in copies for pair in document.pairs)),
        rows=rows,
        unit=documents.unit,
        columns=documents.columns,
    )


def _fitted(
    documents: Sequence[Document], taken: set[str], labeled: set[str], most: int
) -> tuple[list[str], dict[str, int]]:
    """The sentences that are not taken, each once, and what became of the lines of their documents."""
    found: list[str] = []
    rows = dict.fromkeys((*ALWAYS, "in the labels", "above max_sentences", "empty"), 0)
    for document in documents:
        new = {key: sentence for sentence in document.sentences if (key := text_key(sentence)) not in taken}
        taken |= new.keys()
        kept, left = min(len(new), max(0, most - len(found))), document.lines
        asked = sum(text_key(sentence) in labeled for sentence in document.sentences)
        for what, n in {"used": kept, "above max_sentences": len(new) - kept, "in the labels": asked}.items():
            rows[what] += (counted := min(left, n))
            left -= counted
        rows["seen before"] += left
        found += new.values()
    return found, rows


def _drawn(sentences: Sequence[str], most: int, rng: np.random.Generator) -> list[str]:
    """Random sentences, each once."""
    # One by one integer: the figures of texts of many documents are of these draws.
    places = rng.integers(len(sentences), size=1) if most == 1 else rng.permutation(len(sentences))[:most]
    return [sentences[place] for place in places]


def _distinct(sentences: Iterable[str]) -> list[str]:
    """The sentences, each text key once."""
    kept: dict[str, str] = {}
    for sentence in sentences:
        kept.setdefault(text_key(sentence), sentence)
    return list(kept.values())


def _too_small(found: int, which: str) -> DataError:
    return DataError(
        f"A verdict needs at least {FEWEST} different sentences, to fit on some and to judge on others, got {found}"
        f"{which}. Give more text of the kind that you will embed; long texts may be split, as into paragraphs."
    )
