"""What equality over ranks means: one flow trained by one process, by the same again, and by several.

    python benchmarks/ranks.py [--worlds 2,4] [--work FOLDER]

The default flow on docstrings, embedded by the embedded encoder: the same rows, start and batches however many ranks
share a batch (gloo, CPU, one thread each). Each is set beside one process, after 3 steps and at the end:

    rank to rank    largest difference of any parameter between the ranks of one run
    parameter       largest difference of any parameter from one process; beside how far the farthest has moved
    relative        the same of a whole tensor: length of the difference / length of the tensor
    z               held-out rows through both flows: largest difference of a row, as a share of its length
    bits            held-out bits per dimension, and their difference

Writes ranks.json and ranks.md beside this file.
"""

import os
import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from study import Case, Row, Study, table
from torch import Tensor

from bertflow.data.docstrings import docstring_sentences
from bertflow.encoder.embedded import RAW_POOLING, embedded_encoder
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.training.fitting import FlowFit, mean_bits, trainer_options
from bertflow.training.recipe import resolve

SENTENCES, STEPS = 12_000, (3, 396)
ROWS, RANK = "rows.npy", "rank-of"
States = Mapping[str, Any]
"""What a rank leaves: ``start``, and for each of ``STEPS`` its parameters and what they make of the held-out rows."""


class Remember(pl.Callback):
    """Keeps what the flow is at its start and after some steps."""

    def __init__(self, fit: FlowFit) -> None:
        self.fit, self.states = fit, dict[str, Any]()

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """The start."""
        self.states["start"] = parameters(self.fit)

    @torch.no_grad()
    def on_train_batch_end(self, trainer: pl.Trainer, module: pl.LightningModule, *_: Any) -> None:
        """Some steps."""
        if trainer.global_step in STEPS:
            flow, held_out = self.fit.module.flow, self.fit.held_out
            self.states[str(trainer.global_step)] = {
                "parameters": parameters(self.fit),
                "z": flow.latent(held_out)[0],
                "bits": mean_bits(flow, held_out),
            }


def parameters(fit: FlowFit) -> dict[str, Tensor]:
    """A copy of what is trained."""
    return {name: parameter.detach().clone() for name, parameter in fit.module.flow.named_parameters()}


def train(folder: Path) -> None:
    """One rank of one run; its states go to the folder that ``BERTFLOW_RUN`` names."""
    rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    torch.set_num_threads(1)
    fit = FlowFit(np.load(folder / ROWS), resolve("default", {"epochs": 1000, "steps": STEPS[-1], "keep": "last"}))
    remember = Remember(fit)
    strategy = pl.strategies.DDPStrategy(process_group_backend="gloo") if world > 1 else "auto"
    silent = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    options = {**trainer_options(fit.recipe, len(fit.x)), **dict.fromkeys(silent, False)}
    fit.run(pl.Trainer(accelerator="cpu", devices=world, strategy=strategy, callbacks=[remember], **options))
    torch.save(remember.states, folder / f"{os.environ['BERTFLOW_RUN']}-{rank}.pt")


def run(folder: Path, name: str, world: int) -> list[States]:
    """Train by so many processes; the states of each rank."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world)] if world > 1 else []
    command = [sys.executable, *launcher, str(Path(__file__).resolve()), RANK, str(folder)]
    subprocess.run(command, check=True, env={**os.environ, "BERTFLOW_RUN": name, "OMP_NUM_THREADS": "1"})
    return [torch.load(folder / f"{name}-{rank}.pt", weights_only=True) for rank in range(world)]


def farthest(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    """The largest difference of any number in two sets of tensors."""
    return max(float((one[name].double() - other[name].double()).abs().max()) for name in one)


def compare(ranks: list[States], one: States, step: int) -> dict[str, Any]:
    """What differs after some steps."""
    mine, theirs = ranks[0][str(step)], one[str(step)]
    pairs = [(mine["parameters"][key], value) for key, value in theirs["parameters"].items()]
    return {
        "rank to rank": max(farthest(mine["parameters"], rank[str(step)]["parameters"]) for rank in ranks),
        "parameter": farthest(mine["parameters"], theirs["parameters"]),
        "moved": farthest(theirs["parameters"], one["start"]),
        "relative": max(float((a - b).norm() / b.norm()) for a, b in pairs if b.any()),
        "z": float(((mine["z"] - theirs["z"]).norm(dim=1) / theirs["z"].norm(dim=1)).max()),
        "bits": mine["bits"],
        "bits apart": abs(mine["bits"] - theirs["bits"]),
    }


def page(rows: Sequence[Row]) -> str:
    """A line for each run and step."""
    header = ("run", "steps", "rank to rank", "parameter", "moved", "relative", "z", "bits", "bits apart")
    form = {"run": "{}", "steps": "{}", "bits": "{:.6f}"}
    return table(header, ([form.get(key, "{:.1e}").format(row[key]) for key in header] for row in rows))


def cases(options: Namespace) -> Iterator[Case]:
    """One process again, and several; each is trained once for all of its steps."""
    folder = Path(mkdtemp(prefix="bertflow-"))
    sentences = docstring_sentences()
    order = np.random.default_rng(0).permutation(len(sentences))[:SENTENCES]
    encoder = TransformerEncoder(embedded_encoder(), pooling=RAW_POOLING, max_length=128)
    np.save(folder / ROWS, encoder.encode([sentences[row] for row in order]))
    trained = cache(partial(run, folder))
    names = {"one process again": 1, **{f"{world} processes": world for world in options.worlds}}
    for name, world in names.items():
        for step in STEPS:
            yield (
                {"run": name, "steps": step},
                partial(lambda *of: compare(trained(*of[:2]), trained("one process", 1)[0], of[2]), name, world, step),
            )


STUDY = Study(
    __file__,
    __doc__,
    cases,
    page,
    "",
    {"worlds": ([2, 4], "numbers of processes")},
)
if __name__ == "__main__":
    if RANK in sys.argv:
        train(Path(sys.argv[-1]))
    else:
        STUDY.main()
