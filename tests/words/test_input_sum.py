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
GPT2 = {
    "n_embd": 16,
    "n_layer": 1,
    "n_head": 2,
    "vocab_size": 30,
    "n_positions": 40,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
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
    "XLNetConfig": ({"d_model": 16, "n_layer": 1, "n_head": 2, "d_inner": 32, "vocab_size": 30}, "it has none of"),
}
IDS = torch.tensor([[3, 9, 14, 9, 7, 4], [3, 21, 4, 1, 1, 1]])  # 1 is padding, as in RoBERTa
MASK = IDS != 1


def random_model(name, size):
    torch.manual_seed(0)
    model = AutoModel.from_config(getattr(transformers, name)(**size)).eval()
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.3)
    return model


def inputs(segments=None):
    segments = torch.zeros_like(IDS) if segments is None else segments
    return {"input_ids": IDS, "attention_mask": MASK.long(), "token_type_ids": segments}


def layer_0(model, **more):
    with torch.no_grad():
        return model(input_ids=IDS, attention_mask=MASK.long(), output_hidden_states=True, **more).hidden_states[0]


@pytest.fixture(params=FAMILIES)
def family(request):
    size, absent, segments = FAMILIES[request.param]
    return random_model(request.param, size), absent, segments


def test_the_sum_put_together_again_is_layer_0(family):
    model, _, _ = family
    source = InputSum(model)
    made = source.put_together(source.terms(source.rows(inputs())))
    torch.testing.assert_close(made[MASK], layer_0(model)[MASK])
    assert source.check(inputs(), layer_0(model)) < 1e-5


def test_it_is_said_what_a_model_has_not(family):
    model, absent, segments = family
    assert InputSum(model).absent == list(absent)
    assert InputSum(model).segments == segments


@pytest.mark.parametrize("name", ["BertConfig", "ElectraConfig"])
def test_segments_go_in_as_the_model_takes_them(name):
    model, segments = random_model(name, FAMILIES[name][0]), torch.tensor([[0, 0, 0, 1, 1, 1], [1] * 6])
    source = InputSum(model)
    made = source.put_together(source.terms(source.rows(inputs(segments))))
    torch.testing.assert_close(made[MASK], layer_0(model, token_type_ids=segments)[MASK])


@pytest.mark.parametrize("name", ["BertConfig", "DistilBertConfig", "GPT2Config", "MPNetConfig", "RobertaConfig"])
def test_forced_positions_are_those_of_the_model(name):
    model, forced = random_model(name, FAMILIES[name][0]), torch.tensor([[5, 2, 7, 7, 3, 9]] * 2)
    source = InputSum(model)
    made = source.put_together(source.terms(source.rows(inputs()) | {"position": forced}))
    torch.testing.assert_close(made[MASK], layer_0(model, position_ids=forced)[MASK])


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


def test_an_unknown_place_is_refused_in_words():
    with pytest.raises(UsageError) as refused:
        InputSum(random_model("XLNetConfig", OTHERS["XLNetConfig"][0])).check({}, torch.empty(0))
    assert str(refused.value) == (
        "The input embedding of a model of type xlnet cannot be taken apart: it has none of "
        "embeddings.word_embeddings, embeddings.tok_embeddings, wte. Choose a model such as BERT, RoBERTa, MPNet, "
        "DistilBERT or ELECTRA."
    )
