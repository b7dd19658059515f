"""``bertflow search``: rank known answers for a question; one function an action."""

from collections.abc import Callable
from typing import Any

from bertflow.cli.actions import Actions
from bertflow.cli.command import Command
from bertflow.retrieval import (
    add_answers,
    build_index,
    describe_index,
    recalibrate_index,
    remove_answers,
    update_answers,
    write_search_example,
)
from bertflow.retrieval.searching import evaluate_search, search

ABOUT = """\
Keep answers, with the questions they answered before, in one file; rank them for a new question. Raw embeddings are
kept beside the calibrated ones, so that another calibrator needs no second pass of the encoder."""
EXAMPLES = """\
  bertflow search example faq
  bertflow search build faq.index --answers faq/answers.jsonl --model runs/mine
  bertflow search ask faq.index "How do I stop it?" -k 5
  bertflow search evaluate faq.index --labels faq/labels.jsonl
  bertflow search recalibrate faq.index --model runs/better"""
METAVARS = {"answers": "FILE", "labels": "FILE", "ids": "ID"}


def _action(name: str, function: Callable[..., Any], *places: str, **options: Any) -> Command:
    return Command(f"search {name}", function, positionals=places or ("index",), metavars=METAVARS, **options)


main = Actions(
    "search",
    ABOUT,
    {
        "build": _action("build", build_index),
        "add": _action("add", add_answers),
        "update": _action("update", update_answers),
        "remove": _action("remove", remove_answers, "index", "ids"),
        "recalibrate": _action("recalibrate", recalibrate_index),
        "ask": _action("ask", search, "index", "question", aliases={"k": ["-k"]}, json=True),
        "evaluate": _action("evaluate", evaluate_search, aliases={"k": ["-k"]}, json=True),
        "info": _action("info", describe_index, json=True),
        "example": Command("search example", write_search_example, positionals=["folder"], metavars={"answers": "N"}),
    },
    EXAMPLES,
).main
