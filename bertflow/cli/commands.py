"""The commands, a row each; nothing slow is imported for them, so that ``bertflow --help`` is instant.

A command is a public function: its signature, annotations and docstring say what can be given and are the help, and its
result is what is printed. A row says the rest.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Row:
    """One command, or several actions under one name."""

    does: str
    """What it does, in the list of all commands."""
    function: str | Callable[..., Any] = ""
    """Its function; a string names a public one of bertflow."""
    places: Sequence[str] = ()
    """Parameters that are given by place, or fields of one, as ``data.pairs``; their annotations say how many."""
    own: Sequence[str] = ()
    """Options of the command that are not the function's: names of ``OWN``."""
    aliases: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Other spellings of parameters: ``{"sentences": ["--in"]}``."""
    named: Mapping[str, str] = field(default_factory=dict)
    """Parameters whose option has another name: ``{"text": "data"}`` for ``--data.sentences``."""
    python_only: Sequence[str] = ()
    """Parameters with a default that the command line leaves alone, besides those whose annotation it cannot say."""
    defaults: Mapping[str, Any] | str = field(default_factory=dict)
    """Defaults of the command line alone, as a tree; or ``module:function``, which takes what was parsed. With them the
    command line is parsed again."""
    trainer: bool = False
    """Whether it trains: ``--trainer.*`` are the options of Lightning's Trainer, and those that were set go to
    ``trainer=``; ``options=`` takes all options as a tree, ready for JSON and YAML, for a run that can be repeated."""
    actions: "Mapping[str, Row]" = field(default_factory=dict)
    """Commands under this name: ``bertflow search build``; the docstring of their module says what they are for."""


OWN: Mapping[str, tuple[type, Any, str]] = {
    "output": (Path, None, "New folder for the result in JSON and Markdown, and run.json."),
    "skip_bad": (Path, None, "Leave out rows that cannot be used, and list them in this file."),
    "json": (bool, False, "Print JSON instead of tables."),
    "details": (bool, False, "Print every number, instead of what matters first."),
}
"""Options that are not the function's: annotation, default and help."""
COMMANDS: Mapping[str, Row] = {
    "demo": Row("calibrate a small real BERT, and show what improves (minutes)", "demo", own=("details",)),
    "fix": Row(
        "look at the cosines, and write a better encoder if one is found",
        "fix",
        ("encoder", "text"),
        ("skip_bad", "details"),
        defaults={"output": "fixed"},
    ),
    "train": Row(
        "fit a flow to the embeddings of an encoder",
        "train",
        ("data.sentences",),
        ("skip_bad",),
        named={"text": "data", "seed": "seed_everything"},
        defaults="bertflow.api.training:flow_defaults",
        trainer=True,
    ),
    "finetune": Row(
        "fine-tune an encoder on labeled pairs, as SBERT does",
        "finetune",
        ("data.pairs",),
        ("skip_bad",),
        aliases={"finetune.objective": ("--objective",)},
        named={"pairs": "data", "recipe": "finetune", "seed": "seed_everything"},
        trainer=True,
    ),
    "embed": Row("embed a corpus once, into a store that can be resumed", "embed", ("text",), ("skip_bad",)),
    "fit": Row("fit a calibrator to a store, or to a file of vectors", "fit", (), ("skip_bad",)),
    "transform": Row("calibrate a store, or a file of vectors", "transform", (), ("skip_bad",)),
    "reindex": Row(
        "calibrate a collection of a database into a new one", "reindex", ("source", "target"), ("skip_bad", "json")
    ),
    "adapt": Row(
        "write a query encoder for an index that stays as it is", "adapt", ("model", "text"), ("skip_bad", "json")
    ),
    "evaluate": Row(
        "score encoders, raw and calibrated, on STS tasks, a search or pairs",
        "evaluate",
        ("models",),
        ("output", "skip_bad", "details"),
    ),
    "sweep": Row(
        "find the best layer and pooling for an encoder and your data",
        "sweep",
        ("model",),
        ("output", "skip_bad", "details"),
        python_only=("pooling",),
    ),
    "verify-paper": Row(
        "reproduce the published figures of bert-base-uncased", "verify_paper", ("model",), ("output",)
    ),
    "paper-tables": Row(
        "reproduce tables 2 and 3 of the BERT-flow paper on your encoders", "paper_tables", ("models",)
    ),
    "inspect": Row(
        "report the geometry of an encoder, before and after calibration",
        "inspect_geometry",
        ("model",),
        ("skip_bad", "details"),
        defaults="bertflow.api.looking:report_place",
    ),
    "tokens": Row(
        "show how text is split into tokens, and their input embeddings",
        "inspect_tokens",
        ("texts",),
        ("json", "details"),
    ),
    "words": Row(
        "compare static and contextual vectors of words",
        "compare_words",
        ("words",),
        ("json", "details"),
        aliases={"sentences": ("--in",)},
    ),
    "compare": Row(
        "show what two encoders find for the same queries, side by side",
        "compare",
        ("first", "second", "text"),
        ("output", "skip_bad", "json", "details"),
    ),
    "export": Row("write a folder for sentence-transformers, ONNX or safetensors", "export_encoder", ("model",)),
    "score": Row(
        "score pairs of sentences, and detect text out of domain",
        "score",
        ("encoder", "pairs"),
        ("skip_bad", "details"),
    ),
    "search": Row(
        "keep known answers in an index, and rank them for a question",
        actions={
            "build": Row("embed answers into a new index", "build_index", ("index",), ("skip_bad",)),
            "add": Row("add answers under new ids", "add_answers", ("index",), ("skip_bad",)),
            "update": Row("replace answers by id", "update_answers", ("index",), ("skip_bad",)),
            "remove": Row("remove answers by id", "remove_answers", ("index", "ids")),
            "recalibrate": Row("send the raw embeddings through another calibrator", "recalibrate_index", ("index",)),
            "ask": Row("rank the answers for a question", "search", ("index", "question"), ("json", "details")),
            "evaluate": Row("compute hit@k, MRR and MAP", "evaluate_search", ("index",), ("skip_bad", "json")),
            "info": Row("say what is in an index or a collection", "describe_index", ("index",), ("json", "details")),
            "example": Row("write answers, labels and text to try a search on", "write_search_example", ("folder",)),
        },
    ),
    "serve": Row("serve embeddings over HTTP", "serve_encoder", ("model",)),
    "doctor": Row("find out why the embeddings of a server differ from yours", "diagnose", (), ("json",)),
}
"""The commands, in the order of the help."""
