"""What fine-tuning minimizes: how both sides' embeddings u and v are compared, a row each.

    classification        cross-entropy of W [u; v; |u - v|], W without bias       labeled pairs, as SBERT
    regression            (cos(u, v) - score / 5)^2                                graded pairs
    in-batch-negatives    cross-entropy of scale * cos(u_i, v_j) over all j        pairs that belong together; the w_j
                                                                                   of all negatives are among the v_j
    simcse                the same of h(u), h(v): one sentence, dropped out twice  sentences, without labels

A step's other answers are those of all ranks.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cosine_similarity, cross_entropy, linear, mse_loss, normalize

from bertflow.finetuning import FinetuneRecipe


@dataclass(frozen=True)
class Sides:
    """Both sides of a batch, embedded.

    Attributes:
        u: Embeddings of the first sentences (n, dim).
        v: Embeddings of the second sentences (n, dim).
        first: A number for each first text (n,): equal numbers, equal texts.
        second: The same for the second ones.
        targets: Classes (n,) or scores in [0, 1]; None where there are none.
        w: Embeddings of the negatives (n, dim), and ``third`` their numbers (n,); None where there are none.
    """

    u: Tensor
    v: Tensor
    first: Tensor
    second: Tensor
    targets: Tensor | None
    w: Tensor | None = None
    third: Tensor | None = None

    def swapped(self) -> "Sides":
        """These sides, exchanged; the negatives are wrong answers to the first alone."""
        return Sides(self.v, self.u, self.second, self.first, self.targets)


Gather = Callable[[Tensor], Tensor]
"""(n, ...) of this rank -> (all ranks' rows, ...), with gradients."""
Judged = dict[str, Tensor]
"""The ``loss`` of a batch and, except for graded pairs, the share of its pairs that come out ``right``."""


class AbstractObjective(nn.Module):
    """What is minimized: ``forward(sides, rank, gather)`` judges a batch.

    Args:
        dim: Width of an embedding.
        recipe: How the encoder is trained.
        classes: Number of classes.
    """

    targets: Literal["classes", "scores", "none", "text"]
    """What the pairs must carry; ``text``: nothing, and both sides are the same sentence."""

    def __init__(self, dim: int, recipe: FinetuneRecipe, classes: int) -> None:
        super().__init__()
        self.recipe = recipe


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

    Where pairs have negatives, those of the whole step are wrong answers, too. A text that occurs twice in a step is
    not a wrong answer to itself: such candidates are left out.

    Source: Henderson et al. 2017, arXiv:1705.00652, section 4; scaled cosine and both sides as in
    sentence-transformers' MultipleNegativesRankingLoss.
    """

    targets: Literal["none", "text"] = "none"

    def forward(self, sides: Sides, rank: int, gather: Gather) -> Judged:
        """Judge a batch; targets are not needed."""
        judged = self._one_side(sides, rank, gather)
        if not self.recipe.two_sided:
            return judged
        return judged | {"loss": (judged["loss"] + self._one_side(sides.swapped(), rank, gather)["loss"]) / 2}

    def _one_side(self, sides: Sides, rank: int, gather: Gather) -> Judged:
        candidates, texts, asked = gather(sides.v), gather(sides.second), gather(sides.first)
        row = torch.arange(len(sides.u), device=sides.u.device)
        own = row + rank * len(row)
        same = (sides.second[:, None] == texts) | (sides.first[:, None] == asked)
        same[row, own] = False
        if sides.w is not None and sides.third is not None:
            candidates = torch.cat([candidates, gather(sides.w)])
            same = torch.cat([same, sides.second[:, None] == gather(sides.third)], 1)
        logits = self.recipe.scale * normalize(sides.u) @ normalize(candidates).T
        logits = logits.masked_fill(same, -torch.inf)
        return {"loss": cross_entropy(logits, own), "right": (logits.argmax(1) == own).float().mean()}


class SimCSE(InBatchNegatives):
    """Each sentence must find itself, embedded again under other dropout, among the sentences of the step.

    Both embeddings go through a head, tanh of a linear map, which is not part of the encoder that is written: scores
    are better without it.

    Source: Gao et al. 2021, arXiv:2104.08821, section 3; princeton-nlp/SimCSE@49fa580, which has no head where tokens
    are averaged, and lets a sentence that comes twice in a step be a wrong answer to itself.
    """

    targets = "text"

    def __init__(self, dim: int, recipe: FinetuneRecipe, classes: int) -> None:
        super().__init__(dim, recipe, classes)
        self.head = nn.Identity() if recipe.head is False else nn.Sequential(nn.Linear(dim, dim), nn.Tanh())
        for parameter in self.head.parameters():  # as BERT starts
            nn.init.normal_(parameter, std=0.02) if parameter.ndim > 1 else nn.init.zeros_(parameter)

    def forward(self, sides: Sides, rank: int, gather: Gather) -> Judged:
        """Judge a batch that was embedded twice, with dropout."""
        return super().forward(replace(sides, u=self.head(sides.u), v=self.head(sides.v)), rank, gather)


OBJECTIVES: Mapping[str, type[AbstractObjective]] = {
    "classification": Classification,
    "regression": Regression,
    "in-batch-negatives": InBatchNegatives,
    "simcse": SimCSE,
}
"""Objectives by name."""
