"""The released optimizer, against its own formula in plain numbers. (Against the released code: tests/flow.)"""

import math

import torch

from bertflow.training.module import ReleasedAdamW


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


def test_a_parameter_without_gradient_is_not_decayed():
    weight, other = parameter(1.0), parameter(1.0)
    other.grad = torch.ones(1, dtype=torch.float64)
    ReleasedAdamW([weight, other]).step()
    assert weight.item() == 1.0


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
