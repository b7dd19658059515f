"""Encoding: against sentence-transformers at its best, in both precisions, up to a layer, and against the hardware.

On the built-in encoder (MiniLM: 6 blocks, 384 wide) and on a random one of the size of BERT-base (12 blocks, 768 wide);
mean pooling, at most 128 tokens. Precisions are equal on both sides of a ratio; a target is on the ratio in which the
matrix products are by the same library as well.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np
import torch
from bench_material import BASE, MINILM, Material
from bench_timing import Product, Result, Times, flops, matmuls, ratio, take_turns
from sentence_transformers import SentenceTransformer

from bertflow.calibration.closed_forms import Whitening
from bertflow.correlation import spearman
from bertflow.encoder.architecture import quiet_transformers
from bertflow.encoder.batching import TOKEN_BUDGETS
from bertflow.encoder.device import DTYPES
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.onednn import FORWARD, instruction_sets
from bertflow.similarity import SIMILARITIES

MAX_LENGTH = 128
ROUNDS = 3
BATCHES = (32, 64)
"""Of sentence-transformers, whose default is 32; the faster one counts."""
FLOAT32_TARGETS: Mapping[str, float | None] = {MINILM: 1.3, BASE: None}
BFLOAT16_TARGETS: Mapping[str, float] = {MINILM: 1.4, BASE: 1.2}
TUNING = 400
"""Pairs that say what half precision costs a score."""
PRECISIONS = ("float32", "bfloat16")
POOLINGS = ("mean", "mean(1,2)", "cls(3)")
BFLOAT16_SHARE = 50.0
"""Percent of the rate of matrix products in bfloat16 that arithmetic on real tokens should reach."""
FAST_BFLOAT16 = ("avx512_bf16", "amx_bf16")
"""Flags of processors that multiply bfloat16 faster than float32."""


def sentence_transformer(folder: str, max_length: int, dtype: str = "float32") -> SentenceTransformer:
    """The same encoder, as most people run it."""
    with quiet_transformers():
        encoder = SentenceTransformer(folder, device="cpu", model_kwargs={"dtype": DTYPES[dtype]})
    encoder.max_seq_length = max_length
    return encoder


def transformer(folder: str, dtype: str = "float32") -> TransformerEncoder:
    """The same encoder, by the package."""
    return TransformerEncoder(folder, pooling="mean", max_length=MAX_LENGTH, device="cpu", dtype=dtype)


def without_onednn(call: Callable[[], object]) -> None:
    """Make a call with PyTorch's own products: what processors get on which oneDNN is no faster."""
    torch.backends.mkldnn.enabled = False
    try:
        call()
    finally:
        torch.backends.mkldnn.enabled = True


def fast_bfloat16() -> bool:
    """Whether this processor multiplies bfloat16 faster than float32."""
    return not instruction_sets().isdisjoint(FAST_BFLOAT16)


def precisions() -> Sequence[str]:
    """Those that are measured: bfloat16 where it is fast; elsewhere PyTorch takes many times as long for it."""
    return PRECISIONS if fast_bfloat16() else PRECISIONS[:1]


def encoding(material: Material, name: str) -> Iterator[Result]:
    """Sentences a second of one encoder, against sentence-transformers at its best."""
    folder, sentences = material.encoders[name]
    ours = {dtype: transformer(folder, dtype) for dtype in precisions()}
    calls: dict[str, Callable[[], object]] = {
        dtype: lambda encoder=encoder: encoder.encode(sentences) for dtype, encoder in ours.items()
    }
    calls["by PyTorch"] = lambda: without_onednn(calls["float32"])
    for dtype in ours:
        theirs = sentence_transformer(folder, MAX_LENGTH, dtype)
        calls |= {f"{dtype}, batches of {size}": encode_by(theirs, sentences, size) for size in BATCHES}
    times = take_turns(calls, ROUNDS)
    rates = {f"{call}, sentences/s": round(len(sentences) / median(found.cpu), 1) for call, found in times.items()}
    best = {dtype: fastest(times[f"{dtype}, batches of {size}"] for size in BATCHES) for dtype in ours}
    versus = f"{name}: sentence-transformers / ours"
    yield Result(f"encode, float32, {versus}", *ratio(best["float32"], times["float32"]), facts=rates)
    value, wall = ratio(best["float32"], times["by PyTorch"])
    yield Result(f"encode, float32, PyTorch's products, {versus}", value, wall, FLOAT32_TARGETS[name])
    if "bfloat16" not in ours:
        return
    value, wall = ratio(best["bfloat16"], times["bfloat16"])
    close = closeness(*(encoder.encode(sentences) for encoder in ours.values()))
    close |= scores_of_half(material, *ours.values()) if name == MINILM else {}
    yield Result(f"encode, bfloat16, {versus}", value, wall, BFLOAT16_TARGETS[name], facts=close)
    yield Result(f"encode, {name}: float32 / bfloat16", *ratio(times["float32"], times["bfloat16"]))


def encode_by(encoder: SentenceTransformer, sentences: Sequence[str], size: int) -> Callable[[], object]:
    """A call of sentence-transformers with that batch size."""
    return lambda: encoder.encode(sentences, batch_size=size, show_progress_bar=False)


def fastest(found: Iterable[Times]) -> Times:
    """Those with the least median."""
    return min(found, key=lambda times: median(times.cpu))


def closeness(x: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    """Cosines of the rows of float32 with those of bfloat16."""
    cosine = (x * y).sum(1) / (np.linalg.norm(x, axis=1) * np.linalg.norm(y, axis=1))
    return {"mean_cosine_to_float32": round(float(cosine.mean()), 6), "least": round(float(cosine.min()), 6)}


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
    folder, sentences = material.encoders[MINILM]
    encoders = {k: TransformerEncoder(folder, pooling=f"mean({k})", device="cpu", max_length=128) for k in (1, 2, 3, 6)}
    times = take_turns(
        {str(k): lambda encoder=encoder: encoder.encode(sentences) for k, encoder in encoders.items()}, ROUNDS
    )
    shares = {k: ratio(times[str(k)], times["6"]) for k in (1, 2, 3)}
    facts = {f"layer_{k}_share": round(cpu, 3) for k, (cpu, _) in shares.items()}
    value, wall = shares[3]
    yield Result("encode up to layer 3 of 6 / whole", value, wall, 0.5 * 1.1, at_most=True, facts=facts)


def hardware(material: Material) -> Iterator[Result]:
    """Arithmetic on real tokens a second, against matrix products alone."""
    for name, (folder, sentences) in material.encoders.items():
        for dtype in precisions():
            share, facts = of_the_hardware(transformer(folder, dtype), sentences, DTYPES[dtype])
            least = BFLOAT16_SHARE if dtype == "bfloat16" else None
            what = f"encode, {dtype}, {name}: arithmetic on real tokens, of the matrix rate"
            yield Result(what, share, target=least, unit="%", facts=facts)


def of_the_hardware(
    encoder: TransformerEncoder, sentences: Sequence[str], dtype: torch.dtype
) -> tuple[float, dict[str, Any]]:
    """The rate of real tokens in percent of that of matrix products of the same shapes, and what else was found."""
    config, rows = encoder.spec.folder.config, TOKEN_BUDGETS["cpu"]
    text, width, inner = encoder.tokenized(sentences), config.hidden_size, config.intermediate_size
    shapes: list[Product] = [(rows, width, width, FORWARD)] * 4
    shapes += [(rows, width, inner, FORWARD), (rows, inner, width, FORWARD)]
    calls = {"encode": lambda: encoder.encode(sentences), "products": matmuls(shapes, dtype)}
    times = take_turns(calls, ROUNDS)
    work = flops(text.lengths, config)
    achieved = [work / seconds / 1e9 for seconds in times["encode"].cpu]
    rate = [sum(2 * a * b * c for a, b, c, _ in shapes) / seconds / 1e9 for seconds in times["products"].cpu]
    padded = sum(batch.ids.numel() for batch in text.batches(rows, 0))
    facts = {
        "gflops_of_real_tokens": round(median(achieved), 1),
        "gflops_of_matrix_products": round(median(rate), 1),
        "mflop_a_token": round(work / text.lengths.sum() / 1e6, 1),
        "tokens_a_sentence": round(float(text.lengths.mean()), 1),
        "padding_percent": round(100 * (1 - text.lengths.sum() / padded), 1),
    }
    return 100 * median(a / b for a, b in zip(achieved, rate, strict=True)), facts
