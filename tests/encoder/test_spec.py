"""A spec is what an encoder is, but for its weights: making one is the check, and everything else is a view of it."""

import ast
from pathlib import Path

import pytest

import bertflow
from bertflow.cli.command import command
from bertflow.encoder.model import BlockStack
from bertflow.encoder.options import EncoderOptions
from bertflow.encoder.spec import EncoderSpec
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.opening import load

PACKAGE = Path(bertflow.__file__).parent
OPTIONS = {
    "pooling": "mask(3)", "max_length": 30, "dtype": "bfloat16", "device": "cpu", "revision": None, "prompt": "a ",
    "chunks": "tokens:5:2:max", "template": "the {} [MASK] .",
}  # fmt: skip


@pytest.fixture
def no_weights(monkeypatch):
    monkeypatch.setattr(BlockStack, "load", lambda *given: pytest.fail("weights were read"))


@pytest.mark.usefixtures("no_weights")
def test_recipe_and_description_are_views_of_the_spec(tiny_bert):
    spec = EncoderSpec.of(tiny_bert, **OPTIONS)
    assert spec.recipe == {"model": str(tiny_bert), **OPTIONS}
    assert EncoderSpec.of(**spec.recipe).facts == spec.facts
    encoder = load(tiny_bert, **OPTIONS)
    assert (encoder.recipe, encoder.describe(), encoder.dim) == (spec.recipe, spec.facts, 16)
    said = repr(TransformerEncoder(tiny_bert, "mean(1,2)", max_length=5))
    assert said == f"TransformerEncoder('{tiny_bert}', pooling='mean(1,2)', max_length=5, dim=16)"


def identifiers(path):
    """The names of parameters, fields and keywords in a file."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.arg | ast.keyword):
            yield node.arg
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id


def test_a_new_option_of_an_encoder_touches_three_files():
    """No others list the options: its name and help, its check and what it is, and the signature of the encoder."""
    listing = [path for path in PACKAGE.rglob("*.py") if {*EncoderOptions.__annotations__} <= {*identifiers(path)}]
    assert sorted(path.relative_to(PACKAGE).as_posix() for path in listing) == [
        "encoder/options.py",
        "encoder/spec.py",
        "encoder/transformer.py",
    ]


@pytest.mark.parametrize(
    ("name", "prefix"), [("embed", ""), ("search build", ""), ("train", "encoder."), ("finetune", "encoder.")]
)
def test_every_command_takes_the_options_of_an_encoder(name, prefix):
    taken = {option for action in command(name).parser(helping=True)._actions for option in action.option_strings}
    assert {f"--{prefix}{option}" for option in EncoderOptions.__annotations__} <= taken
