"""Encoding: against sentence-transformers and a plain loop, in half precision, up to a layer, and against the hardware.

All on the embedded encoder (6 blocks, 384 wide), mean pooling, at most 128 tokens.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from bench_material import Material
from bench_timing import Result, matmuls, ratio, take_turns
from sentence_transformers import SentenceTransformer
from torch.profiler import ProfilerActivity, profile
from transformers import AutoModel, AutoTokenizer

from bertflow.calibration.calibrators import Whitening
from bertflow.correlation import spearman
from bertflow.encoder.foreign import quiet_transformers
from bertflow.encoder.model import TOKEN_BUDGETS
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.similarity import SIMILARITIES

MAX_LENGTH = 128
ROUNDS = 3
BLOCKS = 6
TUNING = 400
"""Pairs that say what half precision costs a score."""
POOLINGS = ("mean", "mean(1,2)", "cls(3)")
FAST_BFLOAT16 = ("avx512_bf16", "amx_bf16")
"""Flags of processors that multiply bfloat16 faster than float32."""

KINDS: Mapping[str, tuple[str, ...]] = {
    "matrix products": ("mkldnn::_linear_pointwise", "aten::addmm", "aten::mm", "aten::bmm"),
    "gelu": ("aten::gelu",),
    "layer norm": ("aten::native_layer_norm",),
    "attention": ("aten::_scaled_dot_product_flash_attention_for_cpu", "aten::softmax", "aten::_softmax"),
    "copies and sums": ("aten::copy_", "aten::add", "aten::add_", "aten::mul", "aten::cat", "aten::index_select"),
}
"""What the time of an encoder goes to, by operator."""


def naive(material: Material) -> Callable[[], None]:
    """What one writes first: batches of 32 in the order given, padded to the longest, mean of what is not padding."""
    tokenizer = AutoTokenizer.from_pretrained(material.model)
    with quiet_transformers():
        model = AutoModel.from_pretrained(material.model).eval()

    @torch.no_grad()
    def call() -> None:
        for start in range(0, len(material.sentences), 32):
            batch = material.sentences[start : start + 32]
            inputs = tokenizer(batch, padding=True, truncation=True, max_length=MAX_LENGTH, return_tensors="pt")
            hidden = model(**inputs).last_hidden_state
            mask = inputs["attention_mask"].unsqueeze(-1)
            (hidden * mask).sum(1) / mask.sum(1)

    return call


def sentence_transformer(material: Material, max_length: int) -> SentenceTransformer:
    """The same encoder, as most people run it."""
    with quiet_transformers():
        encoder = SentenceTransformer(material.model, device="cpu")
    encoder.max_seq_length = max_length
    return encoder


def without_onednn(call: Callable[[], object]) -> None:
    """Make a call with PyTorch's own products: what processors get on which oneDNN is no faster."""
    torch.backends.mkldnn.enabled = False
    try:
        call()
    finally:
        torch.backends.mkldnn.enabled = True


def fast_bfloat16() -> bool:
    """Whether this processor multiplies bfloat16 faster than float32."""
    known = Path("/proc/cpuinfo")  # elsewhere than on Linux it is not known, and there is no target
    flags = known.read_text(encoding="ascii") if known.exists() else ""
    return any(flag in flags for flag in FAST_BFLOAT16)


def encoding(material: Material) -> Iterator[Result]:
    """Sentences a second, against others."""
    sentences = material.sentences
    ours = TransformerEncoder(material.model, pooling="mean", max_length=MAX_LENGTH, device="cpu")
    half = TransformerEncoder(material.model, pooling="mean", max_length=MAX_LENGTH, device="cpu", dtype="bfloat16")
    theirs = sentence_transformer(material, MAX_LENGTH)
    times = take_turns(
        {
            "theirs": lambda: theirs.encode(sentences, show_progress_bar=False),
            "naive": naive(material),
            "ours": lambda: ours.encode(sentences),
            "without_onednn": lambda: without_onednn(lambda: ours.encode(sentences)),
            "bfloat16": lambda: half.encode(sentences),
        },
        ROUNDS,
    )
    facts = {f"{name}_sentences_per_s": round(len(sentences) / median(found.cpu)) for name, found in times.items()}
    x, y = ours.encode(sentences), half.encode(sentences)
    cosine = (x * y).sum(1) / (np.linalg.norm(x, axis=1) * np.linalg.norm(y, axis=1))
    close = {"mean_cosine_to_float32": round(float(cosine.mean()), 6), "least": round(float(cosine.min()), 6)}
    value, wall = ratio(times["theirs"], times["ours"])
    yield Result("encode, float32: sentence-transformers / ours", value, wall, 1.25, facts=facts)
    value, wall = ratio(times["theirs"], times["without_onednn"])
    yield Result("encode, float32, without oneDNN: sentence-transformers / ours", value, wall)
    value, wall = ratio(times["naive"], times["ours"])
    yield Result("encode, float32: naive padded loop / ours", value, wall, 2.0)
    value, wall = ratio(times["theirs"], times["bfloat16"])
    yield Result(
        "encode, bfloat16: sentence-transformers / ours",
        value,
        wall,
        3.0 if fast_bfloat16() else None,
        facts=close | scores_of_half(material, ours, half),
    )


def scores_of_half(material: Material, exact: TransformerEncoder, half: TransformerEncoder) -> dict[str, Any]:
    """Spearman x 100 on tuning pairs, raw and whitened, from float32 and from bfloat16."""
    pairs = material.tuning
    if pairs is None:
        return {}
    chosen = np.random.default_rng(0).permutation(len(pairs))[:TUNING]
    text = [side[i] for side in (pairs.first, pairs.second) for i in chosen]
    found: dict[str, Any] = {"tuning_pairs": len(chosen)}
    for dtype, encoder in (("float32", exact), ("bfloat16", half)):
        for pooling, x in encoder.encode_poolings(text, POOLINGS).items():
            for name, z in (("raw", x), ("whitened", Whitening().fit(x).transform(x))):
                score = spearman(SIMILARITIES["cosine"].paired(*np.split(z, 2)), pairs.target[chosen])
                found[f"{pooling}_{name}_{dtype}"] = round(100 * score, 2)
    return found


def layers(material: Material) -> Iterator[Result]:
    """A pooling at layer k runs k blocks: its share of the whole, over k/6."""
    encoders = {k: TransformerEncoder(material.model, pooling=f"mean({k})", device="cpu") for k in (1, 2, 3, BLOCKS)}
    calls = {str(k): (lambda encoder=encoder: encoder.encode(material.sentences)) for k, encoder in encoders.items()}
    times = take_turns(calls, ROUNDS)
    shares = {k: ratio(times[str(k)], times[str(BLOCKS)]) for k in encoders if k != BLOCKS}
    facts = {f"layer_{k}_share": round(cpu, 3) for k, (cpu, _) in shares.items()}
    value, wall = shares[3]
    yield Result("encode up to layer 3 of 6 / whole", value, wall, 0.5 * 1.1, at_most=True, facts=facts)


def flops(lengths: np.ndarray, width: int, inner: int) -> int:
    """Floating point operations of all blocks for sentences of these lengths, without padding."""
    tokens = lengths.astype(np.int64)
    linear = tokens * 2 * (4 * width * width + 2 * width * inner)
    attention = tokens * tokens * 4 * width
    return int(BLOCKS * (linear + attention).sum())


def hardware(material: Material) -> Iterator[Result]:
    """Arithmetic on real tokens a second, against matrix products alone; and what the rest goes to."""
    encoder = TransformerEncoder(material.model, pooling="mean", max_length=MAX_LENGTH, device="cpu")
    config, rows = encoder.model.config, TOKEN_BUDGETS["cpu"]
    width, inner = config.hidden_size, config.intermediate_size
    text = encoder.tokenized(material.sentences)
    shapes = [(rows, width, width)] * 4 + [(rows, width, inner), (rows, inner, width)]
    calls = {"encode": lambda: encoder.encode(material.sentences), "products": matmuls(shapes)}
    times = take_turns(calls, ROUNDS)
    work = flops(text.lengths, width, inner)
    achieved = [work / seconds / 1e9 for seconds in times["encode"].cpu]
    rate = [sum(2 * a * b * c for a, b, c in shapes) / seconds / 1e9 for seconds in times["products"].cpu]
    padded = sum(batch.ids.numel() for batch in text.batches(rows, 0))
    facts = {
        "gflops_of_real_tokens": round(median(achieved), 1),
        "gflops_of_matrix_products": round(median(rate), 1),
        "mflop_a_token": round(work / text.lengths.sum() / 1e6, 1),
        "tokens_a_sentence": round(float(text.lengths.mean()), 1),
        "padding_percent": round(100 * (1 - text.lengths.sum() / padded), 1),
        "time_goes_to_percent": spent(calls["encode"]),
    }
    share = 100 * median(a / b for a, b in zip(achieved, rate, strict=True))
    yield Result("encode, float32: arithmetic on real tokens, of the matrix rate", share, unit="%", facts=facts)


def spent(call: Callable[[], object]) -> dict[str, float]:
    """Shares of the time of one call by kind of operator, in percent of all operators."""
    with profile(activities=[ProfilerActivity.CPU]) as record:
        call()
    own = {event.key: event.self_cpu_time_total for event in record.key_averages() if event.key.startswith(("a", "m"))}
    total = sum(own.values())
    shares = {kind: 100 * sum(own.get(name, 0) for name in names) / total for kind, names in KINDS.items()}
    shares["other operators"] = 100 - sum(shares.values())
    return {kind: round(share, 1) for kind, share in shares.items()}
