"""``train.py`` and ``bertflow train``: fit a flow to an encoder and text; the result is a run folder."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from bertflow.api.training import train
from bertflow.cli.command import Command
from bertflow.training.recipe import Recipe, preset_for, resolve


def preset_defaults(parsed: Any) -> Mapping[str, Any]:
    """The options that a preset stands for; a number of epochs that was given lifts its limit of steps."""
    given = {} if parsed.flow.epochs == Recipe.epochs else {"epochs": parsed.flow.epochs}
    return {"flow": asdict(resolve(preset_for(parsed.flow.preset, parsed.purpose), given))}


command = Command(
    "train",
    train,
    named={"text": "data", "seed": "seed_everything"},
    positionals=("data.sentences",),
    metavars={"data.sentences": "FILE"},
    trainer=True,
    preset=preset_defaults,
    skips=True,
    examples="""\
  bertflow train --config configs/default.yaml
  bertflow train text.txt --encoder.model bert-base-uncased --output runs/mine
  bertflow train text.txt --encoder.model bert-base-uncased --purpose search --output runs/search
  torchrun --nproc_per_node 2 -m bertflow train --config configs/default.yaml --data.store store --output runs/mine""",
)
main = command.main
