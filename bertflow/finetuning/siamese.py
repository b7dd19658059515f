"""Fine-tune an encoder on pairs: the supervised stage that comes before a calibrator.

    sentences of both sides -- one encoder, dropout on --> u, v -- objective --> loss;   the encoder's weights move

An objective is a row; u and v are the embeddings of both sides, in float32 whatever the encoder runs in:

    classification        cross-entropy of W [u; v; |u - v|], W without bias       labelled pairs, as SBERT
    regression            (cos(u, v) - score / 5)^2                                graded pairs
    in-batch-negatives    cross-entropy of scale * cos(u_i, v_j) over all j        pairs that belong together

A step is a function of (seed, epoch, batch), on any number of ranks and after any number of interruptions.
"""

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pytorch_lightning as pl
import torch
from pytorch_lightning.plugins.precision import Precision
from pytorch_lightning.utilities.enums import GradClipAlgorithmType
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, cross_entropy, linear, mse_loss, normalize
from torch.optim import Optimizer

from bertflow.encoder.model import Batch
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.errors import UsageError
from bertflow.finetuning import FinetuneRecipe
from bertflow.registry import lookup
from bertflow.training.checkpoints import ExactResumption, is_due, require_finite_loss
from bertflow.training.module import Borrowed, planned_steps, require_precision, scheduled


@dataclass(frozen=True)
class PairBatch:
    """Some pairs, tokenized and padded; the sides apart, since one is often longer.

    Attributes:
        first: The first sentences.
        second: The second ones.
        texts: A number for each text, by side (2, n): equal numbers, equal texts by key.
        targets: Classes or scores (n,); None where there are none.
    """

    first: Batch
    second: Batch
    texts: Tensor
    targets: Tensor | None

    def __len__(self) -> int:
        """How many pairs there are."""
        return len(self.first.rows)

    def to(self, device: torch.device) -> "PairBatch":
        """The same batch on a device."""
        targets = None if self.targets is None else self.targets.to(device)
        return PairBatch(self.first.to(device), self.second.to(device), self.texts.to(device), targets)


@dataclass(frozen=True)
class Sides:
    """Both sides of a batch, embedded.

    Attributes:
        u: Embeddings of the first sentences (n, dim).
        v: Those of the second ones.
        first: A number for each first text (n,): equal numbers, equal texts.
        second: The same for the second ones.
        targets: Classes (n,) or scores in [0, 1]; None where there are none.
    """

    u: Tensor
    v: Tensor
    first: Tensor
    second: Tensor
    targets: Tensor | None

    def swapped(self) -> "Sides":
        """The same with the sides exchanged."""
        return Sides(self.v, self.u, self.second, self.first, self.targets)


Gather = Callable[[Tensor], Tensor]
"""(n, ...) of this rank -> (all ranks' rows, ...), with gradients."""
Judged = dict[str, Tensor]
"""The ``loss`` of a batch and, but for graded pairs, the share of its pairs that come out ``right``."""


class AbstractObjective(nn.Module):
    """What is minimized.

    Args:
        dim: Width of an embedding.
        recipe: How the encoder is trained.
        classes: Number of classes.
    """

    targets: Literal["classes", "scores", "none"]
    """What the pairs must carry."""

    def __init__(self, dim: int, recipe: FinetuneRecipe, classes: int) -> None:
        super().__init__()
        self.recipe = recipe

    def forward(self, sides: Sides, rank: int, gather: Gather) -> Judged:
        """Judge a batch."""
        raise NotImplementedError


class Classification(AbstractObjective):
    """Cross-entropy of a linear map of [u; v; |u - v|].

    Source: Reimers & Gurevych 2019, arXiv:1908.10084, section 3; without bias and from a normal cut at two standard
    deviations of 0.02, as bohanli/BERT-flow run_siamese.py@7fa8f6d.
    """

    targets = "classes"

    def __init__(self, dim: int, recipe: FinetuneRecipe, classes: int) -> None:
        super().__init__(dim, recipe, classes)
        self.weight = nn.Parameter(nn.init.trunc_normal_(torch.empty(classes, 3 * dim), std=0.02, a=-0.04, b=0.04))

    def forward(self, sides: Sides, rank: int, gather: Gather) -> Judged:
        """Judge a batch whose targets are classes."""
        assert sides.targets is not None
        logits = linear(torch.cat([sides.u, sides.v, (sides.u - sides.v).abs()], dim=1), self.weight)
        right = (logits.argmax(1) == sides.targets).float().mean()
        return {"loss": cross_entropy(logits, sides.targets), "right": right}


class Regression(AbstractObjective):
    """Squared distance of the cosine from the score.

    Source: Reimers & Gurevych 2019, section 3; BERT-flow's own uses (cos - score)^2 too, having found (cos + 1) / 2
    much worse.
    """

    targets = "scores"

    def forward(self, sides: Sides, rank: int, gather: Gather) -> Judged:
        """Judge a batch whose targets are scores in [0, 1]."""
        assert sides.targets is not None
        return {"loss": mse_loss(cosine_similarity(sides.u, sides.v), sides.targets)}


class InBatchNegatives(AbstractObjective):
    """Each first text must find its own second text among all second texts of the step, those of other ranks included.

    A text that occurs twice in a step is not a wrong answer to itself: such candidates are left out.

    Source: Henderson et al. 2017, arXiv:1705.00652, section 4; scaled cosine and both sides as in
    sentence-transformers' MultipleNegativesRankingLoss.
    """

    targets = "none"

    def forward(self, sides: Sides, rank: int, gather: Gather) -> Judged:
        """Judge a batch; targets are not needed."""
        judged = self._one_side(sides, rank, gather)
        if not self.recipe.two_sided:
            return judged
        return judged | {"loss": (judged["loss"] + self._one_side(sides.swapped(), rank, gather)["loss"]) / 2}

    def _one_side(self, sides: Sides, rank: int, gather: Gather) -> Judged:
        candidates, texts, asked = gather(sides.v), gather(sides.second), gather(sides.first)
        logits = self.recipe.scale * normalize(sides.u) @ normalize(candidates).T
        own = torch.arange(len(sides.u), device=logits.device) + rank * len(sides.u)
        same = (sides.second[:, None] == texts) | (sides.first[:, None] == asked)
        same[torch.arange(len(own)), own] = False
        logits = logits.masked_fill(same, -torch.inf)
        return {"loss": cross_entropy(logits, own), "right": (logits.argmax(1) == own).float().mean()}


OBJECTIVES: Mapping[str, type[AbstractObjective]] = {
    "classification": Classification,
    "regression": Regression,
    "in-batch-negatives": InBatchNegatives,
}
"""Objectives by name."""
PRECISIONS = ("32-true", "bf16-mixed", "16-mixed")
"""Of Lightning's, those that keep the weights in float32."""


class Siamese(pl.LightningModule):
    """An encoder in training, which embeds both sides, and the objective that compares them.

    Args:
        encoder: Its model is trained in place.
        recipe: How it is trained.
        classes: Number of classes.
        run: What identifies this run; a checkpoint of another run is refused.
    """

    def __init__(
        self, encoder: TransformerEncoder, recipe: FinetuneRecipe, classes: int, run: Mapping[str, Any]
    ) -> None:
        super().__init__()
        self.recipe, self.run = recipe, dict(run)
        self.seconds_before, self.begun = 0.0, time.perf_counter()
        self._borrowed = Borrowed(encoder)
        self.model = encoder.model.requires_grad_(True)
        freeze_unread(encoder)
        self.objective = lookup("objective", OBJECTIVES, recipe.objective)(encoder.dim, recipe, classes)
        if recipe.gradient_checkpointing:
            # Its name differs between versions of transformers 5.
            newer = getattr(self.model, "activation_checkpointing_enable", None)
            (newer or self.model.gradient_checkpointing_enable)({"use_reentrant": False})
        self.train()  # Lightning leaves the mode as it finds it

    @property
    def seconds(self) -> float:
        """Duration of the training so far, the part before a resumption included."""
        return self.seconds_before + time.perf_counter() - self.begun

    def forward(self, batch: PairBatch) -> Sides:
        """Both sides' embeddings, each (n, dim)."""
        encoder = self._borrowed.encoder
        assert encoder is not None
        u, v = encoder.embed_batch(batch.first), encoder.embed_batch(batch.second)
        return Sides(u.float(), v.float(), batch.texts[0], batch.texts[1], batch.targets)

    def judged(self, batch: PairBatch, gathered: bool) -> Judged:
        """The loss of one batch; ``gathered`` where other ranks hold other pairs of it."""
        sides = self(batch)
        # Cosines scaled by 20 need more than half precision.
        with torch.autocast(self.device.type, enabled=False):
            shared = gathered and self.trainer.world_size > 1
            rank, gather = (self.global_rank, self._gather) if shared else (0, lambda rows: rows)
            judged: Judged = self.objective(sides, rank, gather)
        return judged

    def _gather(self, rows: Tensor) -> Tensor:
        every = self.all_gather(rows, sync_grads=rows.is_floating_point())
        assert isinstance(every, Tensor)
        return every.reshape(-1, *rows.shape[1:])

    def setup(self, stage: str) -> None:
        """Refuse a precision that would round the weights."""
        require_float32_weights(self.trainer.precision)

    def on_train_batch_start(self, batch: PairBatch, batch_idx: int) -> None:
        """Dropout is a function of (seed, epoch, batch, rank), so that a resumed run is the same run."""
        key = (self.run["seed"], self.current_epoch, int(batch.first.rows[0]), int(batch.second.rows[0]))
        torch.manual_seed(int(np.random.SeedSequence(key).generate_state(1)[0]))

    def training_step(self, batch: PairBatch, batch_idx: int) -> Tensor:
        """The loss of one batch, logged when the Trainer will write it.

        Raises:
            DivergenceError: If it is no longer finite.
        """
        judged = self.judged(batch, gathered=True)
        if is_due(self.trainer):
            advice = f"Lower finetune.learning_rate (it was {self.recipe.learning_rate:g}), or use another precision."
            require_finite_loss(self.trainer, judged["loss"], advice)
            rate = self.trainer.optimizers[0].param_groups[0]["lr"]
            figures = {f"train/{name}": value for name, value in judged.items()} | {"train/learning_rate": rate}
            self.log_dict(figures, batch_size=len(batch), logger=False)
        return judged["loss"]

    def validation_step(self, batch: PairBatch, batch_idx: int) -> None:
        """Mean loss of the held-out pairs, and the share of them that are right."""
        judged = self.judged(batch, gathered=False)
        self.log_dict({f"val/{name}": value for name, value in judged.items()}, batch_size=len(batch), prog_bar=True)

    def learners(self) -> Iterable[nn.Parameter]:
        """What the optimizer moves, as far as it needs gradients."""
        return self.parameters()

    def configure_optimizers(self) -> Any:
        """AdamW, the decay on matrices alone; the learning rate rises, then falls to zero.

        Raises:
            UsageError: If the Trainer has no end.
        """
        total = planned_steps(self.trainer)
        if math.isinf(total):
            raise UsageError("The learning rate falls to zero at the end. Set trainer.max_epochs or trainer.max_steps.")
        trained = [p for p in self.learners() if p.requires_grad]
        groups = [
            {"params": [p for p in trained if p.ndim > 1], "weight_decay": self.recipe.weight_decay},
            {"params": [p for p in trained if p.ndim <= 1], "weight_decay": 0.0},
        ]
        # One kernel for all parameters: six times as fast on a CPU. With 16-mixed, gradients are scaled outside of it.
        fused = self.trainer.precision != "16-mixed"
        optimizer = torch.optim.AdamW([g for g in groups if g["params"]], lr=self.recipe.learning_rate, fused=fused)
        warmup = math.ceil(total * self.recipe.warmup)
        return scheduled(optimizer, lambda step: learning_rate_share(step, int(total), warmup))

    def configure_callbacks(self) -> list[pl.Callback]:
        """What watches every training of this module, whichever Trainer runs it."""
        return [ExactResumption()]

    def configure_gradient_clipping(
        self,
        optimizer: Optimizer,
        gradient_clip_val: float | None = None,
        gradient_clip_algorithm: str | None = None,
    ) -> None:
        """As Lightning does, but it refuses fused optimizers in all mixed precisions, though only 16-mixed scales."""
        if self.trainer.precision != "bf16-mixed":
            self.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm)
        elif gradient_clip_val:
            algorithm = GradClipAlgorithmType(gradient_clip_algorithm or "norm")
            Precision().clip_gradients(optimizer, gradient_clip_val, algorithm)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """A checkpoint records its run and the time that it took."""
        checkpoint["bertflow_run"], checkpoint["bertflow_seconds"] = self.run, self.seconds

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """Refuse to go on from a checkpoint of another run.

        Raises:
            UsageError: If encoder, pairs, seed or recipe differ; the message names the first.
        """
        theirs = checkpoint.get("bertflow_run", {})
        self.seconds_before = checkpoint.get("bertflow_seconds", 0.0)
        for name, value in self.run.items():
            if theirs.get(name) != value:
                raise UsageError(
                    f"The checkpoint is of a run with {name} {theirs.get(name)}, this one has {value}. "
                    "Resume with the options of the run that was interrupted, or begin a new one."
                )


def freeze_unread(encoder: TransformerEncoder) -> None:
    """Freeze the parameters that the pooling never reads: they would only decay, and DDP waits for their gradients."""
    parameters = list(encoder.model.parameters())
    with torch.enable_grad():
        batch = encoder.padded(encoder.tokenized(["a sentence"]), np.array([0])).to(encoder.device)
        gradients = torch.autograd.grad(encoder.embed_batch(batch).sum(), parameters, allow_unused=True)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.requires_grad_(gradient is not None)


def require_float32_weights(precision: Any) -> None:
    """Refuse a Trainer precision that keeps the weights in anything but float32: bfloat16 loses a step of 2e-5."""
    require_precision(precision, PRECISIONS, "Weights are trained in float32", "mixed ones compute in half precision")


def learning_rate_share(step: int, total: int, warmup: int) -> float:
    """Share of the full learning rate at ``step``, counted from 0: linearly up in ``warmup`` steps, then down to 0."""
    if step < warmup:
        return step / warmup
    return max(0.0, (total - step) / max(1, total - warmup))
