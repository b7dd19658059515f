"""Requests that wait are embedded together, in a thread of their own.

    requests --> counted --> those that wait --> as many as fit a batch, the oldest first --> the model --> answers

The transformer then sees batches where clients send single texts; no request waits for a batch to fill. A batch is
limited by requests and by tokens. A client that goes away, or waited too long, takes its request with it.

Only the model is used in the thread, one thing at a time. All else happens in the server's loop, so it needs no lock.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import accumulate, takewhile
from typing import Any, get_args

from bertflow.encoder.abstract import Role
from bertflow.errors import BertflowError
from bertflow.serve.metrics import Metrics
from bertflow.serve.model import ServedModel
from bertflow.serve.protocol import Found, Limits, RequestError, Size

logger = logging.getLogger("bertflow")


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
        limits: Of a batch, of the requests that wait, and of how long they may.
        metrics: Counts what is embedded.
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
                size: Size = await self._in_thread(self._model.count, role, texts)
                job = _Job(role, texts, size.tokens, asyncio.get_running_loop().create_future())
                self._jobs.append(job)
                self._working = self._working or asyncio.create_task(self._work())
                found = await job.answer
        except TimeoutError:
            message = f"No answer within {self._limits.seconds:g} seconds."
            raise RequestError(message, status=504, code="timeout") from None
        finally:
            self.unanswered -= 1
        self._metrics.read(len(texts), size)
        return found._replace(tokens=size.tokens)

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
            for role in get_args(Role):
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
        found: Sequence[Found | RequestError] = []
        try:
            if jobs:
                found = await self._in_thread(self._model.embed, role, [job.texts for job in jobs], self._metrics.watch)
        except RequestError as error:
            found = [error] * len(jobs)
        for job, one in zip(jobs, found, strict=True):
            if job.answer.done():
                continue
            if isinstance(one, RequestError):
                job.answer.set_exception(one)
            else:
                job.answer.set_result(one)
