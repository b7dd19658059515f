"""The claims: a row of ``claims.toml`` is what people say, where they say it, and what would show it."""

import tomllib
from collections.abc import Mapping
from pathlib import Path

from claims_rules import Claim

ROWS = tomllib.loads(Path(__file__).with_name("claims.toml").read_text("utf-8"))
CLAIMS: Mapping[str, Claim] = {name: Claim(**row) for name, row in ROWS.items()}
"""By a short name, in the order of the ledger."""
