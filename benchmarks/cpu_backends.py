"""Whether an encoder would be faster on a CPU by other means, or in another library, than as it is.

    python benchmarks/cpu_backends.py [--models MiniLM] [--dtypes bfloat16] [--ways OpenVINO] [--threads 1]

Every way gets the same batches of the same tokens and gives the mean of the last layer. The package packs weights for
each call, which is part of its time, and so do the ways that change its model. Each takes turns with the
package's own encoder; the median of the rounds' ratios counts, of processor time and by the clock. Beside it stand the
arithmetic on real tokens a second as a share of what bare matrix products of the model's shapes reach in the same
rounds, and how far vectors are from those of the package's encoder in float32, as a share of their length.

Sentences are those of docstrings. The encoder of BERT-base's size has random weights. Needs the extras onnx and demo;
``pip install openvino`` adds OpenVINO. Writes cpu_backends.json and .md beside this file, row by row. Rows that were
measured with the same processor, threads, model and precision before are replaced, or with ``--resume`` kept.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import argparse
import importlib.util
import json
import logging
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from bench_encode import transformer
from bench_material import BASE, MINILM, Material
from bench_page import processor_name
from bench_timing import Product, flops, matmuls, ratio, take_turns
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from bertflow.encoder.batching import Batch, TokenizedText
from bertflow.encoder.device import TOKEN_BUDGETS
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.export import export_encoder
from bertflow.export.golden import distances
from bertflow.export.onnx_encoder import GRAPH, OUTPUT
from bertflow.files import write_json, write_text
from bertflow.onednn import FORWARD, prepacked

ROUNDS = 3
SENTENCES: Mapping[str, int] = {MINILM: 256, BASE: 160}
"""Enough for weights to be packed."""
DTYPES = ("float32", "bfloat16")
OURS = "bertflow, as it is"
HEADER = """# Other ways to run an encoder on a CPU

Made with `python benchmarks/cpu_backends.py`. Times are those of the package's own encoder over the way's: above 1 the
way is faster. The share is arithmetic on real tokens over that of bare matrix products of the model's shapes in the
same precision. The distance is the largest from our float32 vectors, as a share of their length."""
KEY = ("processor", "threads", "model", "dtype")
Encode = Callable[[], np.ndarray]


@dataclass(frozen=True)
class Work:
    """An encoder and its text.

    Attributes:
        folder: Of the model.
        dtype: Precision.
        threads: How many.
        text: The sentences as tokens.
        exported: Folder of the encoder as an ONNX graph.
        packs: Whether weights are packed for each call, as the package does.
    """

    folder: str
    dtype: str
    threads: int
    text: TokenizedText
    exported: Path
    packs: bool = True

    def encoder(self) -> TransformerEncoder:
        """A new one, which may be changed."""
        return transformer(self.folder, self.dtype)

    def batches(self) -> list[Batch]:
        """As the package cuts them."""
        return list(self.text.batches(TOKEN_BUDGETS["cpu"], 0))

    def equal_batches(self) -> list[Batch]:
        """Sentences of one length to a batch: none is padded, more batches are small."""
        lengths, most = self.text.lengths, TOKEN_BUDGETS["cpu"]
        rows = ((np.flatnonzero(lengths == length), max(1, most // length)) for length in np.unique(lengths))
        return [self.text.batch(part, 0) for same, n in rows for part in np.split(same, range(n, len(same), n))]

    def collected(self, run: Callable[[Batch], Any], batches: Sequence[Batch] | None = None) -> Encode:
        """Embeds all sentences, batch by batch."""
        chosen = self.batches() if batches is None else batches
        order = np.argsort(np.concatenate([batch.rows for batch in chosen]))

        @torch.inference_mode()
        def encode() -> np.ndarray:
            with prepacked(len(self.text.ids) if self.packs else 0):
                return np.concatenate([np.asarray(run(batch)) for batch in chosen])[order]

        return encode


def as_it_is(work: Work, change: Callable[[nn.Module], None] = lambda model: None) -> Encode:
    """The package's encoder, after a change of its model."""
    encoder = work.encoder()
    change(encoder.model)
    return work.collected(encoder.embed_batch)


def plain_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
    """Attention as two products and a softmax; (batch, head, token, width of a head) each."""
    batch, heads, tokens, width = q.shape
    q, k, v = (x.reshape(batch * heads, tokens, width) for x in (q, k, v))
    scores = torch.bmm(q * width**-0.5, k.transpose(1, 2))
    if mask is not None:
        shown = scores.view(batch, heads, tokens, tokens)
        scores = shown.masked_fill_(~mask, -torch.inf).view_as(scores)
    return torch.bmm(scores.softmax(-1), v).view(batch, heads, tokens, width)


class _Attention(nn.Module):
    """BERT's attention: q, k, v in one product or in three, and what comes after them."""

    def __init__(self, given: nn.Module, fused: bool, attend: Callable[..., Tensor]) -> None:
        super().__init__()
        self.heads, self.attend = given.num_attention_heads, attend
        self.parts = nn.ModuleList([given.query, given.key, given.value])
        if fused:
            joined = nn.utils.skip_init(type(given.query), given.query.in_features, 3 * given.query.out_features)
            joined.weight.data = torch.cat([part.weight.data for part in self.parts])
            joined.bias.data = torch.cat([part.bias.data for part in self.parts])
            self.parts = nn.ModuleList([joined])

    def forward(self, x: Tensor, attention_mask: Tensor | None = None, **_: Any) -> tuple[Tensor, None]:
        """(batch, token, dim) -> the same."""
        made = [part(x) for part in self.parts]
        q, k, v = (
            y.unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in made for y in each.split(x.shape[-1], -1)
        )
        return self.attend(q, k, v, attention_mask).transpose(1, 2).flatten(2), None


def attending(fused: bool, attend: Callable[..., Tensor]) -> Callable[[nn.Module], None]:
    """Put ``_Attention`` into each block."""

    def change(model: nn.Module) -> None:
        for block in model.encoder.layer:  # type: ignore[union-attr]
            block.attention.self = _Attention(block.attention.self, fused, attend)

    return change


one_product = attending(True, scaled_dot_product_attention)
products_only = attending(False, plain_attention)
both = attending(True, plain_attention)


def compiled(work: Work) -> Encode:
    """``torch.compile`` with weights frozen, which packs them and fuses what stands between products."""
    import torch._inductor.config as inductor

    inductor.freezing = True
    torch._dynamo.reset()
    return as_it_is(work, lambda model: model.compile(dynamic=True))


def numpy_inputs(batch: Batch) -> dict[str, np.ndarray]:
    """What an exported graph takes."""
    return {"input_ids": batch.ids.numpy(), "attention_mask": batch.mask.long().numpy()}


def onnxruntime(work: Work) -> Encode:
    """The exported graph in ONNX Runtime, which computes in float32 alone."""
    import onnxruntime as runtime

    options = runtime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = work.threads
    session = runtime.InferenceSession(str(work.exported / GRAPH), options, providers=["CPUExecutionProvider"])
    return work.collected(lambda batch: session.run([OUTPUT], numpy_inputs(batch))[0])


def openvino(work: Work) -> Encode:
    """The exported graph in OpenVINO."""
    import openvino as vino

    asked = {"float32": "f32", "bfloat16": "bf16"}[work.dtype]
    options = {"INFERENCE_PRECISION_HINT": asked, "INFERENCE_NUM_THREADS": work.threads, "NUM_STREAMS": 1}
    model = vino.Core().compile_model(str(work.exported / GRAPH), "CPU", options)
    return work.collected(lambda batch: model(numpy_inputs(batch))[OUTPUT].copy())


WAYS: Mapping[str, Callable[[Work], Encode]] = {
    "weights not packed": lambda work: as_it_is(replace(work, packs=False)),
    "q, k, v in one product": lambda work: as_it_is(work, one_product),
    "attention as plain products": lambda work: as_it_is(work, products_only),
    "these two": lambda work: as_it_is(work, both),
    "batches of one length, no mask": lambda work: work.collected(work.encoder().embed_batch, work.equal_batches()),
    "torch.compile, frozen": compiled,
    "ONNX Runtime": onnxruntime,
    "OpenVINO": openvino,
}
LIBRARIES: Mapping[str, str] = {"ONNX Runtime": "onnxruntime", "OpenVINO": "openvino"}


def shapes(config: Any) -> list[Product]:
    """The matrix products of one block for a full batch."""
    rows, width, inner = TOKEN_BUDGETS["cpu"], config.hidden_size, config.intermediate_size
    return [(rows, width, width, FORWARD)] * 4 + [(rows, width, inner, FORWARD), (rows, inner, width, FORWARD)]


def measured(work: Work, ways: Sequence[str], rounds: int) -> Iterator[dict[str, Any]]:
    """A row for each way."""
    if not ways:
        return
    exact = as_it_is(replace(work, dtype="float32"))()
    ours, config = as_it_is(work), work.encoder().model.config
    bare, count = shapes(config), flops(work.text.lengths, config)
    multiply = matmuls(bare, getattr(torch, work.dtype))
    for name in ways:
        if name == "ONNX Runtime" and work.dtype != "float32":
            continue
        if (library := LIBRARIES.get(name)) and importlib.util.find_spec(library) is None:
            print(f"{name} is left out: it is not installed.", flush=True)
            continue
        encode = ours if name == OURS else WAYS[name](work)
        x = encode()
        times = take_turns({OURS: ours, name: encode, "products": multiply}, rounds)
        one, rate = times[name], sum(2 * a * b * c for a, b, c, _ in bare)
        shares = [count / s / (rate / p) for s, p in zip(one.cpu, times["products"].cpu, strict=True)]
        faster, by_clock = ratio(times[OURS], one)
        yield {
            "way": name,
            "ours_over_it": round(faster, 3),
            "by_clock": round(by_clock, 3),
            "gflops": round(count / median(one.cpu) / 1e9, 1),
            "share_of_products": round(median(shares), 3),
            "distance": float(f"{distances(x, exact).max():.1e}"),
            "sentences": len(x),
        }
        del encode


def conditions(threads: int) -> dict[str, Any]:
    """What the figures depend on."""
    libraries = ("torch", "transformers", "onnxruntime", "openvino")
    return {
        "processor": processor_name(),
        "threads": threads,
        "load": round(os.getloadavg()[0], 1),
        "versions": {name: version(name) for name in libraries if importlib.util.find_spec(name)},
    }


def page(tables: Sequence[Mapping[str, Any]]) -> str:
    """All that was kept, as Markdown."""
    lines = [HEADER]
    for table in tables:
        versions = ", ".join(f"{name} {number}" for name, number in table["versions"].items())
        threads = "one thread" if table["threads"] == 1 else f"{table['threads']} threads"
        lines += ["", f"## {table['model']}, {table['dtype']}, {threads}: {table['processor']}", ""]
        tokens = f"{table['tokens_a_sentence']} tokens a sentence"
        lines += [f"Docstrings, {tokens}; {versions}; load {table['load']}."]
        lines += ["", "| way | processor time | clock | GFLOP/s | share of products | distance | sentences |"]
        lines += ["| --- | ---: | ---: | ---: | ---: | ---: | ---: |"]
        lines += [
            f"| {row['way']} | {row['ours_over_it']:.2f} | {row['by_clock']:.2f} | {row['gflops']:.0f} | "
            f"{row['share_of_products']:.0%} | {row['distance']:.1e} | {row['sentences']} |"
            for row in table["rows"]
        ]
    return "\n".join(lines) + "\n"


def keep(path: Path, table: Mapping[str, Any]) -> None:
    """Put a table among those that are kept, in place of its rows that were measured before."""
    kept = json.loads(path.read_text()) if path.exists() else []
    new = {row["way"] for row in table["rows"]}
    rows = [row for row in rows_of(kept, table) if row["way"] not in new] + table["rows"]
    order = [OURS, *WAYS]
    whole = {**table, "rows": sorted(rows, key=lambda row: order.index(row["way"]))}
    kept = [each for each in kept if not same(each, table)] + [whole]
    kept.sort(key=lambda each: [str(each[key]) for key in KEY])
    write_json(path, kept)
    write_text(path.with_suffix(".md"), page(kept))


def same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two tables are of the same conditions."""
    return all(one[key] == other[key] for key in KEY)


def rows_of(kept: Sequence[Mapping[str, Any]], table: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows that are kept of a table."""
    return [row for each in kept if same(each, table) for row in each["rows"]]


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, known in (("models", tuple(SENTENCES)), ("dtypes", DTYPES), ("ways", tuple(WAYS))):
        parser.add_argument(f"--{name}", nargs="+", choices=known, default=known, metavar="NAME", help="; ".join(known))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--resume", action="store_true", help="only what the file of results lacks")
    parser.add_argument("--output", type=Path, default=Path(__file__).parent, help="folder of the results")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    logging.getLogger("bertflow").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    kept_at, material = options.output / "cpu_backends.json", Material()
    for model in options.models:
        folder = material.encoders[model][0]
        with tempfile.TemporaryDirectory() as scratch:
            encoder, exported = transformer(folder), Path(scratch) / "onnx"
            text = encoder.tokenized(material.draw(SENTENCES[model]))
            for dtype in options.dtypes:
                table = {**conditions(options.threads), "model": model, "dtype": dtype}
                table["tokens_a_sentence"] = round(float(text.lengths.mean()), 1)
                kept = json.loads(kept_at.read_text()) if options.resume and kept_at.exists() else []
                known = {row["way"] for row in rows_of(kept, table)}
                ways = [way for way in (OURS, *options.ways) if way not in known]
                if not exported.exists() and LIBRARIES.keys() & set(ways):
                    export_encoder(encoder, exported, target="onnx")
                for row in measured(Work(folder, dtype, options.threads, text, exported), ways, options.rounds):
                    print(f"{model}, {dtype}: {row}", flush=True)
                    keep(kept_at, {**table, "rows": [row]})
    print("\n" + page(json.loads(kept_at.read_text())))


if __name__ == "__main__":
    main()
