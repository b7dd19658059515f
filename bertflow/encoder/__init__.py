"""Sentences become raw embeddings: tokenize, run the blocks that are needed, pool."""
