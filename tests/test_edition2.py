"""What was written when ``default`` had no version yet: it opens, goes on, and says ``default-1``.

``fixtures/edition2/README.md`` says how each artefact was made.
"""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from sklearn.base import clone

import bertflow
from bertflow.cli import main
from bertflow.runs import asked_recipe

FIXTURES = Path(__file__).parent / "fixtures"
EXPECTED = load_file(FIXTURES / "edition2" / "expected.safetensors")
PROBE = json.loads((FIXTURES / "edition1" / "probe.json").read_text("utf-8"))
ENCODED, TRAINED = 1e-4, 5e-4  # other processors sum in another order; some steps of training on top
QUICK = {"epochs": 4, "batch_size": 32, "learning_rate": 5e-3, "glow": {"hidden": 8}}

pytestmark = [
    pytest.mark.filterwarnings("ignore::bertflow.errors.NullDirectionWarning"),  # few words, 16 dimensions
    pytest.mark.filterwarnings("ignore:The number of training batches"),  # logged every 50 steps, 7 an epoch
]


@pytest.fixture(autouse=True)
def _there(tmp_path, monkeypatch):
    """A copy that may be written to, with the encoder and the text of the first edition."""
    shutil.copytree(FIXTURES / "edition2", tmp_path, dirs_exist_ok=True)
    shutil.copytree(FIXTURES / "edition1" / "tiny-bert", tmp_path / "tiny-bert")
    shutil.copy(FIXTURES / "edition1" / "sentences.txt", tmp_path)
    monkeypatch.chdir(tmp_path)


def test_a_calibrator_maps_as_it_did_and_has_the_version():
    opened = bertflow.load_calibrator("calibrator")
    np.testing.assert_allclose(opened.transform(EXPECTED["x"]), EXPECTED["calibrator"], rtol=ENCODED, atol=ENCODED)
    assert opened.get_params() == {
        "preset": "default-1", "n_components": "auto", "random_state": 0, "changes": QUICK,
        "trainer": {"accelerator": "cpu"}, "purpose": None,
    }  # fmt: skip
    opened.save("again")
    assert json.loads(Path("again/calibrator.json").read_text())["parameters"]["preset"] == "default-1"


def test_a_calibrator_is_fitted_again_by_the_recipe_that_it_records():
    opened = bertflow.load_calibrator("calibrator")
    encoder = bertflow.TransformerEncoder("tiny-bert", pooling="mean(1,2)", device="cpu")
    again = clone(opened).fit_sentences(encoder, Path("sentences.txt").read_text("utf-8").splitlines())
    np.testing.assert_allclose(again.transform(EXPECTED["x"]), EXPECTED["calibrator"], rtol=TRAINED, atol=TRAINED)


@pytest.mark.parametrize(("folder", "name"), [("calibrated", "calibrated"), ("run", "run"), ("fixed/encoder", "fixed")])
def test_an_encoder_embeds_as_it_did_and_has_the_version(folder, name):
    opened = bertflow.load(folder, device="cpu")
    np.testing.assert_allclose(opened.encode(PROBE), EXPECTED[name], rtol=ENCODED, atol=ENCODED)
    assert "preset='default-1'" in opened.describe()["calibrator"]
    opened.save("again")
    again = bertflow.load("again", device="cpu")
    assert again.describe() == opened.describe()
    np.testing.assert_array_equal(again.encode(PROBE), opened.encode(PROBE))


HALF = ["train", "--output=half", "--resume=auto"]
OPTIONS = [f"--{name}" for name in (
    "encoder.model=tiny-bert", "data.sentences=sentences.txt", "encoder.pooling=mean(1,2)", "encoder.device=cpu",
    "trainer.accelerator=cpu", "trainer.enable_progress_bar=false", "report=false", "trainer.log_every_n_steps=3",
    "flow.glow.hidden=8", "flow.learning_rate=0.005", "flow.batch_size=32", "flow.epochs=4", "save_encoder=false",
)]  # fmt: skip


@pytest.mark.parametrize(
    "command",
    [[*HALF, "--config=half/config.yaml"], [*HALF, *OPTIONS], [*HALF, *OPTIONS, "--flow.preset=default"]],
    ids=["its config", "its options", "its options and default"],
)
def test_a_run_goes_on_with_the_recipe_that_it_began_with(command):
    assert main(command) == 0
    opened = bertflow.load("half", device="cpu")
    np.testing.assert_allclose(opened.encode(PROBE), EXPECTED["run"], rtol=TRAINED, atol=TRAINED)
    record = json.loads(Path("half/run.json").read_text())
    assert (record["status"], record["options"]["flow"]["preset"]) == ("done", "default-1")
    assert "tail" not in record["options"]["flow"]
    assert "preset: default-1\n" in Path("half/config.yaml").read_text()


def test_a_config_of_such_a_run_makes_the_same_run_anew():
    assert main(["train", "--config=half/config.yaml", "--output=anew"]) == 0
    assert json.loads(Path("anew/run.json").read_text())["options"]["flow"]["preset"] == "default-1"
    np.testing.assert_allclose(
        bertflow.load("anew", device="cpu").encode(PROBE), EXPECTED["run"], rtol=TRAINED, atol=TRAINED
    )


def test_a_run_does_not_go_on_with_the_present_recipe(capsys):
    assert main([*HALF, *OPTIONS, "--flow.preset=similarity-2"]) == 2
    assert "was made with flow.preset=default-1, but now it is similarity-2" in capsys.readouterr().err


def test_python_goes_on_with_it_too():
    changes = {"glow": {"hidden": 8}, "learning_rate": 0.005, "batch_size": 32, "epochs": 4.0, "steps": 375}
    assert asked_recipe(changes, None, "half", "auto").preset == "default-1"
    assert asked_recipe(None, None, "half/checkpoints", "half/checkpoints/last.ckpt").preset == "default-1"
    assert asked_recipe(changes, None, "elsewhere", None).preset == "similarity-2"
    assert asked_recipe(changes, "search", "half", "auto").preset == "search-2"
