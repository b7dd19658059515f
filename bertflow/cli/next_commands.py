"""What to do next: the command lines that are printed below what a command has left or shown.

They work as they stand, with the paths that were given or written, quoted for the shell, and a new place for what they
write themselves. Where that takes a FILE of the user's, it is said in words.
"""

from collections.abc import Callable, Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from bertflow.cli.program import IMPORT, imported
from bertflow.data import DOCSTRINGS
from bertflow.encoder.embedded import embedded_encoder
from bertflow.errors import MissingExtraError
from bertflow.evaluation.names import distinct_names, split_name
from bertflow.next_steps import Reader, Words, command_line, new_place, option_words, steps_after
from bertflow.registry import several

Given = Mapping[str, Any]
"""The arguments of a command's function by name, None for what is as by default."""
LABELED = "to see what is better, label pairs of a query and its text: "
"""Words before a command with a file that only the user has, with the columns query and text."""
QUESTION = "How does it work?"
"""Question to a new index."""


def next_lines(name: str, given: Given, result: Any) -> str:
    """``next:`` with the command lines, one below the other; empty for a command without a row.

    Args:
        name: The command, "search build" for an action.
        given: Its arguments.
        result: What it gave back.
    """
    lines = [*map(_typed, STEPS.get(name, lambda *_: ())(given, result))]
    return "\nnext: " + "\n      ".join(lines) if lines else ""


def _typed(words: Words) -> str:
    """A command with the modules that this one imported; what is said in words as it is."""
    own = [word for module in imported for word in (IMPORT, module)]
    return command_line(words if isinstance(words, str) else [*words, *own])


def _options(given: Given, *names: str) -> list[object]:
    """The options of that name that were given, as words."""
    return option_words(**{name: given.get(name) for name in names})


def _after(model: object, fixed: str = "fixed", **how: Any) -> list[Words]:
    """What comes after an encoder, here: with what is installed, and names that are free."""
    example = new_place("example")
    serves = all(find_spec(name) for name in ("starlette", "uvicorn", "prometheus_client"))
    before, output = ["search", "example", example], ["--output", new_place(fixed)]
    return steps_after(model, Reader(serves, example / "text.txt", before, output), **how)


def _is_calibrated(model: Any, revision: str | None = None, or_saved: bool = False) -> bool:
    from bertflow.opening import SAVED, find  # loaded by then: a command has come to its end

    kind = find(str(model), revision)[1]
    return kind.calibrated or (or_saved and kind.called == SAVED)


def _has_scores(model: object) -> bool:
    """Whether a folder has percentiles: fix or score wrote it."""
    return (Path(str(model)) / "scores.json").exists()


def _look(model: Any, given: Given) -> list[Words]:
    """The geometry of an encoder, which may be raw; what bertflow wrote keeps its options."""
    raw = not _is_calibrated(model, given.get("revision"), or_saved=True)
    return [["inspect", model, *(_options(given, "pooling", "max_length") if raw else [])]]


def _demo(given: Given, demo: Any) -> list[Words]:
    encoder = demo.folder / "encoder"
    return [
        ["score", encoder, demo.everyday, "--false_match_rate", 0.01] if _has_scores(encoder) else ["inspect", encoder],
        ["export", encoder, "--target", "sentence-transformers", "--output", new_place(demo.folder / "exported")],
        ["search", "example", new_place(demo.folder / "search")],
    ]


def _fix(given: Given, advice: Any) -> list[Words]:
    folder, vectors = advice.folder, given["vectors"]
    if advice.asked is not None:
        rows = _options(given, "vectors", "column", "query_vectors")
        named = [*rows, *_options(given, "columns", "purpose", "queries", "pooling", "max_length")]
        read = [one for one in (given["encoder"], given["text"]) if one is not None]  # of vectors, the text alone
        again = ["fix", *read, *named, "--labels", folder / "ask.csv"]
        return [f"once the scores are filled in: {_typed([*again, '--output', new_place(f'{folder}-labeled')])}"]
    if (encoder := folder / "encoder").is_dir():
        if given["purpose"] == "search" or (given["purpose"] == "all" and given.get("queries")):
            index = new_place(folder / "text.index")
            columns = advice.text.columns and advice.text.columns.as_answers()
            read = option_words(answers=given["text"], columns=columns)
            return [["search", "build", index, *read, "--model", encoder]]
        pairs = f"to score a table of pairs: {_typed(['score', encoder, 'FILE'])}"
        scored = given["purpose"] == "similarity" or not advice.exported  # then percentiles are all that is new
        return [pairs] if scored else _after(encoder)
    if vectors is None:
        return [["inspect", given["encoder"]]]
    if (made := folder / "calibrator").is_dir():
        place = new_place(folder / f"calibrated{_ending(vectors)}")
        rows = ["--store" if Path(str(vectors)).is_dir() else "--vectors", vectors, *_options(given, "column")]
        mapped: list[Words] = [["transform", "--calibrator", made, *rows, "--output", place]]
        if queries := given.get("query_vectors"):
            to = new_place(folder / f"calibrated-queries{_ending(queries)}")
            mapped += [["transform", "--calibrator", made, "--vectors", queries, "--role", "query", "--output", to]]
        return mapped
    return []


def _train(given: Given, run: Any, name: str = "train") -> list[Words]:
    if run.status == "interrupted":
        return [[name, "--config", run.folder / "config.yaml", "--output", run.folder, "--resume", "auto"]]
    if run.note:
        return []
    if not (run.folder / "calibrator").is_dir():
        return [["inspect", run.folder / "encoder"]]
    text = several(getattr(given.get("text"), "sentences", None) or ())
    if getattr(run.record, "untrained", "") and (opened := given.get("encoder") or {}).get("model"):
        own = text[0] if len(text) == 1 else None
        how = {"n": run.record.n_train + run.record.n_held_out, "options": _options(opened, "pooling", "max_length")}
        # inspect names the folder fixed
        return _after(opened["model"], f"{run.folder}-fixed", calibrated=False, text=own, **how)
    judged = ["evaluate", run.folder, "--retrieval", "FILE" if text else DOCSTRINGS, "--compare", "raw,whitening"]
    return [f"{LABELED}{_typed(judged)}" if text else judged]


def _embed(given: Given, embedded: Any) -> list[Words]:
    rows = ["--store", embedded.store.folder]
    into = new_place(f"{embedded.store.folder}-whitening")
    return [["fit", *rows, "--calibrator", "whitening", "--output", into]] if embedded.seconds else []


def _ending(vectors: Any) -> str:
    """The ending of a file of calibrated vectors: that of a table, so that its other columns are kept, or .npy."""
    return ".parquet" if str(vectors or "").endswith(".parquet") else ".npy"


def _fit(given: Given, fitted: Any) -> list[Words]:
    rows = _options(given, "store", "vectors", "column")
    place = new_place(f"{fitted.output}{_ending(given.get('vectors'))}")
    return [["transform", "--calibrator", fitted.output, *rows, "--output", place]]


def _evaluate(given: Given, report: Any) -> list[Words]:
    """A look at the best of the encoders that were named."""
    split = [*map(split_name, several(given["models"]))]
    named = dict(zip(distinct_names(split), (model for _, model in split), strict=True))
    falling = next(([best, *others] for _, best, others in report.leads()), [])
    return _look(next((named[row.system] for row in falling if row.system in named), split[0][1]), given)


def _sweep(given: Given, swept: Any) -> list[Words]:
    best = next(row for row in swept.falling if " " not in row.pooling)  # a mean of all layers is no --pooling
    own = option_words(max_length=given.get("max_length"), text=given["fit_on"])
    return [["inspect", given["model"], "--pooling", best.pooling, *own]]


def _paper_tables(given: Given, made: Any) -> list[Words]:
    """What is missing and the tables, where lines alone were made or shown."""
    models = several(given["models"])
    if not hasattr(made, "lines"):
        return [["inspect", models[0], "--pooling", "first-last-avg"]]
    files = [word for name in ("nli", "nli_models") for one in several(given[name]) for word in (f"--{name}", one)]
    names = ("data_dir", "output", "tasks", "seeds", "max_sentences", "resamples", "device")
    return [["paper-tables", *models, *_options(given, *names), *files]]


def _inspect(given: Given, report: Any) -> list[Words]:
    model, opened_with = given["model"], _options(given, "pooling", "max_length")
    calibrated = model is not None and (_is_calibrated(model) or _has_scores(model))
    return _after(model, calibrated=calibrated, text=given["text"], n=report.n, options=opened_with)


def _export(given: Given, exported: Any) -> list[Words]:
    if exported.target == "sentence-transformers" and not find_spec("sentence_transformers"):
        return _look(given["model"], given)
    return [["doctor", "--golden", exported.folder, "--model", exported.folder]]


def _score(given: Given, scored: Any) -> list[Words]:
    saved, model = given["save"], given["save"] or given["encoder"]
    if saved and given["pairs"]:
        return [
            ["score", saved, given["pairs"], *_options(given, "columns", "false_match_rate", "precision", "recall")]
        ]
    scores = saved or _has_scores(model) or _is_calibrated(model)
    return _after(model, calibrated=bool(scores)) if saved or given["output"] else []


def _example(given: Given, example: Any) -> list[Words]:
    try:
        model = embedded_encoder()
    except MissingExtraError:
        model = "sentence-transformers/all-MiniLM-L6-v2"
    answers, index = example.folder / "answers.jsonl", new_place(example.folder / "index")
    return [["search", "build", index, "--answers", answers, "--model", model]]


def _ask(given: Given, index: Any) -> list[Words]:
    return [["search", "ask", given["index"], QUESTION, *_options(given, "device")]]


def _adapt(given: Given, made: Any) -> list[Words]:
    if made.index:
        options = option_words(model=made.folder, text=given.get("columns"), device=given.get("device"))
        return [["search", "ask", made.index, QUESTION, *options]]
    compare = ["compare", given["model"], made.folder, *several(given["text"])]
    compare += _options(given, "columns", "pooling", "max_length")
    if given["queries"] is None:
        return [f"to see what it finds: {_typed([*compare, '--queries', 'FILE'])}"]
    return [[*compare, *_options(given, "queries")]]


STEPS: Mapping[str, Callable[[Given, Any], Iterable[Words]]] = {
    "demo": _demo,
    "fix": _fix,
    "train": _train,
    "finetune": lambda given, run: _train(given, run, "finetune"),
    "embed": _embed,
    "fit": _fit,
    "transform": lambda *_: [],  # what is mapped is for the user's own search
    "reindex": lambda _, made: [
        ["search", *(["ask", made.folder, QUESTION] if made.encoder else ["info", made.folder])]
    ],
    "adapt": _adapt,
    "evaluate": _evaluate,
    "sweep": _sweep,
    "verify-paper": lambda given, _: [["paper-tables", given["model"], *_options(given, "data_dir", "device")]],
    "paper-tables": _paper_tables,
    "inspect": _inspect,
    "words": lambda given, _: [["inspect", *several(given["model"])]],
    "compare": lambda given, _: [[*_look(given["second"], given)[0], "--text", *several(given["text"])[:1]]],
    "export": _export,
    "score": _score,
    **{f"search {action}": _ask for action in ("build", "add", "update", "remove", "recalibrate")},
    "search example": _example,
}
"""A row for each command that leaves or shows something: its arguments and its result -> the words of command lines."""
