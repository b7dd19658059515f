"""``bertflow.load`` opens an export for sentence-transformers as the encoder that was exported."""

import numpy as np
import pytest

import bertflow
from bertflow.cli import main
from bertflow.export.targets import write_export

ST = "sentence-transformers"
TEXTS = ["the cat sleeps .", "a", "[UNK] zebra [SEP] the dog", "the big red house in the garden . " * 9]
PROMPTS = {"query": "the man : ", "document": "the cat : "}
SYSTEMS = [
    *[(pooling, None) for pooling in ("mean", "pooler", "first-last-avg", "sif(2)", "max(1,2)", "mask(2)")],
    *[("mean", name) for name in ("center", "whitening", "ridge", "two-band", "flow", "unit rows", "stand-in")],
    *[(pooling, "whitening") for pooling in ("cls", "first-last-avg", "sif(2)", "pooler", "concat-denoised-mask(1,3)")],
    ("concat(0,3)", "blocks-of-bands"),
]


def make(tiny_system, tiny_text, pooling, calibrator, tmp_path):
    if calibrator == "unit rows":
        encoder = tiny_system(pooling)
        rows = encoder.encode(tiny_text, normalize_embeddings=True)
        return bertflow.CalibratedEncoder(encoder, bertflow.Whitening().fit(rows))
    if calibrator == "stand-in":
        from bertflow.export.approximation import linearize

        (tmp_path / "text.txt").write_text("\n".join(tiny_text))
        return linearize(tiny_system(pooling, "flow"), tmp_path / "text.txt")[0]
    return tiny_system(pooling, calibrator)


@pytest.mark.parametrize(("pooling", "calibrator"), SYSTEMS)
def test_it_is_the_encoder_that_was_exported(tiny_system, tiny_text, tmp_path, pooling, calibrator):
    system = make(tiny_system, tiny_text, pooling, calibrator, tmp_path)
    bertflow.export_encoder(system, tmp_path / "out", ST)
    opened = bertflow.load(tmp_path / "out", device="cpu")
    np.testing.assert_allclose(opened.encode(TEXTS), system.encode(TEXTS), atol=1e-5)
    assert (opened.calibrator is None) == (calibrator is None)
    assert opened.identity == system.identity
    again = bertflow.load(**opened.raw.recipe)
    np.testing.assert_allclose(again.encode(TEXTS), system.raw.encode(TEXTS), atol=1e-5)


@pytest.mark.parametrize("calibrator", [None, bertflow.Whitening()])
def test_prompts_length_and_chunks_are_its_own(tiny_bert, tiny_text, tmp_path, calibrator):
    system = bertflow.TransformerEncoder(
        tiny_bert, "mean(2)", max_length=20, prompt=PROMPTS, chunks="tokens:8:2", device="cpu"
    )
    if calibrator:
        system = bertflow.CalibratedEncoder.fit(system, calibrator, tiny_text)
    bertflow.export_encoder(system, tmp_path / "out", ST)
    opened = bertflow.load(tmp_path / "out", device="cpu")
    for name in ("encode", "encode_query", "encode_document"):
        np.testing.assert_allclose(getattr(opened, name)(TEXTS), getattr(system, name)(TEXTS), atol=1e-5)
    assert opened.describe() == system.describe()


def test_what_fix_made_is_exported_and_opened_by_the_command(tiny_bert, tiny_text, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text.txt").write_text("\n".join(tiny_text))
    fix = ["fix", str(tiny_bert), "text.txt", "--candidates", "whitening(8)", "--output", "fixed", "--device", "cpu"]
    assert main(fix) == 0
    assert main(["export", "fixed/encoder", "--target", ST, "--output", "out"]) == 0
    assert main(["embed", "text.txt", "--model", "out", "--store", "store", "--device", "cpu"]) == 0
    assert "cannot run" not in capsys.readouterr().err
    opened, fixed = (bertflow.load(folder, device="cpu") for folder in ("out", "fixed/encoder"))
    np.testing.assert_allclose(opened.encode(TEXTS), fixed.encode(TEXTS), atol=1e-5)


def test_the_weights_are_written_once(tiny_system, tmp_path):
    folder = write_export(tiny_system("mean", "whitening"), tmp_path / "out", ST).folder
    assert sorted(path.relative_to(folder).as_posix() for path in folder.rglob("model*")) == [
        "2_Dense/model.safetensors",
        "model.safetensors",
    ]


def test_it_is_saved_again_with_its_weights(tiny_system, tmp_path):
    system = tiny_system("sif(2)", "whitening")
    write_export(system, tmp_path / "out", ST)
    bertflow.load(tmp_path / "out", device="cpu").save(tmp_path / "saved")
    np.testing.assert_array_equal(bertflow.load(tmp_path / "saved", device="cpu").encode(TEXTS), system.encode(TEXTS))


@pytest.mark.parametrize("calibrator", [None, "whitening"])
@pytest.mark.parametrize("missing", [False, True])
def test_weights_that_are_not_its_own_are_refused(tiny_system, tmp_path, calibrator, missing, refusal):
    folder = write_export(tiny_system("mean", calibrator), tmp_path / "out", ST).folder
    weights = folder / "model.safetensors"
    weights.unlink() if missing else weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    assert refusal(bertflow.load, folder, device="cpu") == (
        f"{weights} is missing from the export folder. Save the export again, or copy it whole."
        if missing
        else f"{weights} is damaged: its checksum is not the one in bertflow_encoder.json. Save the export again."
    )


def test_hashes_of_the_text_are_left_out_if_asked(tiny_system, tiny_bert, tiny_text, tmp_path):
    encoder = bertflow.TransformerEncoder(tiny_bert, "sif(2)", max_length=48, device="cpu")
    system = bertflow.CalibratedEncoder.fit(encoder, bertflow.Whitening(8), tiny_text)
    bertflow.export_encoder(system, tmp_path / "out", ST)
    assert bertflow.load(tmp_path / "out", device="cpu").fitted_hashes() is not None
    bertflow.export_encoder(system, tmp_path / "none", ST, without_text_hashes=True)
    assert bertflow.load(tmp_path / "none", device="cpu").fitted_hashes() is None
