"""What embeddings are for: a light module, since the help of a command reads it."""

from typing import Literal

Purpose = Literal["similarity", "search", "both"]
