"""What a candidate is called: in a verdict, and in plain words."""

from collections.abc import Mapping

from bertflow.calibration.spelling import CROPS, parse_system
from bertflow.encoder.pooling import parse_pooling

FLOW = "use the flow"
ADVICE: Mapping[str, str] = {
    **dict.fromkeys(("whitening", "ridge", "background"), "whiten"),
    "flow": FLOW,
    "": "weight the tokens",
}
"""Row of ``CALIBRATORS``, or empty for none -> what is advised where a candidate of that row is best."""
WORDS: Mapping[str, str] = {
    "sif": "common words weigh less",
    "soft-sif": "common words weigh a little less",
    "faint-sif": "very common words weigh a little less",
    "center": "the mean is subtracted",
    "standardize": "every coordinate gets variance one",
    "abtt": "the largest directions are taken out",
    "abtt(1)": "the largest direction is taken out",
    "whitening": "every direction gets the same variance",
    "ridge": "directions of small variance count more",
    "background": "directions of small variance in general text count a little more",
    "two-band": "every direction gets the same variance, the weakest ones together less",
    "flow": "a trained, invertible map gives an even cloud",
    CROPS: "queries are centered separately",
}
"""Token reduction, row of ``CALIBRATORS``, or crops -> what it does, in plain words."""


def advice_for(candidate: str) -> str:
    """What is advised where this candidate is best."""
    calibrator = parse_system(candidate).calibrator or ""
    return ADVICE.get(calibrator, f"use {calibrator}")


def in_words(candidate: str) -> str:
    """What a candidate does, in plain words."""
    row = parse_system(candidate)
    pooling = parse_pooling(row.pooling or "mean")
    layers = " and ".join("the last layer" if layer == -1 else f"layer {layer}" for layer in pooling.layers)
    joined = [f"{layers} are averaged"] if pooling.layers[1:] and pooling.join == "mean" else []
    spelled = f"{row.calibrator}({row.value})"
    named = (pooling.tokens, spelled if spelled in WORDS else row.calibrator or "", CROPS * row.crops)
    return "; ".join([*joined, *(WORDS[name] for name in named if name in WORDS)])
