"""From sentences to raw embeddings: tokenize, run the blocks that are needed, pool."""
