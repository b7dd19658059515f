"""An encoder that answers several requests in one pass; a request that it cannot answer is refused alone."""

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np

from bertflow.calibrated import CalibratedEncoder
from bertflow.calibration.closed_forms import Ridge, Whitening
from bertflow.encoder.abstract import Float32, Role, SentenceEncoder
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.errors import BertflowError, UsageError
from bertflow.flow.glow import FlowMap
from bertflow.opening import load
from bertflow.scoring.domain import DomainCheck
from bertflow.scoring.scores import SCORES, ScoreCalibrator
from bertflow.serve.protocol import Found, RequestError, Size


class ServedModel:
    """An encoder that is served.

    Args:
        model: What ``bertflow.load`` opens: a transformer, raw or calibrated.
        device: Where it runs.
        truncate: Truncate a text that is too long, instead of refusing it.

    Attributes:
        before: The pooling that the user came with, if `fix` chose another one; else None.
        domain: What ordinary text is for the raw encoder; None where the folder holds no domain check.
        scores: Percentiles of cosines among random pairs; None where the folder holds no ``scores.json``.

    Raises:
        UsageError: If it is not a transformer.
        DataError: If the folder is missing, incomplete or damaged, or its scores or its domain check belong to
            another encoder.
    """

    def __init__(self, model: str, device: str = "auto", truncate: bool = False) -> None:
        encoder = load(model, device=device)
        raw = encoder.raw
        if not isinstance(raw, TransformerEncoder):
            raise UsageError(
                f"Only transformers can be served, this is a {type(raw).__name__}. Give the folder of a transformer."
            )
        self.encoder, self._raw, self._truncate = encoder, raw, truncate
        self.max_tokens = int(raw.describe()["max_length"])
        self.scores = ScoreCalibrator.load(model, encoder) if (Path(model) / SCORES).exists() else None
        self.domain = DomainCheck.find(model, raw)
        self.before = encoder.before if isinstance(encoder, CalibratedEncoder) else None

    def count(self, role: Role, texts: Sequence[str]) -> Size:
        """How large a request is.

        Raises:
            BertflowError: If a text cannot be tokenized.
            RequestError: If a text is too long.
        """
        tokenized = self._raw.tokenized(texts, role)
        if tokenized.truncated and not self._truncate:
            long = np.flatnonzero(tokenized.lengths == self.max_tokens).tolist()
            index = next(index for index in long if self._raw.tokenized([texts[index]], role).truncated)
            raise RequestError(
                f"input[{index}] has more than the {self.max_tokens} tokens that this model reads. Shorten it, or "
                "start the server with --truncate.",
                "input",
                code="context_length_exceeded",
            )
        return Size(int(tokenized.lengths.sum()), tokenized.truncated)

    def embed(
        self, role: Role, requests: Sequence[Sequence[str]], watch: Callable[[Role, Float32], object]
    ) -> list[Found | RequestError]:
        """What each request gets; ``watch`` gets the raw embeddings.

        If the joined pass fails, each request is tried alone, to find the one at fault.
        """
        texts, own = [text for request in requests for text in request], self._raw.recipe["pooling"]
        encode = self._raw.encode_query if role == "query" else self._raw.encode
        try:
            if self.before is None:
                raw = before = encode(texts, progress=False)
            else:
                raw, before = self._raw.encode_poolings(texts, [own, self.before], False, role).values()
            x = self.encoder.calibrate(raw)
        except BertflowError as error:
            if len(requests) == 1:
                return [RequestError(str(error), "input")]
            return [self.embed(role, [one], watch)[0] for one in requests]
        watch(role, raw)
        bounds = pairwise(accumulate(map(len, requests), initial=0))
        return [Found(x[start:stop], 0, raw[start:stop], before[start:stop]) for start, stop in bounds]


def no_prefix(encoder: SentenceEncoder) -> str:
    """Why the leading coordinates of an embedding cannot be used alone; empty for whitening.

    Whitening and ridge sort their coordinates by falling variance, so the first d are those of d directions.
    """
    if encoder.calibrator is None:
        return "the leading coordinates of a raw embedding are no better than the others."
    if isinstance(encoder.calibrator, Whitening | Ridge):
        return ""
    if isinstance(encoder.calibrator.map, FlowMap):
        return "a flow mixes all coordinates, so the leading ones are not an embedding."
    return "this calibrator does not sort its coordinates."
