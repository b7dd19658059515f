import math

import pytest

from bertflow.affine import whitening_map
from bertflow.errors import UsageError
from bertflow.flow import GlowConfig
from bertflow.flow.glow import FlowMap, build_glow
from bertflow.moments import Moments
from bertflow.training.module import DECAYS, build_optimizer, learning_rate_factor
from bertflow.training.recipe import PRESETS, Recipe


@pytest.fixture
def flow(embeddings):
    return FlowMap(whitening_map(Moments.of(embeddings)), build_glow(6, GlowConfig(hidden=8, permutation="lu")))


@pytest.mark.parametrize(("step", "factor"), [(0, 0.1), (4, 0.5), (9, 1.0)])
def test_the_warm_up_is_a_straight_line(step, factor):
    assert learning_rate_factor(step, 100, 10, DECAYS["constant"]) == pytest.approx(factor)


@pytest.mark.parametrize("step", [0, 25, 50, 100])
def test_the_cosine_falls_to_zero(step):
    expected = 0.5 * (1 + math.cos(math.pi * step / 100))
    assert learning_rate_factor(step, 100, 0, DECAYS["cosine"]) == pytest.approx(expected, abs=1e-12)


def test_only_learned_linear_maps_get_the_smaller_rate(flow):
    slow = build_optimizer(flow, Recipe(), 1000)["optimizer"].param_groups[1]
    assert slow["initial_lr"] == pytest.approx(1e-4)
    assert {id(p) for p in slow["params"]} == {id(p) for n, p in flow.named_parameters() if n.endswith("factors")}


def test_every_parameter_is_trained_once(flow):
    groups = build_optimizer(flow, Recipe(), 1000)["optimizer"].param_groups
    assert sorted(id(p) for group in groups for p in group["params"]) == sorted(map(id, flow.parameters()))


def test_the_warm_up_takes_at_most_a_quarter_of_a_short_fit(flow):
    made = build_optimizer(flow, Recipe(), 20)
    assert made["lr_scheduler"]["scheduler"].get_last_lr()[0] == pytest.approx(1e-3 / 5)


def test_the_released_recipe_has_one_constant_rate(flow):
    made = build_optimizer(flow, PRESETS["paper-tf"], math.inf)
    assert {group["lr"] for group in made["optimizer"].param_groups} == {1e-3}


def test_a_cosine_without_an_end_is_refused(refusal, flow):
    assert refusal(build_optimizer, flow, Recipe(), math.inf, error=UsageError) == (
        "Decay 'cosine' needs to know the number of steps, but the Trainer has no limit. "
        "Set trainer.max_epochs or trainer.max_steps, or flow.decay to constant."
    )
