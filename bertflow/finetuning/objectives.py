"""What a siamese encoder learns from pairs: an objective is a row.

    classification        cross-entropy of W [u; v; |u - v|], W without bias       labelled pairs, as SBERT
    regression            (cos(u, v) - score / 5)^2                                graded pairs
    in-batch-negatives    cross-entropy of scale * cos(u_i, v_j) over all j        pairs that belong together

u and v are the embeddings of both sides, in float32 whatever the encoder runs in.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, cross_entropy, linear, mse_loss, normalize

from bertflow.finetuning.recipe import FinetuneRecipe


@dataclass(frozen=True)
class Sides:
    """Both sides of a batch, embedded.

    Attributes:
        u: Of the first sentences (n, dim).
        v: Of the second ones.
        first: A number for each first text (n,): equal numbers, equal texts.
        second: The same of the second ones.
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


@dataclass(frozen=True)
class Judged:
    """The loss of a batch, and the share of its pairs that came out right (None for graded pairs)."""

    loss: Tensor
    right: Tensor | None


Gather = Callable[[Tensor], Tensor]
"""(n, ...) of this rank -> (all ranks' rows, ...), with gradients."""


class Classification(nn.Module):
    """Cross-entropy of a linear map of [u; v; |u - v|].

    Source: Reimers & Gurevych 2019, arXiv:1908.10084, section 3; without bias and from a normal cut at two standard
    deviations of 0.02, as bohanli/BERT-flow run_siamese.py@7fa8f6d.
    """

    def __init__(self, dim: int, recipe: FinetuneRecipe, classes: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(nn.init.trunc_normal_(torch.empty(classes, 3 * dim), std=0.02, a=-0.04, b=0.04))

    def forward(self, sides: Sides, rank: int, gather: Gather) -> Judged:
        """Judge a batch whose targets are classes."""
        assert sides.targets is not None
        features = torch.cat([sides.u, sides.v, (sides.u - sides.v).abs()], dim=1)
        logits = linear(features, self.weight)
        right = (logits.argmax(1) == sides.targets).float().mean()
        return Judged(cross_entropy(logits, sides.targets), right)


class Regression(nn.Module):
    """Squared distance of the cosine from the score.

    Source: Reimers & Gurevych 2019, section 3; BERT-flow's own uses (cos - score)^2 too, having found (cos + 1) / 2
    much worse.
    """

    def __init__(self, dim: int, recipe: FinetuneRecipe, classes: int) -> None:
        super().__init__()

    def forward(self, sides: Sides, rank: int, gather: Gather) -> Judged:
        """Judge a batch whose targets are scores in [0, 1]."""
        assert sides.targets is not None
        return Judged(mse_loss(cosine_similarity(sides.u, sides.v), sides.targets), None)


class InBatchNegatives(nn.Module):
    """Each first text must find its own second text among all second texts of the step, those of other ranks included.

    A text that stands in the step twice is no wrong answer to itself: such candidates are left out.

    Source: Henderson et al. 2017, arXiv:1705.00652, section 4; scaled cosine and both sides as in
    sentence-transformers' MultipleNegativesRankingLoss.
    """

    def __init__(self, dim: int, recipe: FinetuneRecipe, classes: int) -> None:
        super().__init__()
        self.scale, self.two_sided = recipe.scale, recipe.two_sided

    def forward(self, sides: Sides, rank: int, gather: Gather) -> Judged:
        """Judge a batch; targets are not needed."""
        judged = self._one_side(sides, rank, gather)
        if not self.two_sided:
            return judged
        return Judged((judged.loss + self._one_side(sides.swapped(), rank, gather).loss) / 2, judged.right)

    def _one_side(self, sides: Sides, rank: int, gather: Gather) -> Judged:
        candidates, texts, asked = gather(sides.v), gather(sides.second), gather(sides.first)
        logits = self.scale * normalize(sides.u) @ normalize(candidates).T
        own = torch.arange(len(sides.u), device=logits.device) + rank * len(sides.u)
        same = (sides.second[:, None] == texts) | (sides.first[:, None] == asked)
        same[torch.arange(len(own)), own] = False
        logits = logits.masked_fill(same, -torch.inf)
        return Judged(cross_entropy(logits, own), (logits.argmax(1) == own).float().mean())


@dataclass(frozen=True)
class Objective:
    """What is minimized.

    Attributes:
        build: (dim of an embedding, recipe, number of classes) -> the module, with what it has to learn.
        targets: What the pairs must come with.
    """

    build: Callable[[int, FinetuneRecipe, int], nn.Module]
    targets: Literal["classes", "scores", "none"]


OBJECTIVES: Mapping[str, Objective] = {
    "classification": Objective(Classification, "classes"),
    "regression": Objective(Regression, "scores"),
    "in-batch-negatives": Objective(InBatchNegatives, "none"),
}
"""Objectives by name."""
