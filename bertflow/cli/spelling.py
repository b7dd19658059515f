"""What a person types -> ``--name=value``, in which the parser needs no positionals, no flags and no counts.

    bertflow score FOLDER --int8 --max-length 64 --in A --in B -k5
    --folder=FOLDER --int8=true --max_length=64 --sentences=["A","B"] --k=5

Values are YAML, which is read within limits. And how the help shows what can be typed, and an error what cannot.
"""

import json
import re
from argparse import SUPPRESS, Action
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import Any, get_args, get_origin

import yaml
from jsonargparse import ActionConfigFile, DefaultHelpFormatter, get_loader, set_loader  # type: ignore[attr-defined]

from bertflow.cli.options import members, plain
from bertflow.errors import BertflowError, RowError, UsageError
from bertflow.registry import did_you_mean, flat_options

PRINT = "print_config"
TRUTHS = ("true", "false")
"""What a flag may be followed by; anything else after it is a word of its own."""
BARE: Mapping[str, str] = {"lexical": "stsb-dev", "published": ""}
"""What an option means when it is given without a value."""
FILES: Mapping[str, str] = {"--text": "Text is given by", "--answers": "Answers are given by"}
"""Options for a file that is given by place in other commands."""
WANTED: Mapping[Any, str] = {int: "a whole number", float: "a number", bool: "true or false"}
"""Types of values, in words."""
CHARACTERS, DEPTH = 2**22, 50
"""Largest length of a text of YAML, and number of levels in it."""
OPTION_BEFORE = re.compile(r"(?:[Oo]ption|[Ll]eave|Choose another|One of|One of \w+ and) $")
"""Words before the name of an option."""
OPTION_AFTER = re.compile(r" (?:should be|cannot be|takes?|is for|is written|needs?|means|reads|fits|belongs?) ")
"""Words after a name with which a sentence begins."""
_read: Any = get_loader("yaml")


@dataclass(frozen=True)
class Spelling:
    """How the options of one command may be typed."""

    known: Mapping[str, tuple[str, Any]]
    """Every option as typed -> the parameter and its type."""
    places: Sequence[tuple[str, Any]]
    """The parameters that are given by place, and their types; only the last may take many words."""
    hint: str
    """What to do when something was refused."""

    def spell_out(self, argv: Sequence[str]) -> list[str]:
        """The command line as ``--name=value`` alone, files of options first.

        Raises:
            UsageError: If a value is missing, or a word has no place.
        """
        given: dict[str, list[str]] = {"--config": []}
        free: list[str] = []
        words = deque(argv)
        while words:
            word = words.popleft()
            if word == "--":
                free += words
                break
            if not _is_option(word):
                free.append(word)
                continue
            typed, has_value, value = word.partition("=")
            if word[:2] in self.known:  # -k5
                typed, has_value, value = word[:2], word[2:], word[2:].removeprefix("=")
            name, kind = self._named(typed)
            values = [value] if has_value else self._values(name, kind, words)
            given.setdefault(f"--{name}", []).extend(values)
        for name, kind in self.places:
            if "." in name and f"--{name}" in given:
                continue  # a field of a group is given by place or by name: of both, one would be lost
            if taken := free if _takes_many(kind) else free[:1]:
                given[f"--{name}"] = [json.dumps(taken)] if "." in name and len(taken) > 1 else [*taken]
                del free[: len(taken)]
        if free:
            by = [f" {words} {name} {free[0]}." for name, words in FILES.items() if name in self.known]
            meant = by[0] if by and Path(free[0]).is_file() else ""
            raise UsageError(f"Unrecognized arguments: {' '.join(free)}.{meant} {self.hint}")
        kinds = dict([*self.known.values(), *self.places])
        if wrong := next(filter(None, map(self._mistake, given["--config"])), ""):
            raise UsageError(wrong)
        return [word for name, values in given.items() for word in _joined(name, values, kinds.get(name[2:]))]

    def _mistake(self, path: str) -> str:
        """What a file of options holds in the place of options, in words; the rest is left to the parser."""
        try:
            held = _read_small(Path(path).read_text("utf-8"))
        except (OSError, ValueError, yaml.YAMLError):
            return ""
        if not isinstance(held, Mapping):
            got = "nothing" if held is None else repr(held)
            return f"The config file {path} should hold options, as 'name: value', got {got}. Leave it out."
        options = [name for name, _ in self.known.values() if not name.endswith(".help")]
        for name, value in flat_options(held):
            below = next((one.removeprefix(f"{name}.") for one in options if one.startswith(f"{name}.")), "")
            if below and not isinstance(value, str):
                return f"'{name}' in {path} should hold options, as '{name}: {{{below}: ...}}', got {value!r}."
        return ""

    def _named(self, typed: str) -> tuple[str, Any]:
        underscored = f"--{typed[2:].replace('-', '_')}" if typed.startswith("--") else typed
        unknown = (typed.removeprefix("--"), None)  # the parser will tell: it may be of a class that is chosen
        return self.known.get(typed) or self.known.get(underscored) or unknown

    def _values(self, name: str, kind: Any, words: deque[str]) -> list[str]:
        """The words that belong to an option, which are taken away."""
        is_flag = set(members(kind)) <= {bool, type(None)} and kind is not None
        follows = bool(words) and not _is_option(words[0])
        if is_flag:
            return [words.popleft() if follows and words[0].lower() in TRUTHS else "true"]
        count = _length(kind)
        if count > 1 and len(words) >= count and not any(_is_option(words[at]) for at in range(count)):
            return [json.dumps([words.popleft() for _ in range(count)], ensure_ascii=False)]
        if count == 1 and follows:
            return [words.popleft()]
        if kind is None:
            return [""]
        if name in BARE or bool in members(kind):
            return [BARE.get(name, "true")]
        wanted = "a value" if count == 1 else f"{count} values"
        raise UsageError(f"The option --{name} needs {wanted}. {self.hint}")

    def explain(self, message: str) -> str:
        """What the parser refused, in one line: what was got, and what to do."""
        text = " ".join(message.split())
        if found := re.search(r"unrecognized arguments: (\S+)", text):
            return self._unknown(found[1])
        if found := re.search(r"Group '(.+?)' does not accept option '(.+?)'", text):
            return self._unknown(f"--{found[1]}.{found[2]}")
        if found := re.search(r"Option '(.+?)' is not accepted", text):
            return self._unknown(f"--{found[1]}")
        if found := re.search(r"File does not exist: '(.+?)'", text):
            near = ", ".join(sorted(path.name for path in Path(found[1]).parent.glob("*.yaml")))
            there = f" Its folder has {near}." if near else ""
            return (
                f"The config file {found[1]} is missing.{there} Give the path of a YAML file, as configs/default.yaml."
            )
        if found := re.search(r"Requirement '([^']+)' not met", text):
            return f"An option needs a package that is not installed. Install it with: pip install '{found[1]}'"
        if found := re.search(r'key "(.+?)":.*\.(\w+)\': the following arguments are required: (\w+)', text):
            return f"{found[2]} needs --{found[1]}.{found[3]} as well. {self.hint}"
        if found := re.search(r'Parser key "(.+?)":(.*)', text):
            value = re.search(r"(?:Given value|Got value): (.*)$", text)
            got = f"cannot be {value[1]}" if value else f"cannot be used: {found[2].strip()}"
            expected = re.search(r"Expected a typing\.Literal(\[.*?\])", text)
            choices = re.findall(r"'([^']+)'", expected[1]) if expected else []
            meant = f"Choose from {', '.join(choices)}.{did_you_mean(value[1], choices)} " if value and choices else ""
            kinds = {*members(dict(self.known.values()).get(found[1]))} - {type(None)}
            if kinds <= {*WANTED}:
                meant = f"It should be {' or '.join(words for one, words in WANTED.items() if one in kinds)}. "
            return f"The option {found[1]} {got}. {meant}{self.hint}"
        return f"The options cannot be read: {text}. {self.hint}"

    def _unknown(self, option: str) -> str:
        option = option.split("=")[0]
        names = [name for name in self.known if name.startswith("--")]
        return f"There is no option {option}.{did_you_mean(option, names)} {self.hint}"


def name_as_typed(error: BertflowError, known: Iterable[str], places: Sequence[str]) -> None:
    """Let a message name the ``known`` options as they are typed; what is given by place is not one."""
    options = [one[2:] for one in known if one.startswith("--")]
    if isinstance(error, RowError):
        error.reason = as_typed(error.reason, options, places)
    else:
        error.args = (as_typed(str(error), options, places),)


def as_typed(message: str, options: Sequence[str], places: Sequence[str]) -> str:
    """A message about parameters of a function, with ``--`` before those that are options.

    A name that is also a common word is one where options are spoken of, as in "Leave labels out."
    """
    short = [one.rpartition(".")[2] for one in options]
    full = {name: one for name, one in zip(short, options, strict=True) if short.count(name) == 1}
    full |= {one: one for one in options}

    def dashed(found: re.Match[str]) -> str:
        before, after, option = message[: found.start()], message[found.end() :], full[found[0]]
        spoken = OPTION_BEFORE.search(before) or (OPTION_AFTER.match(after) and (not before or before.endswith(". ")))
        return (
            f"{'--'[: len(option)]}{option}"
            if {"_", "."} & {*found[0]} or (spoken and option not in places)
            else found[0]
        )

    names = "|".join(map(re.escape, sorted(full, key=len, reverse=True)))
    return re.sub(rf"(?<![\w./'\"-])(?:{names})(?![\w/'\"=(]|\.\w)", dashed, message)


def _is_option(word: str) -> bool:
    return bool(re.match(r"--?[A-Za-z][\w.+-]*(=|$)", word))  # neither -1 nor a sentence that begins with a dash


def _length(kind: Any) -> int:
    """How many words an option takes: two for a ``tuple[str, str]``."""
    lengths = [
        len(get_args(one)) for one in members(kind) if get_origin(one) is tuple and Ellipsis not in get_args(one)
    ]
    return max(lengths, default=1)


def _takes_many(kind: Any) -> bool:
    return any(one is list or get_origin(one) is list for one in members(kind))


def _joined(name: str, values: Sequence[str], kind: Any) -> Iterator[str]:
    """One word for all values of a list, and one for each of anything else, the last of which counts.

    An option of a group, such as ``--data.sentences``, is repeated to be overridden: there the last counts as well.
    """
    if "." in name:
        values = values[-1:]
    is_list = all(one in (list, type(None)) or get_origin(one) is list for one in members(kind))
    if _takes_many(kind) and (len(values) > 1 or (is_list and not values[0].startswith("["))):
        yield f"{name}={json.dumps(values, ensure_ascii=False)}"
    else:
        yield from (f"{name}={value}" for value in values)


class HelpFormatter(DefaultHelpFormatter):
    """Help without types: what a value can be is in the text."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        """Paragraphs are filled; a command line is broken before options, so that it can still be copied."""
        text = re.sub(r"(?<=\S)\n(?=\S)", " ", text)
        text = re.sub(rf"^(?=.{{{width}}})( .{{,{width - 2}}}) (?=--)", r"\1 \\\n      ", text, flags=re.M)
        return "".join(f"{line if line[:1] == ' ' else fill(line, width)}\n" for line in text.splitlines())

    def _get_help_string(self, action: Action) -> str:
        text, default = plain(action.help), action.default
        is_nothing = default is None or default is False or default in ("", (), SUPPRESS)
        if is_nothing or isinstance(action, ActionConfigFile) or "(default" in text:
            return text
        shown = "true" if default is True else default
        return f"{text} (default: {shown})".lstrip()

    def _format_action_invocation(self, action: Action) -> str:
        if getattr(action, "placed", False):
            return str(action.metavar)
        if getattr(action, "_typehint", None) is bool and action.default is False:
            return ", ".join(action.option_strings)
        if action.dest == PRINT:
            return f"--{PRINT}"
        action.option_strings = [typed for typed in action.option_strings if not typed.endswith("+")]
        return super()._format_action_invocation(action)


def limit_yaml() -> None:
    """Let jsonargparse refuse YAML that nests without end, or in which a few lines mean billions of values."""
    set_loader("yaml", _read_small, (yaml.YAMLError,))


def _read_small(text: str) -> Any:
    """The value of a text, in which an alias may only stand for a word or a number."""
    if len(text) > CHARACTERS:
        raise yaml.YAMLError(f"it has {len(text):,} characters, and {CHARACTERS:,} are read at most")
    depth, words = 0, set[str]()
    for event in yaml.parse(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
        anchor = str(getattr(event, "anchor", None))
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > DEPTH or (isinstance(event, yaml.AliasEvent) and anchor not in words):
            raise yaml.YAMLError(f"it has more than {DEPTH} levels, or an alias of a list. Write the list out")
        words = words | {anchor} if isinstance(event, yaml.ScalarEvent) else words - {anchor}
    return _read(text)
