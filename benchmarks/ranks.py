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

import argparse
import logging
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytorch_lightning as pl
import torch
from torch import Tensor

from bertflow.data.docstrings import docstring_sentences
from bertflow.encoder.embedded import RAW_POOLING, embedded_encoder
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.files import write_json, write_text
from bertflow.training.fitting import FlowFit, mean_bits, trainer_options
from bertflow.training.recipe import resolve

HERE = Path(__file__).parent
SENTENCES, STEPS = 12_000, (3, 396)
ROWS = "rows.npy"
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
    logging.info("%s", name)
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world)] if world > 1 else []
    command = [sys.executable, *launcher, str(Path(__file__).resolve()), "--rank-of", str(folder)]
    subprocess.run(command, check=True, env={**os.environ, "BERTFLOW_RUN": name, "OMP_NUM_THREADS": "1"})
    return [torch.load(folder / f"{name}-{rank}.pt", weights_only=True) for rank in range(world)]


def farthest(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    """The largest difference of any number in two sets of tensors."""
    return max(float((one[name].double() - other[name].double()).abs().max()) for name in one)


def compare(name: str, ranks: list[States], one: States) -> list[dict[str, Any]]:
    """One row for each of ``STEPS``."""
    rows = []
    for step in map(str, STEPS):
        mine, theirs = ranks[0][step], one[step]
        pairs = [(mine["parameters"][key], value) for key, value in theirs["parameters"].items()]
        rows.append(
            {
                "run": name,
                "steps": int(step),
                "rank to rank": max(farthest(mine["parameters"], rank[step]["parameters"]) for rank in ranks),
                "parameter": farthest(mine["parameters"], theirs["parameters"]),
                "moved": farthest(theirs["parameters"], one["start"]),
                "relative": max(float((a - b).norm() / b.norm()) for a, b in pairs if b.any()),
                "z": float(((mine["z"] - theirs["z"]).norm(dim=1) / theirs["z"].norm(dim=1)).max()),
                "bits": mine["bits"],
                "bits apart": abs(mine["bits"] - theirs["bits"]),
                "start apart": farthest(ranks[0]["start"], one["start"]),
            }
        )
    return rows


def to_markdown(rows: list[dict[str, Any]]) -> str:
    """A line for each run and step."""
    exact = ("rank to rank", "parameter", "moved", "relative", "z", "bits apart")
    header = ["run", "steps", *exact[:2], "moved", *exact[3:5], "bits", "bits apart"]
    lines = [f"| {' | '.join(header)} |", f"|---|{'---:|' * (len(header) - 1)}"]
    for row in rows:
        cells = [
            f"{row[key]:.1e}" if key in exact else f"{row[key]:.6f}" if key == "bits" else str(row[key])
            for key in header
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Embed, train, compare, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--worlds", default="2,4", help="numbers of processes")
    parser.add_argument("--work", type=Path, help="where the embeddings and the states are kept (default: nowhere)")
    parser.add_argument("--rank-of", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    if options.rank_of:
        train(options.rank_of)
        return
    with TemporaryDirectory() as scratch:
        folder = (options.work or Path(scratch)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        order = np.random.default_rng(0).permutation(len(sentences := docstring_sentences()))[:SENTENCES]
        encoder = TransformerEncoder(embedded_encoder(), pooling=RAW_POOLING, max_length=128)
        np.save(folder / ROWS, encoder.encode([sentences[row] for row in order]))
        (one,) = run(folder, "one process", 1)
        rows = compare("one process again", run(folder, "one process again", 1), one)
        for world in map(int, options.worlds.split(",")):
            rows += compare(f"{world} processes", run(folder, f"{world} processes", world), one)
    write_json(HERE / "ranks.json", rows)
    write_text(HERE / "ranks.md", to_markdown(rows))
    print(to_markdown(rows), end="")


if __name__ == "__main__":
    main()
