import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy
from transformers import BertModel, BertTokenizerFast

from bertflow.data.pairs import Pairs
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.errors import DataError, UsageError
from bertflow.evaluation.score_table import SystemFacts
from bertflow.finetuning import FinetuneRecipe
from bertflow.finetuning.fitting import SiameseFit, fit_siamese, siamese_options
from bertflow.finetuning.siamese import freeze_unread
from bertflow.text_keys import hash_texts
from bertflow.training.trainer import quiet_trainer

from ..texts import NOUNS
from .conftest import assert_close, opened, weights

WORDS = [(f"the {a} {noun} sleeps .", f"a {noun} in the {place}") for a in ("big", "small", "red") for noun in NOUNS
         for place in NOUNS]  # fmt: skip
FIRST, SECOND = zip(*WORDS, strict=True)
CLASSES = ("animal", "person", "thing")
LABELS = np.array([{"man": 1, "house": 2, "garden": 2}.get(first.split()[2], 0) for first in FIRST])
PAIRS = Pairs("nouns", FIRST, SECOND, LABELS, "classes", classes=CLASSES)
GRADED = Pairs("stsb-train", FIRST, SECOND, (LABELS / 2).astype(np.float32))
RELATED = Pairs("answers", FIRST, SECOND, kind="texts")
WITH_NEGATIVES = replace(RELATED, negatives=tuple(" ".join(reversed(text.split())) for text in SECOND))
BRISK = {"learning_rate": 5e-3, "held_out": 0.0}


@pytest.mark.parametrize(("objective", "pairs"), [("classification", PAIRS), ("regression", GRADED)])
def test_what_is_learned_holds_for_pairs_that_were_held_out(objective, pairs, tiny_bert):
    changes = {"objective": objective, "learning_rate": 5e-3, "held_out": 0.3}
    start, end = (fit_siamese(opened(tiny_bert), pairs, epochs=epochs, **changes) for epochs in (0.2, 12.0))
    assert end.held_out["held_out_loss"] < 0.5 * start.held_out["held_out_loss"]


def test_answers_are_found_after_training_with_other_answers_as_wrong_ones(tiny_bert):
    def found(encoder):
        sides = ("the small {} sleeps .", "a {} in the house")
        questions, answers = (encoder.encode([side.format(noun) for noun in NOUNS]) for side in sides)
        return (questions @ answers.T / np.linalg.norm(answers, axis=1)).argmax(1).tolist()

    encoder = opened(tiny_bert)
    fit = fit_siamese(encoder, RELATED, objective="in-batch-negatives", two_sided=True, epochs=12.0, **BRISK)
    fit.module.eval()
    assert found(encoder) == list(range(len(NOUNS)))


def test_a_step_is_what_a_plain_loop_takes(steady_bert):
    fit = fit_siamese(opened(steady_bert), PAIRS, trainer={"max_steps": 3}, **BRISK)
    fresh = SiameseFit(opened(steady_bert), PAIRS, FinetuneRecipe(**BRISK))
    loader, head = iter(fresh.data.train_dataloader()), fresh.module.objective.weight.detach().clone().requires_grad_()
    tokenizer = BertTokenizerFast.from_pretrained(steady_bert)
    model = BertModel.from_pretrained(steady_bert, add_pooling_layer=False, num_hidden_layers=2)
    every = [*model.parameters(), head]
    groups = [{"params": [p for p in every if p.ndim > 1], "weight_decay": 0.01},
              {"params": [p for p in every if p.ndim == 1], "weight_decay": 0.0}]  # fmt: skip
    optimizer = torch.optim.AdamW(groups)
    for share in (0.0, 1.0, 0.5):  # one step of warm-up, then down from three steps
        rows = next(loader).tolist()
        u, v = (embedded(model, tokenizer([side[row] for row in rows], padding=True, return_tensors="pt"))
                for side in (FIRST, SECOND))  # fmt: skip
        loss = cross_entropy(torch.cat([u, v, (u - v).abs()], 1) @ head.T, torch.from_numpy(LABELS[rows]))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(every, 1.0)
        for group in optimizer.param_groups:
            group["lr"] = BRISK["learning_rate"] * share
        optimizer.step()
    # Adam divides gradients by their size, also those that are rounding errors: a step is up to 5e-3.
    assert_close(dict(model.named_parameters()), dict(fit.module.model.named_parameters()), atol=1e-4)
    torch.testing.assert_close(fit.module.objective.weight, head, rtol=0, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("objective", "pairs"),
    [("classification", PAIRS), ("in-batch-negatives", RELATED), ("in-batch-negatives", WITH_NEGATIVES)],
)
def test_sentence_transformers_comes_to_the_same_embeddings(objective, pairs, steady_bert, tmp_path):
    """SBERT's recipe in SBERT's own loop: the same pairs in the same order, as many steps, the same head."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import losses, modules
    from sentence_transformers.sentence_transformer.readers import InputExample
    from torch.utils.data import DataLoader

    # Every seventh pair: a text that came twice in a batch would be a wrong answer to itself there.
    pairs, size = (pairs, 16) if objective == "classification" else (pairs.taken(np.arange(0, len(pairs), 7)), 4)
    changes = {"objective": objective, "learning_rate": 1e-3, "batch_size": size, "held_out": 0.0}
    fit = fit_siamese(opened(steady_bert), pairs, **changes)
    fresh = SiameseFit(opened(steady_bert), pairs, FinetuneRecipe(**changes))
    order = [rows.tolist() for rows in fresh.data.train_dataloader()]
    opened(steady_bert).save(tmp_path / "start")
    words = modules.Transformer(str(tmp_path / "start"))
    model = SentenceTransformer(modules=[words, modules.Pooling(16, "mean")], device="cpu")
    loss = losses.MultipleNegativesRankingLoss(model)
    if objective == "classification":
        loss = losses.SoftmaxLoss(model, 16, 3)
        loss.classifier.weight.data = fresh.module.objective.weight.detach().clone()
        loss.classifier.bias = None
    labels = np.zeros(len(pairs), int) if pairs.target is None else pairs.target
    sides = filter(None, (pairs.first, pairs.second, pairs.negatives))
    examples = [InputExample(texts=list(texts), label=int(label))
                for *texts, label in zip(*sides, labels, strict=True)]  # fmt: skip
    warmup = math.ceil(0.1 * len(order))
    model.old_fit([(DataLoader(examples, batch_sampler=order), loss)], warmup_steps=warmup, weight_decay=0.01,
                  optimizer_params={"lr": 1e-3}, show_progress_bar=False)  # fmt: skip
    start, ours, theirs = (one.encode(list(SECOND)) for one in (opened(steady_bert), fit.encoder, model))
    assert np.abs(ours - start).max() > 1e-2
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-4)


def embedded(model, inputs):
    mask = inputs["attention_mask"][..., None]
    return (model(**inputs).last_hidden_state * mask).sum(1) / mask.sum(1)


@pytest.mark.parametrize(
    "pooling", ["cls(2)", "max", "last-token", "content(1,2)", "sif(2)", "soft-sif", "pooler", "concat(0,3)", "mean(0)"]
)
def test_every_pooling_trains(pooling, tiny_bert):
    encoder = opened(tiny_bert, pooling)
    before = {name: parameter.detach().clone() for name, parameter in encoder.model.named_parameters()}
    fit = fit_siamese(encoder, PAIRS, trainer={"max_steps": 2}, **BRISK)
    assert fit.module.objective.weight.shape == (3, 3 * encoder.dim)
    after = dict(encoder.model.named_parameters())
    changed = {name for name, tensor in before.items() if not torch.equal(tensor, after[name])}
    assert changed == {name for name, parameter in after.items() if parameter.requires_grad}
    assert any("word_embeddings" in name for name in changed)


def test_the_head_has_a_learning_rate_of_its_own(tiny_bert):
    fits = [
        fit_siamese(opened(tiny_bert), PAIRS, learning_rate=1e-9, head_learning_rate=rate, trainer={"max_steps": 4})
        for rate in (None, 1e-2)
    ]
    slow, fast = (fit.module.objective.weight.detach() for fit in fits)
    start = SiameseFit(opened(tiny_bert), PAIRS, FinetuneRecipe()).module.objective.weight.detach()
    torch.testing.assert_close(slow, start, atol=1e-6, rtol=0)
    assert float((fast - start).abs().max()) > 1e-3
    np.testing.assert_allclose(*(fit.encoder.encode(["a dog"]) for fit in fits), atol=1e-5)


@pytest.mark.parametrize(
    ("objective", "pairs", "rate", "expected"),
    [("classification", PAIRS, 1e-2, {"learning_rate": 1e-5, "head_learning_rate": 5e-3}),
     ("in-batch-negatives", RELATED, None, {"learning_rate": 1e-5})],
)  # fmt: skip
def test_the_learning_rate_of_a_head_is_logged_under_its_own_name(objective, pairs, rate, expected, tiny_bert):
    trainer = {"max_steps": 2, "log_every_n_steps": 1}
    fit = fit_siamese(
        opened(tiny_bert), pairs, objective=objective, head_learning_rate=rate, warmup=0.0, trainer=trainer
    )
    logged = fit.module.trainer.logged_metrics
    rates = {name.removeprefix("train/"): float(logged[name]) for name in logged if name.endswith("_rate")}
    assert rates == pytest.approx(expected)


def test_a_short_run_logs_ten_times():
    assert siamese_options(FinetuneRecipe(batch_size=4), 100)["log_every_n_steps"] == 2
    assert siamese_options(FinetuneRecipe(batch_size=4, epochs=0.1), 100)["log_every_n_steps"] == 1
    assert siamese_options(FinetuneRecipe(batch_size=4), 10_000)["log_every_n_steps"] == 50


def test_what_is_not_read_is_not_trained(tiny_bert):
    encoder = opened(tiny_bert)
    encoder.model.unread = torch.nn.Parameter(torch.ones(3, 3))
    freeze_unread(encoder)
    assert [name for name, p in encoder.model.named_parameters() if not p.requires_grad] == ["unread"]


def test_dropout_is_on_while_it_trains_and_off_afterwards(tiny_bert):
    encoder = opened(tiny_bert)
    fit = SiameseFit(encoder, PAIRS, FinetuneRecipe(held_out=0.0))
    batch = fit.data.batch(np.arange(8))
    assert not torch.equal(fit.module(batch).u, fit.module(batch).u)
    fit_siamese(encoder, PAIRS, trainer={"max_steps": 1}, held_out=0.0)
    assert not encoder.model.training


@pytest.mark.parametrize(
    ("changes", "seed", "message"),
    [
        ({"learning_rate": 1e-3}, 0, "The checkpoint is of a run with learning_rate 0.005, this one has 0.001. "),
        ({}, 1, "The checkpoint is of a run with seed 0, this one has 1. "),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(changes, seed, message, tiny_bert, stop_at, tmp_path, refusal):
    stop = stop_at(2, tmp_path / "step.ckpt")
    fit_siamese(opened(tiny_bert), PAIRS, trainer={"callbacks": [stop]}, **BRISK)
    assert refusal(
        lambda: fit_siamese(opened(tiny_bert), PAIRS, resume=stop.path, seed=seed, **{**BRISK, **changes}),
        error=UsageError,
    ) == (f"{message}Resume with the options of the run that was interrupted, or begin a new one.")


def test_gradients_of_small_batches_add_up(steady_bert):
    pairs = PAIRS.taken(range(96))
    whole = fit_siamese(opened(steady_bert), pairs, batch_size=24, **BRISK)
    parts = fit_siamese(opened(steady_bert), pairs, batch_size=12, trainer={"accumulate_grad_batches": 2}, **BRISK)
    assert parts.steps == whole.steps == 4
    assert_close(weights(whole), weights(parts), atol=1e-4)  # as above


def test_activations_that_are_computed_again_give_the_same_weights(tiny_bert):
    kept = fit_siamese(opened(tiny_bert), PAIRS, trainer={"max_steps": 3}, **BRISK)
    again = fit_siamese(opened(tiny_bert), PAIRS, trainer={"max_steps": 3}, gradient_checkpointing=True, **BRISK)
    assert_close(weights(kept), weights(again))


def test_half_precision_trains_float32_weights(tiny_bert):
    full = fit_siamese(opened(tiny_bert), PAIRS, trainer={"max_steps": 3}, **BRISK)
    half = fit_siamese(opened(tiny_bert), PAIRS, trainer={"max_steps": 3, "precision": "bf16-mixed"}, **BRISK)
    assert {tensor.dtype for tensor in half.module.parameters()} == {torch.float32}
    assert not torch.equal(full.module.objective.weight, half.module.objective.weight)
    torch.testing.assert_close(full.module.objective.weight, half.module.objective.weight, atol=2e-2, rtol=0)


def test_what_was_learned_is_a_model_folder(tiny_bert, tmp_path):
    encoder = opened(tiny_bert, "mean(1,2)")
    fit_siamese(encoder, PAIRS, trainer={"max_steps": 2}, **BRISK).save(tmp_path / "tuned")
    loaded = opened(tmp_path / "tuned", pooling=None)
    np.testing.assert_array_equal(loaded.encode(FIRST[:4]), encoder.encode(FIRST[:4]))
    assert np.abs(loaded.encode(FIRST[:4]) - opened(tiny_bert, "mean(1,2)").encode(FIRST[:4])).max() > 1e-3
    assert BertModel.from_pretrained(tmp_path / "tuned", add_pooling_layer=False).config.num_hidden_layers == 2


def test_it_has_a_name_and_weights_of_its_own_and_knows_where_it_came_from(tiny_bert, tmp_path):
    start = opened(tiny_bert).describe()
    fit_siamese(opened(tiny_bert), PAIRS, trainer={"max_steps": 2}, **BRISK).save(tmp_path / "mine" / "encoder")
    said = opened(tmp_path / "mine" / "encoder").describe()
    assert said["encoder"] == "mine"
    assert said["weights"] != start["weights"]
    assert said["tuned"]["from"] == start["encoder"]
    assert said["tuned"]["weights"] == start["weights"]
    assert (said["tuned"]["objective"], said["tuned"]["pairs"], said["labels"]) == ("classification", 108, ["nouns"])


def test_the_text_of_labels_counts_as_seen(tiny_bert, tmp_path):
    fit_siamese(opened(tiny_bert), PAIRS, trainer={"max_steps": 1}, **BRISK).save(tmp_path / "tuned")
    tuned = opened(tmp_path / "tuned")
    np.testing.assert_array_equal(tuned.fitted_hashes(), hash_texts((*FIRST, *SECOND)))
    assert SystemFacts.of("tuned", tuned).seen(hash_texts([FIRST[0], "something else"])) == 0.5


def test_with_sif_both_the_counted_text_and_that_of_labels_count(tiny_bert, tmp_path):
    encoder = opened(tiny_bert, "sif(2)").count_tokens(["a dog eats"])
    fit_siamese(encoder, PAIRS, trainer={"max_steps": 1}, **BRISK).save(tmp_path / "tuned")
    expected = hash_texts((*FIRST, *SECOND, "a dog eats"))
    np.testing.assert_array_equal(opened(tmp_path / "tuned", "sif(2)").fitted_hashes(), expected)


def test_a_second_stage_forgets_nothing(tiny_bert, tmp_path):
    fit_siamese(opened(tiny_bert), PAIRS, trainer={"max_steps": 1}, **BRISK).save(tmp_path / "one")
    more = Pairs("birds", ("a bird",) * 16, ("the bird",) * 16, np.array([0, 1] * 8), "classes", classes=("no", "yes"))
    fit_siamese(opened(tmp_path / "one"), more, trainer={"max_steps": 1}, **BRISK).save(tmp_path / "two")
    opened(tmp_path / "two").save(tmp_path / "copy")
    last = opened(tmp_path / "copy")
    assert last.describe()["labels"] == ["nouns", "birds"]
    np.testing.assert_array_equal(last.fitted_hashes(), hash_texts((*FIRST, *SECOND, "a bird", "the bird")))


def test_a_folder_that_lost_the_text_of_its_labels_is_refused(tiny_bert, tmp_path):
    fit_siamese(opened(tiny_bert), PAIRS, trainer={"max_steps": 1}, **BRISK).save(tmp_path / "tuned")
    path = tmp_path / "tuned" / "labeled_text.safetensors"
    path.unlink()
    with pytest.raises(DataError, match=rf"^{path} is missing from the encoder folder. .+ copy it whole"):
        opened(tmp_path / "tuned")


@pytest.mark.parametrize(
    ("pairs", "changes", "message"),
    [
        (GRADED, {}, "The objective classification learns from classes, but the pairs have scores."),
        (RELATED, {"objective": "regression"}, "The objective regression learns from scores, but the pairs have "
         "none."),
        (PAIRS, {"objective": "triplet"}, "Unknown objective 'triplet'. Known: classification, regression, "
         "in-batch-negatives, simcse."),
        (PAIRS, {"batch_size": 200}, "A step needs 200 pairs (finetune.batch_size), got 106 to train on. Give "
         "more pairs, or lower it."),
        (WITH_NEGATIVES, {"objective": "in-batch-negatives", "joint": "apart"}, "Negatives are for the objective "
         "in-batch-negatives, without joint. Leave their column out."),
        (PAIRS, {"head_learning_rate": 0.0}, "finetune.head_learning_rate must be above 0, got 0."),
        (PAIRS, {"objective": "in-batch-negatives", "head_learning_rate": 1e-3}, "finetune.head_learning_rate needs a "
         "head, and in-batch-negatives has none. Leave it out."),
        (PAIRS, {"warmup": 1.5}, "finetune.warmup is a share from 0 to 1, got 1.5."),
        (PAIRS, {"learning_rate": 0.0}, "finetune.learning_rate must be above 0, got 0."),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(pairs, changes, message, tiny_bert, refusal):
    assert refusal(lambda: fit_siamese(opened(tiny_bert), pairs, **changes), error=UsageError) == (message)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_weights_in_half_precision_are_refused(dtype, tiny_bert, refusal):
    encoder = TransformerEncoder(tiny_bert, "mean(2)", device="cpu", dtype=dtype)
    assert refusal(fit_siamese, encoder, PAIRS, **BRISK, error=UsageError) == (
        f"Weights are trained in float32, but the encoder is in {dtype}. Open it with the dtype float32; the Trainer's "
        "precision bf16-mixed computes in half precision."
    )


def test_no_attention_of_a_training_is_planned_for_each_shape(tiny_bert):
    encoder, seen = opened(tiny_bert), []
    encoder.model.register_forward_pre_hook(lambda *_: seen.append(torch.backends.cuda.cudnn_sdp_enabled()))
    fit = SiameseFit(encoder, PAIRS, FinetuneRecipe(batch_size=4, held_out=0.0))
    seen.clear()
    fit.run(quiet_trainer(siamese_options(fit.recipe, len(PAIRS)), {"max_steps": 2}))
    assert seen == 4 * [False]
    assert torch.backends.cuda.cudnn_sdp_enabled()
