"""What a user may say of an encoder, on a command line as from Python. Known without PyTorch, for a help."""

from collections.abc import Mapping
from typing import Literal, Required

from typing_extensions import TypedDict

Role = Literal["document", "query"]
"""What a sentence is: some encoders put another prompt before a query than before a document."""


class EncoderOptions(TypedDict, total=False):
    """How an encoder is opened; None, or leaving an option out, is the encoder's own choice.

    Attributes:
        pooling: How tokens become a vector, such as mean(1,2); static or static-sif for the word embeddings of a
            transformer (default: the encoder's own, else mean; mean(1,2) where no encoder is named).
        max_length: Longest sentence, in tokens; longer ones are cut (default: the encoder's own, else 128).
        dtype: float32, float16, bfloat16, or tf32 on a GPU (default: the encoder's own, else float32).
        device: cpu, cuda, mps (default: the first of cuda, mps and cpu that is there).
        revision: Branch, tag or commit, for a hub id.
        prompt: Text in front of every sentence, or the name of a prompt of a sentence-transformers folder; from Python
            also one for each role (default: the encoder's own). An empty text switches prompts off.
        chunks: Split longer texts into chunks instead of cutting them, and pool the chunks: tokens or sentences,
            followed by :SIZE, :OVERLAP and :mean or :max if you want, such as tokens:128:32:mean (default: the
            encoder's own). An empty text switches chunks off. An index (search build) keeps the chunks, and takes no
            :mean or :max.
        template: Text around every sentence for the poolings mask and denoised-mask, with {} and [MASK] (default:
            the encoder's own, else 'This sentence of "{}" means [MASK] .').
    """

    pooling: str | None
    max_length: int | None
    dtype: str | None
    device: str | None
    revision: str | None
    prompt: str | Mapping[str, str] | None
    chunks: str | None
    template: str | None


class EncoderRecipe(EncoderOptions):
    """The encoder; the built-in one where no model is named.

    Attributes:
        model: Hub id or folder.
    """

    model: Required[str]


def given_options(options: Mapping[str, object]) -> list[str]:
    """Names of the options that were given, without the device, which changes no embedding."""
    return [name for name, value in options.items() if value is not None and name != "device"]
