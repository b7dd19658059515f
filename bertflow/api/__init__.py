"""The desk: public functions with their docstrings. A body builds things, and calls one implementation."""
