"""What the benchmark of a GPU runs on: random models of known shapes, tokenizers made up for them, and a clock."""

import functools
import re
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoConfig, AutoModel, PreTrainedTokenizerFast

from bertflow.data.docstrings import docstring_sentences
from bertflow.encoder.architecture import quiet_transformers
from bertflow.encoder.batching import TokenizedText
from bertflow.encoder.device import PRECISIONS, TF32, tf32_products
from bertflow.encoder.transformer import TransformerEncoder

BERT, XLMR = "BERT-base", "XLM-R-large"
PEAKS: Mapping[str, float] = {"H100.*(HBM3|SXM)": 989, "H100 PCIe": 756, "H200(?!.*NVL)": 989, "A100": 312}
"""TFLOP/s of dense products in bfloat16 by the name of a device, as NVIDIA states them."""
OF_PEAK: Mapping[str, float] = {"bfloat16": 1.0, "float16": 1.0, TF32: 0.5}
"""What there is of it in other precisions, on all of these devices."""
TINY_TEXT = ["The encoder makes a vector of each sentence.", "A flow maps them.", "What is it, and why?"]
TOKENS = (5, 25)
"""Ids that random text is made of: all models have them, and they are not special."""


@dataclass(frozen=True)
class Sizes:
    """How large everything is, for a GPU.

    Attributes:
        lengths: Most tokens of a sentence.
        budgets: Batches of a text.
        seconds: How long a call is repeated.
        vocabulary: Tokens of a tokenizer, at most.
        sentences: Docstrings to tokenize.
        cores: That the tokenizer is given.
        batches: Rows of a step of the flow.
        dim: Width of these rows.
        warm: Steps that do not count.
        steps: Those that do; and as many again, of which the kernels are timed.
        product: Rows and columns of a matrix product.
        config: What of a model's config is otherwise.
    """

    lengths: tuple[int, ...] = (32, 128, 512)
    budgets: int = 8
    seconds: float = 2.0
    vocabulary: int = 8000
    sentences: int = 30_000
    cores: tuple[int, ...] = (1, 2, 4, 8, 16)
    batches: tuple[int, ...] = (32, 256, 2048, 16384)
    dim: int = 768
    warm: int = 20
    steps: int = 200
    product: int = 8192
    config: Mapping[str, int] = field(default_factory=dict)


SMALL = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
TINY = Sizes((8,), 1, 0.0, 100, 30, (1,), (8,), 16, 1, 2, 64, SMALL | {"vocab_size": 200})
"""So small that it only shows that the code runs."""
SHAPES: Mapping[str, tuple[str, Mapping[str, int]]] = {
    BERT: ("bert", {"vocab_size": 30522}),
    XLMR: (
        "xlm-roberta",
        {
            "vocab_size": 250002,
            "hidden_size": 1024,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "intermediate_size": 4096,
            "max_position_embeddings": 514,
            "type_vocab_size": 1,
        },
    ),
}
"""Kind of the model, and what of its config is not the default of transformers."""


@dataclass(eq=False)
class Bench:
    """What all parts share.

    Attributes:
        device: ``cuda`` or ``cpu``.
        sizes: How large everything is.
        dtypes: Precisions of the encoder.
        folder: Where models are written.
        rates: Tokens a second of the device by shape and length, by the fastest way.
    """

    device: str
    sizes: Sizes
    dtypes: Sequence[str]
    folder: Path
    rates: dict[tuple[str, int], float] = field(default_factory=dict)

    @property
    def on_gpu(self) -> bool:
        """Whether the device is a GPU."""
        return self.device == "cuda"

    @functools.cached_property
    def name(self) -> str:
        """What results are kept under."""
        return torch.cuda.get_device_name() if self.on_gpu else "CPU, tiny models"

    def wait(self) -> None:
        """Until the device has done all that it was given."""
        if self.on_gpu:
            torch.cuda.synchronize()

    def seconds(self, call: Callable[[], object]) -> float:
        """Median time of a call, made for some seconds and at least twice, after one that does not count."""
        times: list[float] = []
        while len(times) < 3 or sum(times[1:]) < self.sizes.seconds:
            begin = time.perf_counter()
            call()
            self.wait()
            times.append(time.perf_counter() - begin)
        return statistics.median(times[1:])

    @functools.cached_property
    def sentences(self) -> list[str]:
        """Docstrings in random order, which every machine has."""
        found = docstring_sentences() if self.on_gpu else TINY_TEXT * self.sizes.sentences
        return [found[i] for i in np.random.default_rng(0).permutation(len(found))[: self.sizes.sentences]]

    def model(self, shape: str) -> Path:
        """Folder of a random model of that shape, and of its tokenizer; written once."""
        place = self.folder / shape
        if not place.exists():
            kind, config = SHAPES[shape]
            torch.manual_seed(0)
            with quiet_transformers(), torch.device(self.device):
                made = AutoConfig.for_model(kind, **{**config, **self.sizes.config})
                AutoModel.from_config(made, dtype=torch.bfloat16).save_pretrained(place)
            made_up_tokenizer(shape, self.sentences, self.sizes.vocabulary).save_pretrained(place)
        return place

    def encoder(self, shape: str, dtype: str) -> TransformerEncoder:
        """A random model, opened by the package."""
        return TransformerEncoder(self.model(shape), "mean", max(self.sizes.lengths), self.device, dtype)

    @functools.cache  # noqa: B019 - there is one
    def products(self, dtype: str) -> float:
        """TFLOP/s of one large matrix product."""
        n, kind = self.sizes.product, PRECISIONS[dtype]
        left, right = (torch.randn(n, n, device=self.device, dtype=kind) for _ in range(2))
        with tf32_products() if dtype == TF32 else nullcontext():
            return 2 * n**3 / self.seconds(lambda: left @ right) / 1e12

    def peak(self, dtype: str) -> float:
        """TFLOP/s that the device is said to reach; where that is not known, what a product reaches."""
        said = next((peak for pattern, peak in PEAKS.items() if re.search(pattern, self.name)), 0.0)
        return said * OF_PEAK.get(dtype, 0.0) or self.products(dtype)


def made_up_tokenizer(shape: str, text: Sequence[str], size: int) -> PreTrainedTokenizerFast:
    """A tokenizer of the kind that such a model has, learned from some text: WordPiece, or Unigram."""
    made: Tokenizer
    learner: Any
    if shape == BERT:
        special = pad, unknown, first, last = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
        made = Tokenizer(models.WordPiece(unk_token=unknown))
        made.normalizer, made.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
        learner = trainers.WordPieceTrainer(vocab_size=size, special_tokens=special, show_progress=False)
    else:
        special = first, pad, last, unknown = ["<s>", "<pad>", "</s>", "<unk>"]
        made = Tokenizer(models.Unigram())
        made.normalizer, made.pre_tokenizer = normalizers.NFKC(), pre_tokenizers.Metaspace()
        learner = trainers.UnigramTrainer(
            vocab_size=size, special_tokens=special, unk_token=unknown, show_progress=False
        )
    made.train_from_iterator(text, learner)
    ids = [(token, made.token_to_id(token)) for token in (first, last)]
    made.post_processor = processors.TemplateProcessing(single=f"{first} $A {last}", special_tokens=ids)
    names = {"pad_token": pad, "unk_token": unknown, "cls_token": first, "sep_token": last}
    return PreTrainedTokenizerFast(tokenizer_object=made, **names)


def random_text(longest: int, tokens: int) -> TokenizedText:
    """Sentences of half of ``longest`` to all of it, evenly, with about this many ``tokens`` in all."""
    draw = np.random.default_rng(0)
    lengths = draw.integers(longest // 2, longest, size=max(2, 4 * tokens // (3 * longest)), endpoint=True)
    starts = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    ids = draw.integers(*TOKENS, size=int(starts[-1]), dtype=np.int32)
    return TokenizedText(ids, np.zeros(len(ids), np.bool_), starts, 0)
