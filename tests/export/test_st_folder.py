"""What is exported is loaded by the real sentence-transformers, and does what the encoder does."""

import json
import sys

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from transformers import AutoTokenizer, ModernBertConfig, ModernBertModel

import bertflow
from bertflow.errors import DataError, MissingExtraError, UsageError
from bertflow.export.st_folder import load_sentence_transformer
from bertflow.export.targets import write_export
from bertflow.onednn import computed_in
from bertflow.similarity import COSINE

from .conftest import TEXTS

LAYOUTS = ("legacy", "modern")
# A pooling, and the modules that are exact for it in a model of four blocks.
POOLINGS = {
    "mean": ["Pooling"],
    "cls": ["Pooling"],
    "max": ["Pooling"],
    "last-token": ["Pooling"],
    "mean(2)": ["Pooling"],
    "cls(3)": ["Pooling"],
    "mean(0)": ["Pooling"],
    "first-last-avg": ["WeightedLayerPooling", "Pooling"],
    "cls(1,3)": ["WeightedLayerPooling", "Pooling"],
    "pooler": ["Pooling", "Dense"],
    "max(1,2)": ["LayerPooling"],
    "sum(1,2)": ["LayerPooling"],
    "concat(0,3)": ["LayerPooling"],
    "content": ["LayerPooling"],
    "sif(2)": ["LayerPooling"],
    "concat-soft-sif(1,-1)": ["LayerPooling"],
    "mask(2)": ["LayerPooling"],
    "concat-denoised-mask(1,-1)": ["LayerPooling"],
}


@pytest.fixture(scope="module")
def exported(tiny_system, tmp_path_factory):
    """Exports a system once; gives the system and the folder."""
    made = {}

    def make(pooling="mean", calibrator=None, layout="legacy", **options):
        key = (pooling, calibrator, layout, tuple(options.items()))
        if key not in made:
            folder = tmp_path_factory.mktemp("exported") / "folder"
            system = tiny_system(pooling, calibrator, **options)
            made[key] = system, write_export(system, folder, "sentence-transformers", layout).folder
        return made[key]

    return make


def modules_in(folder):
    return [row["type"].rpartition(".")[2] for row in json.loads((folder / "modules.json").read_text())]


@pytest.mark.parametrize("pooling", POOLINGS)
def test_every_pooling_is_exact(exported, pooling):
    system, folder = exported(pooling)
    assert modules_in(folder) == ["Transformer", *POOLINGS[pooling]]
    found = load_sentence_transformer(folder, device="cpu").encode(TEXTS)
    np.testing.assert_allclose(found, system.encode(TEXTS), atol=1e-5)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_closed_form_needs_no_flag(exported, layout):
    system, folder = exported("first-last-avg", "whitening", layout)
    model = SentenceTransformer(str(folder), device="cpu")
    np.testing.assert_allclose(model.encode(TEXTS), system.encode(TEXTS), atol=1e-4)
    assert model.get_embedding_dimension() == system.dim


@pytest.mark.parametrize(
    ("pooling", "calibrator", "modules"),
    [
        ("mean", "ridge", ["Pooling", "Dense"]),
        ("mean", "two-band", ["Pooling", "Calibration"]),
        ("concat(0,3)", "blocks", ["LayerPooling", "Calibration"]),
        ("concat(0,3)", "blocks-of-bands", ["LayerPooling", "Calibration"]),
    ],
)
def test_what_is_affine_is_one_linear_layer_and_bands_are_a_module_of_ours(exported, pooling, calibrator, modules):
    system, folder = exported(pooling, calibrator)
    assert modules_in(folder) == ["Transformer", *modules]
    own = any(name in ("LayerPooling", "Calibration") for name in modules)
    model = SentenceTransformer(str(folder), device="cpu", trust_remote_code=own)
    np.testing.assert_allclose(model.encode(TEXTS), system.encode(TEXTS), atol=1e-4)
    assert model.get_embedding_dimension() == system.dim


def test_the_legacy_layout_is_what_servers_parse(exported):
    _, folder = exported("mean", "whitening")
    types = [row["type"] for row in json.loads((folder / "modules.json").read_text())]
    assert types == [f"sentence_transformers.models.{name}" for name in ("Transformer", "Pooling", "Dense")]
    pooling = json.loads((folder / "1_Pooling" / "config.json").read_text())
    assert (pooling["pooling_mode_cls_token"], pooling["pooling_mode_mean_tokens"]) == (False, True)
    assert json.loads((folder / "2_Dense" / "config.json").read_text()).keys() == {
        "in_features",
        "out_features",
        "bias",
        "activation_function",
    }


def test_the_modern_layout_is_what_the_library_itself_writes(exported, tmp_path):
    _, folder = exported("first-last-avg", "whitening", "modern")
    SentenceTransformer(str(folder), device="cpu").save(str(tmp_path / "again"))
    for name in ("modules.json", "1_WeightedLayerPooling/config.json", "2_Pooling/config.json", "3_Dense/config.json"):
        assert json.loads((tmp_path / "again" / name).read_text()) == json.loads((folder / name).read_text()), name


def test_a_flow_is_refused_without_the_flag_and_loads_with_it(exported):
    system, folder = exported("mean", "flow")
    with pytest.raises(ValueError, match="not part of Sentence Transformers"):
        SentenceTransformer(str(folder), device="cpu")
    model = SentenceTransformer(str(folder), device="cpu", trust_remote_code=True)
    np.testing.assert_allclose(model.encode(TEXTS), system.encode(TEXTS), atol=1e-4)


def test_a_flow_says_which_bertflow_it_needs(exported):
    config = json.loads((exported("mean", "flow")[1] / "config_sentence_transformers.json").read_text())
    assert config["requirements"] == {
        "bertflow": {"specifier": f">={bertflow.__version__},<1", "reason": "provides the module Calibration"}
    }
    assert "requirements" not in json.loads(
        (exported("mean", "whitening")[1] / "config_sentence_transformers.json").read_text()
    )


def test_another_bertflow_is_refused_by_the_library(exported, tmp_path, tiny_system):
    folder = write_export(tiny_system("mean", "flow"), tmp_path / "later", "sentence-transformers").folder
    path = folder / "config_sentence_transformers.json"
    config = json.loads(path.read_text())
    config["requirements"]["bertflow"]["specifier"] = ">=99"
    path.write_text(json.dumps(config))
    with pytest.raises(Exception, match="bertflow>=99"):
        SentenceTransformer(str(folder), device="cpu", trust_remote_code=True)


@pytest.mark.parametrize(("pooling", "calibrator"), [("sif(2)", "flow"), ("cls(1,3)", "whitening")])
def test_it_survives_being_saved_again(exported, tmp_path, pooling, calibrator):
    system, folder = exported(pooling, calibrator)
    load_sentence_transformer(folder, device="cpu").save(str(tmp_path / "again"))
    again = load_sentence_transformer(tmp_path / "again", device="cpu")
    np.testing.assert_allclose(again.encode(TEXTS), system.encode(TEXTS), atol=1e-4)


@pytest.mark.parametrize("calibrator", ["flow", "whitening"])
def test_calibration_stays_float32_behind_a_transformer_in_half_precision(exported, calibrator):
    system, folder = exported("sif(2)", calibrator, dtype="bfloat16")
    model = load_sentence_transformer(folder, device="cpu")
    assert next(model[0].parameters()).dtype == computed_in(torch.bfloat16, "cpu")
    assert {t.dtype for t in model[2].state_dict().values() if t.is_floating_point()} == {torch.float32}
    np.testing.assert_allclose(model.encode(TEXTS), system.encode(TEXTS), atol=1e-4)


def test_our_modules_stay_float32_behind_a_transformer_that_is_cast(exported):
    system, folder = exported("sif(2)", "whitening")
    model = load_sentence_transformer(folder, device="cpu").to(torch.bfloat16)
    assert COSINE.paired(model.encode(TEXTS), system.encode(TEXTS)).min() > 0.99


def test_a_calibrator_cast_from_the_inside_is_refused(exported, refusal):
    model = load_sentence_transformer(exported("mean", "flow")[1], device="cpu")
    model[2].calibrator.half()
    assert "works in float32, but calibrator" in refusal(model.encode, ["the cat"])


def test_only_the_blocks_that_are_needed_are_written(exported):
    assert len(load_sentence_transformer(exported("sif(2)")[1], device="cpu")[0].model.encoder.layer) == 2


def test_nothing_that_was_left_out_is_made_up_at_random(exported, caplog):
    model = SentenceTransformer(str(exported("mean")[1]), device="cpu")
    assert model[0].model.pooler is None
    assert "newly initialized" not in caplog.text


def test_a_final_norm_behind_blocks_that_were_left_out_does_not_act(tiny_bert, tiny_system, tmp_path):
    sizes = {"vocab_size": 25, "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2}
    config = ModernBertConfig(**sizes, intermediate_size=32, max_position_embeddings=64, pad_token_id=0)
    ModernBertModel(config).save_pretrained(tmp_path / "modern")
    AutoTokenizer.from_pretrained(tiny_bert).save_pretrained(tmp_path / "modern")
    system = tiny_system("mean(1)", model=tmp_path / "modern")
    folder = write_export(system, tmp_path / "out", "sentence-transformers").folder
    assert modules_in(folder) == ["Transformer", "LayerPooling"]
    found = load_sentence_transformer(folder, device="cpu").encode(TEXTS)
    np.testing.assert_allclose(found, system.encode(TEXTS), atol=1e-5)


def test_inner_layers_that_are_not_given_are_missed_in_words(exported):
    model = load_sentence_transformer(exported("max(1,2)")[1], device="cpu")
    model[0].model.config.output_hidden_states = False
    with pytest.raises(
        DataError, match=r"LayerPooling reads the layers \[1\], but the transformer gives only its last one"
    ):
        model.encode(["the cat"])


def test_the_folder_is_not_taken_for_the_raw_encoder(exported, refusal):
    folder = exported("mean", "whitening")[1]
    assert refusal(bertflow.TransformerEncoder, folder) == (
        f"{folder} is a calibrated encoder, not a raw one. Open it with bertflow.load."
    )


def test_a_stranger_s_class_is_refused(exported, tmp_path, refusal):
    path = tmp_path / "modules.json"
    path.write_text(json.dumps([{"idx": 0, "name": "0", "path": "", "type": "os.path.Evil"}]))
    (tmp_path / "config_sentence_transformers.json").write_text("{}")
    assert refusal(load_sentence_transformer, tmp_path) == (
        f"{path} names the class os.path.Evil, which belongs neither to sentence-transformers nor "
        "to bertflow (LayerPooling, Calibration). Load it with sentence-transformers, if you trust it."
    )


def test_without_the_library_its_extra_is_said(exported, monkeypatch):
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'bertflow\[st\]'"):
        load_sentence_transformer(exported("mean")[1])


def test_another_folder_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"is not a sentence-transformers folder: it holds no modules\.json"):
        load_sentence_transformer(tmp_path)


def test_the_pooler_in_half_precision_is_refused(tiny_system, tmp_path):
    with pytest.raises(UsageError, match=r"Open it with dtype float32, or use the target onnx"):
        write_export(tiny_system("pooler", dtype="bfloat16"), tmp_path / "out", "sentence-transformers")


def test_an_earlier_export_is_replaced(tiny_system, tmp_path):
    write_export(tiny_system(), tmp_path / "out", "sentence-transformers")
    write_export(tiny_system("sif(2)"), tmp_path / "out", "sentence-transformers")
    assert modules_in(tmp_path / "out") == ["Transformer", "LayerPooling"]


@pytest.mark.slow
def test_it_encodes_in_several_processes(exported):
    system, folder = exported("sif(2)", "flow")
    model = load_sentence_transformer(folder, device="cpu")
    found = model.encode(TEXTS * 4, device=["cpu", "cpu"], chunk_size=5)
    np.testing.assert_allclose(found, system.encode(TEXTS * 4), atol=1e-4)
