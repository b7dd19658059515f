"""When are two sentences the same text? When their keys are equal.

The key of a sentence is its letters, with their marks, and its digits, after NFKC and case folding: "A man's hat." and
"a man 's hat" are one text. A corpus is remembered as the sorted 64-bit hashes of its keys: enough to say later which
share of other sentences stood in it, without keeping the text. Two different keys among a billion share a hash with a
probability of 0.03.
"""

import hashlib
import re
import unicodedata
from collections.abc import Iterable, Sequence
from functools import cache

import numpy as np

from bertflow.array_types import Hashes
from bertflow.written import marks

NO_LETTERS = re.compile(r"[\W_]+")
"""What is neither letter nor digit where all is ASCII."""


def text_key(sentence: str) -> str:
    """Letters and digits of a sentence, case folded; the whole text folded where it has neither."""
    folded = unicodedata.normalize("NFKC", sentence).casefold()
    key = NO_LETTERS.sub("", folded) if folded.isascii() else "".join(_kept().findall(folded))
    return key or "".join(folded.split())


@cache
def _kept() -> re.Pattern[str]:
    """What belongs to a key: a digit, or a letter with its marks."""
    return re.compile(rf"\d|[^\W\d_][{marks()}]*")


def hash_text(sentence: str) -> int:
    """64-bit hash of a sentence's key."""
    return int.from_bytes(hashlib.blake2b(text_key(sentence).encode(), digest_size=8).digest(), "little")


def hash_texts(sentences: Iterable[str]) -> Hashes:
    """The distinct hashes of some sentences, sorted."""
    return np.unique(np.fromiter((hash_text(sentence) for sentence in sentences), dtype=np.uint64))


def digest(hashes: Hashes) -> str:
    """One fingerprint for a set of text hashes, whatever the order the text came in."""
    return hashlib.sha256(np.unique(hashes).astype("<u8").tobytes()).hexdigest()


def seen_share(sentences: Sequence[str], hashes: Hashes) -> float:
    """Share of the distinct ``sentences``, by key, that are among ``hashes``; in [0, 1]."""
    evaluated = hash_texts(sentences)
    return float(np.isin(evaluated, hashes).mean()) if len(evaluated) else 0.0


def unique_pairs(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """The pairs of which neither side stood in an earlier pair that was kept, by text key.

    In a ranking of all texts for each query, a text that answers two queries, or a query with two texts, would count
    right answers as wrong.
    """
    kept: list[tuple[str, str]] = []
    queries: set[str] = set()
    texts: set[str] = set()
    for query, text in pairs:
        keys = text_key(query), text_key(text)
        if keys[0] not in queries and keys[1] not in texts:
            queries.add(keys[0])
            texts.add(keys[1])
            kept.append((query, text))
    return kept
