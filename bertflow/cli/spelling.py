"""From what a person types to ``--name=value``, and from what the parser refuses to one line.

bertflow score FOLDER --int8 --max-length 64 --in A --in B -k5
--folder=FOLDER --int8=true --max_length=64 --sentences=["A","B"] --k=5

What has this form needs no positionals, no flags and no counts of words from the parser: types alone are its business.
"""

import json
import re
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args, get_origin

from bertflow.cli.annotations import members
from bertflow.errors import UsageError
from bertflow.registry import did_you_mean

TRUTHS = ("true", "false")
"""What a flag may be followed by; anything else after it is a word of its own."""


@dataclass(frozen=True)
class Spelling:
    """How the options of one command may be typed."""

    known: Mapping[str, tuple[str, Any]]
    """Every option as typed -> the parameter and its type."""
    places: Sequence[tuple[str, Any]]
    """The parameters that are given by place, and their types; only the last may take many words."""
    hint: str
    """What to do when something was refused."""
    bare: Mapping[str, str] = field(default_factory=dict)
    """Parameter -> what its option means without a value."""

    def spell_out(self, argv: Sequence[str]) -> list[str]:
        """The same command line as ``--name=value`` alone, files of options first.

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
            if taken := free if _takes_many(kind) else free[:1]:
                given[f"--{name}"] = [*taken]
                del free[: len(taken)]
        if free:
            raise UsageError(f"Unrecognized arguments: {' '.join(free)}. {self.hint}")
        kinds = dict([*self.known.values(), *self.places])
        return [word for name, values in given.items() for word in _joined(name, values, kinds.get(name[2:]))]

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
        if name in self.bare or bool in members(kind):
            return [self.bare.get(name, "true")]
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
            return f"The config file {found[1]} is missing. Give the path of a YAML file, as configs/default.yaml."
        if found := re.search(r"Requirement '([^']+)' not met", text):
            return f"An option needs a package that is not installed. Install it with: pip install '{found[1]}'"
        if found := re.search(r'Parser key "(.+?)":(.*)', text):
            value = re.search(r"(?:Given value|Got value): (.*)$", text)
            got = f"cannot be {value[1]}" if value else f"cannot be used: {found[2].strip()}"
            expected = re.search(r"Expected a typing\.Literal(\[.*?\])", text)
            return f"The option {found[1]} {got}. {f'Choose from {expected[1]}. ' if expected else ''}{self.hint}"
        return f"The options cannot be read: {text}. {self.hint}"

    def _unknown(self, option: str) -> str:
        option = option.split("=")[0]
        names = [name for name in self.known if name.startswith("--")]
        return f"There is no option {option}.{did_you_mean(option, names)} {self.hint}"


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
