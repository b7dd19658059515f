"""Code of a user's own: imported where a command line or a program asks for it, named where it is missing."""

import sys

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import bertflow
from bertflow.calibration.spelling import CALIBRATORS
from bertflow.cli import main
from bertflow.cli.program import imported
from bertflow.encoder.pooling import POOLINGS, TOKEN_REDUCTIONS
from bertflow.errors import MissingCodeError, UsageError
from bertflow.flow.coupling import COUPLINGS, AffineCoupling, make_coupling
from tests.test_readme import PAGES

from ..encoder.conftest import make
from .conftest import read_json

TABLES = (COUPLINGS, TOKEN_REDUCTIONS, POOLINGS, CALIBRATORS)
pytestmark = pytest.mark.filterwarnings("ignore:.*:UserWarning:pytorch_lightning")


@pytest.fixture
def forget():
    """As in another process, which did not import the module; so it is in the end."""
    before = [dict(table) for table in TABLES]

    def call():
        sys.modules.pop("mine", None)
        imported.clear()
        for table, rows in zip(TABLES, before, strict=True):
            table.clear()
            table.update(rows)

    yield call
    call()


@pytest.fixture
def folder(place, monkeypatch, forget):
    """A folder with the module of the guide but for its measure, and text."""
    code = PAGES["docs/extend"].split("<<'PYTHON'\n")[1:4]
    (place / "mine.py").write_text("".join(one.split("\nPYTHON\n")[0] + "\n" for one in code))
    monkeypatch.setattr(sys, "path", [*sys.path])
    return place


BOUNDED = (
    "code of your own, in mine: the record of its map cannot be used: Unknown coupling 'bounded'. Known: additive, "
)
BOUNDED += "affine. Add --import mine, or import it before in Python."


def test_a_flow_with_a_coupling_of_ones_own_opens_where_its_module_is_named(folder, forget, capsys, refusal):
    train = "train text.txt --encoder.model BERT --flow.glow.coupling bounded --flow.epochs 1 --output run"
    assert main(train.split()) == 2
    assert "Unknown coupling 'bounded'" in capsys.readouterr().err
    assert main([*train.split(), "--import", "mine"]) == 0
    step = "next: bertflow fix BERT text.txt --output run-fixed --import mine"
    assert capsys.readouterr().out.splitlines()[-1] == step
    assert read_json(folder / "run/calibrator/calibrator.json")["imports"] == ["mine"]
    z = bertflow.load("run").encode(["the dog sleeps ."])
    forget()
    assert refusal(bertflow.load, "run", error=MissingCodeError) == f"run/calibrator needs {BOUNDED}"
    assert main(["inspect", "run", "--import=mine", "--text", "text.txt", "--pairs", "none", "--output", "report"]) == 0
    assert (bertflow.load("run").encode(["the dog sleeps ."]) == z).all()


def test_an_export_names_the_module_of_its_coupling(folder, forget, refusal, told):
    told("doctor", "--help", "--import", "mine")
    encoder = make("BERT")
    glow = {"changes": {"epochs": 1, "glow": {"coupling": "bounded"}}, "n_components": "all"}
    text = (folder / "text.txt").read_text().splitlines()
    system = bertflow.CalibratedEncoder.fit(encoder, bertflow.FlowCalibrator(**glow), text)
    bertflow.export_encoder(system, "out/exported", "sentence-transformers")
    z = system.encode(["a dog"])
    assert abs(bertflow.load_sentence_transformer("out/exported", device="cpu").encode(["a dog"]) - z).max() < 1e-5
    forget()
    said = refusal(bertflow.load_sentence_transformer, "out/exported", error=MissingCodeError)
    assert said == f"The exported map needs {BOUNDED}"


def test_a_coupling_that_is_made_otherwise_is_refused(monkeypatch, refusal):
    class OfWidth(AffineCoupling):
        def __init__(self, dim):
            raise AssertionError("it is not made")

    monkeypatch.setitem(COUPLINGS, "of-width", OfWidth)
    assert refusal(make_coupling, "of-width", 4, nn.Linear, error=UsageError) == (
        "The coupling of-width should be made of (dim, network), as docs/extend.md shows, but too many positional "
        "arguments. Change its __init__."
    )


def test_an_encoder_and_a_calibrator_of_ones_own_are_saved_with_the_name_of_their_module(folder, forget, told):
    fit = "inspect BERT --pooling by-norm(0,2) --text text.txt --pairs none --output report --import mine"
    told(*fit.split())
    encoder = make("BERT", "by-norm(0,2)")
    sentences = ["the dog sleeps .", "a cat", "the big bird eats"]
    fitted = bertflow.CalibratedEncoder.fit(encoder, CALIBRATORS["one-scale"].make(), sentences)
    z = torch.from_numpy(fitted.encode(sentences))
    assert_close(z.mean(0), torch.zeros(16), atol=1e-5, rtol=0)
    assert_close(z.var(0, correction=0).mean(), torch.tensor(1.0), atol=1e-4, rtol=0)
    fitted.save("saved")
    forget()
    for place in ("saved/encoder", "saved/calibrator"):
        with pytest.raises(MissingCodeError, match=r"needs code of your own, in mine: .* Add --import mine"):
            (bertflow.load_calibrator if "calibrator" in place else bertflow.load)(place)
    assert "--import MODULE" in told("serve", "saved", "--help", "--import", "mine")
    sys.modules.pop("mine", None)
    told("tokens", "saved/encoder", "a dog", "--import", "mine")


def test_a_token_reduction_of_ones_own_never_counts_padding(folder, told):
    told("doctor", "--help", "--import", "mine")
    encoder = make("BERT", "inner-by-norm")
    x = encoder.encode(["a dog", "the big red dog sleeps in the garden ."])
    assert_close(torch.from_numpy(x[0]), torch.from_numpy(encoder.encode("a dog")), atol=1e-5, rtol=0)


FAILING = {
    "nowhere": "No module named 'nowhere'",
    "": "Empty module name",
    "broken": "invalid syntax (broken.py, line 1)",
}


@pytest.mark.parametrize(("module", "reason"), FAILING.items())
def test_a_module_that_cannot_be_imported_is_refused_first(folder, module, reason, refused):
    (folder / "broken.py").write_text("def\n")
    assert refused(2, "inspect", "nothing", f"--import={module}") == (
        f"error: --import {module} failed: {reason}. Name a module that Python finds: in this folder, on PYTHONPATH, "
        "or installed.".replace("--import  failed", "--import failed")
    )
