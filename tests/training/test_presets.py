import pytest

from bertflow.errors import UsageError
from bertflow.training.recipe import PRESETS, PURPOSES, preset_for, recipe_changes, resolve


@pytest.mark.parametrize("name", PRESETS)
def test_a_recipe_comes_back_from_what_it_changes(name):
    changed = resolve(name, {"learning_rate": 0.5, "glow": {"hidden": 7}})
    assert recipe_changes(changed) == {"learning_rate": 0.5, "glow": {"hidden": 7}}
    assert resolve(name, recipe_changes(changed)) == changed


@pytest.mark.parametrize(
    ("changes", "epochs", "steps"),
    [({}, 4, 375), ({"epochs": 9}, 9, 0), ({"steps": 10}, 4, 10), ({"epochs": 9, "steps": 50}, 9, 50)],
)
def test_epochs_that_are_named_alone_are_kept(changes, epochs, steps):
    recipe = resolve("default", changes)
    assert (recipe.epochs, recipe.steps) == (epochs, steps)
    assert resolve("default", recipe_changes(recipe)) == recipe


def test_the_released_recipe_is_that_of_the_released_code():
    # bohanli/BERT-flow: scripts/train_siamese.sh, optimization_bert_flow.py, flow/config/config_l3_d3_w32.json
    recipe = PRESETS["paper-tf"]
    assert (recipe.glow.levels, recipe.glow.depth, recipe.glow.hidden) == (3, 3, 32)
    assert (recipe.glow.coupling, recipe.glow.permutation, recipe.glow.actnorm_factor) == ("additive", "reversal", 3.0)
    assert (recipe.learning_rate, recipe.weight_decay, recipe.clip_norm, recipe.decay) == (1e-3, 0.01, 1.0, "constant")
    assert (recipe.batch_size // recipe.unit, recipe.max_length, recipe.pooling) == (32, 64, "first-last-avg")
    assert recipe.dropout
    assert recipe.two_sided


REFUSED = [
    (resolve, ("default", {"epoch": 3}), "Unknown option of a recipe 'epoch'. Known: preset, glow, start,"),
    (resolve, ("default", {"glow": {"width": 3}}), "Unknown option of a flow 'width'. Known: levels, depth, hidden,"),
    (resolve, ("default", {"epochs": -1}), "flow.epochs must be at least 0, got -1."),
    (resolve, ("default", {"ema": 1.0}), "flow.ema is a decay from 0 (no average) to below 1, got 1.0."),
    (resolve, ("default", {"unit": 2, "batch_size": 3}), "flow.batch_size must be a multiple of flow.unit (2), got 3."),
    (resolve, ("default", {"n_components": "most"}),
     "flow.n_components should be a valid integer or 'auto' or 'all', got 'most'."),
    (resolve, ("default", {"start": "none", "n_components": 5}),
     "To keep 5 directions, flow.start must be whitening, which sorts them by size; the preset 'similarity-2' has "
     "none. Set flow.start to whitening, or leave n_components out."),
    (resolve, ("paper",), "Unknown preset 'paper'. Known: default, similarity-2, "),
    (preset_for, ("paper", "search"), "Unknown preset 'paper'. Known: default, similarity-2, search-2, both-2, "),
    (preset_for, (None, "clusters"), "Unknown purpose 'clusters'. Known: similarity, search, all."),
    *((preset_for, (preset, purpose), f"The purpose {purpose} uses the preset {row}, but the preset {preset} is given. "
       "Leave one of them out.") for preset, purpose, row in
      [("similarity-2", "search", "search-2"), ("paper-tf", "similarity", "similarity-2")]),
]  # fmt: skip


@pytest.mark.parametrize(("function", "given", "message"), REFUSED)
def test_what_is_no_recipe_is_refused(refusal, function, given, message):
    assert refusal(function, *given, error=UsageError).startswith(message)


def test_who_types_default_gets_the_present_recipe_and_its_version():
    assert resolve("default") == PRESETS["similarity-2"]
    assert resolve("default", {"epochs": 2}).preset == "similarity-2"


@pytest.mark.parametrize("purpose", PURPOSES)
def test_a_purpose_is_a_preset(purpose):
    row = PURPOSES[purpose]
    assert preset_for(None, purpose) == preset_for("default", purpose) == preset_for(row, purpose) == row
    assert {**vars(PRESETS[row]), "preset": "", "tail": 0} == {**vars(PRESETS["similarity-2"]), "preset": ""}
