"""Text, pairs and counts: the only place that knows file formats."""
