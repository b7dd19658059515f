"""The sum put together again is layer 0, for every family; the second voice is the model itself."""

import pytest
import torch
import transformers
from transformers import AutoModel

from bertflow.errors import UsageError
from bertflow.words.encoder import InputSum

SIZE = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "vocab_size": 30,
    "max_position_embeddings": 40,
}
DISTILBERT = {"dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 32, "vocab_size": 30, "max_position_embeddings": 40}
GPT2 = {"n_embd": 16, "n_layer": 1, "n_head": 2, "vocab_size": 30, "n_positions": 40, "eos_token_id": 2}
MODERN = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3}
FAMILIES = {
    "AlbertConfig": ({**SIZE, "embedding_size": 8}, (), 2),
    "BertConfig": (SIZE, (), 2),
    "ConvBertConfig": ({**SIZE, "embedding_size": 16}, (), 2),
    "DebertaV2Config": (SIZE, ("segment",), 0),
    "DistilBertConfig": (DISTILBERT, ("segment",), 0),
    "ElectraConfig": ({**SIZE, "embedding_size": 8}, (), 2),
    "GPT2Config": (GPT2, ("segment", "norm"), 0),
    "MPNetConfig": (SIZE, ("segment",), 0),
    "ModernBertConfig": ({**SIZE, **MODERN}, ("position", "segment"), 0),
    "RobertaConfig": ({**SIZE, "type_vocab_size": 1}, (), 1),
    "XLMRobertaConfig": ({**SIZE, "type_vocab_size": 1}, (), 1),
}
OTHERS = {
    "ErnieConfig": ({**SIZE, "use_task_id": True}, "they differ by up to"),
    "DebertaV2Config": ({**SIZE, "embedding_size": 8}, "they do not fit"),
    "XLNetConfig": (
        {"d_model": 16, "n_layer": 1, "n_head": 2, "d_inner": 32, "vocab_size": 30},
        "it has none of embeddings.word_embeddings, embeddings.tok_embeddings, wte. Choose a model such as BERT, "
        "RoBERTa, MPNet, DistilBERT or ELECTRA.",
    ),
}
IDS = torch.tensor([[3, 9, 14, 9, 7, 4], [3, 21, 4, 1, 1, 1]])  # 1 is padding, as in RoBERTa
MASK = IDS != 1


def random_model(name, size):
    torch.manual_seed(0)
    model = AutoModel.from_config(getattr(transformers, name)(**size)).eval()
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    return model


def inputs():
    return {"input_ids": IDS, "attention_mask": MASK.long(), "token_type_ids": torch.zeros_like(IDS)}


def layer_0(model, **more):
    with torch.no_grad():
        return model(input_ids=IDS, attention_mask=MASK.long(), output_hidden_states=True, **more).hidden_states[0]


@pytest.mark.parametrize("name", FAMILIES)
def test_the_sum_put_together_again_is_layer_0_and_it_is_said_what_a_model_has_not(name):
    size, absent, segments = FAMILIES[name]
    model = random_model(name, size)
    source = InputSum(model)
    made = source.put_together(source.terms(source.rows(inputs())))
    torch.testing.assert_close(made[MASK], layer_0(model)[MASK])
    assert source.check(inputs(), layer_0(model)) < 1e-5
    assert (source.absent, source.segments) == (list(absent), segments)


SEGMENTS = torch.tensor([[0, 0, 0, 1, 1, 1], [1] * 6])
FORCED = torch.tensor([[5, 2, 7, 7, 3, 9]] * 2)


@pytest.mark.parametrize(
    ("name", "term", "rows", "given"),
    [
        *((name, "segment", SEGMENTS, "token_type_ids") for name in ("BertConfig", "ElectraConfig")),
        *((f"{name}Config", "position", FORCED, "position_ids")
          for name in ("Bert", "DistilBert", "GPT2", "MPNet", "Roberta")),
    ],
)  # fmt: skip
def test_segments_and_positions_go_in_as_the_model_takes_them(name, term, rows, given):
    model = random_model(name, FAMILIES[name][0])
    source = InputSum(model)
    made = source.put_together(source.terms(source.rows(inputs()) | {term: rows}))
    torch.testing.assert_close(made[MASK], layer_0(model, **{given: rows})[MASK])


@pytest.mark.parametrize(("name", "first"), [("BertConfig", 0), ("RobertaConfig", 2), ("MPNetConfig", 2)])
def test_positions_are_the_rows_of_the_models_own_matrix(name, first):
    positions = InputSum(random_model(name, FAMILIES[name][0])).rows(inputs())["position"]
    assert positions[0].tolist() == [first + at for at in range(6)]


@pytest.mark.parametrize("name", OTHERS)
def test_another_sum_is_refused(name):
    size, how = OTHERS[name]
    model = random_model(name, size)
    with pytest.raises(UsageError, match=f"of type {model.config.model_type} cannot be taken apart: .*{how}"):
        InputSum(model).check(inputs(), layer_0(model))
