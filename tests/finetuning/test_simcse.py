"""Contrast without labels: the loss against sentence-transformers', what dropout is needed for, what is left behind."""

import numpy as np
import pytest
import torch

import bertflow
from bertflow.data.pairs import Pairs, pairs_of_sentences
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.errors import UsageError
from bertflow.finetuning import FinetuneRecipe
from bertflow.finetuning.fitting import SiameseFit, fit_siamese
from bertflow.finetuning.objectives import OBJECTIVES, Sides
from bertflow.text_keys import hash_texts
from bertflow.training.trainer import quiet_trainer

from ..texts import NOUNS
from .conftest import weights

TEXT = [f"the {a} {noun} sleeps in the {place} ." for a in ("big", "small", "red") for noun in NOUNS for place in NOUNS]
PAIRS = pairs_of_sentences(TEXT)
BRISK = {"objective": "simcse", "learning_rate": 5e-3, "held_out": 0.0}


def opened(folder, pooling="cls(2)"):
    return TransformerEncoder(folder, pooling, device="cpu")


def built(folder, **changes):
    return SiameseFit(opened(folder), PAIRS, FinetuneRecipe(**{**BRISK, **changes}))


@pytest.mark.parametrize("head", [False, True])
def test_the_loss_and_its_gradients_are_those_of_sentence_transformers(head):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import losses

    u, v = (side.requires_grad_() for side in torch.randn(2, 8, 5, dtype=torch.float64))
    objective = OBJECTIVES["simcse"](5, FinetuneRecipe(objective="simcse", head=head), 0).double()
    ours = objective(Sides(u, v, torch.arange(8), torch.arange(8), None), 0, lambda rows: rows)["loss"]
    x, y = u, v
    if head:
        weight, bias = objective.parameters()
        x, y = torch.tanh(u @ weight.T + bias), torch.tanh(v @ weight.T + bias)
    second_voice = losses.MultipleNegativesRankingLoss(SentenceTransformer(modules=[torch.nn.Identity()]), scale=20.0)
    theirs = second_voice.compute_loss_from_embeddings([x, y], torch.arange(8))
    assert ours.item() == pytest.approx(theirs.item(), abs=1e-6)
    every = (u, v, *objective.parameters())
    for one, other in zip(torch.autograd.grad(ours, every, retain_graph=True), torch.autograd.grad(theirs, every),
                          strict=True):  # fmt: skip
        torch.testing.assert_close(one, other)


@pytest.mark.slow
def test_one_batch_has_the_loss_that_sentence_transformers_finds_for_the_same_dropout(tiny_bert, tmp_path):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer import losses, modules

    fit = built(tiny_bert, head=False)
    rows = next(iter(fit.data.train_dataloader())).numpy()
    opened(tiny_bert).save(tmp_path / "start")
    words = modules.Transformer(str(tmp_path / "start"))
    model = SentenceTransformer(modules=[words, modules.Pooling(16, "cls")], device="cpu").double().train()
    fit.module.double()  # float32 alone differs by 1e-6; the loss itself stays float32
    features = [model.preprocess([TEXT[row] for row in rows]) for _ in range(2)]
    found = []
    for loss in (lambda: fit.module.judged(fit.data.batch(rows), gathered=False)["loss"],
                 lambda: losses.MultipleNegativesRankingLoss(model, scale=20.0)(features, None)):  # fmt: skip
        torch.manual_seed(7)
        found.append(loss().item())
    assert found[0] == pytest.approx(found[1], abs=2e-7)
    torch.manual_seed(8)
    assert fit.module.judged(fit.data.batch(rows), gathered=False)["loss"].item() != found[0]


def test_the_head_starts_as_berts_layers_do_and_can_be_left_out(tiny_bert):
    (weight, bias) = built(tiny_bert).module.objective.parameters()
    assert (weight.shape, bias.abs().max()) == ((16, 16), 0)
    assert 0.015 < weight.std() < 0.025
    assert not list(built(tiny_bert, head=False).module.objective.parameters())


def test_sentences_move_apart_and_a_sentence_finds_itself(tiny_bert):
    def mean_cosine(encoder):
        x = encoder.encode(TEXT, normalize_embeddings=True)
        return float((x @ x.T).mean())

    fit = SiameseFit(opened(tiny_bert, "mean(2)"), PAIRS, FinetuneRecipe(**BRISK, head=False))
    begun, batch = mean_cosine(fit.encoder), fit.data.batch(np.arange(0, 108, 7))
    before = fit.module.judged_held_out(batch)
    fit.run(quiet_trainer({}, {"max_epochs": 3, "num_sanity_val_steps": 0, "limit_val_batches": 0}))
    after = fit.module.judged_held_out(batch)
    assert after["loss"] < before["loss"] - 0.1
    assert mean_cosine(fit.encoder) < begun - 0.1


def test_held_out_sentences_are_judged_under_dropout_by_fixed_seed(tiny_bert):
    fit = built(tiny_bert, held_out=0.3)
    batch = fit.data.batch(np.arange(16))
    one, other = (fit.module.judged_held_out(batch)["loss"] for _ in range(2))
    assert one == other
    without = fit.module.eval().judged(batch, gathered=False)["loss"]
    assert one > without  # both sides are equal then


def test_judging_in_the_middle_does_not_change_the_training(tiny_bert):
    changes = {**BRISK, "held_out": 0.1}
    often = fit_siamese(opened(tiny_bert), PAIRS, trainer={"max_steps": 3, "val_check_interval": 1}, **changes)
    never = fit_siamese(opened(tiny_bert), PAIRS, trainer={"max_steps": 3, "limit_val_batches": 0}, **changes)
    torch.testing.assert_close(weights(often), weights(never), rtol=0, atol=0)


def test_what_is_written_has_no_head_and_no_labels_and_knows_its_text(tiny_bert, tmp_path):
    fit = fit_siamese(opened(tiny_bert), PAIRS, trainer={"max_steps": 2}, **BRISK, warmup=0.0)
    fit.save(tmp_path / "tuned")
    loaded = opened(tmp_path / "tuned", pooling=None)
    np.testing.assert_array_equal(loaded.encode(TEXT[:4]), fit.encoder.encode(TEXT[:4]))
    said = loaded.describe()
    assert (said["labels"], said["tuned"]["objective"], said["pooling"]) == ([], "simcse", "cls(2)")
    assert said["weights"] != opened(tiny_bert).describe()["weights"]
    np.testing.assert_array_equal(loaded.fitted_hashes(), hash_texts(TEXT))


def test_an_encoder_without_dropout_is_refused_unless_it_is_given_some(steady_bert, refusal):
    assert refusal(built, steady_bert, error=UsageError) == (
        "A sentence should get a different embedding each time, by dropout, but this encoder has no dropout. "
        "Give finetune.dropout, as 0.1."
    )
    batch = (fit := built(steady_bert, dropout=0.2)).data.batch(np.arange(4))
    sides = fit.module(batch)
    assert not torch.equal(sides.u, sides.v)


def test_an_encoder_without_layers_of_dropout_is_refused(steady_bert):
    encoder = opened(steady_bert)
    for module in list(encoder.model.modules()):
        if isinstance(getattr(module, "dropout", None), torch.nn.Dropout):
            module.dropout = Still()
    with pytest.raises(UsageError, match=r"has no dropout\. Choose one that has dropout layers\.$"):
        SiameseFit(encoder, PAIRS, FinetuneRecipe(**BRISK, dropout=0.1))


class Still(torch.nn.Identity):
    """What some models have where no dropout was asked for."""

    p = 0.0


@pytest.mark.parametrize(
    ("pairs", "changes", "message"),
    [
        (PAIRS, {"dropout": 0.0}, "finetune.dropout is a probability above 0 and below 1, got 0."),
        (PAIRS, {"dropout": 1.0}, "finetune.dropout is a probability above 0 and below 1, got 1."),
        (PAIRS, {"batch_size": 1}, "finetune.batch_size must be at least 2 for simcse, got 1."),
        (Pairs("answers", ("a dog", "a cat"), ("the dog", "the cat"), kind="texts"), {}, "The objective simcse pairs "
         "each sentence with itself. Give sentences alone."),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(pairs, changes, message, tiny_bert, refusal):
    assert refusal(lambda: fit_siamese(opened(tiny_bert), pairs, **{**BRISK, **changes}), error=UsageError) == (message)


def test_sentences_are_refused_where_pairs_are_needed(tiny_bert, tmp_path, refusal):
    assert refusal(
        lambda: bertflow.finetune(str(tiny_bert), TEXT, {"objective": "in-batch-negatives"}, output=tmp_path / "run"),
        error=UsageError,
    ) == ("The objective in-batch-negatives learns from pairs, but sentences were given. Give pairs.")


def test_too_few_sentences_are_refused_before_the_weights_are_read(tiny_bert, refusal, monkeypatch):
    monkeypatch.setattr(TransformerEncoder, "model", property(lambda self: pytest.fail("read too early")))
    found = refusal(built, tiny_bert, batch_size=999, error=UsageError)
    assert found.startswith(f"A step needs 999 pairs (finetune.batch_size), got {len(PAIRS)} to train on.")
