"""Our flow with the released settings equals the released code.

``golden`` holds numbers that the released BERT-flow (bohanli/BERT-flow@7fa8f6d) printed itself, run unchanged in
float32 under TensorFlow: inputs, variables by name, z, loss, gradients, and the variables after three optimizer steps.
"""

import json
import re

import numpy as np
import pytest
import torch

from bertflow.flow import GlowConfig
from bertflow.flow.glow import Glow, bits_per_dim, build_glow
from bertflow.training.module import ReleasedAdamW

CASES = (
    "l3d3w32_additive_d768",
    "l3d3w32_additive_d32",
    "l2d3w32_additive_d24",
    "l2d2w8_affine_d16",
    "l2d2w8_gatu_d16",
    "l2d2w8_additive_lu_d16",
)
RELEASED = {
    "network": "conv-stack",
    "actnorm_factor": 3.0,
    "initialization": "glorot",
    "restore_order": False,
    "factored_first": True,
}
FORWARD_TOLERANCE = {"rtol": 1e-6, "atol": 1e-6}
GRADIENT_TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}

# Below a step of ours -> below a step of theirs. Their kernels are (1, 1, in, out), ours (out, in).
NAMES = {
    "actnorm.shift": "actnorm/actnorm_center/b",
    "actnorm.log_scale": "actnorm/actnorm_scale/logs",
    "coupling.network.first.linear.weight": "{coupling}/nn/conv_block/1_1/W",
    "coupling.network.first.actnorm.shift": "{coupling}/nn/conv_block/1_1/actnorm/actnorm_center/b",
    "coupling.network.first.actnorm.log_scale": "{coupling}/nn/conv_block/1_1/actnorm/actnorm_scale/logs",
    "coupling.network.second.linear.weight": "{coupling}/nn/conv_block/{second}/W",
    "coupling.network.second.actnorm.shift": "{coupling}/nn/conv_block/{second}/actnorm/actnorm_center/b",
    "coupling.network.second.actnorm.log_scale": "{coupling}/nn/conv_block/{second}/actnorm/actnorm_scale/logs",
    "coupling.network.gate.linear.weight": "{coupling}/nn/conv_block/1_sigm/W",
    "coupling.network.gate.actnorm.shift": "{coupling}/nn/conv_block/1_sigm/actnorm/actnorm_center/b",
    "coupling.network.gate.actnorm.log_scale": "{coupling}/nn/conv_block/1_sigm/actnorm/actnorm_scale/logs",
    "coupling.network.last.linear.weight": "{coupling}/nn/zeros/W",
    "coupling.network.last.linear.bias": "{coupling}/nn/zeros/b",
    "coupling.network.last.log_scale": "{coupling}/nn/zeros/logs",
}


class Golden:
    """One configuration: what the released code printed, under our names."""

    def __init__(self, folder, case):
        config = json.loads((folder / "index.json").read_text())[case]["config"]
        self.numbers = dict(np.load(folder / f"{case}.npz", allow_pickle=False))
        self.dim = self.numbers["x"].shape[1]
        self.config = GlowConfig(
            levels=config["n_levels"],
            depth=config["depth"],
            hidden=config["coupling_width"],
            coupling=config["coupling"],
            activation=config["activation"],
            permutation="reversal" if config["permutation"] else "lu-rotation",
            **RELEASED,
        )

    def __getitem__(self, key):
        return torch.from_numpy(self.numbers[key])

    def build(self) -> Glow:
        """Our flow with their variables."""
        flow = build_glow(self.dim, self.config)
        state = flow.state_dict()
        for name in state:
            if name.endswith(("mixing.permutation", "mixing.signs")):
                state[name] = self.fixed(name)
            elif not name.endswith(("initialized", "_permutation")):
                state[name] = self.ours(name, "param0")
        flow.load_state_dict(state)
        return flow

    def step(self, name):
        """``flow.deeper.inner.step1.actnorm.shift`` -> their folder of that step, and what is below it."""
        step, below = re.search(r"step(\d+)\.(.*)", name).groups()
        return f"bert/flow/flow/revnet_{name.count('deeper')}/revnet_step_{step}/", below

    def fixed(self, name):
        """Their permutation matrix as an order, or their signs."""
        folder, below = self.step(name)
        their = folder + "invertible/"
        if below.endswith("signs"):
            return self[f"param0/{their}sign_S"]
        return self[f"param0/{their}P"].argmax(0)

    def ours(self, name, kind):
        """Their numbers of ``kind`` ("param0", "grad", "param3") for our parameter ``name``."""
        folder, below = self.step(name)
        if below == "mixing.factors":
            lower, upper, log_s = (self[f"{kind}/{folder}invertible/{part}"] for part in ("L", "U", "log_S"))
            return lower.tril(-1) + upper.triu(1) + log_s.diag()
        second = "1_tanh" if self.config.activation == "gatu" else "1_2"
        their = NAMES[below].format(coupling=self.config.coupling, second=second)
        numbers = self[f"{kind}/{folder}{their}"]
        return numbers[0, 0].T if below.endswith("linear.weight") else numbers.flatten()

    def loss(self, flow, x):
        """Bits per dimension, one a row."""
        return bits_per_dim(flow.log_prob(x), self.dim)


@pytest.fixture(params=CASES, scope="module")
def golden(request, shared_data):
    return Golden(shared_data / "golden", request.param)


def test_z_equals_the_released_code(golden):
    torch.testing.assert_close(golden.build()(golden["x"])[0], golden["z"], **FORWARD_TOLERANCE)


def test_loss_equals_the_released_code(golden):
    loss = golden.loss(golden.build(), golden["x"])
    torch.testing.assert_close(loss, golden["bits_per_dim"], **FORWARD_TOLERANCE)


def test_gradients_equal_the_released_code(golden):
    flow = golden.build()
    golden.loss(flow, golden["x"]).mean().backward()
    gradients = {name: parameter.grad for name, parameter in flow.named_parameters()}
    torch.testing.assert_close(gradients, {name: golden.ours(name, "grad") for name in gradients}, **GRADIENT_TOLERANCE)


def three_steps(golden):
    """Our flow and its losses after what the released code did."""
    flow, losses = golden.build(), []
    optimizer = ReleasedAdamW(flow.parameters(), lr=1e-3, weight_decay=0.01)
    for step in range(3):
        optimizer.zero_grad()
        loss = golden.loss(flow, golden[f"train_x/{step}"]).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(flow.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.detach())
    return flow, torch.stack(losses)


def test_three_optimizer_steps_equal_the_released_code(golden):
    flow, _ = three_steps(golden)
    after = {name: parameter.detach() for name, parameter in flow.named_parameters()}
    torch.testing.assert_close(after, {name: golden.ours(name, "param3") for name in after}, **GRADIENT_TOLERANCE)
