"""Collections of vectors in databases, each behind an extra; ``reindex`` calibrates one into a new one."""
