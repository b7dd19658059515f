"""The encoder that is served, and how requests that wait are embedded together, in a thread of their own.

    requests --> counted --> those that wait --> as many as fit a batch, the oldest first --> the model --> answers

The transformer then sees batches where clients send single texts; no request waits for a batch to fill. A batch is
limited by requests and by tokens. A client that goes away, or waited too long, takes its request with it.

Only the model is used in the thread, one thing at a time; a request that it cannot answer is refused alone. All else
happens in the server's loop, so it needs no lock.
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise, takewhile
from pathlib import Path
from typing import Any

import numpy as np

from bertflow.calibrated import CalibratedEncoder
from bertflow.calibration.closed_forms import Ridge, Whitening
from bertflow.encoder.abstract import Role, SentenceEncoder, encode_as
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.errors import BertflowError, UsageError, logger
from bertflow.flow.glow import FlowMap
from bertflow.maps import fitted_map
from bertflow.opening import load
from bertflow.scoring.domain import UNCHECKED, DomainCheck
from bertflow.scoring.random_pairs import Threshold
from bertflow.scoring.scores import SCORES, ScoreCalibrator
from bertflow.serve.metrics import Metrics
from bertflow.serve.protocol import Found, Limits, RequestError


class ServedModel:
    """An encoder that is served.

    Args:
        model: What ``bertflow.load`` opens: a transformer, raw or calibrated.
        device: Where it runs.
        truncate: Truncate a text that is too long, instead of refusing it.

    Attributes:
        before: The pooling that the user came with, if `fix` chose another one; where tokens are only weighted, their
            mean; else None.
        domain: What ordinary text is for the raw encoder; None where the folder holds no domain check.
        scores: Percentiles of cosines among random pairs; None where the folder holds no ``scores.json``.
        threshold: The cosine from which on two texts are a match; None without scores, or where the text was too small.

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
        self.max_tokens = raw.spec.max_length
        raw.reaching([raw.pooling])  # weights are read before the first request
        self.scores = ScoreCalibrator.load(model, encoder) if (Path(model) / SCORES).exists() else None
        self.threshold: Threshold | None = None
        with suppress(UsageError):  # too little text for either rate
            self.threshold = self.scores.strict_threshold() if self.scores else None
        if self.threshold and self.threshold.of_copies:
            logger.warning("There is no threshold: %s.", self.threshold.of_copies)
            self.threshold = None
        self.domain = DomainCheck.find(model, raw)
        if self.domain is None and (self.scores or encoder.calibrator):
            logger.info(UNCHECKED)
        weighted = str(replace(raw.pooling, tokens="mean")) if raw.pooling.counted else None
        self.before = encoder.before if isinstance(encoder, CalibratedEncoder) else weighted

    def count(self, role: Role, texts: Sequence[str]) -> tuple[int, int]:
        """Tokens of a request, special tokens included, and how many of its texts are cut at max_length.

        Raises:
            BertflowError: If a text cannot be tokenized.
            RequestError: If a text is too long.
        """
        tokenized = self._raw.tokenized(texts, role, said=False)
        if tokenized.truncated and not self._truncate:
            long = np.flatnonzero(tokenized.lengths == self.max_tokens).tolist()
            index = next(index for index in long if self._raw.tokenized([texts[index]], role, said=False).truncated)
            raise RequestError(
                f"input[{index}] has more than the {self.max_tokens} tokens that this model reads. Shorten it, or "
                "start the server with --truncate.",
                "input",
                code="context_length_exceeded",
            )
        return int(tokenized.lengths.sum()), tokenized.truncated

    def embed(self, role: Role, requests: Sequence[Sequence[str]], metrics: Metrics) -> list[Found | RequestError]:
        """What each request gets; the metrics look at the raw embeddings.

        If the joined pass fails, each request is tried alone, to find the one at fault.
        """
        texts, own = [text for request in requests for text in request], self._raw.recipe["pooling"]
        try:
            if self.before is None:
                raw = before = encode_as(self._raw, role, texts, progress=False)
            else:
                raw, before = self._raw.encode_poolings(texts, [own, self.before], False, role).values()
            x = self.encoder.calibrate(raw, role)
        except BertflowError as error:
            if len(requests) == 1:
                return [RequestError(str(error), "input")]
            return [self.embed(role, [one], metrics)[0] for one in requests]
        metrics.watch(role, raw)
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
    if isinstance(fitted_map(encoder.calibrator.map), FlowMap):
        return "a flow mixes all coordinates, so the leading ones are not an embedding."
    return "this calibrator does not sort its coordinates."


@dataclass(eq=False)
class _Job:
    """A request that waits for its answer, which is done as soon as the client no longer waits for it."""

    role: Role
    texts: Sequence[str]
    tokens: int
    answer: "asyncio.Future[Found]"


class Batcher:
    """Answers requests in batches; to be closed in the end.

    Args:
        model: What embeds them.
        limits: Limits of a batch, of the number of waiting requests, and of their waiting time.
        metrics: What counts the texts, and looks at their raw embeddings in the thread.
    """

    def __init__(self, model: ServedModel, limits: Limits, metrics: Metrics) -> None:
        self._model, self._limits, self._metrics = model, limits, metrics
        self.unanswered = 0
        """Requests that wait, or are being embedded."""
        self._jobs: list[_Job] = []
        self._working: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="bertflow-encoder")

    async def answer(self, role: Role, texts: Sequence[str]) -> Found:
        """What the model finds for some texts.

        Raises:
            BertflowError: If the texts cannot be tokenized.
            RequestError: If the model refuses them, too many requests wait, or this one waited too long.
        """
        if self.unanswered >= self._limits.waiting:
            raise RequestError("The server is overloaded. Try again in a second.", status=503, code="overloaded")
        self.unanswered += 1
        try:
            async with asyncio.timeout(self._limits.seconds):
                tokens, truncated = await self._in_thread(self._model.count, role, texts)
                job = _Job(role, texts, tokens, asyncio.get_running_loop().create_future())
                self._jobs.append(job)
                self._working = self._working or asyncio.create_task(self._work())
                found = await job.answer
        except TimeoutError:
            message = f"No answer within {self._limits.seconds:g} seconds."
            raise RequestError(message, status=504, code="timeout") from None
        finally:
            self.unanswered -= 1
        self._metrics.read(len(texts), tokens, truncated)
        return found._replace(tokens=tokens)

    def close(self) -> None:
        """Stop when the batch that is being embedded is done."""
        self._thread.shutdown()

    async def _in_thread(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """What a call gives. Whatever else than a refusal fails in a model ends its batch, and not the server."""
        future = asyncio.wrap_future(self._thread.submit(call, *arguments))
        found = (await asyncio.gather(future, return_exceptions=True))[0]
        if isinstance(found, RequestError | BertflowError):
            raise found
        if isinstance(found, BaseException):
            logger.error("Requests could not be embedded:", exc_info=found)
            raise RequestError("The model failed; the server's log says why.", status=500)
        return found

    async def _work(self) -> None:
        """Embed what waits, batch by batch."""
        while True:
            await self._in_thread(bool)  # a turn of the thread: what came before is counted
            batch = self._take()
            if not batch:
                self._working = None
                return
            for role in dict.fromkeys(job.role for job in batch):
                await self._embed(role, [job for job in batch if job.role == role])

    def _take(self) -> list[_Job]:
        """Take those that fit a batch, at least one."""
        waiting = [job for job in self._jobs if not job.answer.done()]
        tokens = accumulate(job.tokens for job in waiting[: self._limits.batch])
        fit = max(1, sum(1 for _ in takewhile(lambda total: total <= self._limits.tokens, tokens)))
        self._jobs = waiting[fit:]
        return waiting[:fit]

    async def _embed(self, role: Role, jobs: Sequence[_Job]) -> None:
        """Embed texts of one role together, and answer."""
        try:
            found = await self._in_thread(self._model.embed, role, [job.texts for job in jobs], self._metrics)
        except RequestError as error:
            found = [error] * len(jobs)
        for job, one in zip(jobs, found, strict=True):
            if job.answer.done():
                continue
            if isinstance(one, RequestError):
                job.answer.set_exception(one)
            else:
                job.answer.set_result(one)
