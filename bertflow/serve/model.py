"""The encoder behind a server: several requests at once through one pass, each with an answer of its own.

Requests that wait are joined, so that the transformer sees batches where clients send single texts. A request that
cannot be answered spoils no other: it is refused by itself, and the others are embedded.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np

from bertflow.calibrated import CalibratedEncoder
from bertflow.calibration.linear import Whitening
from bertflow.encoder.transformer import SentenceEncoder, TransformerEncoder
from bertflow.errors import BertflowError, UsageError
from bertflow.flow.map import FlowMap
from bertflow.opening import open_encoder
from bertflow.serve.protocol import Float32, RequestError, Served

RAW = "the leading coordinates of a raw embedding are no better than the others."
FLOW = "a flow mixes all coordinates, and the leading ones are not an embedding of their own."
CLOSED = "this calibrator does not sort its coordinates."


@dataclass(frozen=True)
class ModelOptions:
    """What is opened, and how.

    Attributes:
        model: A hub id or a folder.
        name: What it is called in requests.
        device: Where it runs.
        truncate: Cut a text that is too long, instead of refusing it.
        normalize: Scale embeddings to length one, so that the dot product is the cosine.
    """

    model: str
    name: str
    device: str = "auto"
    truncate: bool = False
    normalize: bool = False


@dataclass(frozen=True)
class Found:
    """The answer to one request.

    Attributes:
        embeddings: (n, dim), in the order of the texts.
        tokens: How many were read, special ones included.
    """

    embeddings: Float32
    tokens: int


class ServedModel:
    """An encoder that answers requests.

    Args:
        options: What is opened, and how.

    Raises:
        UsageError: If it is no transformer.
        DataError: If the folder is missing, incomplete or damaged.
    """

    def __init__(self, options: ModelOptions) -> None:
        self.encoder = open_encoder(options.model, options.device)
        raw = self.encoder.encoder if isinstance(self.encoder, CalibratedEncoder) else self.encoder
        if not isinstance(raw, TransformerEncoder):
            raise UsageError(f"{options.model} is no transformer, and only these are served. Give an encoder's folder.")
        self._raw, self._options = raw, options
        self.max_tokens = int(raw.describe()["max_length"])

    @property
    def served(self) -> Served:
        """What clients are told about it."""
        reason = _no_prefix(self.encoder)
        return Served(self._options.name, self.encoder.dim, reason, self._options.normalize)

    def answer(self, requests: Sequence[Sequence[str]]) -> list[Found | RequestError]:
        """Embed the texts of several requests in one pass."""
        checked = [self._checked(texts) for texts in requests]
        good = [texts for texts, tokens in zip(requests, checked, strict=True) if isinstance(tokens, int)]
        embeddings = iter(self._embedded(good))
        found: list[Found | RequestError] = []
        for tokens in checked:
            if isinstance(tokens, RequestError):
                found.append(tokens)
            else:
                x = next(embeddings)
                found.append(x if isinstance(x, RequestError) else Found(x, tokens))
        return found

    def _checked(self, texts: Sequence[str]) -> int | RequestError:
        """How many tokens are read, or why not."""
        try:
            tokenized = self._raw.tokenized(texts)
        except BertflowError as error:
            return _refused(error)
        if tokenized.truncated and not self._options.truncate:
            long = np.flatnonzero(tokenized.lengths == self.max_tokens).tolist()
            index = next(index for index in long if self._raw.tokenized([texts[index]]).truncated)
            return RequestError(
                f"input[{index}] has more than the {self.max_tokens} tokens that this model reads. Shorten it, or "
                "start the server with --truncate.",
                param="input",
                code="context_length_exceeded",
            )
        return int(tokenized.lengths.sum())

    def _embedded(self, requests: Sequence[Sequence[str]]) -> list[Float32 | RequestError]:
        """The embeddings of each request; if the joined pass fails, each by itself, to find whose fault it is."""
        texts = [text for request in requests for text in request]
        try:
            x = self.encoder.encode(texts)
        except BertflowError as error:
            return [_refused(error)] if len(requests) == 1 else [self._embedded([one])[0] for one in requests]
        bounds = accumulate(map(len, requests), initial=0)
        return [x[start:stop] for start, stop in pairwise(bounds)]


def _refused(error: BertflowError) -> RequestError:
    return RequestError(str(error), param="input")


def _no_prefix(encoder: SentenceEncoder) -> str:
    """Why the leading coordinates of an embedding are not an embedding of their own; empty for whitening.

    Whitening sorts its coordinates by falling variance, so the first d are whitening to d directions.
    """
    if not isinstance(encoder, CalibratedEncoder):
        return RAW
    if isinstance(encoder.calibrator, Whitening):
        return ""
    return FLOW if isinstance(encoder.calibrator.map, FlowMap) else CLOSED
