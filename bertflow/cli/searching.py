"""What ``bertflow search`` does: one function an action, named as the action."""

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from bertflow.cli.printing import print_lines, print_table
from bertflow.data.answers import Answer, answer_row, load_answer_labels, load_answers
from bertflow.data.docstrings import docstring_corpus
from bertflow.errors import UsageError
from bertflow.files import to_json, write_text
from bertflow.opening import open_encoder
from bertflow.registry import lookup
from bertflow.retrieval.index import AnswerIndex
from bertflow.retrieval.ranking import ExactSearch, Search
from bertflow.retrieval.scores import score
from bertflow.retrieval.storage import Storage

OPTIONS = ("pooling", "max_length", "dtype")
"""Options that say how an encoder as it comes is used."""
TASK = "docstrings"


def _usearch() -> Search:
    from bertflow.integrations.usearch import UsearchSearch  # an extra

    return UsearchSearch()


ENGINES: Mapping[str, Callable[[], Search]] = {"exact": ExactSearch, "usearch": _usearch}
"""What finds the candidates, by the name that the command line uses."""


def build(options: argparse.Namespace) -> int:
    """Embed answers into a new index."""
    answers = load_answers(options.answers)
    source = _source(options)
    encoder = open_encoder(**source, device=options.device)
    with AnswerIndex.create(options.index, encoder, answers, source, progress=_progress()) as index:
        _say(index)
    return 0


def add(options: argparse.Namespace) -> int:
    """Add answers under new ids."""
    answers = load_answers(options.answers)
    with _open(options) as index:
        index.add(answers, progress=_progress())
        _say(index)
    return 0


def update(options: argparse.Namespace) -> int:
    """Replace answers by id."""
    answers = load_answers(options.answers)
    with _open(options) as index:
        index.update(answers, progress=_progress())
        _say(index)
    return 0


def remove(options: argparse.Namespace) -> int:
    """Remove answers by id."""
    with _open(options) as index:
        index.remove(options.ids)
        _say(index)
    return 0


def recalibrate(options: argparse.Namespace) -> int:
    """Send the raw embeddings through another calibrator."""
    held = _held(options.index)
    options = argparse.Namespace(**vars(options), **{name: held["source"].get(name) for name in OPTIONS})
    source = _source(options, lenient=True)
    encoder = open_encoder(**source, device=options.device)
    with AnswerIndex.open(options.index, encoder, recalibrate=True) as index:
        index.remember(source)
        _say(index)
    return 0


def ask(options: argparse.Namespace) -> int:
    """Rank the answers for a question."""
    search = lookup("engine", ENGINES, options.engine)()
    with _open(options, search) as index:
        hits = index.search(options.question, options.k)
    if options.json:
        print(to_json([asdict(hit) for hit in hits]), end="")
        return 0
    lines = []
    for place, hit in enumerate(hits, start=1):
        lines.append(f"{place}. {hit.score:.3f}  {hit.id}  {hit.text}")
        lines += [] if hit.matched == hit.text else [f"          asked before: {hit.matched}"]
    print_lines(Console(), lines or ["The index is empty."])
    return 0


def evaluate(options: argparse.Namespace) -> int:
    """Score the ranking on questions whose answers are known."""
    if options.resamples < 0 or options.k < 1:
        raise UsageError(f"--resamples should be 0 or more and -k 1 or more, got {options.resamples} and {options.k}.")
    labels = load_answer_labels(options.labels)
    with _open(options) as index:
        scores = score(index, labels, options.k, options.resamples, options.seed, options.labels.stem, _progress())
    if options.json:
        print(to_json(scores.as_dict()), end="")
        return 0
    out = Console()
    print_table(out, scores.table())
    print_lines(out, scores.lines())
    return 0


def info(options: argparse.Namespace) -> int:
    """Say what is in an index; needs no encoder."""
    held = _held(options.index)
    if options.json:
        print(to_json(held), end="")
    else:
        print_lines(Console(), [f"{key}: {value}" for key, value in held.items()])
    return 0


def example(options: argparse.Namespace) -> int:
    """Write answers, labels and text: the first line of a docstring should find the paragraph after it."""
    sentences, pairs = docstring_corpus(options.answers, options.sentences, options.seed)
    names = [f"{TASK}-{row:05d}" for row in range(len(pairs))]
    answers = [answer_row(Answer(name, text)) for name, text in zip(names, pairs.second, strict=True)]
    labels = [{"question": question, "id": name} for question, name in zip(pairs.first, names, strict=True)]
    folder: Path = options.folder
    for name, rows in (("answers.jsonl", answers), ("labels.jsonl", labels)):
        write_text(folder / name, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    write_text(folder / "text.txt", "".join(f"{sentence}\n" for sentence in sentences))
    lines = [
        f"{folder / 'answers.jsonl'}: {len(answers)} answers, paragraphs of the {pairs.source}",
        f"{folder / 'labels.jsonl'}: {len(labels)} questions, the line before each paragraph",
        f"{folder / 'text.txt'}: {len(sentences)} other sentences, to fit a calibrator on",
    ]
    print_lines(Console(), lines)
    return 0


def _source(options: argparse.Namespace, lenient: bool = False) -> dict[str, Any]:
    """How an encoder is opened; a folder by its whole path, so that the index can be asked from anywhere."""
    folder = Path(options.model)
    model = str(folder.resolve()) if folder.exists() else options.model
    given = {name: getattr(options, name) for name in OPTIONS if getattr(options, name) is not None}
    calibrated = folder.is_dir() and (folder / "calibrator").is_dir()
    return {"model": model} if lenient and calibrated else {"model": model, **given}


def _open(options: argparse.Namespace, search: Search | None = None) -> AnswerIndex:
    source = dict(_held(options.index)["source"])
    if options.model:
        source["model"] = options.model
    if "model" not in source:
        raise UsageError(f"{options.index} does not say where its encoder lies. Give it with --model.")
    return AnswerIndex.open(options.index, open_encoder(**source, device=options.device), search=search)


def _held(path: Path) -> dict[str, Any]:
    """What an index says about itself."""
    storage = Storage(path)
    try:
        facts = storage.facts()
        counts = {"answers": storage.count("answers"), "phrases": storage.count("phrases")}
    finally:
        storage.close()
    keys = ("dim", "recipe", "calibrator", "digest", "source")
    return {"path": str(path), **counts, **{key: facts[key] for key in keys}}


def _say(index: AnswerIndex) -> None:
    known = index.describe()
    held = index.identity
    calibrated = f"calibrated by {held.spelled()}" if held.digest else "as the encoder makes them"
    print(f"{known['path']}: {known['answers']} answers, {known['phrases']} phrases, {calibrated}")


def _progress() -> bool:
    return sys.stderr.isatty()
