"""The claims: a row is what people say, where they say it, and what would show it. No row says whether it is so."""

from collections.abc import Mapping

from claims_geometry import GEOMETRY
from claims_rules import Claim
from claims_similarity import SIMILARITY

CLAIMS: Mapping[str, Claim] = {**GEOMETRY, **SIMILARITY}
"""By a short name, in the order of the ledger."""
