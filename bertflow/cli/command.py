"""A command is the signature of a public function.

    def sweep(model: str, tasks: str = "tuning", int8: bool = False) -> Sweep:        bertflow sweep MODEL
        '''Summary, and what else there is to say.                                      [--tasks TASKS] [--int8]
        Args: ...                                                                       [--config FILE] [--print_config]

Annotations say what can be given, the docstring is the help, the result is what is printed. Three steps:

    argv  --spelling-->  --name=value ...  --jsonargparse-->  typed arguments  --function-->  a result, printed

The first step is ours: positionals, flags, dashes and repeated options become ``--name=value``, so that a file of
options can hold all of them. The command line overrides the file, wherever ``--config`` stands in it.
"""

import inspect
import json
import sys
import time
from argparse import SUPPRESS
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, is_dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import docstring_parser
from jsonargparse import (  # type: ignore[attr-defined]  # not all are in its __all__
    ActionConfigFile,
    ArgumentError,
    ArgumentParser,
    Namespace,
    set_parsing_settings,
)

from bertflow.cli import DEBUG, is_first_process, print_result, without_secrets
from bertflow.cli.spelling import METAVARS, PRINT, HelpFormatter, Spelling, command_line_type, members, plain
from bertflow.cli.yaml_limits import limit_yaml
from bertflow.data.skipping import skip_bad
from bertflow.errors import BertflowError, ThresholdMissedError, UsageError
from bertflow.files import require_place, write_json
from bertflow.progress import watched
from bertflow.registry import flat_options

CONFIG, OUTPUT, JSON, SKIP = "config", "output", "json", "skip_bad"
"""Options that are not the function's."""
UNREPEATED = (OUTPUT, "resume", SKIP)
"""Options of a training that belong to this call and not to its repetition."""
FILLED: Mapping[str, Callable[[], Any]] = {
    "progress": lambda: watched() or None,
    "say": lambda: lambda line: print(line, flush=True),
}
"""Parameters that a command fills itself: whether to show bars, and where lines go that come before the result."""


@dataclass(frozen=True)
class Option:
    """A parameter that a command line can give."""

    name: str
    kind: Any
    """Its annotation, as far as a command line can say it."""
    default: Any
    help: str
    required: bool = False
    parameter: str = ""
    """The parameter of the function; that of the same name where it is empty."""

    @property
    def grouped(self) -> bool:
        """Whether it is a dataclass, whose fields are the options: ``--data.sentences``."""
        return any(map(is_dataclass, members(self.kind)))


@dataclass(frozen=True)
class Command:
    """One function as a command."""

    name: str
    """What follows ``bertflow`` on the command line: "sweep", or "search ask" for an action."""
    function: Callable[..., Any]
    """Public, and imported without torch; heavy imports are inside it."""
    positionals: Sequence[str] = ()
    """Parameters that are given by place, or fields of one, as ``data.pairs``; their annotations say how many."""
    aliases: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Other spellings of parameters: ``{"k": ["-k"], "sentences": ["--in"]}``."""
    named: Mapping[str, str] = field(default_factory=dict)
    """Parameters whose option has another name: ``{"text": "data"}`` for ``--data.sentences``."""
    metavars: Mapping[str, str] = field(default_factory=dict)
    """What stands for the value in the help, where it is neither as in ``METAVARS`` nor the name in capitals."""
    bare: Mapping[str, str] = field(default_factory=dict)
    """What an option means when it is given without a value."""
    python_only: Sequence[str] = ()
    """Parameters with a default that the command line leaves alone, besides those whose annotation it cannot say."""
    saves: str = ""
    """If not empty: ``--output DIR`` saves the result there, and this is its help."""
    skips: bool = False
    """Whether it reads rows: ``--skip_bad FILE`` leaves out those that cannot be used."""
    json: bool = False
    """Whether there is ``--json``, which prints the result as JSON."""
    examples: str = ""
    """Command lines, shown below the help."""
    trainer: bool = False
    """Whether it trains: ``--trainer.*`` are the options of Lightning's Trainer, and those that were set go to
    ``trainer=``; ``options=`` takes all options as a tree, ready for JSON and YAML, for a run that can be repeated."""
    preset: Callable[[Namespace], Mapping[str, Any]] | None = None
    """Given what was parsed, the defaults that it implies, as a tree; with them the command line is parsed again."""

    def main(self, argv: Sequence[str]) -> int:
        """Run; returns the exit code.

        Raises:
            UsageError: If the command line cannot be understood; one line.
            ThresholdMissedError: If the result is less than was required.
        """
        begin, argv = time.perf_counter(), list(argv)
        if any(word in ("-h", "--help") for word in argv):
            print(self.help(), end="")
            return 0
        if f"--{PRINT}" in argv:
            print(self.print_config([word for word in argv if word != f"--{PRINT}"]), end="")
            return 0
        arguments = self.parse(argv)
        output, as_json = arguments.pop(OUTPUT, None) if self.saves else None, self.json and arguments.pop(JSON)
        require_place(output, folder=True)
        arguments |= {name: fill() for name, fill in FILLED.items() if name in self._parameters}
        skip = arguments.pop(SKIP) if self.skips else None
        with skip_bad(skip) if skip else nullcontext(()) as skipped:
            result = self.function(**arguments)
        if result is None or not is_first_process():
            return 0
        if as_json:
            print(result.to_json(), end="")
        else:
            print_result(result)
        if output:
            result.save(output)
            facts = {"arguments": argv, "seconds": round(time.perf_counter() - begin, 1), **result.run_facts()}
            write_json(output / "run.json", facts)
        if skip:
            print(f"skipped {len(skipped):,} rows, listed in {skip}", file=sys.stderr if as_json else sys.stdout)
        if not as_json:
            from bertflow.cli.then import next_lines  # not for --help

            print(next_lines(self.name, self.function, {OUTPUT: output, **arguments}, result), end="")
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
            raise UsageError(f"The following arguments are required: {', '.join(missing)}. {self.hint}")
        with self._explained(parser):
            built = parser.instantiate(parsed)
            arguments = {option.parameter or option.name: built[option.name] for option in self.options}
            if self.trainer:
                arguments["options"] = json.loads(parser.dump(self._repeatable(parsed), format="json"))
        if self.trainer:
            arguments["trainer"] = {k: v for k, v in built.trainer.items() if v != parser.get_default(f"trainer.{k}")}
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
        return self._parser(helping=True).format_help()

    @cached_property
    def _parameters(self) -> Mapping[str, inspect.Parameter]:
        return inspect.signature(self.function).parameters

    @cached_property
    def _described(self) -> docstring_parser.Docstring:
        return docstring_parser.parse(inspect.getdoc(self.function) or "", docstring_parser.DocstringStyle.GOOGLE)

    @cached_property
    def options(self) -> list[Option]:
        """What can be given, in the order of the signature."""
        helps = {param.arg_name: plain(param.description) for param in self._described.params}
        options = []
        for name, parameter in self._parameters.items():
            if name in (*FILLED, *self.python_only, *(("trainer", "options") if self.trainer else ())):
                continue
            if parameter.kind is parameter.VAR_KEYWORD:
                options += [one for one in _named_by(parameter.annotation) if one.name not in self.python_only]
                continue
            kind = command_line_type(parameter.annotation, self.function.__globals__)
            required = parameter.default is inspect.Parameter.empty
            if kind is None or parameter.kind is parameter.VAR_POSITIONAL:
                assert not required, f"{self.name}: no command line can say the parameter {name}"
                continue
            default = None if required else parameter.default
            options.append(Option(self.named.get(name, name), kind, default, helps.get(name, ""), required, name))
        own = (
            (self.saves, Option(OUTPUT, Path, None, self.saves)),
            (self.skips, Option(SKIP, Path, None, "Leave out rows that cannot be used, and list them in this file.")),
            (self.json, Option(JSON, bool, False, "Print JSON instead of tables.")),
        )
        return [*options, *(option for wanted, option in own if wanted)]

    @property
    def summary(self) -> str:
        """What it does, in one sentence."""
        return plain(self._described.short_description)

    @property
    def called(self) -> str:
        """How the command is called."""
        return f"bertflow {self.name}"

    @property
    def hint(self) -> str:
        """Where to look when an option was refused; the help of a training does not list them all."""
        shows = f"--{PRINT}` shows all options with their values" if self.trainer else "--help` lists the options"
        return f"`{self.called} {shows}."

    def _parsed(self, argv: Sequence[str]) -> tuple[ArgumentParser, Namespace]:
        parser = self._parser()
        with self._explained(parser):
            words = self._spelling(parser).spell_out(argv)
            parsed = parser.parse_args(words)
            if self.preset:
                parser.set_defaults(dict(flat_options(self.preset(parsed))))
                parsed = parser.parse_args(words)
        return parser, parsed

    def _spelling(self, parser: ArgumentParser) -> Spelling:
        known = {
            typed: (action.dest, getattr(action, "_typehint", str))
            for action in parser._actions
            for typed in action.option_strings
        }
        return Spelling(known, [(name, dict(known.values())[name]) for name in self.positionals], self.hint, self.bare)

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
        for name in {*UNREPEATED} & {*kept.keys()} if self.trainer else ():
            kept[name] = None
        return kept

    def _parser(self, helping: bool = False) -> ArgumentParser:
        set_parsing_settings(docstring_parse_attribute_docstrings=True)
        limit_yaml()
        kind: type[ArgumentParser] = ArgumentParser
        if self.trainer and not helping:
            from pytorch_lightning.cli import LightningArgumentParser

            kind = LightningArgumentParser
        parser = kind(
            prog=self.called,
            usage=self._usage(),
            description=plain(self._described.description),
            epilog=f"examples:\n{self.examples}" if self.examples else None,
            formatter_class=HelpFormatter,
            exit_on_error=False,
            allow_abbrev=False,
        )
        for option in sorted(self.options, key=lambda option: option.grouped):
            self._add(parser, option)
        parser.add_argument("-c", f"--{CONFIG}", action=ActionConfigFile, help="YAML file of any of these options.")
        if self.trainer and helping:
            parser.add_argument("--trainer.OPTION", help="Any option of Lightning's Trainer: max_steps, devices, ...")
        elif self.trainer:
            from pytorch_lightning import Trainer

            parser.add_lightning_class_args(Trainer, "trainer")  # type: ignore[attr-defined]
        if helping:  # taken from every command line before it comes here
            parser.add_argument(DEBUG, action="store_true", help="Show the traceback of an error of bertflow itself.")
        for action in parser._actions:
            action.option_strings = [*dict.fromkeys((*action.option_strings, *self.aliases.get(action.dest, ())))]
            if action.dest == PRINT:
                action.help = "Print all options with their values, and stop."
            elif type(action).__name__ == "_ActionConfigLoad":
                action.help = SUPPRESS
        return parser

    def _add(self, parser: ArgumentParser, option: Option) -> None:
        if option.grouped:
            (shape,) = (one for one in members(option.kind) if is_dataclass(one))
            parser.add_class_arguments(shape, option.name)
            if is_dataclass(option.default):
                parser.set_defaults(dict(flat_options({option.name: asdict(option.default)})))  # type: ignore[arg-type]
            return
        # Given by place, and as options too: so that a file of options can hold them.
        container = parser._positionals if option.name in self.positionals else parser
        action: Any = container.add_argument(
            *self.aliases.get(option.name, ()),
            f"--{option.name}",
            dest=option.name,
            type=option.kind,
            default=option.default,
            help=option.help or " ",
            metavar=self._metavar(option),
        )
        action.placed = option.name in self.positionals

    def _metavar(self, option: Option) -> str:
        choices = f"{{{','.join(map(str, get_args(option.kind)))}}}" if get_origin(option.kind) is Literal else ""
        shared = next((shown for shown, names in METAVARS.items() if option.name in names), "")
        return self.metavars.get(option.name, choices or shared or option.name.upper())

    def _shown(self, option: Option) -> str:
        return self._metavar(option) if option.name in self.positionals else f"--{option.name}"

    def _usage(self) -> str:
        words = []
        for option in self.options:
            placed, metavar = option.name in self.positionals, self._metavar(option)
            if option.required:
                words.append(metavar if placed else f"--{option.name} {metavar}")
            elif placed:
                words.append(f"[{metavar}]")
        words += [f"[{self.metavars[name]}]" for name in self.positionals if "." in name]
        return " ".join([self.called, *words, "[options]"])


def _named_by(annotation: Any) -> list[Option]:
    """The options of ``**options: Unpack[SomeTypedDict]``, whose docstring explains them."""
    (shape,) = get_args(annotation)
    described = docstring_parser.parse(inspect.getdoc(shape) or "", docstring_parser.DocstringStyle.GOOGLE)
    kinds, names = inspect.get_annotations(shape), vars(sys.modules[shape.__module__])
    return [
        Option(one.arg_name, command_line_type(kinds[one.arg_name], names), None, plain(one.description))
        for one in described.params
    ]
