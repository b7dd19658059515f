"""What answers a paper's question, and not a user's: on the public names and a few low rooms (``pyproject.toml``)."""
