"""``without_text_hashes``: nothing that is written holds the hash of a sentence, and what was seen is then unknown."""

import numpy as np
import pytest

import bertflow
from bertflow.calibration.spelling import load_calibrator
from bertflow.cli import main
from bertflow.data.fitting_text import TextOptions
from bertflow.data.pairs import Pairs
from bertflow.encoder.transformer import TransformerEncoder
from bertflow.evaluation.evaluating import score_sets
from bertflow.store.store import EmbeddingStore
from bertflow.text_keys import hash_text

from ..texts import TWELVE as WORDS

RECIPE = {"batch_size": 32, "n_components": "all", "glow": {"hidden": 8}}
pytestmark = pytest.mark.filterwarnings("ignore:.*:UserWarning:pytorch_lightning")


def sentences(n, seed):
    rng = np.random.default_rng(seed)
    return list(dict.fromkeys(" ".join(rng.choice(WORDS, 6)) for _ in range(n)))


TEXT = sentences(200, 0)
PAIRS = Pairs("toy", tuple(TEXT[:40]), tuple(TEXT[40:80]), np.arange(40.0), source="toy")


def holding(folder):
    """Names of the files below a folder that hold a hash of the text."""
    hashes = [hash_text(text).to_bytes(8, "little") for text in TEXT]
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.name for path in files if any(one in content for content in [path.read_bytes()] for one in hashes)}


def embedded(encoder, folder, leave_out):
    (folder.parent / "text.txt").write_text("\n".join(TEXT))
    bertflow.embed([folder.parent / "text.txt"], store=folder, model=encoder, without_text_hashes=leave_out)


def fitted(encoder, folder, leave_out):
    store = EmbeddingStore.build(encoder, TEXT, folder.parent / "store").folder
    bertflow.fit(calibrator="whitening", store=store, output=folder, without_text_hashes=leave_out)


def trained(encoder, folder, leave_out):
    text = TextOptions(str(folder.parent / "text.txt"), store=str(folder / "store"))
    (folder.parent / "text.txt").write_text("\n".join(TEXT))
    trainer = {"max_steps": 2, "accelerator": "cpu"}
    options = {"flow": RECIPE, "trainer": trainer, "report": False, "without_text_hashes": leave_out}
    bertflow.train(encoder, text, output=folder / "run", **options)


def finetuned(encoder, folder, leave_out):
    recipe = {"objective": "in-batch-negatives", "joint": "apart", "held_out": 0.0}
    trainer = {"max_steps": 2, "accelerator": "cpu"}
    related = Pairs("toy", PAIRS.first, PAIRS.second, kind="texts")
    bertflow.finetune(encoder, related, recipe, trainer, folder, without_text_hashes=leave_out)


def calibrated(encoder):
    return bertflow.CalibratedEncoder.fit(encoder, bertflow.Whitening(), TEXT)


def exported(encoder, folder, leave_out):
    bertflow.export_encoder(calibrated(encoder), folder, "safetensors", without_text_hashes=leave_out)


def scored(encoder, folder, leave_out):
    text, options = sentences(300, 1), {"save": folder, "false_match_rate": 0.1}
    bertflow.score(calibrated(encoder), fit_on=text, without_text_hashes=leave_out, **options)


KEPT, COUNTED = "text_hashes.safetensors", "token_counts.safetensors"


@pytest.mark.parametrize(
    ("command", "files"),
    [
        (embedded, {"text_hashes.npy"}),
        (fitted, {KEPT}),
        (trained, {KEPT, COUNTED, "text_hashes.npy"}),
        (finetuned, {KEPT, COUNTED, "labeled_text.safetensors"}),
        (exported, {KEPT, COUNTED}),
        (scored, {KEPT, COUNTED}),
    ],
)
def test_no_file_holds_a_hash_of_a_sentence(command, files, tiny_bert, tmp_path):
    for leave_out, expected in ((False, files), (True, set())):
        folder = tmp_path / str(leave_out) / "it"
        folder.parent.mkdir()
        encoder = TransformerEncoder(tiny_bert, "sif(1,2)", device="cpu").count_tokens(TEXT)
        command(encoder, folder, leave_out)
        assert holding(folder) == expected


@pytest.mark.slow
def test_fix_leaves_them_out(tiny_bert, tmp_path):
    lines = [line for first, second in zip(TEXT, sentences(200, 3), strict=False) for line in (first, second, "")]
    encoder = TransformerEncoder(tiny_bert, "mean(1,2)", device="cpu")
    advice = bertflow.fix(encoder, lines, candidates="whitening", resamples=200, without_text_hashes=True)
    advice.encoder.save(tmp_path / "it")
    assert holding(tmp_path) == set()
    assert advice.encoder.calibrator is None or advice.encoder.fitted_hashes() is None


def test_what_was_seen_is_then_unknown(tiny_bert, tmp_path):
    encoder = TransformerEncoder(tiny_bert, "mean(1,2)", device="cpu")
    known, forgotten = calibrated(encoder), calibrated(encoder).forget_text()
    forgotten.save(tmp_path / "it")
    opened = bertflow.load(tmp_path / "it", device="cpu")
    assert opened.fitted_hashes() is None
    np.testing.assert_array_equal(opened.encode(TEXT), known.encode(TEXT))
    assert load_calibrator(tmp_path / "it" / "calibrator").provenance.encoder == encoder.describe()
    report = score_sets({"known": known, "forgotten": opened}, [PAIRS], resamples=0)
    assert {row.system: row.as_dict()["seen"] for row in report.rows} == {"known": 1.0, "forgotten": "unknown"}
    assert "it is not recorded how much of the scored text was in the fitting text." in report.captions()[2]


def test_labels_stay_known_where_their_text_is_not(tiny_bert, tmp_path):
    finetuned(TransformerEncoder(tiny_bert, "mean(2)", device="cpu"), tmp_path / "run", True)
    tuned = TransformerEncoder(tmp_path / "run" / "encoder", device="cpu")
    assert (tuned.describe()["labels"], tuned.fitted_hashes()) == (["toy"], None)


def test_a_run_goes_on_with_the_option_that_it_began_with(tiny_bert, tmp_path, capsys):
    (tmp_path / "text.txt").write_text("\n".join(TEXT))
    argv = f"--encoder.model {tiny_bert} --data.sentences {tmp_path / 'text.txt'} --output {tmp_path / 'run'}".split()
    argv += ["--trainer.max_steps=2", "--trainer.accelerator=cpu", "--report=false", "--resume=auto"]
    assert main(["train", *argv, "--without_text_hashes"]) == 0
    assert holding(tmp_path / "run") == set()
    assert main(["train", *argv]) == 2
    assert "was made with without_text_hashes=True, but now it is False." in capsys.readouterr().err
