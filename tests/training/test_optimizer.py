"""The released optimizer, against its own formula in plain numbers. (Against the released code: tests/flow.)"""

import copy
import math

import pytest
import torch

from bertflow.training.optimizer import FusedAdamW, ReleasedAdamW


def parameter(*values):
    return torch.nn.Parameter(torch.tensor(values, dtype=torch.float64))


def test_steps_follow_the_formula():
    weight, gradients = parameter(2.0, -1.0), [(0.3, -0.2), (0.1, 0.4), (-0.5, 0.0)]
    optimizer = ReleasedAdamW([weight], lr=0.1, betas=(0.8, 0.9), eps=1e-3, weight_decay=0.05)
    expected = []
    for i, p in enumerate(weight.tolist()):
        m = v = 0.0
        for gradient in gradients:
            m = 0.8 * m + 0.2 * gradient[i]
            v = 0.9 * v + 0.1 * gradient[i] ** 2
            p -= 0.1 * (m / (math.sqrt(v) + 1e-3) + 0.05 * p)
        expected.append(p)
    for gradient in gradients:
        weight.grad = torch.tensor(gradient, dtype=torch.float64)
        optimizer.step()
    torch.testing.assert_close(weight.detach(), torch.tensor(expected, dtype=torch.float64))


def test_the_first_step_is_not_corrected_for_the_start_at_zero():
    weight = parameter(0.0)
    weight.grad = torch.ones(1, dtype=torch.float64)
    ReleasedAdamW([weight], lr=1.0, eps=0.0).step()
    assert weight.item() == pytest.approx(-0.1 / math.sqrt(0.001))


def test_a_parameter_without_gradient_is_not_decayed():
    weight, other = parameter(1.0), parameter(1.0)
    other.grad = torch.ones(1, dtype=torch.float64)
    ReleasedAdamW([weight, other]).step()
    assert weight.item() == 1.0


def test_each_group_has_its_own_learning_rate():
    fast, slow = parameter(0.0), parameter(0.0)
    for weight in (fast, slow):
        weight.grad = torch.ones(1, dtype=torch.float64)
    ReleasedAdamW([{"params": [fast], "lr": 0.1}, {"params": [slow], "lr": 0.01}]).step()
    assert fast.item() == pytest.approx(10 * slow.item())


def test_a_closure_computes_the_loss_with_gradients():
    weight = parameter(3.0)
    optimizer = ReleasedAdamW([weight])

    def closure():
        optimizer.zero_grad()
        loss = weight.square().sum()
        loss.backward()
        return loss

    assert optimizer.step(closure).item() == 9.0
    assert weight.item() < 3.0


def test_its_state_survives_saving():
    def run(interrupted):
        weight = parameter(1.0)
        optimizer = ReleasedAdamW([weight])
        for step in range(4):
            if interrupted and step == 2:
                state = optimizer.state_dict()
                optimizer = ReleasedAdamW([weight])
                optimizer.load_state_dict(state)
            weight.grad = torch.tensor([step - 1.5], dtype=torch.float64)
            optimizer.step()
        return weight.item()

    assert run(interrupted=True) == run(interrupted=False)


def both():
    """Ours and PyTorch's, on equal parameters of two groups."""
    made = []
    for kind in (FusedAdamW, lambda groups, **options: torch.optim.AdamW(groups, fused=True, **options)):
        weights = [torch.nn.Parameter(torch.arange(n, dtype=torch.float32)) for n in (3, 5, 2)]
        groups = [{"params": weights[:2], "lr": 0.1}, {"params": weights[2:], "lr": 0.01, "betas": (0.8, 0.9)}]
        made.append((weights, kind(groups, weight_decay=0.05)))
    return made


def taken(weights, optimizer, steps, without=None):
    """Steps, in some of which a parameter may have no gradient."""
    for step in steps:
        optimizer.zero_grad()
        for i, weight in enumerate(weights):
            if (step, i) != without:
                weight.grad = torch.sin(torch.arange(len(weight)) + step + i)
        optimizer.step()


@pytest.mark.parametrize("without", [None, (0, 1), (3, 1)])
def test_the_fused_one_is_pytorchs_bit_by_bit(without):
    (ours, one), (theirs, other) = both()
    for weights, optimizer in ((ours, one), (theirs, other)):
        taken(weights, optimizer, range(6), without)
    assert all(map(torch.equal, ours, theirs))
    for mine, its in zip(one.state_dict()["state"].values(), other.state_dict()["state"].values(), strict=True):
        assert all(torch.equal(mine[name], its[name]) for name in its)


def test_a_state_goes_from_pytorchs_to_ours_and_back(tmp_path):
    (ours, one), (theirs, other) = both()
    taken(theirs, other, range(4))
    for start, (weights, optimizer), (last, before) in (
        (4, (ours, one), (theirs, other)),
        (6, both()[1], (ours, one)),
    ):
        torch.save(before.state_dict(), tmp_path / "state")
        optimizer.load_state_dict(torch.load(tmp_path / "state", weights_only=True))
        for weight, value in zip(weights, last, strict=True):
            weight.data.copy_(value.data)
        taken(weights, optimizer, range(start, start + 2))
        final = weights
    (_, _), (whole, optimizer) = both()
    taken(whole, optimizer, range(8))
    assert all(map(torch.equal, final, whole))


def test_a_copy_goes_its_own_way():
    (weights, optimizer), _ = both()
    taken(weights, optimizer, range(2))
    pair = copy.deepcopy((weights, optimizer))
    taken(*pair, range(2, 4))
    assert {float(state["step"]) for state in optimizer.state.values()} == {2.0}
    assert {float(state["step"]) for state in pair[1].state.values()} == {4.0}
    assert not torch.equal(pair[0][0], weights[0])
