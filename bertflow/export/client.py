"""Ask a server with an OpenAI-compatible ``/v1/embeddings`` for the embeddings of some sentences."""

import json
from collections.abc import Sequence
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import numpy as np
from numpy.typing import NDArray

from bertflow.errors import DataError, UsageError

PATH = "/v1/embeddings"
TIMEOUT = 60.0
"""Seconds that one answer may take."""


def embed_remotely(
    url: str, sentences: Sequence[str], model: str = "bertflow", key: str | None = None, batch: int = 8
) -> NDArray[np.float32]:
    """Embeddings (n, dim) as the server gives them, in the order given.

    Args:
        url: Of the server, with or without ``/v1/embeddings``.
        sentences: What is sent, as it stands.
        model: What the server calls the model.
        key: For the header ``Authorization: Bearer``.
        batch: Sentences in a request.

    Raises:
        UsageError: If the address is none, the server cannot be reached, or refuses.
        DataError: If the answer holds no embeddings.
    """
    address, rows = _address(url), []
    for start in range(0, len(sentences), batch):
        sent = list(sentences[start : start + batch])
        rows += _rows(_post(address, {"model": model, "input": sent, "encoding_format": "float"}, key), sent, address)
    if len({len(row) for row in rows}) != 1:
        raise DataError(f"{address} answered with vectors of different widths. Is it an embedding server?")
    return np.array(rows, np.float32)


def _address(url: str) -> str:
    if urlsplit(url).scheme not in ("http", "https"):
        raise UsageError(f"--url wants http://... or https://..., got {url!r}.")
    return url.rstrip("/").removesuffix(PATH).removesuffix("/v1") + PATH


def _post(address: str, body: dict[str, Any], key: str | None) -> Any:
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    request = Request(address, json.dumps(body).encode(), headers)
    try:
        with urlopen(request, timeout=TIMEOUT) as answer:
            return json.load(answer)
    except HTTPError as error:
        said = " ".join(error.read(300).decode(errors="replace").split())
        raise UsageError(
            f"{address} refused with {error.code}: {said}. Check --model_name, --key and --batch."
        ) from error
    except (URLError, OSError) as error:
        raise UsageError(
            f"{address} cannot be reached: {getattr(error, 'reason', error)}. Is the server up?"
        ) from error
    except ValueError as error:
        raise DataError(f"{address} answered with something that is no JSON. Is it an embedding server?") from error


def _rows(answer: Any, sent: list[str], address: str) -> list[list[float]]:
    try:
        rows: list[list[float]] = [row["embedding"] for row in sorted(answer["data"], key=lambda row: row["index"])]
        numbers = all(isinstance(row, list) for row in rows)
    except (KeyError, TypeError):
        numbers, rows = False, []
    if not numbers or len(rows) != len(sent):
        raise DataError(
            f"{address} was sent {len(sent)} sentences and should answer with one embedding each, as "
            f'{{"data": [{{"index": 0, "embedding": [...]}}]}}; it answered {str(answer)[:200]}.'
        )
    return rows
