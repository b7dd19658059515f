"""The options of ``train.py``: from a YAML file and the command line to objects.

A preset is a row of defaults: options are parsed once to learn which preset is meant, and again with its row as the
defaults. So a config holds only what differs from its preset, and the config that a run keeps is complete.
"""

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

from jsonargparse import ActionConfigFile, ArgumentError, Namespace  # type: ignore[attr-defined]  # not in its __all__
from pytorch_lightning import Trainer
from pytorch_lightning.cli import LightningArgumentParser

from bertflow.errors import BertflowError, UsageError
from bertflow.training.module import require_precision
from bertflow.training.presets import Recipe, resolve


@dataclass(frozen=True)
class DataOptions:
    """The text to fit on; the docstrings of installed packages where none is given."""

    sentences: list[str] | str | None = None
    """File or files of sentences: txt, tsv, csv, jsonl, parquet, hub:owner/name."""
    columns: list[str] | None = None
    """Columns of a table that hold text; found by their names where none are given."""
    tasks: str | None = None
    """Instead: the unlabelled sentences of STS tasks; with the paper's presets pair by pair, repeats and all."""
    data_dir: str | None = None
    """Where the tasks lie."""
    max_sentences: int | None = None
    """A random sample of so many."""
    store: str | None = None
    """Folder where the embeddings rest: made if it is new, continued if it was begun, read if it is whole."""


@dataclass(frozen=True)
class EncoderOptions:
    """The encoder; the embedded one where none is given."""

    model: str | None = None
    """Hub id or folder."""
    pooling: str | None = None
    """A name or a row written out; the preset's where none is given, else the folder's."""
    max_length: int | None = None
    """Tokens a sentence; the preset's where none is given."""
    device: str = "auto"
    """auto, cpu, cuda, ..."""
    dtype: str | None = None
    """Of the encoder's weights: float32, float16, bfloat16. The flow's are float32 in any case."""
    revision: str | None = None
    """Branch, tag or commit, for a hub id."""
    prompt: str | None = None
    """Put in front of every sentence."""


@dataclass(frozen=True)
class TrainOptions:
    """All options of one run."""

    output: str | None
    resume: str | None
    """"auto", or a checkpoint; see ``bertflow.runs.resume``."""
    seed: int
    save_encoder: bool
    report: bool
    data: DataOptions
    encoder: EncoderOptions
    recipe: Recipe
    trainer: Mapping[str, Any] = field(repr=False)
    """Those of the Trainer that were set."""
    config: str = field(repr=False)
    """Everything as YAML, ready to be given again."""
    values: Mapping[str, Any] = field(repr=False)
    """The same as a tree, ready for JSON."""


def parse_options(argv: Sequence[str]) -> TrainOptions:
    """Read the options.

    Raises:
        UsageError: For an unknown option, a value that is not one, or a file that is missing; one line.
    """
    parser = build_parser()
    try:
        first = parser.parse_args(list(argv)).flow
        named = {} if first.epochs == Recipe.epochs else {"epochs": first.epochs}  # which lifts the limit of steps
        parser.set_defaults(_as_defaults(resolve(first.preset, named)))
        parsed = parser.parse_args(list(argv))
        built = parser.instantiate(parsed)
    except ArgumentError as error:
        raise UsageError(explain(str(error), option_names(parser))) from None
    except (ValueError, TypeError) as error:
        if isinstance(error, BertflowError):
            raise
        raise UsageError(explain(str(error), option_names(parser))) from None
    trainer = {name: value for name, value in built.trainer.items() if value != parser.get_default(f"trainer.{name}")}
    if "precision" in trainer:
        require_precision(trainer["precision"])
    return TrainOptions(
        output=built.output,
        resume=built.resume,
        seed=built.seed_everything,
        save_encoder=built.save_encoder,
        report=built.report,
        data=built.data,
        encoder=built.encoder,
        recipe=built.flow,
        trainer=trainer,
        config=parser.dump(repeatable(parsed)),
        values=json.loads(parser.dump(repeatable(parsed), format="json")),
    )


def build_parser() -> LightningArgumentParser:
    """The parser, its defaults those of the preset "default"."""
    parser = LightningArgumentParser(prog="train.py", exit_on_error=False, allow_abbrev=False)
    parser.add_argument("-c", "--config", action=ActionConfigFile, help="YAML file of options.")
    parser.add_argument("--output", type=str | None, default=None, help="The run folder.")
    parser.add_argument("--resume", type=str | None, default=None, help="auto, or a checkpoint of a run.")
    parser.add_argument("--seed_everything", type=int, default=0, help="The seed of everything random.")
    parser.add_argument("--save_encoder", type=bool, default=True, help="Whether the run folder keeps the encoder.")
    parser.add_argument("--report", type=bool, default=True, help="Whether the run ends with a report in pictures.")
    parser.add_class_arguments(DataOptions, "data")
    parser.add_class_arguments(EncoderOptions, "encoder")
    parser.add_class_arguments(Recipe, "flow")
    parser.add_lightning_class_args(Trainer, "trainer")
    return parser


def explain(message: str, known: Sequence[str]) -> str:
    """What the parser refused, in one line: what was got, and what to do."""
    text = " ".join(message.split())
    if found := re.search(r"unrecognized arguments: (\S+)", text):
        return _unknown(found[1], known)
    if found := re.search(r"Group '(.+?)' does not accept option '(.+?)'", text):
        return _unknown(f"--{found[1]}.{found[2]}", known)
    if found := re.search(r"Option '(.+?)' is not accepted", text):
        return _unknown(f"--{found[1]}", known)
    if found := re.search(r"File does not exist: '(.+?)'", text):
        return f"The config file {found[1]} is missing. Give the path of a YAML file, as configs/default.yaml."
    if found := re.search(r"Requirement '([^']+)' not met", text):
        return f"An option needs a package that is not installed. Install it with: pip install '{found[1]}'"
    if found := re.search(r'Parser key "(.+?)":(.*)', text):
        value = re.search(r"(?:Given value|Got value): (.*)$", text)
        got = f"cannot be {value[1]}" if value else f"cannot be used: {found[2].strip()}"
        expected = re.search(r"Expected a typing\.Literal(\[.*?\])", text)
        return f"The option {found[1]} {got}. {f'Choose from {expected[1]}. ' if expected else ''}{SEE}"
    return f"The options cannot be read: {text}. {SEE}"


SEE = "`python train.py --print_config` shows all options with their values."


def _unknown(option: str, known: Sequence[str]) -> str:
    option = option.split("=")[0]
    close = difflib.get_close_matches(option, known, n=1)
    hint = f" Did you mean {close[0]}?" if close else ""
    return f"There is no option {option}.{hint} {SEE}"


def option_names(parser: LightningArgumentParser) -> list[str]:
    """Every option of a parser."""
    return [name for action in parser._actions for name in action.option_strings if name.startswith("--")]


def _as_defaults(recipe: Recipe) -> dict[str, Any]:
    row = asdict(recipe)
    glow = row.pop("glow")
    return {f"flow.{name}": value for name, value in row.items()} | {f"flow.glow.{k}": v for k, v in glow.items()}


def repeatable(parsed: Namespace) -> Namespace:
    """What another run can be given: neither this run's folder, nor the files that the options came from."""
    kept = parsed.clone()
    kept["output"] = kept["resume"] = None
    with suppress(KeyError):
        del kept["config"]
    return kept
