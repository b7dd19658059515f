import dataclasses
import json

import numpy as np
import pytest
import torch
from scipy import stats

from bertflow.errors import BertflowError, NullDirectionWarning
from bertflow.flow.glow import FlowMap
from bertflow.maps import BandMap
from bertflow.moments import Moments
from bertflow.training.divergence import DivergenceError
from bertflow.training.flow_fit import FlowFit, fit_flow, trainer_options
from bertflow.training.recipe import PRESETS, resolve

SMALL = {"glow": {"hidden": 32}, "batch_size": 64, "warmup_steps": 20, "learning_rate": 5e-3}
UNTRAINED = ", so what is kept is a linear map, such as whitening."
DIVERGING = {**SMALL, "learning_rate": 1e6, "warmup_steps": 0, "decay": "constant"}


@pytest.fixture(scope="module")
def fitted(embeddings):
    return fit_flow(embeddings, **SMALL)


def gaussian_bits(train, x):
    density = stats.multivariate_normal(train.mean(0), np.cov(train.T, bias=True))
    return -density.logpdf(x).mean() / (np.log(2) * x.shape[1])


def test_a_flow_beats_the_gaussian_where_the_data_are_none(fitted):
    assert fitted.record.held_out_bits < fitted.record.held_out_bits_gaussian - 0.2
    assert fitted.record.kept.startswith("step ")


def test_a_time_ends_a_fit_beside_the_limits_of_its_recipe(embeddings):
    recipe = resolve("default", SMALL)
    whole = fit_flow(embeddings, recipe).record.steps
    assert fit_flow(embeddings, recipe, trainer={"max_time": {"minutes": 30}}).record.steps == whole > 5
    ended = fit_flow(embeddings, recipe, trainer={"max_time": {"seconds": 0}, "max_steps": 10**9}).record
    assert ended.steps < whole
    assert not ended.interrupted


def test_bits_are_those_of_the_density_that_comes_back(embeddings):
    fit = FlowFit(embeddings, resolve("default", SMALL))
    start = fit.result()
    held_out = fit.held_out.numpy()
    log_prob = start.map.log_prob(torch.from_numpy(held_out)).mean().item()
    assert start.record.held_out_bits == pytest.approx(-log_prob / (6 * np.log(2)), rel=1e-5)


def test_the_gaussian_beside_it_is_that_of_the_training_rows(embeddings):
    fit = FlowFit(embeddings, resolve("default", SMALL))
    expected = gaussian_bits(embeddings[fit.train_rows].astype(np.float64), fit.held_out.numpy())
    assert fit.result().record.held_out_bits_gaussian == pytest.approx(expected, rel=1e-5)


def test_before_its_first_step_the_default_is_whitening(embeddings):
    record = FlowFit(embeddings, resolve("default")).result().record
    assert record.kept == "start"
    assert record.held_out_bits == pytest.approx(record.held_out_bits_gaussian, rel=1e-5)


def test_a_flow_that_only_gets_worse_keeps_its_start_and_says_so(caplog):
    noise = np.random.default_rng(0).normal(size=(400, 6)).astype(np.float32)
    fitted = fit_flow(noise, held_out=0.3, **SMALL | {"learning_rate": 0.3, "epochs": 5, "warmup_steps": 0})
    assert fitted.record.held_out_bits <= fitted.record.held_out_bits_gaussian + 1e-6
    assert fitted.record.kept == "start"
    assert (
        caplog.messages[-1]
        == f"Training did not improve the flow on held-out rows (more epochs or more text may help){UNTRAINED}"
    )


def test_the_global_random_state_is_left_alone(embeddings):
    before = torch.get_rng_state()
    fit_flow(embeddings, **SMALL, epochs=1)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_fit_says_nothing(embeddings, capfd):
    fit_flow(embeddings, **SMALL, epochs=1)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_fits(name, embeddings):
    fitted = fit_flow(embeddings[:200], name, trainer={"max_steps": 3})
    assert fitted.map.dim_out == 6
    assert np.isfinite(fitted.record.train_bits)


def test_a_paper_preset_returns_its_last_step_whatever_it_is_worth(embeddings):
    record = fit_flow(embeddings, "paper-tf").record
    assert record.kept == f"step {record.steps}" == f"step {1500 // 64}"
    assert record.held_out_bits is None


def test_null_directions_are_left_out_counted_and_said(embeddings):
    x = np.concatenate((embeddings, embeddings[:, :1]), axis=1)
    with pytest.warns(NullDirectionWarning, match=r"^1 of 7 directions hold no variance"):
        record = fit_flow(x, **SMALL).record
    assert (record.n_null, record.rank, record.dim_out) == (1, 6, 6)


def test_a_preset_that_keeps_null_directions_is_not_compared_with_a_gaussian_without_them(embeddings):
    x = np.concatenate((embeddings, embeddings[:, :2]), axis=1)
    record = fit_flow(x, "paper-text", trainer={"max_steps": 2}).record
    assert (record.n_null, record.dim_out, record.train_bits_gaussian) == (2, 8, None)


def test_too_few_rows_to_judge_by_keep_the_start_and_say_so(embeddings, caplog):
    fitted = fit_flow(embeddings[:40])
    record = fitted.record
    assert (record.kept, record.steps, record.interrupted) == ("start", 0, False)
    assert (
        caplog.messages[-1]
        == f"40 rows are too few to train a flow (give 1,000 or more){UNTRAINED}"
        == fitted.record.summary()
    )


def test_without_rows_to_judge_by_as_asked_the_last_step_is_kept(embeddings):
    record = fit_flow(embeddings, held_out=0, **SMALL, epochs=1).record
    assert (record.n_held_out, record.kept) == (0, "step 23")


def test_averaged_weights_are_the_ones_that_come_back(embeddings):
    fit = FlowFit(embeddings, resolve("default", {**SMALL, "ema": 0.9, "epochs": 2}))
    plain = fit_flow(embeddings, **SMALL, epochs=2)
    averaged = fit_flow(embeddings, fit.recipe)
    one, other = averaged.map.glow.flow.step0, plain.map.glow.flow.step0
    assert not torch.equal(one.coupling.network.last.weight, other.coupling.network.last.weight)
    assert torch.equal(one.mixing._permutation, other.mixing._permutation)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_rows_of_any_precision_are_taken(dtype, embeddings):
    record = fit_flow(embeddings.astype(dtype), **SMALL, epochs=2).record
    assert record.held_out_bits < record.held_out_bits_gaussian


def test_rows_may_stay_on_disk(tmp_path, embeddings, fitted):
    np.save(tmp_path / "x.npy", embeddings)
    from_disk = fit_flow(np.load(tmp_path / "x.npy", mmap_mode="r"), **SMALL)
    assert from_disk.record.held_out_bits == fitted.record.held_out_bits


def test_training_in_float64_is_possible(embeddings):
    fitted = fit_flow(embeddings, **SMALL, epochs=1, trainer={"precision": "64-true"})
    assert fitted.map(torch.from_numpy(embeddings[:2])).dtype == torch.float64


def test_divergence_stops_says_what_to_change_and_keeps_the_last_good_state(embeddings):
    recipe = resolve("default", DIVERGING)
    with pytest.raises(DivergenceError) as caught:
        fit_flow(embeddings, recipe)
    assert str(caught.value).startswith("The loss should stay finite, but after ")
    assert "Lower flow.learning_rate (it was 1e+06), lengthen flow.warmup_steps (0)" in str(caught.value)


CLOUD = np.random.default_rng(0).normal(size=(99, 6))
REFUSED = [
    (np.full((100, 3), np.nan), {}, "Embeddings must be finite, but row "),
    (np.ones((100, 3)), {}, "All 84 rows are equal, so there is nothing to calibrate."),
    (np.zeros((1, 3)), {}, "A covariance needs at least 2 rows, got 1."),
    (np.zeros(5), {}, "A flow is fitted to embeddings (n, dim), n at least 2; got shape (5,)."),
    (CLOUD[:, :1], {}, "A flow needs at least 2 dimensions, got 1."),
    (CLOUD, {"n_components": 7}, "7 directions were to be kept, but 83 rows of dimension 6 have rank 6. Choose 1 to "
     "that, or fit on more sentences."),
    *((CLOUD, {"trainer": {"precision": precision}}, "The flow's mathematics needs float32 or better, but "
       f"trainer.precision is {precision}. Choose 32-true or 64-true; encoder.dtype sets the encoder's own precision.")
      for precision in ("bf16-mixed", "bf16-true")),
]  # fmt: skip


@pytest.mark.parametrize(("x", "options", "message"), REFUSED)
def test_what_no_flow_can_be_fitted_to_or_by_is_refused(refusal, x, options, message):
    assert refusal(fit_flow, x, error=BertflowError, **options).startswith(message)


def test_the_flow_acts_on_all_directions_and_the_embedding_keeps_the_first(embeddings, fitted):
    kept = fit_flow(embeddings, n_components=2, **SMALL)
    assert (kept.map.glow.dim, kept.map.dim_out, kept.record.dim_out) == (6, 2, 2)
    rows = torch.from_numpy(embeddings)
    assert torch.equal(kept.map(rows), fitted.map(rows)[:, :2])
    assert kept.record.held_out_bits == fitted.record.held_out_bits


def isotropic(dim):
    """Rows whose variance is spread over all directions."""
    return np.random.default_rng(0).permutation(np.concatenate([np.eye(dim), -np.eye(dim)] * 3)).astype(np.float32)


@pytest.mark.parametrize(
    ("dim", "options"),
    [
        (70, {}),
        (90, {"n_components": 20}),
        (90, {"n_components": "all"}),
        (90, {"plain": Moments.of(np.random.default_rng(0).normal(size=(300, 30)))}),
        (90, {"preset": "search-2"}),
        (90, {"preset": "both-2"}),
        (90, {"preset": "paper-text"}),
    ],
    ids=["a narrower cloud", "a number", "all", "a narrow plain mean", "search", "both", "the paper's preset"],
)
def test_a_flow_is_fitted_where_it_may_help_or_is_wanted(dim, options):
    small = {"epochs": 1, "glow": {"hidden": 8}}
    fitted = fit_flow(isotropic(dim), **small, **options)
    assert fitted.record.left_alone is None
    assert fitted.record.steps > 0


@pytest.mark.parametrize(("name", "c"), [("search-2", 1.0), ("both-2", 0.5)])
def test_a_spread_spectrum_has_two_bands_of_the_flow_where_the_tail_counts(name, c):
    x, options = isotropic(70), {"epochs": 1, "glow": {"hidden": 8}}
    banded, flow = fit_flow(x, name, **options).map, fit_flow(x, name, **options, n_components="all").map
    assert isinstance(banded, BandMap)
    y, rows = flow(torch.tensor(x)).numpy(), torch.tensor(x)
    head, tail = (part / np.linalg.norm(part, axis=1, keepdims=True) for part in (y[:, :17], y[:, 17:]))
    np.testing.assert_allclose(banded(rows).numpy(), np.hstack([head, np.sqrt(c) * tail]), atol=1e-5)
    cut = fit_flow(x, "similarity-2", **options).map
    np.testing.assert_allclose(cut(rows).numpy(), y[:, :17], atol=1e-5)


@pytest.mark.parametrize("name", ["similarity-2", "search-2", "both-2"])
def test_a_steep_spectrum_keeps_all_for_every_purpose(name):
    steep = isotropic(70) * np.geomspace(1, 1e-3, 70, dtype=np.float32)
    fitted = fit_flow(steep, name, epochs=1, glow={"hidden": 8})
    assert isinstance(fitted.map, FlowMap)
    assert fitted.map.dim_out == 70


def test_a_record_is_json_and_markdown(fitted):
    assert json.loads(json.dumps(dataclasses.asdict(fitted.record)))["n_train"] == 1425
    assert "| held out | 75 | " in fitted.record.to_markdown()
    assert fitted.record.summary().startswith("The flow fits held-out text ")
    assert dataclasses.replace(fitted.record, held_out_bits=None).summary().startswith("The flow fits training text ")


@pytest.mark.parametrize(
    ("changes", "trainer", "steps"),
    [
        ({}, {}, 22 * 4),
        ({"steps": 30}, {}, 30),
        ({"epochs": 5}, {}, 22 * 5),
        ({"epochs": 0.5}, {}, 11),
        ({"steps": 30}, {"max_epochs": 3}, 22 * 3),
        ({"steps": 30}, {"max_steps": 40}, 40),
    ],
)
def test_a_fit_ends_where_the_recipe_or_the_user_says(embeddings, changes, trainer, steps):
    changes = {"batch_size": 64, "keep": "last", "glow": {"hidden": 4}, **changes}
    assert fit_flow(embeddings, **changes, trainer=trainer).record.steps == steps


@pytest.mark.parametrize(("has_mps", "expected"), [(True, "cpu"), (False, None)])
def test_a_flow_is_not_trained_on_mps_which_has_no_float64(has_mps, expected, monkeypatch):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: has_mps)
    assert trainer_options(resolve("default", {}), 100).get("accelerator") == expected
