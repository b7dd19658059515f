"""The encoder itself, fine-tuned on pairs; here is how: the numbers of BERT-flow's NLI stage, which are SBERT's.

Sources: Reimers & Gurevych 2019, arXiv:1908.10084, section 3.1; bohanli/BERT-flow@7fa8f6d scripts/train_siamese.sh and
run_siamese.py; Li et al. 2020, appendix B. Without labels: Gao et al. 2021, arXiv:2104.08821 (configs/simcse.yaml).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bertflow.errors import UsageError
from bertflow.records import require_fields
from bertflow.training.recipe import Recipe, resolve


@dataclass(frozen=True)
class FinetuneRecipe:
    """How an encoder is fine-tuned; the defaults are the paper's unless a field says otherwise."""

    objective: str = "classification"
    """What is learned: classification, regression, in-batch-negatives or, without labels, simcse (configs/simcse.yaml).
    With few NLI labels in-batch-negatives raises scores (configs/nli-siamese.yaml), classification, which is the
    paper's, lowers them (configs/paper-nli.yaml)."""
    learning_rate: float = 2e-5
    """Learning rate of the encoder."""
    head_learning_rate: float | None = None
    """Learning rate of the head of classification and simcse, as 1e-3 where pairs are few; the encoder's by default,
    as in the paper."""
    batch_size: int = 16
    """Pairs of one step, over all ranks; those that do not fill a last batch are left out of the epoch."""
    epochs: float = 1.0
    """Passes over the pairs."""
    warmup: float = 0.1
    """Share of the steps in which the learning rate rises to its full height; then it falls linearly to zero."""
    weight_decay: float = 0.01
    """Weight decay of matrices; biases and norms are left out, as in BERT."""
    clip_norm: float = 1.0
    """Largest norm of the gradient; 0 for no limit."""
    max_length: int = 64
    """Tokens a sentence, where no length is given for the encoder; the fine-tuned encoder keeps it."""
    scale: float = 20.0
    """Factor of the cosines of in-batch-negatives and simcse, one over the temperature. The paper has no such
    objective; 20 is sentence-transformers' and SimCSE's."""
    two_sided: bool = False
    """Whether answers must find their questions, too; for in-batch-negatives."""
    head: bool | None = None
    """Whether simcse compares the embeddings after a head, tanh of a linear map, which is removed when the
    training is done; by default they are."""
    dropout: float | None = None
    """Probability for every dropout layer; the encoder's own by default."""
    held_out: float = 0.02
    """Share of the pairs that is not trained on and judges the result. Paper: none."""
    gradient_checkpointing: bool = False
    """Compute activations again in the backward pass instead of keeping them: less memory, a third more time."""
    checkpoint_every: int = 250
    """Most steps that an interrupted run loses."""
    joint: str | None = None
    """Train a flow beside the encoder, and compare its latents by the objective: apart (the labels train the encoder,
    the likelihood trains the flow; released), labels (the labels train both), sum (labels and likelihood train both).
    By default there is no flow."""
    flow: str | dict[str, Any] | None = None
    """The flow of ``joint``: a preset of train.py, or what differs from paper-tf, such as ``{"glow": {"levels": 2}}``.
    Shape, optimizer, schedule and clip norm are used; the steps are those of the fine-tuning."""

    def held_out_of(self, n: int) -> int:
        """Number of held-out pairs among ``n``."""
        return round(n * self.held_out)

    def __post_init__(self) -> None:
        require_fields(self, "finetune", {"batch_size": 1, "checkpoint_every": 1, "max_length": 1})
        for name in ("learning_rate", "head_learning_rate", "epochs", "scale"):
            if (value := getattr(self, name)) is not None and value <= 0:
                raise UsageError(f"finetune.{name} must be above 0, got {value:g}.")
        for name, most in (("warmup", 1.0), ("held_out", 0.5)):
            if not 0 <= getattr(self, name) <= most:
                raise UsageError(f"finetune.{name} is a share from 0 to {most:g}, got {getattr(self, name):g}.")
        if self.objective in ("in-batch-negatives", "simcse") and self.batch_size < 2:
            raise UsageError(f"finetune.batch_size must be at least 2 for {self.objective}, got {self.batch_size}.")
        if self.head_learning_rate is not None and self.objective in ("regression", "in-batch-negatives"):
            raise UsageError(f"finetune.head_learning_rate needs a head, and {self.objective} has none. Leave it out.")
        if self.dropout is not None and not 0 < self.dropout < 1:
            raise UsageError(f"finetune.dropout is a probability above 0 and below 1, got {self.dropout:g}.")
        if self.joint is not None:
            self.flow_recipe()
        elif self.flow is not None:
            raise UsageError("finetune.flow is the flow of finetune.joint, which is not given. Set it to apart.")

    def require_even(self, world: int) -> None:
        """Refuse a batch that cannot be shared out evenly over ``world`` ranks.

        Raises:
            UsageError: If it cannot.
        """
        if self.batch_size % world:
            raise UsageError(
                f"finetune.batch_size is shared by {world} processes and must be a multiple of {world}, got "
                f"{self.batch_size}."
            )

    def flow_recipe(self) -> Recipe:
        """The recipe of the flow of ``joint``.

        Raises:
            UnknownNameError: If there is no such preset or field.
            UsageError: If the flow would start from data: the embeddings move, so it starts from the seed.
        """
        changes = dict(self.flow) if isinstance(self.flow, Mapping) else {"preset": self.flow or "paper-tf"}
        recipe = resolve(changes.pop("preset", "paper-tf"), changes)
        if recipe.start != "none" or recipe.glow.initialization == "data":
            raise UsageError(
                "A flow that is trained with its encoder needs the start none and the glow.initialization glorot or "
                f"identity, got {recipe.start} and {recipe.glow.initialization}. Use the preset paper-tf."
            )
        return recipe
