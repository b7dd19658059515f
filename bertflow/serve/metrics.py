"""What a server tells Prometheus: requests, texts, and whether the texts still look like the text that was fitted on.

    requests   by route and status, with their time          counted in the server's loop
    texts      their tokens, those that were cut             counted where they are embedded, a thread
    domain     the percentile of each text, and drift        the same; only if the encoder has a domain check

Drift is judged over windows: whenever this many documents were embedded, they are compared with the held-out text. The
verdict is said in the log when it changes. Metrics hold counts alone, and no text.
"""

import logging
from collections.abc import Callable, Iterator, Mapping

import numpy as np

from bertflow.array_types import Float32
from bertflow.encoder.abstract import Role
from bertflow.errors import logger, needs
from bertflow.export.client import PATH
from bertflow.scoring.domain import DomainCheck
from bertflow.scoring.drift import Drift
from bertflow.serve.protocol import PAGES, SIMILARITY

with needs("prometheus_client", "serve"):
    from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, core, exposition, registry


ROUTES = (*PAGES, "/health", "/metrics", "/v1/models", PATH, SIMILARITY)
"""Routes that are counted by name; all others are "other", since clients can invent paths without end."""
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
PERCENTILES = (1, 5, 10, 25, 50, 75, 90, 95, 99, 100)
WINDOW = 1000
"""Documents over which drift is judged."""


class Metrics:
    """Counts of a server, in a registry of its own.

    Args:
        domain: What ordinary text is for the raw encoder; None: percentiles and drift are left out.
        now: What is read when it is asked for: names, and functions that give the values.
    """

    def __init__(self, domain: DomainCheck | None, now: Mapping[str, Callable[[], float]]) -> None:
        self._registry = kept_in = CollectorRegistry()
        self._requests = self._counter("requests", "Answers, by route and HTTP status.", ("route", "status"))
        said = "Seconds from the header of a request to the begin of its answer, by route."
        self._seconds = Histogram("bertflow_request_seconds", said, ("route",), buckets=SECONDS, registry=kept_in)
        self._texts = self._counter("texts", "Texts that were embedded.")
        self._tokens = self._counter("tokens", "Tokens that were read, special tokens included.")
        self._truncated = self._counter("truncated_texts", "Texts that were cut at max_length, which needs --truncate.")
        for name, value in now.items():
            said = name.replace("_", " ").capitalize() + "."
            Gauge(f"bertflow_{name}", said, registry=kept_in).set_function(value)
        self._domain = None if domain is None else DomainWatch(domain, kept_in)

    def _counter(self, name: str, said: str, labels: tuple[str, ...] = ()) -> Counter:
        return Counter(f"bertflow_{name}", said, labels, registry=self._registry)

    def answered(self, path: str, status: int, seconds: float) -> None:
        """Count an answer."""
        route = path if path in ROUTES else "other"
        self._requests.labels(route, status).inc()
        self._seconds.labels(route).observe(seconds)

    def read(self, texts: int, tokens: int, truncated: int) -> None:
        """Count the texts of a request that was embedded."""
        self._texts.inc(texts)
        self._tokens.inc(tokens)
        self._truncated.inc(truncated)

    def watch(self, role: Role, x: Float32) -> None:
        """Look at the raw embeddings (n, dim) of some texts; from one thread."""
        if self._domain:
            self._domain.watch(role, x)

    def body(self, accept: str) -> tuple[bytes, str]:
        """All of it and its media type, by the header ``Accept`` of a request."""
        encode, kind = exposition.choose_encoder(accept)
        return encode(self._registry), kind


class DomainWatch(registry.Collector):
    """Percentiles of texts as they come, and the drift of each window of documents, absent before the first is full.

    Queries are another kind of text than documents, so they have percentiles of their own and no part in the drift.
    """

    def __init__(self, check: DomainCheck, kept_in: CollectorRegistry) -> None:
        self._check = check
        said = "Percent of held-out fitting text that is as strange as a text or stranger; 1 or less is out of domain."
        self._percentiles = Histogram(
            "bertflow_domain_percentile", said, ("input_type",), buckets=PERCENTILES, registry=kept_in
        )
        self._kept: list[Float32] = []
        self._drift: Drift | None = None
        kept_in.register(self)

    def watch(self, role: Role, x: Float32) -> None:
        """Look at raw embeddings (n, dim)."""
        x = x[x.any(axis=1)]  # a row of zeros has no direction, so nothing is known of it
        percentiles = self._percentiles.labels(role)
        for value in self._check.percentile(self._check.log_likelihood(x)) if len(x) else ():
            percentiles.observe(value)
        if role == "document":
            self._kept.append(x)
            if sum(map(len, self._kept)) >= WINDOW:
                self._judge(np.concatenate(self._kept))
                self._kept = []

    def collect(self) -> Iterator[core.GaugeMetricFamily]:
        """The last window: the evidence stands in the help of ``bertflow_refit_now``, too."""
        if self._drift:
            yield core.GaugeMetricFamily("bertflow_refit_now", str(self._drift), float(self._drift.refit))
            family = core.GaugeMetricFamily("bertflow_drift", "Evidence of the last window.", labels=["evidence"])
            for name, number in self._drift.evidence().items():
                family.add_metric([name], number)
            yield family

    def _judge(self, x: Float32) -> None:
        before, self._drift = self._drift, self._check.drift(self._check.log_likelihood(x), x)
        if before is None or before.refit != self._drift.refit:
            logger.log(logging.WARNING if self._drift.refit else logging.INFO, "%s", self._drift)
