"""Text, pairs and counts: the only place that knows file formats."""

DOCSTRINGS = "docstrings"
"""Name of the pairs of installed packages, which options take in place of a file."""
