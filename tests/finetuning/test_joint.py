"""Each term of the joint loss against the parts that are tested by themselves: the objectives and the flow's loss."""

import json

import numpy as np
import pytest
import torch

import bertflow
from bertflow.affine import identity_map
from bertflow.calibrated import CalibratedEncoder
from bertflow.data.pairs import Pairs
from bertflow.errors import UnknownNameError, UsageError
from bertflow.finetuning import FinetuneRecipe
from bertflow.finetuning.fitting import SiameseFit, fit_siamese
from bertflow.finetuning.joint import JOINT, JointObjective
from bertflow.finetuning.objectives import OBJECTIVES, Sides
from bertflow.flow.glow import FlowMap, build_glow
from bertflow.text_keys import hash_texts
from bertflow.training.module import BertFlow, build_optimizer

from ..texts import NOUNS
from .conftest import assert_close, opened, weights

FIRST, SECOND = zip(*((f"the {a} {noun} sleeps .", f"a {noun} in the {place}") for a in ("big", "small", "red")
                      for noun in NOUNS for place in NOUNS), strict=True)  # fmt: skip
LABELS = np.arange(len(FIRST)) // 6 % 3
PAIRS = Pairs("nouns", FIRST, SECOND, LABELS, "classes", classes=("animal", "person", "thing"))
GRADED = Pairs("scores", FIRST, SECOND, (LABELS / 2).astype(np.float32))
BRISK = {"learning_rate": 5e-3, "held_out": 0.0}
N, DIM = 6, 8
TARGETS = {
    "classification": torch.tensor([0, 1, 2, 0, 1, 2]),
    "regression": torch.linspace(0, 1, N).double(),
    "in-batch-negatives": None,
}
STILL = {"glow": {"initialization": "identity"}}
"""A flow that only reorders coordinates before its first step, so that cosines are those of the embeddings."""


def objective(row="apart", name="regression", flow=None):
    """A joint objective in float64 whose flow is not at its start, where a part of the gradients is zero."""
    recipe = FinetuneRecipe(objective=name, joint=row, flow=flow)
    glow = build_glow(DIM, recipe.flow_recipe().glow, seed=1)
    trained = BertFlow(FlowMap(identity_map(DIM), glow), recipe.flow_recipe()).double()
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in trained.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return JointObjective(OBJECTIVES[name](DIM, recipe, 3).double(), trained, JOINT[row])


def sides(name="regression"):
    u, v = (x.requires_grad_() for x in torch.randn(2, N, DIM, dtype=torch.float64))
    return Sides(u, v, torch.arange(N), torch.arange(N) + 100, TARGETS[name])


def judged(joint, given):
    return joint(given, 0, lambda rows: rows)


def gradients(loss, of):
    return torch.autograd.grad(loss, of, retain_graph=True, allow_unused=True)


def parts(joint):
    """The parameters of the flow and those of the head."""
    return list(joint.flow.parameters()), list(joint.labels.parameters())


def labels_alone(joint, given):
    """The objective at the latents, as anybody would write it down."""
    u, v = joint.flow.flow(given.u), joint.flow.flow(given.v)
    return joint.labels(Sides(u, v, given.first, given.second, given.targets), 0, lambda rows: rows)["loss"]


def likelihood_alone(joint, u, v):
    """Both sides' means in bits per dimension, added up: what train.py minimizes with the preset paper-tf."""
    return joint.flow.loss(joint.flow.nll(torch.cat([u, v])).mean())


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("row", JOINT)
def test_the_loss_is_the_weighted_sum_of_its_terms(row, name):
    joint, given = objective(row, name), sides(name)
    expected = labels_alone(joint, given) + JOINT[row].likelihood * likelihood_alone(joint, given.u, given.v)
    torch.testing.assert_close(judged(joint, given)["loss"], expected)


@pytest.mark.parametrize("name", TARGETS)
def test_apart_labels_train_the_encoder_and_the_likelihood_trains_the_flow(name):
    joint, given = objective("apart", name), sides(name)
    (flow, head), loss = parts(joint), judged(joint, given)["loss"]
    expected = gradients(labels_alone(joint, given), (given.u, given.v, *head))
    torch.testing.assert_close(gradients(loss, (given.u, given.v, *head)), expected)
    torch.testing.assert_close(
        gradients(loss, flow), gradients(likelihood_alone(joint, given.u.detach(), given.v.detach()), flow)
    )


@pytest.mark.parametrize("name", TARGETS)
def test_labels_train_everything_where_the_likelihood_has_no_weight(name):
    joint, given = objective("labels", name), sides(name)
    every = (given.u, given.v, *joint.parameters())
    torch.testing.assert_close(
        gradients(judged(joint, given)["loss"], every), gradients(labels_alone(joint, given), every)
    )


@pytest.mark.parametrize("name", TARGETS)
def test_the_gradient_of_the_sum_is_the_sum_of_the_gradients(name):
    joint, given = objective("sum", name), sides(name)
    every = (given.u, given.v, *joint.parameters())
    one = gradients(labels_alone(joint, given), every)
    other = gradients(likelihood_alone(joint, given.u, given.v), every)
    added = [a if b is None else a + b for a, b in zip(one, other, strict=True)]
    torch.testing.assert_close(gradients(judged(joint, given)["loss"], every), tuple(added))


def test_finite_differences_agree_with_the_gradient_of_the_sum():
    joint, given = objective("sum", flow={"glow": {"hidden": 3, "levels": 2, "depth": 1}}), sides()

    def loss(u, v, *flow):
        return judged(joint, Sides(u, v, given.first, given.second, given.targets))["loss"]

    # The parameters are moved in place, so that the function need not be given them.
    assert torch.autograd.gradcheck(loss, (given.u, given.v, *joint.flow.parameters()))


def fitted(folder, pairs=GRADED, **changes):
    options = {"objective": "classification" if pairs is PAIRS else "regression", **BRISK, **changes}
    return fit_siamese(opened(folder), pairs, **{"trainer": {"max_steps": 1}, **options})


def first_batch(fit):
    return fit.data.batch(next(iter(fit.data.train_dataloader())).numpy())


def test_the_encoder_learns_as_without_a_flow_that_stands_still(steady_bert):
    recipe = {"objective": "regression", **BRISK}
    alone = SiameseFit(opened(steady_bert), GRADED, FinetuneRecipe(**recipe))
    joint = SiameseFit(opened(steady_bert), GRADED, FinetuneRecipe(**recipe, joint="apart", flow=STILL))
    found = []
    for fit in (alone, joint):
        fit.module.judged(first_batch(fit), gathered=False)["loss"].backward()
        found.append({name: p.grad for name, p in fit.module.model.named_parameters() if p.requires_grad})
    assert_close(*found, atol=1e-7)
    assert max(float(gradient.abs().max()) for gradient in found[0].values()) > 1e-3


def test_a_step_is_one_of_each_optimizer(steady_bert):
    warm = {"warmup": 0.0}
    joint, alone = fitted(steady_bert, joint="apart", flow=STILL, **warm), fitted(steady_bert, **warm)
    one, other = (
        {name: p for name, p in fit.module.model.named_parameters() if "key.bias" not in name} for fit in (alone, joint)
    )  # the loss does not depend on those: Adam divides their rounding errors by themselves
    assert_close(one, other, atol=1e-4)
    fresh = SiameseFit(opened(steady_bert), GRADED, FinetuneRecipe("regression", **BRISK, joint="apart", flow=STILL))
    flow, recipe = fresh.module.objective.flow, fresh.recipe.flow_recipe()
    optimizer = build_optimizer(flow.flow, recipe, total=1)["optimizer"]
    both = fresh.module(first_batch(fresh))
    likelihood_alone(fresh.module.objective, both.u.detach(), both.v.detach()).backward()
    torch.nn.utils.clip_grad_norm_(flow.parameters(), 1.0)
    optimizer.step()
    assert_close(dict(flow.named_parameters()), dict(joint.module.objective.flow.named_parameters()), atol=1e-6)


def test_the_flow_keeps_its_rate_while_that_of_the_encoder_falls(tiny_bert):
    fit = fitted(tiny_bert, joint="apart", trainer={"max_steps": 4})
    rates = [group["lr"] for group in fit.module.trainer.optimizers[0].param_groups]
    assert rates == [0.0, 0.0, 1e-3]


@pytest.mark.parametrize(("row", "groups"), [("apart", 3), ("labels", 2), ("sum", 3)])
def test_flow_and_encoder_both_move(row, groups, tiny_bert):
    begun = SiameseFit(opened(tiny_bert), PAIRS, FinetuneRecipe(**BRISK, joint=row))
    before, after = weights(begun), fitted(tiny_bert, PAIRS, joint=row, trainer={"max_steps": 2})
    moved = {name for name, value in weights(after).items() if not torch.equal(before[name], value)}
    assert {name.split(".")[0] for name in moved} == {"model", "objective"}
    assert any(name.startswith("objective.flow") for name in moved)
    assert "objective.labels.weight" in moved
    assert len(after.module.trainer.optimizers[0].param_groups) == groups


@pytest.fixture(params=["classification", "regression"])
def run(request, tiny_bert, tmp_path):
    """A run folder of a joint fine-tuning."""
    return bertflow.finetune(
        opened(tiny_bert, "mean(1,2)"),
        {"classification": PAIRS, "regression": GRADED}[request.param],
        {"objective": request.param, "joint": "apart", "flow": {"glow": {"hidden": 4}}, "learning_rate": 1e-3},
        trainer={"max_steps": 3, "accelerator": "cpu", "logger": False, "enable_progress_bar": False},
        output=tmp_path / "run",
    )


def test_a_joint_run_is_a_calibrated_encoder(run, tmp_path):
    loaded = bertflow.load(run.folder, device="cpu")
    assert isinstance(loaded, CalibratedEncoder)
    tuned = opened(run.folder / "encoder", pooling=None)
    z = loaded.calibrator.transform(tuned.encode(FIRST[:4]))
    np.testing.assert_allclose(loaded.encode(FIRST[:4]), z, atol=1e-6)
    np.testing.assert_allclose(run.encoder.encode(FIRST[:4]), z, atol=1e-6)
    facts = loaded.calibrator.facts_
    assert (facts["preset"], facts["steps"], facts["n_train"], facts["dropout"]) == ("paper-tf", 3, 216, True)
    assert loaded.calibrator.get_params()["changes"]["glow"] == {"hidden": 4}
    assert loaded.describe()["labels"] == tuned.describe()["labels"]
    np.testing.assert_array_equal(loaded.fitted_hashes(), hash_texts((*GRADED.first, *GRADED.second)))
    (tmp_path / "mine.tsv").write_text("sentence1\tsentence2\tscore\nthe big dog\ta cat\t1\na\tthe man\t2\nin\ta\t3\n")
    report = bertflow.evaluate_sts({"joint": loaded, "raw": tuned}, str(tmp_path / "mine.tsv"), resamples=20)
    assert {row.system for row in report.rows} == {"joint", "raw"}
    record = json.loads((run.folder / "run.json").read_text())
    assert {"held_out_labels", "held_out_bits_per_dim"} <= record["fit"].keys()


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"flow": "paper-tf"}, UsageError, "finetune.flow is the flow of finetune.joint, which is not given. Set it to "
         "apart."),
        ({"joint": "apart", "flow": "default"}, UsageError, "A flow that is trained with its encoder needs the start "
         "none and the glow.initialization glorot or identity, got whitening and identity. Use the preset paper-tf."),
        ({"joint": "apart", "flow": {"depth": 3}}, UnknownNameError, "Unknown option of a recipe 'depth'."),
        ({"joint": "both"}, UnknownNameError, "Unknown joint loss 'both'. Known: apart, labels, sum."),
    ],
)  # fmt: skip
def test_what_cannot_be_joint_is_refused(changes, error, message, tiny_bert, refusal):
    assert refusal(fitted, tiny_bert, error=error, **changes).startswith(message)
