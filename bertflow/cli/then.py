"""What to do next: the command lines that are printed below what a command has left.

They work as they stand: with the paths that were given or written, quoted for the shell, and a new place for what they
write themselves.
"""

from collections.abc import Callable, Iterable, Mapping
from importlib.util import find_spec
from inspect import signature
from itertools import count
from pathlib import Path
from typing import Any

from bertflow.errors import MissingExtraError
from bertflow.evaluation.names import split_name
from bertflow.next_steps import Reader, Words, command_line, option_words, steps_after
from bertflow.opening import calibrator_of

Given = Mapping[str, Any]
"""The arguments of a command's function by name, None for what is as by default."""
QUESTION = "How does it work?"
"""Asked of a new index."""
FEWEST = 200
"""Vectors that `fix` wants."""


def next_lines(name: str, function: Callable[..., Any], arguments: Given, result: Any) -> str:
    """``next:`` with the command lines, one below the other; empty for a command that has left nothing.

    Args:
        name: The command, "search build" for an action.
        function: What it calls.
        arguments: The arguments; what is as by default is not spelled out.
        result: What it gave back.
    """
    if name not in THEN:
        return ""
    defaults = {one: parameter.default for one, parameter in signature(function).parameters.items()}
    given = {one: None if one in defaults and value == defaults[one] else value for one, value in arguments.items()}
    lines = list(map(command_line, THEN[name](given, result)))
    return "\nnext: " + "\n      ".join(lines) + "\n" if lines else ""


def new_place(path: object) -> Path:
    """The path, or the first like it where nothing stands yet: out, out-2, out-3."""
    wanted = Path(str(path))
    names = (wanted.with_stem(f"{wanted.stem}-{number}") if number > 1 else wanted for number in count(1))
    return next(one for one in names if not one.exists())


def options(given: Given, *names: str) -> list[object]:
    """The options of that name that were given, as words."""
    return option_words(**{name: given.get(name) for name in names})


def _listed(given: Any) -> list[Any]:
    return [] if given is None else [given] if isinstance(given, str | Path) else list(given)


def _here() -> Reader:
    """The reader of what is printed: what is installed here, and names that are free."""
    example = new_place("example")
    return Reader(
        serves=all(find_spec(name) for name in ("starlette", "uvicorn", "prometheus_client")),
        text=example / "text.txt",
        before=["search", "example", example],
        output=["--output", new_place("fixed")],
    )


def _look(model: Any, given: Given) -> list[Words]:
    """The geometry of an encoder, which may be raw."""
    raw = calibrator_of(model, given.get("revision")) is None
    return [["inspect", model, *(options(given, "pooling", "max_length") if raw else [])]]


def _demo(given: Given, demo: Any) -> list[Words]:
    encoder = demo.folder / "encoder"
    scored = (encoder / "scores.json").exists()
    return [
        ["score", encoder, demo.everyday, "--false_match_rate", 0.01] if scored else ["inspect", encoder],
        ["export", encoder, "--target", "sentence-transformers", "--output", new_place(demo.folder / "exported")],
        ["search", "example", new_place(demo.folder / "search")],
    ]


def _fix(given: Given, advice: Any) -> list[Words]:
    if (advice.folder / "encoder").is_dir():
        return steps_after(advice.folder / "encoder", _here())
    if (vectors := given["vectors"]) is None:
        return [["inspect", given["encoder"]]]
    rows, made = ["--store" if Path(vectors).is_dir() else "--vectors", vectors], advice.folder / "calibrator"
    if made.is_dir():
        return [["transform", "--calibrator", made, *rows, "--output", new_place(advice.folder / "calibrated.npy")]]
    return [["fit", *rows, "--calibrator", "whitening", "--output", new_place(advice.folder / "whitening")]]


def _train(name: str) -> Callable[[Given, Any], list[Words]]:
    def then(given: Given, run: Any) -> list[Words]:
        if run.status == "interrupted":
            return [[name, "--config", run.folder / "config.yaml", "--output", run.folder, "--resume", "auto"]]
        if run.note:
            return []
        calibrated = (run.folder / "calibrator").is_dir()
        return steps_after(run.folder, _here()) if calibrated else [["inspect", run.folder / "encoder"]]

    return then


def _embed(given: Given, embedded: Any) -> list[Words]:
    store = embedded.store.folder
    into = new_place(f"{store}-whitening")
    return [["fit", "--store", store, "--calibrator", "whitening", "--output", into]] if embedded.seconds else []


def _fit(given: Given, fitted: Any) -> list[Words]:
    rows = options(given, "store", "vectors", "column")
    return [["transform", "--calibrator", fitted.output, *rows, "--output", new_place(f"{fitted.output}.npy")]]


def _transform(given: Given, made: Any) -> list[Words]:
    column = options(given, "column") if made.output.suffix == ".parquet" else []
    if made.n >= FEWEST and not column:
        return [["fix", "--vectors", made.output, "--output", new_place(f"{made.output.with_suffix('')}-fixed")]]
    rows = ["--store" if made.output.is_dir() else "--vectors", made.output, *column]
    return [["fit", *rows, "--calibrator", "center", "--output", new_place(f"{made.output.with_suffix('')}-center")]]


def _reindex(given: Given, made: Any) -> list[Words]:
    return [["search", "ask", made.folder, QUESTION] if made.encoder else ["search", "info", made.folder]]


def _evaluate(given: Given, report: Any) -> list[Words]:
    return _look(split_name(_listed(given["models"])[0])[1], given) if given["output"] else []


def _sweep(given: Given, swept: Any) -> list[Words]:
    best = max(swept.cells(), key=lambda cell: cell[2])[1]
    return [["inspect", given["model"], "--pooling", best.pooling]] if given["output"] else []


def _verify_paper(given: Given, verified: Any) -> list[Words]:
    return [["paper-tables", given["model"], *options(given, "data_dir", "device")]] if given["output"] else []


def _paper_tables(given: Given, made: Any) -> list[Words]:
    """What is missing and the tables, where lines alone were made or shown."""
    models = _listed(given["models"])
    if not hasattr(made, "lines"):
        return [["inspect", models[0], "--pooling", "first-last-avg"]]
    files = [word for name in ("nli", "nli_models") for one in _listed(given[name]) for word in (f"--{name}", one)]
    names = ("data_dir", "output", "tasks", "seeds", "max_sentences", "resamples", "device")
    return [["paper-tables", *models, *options(given, *names), *files]]


def _inspect(given: Given, report: Any) -> list[Words]:
    model, opened_with = given["model"], options(given, "pooling", "max_length")
    calibrated = model is not None and calibrator_of(model) is not None
    return steps_after(model, _here(), calibrated=calibrated, text=given["text"], options=opened_with)


def _words(given: Given, study: Any) -> list[Words]:
    return [["inspect", *_listed(given["model"])]] if given["output"] else []


def _compare(given: Given, comparison: Any) -> list[Words]:
    return _look(given["second"], given) if given["output"] else []


def _export(given: Given, exported: Any) -> list[Words]:
    folder = exported.folder
    if exported.target == "sentence-transformers" and not find_spec("sentence_transformers"):
        return _look(given["model"], given)
    return [["doctor", "--golden", folder, "--model", folder]]


def _score(given: Given, scored: Any) -> list[Words]:
    if given["save"] and given["pairs"]:
        return [["score", given["save"], given["pairs"], *options(given, "columns")]]
    model = given["save"] or given["encoder"]
    ready = given["save"] or calibrator_of(model) is not None
    return steps_after(model, _here(), calibrated=bool(ready)) if given["save"] or given["output"] else []


def _ask(given: Given, index: Any) -> list[Words]:
    return [["search", "ask", given["index"], QUESTION, *options(given, "device")]]


def _example(given: Given, example: Any) -> list[Words]:
    from bertflow.encoder.embedded import embedded_encoder

    try:
        model = embedded_encoder()
    except MissingExtraError:
        model = "sentence-transformers/all-MiniLM-L6-v2"
    answers, index = example.folder / "answers.jsonl", new_place(example.folder / "index")
    return [["search", "build", index, "--answers", answers, "--model", model]]


THEN: Mapping[str, Callable[[Given, Any], Iterable[Words]]] = {
    "demo": _demo,
    "fix": _fix,
    "train": _train("train"),
    "finetune": _train("finetune"),
    "embed": _embed,
    "fit": _fit,
    "transform": _transform,
    "reindex": _reindex,
    "evaluate": _evaluate,
    "sweep": _sweep,
    "verify-paper": _verify_paper,
    "paper-tables": _paper_tables,
    "inspect": _inspect,
    "words": _words,
    "compare": _compare,
    "export": _export,
    "score": _score,
    **{f"search {action}": _ask for action in ("build", "add", "update", "remove", "recalibrate")},
    "search example": _example,
}
"""A row for each command that leaves something: its arguments and its result -> the words of command lines."""
