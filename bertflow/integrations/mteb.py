"""Any ``SentenceEncoder``, raw or calibrated, as a model of mteb 2.

    model = mteb_model(CalibratedEncoder.load("folder"), "me/whitened-bert", data_dir="data/sts")
    mteb.evaluate(model, mteb.get_tasks(tasks=["STS12"]))

Its ``ModelMeta`` claims only what is known. ``training_datasets``, which tells mteb what is zero-shot, is found by
comparing the fitting text with the sentences of the STS tasks: text that was seen without its labels counts as well.
"""

from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from bertflow.array_types import Floats
from bertflow.data.sts import load_sts
from bertflow.data.sts_tasks import SUITES
from bertflow.encoder.abstract import SentenceEncoder, encode_as
from bertflow.errors import UsageError, needs
from bertflow.evaluation.mteb_files import MTEB_TASKS, model_meta, training_datasets
from bertflow.evaluation.score_table import SystemFacts
from bertflow.similarity import COSINE
from bertflow.text_keys import hash_texts

with needs("mteb", "mteb"):
    from mteb.models.model_meta import ModelMeta

CHECKED = tuple(dict.fromkeys((*MTEB_TASKS, *SUITES["sts7"])))
"""The tasks whose sentences are looked for in the fitting text."""


class MtebModel:
    """An encoder behind mteb's ``EncoderProtocol``, which compares embeddings by their cosines.

    Embeddings are returned in float64: mteb computes similarities in the precision of the embeddings, and in float32
    rounding changes their ties and ranks.

    Args:
        encoder: The encoder.
        meta: Its description for mteb.

    Attributes:
        mteb_model_meta: ``meta``.
    """

    similarity = staticmethod(COSINE.matrix)
    similarity_pairwise = staticmethod(COSINE.paired)

    def __init__(self, encoder: SentenceEncoder, meta: ModelMeta) -> None:
        self.encoder = encoder
        self.mteb_model_meta = meta

    def encode(self, inputs: Iterable[dict[str, Any]], *, prompt_type: Any = None, **_: Any) -> Floats:
        """Embeddings (n, dim) of the texts of all batches; each batch is ``{"text": [...]}``.

        mteb's prompts, batch sizes and task metadata are ignored: the encoder has its own prompts.

        Args:
            inputs: Batches.
            prompt_type: mteb's ``PromptType``; queries are embedded with the encoder's prompt for queries.
        """
        texts = [text for batch in inputs for text in batch["text"]]
        return encode_as(self.encoder, prompt_type, texts).astype(np.float64)


def mteb_model(
    encoder: SentenceEncoder,
    name: str,
    data_dir: str | Path | None = None,
    encoder_datasets: Collection[str] | None = None,
    adapted_from: str | None = None,
) -> MtebModel:
    """An encoder as a model that ``mteb.evaluate`` takes.

    Args:
        encoder: Raw or calibrated.
        name: "organization/model", as mteb wants it.
        data_dir: The STS data (a folder or ``hub``), to find tasks whose sentences occur in the fitting text. Without
            it the ``training_datasets`` of a system that was fitted on text are unknown.
        encoder_datasets: mteb tasks that the encoder's own weights were trained on, which bertflow cannot know. None
            leaves ``training_datasets`` unknown, unless it is known to hold something.
        adapted_from: The encoder's name in mteb, whose training data mteb adds to what was found.

    Raises:
        UsageError: If the name is not "organization/model".
        DataError: If data is missing or damaged.
    """
    if not all(name.partition("/")):
        raise UsageError(f"mteb needs a name such as 'organization/model', got {name!r}. Put an organization first.")
    facts = SystemFacts.of(name, encoder)
    trained = training_datasets(_seen(facts, data_dir), facts.labels, encoder_datasets)
    fields = model_meta(facts, name, encoder.dim, trained)
    recipe = {key: str(facts.description[key]) for key in ("pooling", "calibrator") if key in facts.description}
    meta = ModelMeta(loader=None, adapted_from=adapted_from, experiment_kwargs=recipe or None, **fields)
    return MtebModel(encoder, meta)


def _seen(facts: SystemFacts, data_dir: str | Path | None) -> dict[str, float | None]:
    """The share of each task's sentences that occur in the fitting text; None where that is unknown."""
    if facts.hashes is not None and not len(facts.hashes):
        return {}
    if data_dir is None or facts.hashes is None:
        return dict.fromkeys(CHECKED)
    sets = [load_sts(task, data_dir) for task in CHECKED]
    return {pairs.task: facts.seen(hash_texts(pairs.sentences)) for pairs in sets}
