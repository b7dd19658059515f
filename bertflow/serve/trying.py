"""Similarities of a text with others, before calibration and after; and the pages that show them and explain the API.

{"query": "text", "input": "text" | ["text", ...], "model": name, "input_type": "document" | "query"}
{"data": [{"index": 0, "before": cosine, "after": cosine, "percentile": percent or null, "match": true, false or null,
"out_of_domain": true, false or null}, ...], "query_out_of_domain": true, false or null, "model": name, ...}
"""

import json
from dataclasses import replace
from functools import cache
from importlib.resources import files

from bertflow.encoder.abstract import Role
from bertflow.policy import served_policy
from bertflow.serve.model import ServedModel
from bertflow.serve.protocol import PAGES, ROLES, Found, RequestError, Served, parse_choice, parse_input, parse_object
from bertflow.similarity import COSINE


def parse_comparison(body: bytes, served: Served) -> tuple[str, tuple[str, ...], Role]:
    """Read a request: a text, the texts that it is compared with, and what it is; they are documents.

    Raises:
        RequestError: If it cannot be answered.
    """
    request = parse_object(body, served)
    query = request.get("query")
    if not isinstance(query, str):
        raise RequestError("query should be a text. Texts to compare it with are the input.", "query")
    try:
        parse_input([query], served.limits)
    except RequestError as error:
        raise as_query(error) from None
    texts = parse_input(request.get("input"), served.limits)
    return query, texts, ROLES[parse_choice(request, "input_type", {served.role: "", **ROLES})]


def as_query(error: RequestError) -> RequestError:
    """A refusal of the only text of a request, worded for the query."""
    return replace(error, message=error.message.replace("input[0]", "query", 1), param="query")


def comparison_body(served: Served, query: Found, texts: Found, model: ServedModel) -> bytes:
    """The answer to a request.

    Args:
        served: What is served.
        query: The query, embedded.
        texts: The texts, embedded.
        model: What embedded them; has the percentiles of cosines after calibration, and the domain check, if any.

    Raises:
        DataError: If an embedding is all zeros.
    """
    cosine, scores, domain, at = COSINE.matrix, model.scores, model.domain, model.threshold
    before, after = cosine(query.before, texts.before)[0], cosine(query.x, texts.x)[0]
    percentiles = [None] * len(after) if scores is None else scores.percentile(after).tolist()
    matches = [None] * len(after) if at is None else (after >= at.value).tolist()
    outside = [None] * len(after) if domain is None else domain.is_outside(texts.raw).tolist()
    names = ("index", "before", "after", "percentile", "match", "out_of_domain")
    columns = (range(len(after)), before.tolist(), after.tolist(), percentiles, matches, outside)
    data = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
    of_query = scores is not None and scores.queries_
    strange = None if domain is None or of_query else bool(domain.is_outside(query.raw)[0])
    tokens = query.tokens + texts.tokens
    answer = {
        "object": "list",
        "data": data,
        "model": served.name,
        "query_out_of_domain": strange,
        "calibrated": model.encoder.calibrator is not None,
        "threshold": at and at.value,
        "false_match_rate": at and at.rate,
        "random_pairs": scores.pairs_ if scores else 0,
        "random_pairs_of": scores.kind if scores else None,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }
    return json.dumps(answer).encode()


@cache
def page_with_headers(path: str) -> tuple[str, dict[str, str]]:
    """A page, and the headers that seal it: it loads nothing, asks its own server alone, and stands in no frame."""
    page = (files("bertflow.serve") / PAGES[path]).read_text(encoding="utf-8")
    return page, {
        "Content-Security-Policy": served_policy(page),
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cache-Control": "no-store",
    }
