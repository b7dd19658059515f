"""What a space of embeddings looks like."""
