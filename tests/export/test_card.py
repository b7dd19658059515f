"""The model card: read back by the hub's own library, with measured figures or none."""

import json
import shutil
from pathlib import Path

import pytest
from huggingface_hub import ModelCard

import bertflow
from bertflow.errors import DataError
from bertflow.export.card import Exported, make_card, read_results


def results_for(system, **changes):
    row = {
        **system.describe(),
        "system": "mine",
        "task": "stsb",
        "split": "test",
        "aggregation": "all",
        "subset": "",
        "metric": "cosine_spearman",
        "n": 1379,
        "value": 0.7012,
        "ci_low": 0.68,
        "ci_high": 0.72,
        "seen": 0.25,
    }
    return row | changes


def card_of(system, target="sentence-transformers", ours=(), **card):
    return make_card(system, Exported(Path("mine"), target, system.describe(), ours), **card)


@pytest.fixture
def system(tiny_system):
    return tiny_system("mean", "whitening")


def test_measured_figures_are_in_the_hub_s_metadata_and_in_the_table(system):
    card = card_of(system, results=[results_for(system)], license="mit")
    data = ModelCard(str(card)).data
    (found,) = data.eval_results
    assert (found.dataset_type, found.metric_type, found.metric_value) == ("stsb", "cosine_spearman", 0.7012)
    assert (data.license, data.library_name, data.pipeline_tag) == (
        "mit",
        "sentence-transformers",
        "sentence-similarity",
    )
    assert "| stsb | test | all | cosine_spearman | 1,379 | 70.12 | 68.00 to 72.00 | 25% |" in str(card)


def test_without_results_nothing_is_claimed(system):
    card = card_of(system)
    assert ModelCard(str(card)).data.eval_results is None
    assert "Nothing was measured for this card." in str(card)


def test_it_says_what_it_was_fitted_on(system, tiny_text):
    text = str(card_of(system))
    assert f"{len(set(tiny_text))} distinct sentences. No labels were used." in text
    assert system.describe()["weights"] in text


def test_a_raw_encoder_was_fitted_on_nothing(tiny_system):
    assert "Nothing was fitted." in str(card_of(tiny_system("mean")))


@pytest.mark.parametrize(
    ("target", "ours", "wanted"),
    [
        ("sentence-transformers", (), 'SentenceTransformer("mine")'),
        ("sentence-transformers", ("Calibration",), 'bertflow.load_sentence_transformer("mine")'),
        ("onnx", (), 'onnxruntime.InferenceSession("onnx/model.onnx")'),
        ("safetensors", (), 'bertflow.CalibratedEncoder.load("mine")'),
    ],
)
def test_it_shows_how_each_target_is_used(system, target, ours, wanted):
    text = str(card_of(system, target=target, ours=ours))
    assert wanted in text
    assert ("trust_remote_code=True" in text) == bool(ours)
    assert "{{" not in text
    assert "{%" not in text


def test_the_prompt_is_said(tiny_system):
    text = str(card_of(tiny_system("mean", prompt="query: "), target="onnx"))
    assert '"query: " + "A sentence."' in text


def test_only_results_of_this_system_are_taken(system, tiny_system, tmp_path):
    path = tmp_path / "results.json"
    rows = [
        results_for(system),
        results_for(tiny_system("cls", "whitening")),
        results_for(system, aggregation="subset"),
    ]
    path.write_text(json.dumps({"rows": rows}))
    assert read_results(path, system.describe()) == rows[:1]


def test_results_of_others_are_refused_with_both_named(system, tiny_system, tmp_path, refusal):
    path = tmp_path / "results.json"
    path.write_text(json.dumps({"rows": [results_for(tiny_system("cls"))]}))
    assert refusal(lambda: read_results(path, system.describe())) == (
        f"{path} holds no results of this encoder (mean, Whitening(n_components=None)), but of mine (cls, raw). "
        "Evaluate what you export."
    )


def test_a_file_that_holds_no_results_is_refused(system, tmp_path):
    path = tmp_path / "results.json"
    path.write_text("[]")
    with pytest.raises(DataError, match=r"is not a complete results\.json of `bertflow evaluate`: it should be"):
        read_results(path, system.describe())


def licensed(tmp_path, tiny_bert, front):
    """The tiny model in the hub's format, with a README."""
    folder = tmp_path / "models--its--owner" / "snapshots" / "1"
    shutil.copytree(tiny_bert, folder)
    (folder / "README.md").write_text(front + "\n# It\n", encoding="utf-8")
    return folder


SAID = "`1`, on which this is based, says "


@pytest.mark.parametrize(
    ("front", "expected", "text"),
    [
        ("---\nlanguage: en\nlicense: apache-2.0\n---", "apache-2.0", f"{SAID}`apache-2.0`."),
        ("---\r\nlicense: other\r\nlicense_name: its-own\r\n---", "other", f"{SAID}`other` `its-own`."),
        ("---\nlicense: [mit]\n---", None, "None was found for `1`"),
        ("---\nlicense: 'a\n---", None, "None was found for `1`"),
        ("---\nlicense: " + "[" * 5000 + "]" * 5000 + "\n---", None, "None was found for `1`"),
        ("no front matter", None, "None was found for `1`"),
    ],
)
def test_the_license_is_that_of_the_base_model_or_it_is_said_that_none_was_found(
    front, expected, text, tiny_bert, tmp_path, caplog
):
    folder = licensed(tmp_path, tiny_bert, front)
    encoder = bertflow.TransformerEncoder(folder, device="cpu")
    encoder.save(tmp_path / "saved")
    again = bertflow.CalibratedEncoder.fit(
        bertflow.TransformerEncoder(tmp_path / "saved", device="cpu"), bertflow.Center(), ["a man", "a dog runs"]
    )
    for system in (encoder, again):
        card = card_of(system)
        assert ModelCard(str(card)).data.license == expected
        assert text in str(card)
    assert ("No license was found for 1, so the model card names none." in caplog.text) == (expected is None)


def test_a_license_that_is_given_stands_beside_what_the_base_says(tiny_bert, tmp_path):
    folder = licensed(tmp_path, tiny_bert, "---\nlicense: mit\n---")
    card = card_of(bertflow.TransformerEncoder(folder, device="cpu"), license="cc-by-4.0")
    assert ModelCard(str(card)).data.license == "cc-by-4.0"
    assert f"`cc-by-4.0`. {SAID}`mit`." in str(card)
