"""Words that the tiny BERT knows, and sentences drawn from them."""

import numpy as np

NOUNS = ["man", "dog", "cat", "bird", "house", "garden"]
VERBS = ["runs", "sleeps", "eats"]
TWELVE = [*NOUNS, *VERBS, "sings", "big", "small"]
COLORED = [*NOUNS, *VERBS, "big", "small", "red", "green", "in"]
WITH_THE = ["the", *NOUNS, *VERBS, "big", "small", "red", "in"]
WITH_AND = ["the", *NOUNS[:5], *VERBS, "big", "small", "red", "in", "and"]
WITH_ARTICLES = ["the", "a", *NOUNS, *VERBS, "big", "red", "in", "."]


def drawn(words, n, seed, least, most):
    """``n`` sentences of ``least`` words or more, and fewer than ``most``."""
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(words, rng.integers(least, most))) for _ in range(n)]


def neighbors(n, seed=0):
    """Pairs of sentences that share all words but one."""
    rng = np.random.default_rng(seed)
    pairs = []
    for _ in range(n):
        words = [str(word) for word in rng.choice(COLORED, rng.integers(5, 10))]
        pairs.append((" ".join(words), " ".join(rng.permutation([str(rng.choice(COLORED)), *words[1:]]))))
    return pairs
