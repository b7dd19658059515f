"""The toy systems and pairs of the evaluation."""

from ..evaluation.conftest import WORDS, ToyEncoder, sts7, toy_pairs

__all__ = ["WORDS", "ToyEncoder", "sts7", "toy_pairs"]
