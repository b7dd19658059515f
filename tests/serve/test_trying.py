"""Similarities before and after calibration, and the pages that are served: by their bytes, and in a browser."""

import json
import re
import shutil
import urllib.request

import numpy as np
import pytest

import bertflow
from bertflow.calibrated import CalibratedEncoder
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.policy import content_hash
from bertflow.scoring.domain import UNCHECKED
from bertflow.scoring.scores import ScoreCalibrator
from bertflow.serve.protocol import key_digest

from ..texts import WITH_THE, drawn
from .conftest import TEXTS

OTHERS = [f"{a} {b} {c}" for a in ("the", "a") for b in ("man", "dog", "cat", "bird", "garden") for c in TEXTS[0:9:2]]


@pytest.fixture(scope="module")
def scored(folder, tmp_path_factory):
    """The whitened tiny BERT, with the percentiles of random pairs."""
    pytest.importorskip("starlette", reason="the serve extra is not installed")
    from bertflow.serve.model import ServedModel

    copy = tmp_path_factory.mktemp("scored") / "mine"
    shutil.copytree(folder, copy)
    ScoreCalibrator().fit_sentences(CalibratedEncoder.load(copy, device="cpu"), OTHERS).save(copy)
    return ServedModel(str(copy), "cpu")


@pytest.fixture(scope="module")
def server(serving, scored):
    with serving(model=scored, texts=20, body=20_000) as client:
        yield client


def cosine(a, b):
    return b @ a / np.linalg.norm(a) / np.linalg.norm(b, axis=1)


def test_cosines_before_and_after_are_those_of_the_encoder(server, folder, scored):
    encoder = CalibratedEncoder.load(folder, device="cpu")
    status, answer = server.ask("/v1/similarity", {"query": "the dog runs", "input": TEXTS[3:9]})
    assert status == 200
    for name, system in (("before", encoder.raw), ("after", encoder)):
        expected = cosine(*(system.encode(texts) for texts in ("the dog runs", TEXTS[3:9])))
        np.testing.assert_allclose([row[name] for row in answer["data"]], expected, atol=1e-5)
    after = [row["after"] for row in answer["data"]]
    np.testing.assert_allclose([row["percentile"] for row in answer["data"]], scored.scores.percentile(after))
    assert (answer["model"], answer["calibrated"]) == ("mine", True)
    assert answer["random_pairs"] == scored.scores.pairs_
    at = scored.scores.strict_threshold()
    assert (answer["threshold"], answer["false_match_rate"]) == (at.value, at.rate)
    assert [row["match"] for row in answer["data"]] == [cosine >= at.value for cosine in after]
    assert answer["usage"]["total_tokens"] == 7 * 5


def test_without_scores_there_are_no_percentiles(serving):
    with serving() as client:
        _, answer = client.ask("/v1/similarity", {"query": "a cat", "input": "a dog"})
    assert ([row["percentile"] for row in answer["data"]], answer["random_pairs"]) == ([None], 0)
    assert answer["data"][0]["match"] is answer["threshold"] is answer["false_match_rate"] is None


def test_a_threshold_that_copies_reach_is_not_served(serving, folder, tmp_path, caplog):
    from bertflow.serve.model import ServedModel

    text = list(dict.fromkeys(drawn(WITH_THE, 800, 0, 4, 9)))[:500]
    bertflow.score(folder, fit_on=text, queries=text, save=tmp_path / "same", device="cpu")
    assert ServedModel(str(tmp_path / "same"), "cpu").threshold is None
    assert "There is no threshold: both embeddings are the same in 1 of 1,000 pairs. Leave out copies" in caplog.text


def test_texts_out_of_domain_of_the_percentiles_are_said(serving, folder, tmp_path, caplog):
    from bertflow.serve.model import ServedModel

    text = list(dict.fromkeys(drawn(WITH_THE, 800, 0, 4, 9)))
    strange = "eats " * 8
    scored = bertflow.score(folder, fit_on=text[:600], queries=text[600:], save=tmp_path / "asked", device="cpu")
    assert scored.scores.kind == "query-text"
    bertflow.score(folder, fit_on=text, save=tmp_path / "kept", device="cpu")
    with caplog.at_level("INFO", "bertflow"):
        ServedModel(str(tmp_path / "kept"), "cpu")
        assert UNCHECKED not in caplog.messages
        ServedModel(str(folder), "cpu")
        assert caplog.messages.count(UNCHECKED) == 1
    for name, of_query, of in (("kept", True, "text-text"), ("asked", None, "query-text")):
        model = ServedModel(str(tmp_path / name), "cpu")
        raw = model.encoder.raw.encode([strange, *text[:40]])
        percentiles = model.domain.percentile(model.domain.log_likelihood(raw))
        with serving(model=model) as client:
            _, answer = client.ask("/v1/similarity", {"query": strange, "input": [strange, *text[:40]]})
        assert [row["out_of_domain"] for row in answer["data"]] == (percentiles <= 1).tolist()
        assert (answer["data"][0]["out_of_domain"], answer["data"][1]["out_of_domain"]) == (True, False)
        assert (answer["query_out_of_domain"], answer["random_pairs_of"]) == (of_query, of)
    with serving() as client:
        _, answer = client.ask("/v1/similarity", {"query": strange, "input": strange})
    assert answer["data"][0]["out_of_domain"] is answer["query_out_of_domain"] is answer["random_pairs_of"] is None


def test_before_is_the_encoder_that_fix_was_given(serving, tiny_bert, tmp_path, monkeypatch):
    from bertflow.serve.model import ServedModel

    monkeypatch.setattr("bertflow.breadth.RICH", 0)  # the language of these tests has few words

    text = list(dict.fromkeys(drawn(WITH_THE, 700, 0, 4, 9)))
    given = TransformerEncoder(tiny_bert, pooling="mean(1,2)", device="cpu")
    advice = bertflow.fix(given, text, candidates="sif+whitening", resamples=200, output=tmp_path / "out")
    assert advice.system == "sif+whitening"
    assert json.loads((tmp_path / "out" / "encoder" / "bertflow.json").read_text())["before"] == "mean(1,2)"
    bertflow.score(tmp_path / "out" / "encoder", fit_on=text, save=tmp_path / "again", device="cpu")
    for place in (tmp_path / "out" / "encoder", tmp_path / "again"):
        with serving(model=ServedModel(str(place), "cpu")) as client:
            _, answer = client.ask("/v1/similarity", {"query": "the dog runs", "input": TEXTS})
        fixed = CalibratedEncoder.load(place, device="cpu")
        for name, system in (("before", given), ("after", fixed)):
            expected = cosine(*(system.encode(texts) for texts in ("the dog runs", TEXTS)))
            np.testing.assert_allclose([row[name] for row in answer["data"]], expected, atol=1e-5)


def test_an_encoder_without_calibrator_says_so(serving, tiny_bert, tmp_path):
    from bertflow.serve.model import ServedModel

    TransformerEncoder(tiny_bert, device="cpu").save(tmp_path / "raw")
    with serving(model=ServedModel(str(tmp_path / "raw"), "cpu")) as client:
        _, answer = client.ask("/v1/similarity", {"query": "a cat", "input": "a dog"})
    assert not answer["calibrated"]
    assert answer["data"][0]["before"] == answer["data"][0]["after"]


def test_before_weighed_tokens_is_their_mean(serving, tiny_bert, tmp_path):
    from bertflow.serve.model import ServedModel

    weighed = TransformerEncoder(tiny_bert, pooling="sif(1,2)", device="cpu")
    weighed.count_tokens(TEXTS)
    weighed.save(tmp_path / "weighed")
    with serving(model=ServedModel(str(tmp_path / "weighed"), "cpu")) as client:
        _, answer = client.ask("/v1/similarity", {"query": "the dog runs", "input": TEXTS})
    mean = TransformerEncoder(tiny_bert, pooling="mean(1,2)", device="cpu")
    for name, system in (("before", mean), ("after", weighed)):
        expected = cosine(*(system.encode(texts) for texts in ("the dog runs", TEXTS)))
        np.testing.assert_allclose([row[name] for row in answer["data"]], expected, atol=1e-5)


def test_a_query_has_its_own_prompt(serving, tiny_bert, tmp_path):
    from bertflow.serve.model import ServedModel

    encoder = TransformerEncoder(tiny_bert, prompt={"query": "the cat ", "document": "a "}, device="cpu")
    encoder.save(tmp_path / "asked")
    with serving(model=ServedModel(str(tmp_path / "asked"), "cpu")) as client:
        for role, encode in (("query", encoder.encode_query), ("document", encoder.encode)):
            _, answer = client.ask("/v1/similarity", {"query": "dog", "input": "a bird", "input_type": role})
            expected = cosine(encode(["dog"])[0], encoder.encode(["a bird"]))
            np.testing.assert_allclose(answer["data"][0]["after"], expected, atol=1e-5)


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"input": "a"}, 400, "query should be a text."),
        ({"query": ["a"], "input": "a"}, 400, "query should be a text."),
        ({"query": " ", "input": "a"}, 400, "query is empty. Leave it out."),
        ({"query": "dog " * 100, "input": "a"}, 400, "query has more than the 16 tokens that this model reads."),
        ({"query": "a", "input": ["a", ""]}, 400, "input[1] is empty. Leave it out."),
        ({"query": "a", "input": ["a", "dog " * 100]}, 400, "input[1] has more than the 16 tokens"),
        ({"query": "a", "input": ["dog"] * 10_000}, 413, "The body may hold 20000 bytes."),
        ({"query": "a", "input": "a", "input_type": "x"}, 400, "input_type should be one of document"),
    ],
)
def test_what_cannot_be_compared_is_refused_in_one_line(server, body, status, message):
    found, answer = server.ask("/v1/similarity", body)
    assert found == status
    assert answer["error"]["message"].startswith(message)
    assert "\n" not in answer["error"]["message"]


@pytest.mark.parametrize("path", ["/", "/docs"])
def test_a_page_is_sealed_and_loads_nothing(server, path):
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}{path}") as answer:
        page, headers = answer.read().decode(), answer.headers
    policy = headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    assert {f"{tag}-src {content_hash(page, tag)}" for tag in ("style", "script")} < set(policy.split("; "))
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    assert page.count("<style") == page.count("<script") == 1
    assert not re.findall(r"(?:src|href)=\"(?!/|data:,)|\son\w+=|\sstyle=|innerHTML|https?://(?!localhost)", page)
    assert "mine" not in page.partition("<h2>POST")[0], "a page says nothing of the model"


def test_the_api_page_names_every_route(server):
    routes = {"/", "/docs", "/health", "/metrics", "/v1/models", "/v1/embeddings", "/v1/similarity"}
    found = set(re.findall(r"<h2>(?:GET|POST) (\S+)</h2>", server.ask("/docs")[1]))
    assert found == routes
    assert all(server.ask(route, method="DELETE")[0] == 405 for route in routes)


@pytest.fixture(scope="module")
def tab(browser, server):
    """A function that opens the page in a new tab."""
    pages = []

    def opened(port=server.port, **options):
        page = browser.new_page(**options)
        page.problems = []
        page.on("pageerror", lambda error: page.problems.append(str(error)))
        page.on("console", lambda line: page.problems.append(line.text) if "Content Security" in line.text else None)
        page.on("request", lambda sent: page.problems.append(sent.url) if f":{port}/" not in sent.url else None)
        page.goto(f"http://127.0.0.1:{port}/")
        pages.append(page)
        return page

    yield opened
    assert [page.problems for page in pages] == [[] for _ in pages]


def put(page, box, text):
    """As a person who pastes; typing 10,000 lines takes a browser half a minute."""
    page.eval_on_selector(box, "(box, text) => { box.value = text }", text)


def compare(page, first, second):
    put(page, "#first", first)
    put(page, "#second", second)
    page.click("#compare button")
    page.wait_for_selector("#compare button:enabled")
    return page.text_content("#compare .found"), page.text_content("#compare .error")


def rank(page, query, lines):
    put(page, "#query", query)
    put(page, "#list", "\n".join(lines))
    page.click("#rank button")
    page.wait_for_selector("#rank button:enabled")
    return page.eval_on_selector_all("#rank tbody tr", "rows => rows.map(r => [...r.cells].map(c => c.textContent))")


@pytest.mark.slow
def test_a_person_sees_both_cosines_and_the_percentile(tab, server):
    page = tab()
    page.wait_for_function("document.title === 'bertflow: mine'")
    found, _ = compare(page, "the dog runs", "the cat sings")
    row = server.ask("/v1/similarity", {"query": "the dog runs", "input": "the cat sings"})[1]["data"][0]
    assert f"{row['before']:.2f}cosine before" in found
    assert f"{row['after']:.2f}cosine after".replace("-0.00", "0.00") in found
    assert f"{row['percentile']:.1f} %of random pairs are less similar" in found


@pytest.mark.slow
def test_a_list_is_ranked_and_html_is_shown_as_text(tab, server):
    page = tab()
    lines = ["the cat sings", "", "<img src=x onerror=alert(1)>", "the dog runs"]
    rows = rank(page, "the dog runs", lines)
    data = server.ask("/v1/similarity", {"query": "the dog runs", "input": [lines[0], *lines[2:]]})[1]["data"]
    texts = [lines[0], *lines[2:]]
    ranked = sorted(data, key=lambda one: -one["after"])
    assert [row[1] for row in rows] == [texts[one["index"]] for one in ranked]
    assert rows[0][:2] == ["1.", "the dog runs"]
    assert page.locator("img").count() == 0
    found, _ = compare(page, "<b>a cat</b>", "<script>alert(1)</script>")
    assert "cosine before" in found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ("", "a", "Both boxes should hold a sentence."),
        ("a", " \n ", "Both boxes should hold a sentence."),
        ("dog " * 100, "a", "The first text has more than the 16 tokens that this model reads."),
        ("a", "dog " * 100, "The second text has more than the 16 tokens that this model reads."),
        ("a" * 100_000, "a", "The body may hold 20000 bytes."),
    ],
)
def test_what_the_server_refuses_is_said_in_one_line(tab, first, second, message):
    page = tab()
    found, error = compare(page, first, second)
    assert error.startswith(message)
    assert found == ""
    assert "cosine before" in compare(page, "a cat", "a dog")[0]
    assert page.is_hidden("#compare .error")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["a dog"] * 21, "The list may hold 20 texts, got 21. Send several requests."),
        (["a dog"] * 10_000, "The body may hold 20000 bytes. Send several requests."),
        (["", "a dog", "", "dog " * 100], "Line 4 has more than the 16 tokens that this model reads."),
        ([""], "There should be a query, and at least one line to rank."),
    ],
)
def test_a_list_that_is_refused_says_which_line(tab, lines, message):
    page = tab()
    assert rank(page, "a cat", lines) == []
    assert page.text_content("#rank .error").startswith(message)


@pytest.mark.slow
def test_a_key_is_asked_for_and_kept_in_memory_alone(tab, serving, scored):
    with serving(model=scored, key=key_digest("secret")) as client:
        page = tab(client.port)
        page.wait_for_selector("#key:not([hidden])")
        assert page.title() == "bertflow"
        for given, error in (
            ("wrong", "This server needs a key"),
            ("two words", "A key is made of ASCII"),
            ("", "The key"),
        ):
            page.fill("#secret", given)
            page.click("#key button")
            page.wait_for_selector("#key button:enabled")
            assert page.text_content("#key .error").startswith(error)
        page.fill("#secret", "secret")
        page.click("#key button")
        page.wait_for_selector("#key", state="hidden")
        assert "cosine before" in compare(page, "a cat", "a dog")[0]
        kept = "[localStorage.length, sessionStorage.length, document.cookie, location.href]"
        assert page.evaluate(kept) == [0, 0, "", f"http://127.0.0.1:{client.port}/"]
        assert page.input_value("#secret") == ""
        page.reload()
        page.wait_for_selector("#key:not([hidden])")


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 375])
def test_nothing_is_cut_off_on_a_telephone_and_in_the_dark(tab, width, scheme):
    page = tab(viewport={"width": width, "height": 800}, color_scheme=scheme)
    compare(page, "the dog runs", "the cat sings")
    rank(page, "the dog runs", [*TEXTS, "dog" * 60])
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (ground == "rgb(255, 255, 255)") == (scheme == "light")
