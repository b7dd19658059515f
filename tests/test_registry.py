from bertflow.errors import UnknownNameError
from bertflow.registry import did_you_mean, lookup


def test_an_unknown_name_lists_the_known_ones(refusal):
    assert refusal(lookup, "pooling", {"mean": 1, "cls": 2}, "men", error=UnknownNameError) == (
        "Unknown pooling 'men'. Known: mean, cls. Did you mean mean?"
    )


def test_a_name_that_is_only_a_little_like_another_is_not_offered():
    assert did_you_mean("tensorrt", ["sentence-transformers", "onnx", "safetensors"]) == ""
    assert did_you_mean("safetensor", ["onnx", "safetensors"]) == " Did you mean safetensors?"
