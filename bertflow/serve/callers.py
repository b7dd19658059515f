"""Who may ask: a client that shows the key, and no page of somebody else that a browser has open.

Such a page can make the browser send requests to this server. It cannot choose two headers: ``Host`` is the name by
which it found the server, also where that name was rebound to another address, and ``Origin`` is the page's own.
"""

import hashlib
import hmac
import re
from collections.abc import Mapping
from ipaddress import ip_address
from socket import gethostname
from urllib.parse import urlsplit

from bertflow.serve.protocol import RequestError, Served

ADDRESS = re.compile(r"[\d.]+|.*:.*")
"""An IP address in a URL; no name that a browser looks up is made of digits and dots alone, or has a colon."""
LONGEST = 60
"""Characters of a header that a message shows."""


def key_digest(key: str) -> bytes:
    """What is kept of a key. Digests have one length, so that comparing them says nothing of the key's."""
    return hashlib.sha256(key.encode()).digest()


def require_key(header: str, served: Served) -> None:
    """Check the header ``Authorization: Bearer KEY``, in a time that does not depend on how much of it is right.

    Raises:
        RequestError: If the server has a key, and the header does not hold it.
    """
    scheme, _, given = header.partition(" ")
    if served.key and not (hmac.compare_digest(key_digest(given.strip()), served.key) and scheme.lower() == "bearer"):
        raise RequestError(
            "This server needs a key, in the header Authorization: Bearer KEY. Ask its operator for one.",
            status=401,
            code="invalid_api_key",
        )


def require_host(headers: Mapping[str, str], served: Served) -> None:
    """Refuse what a page of somebody else makes a browser ask; only HTTP/1.0 can leave out the host, no browser does.

    Raises:
        RequestError: If the header Host does not name this server, or the header Origin names another one.
    """
    host, origin = headers.get("host", ""), headers.get("origin")
    if host and not _answers_to(served, _name(f"//{host}")):
        raise RequestError(
            f"This server is not called {host[:LONGEST]!r}. Call it by its address, or start it with --allow_host and "
            "that name.",
            status=403,
        )
    if origin is not None and origin.partition("//")[2] != host and _name(origin) not in served.allowed:
        raise RequestError(
            f"The page {origin[:LONGEST]!r} is not of this server. Start it with --allow_host and the page's host, "
            "if it may ask.",
            status=403,
        )


def _answers_to(served: Served, name: str) -> bool:
    """Whether a client may call the server so; on all addresses, any may be its own, and only names are rebound."""
    if name in {"localhost", "127.0.0.1", "::1", served.host} | served.allowed:
        return True
    return ip_address(served.host).is_unspecified and (name == gethostname().lower() or bool(ADDRESS.fullmatch(name)))


def _name(address: str) -> str:
    """The host in an address, in lower case; empty if there is none."""
    try:
        return urlsplit(address).hostname or ""
    except ValueError:
        return ""
