"""How many tokens a model can read, known from its config: before its weights are loaded, as after."""

import torch
from transformers import PreTrainedModel

from bertflow.encoder.architecture import first_position, model_class, truncate
from bertflow.encoder.chunks import Chunks
from bertflow.encoder.folders import DEFAULTS, ModelFolder, Prompts
from bertflow.errors import UsageError

POSITIONS = ("max_position_embeddings", "max_seq_len")
"""What configs call the number of positions; MPT calls it by the second name. XLNet's is -1, T5 has none."""
NO_LIMIT = 2**20
"""Stands for no limit to the length of a sentence."""


def longest_input(model: PreTrainedModel) -> int:
    """How many tokens a model has positions for; ``NO_LIMIT`` where it counts none."""
    stated = [getattr(model.config, name, None) for name in POSITIONS]
    return next((int(number) for number in stated if number and number > 0), NO_LIMIT) - first_position(model)


def without_weights(folder: ModelFolder) -> PreTrainedModel:
    """A model of the folder's kind without weights, and with as few blocks as can be: a matter of milliseconds.

    Raises:
        UsageError: If it is not a model that reads sentences.
    """
    config = truncate(folder.config, 0)
    with torch.device("meta"):
        return model_class(config, folder.path)(config)


def choose_length(folder: ModelFolder, model: PreTrainedModel, wanted: int | None) -> int:
    """The longest sentence in tokens: as wanted, else as the folder has it, up to what the model can read.

    Raises:
        UsageError: If the model cannot read so many, or they are its special tokens alone.
    """
    longest = int(min(longest_input(model), max(folder.length or 0, folder.tokenizer.model_max_length)))
    shortest = folder.tokenizer.num_special_tokens_to_add() + 1
    if shortest > longest:
        raise UsageError(
            f"The template takes {shortest - 1} tokens with the special ones, this model reads {longest}. Shorten it."
        )
    own = folder.saved["max_length"] or (longest if longest < NO_LIMIT else DEFAULTS["max_length"])
    length = min(own, longest) if wanted is None else wanted
    if not shortest <= length <= longest:
        raise UsageError(f"max_length must be from {shortest} to {longest} tokens for this model, got {length}.")
    return length


def require_length(
    folder: ModelFolder, max_length: int | None, chunks: str | None, prompt: str | Prompts | None = None
) -> None:
    """Refuse a length that a model cannot read, or chunks that do not fit in it; no weights are needed.

    Raises:
        UsageError: As the encoder refuses them.
    """
    length = choose_length(folder, without_weights(folder), max_length)
    if chunks:
        Chunks.parse(chunks).fitted(folder.tokenizer, folder.prompts(prompt).values(), length)
