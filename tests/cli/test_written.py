"""Whatever a command writes can be read by those whom the umask lets read."""

import os
import stat
from itertools import pairwise

import numpy as np
import pytest

from bertflow.cli import main

pytestmark = pytest.mark.filterwarnings("ignore::bertflow.errors.NullDirectionWarning")
NOUNS = ["man", "dog", "cat", "bird", "house", "garden"]
SIZES = ("big", "red", "small", "green", "old", "tall")
SENTENCES = [
    f"{a} {size} {noun} sleeps in the {end} ." for a in "az" for size in SIZES for noun in NOUNS for end in NOUNS
]
TRAINING = "--trainer.enable_progress_bar=false --trainer.accelerator=cpu"
WRITERS = {
    "train": f"train --encoder.model=BERT --data.sentences=text.txt --output=out/run --flow.glow.hidden=8 "
    f"--flow.batch_size=16 --flow.epochs=1 {TRAINING}",
    "finetune": f"finetune --encoder.model=BERT --data.pairs=nli.tsv --output=out/run --trainer.max_steps=2 {TRAINING}",
    "embed": "embed text.txt --model BERT --store out/store --device cpu",
    "fit": "fit --vectors x.npy --calibrator abtt(1) --output out/calibrator",
    "transform": "transform --vectors x.npy --calibrator fitted --output out/z.npy",
    "transform to parquet": "transform --vectors x.npy --calibrator fitted --output out/z.parquet",
    "fix": "fix BERT text.txt --labels labels.tsv --candidates center --output out/fixed --device cpu",
    "evaluate": "evaluate BERT --binary labels.tsv --output out/report --device cpu",
    "score": "score BERT labels.tsv --fit_on text.txt --save out/scored --output out/scores.tsv --device cpu",
    "search": "search build out/faq.index --answers answers.tsv --model BERT --device cpu",
    "inspect": "inspect BERT --text text.txt --pairs none --sentences 30 --output out/report --device cpu",
    "export to sentence-transformers": "export BERT --target sentence-transformers --output out/exported",
    "export to onnx": "export BERT --target onnx --output out/exported",
}


@pytest.fixture(params=[0o027, pytest.param(0o022, marks=pytest.mark.slow)])
def umask(request):
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    (folder / "text.txt").write_text("\n".join(SENTENCES))
    rows = [f"{one}\t{other}\t{k % 2}\n" for k, (one, other) in enumerate(pairwise(SENTENCES[:111]))]
    (folder / "labels.tsv").write_text("sentence1\tsentence2\tlabel\n" + "".join(rows))
    classes = [
        f"{one}\t{one}\t{label}\n" for one in SENTENCES[:60] for label in ("entailment", "neutral", "contradiction")
    ]
    (folder / "nli.tsv").write_text("premise\thypothesis\tlabel\n" + "".join(classes))
    (folder / "answers.tsv").write_text("id\ttext\ndogs\tthe dog sleeps .\n")
    np.save(folder / "x.npy", np.random.default_rng(0).normal(size=(300, 8)).astype("float32"))
    os.chdir(folder)
    assert main(["fit", "--vectors", "x.npy", "--calibrator", "center", "--output", "fitted"]) == 0
    return folder


@pytest.mark.parametrize(
    "writer", [pytest.param(one, marks=pytest.mark.slow) if "onnx" in one else one for one in WRITERS]
)
def test_what_is_written_has_the_mode_of_the_umask(writer, umask, inputs, tiny_bert, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path in inputs.iterdir():
        (tmp_path / path.name).symlink_to(path)
    (tmp_path / "out").mkdir()
    assert main(WRITERS[writer].replace("BERT", str(tiny_bert)).split()) == 0
    written = [tmp_path / "out", *(tmp_path / "out").rglob("*")]
    assert len(written) > 1
    wrong = {
        str(path.relative_to(tmp_path)): oct(stat.S_IMODE(path.stat().st_mode))
        for path in written
        if stat.S_IMODE(path.stat().st_mode) != (0o777 if path.is_dir() else 0o666) & ~umask
    }
    assert not wrong
