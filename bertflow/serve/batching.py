"""Requests that wait are embedded together, in a thread of their own.

    requests --> those that wait --> as many as fit a batch, the oldest first --> the model --> answers

The transformer then sees batches where clients send single texts; no request waits for a batch to fill. A batch is
limited by requests and by tokens. A client that goes away, or waited too long, takes its request with it.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from threading import RLock
from typing import get_args

from bertflow.encoder.abstract import Role
from bertflow.serve.metrics import Metrics
from bertflow.serve.model import ServedModel
from bertflow.serve.protocol import Found, Limits, RequestError, Size

logger = logging.getLogger("bertflow")


@dataclass(eq=False)
class _Job:
    """A request that waits for its answer.

    Attributes:
        role: What its texts are.
        texts: Its texts.
        answer: Where the answer goes; done as soon as the client no longer waits for it.
        size: How large it is; None before it was tokenized.
    """

    role: Role
    texts: Sequence[str]
    answer: "asyncio.Future[Found]"
    size: Size | None = None

    def give(self, answer: Found | RequestError) -> None:
        """Answer, from any thread."""
        with suppress(RuntimeError):  # the server was stopped without waiting for answers
            self.answer.get_loop().call_soon_threadsafe(self._give, answer)

    def _give(self, answer: Found | RequestError) -> None:
        if self.answer.done():
            return
        if isinstance(answer, RequestError):
            self.answer.set_exception(answer)
        else:
            self.answer.set_result(answer)


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
        self._jobs: OrderedDict[_Job, None] = OrderedDict()
        self._lock, self._busy, self._closed = RLock(), False, False
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="bertflow-encoder")

    async def answer(self, role: Role, texts: Sequence[str]) -> Found:
        """What the model finds for some texts.

        Raises:
            RequestError: If the model refuses them, too many requests wait, or this one waited too long.
        """
        if self.unanswered >= self._limits.waiting:
            raise RequestError("The server is overloaded. Try again in a second.", status=503, code="overloaded")
        job = _Job(role, texts, asyncio.get_running_loop().create_future())
        self.unanswered += 1
        try:
            with self._lock:
                self._jobs[job] = None
                if not self._busy:
                    self._begin()
            async with asyncio.timeout(self._limits.seconds):
                return await job.answer
        except TimeoutError:
            message = f"No answer within {self._limits.seconds:g} seconds."
            raise RequestError(message, status=504, code="timeout") from None
        finally:
            self.unanswered -= 1
            with self._lock:
                self._jobs.pop(job, None)

    def close(self) -> None:
        """Stop when the batch that is being embedded is done."""
        with self._lock:
            self._closed = True
        self._thread.shutdown()

    def _begin(self) -> None:
        """Embed a batch; with the lock held."""
        self._busy = True
        batch: list[_Job] = []
        self._thread.submit(self._embed, batch).add_done_callback(partial(self._done, batch))

    def _done(self, batch: Sequence[_Job], embedded: Future[None]) -> None:
        """Whatever fails in a model ends its batch, and not the server; then the next one."""
        if error := embedded.exception():
            logger.error("Requests could not be embedded:", exc_info=error)
            for job in batch:
                job.give(RequestError("The model failed; the server's log says why.", status=500))
        with self._lock:
            self._busy = False
            if self._jobs and not self._closed:
                self._begin()

    def _embed(self, batch: list[_Job]) -> None:
        self._take(batch)
        for role in get_args(Role):
            self._answer(role, [job for job in batch if job.role == role])

    def _take(self, batch: list[_Job]) -> None:
        """Take those that fit a batch."""
        tokens = 0
        while len(batch) < self._limits.batch and (job := self._next()):
            batch.append(job)
            counted = job.size or self._model.count(job.role, job.texts)
            if isinstance(counted, RequestError):
                batch.remove(job)
                job.give(counted)
                continue
            job.size, tokens = counted, tokens + counted.tokens
            if tokens > self._limits.tokens and len(batch) > 1:
                self._put_back(batch.pop())
                return

    def _answer(self, role: Role, jobs: Sequence[_Job]) -> None:
        found = self._model.embed(role, [job.texts for job in jobs], self._metrics.watch) if jobs else []
        for job, one in zip(jobs, found, strict=True):
            assert job.size, "it was counted"
            if isinstance(one, RequestError):
                job.give(one)
                continue
            x, raw, before = one
            self._metrics.read(len(x), job.size)
            job.give(Found(x, job.size.tokens, raw, before))

    def _next(self) -> _Job | None:
        with self._lock:
            return self._jobs.popitem(last=False)[0] if self._jobs else None

    def _put_back(self, job: _Job) -> None:
        with self._lock:
            if not job.answer.done():
                self._jobs[job] = None
                self._jobs.move_to_end(job, last=False)
