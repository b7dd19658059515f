"""Fitting a flow: the one door to Lightning."""

from typing import Literal

Purpose = Literal["similarity", "search", "all"]
"""What the recipe of a flow is for."""
Use = Literal["similarity", "search", "topic", "all"]
"""What an encoder is used for."""
