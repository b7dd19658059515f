"""What ``bertflow finetune`` is given: pairs, by what the objective learns from, and the encoder's arguments."""

from collections.abc import Callable, Mapping
from typing import Any

from bertflow.cli.finetune_options import FinetuneOptions, PairOptions
from bertflow.data.pairs import NLI_CLASSES, Pairs, load_pairs, load_related, unique_sentences
from bertflow.data.sts import expand_tasks, load_graded, load_sts
from bertflow.encoder.embedded import RAW_POOLING, embedded_encoder
from bertflow.errors import DataError, UsageError
from bertflow.finetuning.recipe import FinetuneRecipe
from bertflow.finetuning.siamese import OBJECTIVES
from bertflow.registry import lookup
from bertflow.text_keys import hash_texts


def encoder_arguments(options: FinetuneOptions) -> dict[str, Any]:
    """The arguments of ``TransformerEncoder``: what was given, else the recipe's, else the embedded encoder's."""
    given = options.encoder
    return {
        "model": embedded_encoder() if given.model is None else given.model,
        "pooling": given.pooling or (RAW_POOLING if given.model is None else None),
        "max_length": given.max_length or options.recipe.max_length,
        "device": given.device,
        "dtype": "float32",
        "revision": given.revision,
        "prompt": given.prompt,
    }


def read_pairs(options: PairOptions, recipe: FinetuneRecipe, seed: int) -> tuple[Pairs, int]:
    """The pairs that the objective wants, and how many were left out for a sentence that will be scored.

    Raises:
        UsageError: If no pairs are named, or options do not fit the objective.
        DataError: If a file cannot be read, or nothing is left.
    """
    wanted = lookup("objective", OBJECTIVES, recipe.objective).targets
    if not options.pairs and not (options.tasks and wanted == "scores"):
        raise UsageError(
            f"The objective {recipe.objective} needs pairs. Give a file with --data.pairs"
            f"{' or STS tasks with --data.tasks' if wanted == 'scores' else ''}."
        )
    _refuse_options(options, recipe.objective, wanted)
    pairs = READERS[wanted](options)
    before = len(pairs)
    if options.leave_out:
        tasks = expand_tasks(options.leave_out, options.data_dir)
        scored = unique_sentences(load_sts(task, _data_dir(options)) for task in tasks)
        pairs = pairs.without_text(hash_texts(scored))
        if not len(pairs):
            raise DataError(f"All {before} pairs hold a sentence of {options.leave_out}. Give other pairs.")
    return pairs.sample(options.max_pairs, seed), before - len(pairs)


def _refuse_options(options: PairOptions, objective: str, wanted: str) -> None:
    """What would be left out in silence is refused."""
    uses = {"tasks": ("scores",), "classes": ("classes", "none"), "only": ("none",)}
    for name, targets in uses.items():
        if getattr(options, name) and wanted not in targets:
            raise UsageError(f"The option data.{name} means nothing to {objective}. Leave it out.")


def _read_classes(options: PairOptions) -> Pairs:
    assert options.pairs is not None
    return load_pairs(options.pairs, "classes", classes=options.classes or NLI_CLASSES)


def _read_graded(options: PairOptions) -> Pairs:
    data_dir = _data_dir(options) if options.tasks else None
    return load_graded(options.pairs or (), options.tasks or (), data_dir, options.top_score)


def _read_related(options: PairOptions) -> Pairs:
    assert options.pairs is not None
    if options.only is None:
        return load_related(options.pairs)
    return _read_classes(options).of_class(options.only)


READERS: Mapping[str, Callable[[PairOptions], Pairs]] = {
    "classes": _read_classes,
    "scores": _read_graded,
    "none": _read_related,
}
"""How pairs are read, by what an objective learns from."""


def _data_dir(options: PairOptions) -> str:
    if options.data_dir is None:
        raise UsageError("STS tasks need the folder they lie in. Give data.data_dir.")
    return options.data_dir
