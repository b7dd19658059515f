import numpy as np
import pytest


def banana(n=1500, dim=6, seed=0):
    """Rows that no Gaussian describes: half of the coordinates follow the squares of the others."""
    generator = np.random.default_rng(seed)
    first = generator.normal(size=(n, dim // 2))
    second = first**2 + 0.1 * generator.normal(size=(n, dim // 2))
    mixing = np.random.default_rng(1).normal(size=(dim, dim))
    return (np.concatenate((first, second), 1) @ mixing + 3).astype(np.float32)


@pytest.fixture(scope="session")
def embeddings():
    return banana()
