"""Right or refused: small random models of many types, against transformers' own, run on one sentence at a time.

All types of transformers' ``AutoModel`` are tried by ``benchmarks/architectures.py``, which writes docs/encoders.md.
"""

import importlib.util
import json
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import transformers

from bertflow.encoder.architecture import FAMILIES, try_padding
from bertflow.encoder.model import BlockStack
from bertflow.errors import UsageError
from bertflow.export.targets import write_export

from .conftest import make, require_near

ROOT = Path(__file__).parents[2]
SPEC = importlib.util.spec_from_file_location("architectures", ROOT / "benchmarks" / "architectures.py")
architectures = sys.modules["architectures"] = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(architectures)

RECORD = json.loads(architectures.RECORD.read_text("utf-8"))
RECORDED = {row["name"]: row["outcome"] for row in RECORD["verdicts"]}
FEW = {
    "roberta": "right",
    "deberta-v2": "right",
    "xlnet": "right",  # positions from -1
    "umt5": "right",  # an encoder without its decoder
    "mpt": "right",  # another name for the number of positions
    "llama": "right",
    "clip_text_model": "right",  # hidden_states without the final norm
    "fnet": "by length",  # no mask
    "mobilebert": "by length",  # each token reads its neighbours, the padding too
    "canine": "refused",  # fails on short sentences
    "bros": "refused",  # wants more than tokens
    "vit": "refused",
}
SENTENCES = list(architectures.SENTENCES)


@pytest.fixture
def quiet():
    """transformers warns about its own models."""
    verbosity = transformers.logging.get_verbosity()
    transformers.logging.set_verbosity_error()
    with warnings.catch_warnings(action="ignore"):
        yield
    transformers.logging.set_verbosity(verbosity)


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("name", FEW)
def test_an_architecture_is_right_or_refused(name, tmp_path):
    found = architectures.try_architecture(name, tmp_path)
    assert found.outcome == FEW[name] == RECORDED[name], found
    assert found.error is None or found.error <= 1e-5


@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("name", [*FAMILIES, "camembert", "data2vec-text", "ernie", "megatron-bert"])
def test_a_model_that_reads_as_a_decoder_gives_a_sentence_one_vector(name, tmp_path, monkeypatch):
    monkeypatch.setitem(architectures.OVERRIDES, name, {"is_decoder": True})
    found = architectures.try_architecture(name, tmp_path)
    assert (found.outcome, json.loads((tmp_path / "config.json").read_text())["is_decoder"]) == ("right", True), found
    assert found.error <= 1e-5


READ = [name for name, outcome in RECORDED.items() if outcome not in ("refused", "not tried")]


@pytest.mark.slow
@pytest.mark.usefixtures("quiet")
@pytest.mark.parametrize("name", [*READ, "the refused"])
def test_every_architecture_is_as_the_page_says(name, tmp_path):
    if transformers.__version__ != RECORD["transformers"]:
        pytest.skip(f"the page is about transformers {RECORD['transformers']}: run benchmarks/architectures.py")
    names = [name] if name in READ else [each for each, outcome in RECORDED.items() if outcome == "refused"]
    found = {each: architectures.try_architecture(each, tmp_path / each).outcome for each in names}
    assert found == {each: RECORDED[each] for each in names}


def test_the_page_says_what_was_recorded_of_every_model_type():
    assert architectures.PAGE.read_text("utf-8") == architectures.page(RECORD)
    assert set(RECORDED.values()) <= set(architectures.HEADINGS)  # none is wrong
    if transformers.__version__ == RECORD["transformers"]:
        assert list(RECORDED) == list(architectures.MODEL_MAPPING_NAMES)


@pytest.fixture
def fnet(tmp_path):
    """An encoder that cannot be told what is padding."""
    architectures.write_model("fnet", tmp_path / "fnet")
    return make(tmp_path / "fnet", "mean(1,2)")


def test_groups_of_one_length_are_said_in_one_line(fnet, caplog):
    make(fnet.recipe["model"]).encode(SENTENCES[:4])
    assert caplog.messages == [
        "Padding changes what a model of type fnet reads, so sentences are run in groups of one length."
    ]


def test_groups_of_one_length_are_one_batch_with_gradients(fnet):
    weights = fnet.model.get_input_embeddings().weight.requires_grad_()
    batch = fnet.padded(fnet.tokenized(SENTENCES), np.arange(len(SENTENCES)))
    x = fnet.embed_batch(batch)
    alone = [fnet.encode(sentence) for sentence in SENTENCES]
    require_near(x.detach(), alone)
    x[0].sum().backward()
    read = weights.grad.abs().sum(1) > 0
    assert set(torch.nonzero(read)[:, 0].tolist()) == set(batch.ids[0][batch.mask[0]].tolist())  # no padding


def test_what_must_not_be_padded_is_not_exported(refusal, fnet, tmp_path):
    assert refusal(write_export, fnet, tmp_path / "out", "sentence-transformers", error=UsageError) == (
        "Padding changes the embeddings of this encoder, and programs that load an export pad. "
        "Use bertflow itself, as `bertflow serve`, or another model."
    )


MODEL = SimpleNamespace(
    config=SimpleNamespace(model_type="toy", hidden_size=3), dtype=torch.float32, device=torch.device("cpu")
)
TABLE = torch.randn(20, 3, generator=torch.Generator().manual_seed(0))


READS = {
    "right": lambda ids, mask: TABLE[ids] + (TABLE[ids] * mask[..., None]).sum(1, keepdim=True),
    "unmasked": lambda ids, mask: TABLE[ids] + TABLE[ids].sum(1, keepdim=True),
    "beside others": lambda ids, mask: TABLE[ids] + TABLE[ids].sum((0, 1)),
    "narrow": lambda ids, mask: TABLE[ids][..., :2],
    "overflowing": lambda ids, mask: TABLE[ids] * torch.inf,
}
"""What layer 1 gives."""


def pads(read):
    return try_padding(lambda *given: {1: READS[read](*given)}, range(5, 20), 0, MODEL)


@pytest.mark.parametrize(("read", "allowed"), [("right", True), ("unmasked", False), ("overflowing", True)])
def test_padding_is_allowed_where_it_changes_nothing(read, allowed):
    assert pads(read) is allowed


NEVER_RIGHT = {
    "beside others": "This model of type toy gives a sentence another embedding beside other sentences than alone, "
    "even without padding. Choose another model.",
    "narrow": "A model of type toy cannot read a sentence by itself: it gives a layer of (1, 2, 2) where (1, 2, 3) is "
    "wanted. Choose another model.",
}


@pytest.mark.parametrize(("read", "message"), NEVER_RIGHT.items())
def test_what_cannot_be_right_is_refused(refusal, read, message):
    assert refusal(pads, read, error=UsageError) == message


@torch.no_grad()
@pytest.mark.parametrize("name", [name for name in FAMILIES if name not in ("t5", "mt5", "umt5", "modernbert")])
@pytest.mark.parametrize("lengths", [(7, 7, 7), (9, 1, 4)], ids=["whole", "padded"])
def test_a_mask_is_left_out_or_made_here_and_nothing_changes(name, lengths):
    torch.manual_seed(0)
    sizes = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2}
    config = transformers.AutoConfig.for_model(name, **sizes, intermediate_size=32, embedding_size=8)
    if name == "distilbert":  # calls them otherwise
        config.update({"dim": 16, "hidden_dim": 32, "n_layers": 3, "n_heads": 2})
    stack, seen = BlockStack(transformers.AutoModel.from_config(config).eval(), 3, pooler=False), []
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    ids = torch.where(mask, torch.randint(3, 50, mask.shape), 1)
    theirs, forward = stack.read(ids, mask, [1, 3]), stack.model.forward
    vars(stack)["takes_mask"] = True
    stack.model.forward = lambda **given: seen.append("attention_mask" in given) or forward(**given)
    ours = stack.read(ids, mask, [1, 3], sum(lengths))
    assert seen == [len({*lengths}) > 1]
    for layer in (1, 3):
        torch.testing.assert_close(ours[layer][mask], theirs[layer][mask], rtol=0, atol=0)
