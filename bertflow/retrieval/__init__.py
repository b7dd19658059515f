"""Known answers for a new question."""
