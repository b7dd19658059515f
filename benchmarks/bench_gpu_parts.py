"""What the benchmark of a GPU measures: the encoder, its tokenizer, both together, and the step of a flow."""

import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from bench_gpu_material import BERT, SHAPES, Bench, Sizes, random_text
from bench_timing import Result, flops
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile
from transformers import AutoTokenizer

from bertflow.encoder.batching import TokenizedText, tokenize
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.files import write_text
from bertflow.training.flow_fit import FlowFit, trainer_options
from bertflow.training.recipe import PRESETS
from bertflow.training.trainer import quiet_trainer

SHARE, OVER_KERNELS = 50.0, 1.5
"""Percent of the bfloat16 peak that BERT-base should reach on real tokens; a flow's step over its kernels' own time."""
TEXT = "sentences.json"
ROUNDS = 3


def encoding(bench: Bench) -> Iterator[Result]:
    """The encoder on tokens that are there already, which is what the GPU can do."""
    for shape in SHAPES:
        for dtype in bench.dtypes:
            encoder, peak = bench.encoder(shape, dtype), bench.peak(dtype)
            for longest in bench.sizes.lengths:
                share, facts = of_encoder(bench, encoder, longest, peak)
                bench.rates[shape, longest] = max(bench.rates.get((shape, longest), 0.0), facts["tokens/s"])
                floor = SHARE if (shape, dtype) == (BERT, "bfloat16") else None
                name = f"{shape}, up to {longest} tokens, {dtype}"
                yield Result(name, share, target=floor, unit="%", facts=facts)


def of_encoder(bench: Bench, encoder: TransformerEncoder, longest: int, peak: float) -> tuple[float, dict[str, Any]]:
    """Percent of the peak that goes into real tokens, and what else sentences of one kind show."""
    text = random_text(longest, bench.sizes.budgets * encoder.budget.tokens)
    gc.collect()  # models that were measured before
    if bench.on_gpu:
        torch.cuda.reset_peak_memory_stats()
    seconds = bench.seconds(lambda: run(encoder, text))
    facts = {
        "sentences/s": len(text.lengths) / seconds,
        "tokens/s": len(text.ids) / seconds,
        "GPU-hours a million sentences": 1e6 * seconds / len(text.lengths) / 3600,
    }
    if bench.on_gpu:
        facts["peak GiB"] = torch.cuda.max_memory_allocated() / 2**30
    return 100 * flops(text.lengths, encoder.model.config) / seconds / (1e12 * peak), facts


@torch.no_grad()
def run(encoder: TransformerEncoder, text: TokenizedText) -> None:
    """Embed a text; the embeddings stay on the device."""
    for _ in encoder.budget.run(text, encoder.spec.folder.pad_id, encoder.embed_batch):
        pass


def tokenizing(bench: Bench) -> Iterator[Result]:
    """The tokenizer by its number of cores, against the GPU."""
    folders = [bench.model(shape) for shape in SHAPES]
    write_text(bench.folder / TEXT, json.dumps(bench.sentences))
    cores = [n for n in bench.sizes.cores if n <= (os.cpu_count() or 1)]
    rates = {n: in_a_process(folders, n) if bench.on_gpu else tokens_a_second(folders) for n in cores}
    for number, shape in enumerate(SHAPES):
        of_cores = {n: found[number] for n, found in rates.items()}
        for longest in bench.sizes.lengths:
            if (device := bench.rates.get((shape, longest))) is None:
                continue  # the encoder was not measured in this run
            enough = next((str(n) for n, rate in of_cores.items() if rate >= device), f"more than {cores[-1]}")
            facts: dict[str, Any] = {f"tokens/s, cores: {n}": rate for n, rate in of_cores.items()}
            facts |= {"tokens/s of the GPU": device, "cores that suffice": enough}
            floor = 1.0 if cores[-1] >= Sizes.cores[-1] else None
            yield Result(f"{shape}, up to {longest} tokens", of_cores[cores[-1]] / device, target=floor, facts=facts)


def in_a_process(folders: Iterable[Path], cores: int) -> list[float]:
    """``tokens_a_second`` in a process that has this many cores: the tokenizer counts them once, in the beginning."""
    environment = {**os.environ, "RAYON_NUM_THREADS": str(cores), "TOKENIZERS_PARALLELISM": "true"}
    command = [sys.executable, __file__, *map(str, folders)]
    said = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE, text=True).stdout
    found: list[float] = json.loads(said.splitlines()[-1])
    return found


def tokens_a_second(folders: Iterable[Path]) -> list[float]:
    """How fast the package tokenizes, by the tokenizer of each model."""
    found = []
    for folder in folders:
        sentences, tokenizer = json.loads((folder.parent / TEXT).read_text()), AutoTokenizer.from_pretrained(folder)
        times = []
        for _ in range(ROUNDS):
            begin = time.perf_counter()
            tokens = len(tokenize(sentences, tokenizer, None).ids)
            times.append(time.perf_counter() - begin)
        found.append(tokens / median(times))
    return found


def together(bench: Bench) -> Iterator[Result]:
    """A whole call of ``encode`` on text, against the device alone: what tokenizing ahead leaves of the waiting."""
    for shape in SHAPES:
        encoder = bench.encoder(shape, bench.dtypes[0])
        text = encoder.tokenized(bench.sentences)
        whole = bench.seconds(lambda: encoder.encode(bench.sentences, progress=False))  # noqa: B023 - called here
        alone = bench.seconds(lambda: run(encoder, text))  # noqa: B023
        facts = {"sentences/s": len(bench.sentences) / whole, "tokens a sentence": float(text.lengths.mean())}
        yield Result(f"{shape}, {bench.dtypes[0]}, docstrings", whole / alone, facts=facts)


class Watch(pl.Callback):
    """Times some steps of a fit, and then the kernels of as many more.

    Attributes:
        seconds: A step, by the clock.
        profile: What the device did in the others.
    """

    def __init__(self, bench: Bench) -> None:
        self._bench, self.seconds = bench, 0.0
        self.profile = profile(activities=[ProfilerActivity.CUDA if bench.on_gpu else ProfilerActivity.CPU])

    def on_train_batch_end(self, trainer: pl.Trainer, *_: Any) -> None:
        """After a step."""
        sizes = self._bench.sizes
        if trainer.global_step == sizes.warm:
            self._bench.wait()
            self.seconds = -time.perf_counter()
        elif trainer.global_step == sizes.warm + sizes.steps:
            self._bench.wait()
            self.seconds = (self.seconds + time.perf_counter()) / sizes.steps
            self.profile.start()
        elif trainer.global_step == sizes.warm + 2 * sizes.steps:
            self._bench.wait()
            self.profile.stop()

    def kernels(self) -> tuple[float, float]:
        """Seconds that the kernels of a step take by themselves, and how many there are; operators on a CPU."""
        kind, steps = DeviceType.CUDA if self._bench.on_gpu else DeviceType.CPU, self._bench.sizes.steps
        own = [each for each in self.profile.key_averages() if each.device_type == kind and not each.is_user_annotation]
        times = [each.self_device_time_total if self._bench.on_gpu else each.self_cpu_time_total for each in own]
        return sum(times) / 1e6 / steps, sum(each.count for each in own) / steps


def flow_steps(bench: Bench) -> Iterator[Result]:
    """A step of a fit of the default flow, Lightning included, against the time of its kernels alone."""
    sizes = bench.sizes
    for batch in sizes.batches:
        draw = np.random.default_rng(0)
        x = draw.standard_normal((max(8 * batch, 20 * sizes.dim), sizes.dim), dtype=np.float32)
        recipe = replace(PRESETS["similarity-2"], n_components="all", held_out=0.0, keep="last", batch_size=batch)
        fit, watch = FlowFit(x * (1 + np.arange(sizes.dim, dtype=np.float32)), recipe), Watch(bench)
        options = {
            "accelerator": "gpu" if bench.on_gpu else "cpu",
            "callbacks": [watch],
            "log_every_n_steps": 50,  # as in a fit of many batches an epoch
            "max_epochs": -1,
            "max_steps": sizes.warm + 2 * sizes.steps,
        }
        fit.run(quiet_trainer(trainer_options(fit.recipe, len(x)), options))
        own, kernels = watch.kernels()
        if not own:
            raise SystemExit(
                "torch.profiler saw no kernel, so there is nothing to compare a step with. Update PyTorch."
            )
        facts = {"step, ms": 1e3 * watch.seconds, "kernels, ms": 1e3 * own, "kernels a step": kernels}
        name = f"the default flow, {sizes.dim} wide, batch {batch}"
        yield Result(name, watch.seconds / own, target=OVER_KERNELS, at_most=True, facts=facts)


if __name__ == "__main__":
    print(json.dumps(tokens_a_second(map(Path, sys.argv[1:]))))
