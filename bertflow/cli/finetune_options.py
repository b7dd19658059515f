"""The options of ``bertflow finetune``: from a YAML file and the command line to objects."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jsonargparse import ActionConfigFile, ArgumentError  # type: ignore[attr-defined]  # not in its __all__
from pytorch_lightning import Trainer
from pytorch_lightning.cli import LightningArgumentParser

from bertflow.cli.train_options import SEE, EncoderOptions, explain, option_names, repeatable
from bertflow.errors import BertflowError, UsageError
from bertflow.finetuning.recipe import FinetuneRecipe
from bertflow.finetuning.siamese import require_float32_weights


@dataclass(frozen=True)
class PairOptions:
    """The pairs to learn from."""

    pairs: list[str] | str | None = None
    """File or files of pairs."""
    tasks: str | None = None
    """For regression: STS tasks."""
    data_dir: str | None = None
    """Where STS tasks lie."""
    classes: list[str] | None = None
    """Names of the classes; those of NLI where none are given."""
    only: str | None = None
    """For in-batch-negatives from labelled pairs: the class whose pairs belong together."""
    top_score: float = 5.0
    """The highest score in the files."""
    leave_out: str | None = None
    """STS tasks; pairs that hold one of their sentences are dropped."""
    max_pairs: int | None = None
    """A random sample of so many."""


@dataclass(frozen=True)
class FinetuneOptions:
    """All options of one run."""

    output: str | None
    resume: str | None
    seed: int
    data: PairOptions
    encoder: EncoderOptions
    recipe: FinetuneRecipe
    trainer: Mapping[str, Any] = field(repr=False)
    """Those of the Trainer that were set."""
    config: str = field(repr=False)
    """Everything as YAML, ready to be given again."""
    values: Mapping[str, Any] = field(repr=False)
    """The same as a tree, ready for JSON."""


def parse_options(argv: Sequence[str]) -> FinetuneOptions:
    """Read the options.

    Raises:
        UsageError: For an unknown option, a value that is not one, or a file that is missing; one line.
    """
    parser = _build_parser()
    try:
        parsed = parser.parse_args(list(argv))
        built = parser.instantiate(parsed)
    except (ArgumentError, ValueError, TypeError) as error:
        if isinstance(error, BertflowError):
            raise
        raise UsageError(explain(str(error), option_names(parser)).replace(SEE, HINT)) from None
    trainer = {name: value for name, value in built.trainer.items() if value != parser.get_default(f"trainer.{name}")}
    if built.encoder.dtype not in (None, "float32"):
        raise UsageError(
            f"Weights are trained in float32, but encoder.dtype is {built.encoder.dtype}. Leave it out; "
            "--trainer.precision bf16-mixed computes in half precision."
        )
    if "precision" in trainer:
        require_float32_weights(trainer["precision"])
    return FinetuneOptions(
        built.output,
        built.resume,
        built.seed_everything,
        built.data,
        built.encoder,
        built.finetune,
        trainer,
        parser.dump(repeatable(parsed)),
        json.loads(parser.dump(repeatable(parsed), format="json")),
    )


HINT = "`bertflow finetune --print_config` shows all options with their values."


def _build_parser() -> LightningArgumentParser:
    parser = LightningArgumentParser(prog="bertflow finetune", exit_on_error=False, allow_abbrev=False)
    parser.add_argument("-c", "--config", action=ActionConfigFile, help="YAML file of options.")
    parser.add_argument("--output", type=str | None, default=None, help="The run folder.")
    parser.add_argument("--resume", type=str | None, default=None, help="auto, or a checkpoint of a run.")
    parser.add_argument("--seed_everything", type=int, default=0, help="The seed of everything random.")
    parser.add_class_arguments(PairOptions, "data")
    parser.add_class_arguments(EncoderOptions, "encoder")
    parser.add_class_arguments(FinetuneRecipe, "finetune")
    parser.add_lightning_class_args(Trainer, "trainer")
    return parser
