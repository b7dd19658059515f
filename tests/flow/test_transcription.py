"""A second voice, slow and literal: the released algorithm in loops over NumPy numbers, one row at a time.

It follows bohanli/BERT-flow flow/glow_1x1.py and flow/glow_ops_1x1.py@7fa8f6d line by line and shares nothing with our
code but the names of the parameters. Agreeing with it is not agreeing with the released code: that is
``test_released_code.py``.
"""

import math

import numpy as np
import pytest
import torch

from bertflow.flow import GlowConfig
from bertflow.flow.glow import build_glow

from .test_released_code import RELEASED

CONFIGS = {
    "the shipped config": {"levels": 3, "depth": 3, "permutation": "reversal"},
    "affine": {"levels": 2, "depth": 2, "permutation": "reversal", "coupling": "affine"},
    "gatu": {"levels": 2, "depth": 2, "permutation": "reversal", "activation": "gatu"},
    "lu": {"levels": 2, "depth": 2, "permutation": "lu-rotation"},
    "affine, gatu, lu": {
        "levels": 3,
        "depth": 1,
        "permutation": "lu-rotation",
        "coupling": "affine",
        "activation": "gatu",
    },
}
TOLERANCE = {"rtol": 1e-10, "atol": 1e-10}


def actnorm(x, p, name):
    return [(x[i] + p[name + ".shift"][i]) * math.exp(3 * p[name + ".log_scale"][i]) for i in range(len(x))]


def actnorm_inverse(z, p, name):
    return [z[i] * math.exp(-3 * p[name + ".log_scale"][i]) - p[name + ".shift"][i] for i in range(len(z))]


def conv(x, weight):
    return [sum(weight[out][i] * x[i] for i in range(len(x))) for out in range(len(weight))]


def conv_stack(x, p, name, config):
    h = actnorm(conv(x, p[name + ".first.linear.weight"]), p, name + ".first.actnorm")
    h = [max(value, 0.0) for value in h]
    second = actnorm(conv(h, p[name + ".second.linear.weight"]), p, name + ".second.actnorm")
    if config.activation == "relu":
        h = [max(value, 0.0) for value in second]
    else:
        gate = actnorm(conv(h, p[name + ".gate.linear.weight"]), p, name + ".gate.actnorm")
        h = [math.tanh(a) / (1 + math.exp(-b)) for a, b in zip(second, gate, strict=True)]
    out = conv(h, p[name + ".last.linear.weight"])
    bias, logs = p[name + ".last.linear.bias"], p[name + ".last.log_scale"]
    return [(out[i] + bias[i]) * math.exp(3 * logs[i]) for i in range(len(out))]


def matrix(p, name):
    """W = P L U of one step."""
    factors, signs = p[name + ".factors"], p[name + ".signs"]
    dim = len(factors)
    lower, upper, permutation = np.eye(dim), np.zeros((dim, dim)), np.zeros((dim, dim))
    for i in range(dim):
        permutation[int(p[name + ".permutation"][i])][i] = 1.0
        upper[i][i] = signs[i] * math.exp(factors[i][i])
        for j in range(dim):
            if j < i:
                lower[i][j] = factors[i][j]
            if j > i:
                upper[i][j] = factors[i][j]
    return permutation @ lower @ upper


def mix(x, p, name, config, backwards=False):
    if config.permutation == "reversal":
        return x[::-1], 0.0
    weight = matrix(p, name)
    log_s = sum(p[name + ".factors"][i][i] for i in range(len(x)))
    return list(np.array(x) @ (np.linalg.inv(weight) if backwards else weight)), log_s


def scale_and_shift(x1, p, name, config):
    made = conv_stack(x1, p, name + ".network", config)
    if config.coupling == "additive":
        return [1.0] * len(made), made
    return [1 / (1 + math.exp(-(s + 2.0))) for s in made[1::2]], made[0::2]


def step_name(level, step):
    return "flow." + "deeper.inner." * level + f"step{step}"


def forward(x, p, config):
    """One row -> z, log |det dz/dx|."""
    x, logdet, factored = list(x), 0.0, []
    for level in range(config.levels):
        for step in range(config.depth):
            name = step_name(level, step)
            x = actnorm(x, p, name + ".actnorm")
            logdet += sum(3 * p[name + ".actnorm.log_scale"][i] for i in range(len(x)))
            x, change = mix(x, p, name + ".mixing", config)
            logdet += change
            x1, x2 = x[: len(x) // 2], x[len(x) // 2 :]
            scale, shift = scale_and_shift(x1, p, name + ".coupling", config)
            x = x1 + [(x2[i] + shift[i]) * scale[i] for i in range(len(x2))]
            logdet += sum(math.log(value) for value in scale)
        if level < config.levels - 1:
            factored += x[len(x) // 2 :]
            x = x[: len(x) // 2]
    return factored + x, logdet


def inverse(z, p, config):
    """One row of latents -> x."""
    z, width = list(z), len(z) // 2 ** (config.levels - 1)
    x, z = z[-width:], z[:-width]
    for level in reversed(range(config.levels)):
        for step in reversed(range(config.depth)):
            name = step_name(level, step)
            x1, z2 = x[: len(x) // 2], x[len(x) // 2 :]
            scale, shift = scale_and_shift(x1, p, name + ".coupling", config)
            x = x1 + [z2[i] / scale[i] - shift[i] for i in range(len(z2))]
            x, _ = mix(x, p, name + ".mixing", config, backwards=True)
            x = actnorm_inverse(x, p, name + ".actnorm")
        if level > 0:
            x, z = x + z[-len(x) :], z[: -len(x)]
    return x


@pytest.fixture(params=CONFIGS, scope="module")
def case(request):
    """A flow in float64 whose parameters are moved off their start, its numbers, and rows."""
    generator = torch.Generator().manual_seed(11)
    config = GlowConfig(hidden=5, **RELEASED, **CONFIGS[request.param])
    flow = build_glow(16, config, seed=2).double()
    with torch.no_grad():
        for parameter in flow.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=generator))
    numbers = {name: tensor.numpy() for name, tensor in flow.state_dict().items()}
    return flow, numbers, config, torch.randn(4, 16, generator=generator, dtype=torch.float64)


def test_z_equals_the_transcription(case):
    flow, numbers, config, x = case
    expected = torch.tensor([forward(row, numbers, config)[0] for row in x.tolist()], dtype=torch.float64)
    torch.testing.assert_close(flow(x)[0].detach(), expected, **TOLERANCE)


def test_log_likelihood_equals_the_transcription(case):
    flow, numbers, config, x = case
    expected = []
    for row in x.tolist():
        z, logdet = forward(row, numbers, config)
        expected.append(logdet + sum(-0.5 * (value * value + math.log(2 * math.pi)) for value in z))
    torch.testing.assert_close(flow.log_prob(x).detach(), torch.tensor(expected, dtype=torch.float64), **TOLERANCE)


def test_inverse_equals_the_transcription(case):
    flow, numbers, config, z = case
    expected = torch.tensor([inverse(row, numbers, config) for row in z.tolist()], dtype=torch.float64)
    torch.testing.assert_close(flow.inverse(z)[0].detach(), expected, **TOLERANCE)
