"""What our HTML pages may load: nothing but themselves. Their policies name the hashes of their own style and script.

Source: https://www.w3.org/TR/CSP3/#grammardef-hash-source
"""

import base64
import hashlib
import re

INLINE = ("style", "script")
"""Tags whose content stands in a page."""


def content_hash(page: str, tag: str) -> str:
    """The hash by which a policy allows what stands in the only ``tag`` of a page, as ``'sha256-...'``."""
    match = re.search(f"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
    assert match is not None, "the page has one"
    return f"'sha256-{base64.b64encode(hashlib.sha256(match[1].encode()).digest()).decode()}'"


def served_policy(page: str) -> str:
    """The policy of a page with a style and a script, which asks its own server alone."""
    own = "; ".join(f"{tag}-src {content_hash(page, tag)}" for tag in INLINE)
    sealed = "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    return f"default-src 'none'; {own}; connect-src 'self'; img-src data:; {sealed}"
