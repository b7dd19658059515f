"""What users of sentence-transformers type: it works as there, or one line says what to type here."""

import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Transformer
from sentence_transformers.sentence_transformer.modules import Pooling
from torch.testing import assert_close

from bertflow.calibrated import CalibratedEncoder
from bertflow.calibration.closed_forms import Center
from bertflow.errors import UsageError


@pytest.fixture
def as_sentence_transformers(tiny_bert):
    modules = [Transformer(str(tiny_bert), max_seq_length=12), Pooling(16, "mean")]
    return SentenceTransformer(modules=modules, prompts={"query": "a ", "document": ""}, device="cpu")


@pytest.mark.parametrize("calibrated", [False, True])
def test_attributes_of_sentence_transformers_are_those_of_its_encoders(tiny, as_sentence_transformers, calibrated):
    theirs, text = as_sentence_transformers, ["a dog", "the red book", "a cat sings"]
    ours = tiny(max_length=12, prompt={"query": "a "})
    if calibrated:
        ours = CalibratedEncoder(ours, Center().fit(ours.encode(text)), force=True)
    for name in ("max_seq_length", "device", "prompts"):
        assert getattr(ours, name) == getattr(theirs, name)
    assert ours.get_sentence_embedding_dimension() == theirs.get_embedding_dimension()
    assert ours.tokenizer("a dog")["input_ids"] == theirs.tokenizer("a dog")["input_ids"]
    tensor = ours.encode(text, convert_to_tensor=True)
    assert (tensor.device, tensor.dtype) == (theirs.device, torch.float32)
    expected = theirs.encode(text, convert_to_tensor=True)
    expected = expected - expected.mean(0) if calibrated else expected
    assert_close(tensor, expected, atol=1e-5, rtol=0)
    assert_close(ours.encode("a dog", convert_to_tensor=True), expected[0], atol=1e-5, rtol=0)


ELSEWHERE = {
    "encode_multi_process": "Use bertflow embed, whose store several processes can fill.",
    "save_pretrained": 'Use save("folder"), or export_encoder(encoder, "folder", "sentence-transformers").',
    "push_to_hub": 'Use export_encoder(encoder, "folder", "sentence-transformers", push="owner/name").',
    "to": 'A device belongs to the encoder. Open it with device="cuda".',
}


@pytest.mark.parametrize(("name", "hint"), ELSEWHERE.items())
def test_methods_of_sentence_transformers_that_are_elsewhere_are_named(
    tiny, as_sentence_transformers, name, hint, refusal
):
    encoder = tiny()
    assert hasattr(as_sentence_transformers, name)
    assert not hasattr(encoder, name)
    assert refusal(getattr, encoder, name, error=UsageError) == f"TransformerEncoder has no {name}. {hint}"


@pytest.mark.parametrize("calibrated", [False, True])
def test_the_length_is_chosen_when_the_encoder_is_opened(tiny, calibrated, refusal):
    encoder = tiny()
    if calibrated:
        encoder = CalibratedEncoder(encoder, Center().fit(encoder.encode(["a dog", "a cat"])), force=True)
    said = refusal(setattr, encoder, "max_seq_length", 64, error=UsageError)
    assert said == "The length belongs to the encoder. Open it with max_length=64."
