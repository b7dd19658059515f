"""Embeddings at rest: embed once, read many times, by several processes."""
