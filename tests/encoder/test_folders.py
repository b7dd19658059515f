"""Every kind of folder, and what is said of those that cannot be used."""

import hashlib
import json
import re
import shutil

import numpy as np
import pytest
from huggingface_hub import constants
from numpy.testing import assert_array_equal
from safetensors.torch import load_file, save_file
from transformers import T5Config, T5EncoderModel

from bertflow.encoder.transformer import StaticEncoder, TransformerEncoder
from bertflow.errors import DataError, UsageError
from bertflow.records import read_record

from .conftest import make, require_near, require_same

SENTENCES = ["the big dog", "a cat sleeps"]


@pytest.fixture
def model(tiny_bert, tmp_path):
    """A copy that a test may damage."""
    return shutil.copytree(tiny_bert, tmp_path / "model")


def make_sentence_transformers(folder, pooling, last="Normalize", inside=""):
    """Turn a model folder into one as sentence-transformers writes."""
    kinds = [("Transformer", inside), ("Pooling", "1_Pooling"), (last, "2_Last")]
    modules = [
        {"idx": k, "name": str(k), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for k, (kind, path) in enumerate(kinds)
        if kind
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling/config.json").write_text(json.dumps(pooling))
    return folder


BROUGHT = [
    ({"word_embedding_dimension": 16, "pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
    ({"word_embedding_dimension": 16, "pooling_mode_cls_token": False, "pooling_mode_max_tokens": True}, "max"),
    ({"pooling_mode_mean_tokens": True}, "mean"),
    ({"pooling_mode_lasttoken": True}, "last-token"),
    ({"embedding_dimension": 16, "pooling_mode": "mean", "include_prompt": True}, "mean"),
    ({"embedding_dimension": 16, "pooling_mode": "lasttoken"}, "last-token"),
    ({"embedding_dimension": 16, "pooling_mode": ["cls"]}, "cls"),
]


@pytest.mark.parametrize(("config", "pooling"), BROUGHT)
def test_a_sentence_transformers_folder_brings_its_pooling(model, config, pooling):
    found = TransformerEncoder(make_sentence_transformers(model, config))
    assert found.describe()["pooling"] == pooling


def test_what_sentence_transformers_itself_writes_is_read(tiny_bert, tmp_path):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    parts = [Transformer(str(tiny_bert)), Pooling(16, pooling_mode="cls")]
    theirs = SentenceTransformer(modules=parts, device="cpu")
    theirs.save(str(tmp_path / "theirs"))
    ours = make(tmp_path / "theirs")
    assert ours.describe()["pooling"] == "cls"
    require_near(ours.encode(SENTENCES), theirs.encode(SENTENCES))


LONGEST = [
    ({"max_seq_length": 32, "do_lower_case": False}, 32),
    ({"max_seq_length": 500}, 64),
    ({"max_seq_length": None}, 64),
    ({}, 64),
    (None, 64),
]


@pytest.mark.parametrize(("settings", "length"), LONGEST)
def test_a_sentence_transformers_folder_brings_its_longest_sentence(model, tiny_bert, settings, length):
    from sentence_transformers import SentenceTransformer

    make_sentence_transformers(model, {"embedding_dimension": 16, "pooling_mode": "mean"}, last=None)
    if settings is not None:
        (model / "sentence_bert_config.json").write_text(json.dumps(settings))
    text = ["the big dog eats a red bird " * count for count in (1, 5, 9)]  # 9, 37 and 65 tokens
    ours = make(model)
    assert ours.describe()["max_length"] == length
    assert f"max_length={length}" in repr(ours)
    if (settings or {}).get("max_seq_length") != 500:  # of which sentence-transformers reads more than there are
        theirs = SentenceTransformer(str(model), device="cpu")
        assert theirs.max_seq_length == length
        require_near(ours.encode(text), theirs.encode(text))
    named = make(model, max_length=12)
    require_same(named, TransformerEncoder(tiny_bert, max_length=12), text)
    assert StaticEncoder(model).describe()["max_length"] == (settings or {}).get("max_seq_length") or 128


@pytest.mark.parametrize(("most", "length"), [(200, 200), (int(1e30), 128)])
def test_without_a_length_of_its_own_a_folder_is_read_as_long_as_its_model_can(bert_tokenizer, tmp_path, most, length):
    size = {"vocab_size": 40, "d_model": 16, "d_kv": 4, "num_heads": 4, "num_layers": 2, "d_ff": 32}
    T5EncoderModel(T5Config(**size)).save_pretrained(tmp_path)
    bert_tokenizer.model_max_length = most
    bert_tokenizer.save_pretrained(tmp_path)
    make_sentence_transformers(tmp_path, {"pooling_mode": "mean"})
    assert make(tmp_path).describe()["max_length"] == length


def test_the_transformer_may_lie_in_a_folder_of_its_own(tiny_bert, tmp_path):
    outer = tmp_path / "outer"
    shutil.copytree(tiny_bert, outer / "0_Transformer")
    make_sentence_transformers(outer, {"pooling_mode": "cls"}, inside="0_Transformer")
    found, expected = TransformerEncoder(outer), TransformerEncoder(tiny_bert, "cls")
    require_same(found, expected, SENTENCES)
    assert found.describe() == expected.describe() | {"encoder": "outer"}


def test_a_normalize_is_left_out_and_that_is_said(model, caplog):
    make_sentence_transformers(model, {"pooling_mode": "mean"})
    found = TransformerEncoder(model).encode(SENTENCES)
    assert caplog.messages == ["model: Normalize is skipped; embeddings keep their length, cosines are the same."]
    assert not np.allclose(np.linalg.norm(found, axis=1), 1)


def test_a_pooling_of_ones_own_reads_the_transformer_alone(model, tiny_bert, caplog):
    make_sentence_transformers(model, {"pooling_mode": "weightedmean"}, last="Dense")
    found = TransformerEncoder(model, "mean(2)").encode(SENTENCES)
    assert_array_equal(found, TransformerEncoder(tiny_bert, "mean(2)").encode(SENTENCES))
    assert caplog.messages == []


# What cannot be used: a file of the folder -> what it holds, and what is said


def st(pooling=None, settings=None, last="Normalize", **files):
    """The files of a sentence-transformers folder, by their names."""
    kinds = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Last", last)]
    rows = [{"name": path, "path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in kinds]
    given = {"modules.json": rows, "1_Pooling/config.json": pooling or {"pooling_mode": "mean"}}
    return given | ({"sentence_bert_config.json": settings} if settings else {}) | files


UNKNOWN = "asks for the pooling {}, but one of cls, mean, max, lasttoken is wanted. Give a pooling of your own."
UNREADABLE = "{model} holds no config that transformers can read: "
REFUSED = {
    "a length of 0": (st(settings={"max_seq_length": 0}), "{model}/sentence_bert_config.json .*max_seq_length"),
    "no length": (st(settings={"max_seq_length": "long"}), "{model}/sentence_bert_config.json .*max_seq_length"),
    "a Dense": (
        st(last="Dense"),
        "model has a module sentence_transformers.Dense, which bertflow cannot run: it reads Transformer, Pooling and "
        "Normalize. Give the pooling yourself, as pooling='mean', which reads the transformer alone.",
    ),
    **{
        f"the pooling {asked}": (st(config), "{model}/1_Pooling/config.json " + UNKNOWN.format(re.escape(asked)))
        for asked, config in {
            "weightedmean": {"pooling_mode": "weightedmean"},
            "cls + mean": {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True},
            "mean_sqrt_len": {"pooling_mode_mean_sqrt_len_tokens": True},
            "none": {"other": 1},
        }.items()
    },
    "lower case": (
        st(settings={"do_lower_case": True}),
        "{model}/sentence_bert_config.json asks for do_lower_case. Set it in tokenizer_config.json, where the "
        "tokenizer reads it.",
    ),
    "a module outside": (
        {"modules.json": [{"type": "sentence_transformers.models.Transformer", "path": "../other", "name": "0"}]},
        r".*0\.path should be a plain file name, got '\.\./other'",
    ),
    "no model": (
        {"config.json": None},
        "{model} is not a model folder: it holds no config.json. Give the folder with the weights.",
    ),
    "a model inside": (  # as `fix` writes it
        {"config.json": None, "encoder/config.json": {}},
        "{model} is not a model folder: it holds no config.json. Give the folder in it, {model}/encoder.",
    ),
    "a calibrated encoder without its record": (
        {"config.json": None, "encoder/config.json": {}, "calibrator/calibrator.json": {}},
        r"{model} .* It looks like a calibrated encoder that was copied without its bertflow\.json: copy it whole\.",
    ),
    "a torn config": (
        {"config.json": "{"},
        UNREADABLE + "It looks like the config file at .* is not a valid JSON file.",
    ),
    "an unknown model": (
        {"config.json": {"model_type": "zzz"}},
        UNREADABLE + "The checkpoint you are trying to load has model type `zzz` .*",
    ),
    "code": (
        {"config.json": {"model_type": "zzz", "auto_map": {"AutoConfig": "x.Y"}}},
        UNREADABLE + "The repository .* contains custom code .*",
    ),
    "no tokenizer": (
        {"tokenizer.json": None, "tokenizer_config.json": None},
        "{model} holds no vocabulary. Add the files of its tokenizer, tokenizer.json at least.",
    ),
    "another format": (
        {"bertflow_encoder.json": {"format": 2, "encoder": "x"}},
        "{model}/bertflow_encoder.json was made by another version of bertflow: it has format 2, this one reads 1. "
        "Save the encoder again.",
    ),
    "half a record": (
        {"bertflow_encoder.json": {"pooling": "mean"}},
        "{model}/bertflow_encoder.json is not a complete saved encoder: it has no format. Save the encoder again.",
    ),
}


@pytest.mark.parametrize("wrong", REFUSED)
def test_a_folder_that_cannot_be_used_is_refused_in_one_line(model, wrong):
    files, said = REFUSED[wrong]
    for name, held in files.items():
        (model / name).parent.mkdir(exist_ok=True)
        if held is None:
            (model / name).unlink()
        else:
            (model / name).write_text(held if isinstance(held, str) else json.dumps(held))
    with pytest.raises(DataError, match=f"^{said.replace('{model}', re.escape(str(model)))}"):
        TransformerEncoder(model)


def test_several_weight_files_are_hashed_in_the_order_of_their_names(model):
    whole = load_file(model / "model.safetensors")
    (model / "model.safetensors").unlink()
    names = sorted(whole)
    parts = {f"model-0000{k + 1}-of-00002.safetensors": names[k::2] for k in range(2)}
    for file, keys in parts.items():
        save_file({key: whole[key] for key in keys}, model / file, metadata={"format": "pt"})
    where = {key: file for file, keys in parts.items() for key in keys}
    (model / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": where}))
    expected = hashlib.sha256(b"".join((model / file).read_bytes() for file in sorted(parts))).hexdigest()
    assert TransformerEncoder(model).describe()["weights"] == expected


@pytest.mark.parametrize("name", ["./nothing", "~/no such folder", "/no/such/folder", "a/b/c", "bertflow/nothing"])
def test_a_missing_folder_is_not_looked_for_on_the_hub(refusal, name, monkeypatch, pytestconfig):
    monkeypatch.chdir(pytestconfig.rootpath)
    said = refusal(TransformerEncoder, name)
    assert said == f"The model folder {name} does not exist. Give an existing folder, or a hub id."


@pytest.mark.parametrize(
    ("name", "do"), [("x.npy", "Take `bertflow fix --vectors x.npy`."), ("x.csv", "Give a folder.")]
)
def test_a_file_is_not_looked_for_on_the_hub(refusal, name, do, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).write_text("a")
    assert refusal(TransformerEncoder, name) == f"{name} is a file, but a model is a folder or a hub id. {do}"


def test_damaged_token_counts_are_named(tiny_bert, tmp_path):
    TransformerEncoder(tiny_bert, "sif").count_tokens(SENTENCES).save(tmp_path / "saved")
    path = tmp_path / "saved/token_counts.safetensors"
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(DataError, match=rf"^{path} is damaged: .+\. Save the encoder again\.$"):
        TransformerEncoder(tmp_path / "saved")


# The hub, in the layout of its own cache


@pytest.fixture
def hub_cache(tiny_bert, tmp_path, monkeypatch):
    """A cache in which somebody has downloaded ``someone/tiny-bert``: main, and a tag of older weights."""
    repository = tmp_path / "models--someone--tiny-bert"
    shutil.copytree(tiny_bert, repository / "snapshots" / ("a" * 40))
    TransformerEncoder(tiny_bert, "mean(2)").write(_made(repository / "snapshots" / ("b" * 40)))
    (repository / "snapshots" / ("b" * 40) / "bertflow_encoder.json").unlink()
    for name, commit in {"main": "a" * 40, "two-blocks": "b" * 40}.items():
        (_made(repository / "refs") / name).write_text(commit)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


def _made(folder):
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.mark.usefixtures("hub_cache")
def test_a_hub_id_is_a_folder_under_its_own_name(tiny_bert):
    found, expected = TransformerEncoder("someone/tiny-bert"), TransformerEncoder(tiny_bert)
    require_same(found, expected, SENTENCES)
    assert found.describe() == expected.describe() | {"encoder": "someone/tiny-bert"}


@pytest.mark.usefixtures("hub_cache")
def test_a_revision_is_the_one_asked_for():
    assert TransformerEncoder("someone/tiny-bert", revision="two-blocks").describe()["blocks"] == 2


@pytest.mark.usefixtures("hub_cache")
def test_a_saved_hub_model_keeps_its_id(tmp_path):
    TransformerEncoder("someone/tiny-bert").save(tmp_path / "saved")
    assert TransformerEncoder(tmp_path / "saved").describe()["encoder"] == "someone/tiny-bert"
    assert read_record(tmp_path / "saved/bertflow_encoder.json", dict)["encoder"] == "someone/tiny-bert"


@pytest.mark.usefixtures("hub_cache")
@pytest.mark.parametrize(
    ("name", "revision", "at"), [("someone/other", None, ""), ("someone/tiny-bert", "v9", " at revision 'v9'")]
)
def test_what_the_hub_does_not_give_is_said_in_one_line(refusal, name, revision, at):
    assert refusal(TransformerEncoder, name, error=UsageError, revision=revision) == (
        f"The model {name!r}{at} is not a folder here, and cannot be loaded from the hub: Cannot find an appropriate "
        "cached snapshot folder for the specified revision on the local disk and outgoing traffic has been disabled. "
        "Check the name and the network, or give the folder of a downloaded model."
    )


def test_a_name_that_is_no_hub_id_is_said():
    said = re.escape("The model 'a b' is not a folder here, and cannot be loaded from the hub: Repo id must ")
    with pytest.raises(UsageError, match=f"^{said}"):
        TransformerEncoder("a b")


def test_a_folder_has_no_revision(refusal, tiny_bert):
    said = refusal(TransformerEncoder, tiny_bert, error=UsageError, revision="main")
    assert said == f"A revision ('main') is for hub ids, but {tiny_bert} is a folder. Leave it out."
