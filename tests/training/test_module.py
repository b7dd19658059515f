import copy
import logging

import numpy as np
import pytest
import pytorch_lightning as pl
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import bertflow
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.errors import UsageError
from bertflow.training.batches import ShuffledBatches
from bertflow.training.flow_fit import FlowFit, trainer_options
from bertflow.training.module import BertFlow, TrainingData
from bertflow.training.recipe import resolve
from bertflow.training.trainer import known_warnings, quiet_trainer

from ..texts import NOUNS

SENTENCES = [f"the {a} {b} sleeps in the {c} ." for a in ("big", "small", "red") for b in NOUNS for c in NOUNS]
PAIRED = {"glow": {"hidden": 8, "levels": 2}, "batch_size": 16}


@pytest.fixture
def encoder(tiny_bert):
    return TransformerEncoder(tiny_bert, "first-last-avg", device="cpu")


@pytest.fixture
def in_the_loop(encoder):
    return FlowFit(encoder.encode(SENTENCES), resolve("paper-tf", PAIRED), 0, SENTENCES, encoder)


def trainer(fit, tmp_path, **options):
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu", "logger": False}
    return pl.Trainer(**{**quiet, "default_root_dir": tmp_path, **trainer_options(fit.recipe, len(fit.x)), **options})


def seen_batches(fit, monkeypatch):
    """Remember what reaches the flow in training."""
    seen = []
    log_prob = fit.module.flow.log_prob
    monkeypatch.setattr(fit.module.flow, "log_prob", lambda x: (seen.append(x), log_prob(x))[1])
    return seen


def test_sentences_in_z_out(in_the_loop, encoder):
    z = in_the_loop.module(["the dog sleeps .", "a cat"])
    x = torch.from_numpy(encoder.encode(["the dog sleeps .", "a cat"]))
    assert z.shape == (2, 16)
    torch.testing.assert_close(z, in_the_loop.module(x), atol=1e-5, rtol=1e-4)


def test_sentences_without_an_encoder_are_refused(refusal, encoder):
    recipe = resolve("paper-text")
    module = BertFlow(FlowFit(encoder.encode(SENTENCES), recipe).module.flow, recipe)
    assert refusal(module, ["the dog"], error=UsageError) == (
        "A batch of sentences needs an encoder, but this BertFlow has none. Give it one: encoder=..."
    )


def test_of_the_frozen_map_of_a_fitted_calibrator_a_copy_is_trained(refusal, tmp_path):
    x = torch.randn(200, 6, generator=torch.Generator().manual_seed(0)) * torch.arange(1, 7)
    fitted = bertflow.FlowCalibrator(n_components="all", changes={"epochs": 1}).fit(x.numpy())
    before = copy.deepcopy(fitted.map.state_dict())
    module = BertFlow(fitted.map, fitted.recipe)
    torch.testing.assert_close(module(x), fitted.map(x))
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "accelerator": "cpu", "logger": False}
    quiet |= {"max_steps": 3, "default_root_dir": tmp_path, "enable_checkpointing": False, "limit_val_batches": 0}
    with known_warnings():
        pl.Trainer(**quiet).fit(module, TrainingData(ShuffledBatches(x, np.arange(200), 50, 0)))
    assert not torch.equal(module(x), fitted.map(x))
    assert all(torch.equal(before[name], value) for name, value in fitted.map.state_dict().items())
    assert refusal(BertFlow, fitted, fitted.recipe, error=UsageError) == (
        "BertFlow trains a FlowMap, as a FlowCalibrator has (.map), got FlowCalibrator. Give that."
    )


def test_the_encoder_is_neither_trained_nor_saved_nor_copied(in_the_loop, encoder):
    module = in_the_loop.module
    assert all(name.startswith("flow.") for name in module.state_dict())
    assert {id(p) for p in module.parameters()} == {id(p) for p in module.flow.parameters()}
    assert copy.deepcopy(module)._borrowed.encoder is encoder


def test_with_dropout_the_same_sentence_is_embedded_differently(in_the_loop):
    first, second = (in_the_loop.module.embed(SENTENCES[:4], dropout=True) for _ in range(2))
    assert not torch.equal(first, second)


def test_the_released_recipe_trains_with_dropout_in_the_loop(in_the_loop, encoder, tmp_path, monkeypatch):
    seen = seen_batches(in_the_loop, monkeypatch)
    in_the_loop.run(trainer(in_the_loop, tmp_path, max_steps=2, enable_checkpointing=False))
    clean = encoder.encode(SENTENCES)
    distance = np.abs(seen[0].numpy()[:, None] - clean[None]).max(-1).min(1)
    assert len(seen[0]) == 16
    assert (distance > 1e-2).all()
    assert in_the_loop.result().record.dropout


def test_cached_embeddings_are_trained_on_as_they_are(encoder, tmp_path, monkeypatch):
    x = encoder.encode(SENTENCES)
    fit = FlowFit(x, resolve("paper-tf", {**PAIRED, "dropout": False}), 0, SENTENCES, encoder)
    seen = seen_batches(fit, monkeypatch)
    fit.run(trainer(fit, tmp_path, max_steps=2, enable_checkpointing=False))
    assert (np.abs(seen[0].numpy()[:, None] - x[None]).max(-1).min(1) == 0).all()
    assert not fit.result().record.dropout


def test_dropout_on_bare_embeddings_is_left_out_and_said(encoder, caplog):
    with caplog.at_level(logging.INFO, "bertflow"):
        fit = FlowFit(encoder.encode(SENTENCES), resolve("paper-tf", PAIRED))
    assert not fit.recipe.dropout
    assert caplog.messages == ["paper-tf uses the encoder's dropout, but these embeddings were made without it."]


def test_pairs_share_a_batch(in_the_loop, tmp_path, monkeypatch):
    batches = []
    embed = in_the_loop.module.embed
    monkeypatch.setattr(in_the_loop.module, "embed", lambda b, **k: (batches.append(b), embed(b, **k))[1])
    in_the_loop.run(trainer(in_the_loop, tmp_path, max_steps=1, enable_checkpointing=False))
    rows = [SENTENCES.index(sentence) for sentence in batches[0]]
    assert [row + 1 for row in rows[::2]] == rows[1::2]


def test_the_two_sided_loss_is_the_sum_of_both_means_in_bits(embeddings):
    fit = FlowFit(embeddings, resolve("paper-tf"))
    x = torch.from_numpy(embeddings[:64])
    sides = [-fit.module.flow.log_prob(side).mean() / (6 * np.log(2)) for side in (x[::2], x[1::2])]
    torch.testing.assert_close(fit.module.loss(fit.module.nll(x).mean()), sides[0] + sides[1])


def test_the_start_from_data_is_the_same_whatever_the_batches(embeddings, tmp_path):
    def started(batch_size):
        fit = FlowFit(embeddings, resolve("paper-text", {"batch_size": batch_size, "learning_rate": 0.0}))
        fit.run(trainer(fit, tmp_path, max_steps=1, enable_checkpointing=False))
        return fit.module.flow.glow.flow.step0.actnorm.shift.detach()

    torch.testing.assert_close(started(64), started(8), rtol=0, atol=0)
    assert started(64).abs().max() > 0


def test_a_flow_that_starts_from_data_wants_to_know_them(refusal, embeddings, tmp_path):
    fit = FlowFit(embeddings, resolve("paper-text"))
    made = trainer(fit, tmp_path, limit_val_batches=1, enable_checkpointing=False)
    with known_warnings():
        message = refusal(made.fit, fit.module, *[fit.data.train_dataloader()] * 2, error=UsageError)
    assert message == "This flow starts from data. Call trainer.fit(module, datamodule=TrainingData(...))."


def test_fast_dev_run_takes_one_step(embeddings, tmp_path):
    fit = FlowFit(embeddings, resolve("default"))
    fit.run(trainer(fit, tmp_path, fast_dev_run=True))
    assert fit.steps == 1


def test_the_likelihood_rises_during_a_fit(embeddings, tmp_path):
    logger = pl.loggers.CSVLogger(tmp_path, name="", version="")
    fit = FlowFit(embeddings, resolve("default", {"batch_size": 64, "glow": {"hidden": 32}, "learning_rate": 5e-3}))
    fit.run(trainer(fit, tmp_path, logger=logger, log_every_n_steps=22))
    table = np.genfromtxt(tmp_path / "metrics.csv", delimiter=",", names=True)
    for name in ("trainbits_per_dim", "valbits_per_dim", "trainnll"):
        values = table[name][~np.isnan(table[name])]
        assert values[-1] < values[0] - 0.05
    assert np.isfinite(table["valmean_cosine"]).sum() == 4


class Asked(TorchDispatchMode):
    """Counts the numbers that Python asks tensors for: on a GPU each would be waited for."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += func.overloadpacket.__name__ == "_local_scalar_dense"
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("preset", ["default", pytest.param("paper-tf", marks=pytest.mark.slow)])
def test_more_steps_ask_for_no_more_numbers(embeddings, preset):
    def asked(steps):
        recipe = resolve(preset, {"batch_size": 32, "dropout": False, "held_out": 0.0})
        fit = FlowFit(embeddings, recipe)
        options = {"accelerator": "cpu", "max_steps": steps, "max_epochs": 99, "log_every_n_steps": 1000}
        trainer = quiet_trainer(trainer_options(recipe, len(fit.x)), options)
        with Asked() as mode:
            fit.run(trainer)
        assert trainer.global_step == steps
        return mode.count

    assert asked(2) == asked(6)
