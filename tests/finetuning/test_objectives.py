"""Each loss against a slow, obvious version of it."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import cosine_similarity

from bertflow.finetuning import FinetuneRecipe
from bertflow.finetuning.objectives import OBJECTIVES, Sides

N, DIM = 6, 5


@pytest.fixture
def sides():
    u, v = torch.randn(2, N, DIM, dtype=torch.float64)
    return Sides(u, v, torch.arange(N), torch.arange(N) + 100, None)


def with_targets(sides, targets):
    return Sides(sides.u, sides.v, sides.first, sides.second, targets)


def built(name, **changes):
    return OBJECTIVES[name](DIM, FinetuneRecipe(objective=name, **changes), 3).double().requires_grad_(False)


def judged(name, sides, **changes):
    return built(name, **changes)(sides, 0, lambda rows: rows)


def test_classification_is_cross_entropy_of_a_map_of_both_and_their_distance(sides):
    sides = with_targets(sides, torch.tensor([0, 1, 2, 0, 1, 2]))
    objective = built("classification")
    expected, right = 0.0, 0
    for u, v, target in zip(sides.u, sides.v, sides.targets, strict=True):
        logits = [sum(w * x for w, x in zip(row, [*u, *v, *(u - v).abs()], strict=True)) for row in objective.weight]
        expected -= float(logits[target]) - math.log(sum(math.exp(logit) for logit in logits))
        right += int(max(logits) == logits[target])
    found = objective(sides, 0, lambda rows: rows)
    assert float(found["loss"]) == pytest.approx(expected / N)
    assert float(found["right"]) == pytest.approx(right / N)


def test_the_head_has_no_bias_and_small_weights():
    parameters = dict(built("classification").named_parameters())
    assert list(parameters) == ["weight"]
    assert parameters["weight"].shape == (3, 3 * DIM)
    assert parameters["weight"].abs().max() <= 0.04


def test_regression_is_the_squared_distance_of_cosine_and_score(sides):
    scores = torch.rand(N, dtype=torch.float64)
    cosines = [float(a @ b / (a.norm() * b.norm())) for a, b in zip(sides.u, sides.v, strict=True)]
    found = judged("regression", with_targets(sides, scores))
    assert float(found["loss"]) == pytest.approx(np.mean((np.array(cosines) - scores.numpy()) ** 2))
    assert "right" not in found


def test_in_batch_negatives_are_all_other_answers(sides):
    expected = 0.0
    for row in range(N):
        logits = 20 * cosine_similarity(sides.u[row][None], sides.v)
        expected += float(torch.logsumexp(logits, 0) - logits[row])
    assert float(judged("in-batch-negatives", sides)["loss"]) == pytest.approx(expected / N)


def test_negatives_are_wrong_answers_to_all_but_where_they_are_right(sides):
    w, third = torch.randn(N, DIM, dtype=torch.float64), torch.arange(N) + 200
    third[2] = sides.second[4]  # the negative of one is the right answer of another
    expected = 0.0
    for row in range(N):
        rivals = torch.cat([sides.v, w if row != 4 else w[[0, 1, 3, 4, 5]]])
        logits = 20 * cosine_similarity(sides.u[row][None], rivals)
        expected += float(torch.logsumexp(logits, 0) - logits[row])
    found = judged("in-batch-negatives", replace(sides, w=w, third=third))
    assert float(found["loss"]) == pytest.approx(expected / N)


def test_two_sides_are_the_mean_of_both_directions(sides):
    one, other = (float(judged("in-batch-negatives", each, scale=7.0)["loss"]) for each in (sides, sides.swapped()))
    both = judged("in-batch-negatives", sides, scale=7.0, two_sided=True)
    assert float(both["loss"]) == pytest.approx((one + other) / 2)


@pytest.mark.parametrize("side", ["first", "second"])
def test_a_text_that_stands_there_twice_is_no_wrong_answer(side, sides):
    numbers = {"first": sides.first.clone(), "second": sides.second.clone()}
    numbers[side][4] = numbers[side][1]
    twice = Sides(sides.u, sides.v, numbers["first"], numbers["second"], None)
    expected = 0.0
    for row in range(N):
        rivals = [k for k in range(N) if k == row or {k, row} != {1, 4}]
        logits = 20 * cosine_similarity(sides.u[row][None], sides.v)
        expected += float(torch.logsumexp(logits[rivals], 0) - logits[row])
    assert float(judged("in-batch-negatives", twice)["loss"]) == pytest.approx(expected / N)


@pytest.mark.parametrize("two_sided", [False, True])
def test_shares_of_two_ranks_add_up_to_the_whole_batch(two_sided, sides):
    objective = built("in-batch-negatives", two_sided=two_sided)
    losses = []
    for rank in range(2):
        parts = [full.chunk(2)[rank] for full in (sides.u, sides.v, sides.first, sides.second)]
        every = dict(zip(map(id, parts), (sides.u, sides.v, sides.first, sides.second), strict=True))
        losses.append(objective(Sides(*parts, None), rank, lambda rows, every=every: every[id(rows)])["loss"])
    assert float(sum(losses) / 2) == pytest.approx(float(objective(sides, 0, lambda rows: rows)["loss"]))


@pytest.mark.parametrize(
    ("name", "targets"),
    [
        ("classification", torch.zeros(N, dtype=torch.int64)),
        ("regression", torch.full((N,), 0.3, dtype=torch.float64)),
        ("in-batch-negatives", None),
    ],
)
def test_gradients_reach_both_sides(name, targets, sides):
    objective = built(name)

    def loss(u, v):
        return objective(Sides(u, v, sides.first, sides.second, targets), 0, lambda rows: rows)["loss"]

    assert torch.autograd.gradcheck(loss, (sides.u.clone().requires_grad_(), sides.v.clone().requires_grad_()))
