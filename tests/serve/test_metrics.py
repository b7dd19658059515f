"""What a server counts, read by Prometheus' own parsers."""

import logging

import numpy as np
import pytest

pytest.importorskip("prometheus_client", reason="the serve extra is not installed")

from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from bertflow.calibrated import CalibratedEncoder
from bertflow.scoring.domain import DomainCheck
from bertflow.serve.model import ServedModel

from ..texts import WITH_THE as WORDS


def samples(client, accept=None):
    """Every sample of /metrics by its name and labels, as Prometheus' own parser reads it."""
    headers = {"Accept": accept} if accept else {}
    status, text = client.ask("/metrics", headers=headers)
    assert status == 200
    parse = openmetrics.text_string_to_metric_families if accept else text_string_to_metric_families
    return {
        (one.name, tuple(sorted(one.labels.items()))): one.value for family in parse(text) for one in family.samples
    }


def test_it_counts_what_it_answers(serving):
    with serving() as client:
        client.embed(["the dog runs", "a cat"])
        client.ask("/v1/embeddings", b"{")
        client.ask("/any/path")
        read = samples(client)
    requests = {labels: value for (name, labels), value in read.items() if name == "bertflow_requests_total"}
    assert requests == {
        (("route", "/v1/embeddings"), ("status", "200")): 1,
        (("route", "/v1/embeddings"), ("status", "400")): 1,
        (("route", "other"), ("status", "404")): 1,
    }
    assert read["bertflow_request_seconds_count", (("route", "/v1/embeddings"),)] == 2
    assert 0 < read["bertflow_request_seconds_sum", (("route", "/v1/embeddings"),)] < 120
    now = {"open_connections": 1, "waiting_requests": 0, "texts_total": 2, "tokens_total": 9}
    assert {name: read[f"bertflow_{name}", ()] for name in now} == now
    assert not any("domain" in name or "refit" in name for name, _ in read), "the folder holds no domain check"


def test_a_scraper_may_ask_for_openmetrics(serving):
    with serving() as client:
        client.embed("the dog runs")
        assert samples(client, "application/openmetrics-text; version=1.0.0")["bertflow_texts_total", ()] == 1


def test_servers_of_one_process_count_apart(serving):
    with serving() as one, serving() as other:
        one.embed("the dog runs")
        assert [samples(client)["bertflow_texts_total", ()] for client in (one, other)] == [1, 0]


@pytest.fixture(scope="module")
def watched(folder, tmp_path_factory):
    """The same encoder with a domain check, and ordinary and strange texts."""
    place = tmp_path_factory.mktemp("watched") / "mine"
    encoder, rng = CalibratedEncoder.load(folder, device="cpu"), np.random.default_rng(0)
    ordinary = list(dict.fromkeys(" ".join(rng.choice(WORDS, 6)) for _ in range(1500)))
    encoder.save(place)
    DomainCheck.of_text(encoder.raw, ordinary[:1200]).save(place)
    return place, ordinary[1200:], ["dog"] * 60


def test_each_text_has_a_percentile_and_a_window_a_verdict(serving, watched, monkeypatch, caplog):
    folder, ordinary, strange = watched
    monkeypatch.setattr("bertflow.serve.metrics.WINDOW", 60)
    caplog.set_level(logging.INFO, "bertflow")
    model = ServedModel(str(folder), "cpu")
    check, asked = DomainCheck.load(folder, model.encoder.raw), ordinary[:60]
    found = check.percentile(check.log_likelihood(model.encoder.raw.encode(asked)))
    with serving(model=model) as client:
        client.embed(asked[:59])
        client.embed(asked[0], input_type="query")
        read = samples(client)
        assert ("bertflow_refit_now", ()) not in read, "no window is full yet"
        client.embed(asked[59])
        read = samples(client)
        for bound in (1, 25, 50, 99):
            labels = (("input_type", "document"), ("le", f"{float(bound)}"))
            assert read["bertflow_domain_percentile_bucket", labels] == (found <= bound).sum()
        assert read["bertflow_domain_percentile_count", (("input_type", "query"),)] == 1
        assert read["bertflow_refit_now", ()] == 0
        client.embed(strange)
        read, text = samples(client), client.ask("/metrics")[1]
    assert read["bertflow_refit_now", ()] == 1
    assert read["bertflow_drift", (("evidence", "auroc"),)] > 0.8
    assert "# HELP bertflow_refit_now Refit now? yes, " in text
    said = [record for record in caplog.records if record.getMessage().startswith("Refit now?")]
    assert [record.levelname for record in said] == ["INFO", "WARNING"]
    assert said[0].getMessage().startswith("Refit now? no, ")


def test_texts_that_are_cut_are_counted(serving, folder):
    with serving(model=ServedModel(str(folder), "cpu", truncate=True)) as client:
        client.embed(["dog " * 100, "the dog runs"])
        assert samples(client)["bertflow_truncated_texts_total", ()] == 1
