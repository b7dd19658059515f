"""Each exit tells queries from documents: every kind of map, by role, equal to NumPy and unequal to the other role."""

import numpy as np
import pytest
import torch
from langchain_core.embeddings import Embeddings
from mteb.types import PromptType
from sentence_transformers import SentenceTransformer

import bertflow
from bertflow.calibration.queries import crops
from bertflow.data.corpus import Answer
from bertflow.data.pairs import Pairs
from bertflow.encoder.identity import map_digest
from bertflow.evaluation.sides import encode_sets, pair_cosines
from bertflow.evaluation.systems import build_systems, open_system, remembering
from bertflow.export.golden import Golden, explain
from bertflow.export.onnx_encoder import OnnxEncoder
from bertflow.export.st_folder import load_sentence_transformer
from bertflow.export.targets import TARGETS, write_export
from bertflow.integrations.langchain import BertflowEmbeddings
from bertflow.integrations.mteb import mteb_model
from bertflow.maps import RoleMap
from bertflow.retrieval.index import AnswerIndex
from bertflow.scoring.scores import ScoreCalibrator
from bertflow.serve.metrics import Metrics
from bertflow.serve.model import ServedModel

from .test_unit_length import STEPS, unit
from .texts import WITH_ARTICLES, drawn

MAPS = {
    "affine": (bertflow.Whitening(power=0.5), False),
    "bands": (bertflow.TwoBand(), False),
    "flow": (bertflow.FlowCalibrator(trainer=STEPS), False),
    "unit rows": (bertflow.Center(), True),
}
PROBE = ["the dog sleeps in the garden .", "a big cat", "the man eats"]
QUERIES = [f"{text} big" for text in PROBE]


def exits(system, folder):
    """What embeds documents and queries, by its name."""
    saved = folder / "saved"
    system.save(saved)
    again = bertflow.load(saved, device="cpu")
    yield "saved and opened", again.encode, again.encode_query
    lang = BertflowEmbeddings(str(saved))
    assert isinstance(lang, Embeddings)
    yield "LangChain", lang.embed_documents, lambda texts: [lang.embed_query(text) for text in texts]
    judged = mteb_model(again, "tests/roles")
    yield (
        "mteb",
        lambda texts: judged.encode([{"text": texts}]),
        lambda texts: judged.encode([{"text": texts}], prompt_type="query"),
    )
    served, metrics = ServedModel(str(saved), "cpu"), Metrics(None, {})
    yield (
        "serve",
        *(lambda texts, role=role: served.embed(role, [texts], metrics)[0].x for role in ("document", "query")),
    )
    yield "an index", *(lambda texts, at=at: indexed(system, folder, at, texts) for at in (0, 1))
    yield "evaluation", *(lambda texts, at=at: sides_of(again, texts)[at] for at in (0, 1))
    for layout in ("legacy", "modern"):
        place = write_export(system, folder / layout, "sentence-transformers", layout).folder
        model = load_sentence_transformer(place, device="cpu")
        yield f"sentence-transformers, {layout}", model.encode, model.encode_query
        yield f"its documents, {layout}", model.encode_document, model.encode_query
    graph = OnnxEncoder(write_export(system, folder / "onnx", "onnx").folder)
    yield "ONNX", graph.encode, graph.encode_query


def indexed(system, folder, at, texts):
    """Rows of an index: own texts are documents, past questions queries; also after the index is calibrated again."""
    path = folder / f"{at}.index"
    path.unlink(missing_ok=True)
    with AnswerIndex.create(path, system, [Answer(text, text, (f"{text} big",)) for text in PROBE]) as index:
        numbers = index._storage.numbers()[at::2].tolist()
        assert [row[2] for row in index._storage.phrases(numbers).values()] == texts
        before = index._storage.vectors(numbers)
        index.recalibrate(None)
        index.recalibrate(system.calibrator)
        np.testing.assert_array_equal(index._storage.vectors(numbers), before)
        return before


def sides_of(system, texts):
    pairs = Pairs("asked", tuple(texts), tuple(texts), kind="retrieval")
    ((_, asked, found),) = next(encode_sets({"one": system}, [pairs]))
    return found, asked


@torch.no_grad()
@pytest.mark.parametrize("name", MAPS)
def test_every_exit_knows_the_roles(tiny_bert, tmp_path, name):
    text = drawn(WITH_ARTICLES, 240, 0, 4, 12)
    encoder = bertflow.TransformerEncoder(tiny_bert, pooling="mean(2)", device="cpu")
    calibrator, of_unit_length = MAPS[name]
    x, c = encoder.encode(text), encoder.encode(crops(text, 200))
    calibrator.fit(unit(x) if of_unit_length else x, queries=c)
    system = bertflow.CalibratedEncoder(encoder, calibrator)
    documents, asked = encoder.encode(PROBE).astype(np.float64), encoder.encode(QUERIES).astype(np.float64)
    scaled = unit(asked) if of_unit_length else asked
    inner = calibrator.map.inner.inner if of_unit_length else calibrator.map.inner
    gap = calibrator.moments_.queries.mean - calibrator.moments_.mean
    expected = calibrator.transform(documents), inner(torch.from_numpy(scaled - gap)).numpy()
    other = calibrator.transform(asked)
    for exit_, encode, ask in exits(system, tmp_path):
        for texts, embed, wanted in ((PROBE, encode, expected[0]), (QUERIES, ask, expected[1])):
            np.testing.assert_allclose(embed(texts), wanted, rtol=1e-5, atol=1e-5, err_msg=f"{name}: {exit_}")
        assert np.abs(np.asarray(ask(QUERIES)) - other).max() > 1e-2, f"{name}: {exit_} gives a query as a document"


@torch.no_grad()
@pytest.mark.parametrize("calibrator", [bertflow.Ridge(), bertflow.FlowCalibrator(trainer=STEPS)])
def test_an_encoder_of_queries_stays_one_wherever_it_is_written(tiny_bert, tmp_path, calibrator):
    encoder = bertflow.TransformerEncoder(tiny_bert, pooling="mean(2)", device="cpu")
    text = drawn(WITH_ARTICLES, 240, 0, 4, 12)
    system = bertflow.CalibratedEncoder.fit(encoder, calibrator, text, queries=crops(text, 100))
    system.role = "query"
    places = {target: write_export(system, tmp_path / target, target).folder for target in TARGETS}
    modern = write_export(system, tmp_path / "modern", "sentence-transformers", "modern").folder
    graph = OnnxEncoder(places["onnx"])
    inputs = {one.name: one for one in graph._session.get_inputs()}
    assert list(inputs) == ["input_ids", "attention_mask"]  # what a server gives
    opened = [bertflow.load(places["safetensors"], device="cpu"), graph]
    opened += [load_sentence_transformer(place, device="cpu") for place in (places["sentence-transformers"], modern)]
    for one in opened:
        np.testing.assert_allclose(one.encode(PROBE), system.encode_query(PROBE), rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(one.encode_document(PROBE), system.encode_document(PROBE), rtol=1e-5, atol=1e-5)
    ids = graph._tokenizer.encode_batch(PROBE[:1])[0]
    given = {"input_ids": np.array([ids.ids]), "attention_mask": np.array([ids.attention_mask])}
    alone = graph._session.run(None, given)[0]
    np.testing.assert_allclose(alone, system.encode_query(PROBE[:1]), rtol=1e-5, atol=1e-5)
    golden = Golden.read(places["onnx"])
    for role, right in (("query", True), ("document", False)):
        found = explain(golden, system.calibrate(encoder.encode(golden.sentences), role))
        assert (found.right, "takes queries for documents" in found.text) == (right, not right)


def test_sentence_transformers_opens_both_roles_without_trust(tiny_bert, tmp_path):
    encoder = bertflow.TransformerEncoder(tiny_bert, pooling="mean(2)", device="cpu")
    text = [f"{a} {b} {c}" for a in WITH_ARTICLES[2:6] for b in WITH_ARTICLES[8:11] for c in WITH_ARTICLES[11:13]]
    system = bertflow.CalibratedEncoder.fit(encoder, bertflow.Ridge(), text, queries=crops(text, 50))
    folder = write_export(system, tmp_path / "st", "sentence-transformers").folder
    model = SentenceTransformer(str(folder), device="cpu")
    np.testing.assert_allclose(model.encode(PROBE), system.encode(PROBE), atol=1e-5)
    np.testing.assert_allclose(model.encode_query(PROBE), system.encode_query(PROBE), atol=1e-5)


def test_a_map_without_roles_is_as_it_was():
    x = np.random.default_rng(0).normal(size=(50, 4))
    alone, both = bertflow.Center().fit(x), bertflow.Center().fit(x, queries=x + 1)
    assert map_digest(alone.map) != map_digest(both.map)
    assert isinstance(both.map, RoleMap)
    assert map_digest(both.map.inner) == map_digest(alone.map)


@torch.no_grad()
def test_an_encoder_of_queries_is_judged_as_it_encodes(tiny_bert, tmp_path):
    text = drawn(WITH_ARTICLES, 240, 0, 4, 12)
    encoder = bertflow.TransformerEncoder(tiny_bert, pooling="mean(2)", device="cpu")
    system = bertflow.CalibratedEncoder.fit(encoder, bertflow.Ridge(), text, queries=crops(text, 100))
    system.role, system.before = "query", "mean(1)"
    asked, documents = system.encode(PROBE), system.encode_document(PROBE)
    assert np.abs(asked - documents).max() > 1e-2
    (built,) = build_systems([open_system(system)], [], None).values()
    for one in (system, built, remembering(system)):
        alike, retrieval = (Pairs("some", tuple(PROBE), tuple(PROBE), kind=kind) for kind in ("graded", "retrieval"))
        ((_, first, second),) = next(encode_sets({"one": one}, [alike]))
        sides = zip((first, second, *sides_of(one, PROBE)), (asked, asked, documents, asked), strict=True)
        for found, wanted in sides:
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(pair_cosines(one, alike), 1, rtol=1e-6)
        np.testing.assert_allclose(
            pair_cosines(one, retrieval), (unit(asked) * unit(documents)).sum(axis=1), rtol=1e-5, atol=1e-6
        )
        for queries in (None, text[100:160]):
            scores = ScoreCalibrator().fit_sentences(one, text[:100], queries)
            x = system.encode(text[:100]) if queries is None else system.encode_document(text[:100])
            y = ScoreCalibrator().fit(x, queries=None if queries is None else system.encode(queries))
            np.testing.assert_allclose(scores.cosines_, y.cosines_, atol=1e-5)
            assert scores.made_by_ == system.identity  # so that they open beside the encoder
    judged = mteb_model(system, "tests/queries")
    for kind, wanted in ((None, asked), (PromptType.query, asked), (PromptType.document, documents)):
        np.testing.assert_allclose(judged.encode([{"text": PROBE}], prompt_type=kind), wanted, rtol=1e-5, atol=1e-6)
    again = bertflow.load(write_export(system, tmp_path / "saved", "safetensors").folder, device="cpu")
    assert (again.role, again.before) == ("query", "mean(1)")
