"""Sentences become raw embeddings: tokenize, run the blocks that are needed, pool."""

ENCODER = "encoder"
"""The folder of a saved encoder in a calibrated encoder, a run or an export."""
