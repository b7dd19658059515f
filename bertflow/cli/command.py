"""A command is the signature of a public function.

    def sweep(model: str, tasks: str = "tuning", int8: bool = False) -> Sweep:        bertflow sweep MODEL
        '''Summary, and what else there is to say.                                      [--tasks TASKS] [--int8]
        Args: ...                                                                       [--config FILE] [--print_config]

Annotations say what can be given, the docstring is the help, the result is what is printed. Three steps:

    argv  --spelling-->  --name=value ...  --jsonargparse-->  typed arguments  --function-->  a result, printed

The first step is ours: positionals, flags, dashes and repeated options become ``--name=value``, as a file of options
holds them. The command line overrides the file, wherever ``--config`` stands in it.
"""

import inspect
import json
import sys
import time
from argparse import SUPPRESS
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, is_dataclass
from pkgutil import resolve_name
from typing import Any

from jsonargparse import (  # type: ignore[attr-defined]  # not all are in its __all__
    ActionConfigFile,
    ArgumentError,
    ArgumentParser,
    Namespace,
    set_parsing_settings,
)
from typing_extensions import is_typeddict

import bertflow
from bertflow.cli.commands import COMMANDS, Row
from bertflow.cli.next_commands import next_lines
from bertflow.cli.options import FILLED, Option, described, examples_of, options_in, options_of, plain
from bertflow.cli.printing import console, height, print_parts, say
from bertflow.cli.program import DEBUG, HELP, IMPORT, is_first_process, listed, repeat_columns, without_secrets
from bertflow.cli.spelling import PRINT, HelpFormatter, Spelling, limit_yaml, name_as_typed
from bertflow.data.lines import skip_bad
from bertflow.errors import BertflowError, RowError, ThresholdMissedError, UsageError, how_many
from bertflow.files import write_json
from bertflow.places import require_place
from bertflow.registry import flat_options

CONFIG = "config"
LONG = 12
"""Lines of an answer above which notes before it may be out of sight."""
UNREPEATED = ("output", "resume", "skip_bad")
"""Options of a training that belong to this call and not to its repetition."""


class Command:
    """One function as a command.

    Args:
        name: What follows ``bertflow`` on the command line: "sweep", or "search ask" for an action.
        row: What it is.
    """

    def __init__(self, name: str, row: Row) -> None:
        self.name, self.row = name, row
        self.function = getattr(bertflow, row.function) if isinstance(row.function, str) else row.function
        self._parameters = inspect.signature(self.function).parameters
        self._described = described(self.function)
        self.options, self.examples = [*options_of(self.function, row)], examples_of(self._described)

    def main(self, argv: Sequence[str]) -> int:
        """Run; returns the exit code.

        Raises:
            UsageError: If the command line cannot be understood; one line.
            ThresholdMissedError: If the result is less than was required.
        """
        try:
            return self._main(list(argv))
        except BertflowError as error:
            name_as_typed(error, self._spelling(self.parser()).known, self.row.places)
            raise

    def _main(self, argv: list[str]) -> int:
        begin = time.perf_counter()
        if HELP.intersection(argv):
            print(self.help(), end="")
            return 0
        if f"--{PRINT}" in argv:
            print(self.print_config([word for word in argv if word != f"--{PRINT}"]), end="")
            return 0
        arguments = self.parse(argv)
        own = {name: arguments.pop(name) for name in self.row.own}
        output, skip, as_json = map(own.get, ("output", "skip_bad", "json"))
        require_place(output, folder=True, new=True)
        arguments |= {name: fill() for name, fill in FILLED.items() if name in self._parameters}
        try:
            with skip_bad(skip) if skip else nullcontext(()) as skipped:
                result = self.function(**arguments)
        except RowError as error:
            if error.skippable and "skip_bad" in own and "--skip_bad" not in error.reason:
                error.reason += " With --skip_bad FILE such rows are left out and listed."
            raise
        if result is None or not is_first_process():
            return 0
        parts = [] if as_json else [*(result.parts() if own.get("details") else result.answer())]
        if as_json:
            print(result.to_json(), end="")
        else:
            print_parts(parts, output)
        if output:
            result.save(output)
            facts = {"arguments": argv, "seconds": round(time.perf_counter() - begin, 1), **result.run_facts()}
            write_json(output / "run.json", facts)
        if skip:
            said = f"skipped {how_many(len(skipped), 'rows')}, listed in {skip}"
            print(said, file=sys.stderr if as_json else sys.stdout)
        if height(parts) > LONG and console().is_terminal:
            repeat_columns()
        if not as_json:
            defaults = {one.parameter or one.name: one.default for one in self.options}
            given = {name: None if value == defaults.get(name) else value for name, value in arguments.items()}
            if lines := next_lines(self.name, {"output": output, **given}, result):
                say(lines, whole=True)
        if result.missed():
            raise ThresholdMissedError(result.missed())
        return int(getattr(result, "exit_code", 0))

    def parse(self, argv: Sequence[str]) -> dict[str, Any]:
        """What a command line says: the arguments of the function.

        Raises:
            UsageError: For an unknown option, a value that is not one, a missing option or file; one line.
        """
        parser, parsed = self._parsed(argv)
        missing = [self._shown(one) for one in self.options if one.required and parsed[one.name] in (None, [])]
        if missing:
            wanted = f"The following arguments are required: {', '.join(missing)}."
            raise UsageError(f"{wanted} `{self._usage()}`: {self.row.does}. {self.hint}")
        with self._explained(parser):
            built, default = parser.instantiate(parsed), parser.get_default
            arguments = {option.parameter or option.name: built[option.name] for option in self.options}
            arguments = {k: v.as_dict() if isinstance(v, Namespace) else v for k, v in arguments.items()}
            if self.row.trainer:
                arguments["options"] = json.loads(parser.dump(self._repeatable(parsed), format="json"))
                arguments["trainer"] = {k: v for k, v in built.trainer.items() if v != default(f"trainer.{k}")}
        return arguments

    def print_config(self, argv: Sequence[str]) -> str:
        """All options with their values as YAML, which ``--config`` takes; no password is shown."""
        parser, parsed = self._parsed(argv)
        shown = self._repeatable(parsed)
        for name, value in [*shown.items()]:
            shown[name] = without_secrets(name, value)
        with self._explained(parser):
            return parser.dump(shown, skip_unset=False)

    def help(self) -> str:
        """What ``--help`` prints."""
        return self.parser(helping=True).format_help()

    @property
    def hint(self) -> str:
        """Where to look when an option was refused; the help of a training does not list them all."""
        shows = f"--{PRINT}` shows all options with their values" if self.row.trainer else "--help` lists the options"
        return f"`bertflow {self.name} {shows}."

    def _parsed(self, argv: Sequence[str]) -> tuple[ArgumentParser, Namespace]:
        parser = self.parser()
        with self._explained(parser):
            words = self._spelling(parser).spell_out(argv)
            parsed = parser.parse_args(words)
            if self.row.defaults:
                implied = self.row.defaults
                found = implied if isinstance(implied, Mapping) else resolve_name(implied)(parsed)
                parser.set_defaults(dict(flat_options(found)))
                parsed = parser.parse_args(words)
        return parser, parsed

    def _spelling(self, parser: ArgumentParser) -> Spelling:
        known = {
            typed: (action.dest, getattr(action, "_typehint", str))
            for action in parser._actions
            for typed in action.option_strings
        }
        return Spelling(known, [(name, dict(known.values())[name]) for name in self.row.places], self.hint)

    @contextmanager
    def _explained(self, parser: ArgumentParser) -> Iterator[None]:
        """Whatever jsonargparse refuses, in one line."""
        try:
            yield
        except (ArgumentError, ValueError, TypeError) as error:
            if isinstance(error, BertflowError):
                raise
            raise UsageError(self._spelling(parser).explain(str(error))) from None

    def _repeatable(self, parsed: Namespace) -> Namespace:
        kept = parsed.clone()
        kept.pop(CONFIG, None)
        for name in {*UNREPEATED} & {*kept.keys()} if self.row.trainer else ():
            kept[name] = None
        return kept

    def parser(self, helping: bool = False) -> ArgumentParser:
        """The parser of ``--name=value``; for a help without all options of Lightning's Trainer, which are slow."""
        set_parsing_settings(docstring_parse_attribute_docstrings=True)
        limit_yaml()
        kind: type[ArgumentParser] = ArgumentParser
        if self.row.trainer and not helping:
            from pytorch_lightning.cli import LightningArgumentParser

            kind = LightningArgumentParser
        parser = kind(
            prog=f"bertflow {self.name}",
            usage=self._usage(),
            description=plain(self._described.description),
            epilog="\n  ".join(["examples:", *self.examples]) if self.examples else None,
            formatter_class=HelpFormatter,
            exit_on_error=False,
            allow_abbrev=False,
        )
        for option in sorted(self.options, key=lambda option: option.group is not None):
            self._add(parser, option)
        parser.add_argument("-c", f"--{CONFIG}", action=ActionConfigFile, help="YAML file of any of these options.")
        if self.row.trainer and helping:
            parser.add_argument("--trainer.OPTION", help="Any option of Lightning's Trainer: max_steps, devices, ...")
        elif self.row.trainer:
            from pytorch_lightning import Trainer

            parser.add_lightning_class_args(Trainer, "trainer")  # type: ignore[attr-defined]
        if helping:  # taken from every command line before it comes here
            own = "Import a module of yours first, for a coupling, pooling or calibrator of your own (docs/extend.md)."
            parser.add_argument(IMPORT, metavar="MODULE", help=own)
            parser.add_argument(DEBUG, action="store_true", help="Show the traceback of an error of bertflow itself.")
        for action in parser._actions:
            aliases = [f"-{action.dest}"] if len(action.dest) == 1 else self.row.aliases.get(action.dest, ())
            action.option_strings = [*dict.fromkeys((*aliases, *action.option_strings))]
            if action.dest == PRINT:
                action.help = "Print all options with their values, and stop."
            elif type(action).__name__ == "_ActionConfigLoad":
                action.help = SUPPRESS
        return parser

    def _add(self, parser: ArgumentParser, option: Option) -> None:
        if is_typeddict(option.group):
            group = parser.add_argument_group(plain(described(option.group).short_description).removesuffix("."))
            for one in options_in(option.group):
                group.add_argument(f"--{option.name}.{one.name}", type=one.kind, default=None, help=one.help)
            return
        if option.group:
            parser.add_class_arguments(option.group, option.name)
            if is_dataclass(option.default):
                parser.set_defaults(dict(flat_options({option.name: asdict(option.default)})))  # type: ignore[arg-type]
            return
        # Given by place, and as options too: so that a file of options can hold them.
        placed = option.name in self.row.places
        action: Any = (parser._positionals if placed else parser).add_argument(
            f"--{option.name}",
            dest=option.name,
            type=option.kind,
            default=option.default,
            help=option.help or " ",
            metavar=option.metavar,
        )
        action.placed = placed

    def _shown(self, option: Option) -> str:
        return option.metavar if option.name in self.row.places else f"--{option.name}"

    def _usage(self) -> str:
        words = []
        for option in self.options:
            shown = self._shown(option)
            if option.required:
                words.append(shown if shown == option.metavar else f"{shown} {option.metavar}")
            elif shown == option.metavar:
                words.append(f"[{shown}]")
        words += ["[FILE]" for name in self.row.places if "." in name]
        return " ".join(["bertflow", self.name, *words, "[options]"])


def command(name: str) -> Command:
    """The command of that name: "sweep", or "search ask" for an action."""
    first, _, action = name.partition(" ")
    return Command(name, COMMANDS[first].actions[action] if action else COMMANDS[first])


def help_of_actions(name: str) -> str:
    """What ``--help`` prints of a command that has several actions."""
    actions = COMMANDS[name].actions
    about = described(sys.modules[command(f"{name} {next(iter(actions))}").function.__module__])
    rows = listed({action: row.does for action, row in actions.items()})
    return ArgumentParser(
        usage=f"bertflow {name} ACTION [options]",
        description=about.description,
        epilog=f"{rows}\n\n`bertflow {name} ACTION --help` lists the options of one.\n\nexamples:\n  "
        + "\n  ".join(examples_of(about)),
        formatter_class=HelpFormatter,
        add_help=False,
    ).format_help()
