"""One table: every kind of thing that a user may name, and every way of using it, with equal vectors."""

import logging
import shutil
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from bertflow.calibrated import CalibratedEncoder
from bertflow.calibration.closed_forms import AllButTheTop, Center
from bertflow.cli import main
from bertflow.data.pairs import Pairs
from bertflow.encoder.transformer import StaticEncoder, TransformerEncoder
from bertflow.encoder.word_vectors import WordVectorEncoder
from bertflow.errors import DataError, UsageError
from bertflow.evaluation.sides import encode_sets, pair_cosines
from bertflow.evaluation.systems import open_system
from bertflow.files import write_json
from bertflow.opening import KINDS, find, load
from bertflow.similarity import SIMILARITIES
from bertflow.store.store import EmbeddingStore

TEXT = ["the dog sings", "a cat sleeps", "the big red book", "dogs", "a big cat sings", "the red cat sleeps"]
PROMPTS = {"query": "the cat ", "passage": "a dog ", "other": "dogs "}
CPU = {"device": "cpu"}


def sentence_transformers(folder, prompts, default=None):
    """Turn a model folder into one as sentence-transformers writes."""
    (folder / "1_Pooling").mkdir()
    write_json(folder / "1_Pooling/config.json", {"pooling_mode": "cls"})
    kinds = {"": "sentence_transformers.models.Transformer", "1_Pooling": "sentence_transformers.models.Pooling"}
    rows = [{"idx": 0, "name": "0", "path": path, "type": kind} for path, kind in kinds.items()]
    write_json(folder / "modules.json", rows)
    write_json(folder / "config_sentence_transformers.json", {"prompts": prompts, "default_prompt_name": default})


@pytest.fixture(scope="session")
def things(tiny_bert, tmp_path_factory):
    """A thing of each kind, and the encoder that it should open as."""
    place = tmp_path_factory.mktemp("things")
    for name, default in (("st-roles", None), ("st-default", "other"), ("st", None)):
        shutil.copytree(tiny_bert, place / name)
        kept = {"st-roles": PROMPTS, "st-default": {"other": "dogs "}, "st": {}}[name]
        sentence_transformers(place / name, kept, default)
    saved = TransformerEncoder(tiny_bert, "mean(1,2)", max_length=6, prompt="a ", **CPU)
    saved.save(place / "saved")
    roles = TransformerEncoder(place / "st-roles", max_length=7, **CPU)
    roles.save(place / "saved-roles")
    calibrated = CalibratedEncoder.fit(roles, AllButTheTop(1), TEXT)
    calibrated.save(place / "calibrated")
    run = CalibratedEncoder.fit(saved, Center(), TEXT)
    run.calibrator.save(place / "run/calibrator")
    recipe = {"model": str(tiny_bert), "pooling": "mean(1,2)", "max_length": 6, "prompt": "a ", "dtype": None}
    write_json(place / "run/run.json", {"encoder": recipe})
    saved.save(place / "tuned/encoder")
    write_json(place / "tuned/run.json", {"status": "done", "options": {"finetune": {}}, "encoder": recipe})
    lines = [f"{word} {row} {row * row - 4} 1" for row, word in enumerate(("the", "dog", "cat", "a", "sings"))]
    (place / "words.txt").write_text("\n".join(lines))
    return {
        "transformers": (tiny_bert, TransformerEncoder(tiny_bert, **CPU)),
        "st": (place / "st", TransformerEncoder(tiny_bert, "cls", **CPU)),
        "st-default": (place / "st-default", TransformerEncoder(tiny_bert, "cls", prompt="dogs ", **CPU)),
        "st-roles": (place / "st-roles", TransformerEncoder(tiny_bert, "cls", prompt="a dog ", **CPU)),
        "saved": (place / "saved", saved),
        "saved-roles": (place / "saved-roles", roles),
        "calibrated": (place / "calibrated", calibrated),
        "run": (place / "run", run),
        "tuned": (place / "tuned", saved),
        "word vectors": (place / "words.txt", WordVectorEncoder(place / "words.txt")),
    }


@pytest.fixture(scope="session")
def vectors(things):
    """The vectors of each thing, of documents and of queries; each is computed once."""

    @cache
    def of(name):
        path, expected = things[name]
        return expected.encode(TEXT), load(path, **CPU).encode_query(TEXT)

    return of


def by_load(path, tmp_path):
    return load(path, **CPU).encode(TEXT)


def by_recipe(path, tmp_path):
    return load(**load(path, **CPU).recipe).encode(TEXT)


def by_raw_and_calibrator(path, tmp_path):
    encoder = load(path, **CPU)
    return encoder.calibrate(encoder.raw.encode(TEXT))


def by_evaluation(path, tmp_path):
    opened = open_system(str(path), device="cpu")
    pooled = opened.pooled(opened.own_pooling)
    return (CalibratedEncoder(pooled, opened.calibrator) if opened.calibrator else pooled).encode(TEXT)


def by_langchain(path, tmp_path):
    pytest.importorskip("langchain_core", reason="the langchain extra is not installed")
    from bertflow.integrations.langchain import BertflowEmbeddings

    return BertflowEmbeddings(str(path)).embed_documents(TEXT)


def by_sklearn(path, tmp_path):
    from bertflow.integrations.sklearn import SentenceVectorizer

    return SentenceVectorizer(str(path), device="cpu").fit_transform(TEXT)


def by_store(path, tmp_path):
    store = EmbeddingStore.build(load(path, **CPU), TEXT, tmp_path / "store")
    return store.rows(store.row_ids)


WAYS = [by_load, by_recipe, by_raw_and_calibrator, by_evaluation, by_langchain, by_sklearn, by_store]
SAVED = ["saved", "saved-roles", "calibrated", "run", "tuned"]
NAMES = ["transformers", "st", "st-default", "st-roles", *SAVED]


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.parametrize("name", [*NAMES, "word vectors"])
def test_every_way_gives_the_same_vectors(things, vectors, tmp_path, name, way):
    np.testing.assert_allclose(way(things[name][0], tmp_path), vectors(name)[0], atol=1e-5)


@pytest.mark.parametrize("name", [*NAMES, "word vectors"])
def test_what_is_opened_knows_what_it_is(things, name):
    path, expected = things[name]
    opened = load(path, **CPU)
    assert [one.key for one in opened.identity.differences(expected.identity)] in ([], ["query_prompt"])
    assert (opened.calibrator is None) == (expected.calibrator is None)
    assert load(**opened.recipe).identity == opened.identity


@pytest.mark.parametrize("method", ["encode", "encode_query", "encode_document"])
@pytest.mark.parametrize("name", ["st-roles", "calibrated", "static", "word vectors"])
def test_the_name_of_a_prompt_by_position_is_refused(things, name, method, refusal):
    opened = load(things["st"][0], pooling="static", **CPU) if name == "static" else load(things[name][0], **CPU)
    assert refusal(lambda: getattr(opened, method)(TEXT, "query"), error=UsageError) == (
        "The second argument of encode is progress (True, False or None), got 'query'. Name every other option, as "
        "batch_size=32. For a prompt, use encode_query, or open the encoder with prompt=..."
    )


# Commands

COMMANDS = {
    "embed": "embed {text} --store {out} --model {model} --device cpu",
    "evaluate": "evaluate {model} --binary {pairs} --device cpu",
    "export": "export {model} --target sentence-transformers --output {out}",
    "fix": "fix {model} {text} --output {out} --device cpu",
    "inspect": "inspect {model} --text {text} --output {out} --device cpu",
    "score": "score {model} {pairs} --fit_on {text} --device cpu",
    "search": "search build {out} --answers {answers} --model {model} --device cpu",
    "serve": "serve {model} --device cpu",
    "sweep": "sweep {model} --labels {labels} --device cpu",
    "train": "train --encoder.model {model} --data.sentences {text} --output {out} --encoder.device cpu",
}
REFUSED = [
    ("fix", "calibrated", "is already calibrated by AllButTheTop(k=1). Give the encoder without its calibrator."),
    ("fix", "run", "is already calibrated by Center(). Give the encoder without its calibrator."),
    ("export", "word vectors", "Only a TransformerEncoder can be exported, this one is a WordVectorEncoder."),
    ("serve", "word vectors", "Only transformers can be served, this is a WordVectorEncoder. Give the folder of"),
    ("train", "word vectors", "A raw transformer is needed, got a WordVectorEncoder."),
    ("train", "calibrated", "A raw transformer is needed, got a CalibratedEncoder. Give the encoder before"),
    ("sweep", "calibrated", "A raw transformer is needed, got a CalibratedEncoder."),
    ("sweep", "run", "A raw transformer is needed, got a CalibratedEncoder."),
    ("sweep", "saved", "keeps blocks 1 to 2 of 4, but layer 4 is asked for. Use the model it was saved from."),
]
"""What a command refuses for the kind of thing that it is, and what it says."""


class OpenedError(BaseException):
    """Ends a command when it has opened its encoder; commands turn every ``Exception`` into one line."""


@pytest.fixture
def run_command(things, tmp_path):
    """Run one command on one of the things; the exit code."""
    files = {
        "text": "\n".join(TEXT),
        "pairs": "a\tb\tlabel\nthe dog\ta cat\t1\na cat\tdogs\t0\n",
        "answers": "id\ttext\n1\tdogs\n",
    }
    files["labels"] = "text\tlabel\n" + "".join(f"{text}\t{row % 2}\n" for row, text in enumerate(TEXT))
    paths = {name: tmp_path / f"{name}{'.txt' if name == 'text' else '.tsv'}" for name in files}
    for name, content in files.items():
        paths[name].write_text(content)

    def run(command, name):
        return main(COMMANDS[command].format(**paths, out=tmp_path / "out", model=things[name][0]).split())

    return run


@pytest.fixture(scope="session")
def opened_vectors():
    """The vectors of what was opened, of documents and of queries; commands that open it alike share them."""
    found = {}

    def of(kind, named):
        key = kind.called, repr(named)
        if key not in found:
            encoder = kind.open(*named)
            found[key] = encoder.encode(TEXT), encoder.encode_query(TEXT)
        return found[key]

    return of


@pytest.mark.parametrize("name", [*NAMES, "word vectors"])
@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "sweep"])  # which has poolings of its own
def test_every_command_opens_the_same_encoder(vectors, opened_vectors, run_command, monkeypatch, command, name):
    opened = []

    def spied(model, revision=None):
        place, kind = find(model, revision)

        def open_it(*named):
            opened.append((kind, named))
            raise OpenedError

        return place, replace(kind, open=open_it)

    monkeypatch.setattr("bertflow.opening.find", spied)
    with pytest.raises(OpenedError):
        run_command(command, name)
    monkeypatch.undo()
    for found, expected in zip(opened_vectors(*opened[0]), vectors(name), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize(("command", "name", "message"), REFUSED)
def test_a_command_that_refuses_a_kind_says_so_in_one_line(run_command, capsys, command, name, message):
    assert run_command(command, name) in (2, 3)
    assert message in capsys.readouterr().err.splitlines()[-1]


# Prompts


def test_queries_and_documents_have_prompts_of_their_own(things, tiny_bert):
    plain = TransformerEncoder(tiny_bert, "cls", **CPU)
    encoder = load(things["st-roles"][0], **CPU)
    document, query = (plain.encode([PROMPTS[name] + text for text in TEXT]) for name in ("passage", "query"))
    np.testing.assert_allclose(encoder.encode(TEXT), document, atol=1e-6)
    np.testing.assert_allclose(encoder.encode_document(TEXT), document, atol=1e-6)
    np.testing.assert_allclose(encoder.encode_query(TEXT), query, atol=1e-6)
    assert (encoder.describe()["prompt"], encoder.describe()["query_prompt"]) == ("a dog ", "the cat ")


def test_evaluation_of_queries_has_their_prompt(things):
    path, expected = things["st-roles"]
    encoder, pairs = load(path, **CPU), Pairs("faq", tuple(TEXT), tuple(TEXT[::-1]), kind="retrieval")
    wanted = encoder.encode_query(TEXT), encoder.encode(TEXT[::-1])
    [sides] = encode_sets({"it": encoder}, [pairs])
    np.testing.assert_allclose(next(iter(sides))[1:], wanted, atol=1e-6)
    np.testing.assert_allclose(pair_cosines(encoder, pairs), SIMILARITIES["cosine"].paired(*wanted), atol=1e-6)
    opened = open_system(str(path), device="cpu")
    pooled = opened.pooled("cls")
    np.testing.assert_allclose(pooled.encode(TEXT), expected.encode(TEXT), atol=1e-6)
    np.testing.assert_allclose(pooled.encode_query(TEXT), load(path, **CPU).encode_query(TEXT), atol=1e-6)


@pytest.mark.parametrize(
    ("prompt", "text"),
    [("", ""), ("query", "the cat "), ("other", "dogs "), ("a red ", "a red "), ({"document": "a red "}, "a red ")],
)
def test_a_prompt_can_be_named_given_or_switched_off(things, tiny_bert, prompt, text):
    encoder = load(things["st-roles"][0], prompt=prompt, **CPU)
    expected = TransformerEncoder(tiny_bert, "cls", **CPU).encode([text + sentence for sentence in TEXT])
    np.testing.assert_allclose(encoder.encode(TEXT), expected, atol=1e-6)


def test_a_prompt_for_something_else_is_refused(tiny_bert, refusal):
    assert refusal(load, tiny_bert, prompt={"answer": "a "}, **CPU, error=UsageError) == (
        "A prompt is for document or query, got one for 'answer'."
    )


def test_the_prompts_of_a_folder_are_said(things, caplog):
    with caplog.at_level(logging.INFO):
        load(things["st-default"][0], **CPU)
    assert "st-default has prompts, which are used: 'dogs ' before each document and 'dogs ' before each query." in (
        caplog.messages
    )


# Options


@pytest.mark.parametrize("options", [{"max_length": 5}, {"prompt": "the "}, {"pooling": "mean"}])
@pytest.mark.parametrize("name", ["calibrated", "run"])
def test_an_option_that_makes_other_embeddings_is_refused_unless_forced(things, name, options):
    with pytest.raises(DataError, match=f"{next(iter(options))} "):
        load(things[name][0], **CPU, **options)
    assert load(things[name][0], **CPU, **options, force=True).calibrator is not None


def test_another_dtype_of_a_calibrated_encoder_is_said(things, caplog):
    with caplog.at_level(logging.WARNING):
        encoder = load(things["calibrated"][0], dtype="bfloat16", **CPU)
    assert "dtype 'float32'; this is" in caplog.text
    assert encoder.describe()["dtype"] == "bfloat16"


@pytest.mark.parametrize("pooling", ["static", "static-sif", "static-mean"])
def test_word_embeddings_of_a_transformer_are_a_pooling(tiny_bert, pooling):
    encoder = load(tiny_bert, pooling=pooling)
    expected = StaticEncoder(tiny_bert, pooling.removeprefix("static")[1:] or "content")
    if pooling == "static-sif":
        encoder.count_tokens(TEXT), expected.count_tokens(TEXT)
    np.testing.assert_array_equal(encoder.encode(TEXT), expected.encode(TEXT))
    assert load(**encoder.recipe).describe()["pooling"] == expected.describe()["pooling"]


def test_without_a_name_the_packaged_encoder_is_opened(minilm):
    described = load(**CPU).describe()
    assert (described["encoder"], described["pooling"]) == (minilm.parent.name, "mean(1,2)")
    assert load(pooling="cls", **CPU).describe()["pooling"] == "cls"


def test_a_hub_id_of_a_calibrated_encoder_is_opened_at_its_revision(things, monkeypatch):
    asked = []

    def snapshot_download(model, revision=None, allow_patterns=None):
        asked.append((model, revision))
        return things["calibrated"][0]

    monkeypatch.setattr("bertflow.encoder.locating.snapshot_download", snapshot_download)
    encoder = load("me/calibrated", revision="v1", **CPU)
    assert asked == [("me/calibrated", "v1")]
    assert encoder.recipe == {"model": "me/calibrated", "device": "cpu", "revision": "v1"}
    np.testing.assert_array_equal(encoder.encode(TEXT), things["calibrated"][1].encode(TEXT))


@pytest.mark.parametrize(
    ("path", "error", "message"),
    [
        (
            "calibrated/calibrator",
            UsageError,
            "{} is a calibrator without an encoder. Give the folder that holds both.",
        ),
        ("nothing", DataError, "The model folder {} does not exist. Give an existing folder, or a hub id."),
        ("no.vec", DataError, "{} is missing. Give the path of an existing file."),
        ("half", UsageError, "The run {} has no calibrator yet. Finish it with --resume auto."),
        ("half-tuned", UsageError, "The run {} has no calibrator yet. Finish it with --resume auto."),
        ("lost", UsageError, "The run {} has no calibrator yet. Finish it with --resume auto."),
    ],
)
def test_what_cannot_be_opened_is_said_in_one_line(things, path, error, message, refusal):
    place = things["calibrated"][0].parent
    # Both trainings have written encoder/ before they are done; of the last, the calibrator was deleted.
    for name, status, kind in (
        ("half", "running", "flow"),
        ("half-tuned", "running", "finetune"),
        ("lost", "done", "flow"),
    ):
        (place / name / "encoder").mkdir(parents=True, exist_ok=True)
        write_json(place / name / "run.json", {"status": status, "options": {kind: {}}, "encoder": {}})
    assert refusal(load, place / path, **CPU, error=error) == (message.format(place / path))


def test_an_option_that_word_vectors_lack_is_refused(things, refusal):
    path = things["word vectors"][0]
    assert refusal(load, path, max_length=4, error=UsageError) == (
        f"{path} is a file of word vectors, which has no max_length. Leave that option out."
    )


def test_every_kind_is_in_the_table(things):
    found = {find(str(path))[1].called for path, _ in things.values()}
    assert found == {kind.called for kind in KINDS} - {"calibrator alone"}
