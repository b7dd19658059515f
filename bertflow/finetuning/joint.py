"""Labels and likelihood in one loss: an encoder and a flow that are trained together.

    sentences of both sides -- encoder, dropout on --> u, v -- flow --> latents -- objective --> labels
                                                                 |
                                                               -log p(u) - log p(v) --> likelihood

    loss = labels + weight * likelihood        which term moves which parameters, a row of ``JOINT`` says

The released code adds the two terms, but only to log them: it takes the gradient of the labels for the encoder, through
a flow that stands still, and that of the likelihood for the flow, at embeddings that stand still. So the likelihood
never moves the encoder, which it would make collapse: the closer the embeddings are together, the higher their density.
The paper has no joint objective; its encoder is frozen while the flow is trained (section 3.2).

Source: bohanli/BERT-flow@7fa8f6d, run_siamese.py::create_model and optimization_bert_flow.py::create_optimizer.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from bertflow.affine import identity_map
from bertflow.data.pairs import Pairs, texts_of
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.finetuning import FinetuneRecipe
from bertflow.finetuning.objectives import AbstractObjective, Gather, Judged, Sides
from bertflow.finetuning.siamese import Siamese
from bertflow.flow.glow import FlowMap, build_glow
from bertflow.registry import lookup
from bertflow.store.text import distinct_rows
from bertflow.training.flow_fit import FlowFit
from bertflow.training.module import LN2, BertFlow, build_optimizer, planned_steps, scheduled


@dataclass(frozen=True)
class Terms:
    """Which term of the loss trains what; the labels always train the encoder and the head."""

    likelihood: float
    """Weight of the likelihood beside the labels; with 0 the flow has no optimizer of its own."""
    labels_train_flow: bool
    """Whether the labels move the flow."""
    likelihood_trains_encoder: bool
    """Whether the likelihood moves the encoder."""


JOINT: Mapping[str, Terms] = {
    "apart": Terms(1.0, False, False),  # released: --flow 1 --flow_loss 1
    "labels": Terms(0.0, True, False),  # released: --flow 1 --flow_loss 0, all by one optimizer
    "sum": Terms(1.0, True, True),  # not released: the gradient of the sum that is logged there
}
"""Joint losses by name."""


class JointObjective(AbstractObjective):
    """An objective that compares latents, and the likelihood of both sides.

    Args:
        labels: The objective.
        flow: Both sides' latents come from it; its recipe says in which unit the likelihood is added.
        terms: Which of the two trains what.
    """

    def __init__(self, labels: AbstractObjective, flow: BertFlow, terms: Terms) -> None:
        nn.Module.__init__(self)
        self.labels, self.flow, self.terms = labels, flow, terms

    def forward(self, sides: Sides, rank: int, gather: Gather) -> Judged:
        """Judge a batch; besides the loss, the ``labels`` alone and the density in ``bits_per_dim``."""
        terms, x = self.terms, torch.cat([sides.u, sides.v])
        u, v = self._latents(x).chunk(2)
        judged = self.labels(replace(sides, u=u, v=v), rank, gather)
        nll = self.flow.nll(x if terms.likelihood_trains_encoder else x.detach()).mean()
        loss = judged["loss"] + terms.likelihood * self.flow.loss(nll) if terms.likelihood else judged["loss"]
        return judged | {"loss": loss, "labels": judged["loss"].detach(), "bits_per_dim": nll.detach() / LN2}

    def _latents(self, x: Tensor) -> Tensor:
        flow = self.flow.flow  # not the module around it, which looks at each number: a GPU would be waited for
        still = {name: parameter.detach() for name, parameter in flow.named_parameters()}
        return flow(x) if self.terms.labels_train_flow else functional_call(flow, still, (x,))


class Joint(Siamese):
    """An encoder and a flow in training, and the objective that compares latents.

    The flow has the optimizer, schedule and clip norm of its own recipe; the rest is as in ``Siamese``.

    Args:
        encoder: Its model is trained in place.
        recipe: How both are trained.
        classes: Number of classes.
        run: What identifies this run; its seed gives the flow's first weights.
    """

    objective: JointObjective

    def __init__(
        self, encoder: TransformerEncoder, recipe: FinetuneRecipe, classes: int, run: Mapping[str, Any]
    ) -> None:
        terms, flow = lookup("joint loss", JOINT, recipe.joint or ""), recipe.flow_recipe()
        super().__init__(encoder, recipe, classes, run)
        glow = build_glow(encoder.dim, flow.glow, run["seed"])
        self.objective = JointObjective(self.objective, BertFlow(FlowMap(identity_map(encoder.dim), glow), flow), terms)

    def learners(self) -> Iterable[nn.Parameter]:
        """Parameters that move as in ``Siamese``: all except a flow that has an optimizer of its own."""
        apart = {id(p) for p in self.objective.flow.parameters()} if self.objective.terms.likelihood else set()
        return [p for p in self.parameters() if id(p) not in apart]

    def configure_optimizers(self) -> Any:
        """Both optimizers in one, each with its own schedule: Lightning would leave the steps of two to us."""
        both, flow = super().configure_optimizers(), self.objective.flow
        if not self.objective.terms.likelihood:
            return both
        other = build_optimizer(flow.flow, flow.recipe, planned_steps(self.trainer))
        optimizer, added = both["optimizer"], other["optimizer"]
        for group in added.param_groups:
            optimizer.add_param_group(group)
        optimizer.state.update(added.state)
        factors = [f for one in (both, other) for f in one["lr_scheduler"]["scheduler"].lr_lambdas]
        return scheduled(LambdaLR(optimizer, factors))

    def configure_gradient_clipping(
        self, optimizer: Optimizer, gradient_clip_val: float | None = None, gradient_clip_algorithm: str | None = None
    ) -> None:
        """Each optimizer's gradients by themselves, as released."""
        if gradient_clip_val:
            clip = clip_grad_value_ if gradient_clip_algorithm == "value" else clip_grad_norm_
            clip(self.learners(), gradient_clip_val)
        if self.objective.terms.likelihood and (norm := self.objective.flow.recipe.clip_norm):
            clip_grad_norm_(self.objective.flow.parameters(), norm)


def finished_flow(module: Joint, pairs: Pairs, encoder: TransformerEncoder) -> FlowFit:
    """The flow of a finished training as a fit: map, record and moments, of the embeddings without dropout.

    Args:
        module: Trained.
        pairs: The training pairs; both sides of all of them are the rows, as in the released code.
        encoder: The fine-tuned encoder, opened again.
    """
    sentences = list(texts_of([pairs]))
    distinct, rows = distinct_rows(sentences)
    recipe, flow = module.recipe, module.objective.flow
    taken = replace(flow.recipe, batch_size=2 * recipe.batch_size, unit=2, epochs=recipe.epochs, steps=0, held_out=0.0)
    made = replace(taken, dropout=True, keep="last", ema=0.0)
    fit = FlowFit(encoder.encode(distinct)[rows], made, module.run["seed"], sentences, encoder)
    fit.module.flow.load_state_dict(flow.flow.state_dict())
    fit.steps, fit.seconds, fit.finished = module.trainer.global_step, module.clock.time_elapsed(), True
    return fit
