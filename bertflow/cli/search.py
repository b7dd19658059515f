"""``bertflow search``: rank known answers for a question; one function an action."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from bertflow.api import searching
from bertflow.cli import listed
from bertflow.cli.command import Command
from bertflow.errors import UsageError
from bertflow.registry import did_you_mean
from bertflow.retrieval.example import write_search_example

ABOUT = """\
Keep answers, with the questions they answered before, in one file; rank them for a new question. Raw embeddings are
kept beside the calibrated ones, so that another calibrator needs no second pass of the encoder.

`ask`, `evaluate` and `info` also take a collection of a database, by the folder that `bertflow reindex` wrote or by its
address, as lancedb:FOLDER/TABLE."""
EXAMPLES = """\
  bertflow search example faq
  bertflow search build faq.index --answers faq/answers.jsonl --model runs/mine
  bertflow search ask faq.index "How do I stop it?" -k 5
  bertflow search evaluate faq.index --labels faq/labels.jsonl
  bertflow search recalibrate faq.index --model runs/better"""


@dataclass(frozen=True)
class Actions:
    """Several commands under one name: ``bertflow search build``."""

    name: str
    about: str
    """What they are for."""
    actions: Mapping[str, Command]
    """In the order of the help."""
    examples: str = ""

    def main(self, argv: Sequence[str]) -> int:
        """Run the action that comes first; returns the exit code.

        Raises:
            UsageError: If there is none, or none of that name.
        """
        action, *rest = argv or [""]
        if action in ("-h", "--help"):
            print(self.help())
            return 0
        if action not in self.actions:
            meant = did_you_mean(action, self.actions)
            got = f"Unknown action {action!r} of bertflow {self.name}." if action else "An action is wanted, got none."
            raise UsageError(f"{got}{meant} Known: {', '.join(self.actions)}.")
        return self.actions[action].main(rest)

    def help(self) -> str:
        """What ``--help`` prints."""
        rows = listed({name: one.summary for name, one in self.actions.items()})
        examples = f"\n\nexamples:\n{self.examples}" if self.examples else ""
        return (
            f"usage: bertflow {self.name} ACTION [options]\n\n{self.about}\n\n{rows}\n\n"
            f"`bertflow {self.name} ACTION --help` lists the options of one.{examples}"
        )


METAVARS = {"ids": "ID", "candidate_lists": "FILE"}


def _action(name: str, function: Callable[..., Any], *places: str, **options: Any) -> Command:
    return Command(f"search {name}", function, positionals=places or ("index",), metavars=METAVARS, **options)


main = Actions(
    "search",
    ABOUT,
    {
        "build": _action("build", searching.build_index, skips=True),
        "add": _action("add", searching.add_answers, skips=True),
        "update": _action("update", searching.update_answers, skips=True),
        "remove": _action("remove", searching.remove_answers, "index", "ids"),
        "recalibrate": _action("recalibrate", searching.recalibrate_index),
        "ask": _action("ask", searching.search, "index", "question", aliases={"k": ["-k"]}, json=True),
        "evaluate": _action("evaluate", searching.evaluate_search, skips=True, aliases={"k": ["-k"]}, json=True),
        "info": _action("info", searching.describe_index, json=True),
        "example": Command("search example", write_search_example, positionals=["folder"], metavars={"answers": "N"}),
    },
    EXAMPLES,
).main
